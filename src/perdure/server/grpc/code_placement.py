"""Which worker holds the code of which run. A run is given to a worker that serves its version, and to no other.

    activate(replay) --> a worker with the code --> held: further activations go to the same worker
            `-> none is connected, but one may reconnect: parked until a worker joins or leaves

A run whose worker is gone or drains is answered with a cache miss: the engine reads its history again, for another worker.
"""

from __future__ import annotations

from typing import Final

from perdure.core.errors import Failure
from perdure.core.work import Activation, Decided
from perdure.server.grpc.connection import Connection
from perdure.server.grpc.pools import WorkerPools
from perdure.wire.parts import decision_size

DECISION_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of one decision, over all messages it comes in."""

_CACHE_MISS: Final = Failure("cache_miss", "the worker that held the run is gone")
_WORKER_LOST: Final = Failure("worker_lost", "the worker that ran the code of the run is gone")
_NO_WORKER: Final = Failure("no_worker", "no worker here has this version of the workflow")


class CodePlacement:
    def __init__(self, pools: WorkerPools) -> None:
        self._pools = pools
        self._holder: dict[bytes, tuple[Connection, int]] = {}
        """Run -> the worker that holds its code, and the number of its current activation (0: none)."""
        self._parked: dict[bytes, Activation] = {}
        """Activations for workers that may come back."""
        self._parking = True
        self._number = 0

    def activate(self, batch: list[Activation]) -> list[Decided]:
        """Answers come later, from the workers; only what cannot be sent is answered at once."""
        refused: list[Decided] = []
        for a in batch:
            holder = self._holder.get(a.run_id)
            if a.replay:
                if holder is not None:
                    self.forget(a.run_id)
                c = self._pools.next_with_code((a.ns, a.workflow, a.version))
                if c is None:
                    self._park(a, refused)
                    continue
            elif holder is None:
                refused.append(Decided(a.run_id, [], _CACHE_MISS))
                continue
            else:
                c = holder[0]
            self._number += 1
            self._holder[a.run_id] = (c, self._number)
            c.activate(self._number, a)
        return refused

    def _park(self, a: Activation, refused: list[Decided]) -> None:
        """No worker is connected, but one may reconnect within its grace period."""
        if self._parking and self._pools.has_code((a.ns, a.workflow, a.version)):
            self._parked[a.run_id] = a
        else:
            refused.append(Decided(a.run_id, [], _NO_WORKER))

    def unpark(self) -> list[Decided]:
        """Workers came or left: place what was parked."""
        parked, self._parked = self._parked, {}
        return self.activate(list(parked.values())) if parked else []

    def stop_parking(self) -> None:
        """Workers that disconnect from here on do not come back."""
        self._parking = False

    def forget(self, run_id: bytes) -> None:
        self._parked.pop(run_id, None)
        holder = self._holder.pop(run_id, None)
        if holder is not None and holder[0].is_open:
            holder[0].forget(run_id)

    def forget_all(self) -> None:
        for run_id in list(self._holder):
            self.forget(run_id)
        self._parked.clear()

    def holds(self, c: Connection, run_id: bytes) -> bool:
        holder = self._holder.get(run_id)
        return holder is not None and holder[0] is c

    def take(self, c: Connection, decisions: list[tuple[int, Decided, bool]]) -> tuple[list[Decided], int]:
        """Decisions that are complete, and how many are refused: a decision counts only from the worker that holds the run, for its
        current activation. `decisions`: (number of the activation, decision, whether more of it follows)"""
        taken: list[Decided] = []
        refused = 0
        for number, d, more in decisions:
            holder = self._holder.get(d.run_id)
            if holder is None or holder[0] is not c or (number and number != holder[1]):
                refused += 1
                continue
            earlier = c.parts.pop(d.run_id, None)
            if earlier is not None:
                d.commands = [*earlier, *d.commands]
            if more and decision_size(d) <= DECISION_BYTES_MAX:
                c.parts[d.run_id] = d.commands
                continue
            if more:
                d = Decided(d.run_id, [], _decision_too_large())
            if number:
                self._holder[d.run_id] = (c, 0)
            taken.append(d)
            if d.stuck is not None:
                self.forget(d.run_id)
        return taken, refused

    def release(self, c: Connection) -> list[Decided]:
        """Its stream ended: another worker reads its runs again, because its last answers may be lost."""
        lost = [(run_id, self._holder[run_id][1]) for run_id in c.held if self.holds(c, run_id)]
        for run_id, _ in lost:
            del self._holder[run_id]
        c.held.clear()
        c.parts.clear()
        return [Decided(run_id, [], _WORKER_LOST if number else _CACHE_MISS) for run_id, number in lost]

    def hand_over(self, c: Connection) -> list[Decided]:
        """It drains: idle runs move to other workers at once, the others after their decision."""
        idle = [run_id for run_id in c.held if self._holder.get(run_id) == (c, 0)]
        for run_id in idle:
            self.forget(run_id)
        return [Decided(run_id, [], _CACHE_MISS) for run_id in idle]


def _decision_too_large() -> Failure:
    why = f"the commands of one decision are over the limit DECISION_BYTES_MAX={DECISION_BYTES_MAX}; fan out in steps"
    return Failure("payload_too_large", why)
