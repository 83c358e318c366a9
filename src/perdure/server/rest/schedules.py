"""Schedules: runs that start by the clock, the outcome of each time, and the calendars they use.

A schedule of a flow's `triggers:` has a slash in its name; in a path it is written as it is, or as %2F.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from perdure.core import ids
from perdure.core.api import schedules as acts
from perdure.core.api.schedules import (
    BackfillSchedule,
    BackfillTime,
    CalendarRef,
    CalendarView,
    FireView,
    ListCalendars,
    ListFires,
    ListSchedules,
    ListTimes,
    PauseSchedule,
    PreviewSchedule,
    PutCalendar,
    PutSchedule,
    ScheduleRef,
    ScheduleRequest,
    ScheduleView,
)
from perdure.core.calls import encode_json
from perdure.core.limits import ATTRIBUTES_MAX, NAME_CHARS_MAX, PREVIEW_TIMES_MAX
from perdure.core.schedules import Calendar, ScheduleSpec, parse_calendar, parse_spec, spec_json, spec_words
from perdure.core.schedules.holidays import is_holidays
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses

TIMES_DEFAULT: Final = 5

router = APIRouter(tags=["schedules"], route_class=GuardedRoute)

ScheduleName = Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX, examples=["nightly"])]
Count = Annotated[int, Query(ge=1, le=PREVIEW_TIMES_MAX, description="How many times.")]
Times = str | list[str] | None
Span = float | str | None


class SpecRequest(m.Body):
    """When it fires. `cron`, `every` and `at` add up; the rest narrows them down."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"cron": "0 8 * * *", "tz": "Europe/Paris"}]}
    )

    cron: Times = Field(default=None, description="5 fields (minute first) or 6 (second first); one or several.")
    every: Span = Field(default=None, description="An interval: seconds, or text such as `15m`.")
    anchor: str | None = Field(default=None, description="The moment that `every` is counted from.")
    at: Times = Field(default=None, description="A moment, or several.")
    tz: str | None = Field(default=None, description="Zone of `cron`, of days, and of moments without an offset.")
    calendars: list[str] | None = Field(default=None, description="Only on days of these calendars.")
    exclude: list[str] | None = Field(default=None, description="Not on days of these calendars.")
    start: str | None = Field(default=None, description="Nothing before this moment.")
    end: str | None = Field(default=None, description="Nothing from this moment on.")
    jitter: Span = Field(default=None, description="Each firing is delayed by up to this much.")
    overlap: str | None = Field(
        default=None, description="skip, queue, cancel or allow: when an earlier run is active."
    )
    missed: str | None = Field(default=None, description="none, last or all: what is made up for after an outage.")
    window: Span = Field(default=None, description="How far back that goes.")

    def parsed(self) -> ScheduleSpec:
        return parse_spec(self.model_dump(exclude_none=True))


class PutScheduleRequest(m.Body):
    """Arguments come as when a run is started: as `input`, or as `args` and `kwargs`."""

    workflow: m.Name
    spec: SpecRequest
    input: Any = Field(default=None, description="An object: arguments by name. Null: none. Else the one argument.")
    args: list[Any] = Field(default_factory=list, max_length=m.ARGUMENTS_MAX)
    kwargs: dict[str, Any] = Field(default_factory=dict, max_length=m.ARGUMENTS_MAX)
    timeout: m.Seconds | m.DurationText | None = Field(default=None, description="When a run of it fails.")
    attributes: dict[m.AttributeName, m.Attribute] = Field(default_factory=dict, max_length=ATTRIBUTES_MAX - 1)
    version: Annotated[str, Field(min_length=1, max_length=m.VERSION_CHARS_MAX)] | None = Field(
        default=None, description="A registered version; the current version at the time it fires unless given."
    )

    origin: Literal["api", "code"] = Field(
        default="api", description="`code`: it is declared in a program, whose workers may not have connected yet."
    )

    def request(self, name: str) -> ScheduleRequest:
        return ScheduleRequest(
            name=name,
            workflow=self.workflow,
            version=self.version or "",
            input=views.call(self.input, self.args, self.kwargs),
            timeout_us=views.duration_us(self.timeout),
            attributes=encode_json(self.attributes) if self.attributes else b"",
            spec=self.spec.parsed(),
            origin=self.origin,
        )


class CreateScheduleRequest(PutScheduleRequest):
    name: m.Name = Field(examples=["nightly"])


class SchedulePause(BaseModel):
    at: m.Moment
    by: str
    reason: str | None


