"""Runs that named events start. core/event_starts.py says which.

    emit -> a row in `event_start` for each workflow that subscribes at this moment --any engine--> run and outcome, in one transaction

Laws:

1. A workflow that subscribes when the event is durable gets it; one that is deployed later does not.
2. Run and outcome are written together, in a row that has no outcome yet. So an event starts one run of a workflow at most, no matter which
   engines try it and where they crash. One that dies on the way leaves its row, which is due again for another.
3. What cannot be evaluated or started is recorded with the event as failed, and never stands in the way of other starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from perdure.core.attributes import encode_attributes
from perdure.core.errors import PerdureError, Unavailable, clip
from perdure.core.event_starts import PlannedStart, planned
from perdure.core.limits import EVENT_START_TRIES_MAX, EVENT_STARTS_PER_LOOK
from perdure.core.subscriptions import decode
from perdure.core.work import StartRequest
from perdure.engine.context import EngineContext
from perdure.engine.runs.flow_definitions import Flows
from perdure.engine.services.new_runs import NewRun, NewRuns

log = logging.getLogger("perdure.engine")

ATTRIBUTE: Final = "event"
"""The search attribute of a run that an event started: the event's name."""


class OpenStart(msgspec.Struct, frozen=True):
    """A workflow that subscribes to an event, to be decided by this engine within a lease."""

    event_id: int
    ns: int
    workflow: str
    tries: int
    event: str
    body: bytes
    subscriptions: str


class EventStartStore(Protocol):
    async def take_starts(self, limit: int) -> list[OpenStart]: ...
    async def begin(self, start: OpenStart, run: NewRun, plan: PlannedStart) -> bytes | None:
        """The run that the event belongs to: this one, or an active one under its key. None: another engine has decided it. Conflict
        where the key belongs to a run of another workflow."""
        ...

    async def drop(self, start: OpenStart) -> None:
        """The event does not match."""
        ...

    async def fail(self, start: OpenStart, error: str) -> None: ...


class EventStarts:
    """Decides the starts of events, for the service that delivers them."""

    def __init__(self, context: EngineContext, store: EventStartStore, new_runs: NewRuns, flows: Flows) -> None:
        self._store, self._new_runs, self._flows, self._events = store, new_runs, flows, context.events
        self._new_run_id: Callable[[], bytes] = context.new_run_id

    async def start_some(self) -> int:
        """Decide some starts; 0 if every remaining one is claimed by another engine."""
        found = await self._store.take_starts(EVENT_STARTS_PER_LOOK)
        for start in found:
            await self._decide(start)
            await asyncio.sleep(0)  # expressions may take long, so the event loop gets a turn
        return len(found)

    async def _decide(self, start: OpenStart) -> None:
        try:
            if start.tries > EVENT_START_TRIES_MAX:  # engines died of it
                return await self._failed(start, f"it was tried {EVENT_START_TRIES_MAX} times and never decided")
            plan = planned(decode(start.subscriptions), start.event, _payload(start))
            await (self._store.drop(start) if plan is None else self._begin(start, plan))
        except Unavailable:
            raise
        except PerdureError as e:
            await self._failed(start, str(e))
        except Exception as e:  # its row stays, and is due again in a moment; the others must not wait for it
            log.exception("event %d could not start a run of %s", start.event_id, start.workflow)
            if start.tries == EVENT_START_TRIES_MAX:
                await self._failed(start, f"{type(e).__name__}: {e}")

    async def _begin(self, start: OpenStart, plan: PlannedStart) -> None:
        run_id = self._new_run_id()
        request = StartRequest(
            workflow=start.workflow,
            version="",
            input=plan.input,
            key=plan.key,
            attributes=encode_attributes({ATTRIBUTE: start.event}),
        )
        run = await self._new_runs.make(run_id, start.ns, request)
        version = (start.ns, start.workflow, run.version)
        if not self._flows.knows_input(version):
            await self._flows.find_input(version)
        self._flows.check_input(version, plan.input)
        if await self._store.begin(start, run, plan) == run_id:
            self._events.runs_begun.publish(1)

    async def _failed(self, start: OpenStart, why: str) -> None:
        log.warning("event %s (%d) started no run of %s: %s", start.event, start.event_id, start.workflow, why)
        await self._store.fail(start, clip(why))


def _payload(start: OpenStart) -> Any:
    return msgspec.json.decode(start.body)
