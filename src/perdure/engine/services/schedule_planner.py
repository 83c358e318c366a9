"""Decides what fires and the outcome of each nominal time. Pure except for the ids of new runs.

A schedule that cannot be computed is deferred with its error; the others fire (law 4 of services/schedules.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from perdure.core import events as ev
from perdure.core.errors import InvalidInput, PerdureError, clip
from perdure.core.flow_control.groups import FlowControlGroup
from perdure.core.limits import FIRES_PER_LOOK, MISSED_ROWS_MAX
from perdure.core.schedules import Calendar, DueTimes, ScheduleSpec, between, due, fire_at, parse_calendar, parse_spec
from perdure.core.versions import Chosen, VersionChoice
from perdure.engine.flow_control import FlowControl
from perdure.flows.scheduled import MISSED, SKIPPED, STARTED, attributes_of, input_at, queue_group, spec_calendars
from perdure.wire.codec import encode_events

log = logging.getLogger("perdure.engine")

DEFER_US: Final = 60_000_000
"""Delay before a schedule that could not be fired is tried again."""

CalendarKey = tuple[int, str]
"""(namespace, calendar)"""
Calendars = Mapping[str, Calendar]


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
    choice: VersionChoice | None
    """Which versions its runs get; of a schedule that names a version, that one."""
    controls: Mapping[str, bytes]
    """Flow-control options of these versions; those that have none are left out."""
    input: bytes
    timeout_us: int
    attributes: bytes
    spec: str
    origin: str
    next_us: int | None
    clock_us: int


class PlannedFire(msgspec.Struct, frozen=True):
    """One nominal time and what comes of it. The run is created if the time was not taken."""

    nominal_us: int
    outcome: str
    run_id: bytes | None = None
    version: str = ""
    body: bytes = b""
    attributes: bytes = b""
    group: FlowControlGroup | None = None
    deadline_us: int = 0
    pinned: bool = False


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """All changes of one poll to one schedule."""

    schedule: DueSchedule
    fires: list[PlannedFire]
    missed: int
    """Beyond those among `fires`."""
    next_us: int | None
    fire_us: int | None
    cancel: bool = False
    """Cancel its active runs."""
    error: str | None = None


Plan = Callable[[DueSchedule, Calendars], list[PlannedFire]]


class SchedulePlanner:
    def __init__(self, new_run_id: Callable[[], bytes], flow_control: FlowControl) -> None:
        self._new_run_id, self._flow_control = new_run_id, flow_control
        self.seen: list[int] = []
        """Schedules that were last asked about, for when the database refuses what was decided."""
        self._specs: dict[int, ScheduleSpec | str] = {}

    def calendars(self, found: Sequence[DueSchedule]) -> set[CalendarKey]:
        """Calendars that have to be read."""
        self.seen = [s.id for s in found]
        self._specs = {s.id: _spec_of(s) for s in found}
        return {
            (s.ns, name)
            for s in found
            if isinstance(spec := self._specs[s.id], ScheduleSpec)
            for name in spec_calendars(spec)
        }

    def overlapping(self, found: Sequence[DueSchedule]) -> list[int]:
        """Schedules for which it matters whether one of their runs is active."""
        specs = ((s.id, self._specs[s.id]) for s in found)
        return [i for i, spec in specs if isinstance(spec, ScheduleSpec) and spec.overlap in ("skip", "cancel")]

    def steps(
        self, found: Sequence[DueSchedule], calendars: Mapping[CalendarKey, str], active: Mapping[int, int]
    ) -> list[PlanStep]:
        """`active`: the number of active runs, of the schedules for which it matters."""
        known: dict[CalendarKey, Calendar] = {}
        out: list[PlanStep] = []
        for s in found:
            try:
                out.append(self._step(s, calendars, known, active.get(s.id, 0)))
            except Exception as e:  # the others fire all the same
                log.warning("schedule %s cannot be fired: %s", s.name, e, exc_info=not isinstance(e, PerdureError))
                later = s.clock_us + DEFER_US
                out.append(
                    PlanStep(
                        schedule=s, fires=[], missed=0, next_us=s.next_us, fire_us=later, error=clip(str(e) or repr(e))
                    )
                )
        return out

    def _step(
        self, s: DueSchedule, texts: Mapping[CalendarKey, str], known: dict[CalendarKey, Calendar], active: int
    ) -> PlanStep:
        spec = self._specs[s.id]
        if isinstance(spec, str):
            raise InvalidInput(spec)
        named = {name: _calendar(texts, known, (s.ns, name)) for name in spec_calendars(spec)}
        assert s.next_us is not None
        d = due(spec, named, s.next_us, s.clock_us, FIRES_PER_LOOK, s.name)
        times, missing = list(d.fire), _missing(s)
        lost = [PlannedFire(t, MISSED) for t in _lost(spec, named, s, d)] if d.missed else []
        fires = [PlannedFire(t, MISSED) for t in times] if missing else self._started(s, spec, times, active)
        return PlanStep(
            schedule=s,
            fires=[*lost, *fires],
            missed=max(d.missed - len(lost), 0),
            next_us=d.next_us,
            fire_us=None if d.next_us is None else fire_at(spec, s.name, d.next_us),
            cancel=spec.overlap == "cancel" and bool(active) and bool(times) and not missing,
            error=missing or None,
        )

    def _started(self, s: DueSchedule, spec: ScheduleSpec, times: list[int], active: int) -> list[PlannedFire]:
        """Several times at once are treated as if they had come one after the other."""
        if spec.overlap == "skip":
            first = 0 if active else 1
            return self.fires(s, spec, times[:first]) + [PlannedFire(t, SKIPPED) for t in times[first:]]
        if spec.overlap == "cancel":  # each would be cancelled by the next one at once
            return [PlannedFire(t, SKIPPED) for t in times[:-1]] + self.fires(s, spec, times[-1:])
        return self.fires(s, spec, times, queued=spec.overlap == "queue")

    def fires(
        self, s: DueSchedule, spec: ScheduleSpec, times: Sequence[int], *, queued: bool = False
    ) -> list[PlannedFire]:
        """One run each. Ids in the order of the times, which is the order in which flow control admits runs."""
        made = sorted(self._new_run_id() for _ in times)
        return [self._fire(s, spec, run_id, t, queued) for run_id, t in zip(made, times, strict=True)]

    def _fire(self, s: DueSchedule, spec: ScheduleSpec, run_id: bytes, nominal_us: int, queued: bool) -> PlannedFire:
        chosen = s.choice.of(run_id) if s.choice is not None else Chosen("")
        version = chosen.version
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
            pinned=chosen.pinned,
        )
        self._flow_control.learn((s.ns, s.workflow, version), s.controls.get(version))
        group = self._flow_control.of_run((s.ns, s.workflow, version), data)
        if queued:
            group = queue_group(group, s.ns, s.workflow, s.name, s.id)
        body = encode_events([started])
        return PlannedFire(
            nominal_us, STARTED, run_id, version, body, attributes, group, started.deadline_us, chosen.pinned
        )


def _lost(spec: ScheduleSpec, calendars: Calendars, s: DueSchedule, d: DueTimes) -> list[int]:
    """The first of the missed times."""
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


def _calendar(texts: Mapping[CalendarKey, str], known: dict[CalendarKey, Calendar], named: CalendarKey) -> Calendar:
    if named not in known:
        if named not in texts:
            raise InvalidInput(f"there is no calendar {named[1]!r} any more; set it again, or change the schedule")
        known[named] = parse_calendar(msgspec.json.decode(texts[named]))
    return known[named]


def _missing(s: DueSchedule) -> str:
    if s.current is None:
        return f"no workflow {s.workflow!r} in this namespace when it was due; deploy it, or connect a worker that defines it"
    return ""