class ScheduleDetail(BaseModel):
    name: str = Field(examples=["nightly"])
    workflow: str
    version: str | None = Field(description="Null: the current version at the time it fires.")
    input: Any
    attributes: dict[str, Any]
    timeout_s: float | None
    spec: dict[str, Any] = Field(description="What differs from the defaults.", examples=[{"cron": "0 8 * * *"}])
    words: str = Field(description="When it fires, in words.", examples=["at 08:00, Monday to Friday (UTC)"])
    state: Literal["active", "paused", "over"]
    origin: str = Field(description="`api`, `code`, or `flow:` and the flow whose triggers it comes from.")
    paused: SchedulePause | None
    next_at: m.Moment | None = Field(description="The next nominal time; null when it is over.")
    fire_at: m.Moment | None = Field(description="When that one fires: with its jitter.")
    fired: int
    missed: int = Field(description="Times that went by and were not made up for.")
    skipped: int = Field(description="Times that started nothing because an earlier run was active.")
    error: str | None = Field(description="Why the last time could not be fired.")
    created_at: m.Moment
    created_by: str
    updated_at: m.Moment
    url: str = Field(description="Its past times.")


class ScheduleTimes(BaseModel):
    times: list[m.Moment]


class SchedulePreview(ScheduleTimes):
    words: str = Field(description="The spec in words.", examples=["at 08:00, Monday to Friday (UTC)"])


class PreviewScheduleRequest(m.Body):
    spec: SpecRequest
    n: int = Field(default=TIMES_DEFAULT, ge=1, le=PREVIEW_TIMES_MAX)


class PauseScheduleRequest(m.Body):
    reason: Annotated[str, Field(max_length=m.REASON_CHARS_MAX)] = ""


class TriggeredRun(BaseModel):
    run_id: str = Field(examples=[m.ID])
    url: str


class BackfillScheduleRequest(m.Body):
    since: Annotated[str, Field(max_length=100)] = Field(
        description="A time with its zone, or how long ago.", examples=["2026-10-01T00:00:00Z", "7d"]
    )
    until: Annotated[str, Field(max_length=100)] | None = Field(
        default=None, description="Not included; now unless given."
    )
    dry_run: bool = Field(default=False, description="Only report what would be started.")


class BackfilledTime(BaseModel):
    nominal_at: m.Moment
    exists: bool = Field(description="It had a run already, and gets no other.")
    run_id: str | None


class Backfill(BaseModel):
    dry_run: bool
    started: int = Field(description="Or how many would be.")
    times: list[BackfilledTime]


class ScheduleFire(BaseModel):
    """One nominal time and its outcome."""

    nominal_at: m.Moment
    at: m.Moment = Field(description="When it was fired.")
    how: Literal["fired", "trigger", "backfill"]
    outcome: Literal["started", "skipped", "missed"]
    run_id: str | None
    status: m.RunStatusWord | None = Field(description="Of the run; null when there is none, or none any more.")


class CalendarDetail(BaseModel):
    name: str
    spec: dict[str, Any] = Field(examples=[{"dates": ["2026-12-25"], "weekdays": ["sat", "sun"]}])
    updated_at: m.Moment
    updated_by: str


