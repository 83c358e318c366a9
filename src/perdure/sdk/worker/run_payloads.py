"""Payloads at the border of workflow code: events get their stored values before the code sees them, commands lose theirs before they are sent.

Both take time, and workflow code runs in plain callbacks. So an activation that needs the store waits here before its turn, and a decision
waits here before it is sent; decisions of one run keep their order. Everything else passes at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import payload_fields
from perdure.core.errors import PerdureError, Unavailable
from perdure.core.payload_port import PayloadCarrier
from perdure.core.payloads import MARK, values_of
from perdure.core.work import Activation, Decided

log = logging.getLogger("perdure.worker")

T = TypeVar("T")

PAUSE_S_MAX: Final = 30.0
"""Longest pause between two tries while the store is away: the run waits, as it does while the database is."""

_VALUE_OF: Final[dict[type, Callable[[Any], Any]]] = {
    kind: attrgetter(*fields) for kind, fields in payload_fields.FIELDS.items() if kind in ev.FACTS
}
"""Facts have one payload each, or a list of them."""


def _may_refer(batch: list[Activation]) -> bool:
    """Asked of every activation, and answered as fast as can be: JSON text is below MARK."""
    for a in batch:
        for r in a.events:
            event = r.event
            value_of = _VALUE_OF.get(type(event))
            if value_of is not None:
                value = value_of(event)
                if value and (max(value) if value.__class__ is list else value) >= MARK:
                    return True
    return False


def _has_stored_value(event: Any) -> bool:
    return type(event) in _VALUE_OF and any(values_of(p) for p in payload_fields.payloads_of(event))


class RunPayloads:
    def __init__(
        self,
        carrier: PayloadCarrier,
        activate: Callable[[Activation], None],
        send: Callable[[list[Decided]], None],
    ) -> None:
        self._carrier, self._activate, self._send = carrier, activate, send
        self._loop = asyncio.get_running_loop()  # not asked for again: none is running while workflow code does
        self._resolving: dict[bytes, asyncio.Task[None]] = {}
        """Activations that wait for the store, by run."""
        self._unsent: dict[bytes, deque[Decided]] = {}
        """Decisions that wait for the store, by run, in their order."""
        self._offloading: set[asyncio.Task[None]] = set()

    def activatable(self, batch: list[Activation]) -> list[Activation]:
        """Those that can be activated now. The others wait here until their values are loaded, and are activated then."""
        if not self._resolving and not _may_refer(batch):
            return batch
        return [a for a in batch if not self._take_activation(a)]

    def _take_activation(self, a: Activation) -> bool:
        earlier = self._resolving.pop(a.run_id, None)
        if earlier is not None:  # the engine knows better than what is here
            earlier.cancel()
        if not any(_has_stored_value(r.event) for r in a.events):
            return False
        self._resolving[a.run_id] = self._loop.create_task(self._resolve(a))
        return True

    async def _resolve(self, a: Activation) -> None:
        try:
            events = await _patiently(lambda: asyncio.gather(*(self._resolved(r) for r in a.events)), a.run_id)
        except PerdureError as e:
            del self._resolving[a.run_id]
            self._send([Decided(a.run_id, [], e.to_failure())])
            return
        del self._resolving[a.run_id]
        self._activate(msgspec.structs.replace(a, events=list(events)))

    async def _resolved(self, record: ev.Recorded) -> ev.Recorded:
        if not _has_stored_value(record.event):
            return record
        return ev.Recorded(record.seq, record.at_us, await self._carrier.resolve_record(record.event))

    def sendable(self, decided: list[Decided]) -> list[Decided]:
        """Those that can be sent now. The others wait here until their payloads are stored, and are sent then."""
        if not self._unsent and not self._carrier.are_heavy([c for d in decided for c in d.commands]):
            return decided
        return [d for d in decided if not self._take_decision(d)]

    def _take_decision(self, d: Decided) -> bool:
        waiting = self._unsent.get(d.run_id)
        if waiting is not None:
            waiting.append(d)
            return True
        if not self._carrier.are_heavy(d.commands):
            return False
        self._unsent[d.run_id] = deque([d])
        task = self._loop.create_task(self._offload(d.run_id))
        self._offloading.add(task)
        task.add_done_callback(self._offloading.discard)
        return True

    async def _offload(self, run_id: bytes) -> None:
        waiting = self._unsent[run_id]
        while waiting and self._unsent.get(run_id) is waiting:
            d = waiting[0]
            try:
                commands = [await _patiently(partial(self.offloaded, c), run_id) for c in d.commands]
                d = msgspec.structs.replace(d, commands=commands)
            except PerdureError as e:
                d = Decided(run_id, [], e.to_failure(), spontaneous=d.spontaneous)
            if self._unsent.get(run_id) is not waiting:
                return  # the run left this worker
            waiting.popleft()
            if not waiting:
                del self._unsent[run_id]
            self._send([d])

    async def offloaded(self, command: cm.Command) -> cm.Command:
        try:
            return await self._carrier.offload_record(command, _what(command))
        except Unavailable:
            raise
        except PerdureError as e:
            if isinstance(command, cm.CompleteRun):  # the run has ended; its result is at fault, not its code
                return cm.FailRun(e.to_failure())
            raise

    def is_resolving(self, run_id: bytes) -> bool:
        return run_id in self._resolving

    def forget(self, run_id: bytes) -> None:
        if self._unsent:
            self._unsent.pop(run_id, None)
        if self._resolving and (task := self._resolving.pop(run_id, None)) is not None:
            task.cancel()

    def forget_all(self) -> None:
        for run_id in [*self._resolving, *self._unsent]:
            self.forget(run_id)

    def close(self) -> None:
        self.forget_all()
        for task in list(self._offloading):
            task.cancel()


def _what(command: cm.Command) -> str:
    match command:
        case cm.ScheduleTasks():
            return f"an input of task {command.name}"
        case cm.StartChild():
            return f"the input of child workflow {command.workflow}"
        case cm.CompleteRun():
            return "the result of the run"
        case cm.SetState():
            return f"the state {command.name!r}"
        case _:
            return "a value of the run"


async def _patiently(work: Callable[[], Awaitable[T]], run_id: bytes) -> T:
    """While the store is away the run waits; it has done nothing wrong."""
    pause_s = 0.5
    while True:
        try:
            return await work()
        except Unavailable as e:
            log.warning("run %s waits for the payload store: %s", run_id.hex(), e)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s = min(2 * pause_s, PAUSE_S_MAX)
