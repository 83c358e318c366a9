"""What can be asked about schedules and calendars of one namespace. Each answers when its effect is durable."""

from __future__ import annotations

import msgspec

from perdure.core.durations import datetime_of
from perdure.core.errors import InvalidInput, NotFound, NotRegistered, Unavailable
from perdure.core.limits import BACKFILL_TIMES_MAX, PREVIEW_TIMES_MAX
from perdure.core.schedules import Calendar, ScheduleSpec, between, next_after, parse_spec
from perdure.core.suggestions import did_you_mean
from perdure.engine.services.schedule_planner import Calendars, DueSchedule, Fire
from perdure.engine.services.schedules import Scheduler
from perdure.flows.scheduled import (
    BACKFILL,
    BY_HAND,
    ORIGIN_API,
    ORIGIN_CODE,
    BackfillTime,
    CalendarView,
    FireView,
    ScheduleRequest,
    ScheduleView,
    check_name,
    checked,
    spec_calendars,
)


class Schedules:
    def __init__(self, scheduler: Scheduler, ns: int, by: str) -> None:
        self._store, self.ns, self._by = scheduler.store, ns, by
        self._fires, self._started, self._changed = scheduler.planner.fires, scheduler.started, scheduler.changed

    async def put(self, r: ScheduleRequest) -> tuple[ScheduleView, bool]:
        """Create a schedule, or bring it up to date; True when it is new. Its next time is kept unless the spec changed."""
        if r.origin not in (ORIGIN_API, ORIGIN_CODE):
            raise InvalidInput(f"the schedule {r.name}: those of flows come and go with their document")
        view, created = await self._store.put(self.ns, checked(r), self._by)
        self._changed()
        return view, created

    async def get(self, name: str) -> ScheduleView:
        return await self._known(name, await self._store.get(self.ns, name))

    async def page(self, workflow: str = "", after: str = "", limit: int = 50) -> list[ScheduleView]:
        return await self._store.page(self.ns, workflow, after, limit)

    async def pause(self, name: str, reason: str = "") -> ScheduleView:
        """Nothing fires until it is resumed. Who paused first stays on record."""
        return await self._known(name, await self._store.pause(self.ns, name, self._by, reason))

    async def resume(self, name: str) -> ScheduleView:
        """Go on from now. What would have fired meanwhile is not caught up; a backfill does that."""
        view = await self._known(name, await self._store.resume(self.ns, name))
        self._changed()
        return view

    async def delete(self, name: str) -> None:
        """Runs that are active go on, and what fired stays on record."""
        if not await self._store.delete(self.ns, name):
            raise NotFound(await self._unknown(name))

    async def trigger(self, name: str) -> bytes:
        """Start a run now, whatever the schedule says, is doing, or counts."""

        def plan(s: DueSchedule, calendars: Calendars) -> list[Fire]:
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

        def plan(s: DueSchedule, calendars: Calendars) -> list[Fire]:
            _refuse_missing(s)
            spec = parse_spec(msgspec.json.decode(s.spec))
            wanted.extend(_backfill_times(spec, calendars, since_us, until_us, s.clock_us))
            return self._fires(s, spec, wanted, in_line=spec.overlap == "queue")

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
        calendars = await self._store.calendars(self.ns, spec_calendars(spec))
        at = await self._store.clock_us() if after_us is None else after_us
        found: list[int] = []
        while len(found) < min(count, PREVIEW_TIMES_MAX) and (following := next_after(spec, calendars, at)) is not None:
            found.append(following)
            at = following
        return found

    async def fires(self, name: str, before_us: int | None, limit: int) -> list[FireView]:
        """What came of past times, the latest first."""
        found = await self._store.fires(self.ns, name, before_us, limit)
        if found is None:
            raise NotFound(await self._unknown(name))
        return found

    async def calendar_page(self, after: str, limit: int) -> list[CalendarView]:
        return await self._store.calendar_page(self.ns, after, limit)

    async def calendar(self, name: str) -> CalendarView:
        found = await self._store.calendar(self.ns, name)
        if found is None:
            raise NotFound(f"there is no calendar {name!r} in this namespace")
        return found

    async def put_calendar(self, name: str, calendar: Calendar) -> CalendarView:
        """Schedules that use it find their next time anew."""
        view = await self._store.put_calendar(self.ns, check_name(name, "a calendar"), calendar, self._by)
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
