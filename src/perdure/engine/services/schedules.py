"""Schedules: any engine fires what is due, and a nominal time has one run whoever fires it.

Laws:

1. Rows of due schedules, the times that fire, their runs and the next time are written in one transaction, by whoever has the rows
   locked. If it fails nothing happened, and somebody else does it.
2. A nominal time is a primary key: (schedule, nominal time). Who finds it taken starts nothing.
3. What fires is computed by core/schedules from the stored spec, the calendars and the database's clock. No engine's own clock counts.
4. A schedule that cannot be computed says so in its `error` and is tried again later; it never stands in the way of the others.

    next_fire -> sleep until then, about a second at most -> fire (lock, decide, write) -> claimers find the runs
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from perdure.core import events as ev
from perdure.core.api.schedules import (
    CalendarView,
    FireView,
    ScheduleRequest,
    ScheduleView,
)
from perdure.core.errors import InvalidInput, PerdureError, Unavailable, clip
from perdure.core.flow_control.groups import Line
from perdure.core.limits import (
    FIRES_PER_LOOK,
    MISSED_ROWS_MAX,
    SCHEDULES_PER_LOOK,
)
from perdure.core.schedules import (
    Calendar,
    Due,
    ScheduleSpec,
    between,
    due,
    fire_at,
    parse_calendar,
    parse_spec,
)
from perdure.engine.counters import Counters
from perdure.engine.tasks.flow_control import Lines
from perdure.flows.scheduled import (
    MISSED,
    SKIPPED,
    STARTED,
    attributes_of,
    input_at,
    queue_line,
    spec_calendars,
)
from perdure.wire.codec import encode_events

log = logging.getLogger("perdure.engine")

POLL_S: Final = 1.0
RACE_S: Final = 0.05
"""Before looking again when another engine has what is due."""
PUT_OFF_US: Final = 60_000_000
"""How long a schedule is left alone that could not be fired."""
PRUNE_S: Final = 3_600.0
PRUNE_ROWS: Final = 10_000

Named = tuple[int, str]
"""(namespace, calendar)"""
Calendars = Mapping[str, Calendar]


# -- what the store is asked ---------------------------------------------------------------------------------------


class NextFire(msgspec.Struct, frozen=True):
    clock_us: int
    fire_us: int | None


class DueSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule whose row is locked, and what is known of its workflow."""

    id: int
    ns: int
    name: str
    workflow: str
    version: str
    """As stored; empty for the current one."""
    current: str | None
    """The current version; None when there is no such workflow, or no such namespace any more."""
    control: bytes | None
    """What the version that would start says about flow control."""
    input: bytes
    timeout_us: int
    attributes: bytes
    spec: str
    origin: str
    next_us: int | None
    clock_us: int


class Fire(msgspec.Struct, frozen=True):
    """One nominal time and what comes of it. The run is created if the time was not taken."""

    nominal_us: int
    outcome: int
    run_id: bytes | None = None
    version: str = ""
    body: bytes = b""
    attributes: bytes = b""
    line: Line | None = None
    deadline_us: int = 0


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """All that one look does to one schedule."""

    schedule: DueSchedule
    fires: list[Fire]
    missed: int
    """Beyond those among `fires`."""
    next_us: int | None
    fire_us: int | None
    cancel: bool = False
    """Runs of it that are active are asked to stop."""
    error: str | None = None


class Fired(msgspec.Struct, frozen=True):
    schedules: int
    started: int
    skipped: int
    missed: int


class Decide(Protocol):
    def calendars(self, found: Sequence[DueSchedule]) -> set[Named]:
        """Calendars that have to be read."""
        ...

    def overlapping(self, found: Sequence[DueSchedule]) -> list[int]:
        """Schedules of which it matters whether a run of theirs is active."""
        ...

    def steps(
        self, found: Sequence[DueSchedule], calendars: Mapping[Named, str], active: Mapping[int, int]
    ) -> list[Step]:
        """`active`: how many runs of those that it matters for."""
        ...


Plan = Callable[[DueSchedule, Calendars], list[Fire]]


class ScheduleStore(Protocol):
    # firing
    async def next_fire(self) -> NextFire: ...
    async def fire(self, limit: int, decide: Decide) -> Fired: ...
    async def put_off(self, ids: Sequence[int], error: str, delay_us: int) -> None: ...
    async def prune(self, keep_days: float, rows: int) -> int: ...
    # what people ask
    async def put(self, ns: int, r: ScheduleRequest, by: str) -> tuple[ScheduleView, bool]: ...
    async def get(self, ns: int, name: str) -> ScheduleView | None: ...
    async def page(self, ns: int, workflow: str, after: str, limit: int) -> list[ScheduleView]: ...
    async def names(self, ns: int) -> list[str]: ...
    async def pause(self, ns: int, name: str, by: str, reason: str) -> ScheduleView | None: ...
    async def resume(self, ns: int, name: str) -> ScheduleView | None: ...
    async def delete(self, ns: int, name: str) -> bool: ...
    async def start(self, ns: int, name: str, how: int, plan: Plan) -> list[Fire] | None: ...
    async def taken(self, ns: int, name: str, nominal_us: Sequence[int]) -> dict[int, bytes]: ...
    async def fires(self, ns: int, name: str, before_us: int | None, limit: int) -> list[FireView] | None: ...
    async def clock_us(self) -> int: ...
    # calendars
    async def calendars(self, ns: int, names: Sequence[str]) -> Calendars: ...
    async def calendar(self, ns: int, name: str) -> CalendarView | None: ...
    async def calendar_page(self, ns: int, after: str, limit: int) -> list[CalendarView]: ...
    async def put_calendar(self, ns: int, name: str, calendar: Calendar, by: str) -> CalendarView: ...
    async def delete_calendar(self, ns: int, name: str) -> bool: ...


