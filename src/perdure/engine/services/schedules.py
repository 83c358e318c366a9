"""Schedules: any engine fires what is due, and a nominal time has one run, no matter which engine fires it.

Laws:

1. Rows of due schedules, the times that fire, their runs and the next time are written in one transaction, by the engine that has the
   rows locked. If it fails nothing happened, and another engine does it.
2. A nominal time is a primary key: (schedule, nominal time). An engine that finds it taken starts nothing.
3. What fires is computed by core/schedules from the stored spec, the calendars and the database's clock. No engine's own clock counts.
4. A schedule that cannot be computed says so in its `error` and is tried again later; it never stands in the way of the others.

    next_fire -> sleep until then, about a second at most -> fire (lock, plan, write) -> claims find the runs
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from perdure.core.api.schedules import CalendarView, FireView, ScheduleRequest, ScheduleView
from perdure.core.errors import Unavailable
from perdure.core.limits import SCHEDULES_PER_LOOK
from perdure.core.schedules import Calendar
from perdure.engine.context import EngineContext
from perdure.engine.flow_control import FlowControl
from perdure.engine.services.schedule_planner import DEFER_US, Calendars, Plan, PlannedFire, SchedulePlanner
from perdure.engine.services.service import Service

log = logging.getLogger("perdure.engine")

RACE_S: Final = 0.05
"""Before looking again when another engine has what is due."""
PRUNE_S: Final = 3_600.0
PRUNE_ROWS: Final = 10_000


class NextFire(msgspec.Struct, frozen=True):
    clock_us: int
    fire_us: int | None


class Fired(msgspec.Struct, frozen=True):
    schedules: int
    started: int
    skipped: int
    missed: int


class ScheduleStore(Protocol):
    # firing
    async def next_fire(self) -> NextFire: ...
    async def fire(self, limit: int, planner: SchedulePlanner) -> Fired: ...
    async def defer(self, ids: Sequence[int], error: str, delay_us: int) -> None: ...
    async def prune(self, keep_days: float, rows: int) -> int: ...
    # the API of schedules
    async def put(self, ns: int, r: ScheduleRequest, by: str) -> tuple[ScheduleView, bool]: ...
    async def get(self, ns: int, name: str) -> ScheduleView | None: ...
    async def page(self, ns: int, workflow: str, after: str, limit: int) -> list[ScheduleView]: ...
    async def names(self, ns: int) -> list[str]: ...
    async def pause(self, ns: int, name: str, by: str, reason: str) -> ScheduleView | None: ...
    async def resume(self, ns: int, name: str) -> ScheduleView | None: ...
    async def delete(self, ns: int, name: str) -> bool: ...
    async def start(self, ns: int, name: str, how: str, plan: Plan) -> list[PlannedFire] | None: ...
    async def taken(self, ns: int, name: str, nominal_us: Sequence[int]) -> dict[int, bytes]: ...
    async def fires(self, ns: int, name: str, before_us: int | None, limit: int) -> list[FireView] | None: ...
    async def clock_us(self) -> int: ...
    # calendars
    async def calendars(self, ns: int, names: Sequence[str]) -> Calendars: ...
    async def calendar(self, ns: int, name: str) -> CalendarView | None: ...
    async def calendar_page(self, ns: int, after: str, limit: int) -> list[CalendarView]: ...
    async def put_calendar(self, ns: int, name: str, calendar: Calendar, by: str) -> CalendarView: ...
    async def delete_calendar(self, ns: int, name: str) -> bool: ...


class Scheduler(Service):
    name = "firing schedules"
    poll_s = 1.0

    def __init__(self, context: EngineContext, store: ScheduleStore, flow_control: FlowControl) -> None:
        super().__init__()
        self.store, self._counters, self._events = store, context.counters, context.events
        self._retention_days = context.settings.retention_days
        self.planner = SchedulePlanner(context.new_run_id, flow_control)
        self._limit = SCHEDULES_PER_LOOK
        self._pruned = float("-inf")

    async def poll_once(self) -> float | None:
        pause_s = await self._fired()
        await self.prune()
        return pause_s

    async def _fired(self) -> float | None:
        try:
            return await self.fire_due()
        except Unavailable:
            raise
        except Exception:
            await self._refused()
            return RACE_S

    async def fire_due(self) -> float | None:
        """Fire what is due. Answers in how many seconds the next one is; None: there is none."""
        while True:
            found = await self.store.next_fire()
            if found.fire_us is None:
                return None
            if found.fire_us > found.clock_us:
                return (found.fire_us - found.clock_us) / 1e6 + 0.001
            fired = await self.store.fire(self._limit, self.planner)
            self._limit = min(SCHEDULES_PER_LOOK, self._limit * 2)
            if not fired.schedules:
                return RACE_S * random.uniform(0.5, 1.5)
            self._counters.schedules_fired += fired.started
            self._counters.schedules_skipped += fired.skipped
            self._counters.schedules_missed += fired.missed
            if fired.started:
                self.started(fired.started)

    async def _refused(self) -> None:
        """The database refused the decisions. Firing one at a time finds the one at fault, which is postponed."""
        log.exception("schedules could not be fired")
        if self._limit > 1:
            self._limit = 1
            return
        await self.store.defer(
            self.planner.seen, "the database refuses to fire it; the log of the server says why", DEFER_US
        )

    async def prune(self) -> None:
        """Times that fired long ago go as runs do."""
        now = asyncio.get_running_loop().time()
        if self._retention_days is None or now - self._pruned < PRUNE_S:
            return
        self._pruned = now
        while await self.store.prune(self._retention_days, PRUNE_ROWS) == PRUNE_ROWS:
            pass

    def started(self, runs: int) -> None:
        """Runs of schedules were created that no engine owns yet."""
        self._events.runs_begun.publish(runs)

    def changed(self) -> None:
        """Schedules were changed: they may fire earlier than this engine, or any other, believes."""
        self.wake()
        self._events.other_engines_concerned.publish("schedule")