class PutCalendarRequest(m.Body):
    """Days: those that any of the four lists names and `not` does not."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    dates: list[str] | None = Field(default=None, examples=[["2026-12-25"]])
    yearly: list[str] | None = Field(default=None, description="Month and day.", examples=[["12-25"]])
    weekdays: list[str] | None = Field(default=None, examples=[["sat", "sun"]])
    ranges: list[list[str]] | None = Field(default=None, description="First and last day.")
    without: dict[str, Any] | None = Field(
        default=None, alias="not", description="A calendar of days that are left out."
    )


@router.get("/schedules", responses=responses(401, 403, 422))
async def list_schedules(
    caller: Annotated[RestCaller, asks(acts.LIST)],
    workflow: Annotated[str, Query(max_length=NAME_CHARS_MAX, description="Of this workflow only.")] = "",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[ScheduleDetail]:
    """Schedules by name."""
    page = await caller.call(acts.LIST, ListSchedules(workflow, views.read_text_cursor(cursor), limit))
    return m.Page[ScheduleDetail](items=[_shown(caller, s) for s in page.items], next=views.next_cursor(page.next))


@router.post("/schedules", status_code=201, responses=responses(401, 403, 404, 409, 413, 422))
async def create_schedule(
    caller: Annotated[RestCaller, asks(acts.PUT)], body: CreateScheduleRequest, response: Response
) -> ScheduleDetail:
    """Create a schedule. A name that is taken is refused; PUT changes an existing one."""
    made = await caller.call(acts.PUT, PutSchedule(body.request(body.name), is_new=True))
    response.headers["Location"] = f"/api/v1/schedules/{body.name}"
    return _shown(caller, made.schedule)


@router.post("/schedules/preview", responses=responses(401, 403, 413, 422))
async def preview_schedule(
    caller: Annotated[RestCaller, asks(acts.PREVIEW)], body: PreviewScheduleRequest
) -> SchedulePreview:
    """When a schedule like this would fire. Nothing is written."""
    spec = body.spec.parsed()
    found = await caller.call(acts.PREVIEW, PreviewSchedule(spec, body.n))
    return SchedulePreview(times=[views.moment(t) for t in found.times], words=spec_words(spec))


# A name may hold slashes, so the routes below a schedule come before the schedule itself.


@router.get("/schedules/{name:path}/times", responses=responses(401, 403, 404, 422))
async def schedule_times(
    caller: Annotated[RestCaller, asks(acts.TIMES)], name: ScheduleName, n: Count = TIMES_DEFAULT
) -> ScheduleTimes:
    """The next nominal times."""
    found = await caller.call(acts.TIMES, ListTimes(name, n))
    return ScheduleTimes(times=[views.moment(t) for t in found.times])


@router.get("/schedules/{name:path}/fires", responses=responses(401, 403, 404, 422))
async def list_fires(
    caller: Annotated[RestCaller, asks(acts.FIRES)],
    name: ScheduleName,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[ScheduleFire]:
    """Past times and their outcomes, the latest first."""
    page = await caller.call(acts.FIRES, ListFires(name, views.read_cursor(cursor, int), limit))
    return m.Page[ScheduleFire](items=[_fire(f) for f in page.items], next=views.next_cursor(page.next))


@router.post("/schedules/{name:path}/pause", responses=responses(401, 403, 404, 413, 422))
async def pause_schedule(
    caller: Annotated[RestCaller, asks(acts.PAUSE)], name: ScheduleName, body: PauseScheduleRequest | None = None
) -> ScheduleDetail:
    """Fire nothing until it is resumed."""
    paused = PauseSchedule(name, body.reason if body is not None else "")
    return _shown(caller, await caller.call(acts.PAUSE, paused))


@router.post("/schedules/{name:path}/resume", responses=responses(401, 403, 404, 422))
async def resume_schedule(caller: Annotated[RestCaller, asks(acts.RESUME)], name: ScheduleName) -> ScheduleDetail:
    """Continue from now. Times that passed meanwhile are not made up for; a backfill does that."""
    return _shown(caller, await caller.call(acts.RESUME, ScheduleRef(name)))


@router.post("/schedules/{name:path}/trigger", status_code=201, responses=responses(401, 403, 404, 422))
async def trigger_schedule(caller: Annotated[RestCaller, asks(acts.TRIGGER)], name: ScheduleName) -> TriggeredRun:
    """Start a run now, beside what the schedule does."""
    run_id = ids.text((await caller.call(acts.TRIGGER, ScheduleRef(name))).run_id)
    return TriggeredRun(run_id=run_id, url=f"{caller.api.api.public_url}/runs/{run_id}")


@router.post("/schedules/{name:path}/backfill", responses=responses(401, 403, 404, 413, 422))
async def backfill_schedule(
    caller: Annotated[RestCaller, asks(acts.BACKFILL)], name: ScheduleName, body: BackfillScheduleRequest
) -> Backfill:
    """A run for each nominal time from `since` and before `until` that had none."""
    now_us = caller.now_us
    since = views.read_moment(body.since, "since", now_us) or 0
    until = views.read_moment(body.until, "until", now_us) or now_us
    times = (await caller.call(acts.BACKFILL, BackfillSchedule(name, since, until, body.dry_run))).times
    started = sum(not t.exists for t in times)
    return Backfill(dry_run=body.dry_run, started=started, times=[_backfilled(t) for t in times])


@router.get("/schedules/{name:path}", responses=responses(401, 403, 404, 422))
async def get_schedule(caller: Annotated[RestCaller, asks(acts.GET)], name: ScheduleName) -> ScheduleDetail:
    """A schedule and its state."""
    return _shown(caller, await caller.call(acts.GET, ScheduleRef(name)))


@router.put(
    "/schedules/{name:path}",
    responses=responses(401, 403, 404, 409, 413, 422, s201={"model": ScheduleDetail, "description": "It is new."}),
)
async def put_schedule(
    caller: Annotated[RestCaller, asks(acts.PUT)], name: ScheduleName, body: PutScheduleRequest, response: Response
) -> ScheduleDetail:
    """Create a schedule, or bring it up to date. The next time is kept unless the spec changed."""
    made = await caller.call(acts.PUT, PutSchedule(body.request(name)))
    response.status_code = 201 if made.is_new else 200
    return _shown(caller, made.schedule)


@router.delete("/schedules/{name:path}", status_code=204, responses=responses(401, 403, 404, 422))
async def delete_schedule(caller: Annotated[RestCaller, asks(acts.DELETE)], name: ScheduleName) -> None:
    """Active runs continue, and past times stay on record."""
    await caller.call(acts.DELETE, ScheduleRef(name))


@router.get("/calendars", responses=responses(401, 403, 422))
async def list_calendars(
    caller: Annotated[RestCaller, asks(acts.LIST_CALENDARS)], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[CalendarDetail]:
    """Calendars by name."""
    page = await caller.call(acts.LIST_CALENDARS, ListCalendars(views.read_text_cursor(cursor), limit))
    return m.Page[CalendarDetail](items=[_calendar(c) for c in page.items], next=views.next_cursor(page.next))


@router.get("/calendars/{name:path}", responses=responses(401, 403, 404, 422))
async def get_calendar(caller: Annotated[RestCaller, asks(acts.GET_CALENDAR)], name: ScheduleName) -> CalendarDetail:
    """Its days, as they were given."""
    return _calendar(await caller.call(acts.GET_CALENDAR, CalendarRef(name)))


@router.put("/calendars/{name:path}", responses=responses(401, 403, 413, 422))
async def put_calendar(
    caller: Annotated[RestCaller, asks(acts.PUT_CALENDAR)], name: ScheduleName, body: PutCalendarRequest
) -> CalendarDetail:
    """Set the days of a calendar. Schedules that use it find their next time anew.

    A calendar of public holidays, such as `holidays:DE-BY`, has no days in the request: they are read again from the package of the server.
    """
    days = body.model_dump(exclude_none=True, by_alias=True)
    calendar = parse_calendar(days) if days or not is_holidays(name) else Calendar()
    return _calendar(await caller.call(acts.PUT_CALENDAR, PutCalendar(name, calendar)))


@router.delete("/calendars/{name:path}", status_code=204, responses=responses(401, 403, 404, 409, 422))
async def delete_calendar(caller: Annotated[RestCaller, asks(acts.DELETE_CALENDAR)], name: ScheduleName) -> None:
    """A calendar that a schedule uses cannot be deleted."""
    await caller.call(acts.DELETE_CALENDAR, CalendarRef(name))


def _shown(caller: RestCaller, s: ScheduleView) -> ScheduleDetail:
    paused = None
    if s.paused_us is not None:
        paused = SchedulePause(at=views.moment(s.paused_us), by=s.paused_by or "", reason=s.pause_reason)
    return ScheduleDetail(
        name=s.name,
        workflow=s.workflow,
        version=s.version or None,
        input=views.plain(s.input),
        attributes=views.plain(s.attributes) or {},
        timeout_s=s.timeout_us / 1e6 if s.timeout_us else None,
        spec=spec_json(s.spec),
        words=spec_words(s.spec),
        state=s.state,
        origin=s.origin,
        paused=paused,
        next_at=views.moment_or_none(s.next_us),
        fire_at=views.moment_or_none(s.fire_us),
        fired=s.fired,
        missed=s.missed,
        skipped=s.skipped,
        error=s.error,
        created_at=views.moment(s.created_us),
        created_by=s.created_by,
        updated_at=views.moment(s.updated_us),
        url=f"{caller.api.api.public_url}/api/v1/schedules/{s.name}/fires",
    )


def _fire(f: FireView) -> ScheduleFire:
    return ScheduleFire(
        nominal_at=views.moment(f.nominal_us),
        at=views.moment(f.at_us),
        how=f.how,  # type: ignore[arg-type]
        outcome=f.outcome,  # type: ignore[arg-type]
        run_id=_text(f.run_id),
        status=None if f.status is None else views.word(f.status),
    )


def _backfilled(t: BackfillTime) -> BackfilledTime:
    return BackfilledTime(nominal_at=views.moment(t.nominal_us), exists=t.exists, run_id=_text(t.run_id))


def _text(run_id: bytes | None) -> str | None:
    return None if run_id is None else ids.text(run_id)


def _calendar(c: CalendarView) -> CalendarDetail:
    return CalendarDetail(
        name=c.name, spec=msgspec.json.decode(c.spec), updated_at=views.moment(c.updated_us), updated_by=c.updated_by
    )