# -- deciding ------------------------------------------------------------------------------------------------------


class Decider:
    """What fires, and what becomes of each time. Pure but for the ids of the runs."""

    def __init__(self, new_run_id: Callable[[], bytes], lines: Lines) -> None:
        self._new_run_id, self._lines = new_run_id, lines
        self.seen: list[int] = []
        """Schedules that were last asked about, for when the database refuses what was decided."""
        self._specs: dict[int, ScheduleSpec | str] = {}

    def calendars(self, found: Sequence[DueSchedule]) -> set[Named]:
        self.seen = [s.id for s in found]
        self._specs = {s.id: _spec_of(s) for s in found}
        return {
            (s.ns, name)
            for s in found
            if isinstance(spec := self._specs[s.id], ScheduleSpec)
            for name in spec_calendars(spec)
        }

    def overlapping(self, found: Sequence[DueSchedule]) -> list[int]:
        specs = ((s.id, self._specs[s.id]) for s in found)
        return [i for i, spec in specs if isinstance(spec, ScheduleSpec) and spec.overlap in ("skip", "cancel")]

    def steps(
        self, found: Sequence[DueSchedule], calendars: Mapping[Named, str], active: Mapping[int, int]
    ) -> list[Step]:
        known: dict[Named, Calendar] = {}
        out: list[Step] = []
        for s in found:
            try:
                out.append(self._step(s, calendars, known, active.get(s.id, 0)))
            except Exception as e:  # whatever it is, the others fire
                log.warning("schedule %s cannot be fired: %s", s.name, e, exc_info=not isinstance(e, PerdureError))
                later = s.clock_us + PUT_OFF_US
                out.append(
                    Step(
                        schedule=s, fires=[], missed=0, next_us=s.next_us, fire_us=later, error=clip(str(e) or repr(e))
                    )
                )
        return out

    def _step(self, s: DueSchedule, texts: Mapping[Named, str], known: dict[Named, Calendar], active: int) -> Step:
        spec = self._specs[s.id]
        if isinstance(spec, str):
            raise InvalidInput(spec)
        named = {name: _calendar(texts, known, (s.ns, name)) for name in spec_calendars(spec)}
        assert s.next_us is not None
        d = due(spec, named, s.next_us, s.clock_us, FIRES_PER_LOOK, s.name)
        times, missing = list(d.fire), _missing(s)
        lost = [Fire(t, MISSED) for t in _lost(spec, named, s, d)] if d.missed else []
        fires = [Fire(t, MISSED) for t in times] if missing else self._started(s, spec, times, active)
        return Step(
            schedule=s,
            fires=[*lost, *fires],
            missed=max(d.missed - len(lost), 0),
            next_us=d.next_us,
            fire_us=None if d.next_us is None else fire_at(spec, s.name, d.next_us),
            cancel=spec.overlap == "cancel" and bool(active) and bool(times) and not missing,
            error=missing or None,
        )

    def _started(self, s: DueSchedule, spec: ScheduleSpec, times: list[int], active: int) -> list[Fire]:
        """Several times at once are treated as if they had come one after the other."""
        if spec.overlap == "skip":
            first = 0 if active else 1
            return self.fires(s, spec, times[:first]) + [Fire(t, SKIPPED) for t in times[first:]]
        if spec.overlap == "cancel":  # each would be cancelled by the next one at once
            return [Fire(t, SKIPPED) for t in times[:-1]] + self.fires(s, spec, times[-1:])
        return self.fires(s, spec, times, in_line=spec.overlap == "queue")

    def fires(self, s: DueSchedule, spec: ScheduleSpec, times: Sequence[int], *, in_line: bool = False) -> list[Fire]:
        """One run each. Ids in the order of the times: that is the order in which a line lets runs in."""
        made = sorted(self._new_run_id() for _ in times)
        return [self._fire(s, spec, run_id, t, in_line) for run_id, t in zip(made, times, strict=True)]

    def _fire(self, s: DueSchedule, spec: ScheduleSpec, run_id: bytes, nominal_us: int, in_line: bool) -> Fire:
        version = s.version or s.current or ""
        data = input_at(s.origin, s.input, s.name, spec.tz, nominal_us)
        attributes = attributes_of(s.name, s.attributes)
        started = ev.RunStarted(
            s.workflow,
            version,
            data,
            deadline_us=s.clock_us + s.timeout_us if s.timeout_us else 0,
            attributes=attributes,
            schedule=s.name,
            nominal_us=nominal_us,
        )
        self._lines.learn((s.ns, s.workflow, version), s.control)
        line = self._lines.of_run((s.ns, s.workflow, version), data)
        if in_line:
            line = queue_line(line, s.ns, s.workflow, s.name, s.id)
        body = encode_events([started])
        return Fire(nominal_us, STARTED, run_id, version, body, attributes, line, started.deadline_us)


