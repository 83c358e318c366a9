"""Schedules and calendars."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act
from perdure.core.schedules import Calendar, ScheduleSpec

ORIGIN_API: Final = "api"
ORIGIN_CODE: Final = "code"
ORIGIN_FLOW: Final = "flow:"
"""Begins the origin of a schedule that the `triggers:` of a flow made; the flow's name follows."""

ScheduleState = Literal["active", "paused", "over"]


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to create or to bring up to date."""

    name: str
    workflow: str
    version: str = ""
    """Empty: the current version at the time it fires."""
    input: bytes = b"{}"
    timeout_us: int = 0
    """How long its runs may take; 0: no limit."""
    attributes: bytes = b""
    spec: ScheduleSpec
    origin: str = ORIGIN_API


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    workflow: str
    version: str
    input: bytes
    timeout_us: int
    attributes: bytes
    spec: ScheduleSpec
    origin: str
    created_us: int
    created_by: str
    updated_us: int
    paused_us: int | None
    paused_by: str | None
    pause_reason: str | None
    next_us: int | None
    """The next nominal time; None when it is over. A paused schedule finds its next time when it is resumed."""
    fire_us: int | None
    """When that one fires: nominal time and jitter."""
    fired: int
    missed: int
    skipped: int
    error: str | None

    @property
    def state(self) -> ScheduleState:
        if self.paused_us is not None:
            return "paused"
        return "over" if self.next_us is None else "active"


class FireView(msgspec.Struct, frozen=True, kw_only=True):
    """One nominal time and its outcome."""

    nominal_us: int
    at_us: int
    how: str
    outcome: str
    run_id: bytes | None = None
    status: int | None = None
    """Of the run; None when there is none, or when it is too old to be known."""


class BackfillTime(msgspec.Struct, frozen=True, kw_only=True):
    """A nominal time in the range of a backfill."""

    nominal_us: int
    exists: bool
    """It had a run before, and gets no second one."""
    run_id: bytes | None = None


class CalendarView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    spec: bytes
    """JSON."""
    updated_us: int
    updated_by: str


class ListSchedules(msgspec.Struct, frozen=True):
    workflow: str = ""
    after: str = ""
    limit: int = 50


class SchedulePage(msgspec.Struct, frozen=True):
    items: list[ScheduleView]
    next: str | None


class PutSchedule(msgspec.Struct, frozen=True):
    schedule: ScheduleRequest
    is_new: bool = False
    """Refuse a name that is taken."""


class ScheduleWritten(msgspec.Struct, frozen=True):
    schedule: ScheduleView
    is_new: bool


class ScheduleRef(msgspec.Struct, frozen=True):
    name: str


class PauseSchedule(msgspec.Struct, frozen=True):
    name: str
    reason: str = ""


class ScheduleTriggered(msgspec.Struct, frozen=True):
    run_id: bytes


class BackfillSchedule(msgspec.Struct, frozen=True):
    name: str
    since_us: int
    until_us: int
    is_dry_run: bool = False


class BackfillReply(msgspec.Struct, frozen=True):
    times: list[BackfillTime]


class ListTimes(msgspec.Struct, frozen=True):
    name: str
    count: int


class PreviewSchedule(msgspec.Struct, frozen=True):
    spec: ScheduleSpec
    count: int


class TimesReply(msgspec.Struct, frozen=True):
    times: list[int]


class ListFires(msgspec.Struct, frozen=True):
    name: str
    before_us: int | None = None
    limit: int = 50


class FirePage(msgspec.Struct, frozen=True):
    items: list[FireView]
    next: int | None


class ListCalendars(msgspec.Struct, frozen=True):
    after: str = ""
    limit: int = 50


class CalendarPage(msgspec.Struct, frozen=True):
    items: list[CalendarView]
    next: str | None


class CalendarRef(msgspec.Struct, frozen=True):
    name: str


class PutCalendar(msgspec.Struct, frozen=True):
    name: str
    calendar: Calendar


_READ, _OPERATE, _DEVELOP = Permission.READ, Permission.OPERATE, Permission.DEVELOP

LIST: Act[ListSchedules, SchedulePage] = Act("schedule.list", ListSchedules, SchedulePage, _READ)
PUT: Act[PutSchedule, ScheduleWritten] = Act(
    "schedule.put", PutSchedule, ScheduleWritten, _DEVELOP, ("schedule.create", "schedule.update"), True
)
GET: Act[ScheduleRef, ScheduleView] = Act("schedule.get", ScheduleRef, ScheduleView, _READ)
PAUSE: Act[PauseSchedule, ScheduleView] = Act(
    "schedule.pause", PauseSchedule, ScheduleView, _OPERATE, ("schedule.pause",), True
)
RESUME: Act[ScheduleRef, ScheduleView] = Act(
    "schedule.resume", ScheduleRef, ScheduleView, _OPERATE, ("schedule.resume",), True
)
TRIGGER: Act[ScheduleRef, ScheduleTriggered] = Act(
    "schedule.trigger", ScheduleRef, ScheduleTriggered, _OPERATE, ("schedule.trigger",)
)
BACKFILL: Act[BackfillSchedule, BackfillReply] = Act(
    "schedule.backfill", BackfillSchedule, BackfillReply, _OPERATE, ("schedule.backfill",)
)
DELETE: Act[ScheduleRef, None] = Act("schedule.delete", ScheduleRef, None, _DEVELOP, ("schedule.delete",), True)
TIMES: Act[ListTimes, TimesReply] = Act("schedule.times", ListTimes, TimesReply, _READ)
PREVIEW: Act[PreviewSchedule, TimesReply] = Act("schedule.preview", PreviewSchedule, TimesReply, _READ)
FIRES: Act[ListFires, FirePage] = Act("schedule.fires", ListFires, FirePage, _READ)
LIST_CALENDARS: Act[ListCalendars, CalendarPage] = Act("calendar.list", ListCalendars, CalendarPage, _READ)
GET_CALENDAR: Act[CalendarRef, CalendarView] = Act("calendar.get", CalendarRef, CalendarView, _READ)
PUT_CALENDAR: Act[PutCalendar, CalendarView] = Act(
    "calendar.put", PutCalendar, CalendarView, _DEVELOP, ("calendar.put",), True
)
DELETE_CALENDAR: Act[CalendarRef, None] = Act("calendar.delete", CalendarRef, None, _DEVELOP, ("calendar.delete",))

ACTS = (
    LIST,
    PUT,
    GET,
    PAUSE,
    RESUME,
    TRIGGER,
    BACKFILL,
    DELETE,
    TIMES,
    PREVIEW,
    FIRES,
    LIST_CALENDARS,
    GET_CALENDAR,
    PUT_CALENDAR,
    DELETE_CALENDAR,
)
