"""Acts on schedules and calendars. When they fire is core/schedules; what fires them is services/schedules.py."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.api import schedules as acts
from perdure.core.api.schedules import (
    ORIGIN_API,
    ORIGIN_CODE,
    BackfillReply,
    BackfillSchedule,
    BackfillTime,
    CalendarPage,
    CalendarRef,
    CalendarView,
    FirePage,
    FireView,
    ListCalendars,
    ListFires,
    ListSchedules,
    ListTimes,
    PauseSchedule,
    PreviewSchedule,
    PutCalendar,
    PutSchedule,
    SchedulePage,
    ScheduleRef,
    ScheduleRequest,
    ScheduleTriggered,
    ScheduleView,
    ScheduleWritten,
    TimesReply,
)
from perdure.core.api.texts import check_attributes
from perdure.core.durations import datetime_of
from perdure.core.errors import Conflict, InvalidInput, NotFound, NotRegistered, Unavailable
from perdure.core.ids import text
from perdure.core.limits import BACKFILL_TIMES_MAX, PREVIEW_TIMES_MAX
from perdure.core.schedules import Calendar, ScheduleSpec, between, next_after, parse_spec
from perdure.core.schedules.holidays import is_holidays
from perdure.core.suggestions import did_you_mean
from perdure.engine.api.api import NamespaceApi, handles, page_limit
from perdure.engine.api.starts import version_of
from perdure.engine.holiday_calendars import computed, ensure_stored, previewed
from perdure.engine.services.schedule_planner import Calendars, DueSchedule, PlannedFire
from perdure.engine.services.schedules import Scheduler
from perdure.flows.scheduled import BACKFILL, BY_HAND, check_name, checked, spec_calendars

FIRES_MAX: Final = 500
"""Past times on one page."""


def _of(api: NamespaceApi) -> Schedules:
    return Schedules(api.engine.scheduler, api.ns, api.by)


@handles(acts.LIST)
async def list_schedules(api: NamespaceApi, r: ListSchedules) -> SchedulePage:
    limit = page_limit(r.limit)
    found = await _of(api).page(r.workflow, r.after, limit + 1)
    return SchedulePage(found[:limit], found[limit - 1].name if len(found) > limit else None)


@handles(acts.GET)
async def get(api: NamespaceApi, r: ScheduleRef) -> ScheduleView:
    return await _of(api).get(r.name)


@handles(acts.PUT)
async def put(api: NamespaceApi, r: PutSchedule) -> ScheduleWritten:
    """The input is checked against what the workflow takes; that of code which no worker has served is checked when it runs."""
    request, schedules = r.schedule, _of(api)
    check_attributes(request.attributes)
    before = await schedules.find(request.name)
    if before is not None and r.is_new:
        raise Conflict(f"there is a schedule {request.name!r} already; update it, or choose another name")
    if request.origin == ORIGIN_API:
        version = await version_of(api, request.workflow, request.version)
        definition = (api.ns, request.workflow, version)
        await api.engine.flows.find_input(definition)
        api.engine.flows.check_input(definition, request.input)
    view, is_new = await schedules.put(request)
    await api.record("schedule.create" if is_new else "schedule.update", request.name, workflow=request.workflow)
    return ScheduleWritten(view, is_new)


@handles(acts.PAUSE)
async def pause(api: NamespaceApi, r: PauseSchedule) -> ScheduleView:
    view = await _of(api).pause(r.name, r.reason)
    await api.record("schedule.pause", r.name, **({"reason": r.reason} if r.reason else {}))
    return view


@handles(acts.RESUME)
async def resume(api: NamespaceApi, r: ScheduleRef) -> ScheduleView:
    view = await _of(api).resume(r.name)
    await api.record("schedule.resume", r.name)
    return view


@handles(acts.TRIGGER)
async def trigger(api: NamespaceApi, r: ScheduleRef) -> ScheduleTriggered:
    run_id = await _of(api).trigger(r.name)
    await api.record("schedule.trigger", r.name, run=text(run_id))
    return ScheduleTriggered(run_id)


@handles(acts.BACKFILL)
async def backfill(api: NamespaceApi, r: BackfillSchedule) -> BackfillReply:
    times = await _of(api).backfill(r.name, r.since_us, r.until_us, dry_run=r.is_dry_run)
    if not r.is_dry_run:
        await api.record(
            "schedule.backfill",
            r.name,
            since=_moment(r.since_us),
            until=_moment(r.until_us),
            started=sum(not t.exists for t in times),
        )
    return BackfillReply(times)


def _moment(us: int) -> str:
    return datetime_of(us).isoformat().replace("+00:00", "Z")


@handles(acts.DELETE)
async def delete(api: NamespaceApi, r: ScheduleRef) -> None:
    await _of(api).delete(r.name)
    await api.record("schedule.delete", r.name)


@handles(acts.TIMES)
async def list_times(api: NamespaceApi, r: ListTimes) -> TimesReply:
    return TimesReply(await _of(api).times(r.name, r.count))


@handles(acts.PREVIEW)
async def preview(api: NamespaceApi, r: PreviewSchedule) -> TimesReply:
    return TimesReply(await _of(api).preview(r.spec, r.count))


@handles(acts.FIRES)
async def list_fires(api: NamespaceApi, r: ListFires) -> FirePage:
    limit = min(max(r.limit, 1), FIRES_MAX)
    found = await _of(api).fires(r.name, r.before_us, limit + 1)
    return FirePage(found[:limit], found[limit - 1].nominal_us if len(found) > limit else None)


@handles(acts.LIST_CALENDARS)
async def list_calendars(api: NamespaceApi, r: ListCalendars) -> CalendarPage:
    limit = page_limit(r.limit)
    found = await _of(api).calendar_page(r.after, limit + 1)
    return CalendarPage(found[:limit], found[limit - 1].name if len(found) > limit else None)


@handles(acts.GET_CALENDAR)
async def get_calendar(api: NamespaceApi, r: CalendarRef) -> CalendarView:
    return await _of(api).calendar(r.name)


@handles(acts.PUT_CALENDAR)
async def put_calendar(api: NamespaceApi, r: PutCalendar) -> CalendarView:
    view = await _of(api).put_calendar(r.name, r.calendar)
    await api.record("calendar.put", r.name)
    return view


@handles(acts.DELETE_CALENDAR)
async def delete_calendar(api: NamespaceApi, r: CalendarRef) -> None:
    await _of(api).delete_calendar(r.name)
    await api.record("calendar.delete", r.name)


class Schedules:
    """Schedules of one namespace, changed by one author. Each call answers when its effect is durable."""

    def __init__(self, scheduler: Scheduler, ns: int, by: str) -> None:
        self._store, self.ns, self._by = scheduler.store, ns, by
        self._fires, self._started, self._changed = scheduler.planner.fires, scheduler.started, scheduler.changed

    async def put(self, r: ScheduleRequest) -> tuple[ScheduleView, bool]:
        """Create a schedule, or bring it up to date; True when it is new. Its next time is kept unless the spec changed."""
        if r.origin not in (ORIGIN_API, ORIGIN_CODE):
            raise InvalidInput(f"the schedule {r.name}: those of flows come and go with their document")
        request = checked(r)
        await ensure_stored(self._store, self.ns, [request.spec], self._by)
        view, created = await self._store.put(self.ns, request, self._by)
        self._changed()
        return view, created

    async def get(self, name: str) -> ScheduleView:
        return await self._known(name, await self.find(name))

    async def find(self, name: str) -> ScheduleView | None:
        return await self._store.get(self.ns, name)

    async def page(self, workflow: str = "", after: str = "", limit: int = 50) -> list[ScheduleView]:
        return await self._store.page(self.ns, workflow, after, limit)

    async def pause(self, name: str, reason: str = "") -> ScheduleView:
        """Nothing fires until it is resumed. The author of the first pause is kept."""
        return await self._known(name, await self._store.pause(self.ns, name, self._by, reason))

    async def resume(self, name: str) -> ScheduleView:
        """Resume from now. Missed times are not caught up; a backfill does that."""
        view = await self._known(name, await self._store.resume(self.ns, name))
        self._changed()
        return view

    async def delete(self, name: str) -> None:
        """Active runs continue, and past fires are kept."""
        if not await self._store.delete(self.ns, name):
            raise NotFound(await self._unknown(name))

    async def trigger(self, name: str) -> bytes:
        """Start a run now, regardless of the schedule's times, state and limits."""

        def plan(s: DueSchedule, calendars: Calendars) -> list[PlannedFire]:
            _refuse_missing(s)
            return self._fires(s, parse_spec(msgspec.json.decode(s.spec)), [s.clock_us])

        fires = await self._store.start(self.ns, name, BY_HAND, plan)
        if fires is None:
            raise NotFound(await self._unknown(name))
        if not fires or fires[0].run_id is None:
            raise Unavailable("another run was triggered in the same microsecond; try again")
        self._started(1)
        return fires[0].run_id

    async def backfill(self, name: str, since_us: int, until_us: int, *, dry_run: bool = False) -> list[BackfillTime]:
        """A run for each nominal time in [since, until) that had none."""
        if since_us >= until_us:
            raise InvalidInput("a backfill goes from an earlier time (since) to a later one (until)")
        if dry_run:
            return await self._dry_run(name, since_us, until_us)
        wanted: list[int] = []

        def plan(s: DueSchedule, calendars: Calendars) -> list[PlannedFire]:
            _refuse_missing(s)
            spec = parse_spec(msgspec.json.decode(s.spec))
            wanted.extend(_backfill_times(spec, calendars, since_us, until_us, s.clock_us))
            return self._fires(s, spec, wanted, queued=spec.overlap == "queue")

        fires = await self._store.start(self.ns, name, BACKFILL, plan)
        if fires is None:
            raise NotFound(await self._unknown(name))
        if fires:
            self._started(len(fires))
        made = {f.nominal_us: f.run_id for f in fires}
        had = await self._store.taken(self.ns, name, [t for t in wanted if t not in made])
        return [BackfillTime(nominal_us=t, exists=t not in made, run_id=made.get(t) or had.get(t)) for t in wanted]

    async def _dry_run(self, name: str, since_us: int, until_us: int) -> list[BackfillTime]:
        view = await self.get(name)
        calendars = await self._store.calendars(self.ns, spec_calendars(view.spec))
        times = _backfill_times(view.spec, calendars, since_us, until_us, await self._store.clock_us())
        had = await self._store.taken(self.ns, name, times)
        return [BackfillTime(nominal_us=t, exists=t in had, run_id=had.get(t)) for t in times]

    async def times(self, name: str, count: int) -> list[int]:
        """The next nominal times. The stored one first: it may be due and not fired yet."""
        view = await self.get(name)
        if view.paused_us is None and view.next_us is None:
            return []
        if view.paused_us is not None or view.next_us is None:
            return await self.preview(view.spec, count)
        return [view.next_us, *await self.preview(view.spec, count - 1, after_us=view.next_us)][:count]

    async def preview(self, spec: ScheduleSpec, count: int, after_us: int | None = None) -> list[int]:
        """When a schedule of this spec would fire, from now on."""
        calendars = await previewed(self._store, self.ns, spec)
        at = await self._store.clock_us() if after_us is None else after_us
        found: list[int] = []
        while len(found) < min(count, PREVIEW_TIMES_MAX) and (following := next_after(spec, calendars, at)) is not None:
            found.append(following)
            at = following
        return found

    async def fires(self, name: str, before_us: int | None, limit: int) -> list[FireView]:
        """Outcomes of past times, the latest first."""
        found = await self._store.fires(self.ns, name, before_us, limit)
        if found is None:
            raise NotFound(await self._unknown(name))
        return found

    async def calendar_page(self, after: str, limit: int) -> list[CalendarView]:
        return await self._store.calendar_page(self.ns, after, limit)

    async def calendar(self, name: str) -> CalendarView:
        found = await self._store.calendar(self.ns, name)
        if found is None:
            hint = f"; schedules that name it store it, or: perdure calendar set {name}" if is_holidays(name) else ""
            raise NotFound(f"there is no calendar {name!r} in this namespace{hint}")
        return found

    async def put_calendar(self, name: str, calendar: Calendar) -> CalendarView:
        """Schedules that use the calendar compute their next time again. That of public holidays comes without days."""
        check_name(name, "a calendar")
        if is_holidays(name):
            if calendar != Calendar():
                raise InvalidInput(
                    f"the days of {name} come from the package holidays; leave yours out, or put them into a calendar of another name"
                )
            calendar = await computed(name)
        view = await self._store.put_calendar(self.ns, name, calendar, self._by)
        self._changed()
        return view

    async def delete_calendar(self, name: str) -> None:
        if not await self._store.delete_calendar(self.ns, name):
            raise NotFound(f"there is no calendar {name!r} in this namespace")

    async def _known(self, name: str, found: ScheduleView | None) -> ScheduleView:
        if found is None:
            raise NotFound(await self._unknown(name))
        return found

    async def _unknown(self, name: str) -> str:
        near = did_you_mean(name, await self._store.names(self.ns))
        return (
            f"there is no schedule {name!r} in this namespace; {near or '`perdure schedule list` shows what there is'}"
        )


def _refuse_missing(s: DueSchedule) -> None:
    if s.current is None:
        raise NotRegistered(
            f"no workflow {s.workflow!r} in this namespace; deploy it, or connect a worker that defines it"
        )


def _backfill_times(spec: ScheduleSpec, calendars: Calendars, since_us: int, until_us: int, clock_us: int) -> list[int]:
    if until_us > clock_us:
        raise InvalidInput(
            f"until lies in the future, and a backfill is about the past: say {datetime_of(clock_us).isoformat(timespec='seconds')} or earlier"
        )
    times = between(spec, calendars, since_us, until_us, BACKFILL_TIMES_MAX + 1)
    if len(times) > BACKFILL_TIMES_MAX:
        cut = datetime_of(times[BACKFILL_TIMES_MAX]).isoformat()
        raise InvalidInput(
            f"this range has more than BACKFILL_TIMES_MAX={BACKFILL_TIMES_MAX:,} times. Go in steps: until {cut} first, then since {cut}"
        )
    return times