def _lost(spec: ScheduleSpec, calendars: Calendars, s: DueSchedule, d: Due) -> list[int]:
    """The first of those that went by."""
    assert s.next_us is not None
    end = s.clock_us + 1 if d.next_us is None else min(d.next_us, s.clock_us + 1)
    gone = between(spec, calendars, s.next_us, end, MISSED_ROWS_MAX + len(d.fire))
    return [t for t in gone if t not in d.fire][:MISSED_ROWS_MAX]


def _spec_of(s: DueSchedule) -> ScheduleSpec | str:
    """Or why it cannot be read, which a later release may have written."""
    try:
        return parse_spec(msgspec.json.decode(s.spec))
    except (PerdureError, msgspec.DecodeError) as e:
        return f"its spec cannot be read by this server: {e}"


def _calendar(texts: Mapping[Named, str], known: dict[Named, Calendar], named: Named) -> Calendar:
    if named not in known:
        if named not in texts:
            raise InvalidInput(f"there is no calendar {named[1]!r} any more; set it again, or change the schedule")
        known[named] = parse_calendar(msgspec.json.decode(texts[named]))
    return known[named]


def _missing(s: DueSchedule) -> str:
    if s.current is None:
        return f"no workflow {s.workflow!r} in this namespace when it was due; deploy it, or connect a worker that defines it"
    return ""


# -- the loop ------------------------------------------------------------------------------------------------------


class Scheduler:
    """The part of an engine that fires schedules, and the door to them."""

    def __init__(
        self,
        store: ScheduleStore,
        counters: Counters,
        new_run_id: Callable[[], bytes],
        lines: Lines,
        fired: Callable[[int], None],
        tell: Callable[[], None],
        retention_days: float | None = None,
    ) -> None:
        self.store, self._counters, self._fired, self._tell = store, counters, fired, tell
        self._retention_days = retention_days
        self._decide = Decider(new_run_id, lines)
        self._poked = asyncio.Event()
        self._limit = SCHEDULES_PER_LOOK
        self._pruned = float("-inf")
        self.looking = True
        """Something may be due that has not been looked at; until it has looked once, nobody knows."""

    def plan(self, s: DueSchedule, spec: ScheduleSpec, times: Sequence[int], *, in_line: bool = False) -> list[Fire]:
        """Runs for these times, to be written by the caller."""
        return self._decide.fires(s, spec, times, in_line=in_line)

    def started(self, runs: int) -> None:
        """Runs were written outside the loop."""
        self._fired(runs)

    def poke(self) -> None:
        self._poked.set()

    async def run(self) -> None:
        """Fire for ever. An idle engine asks about once a second, and otherwise when something falls due."""
        while True:
            pause_s = await self._look()
            await self._prune()
            try:
                async with asyncio.timeout(pause_s):
                    await self._poked.wait()
            except TimeoutError:
                pass
            self._poked.clear()

    async def _look(self) -> float:
        self.looking = True
        try:
            return await self.look()
        except Unavailable:
            raise
        except Exception:
            await self._refused()
            return RACE_S
        finally:
            self.looking = False

    async def look(self) -> float:
        """Fire what is due. Answers for how many seconds there is nothing to do."""
        while True:
            found = await self.store.next_fire()
            poll_s = POLL_S * random.uniform(0.75, 1.25)
            if found.fire_us is None:
                return poll_s
            if found.fire_us > found.clock_us:
                return min(poll_s, (found.fire_us - found.clock_us) / 1e6 + 0.001)
            fired = await self.store.fire(self._limit, self._decide)
            self._limit = min(SCHEDULES_PER_LOOK, self._limit * 2)
            if not fired.schedules:
                return RACE_S * random.uniform(0.5, 1.5)
            self._counters.schedules_fired += fired.started
            self._counters.schedules_skipped += fired.skipped
            self._counters.schedules_missed += fired.missed
            if fired.started:
                self._fired(fired.started)

    async def _refused(self) -> None:
        """The database will not take what was decided. One at a time finds the one at fault, and that one is put off."""
        log.exception("schedules could not be fired")
        if self._limit > 1:
            self._limit = 1
            return
        await self.store.put_off(
            self._decide.seen, "the database refuses to fire it; the log of the server says why", PUT_OFF_US
        )

    async def _prune(self) -> None:
        """Times that fired long ago go as runs do."""
        now = asyncio.get_running_loop().time()
        if self._retention_days is None or now - self._pruned < PRUNE_S:
            return
        self._pruned = now
        while await self.store.prune(self._retention_days, PRUNE_ROWS) == PRUNE_ROWS:
            pass

    def changed(self) -> None:
        """Somebody changed schedules: they may fire earlier than this engine, or any other, believes."""
        self.poke()
        self._tell()
