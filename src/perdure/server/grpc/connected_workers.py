"""All workers that are connected to this server, as its engine sees them: one WorkerPort.

Tasks are given out by slots. A worker gets more than it has only where kinds share slots and were claimed together; it lets them wait.
"""

from __future__ import annotations

import asyncio
from typing import Final

from perdure.core.retry import End
from perdure.core.work import Activation, Assignment, Decided, QueryAnswer, QueryCall, Report, ServedCode, Upstream
from perdure.engine.ports import CodeKey, Kind
from perdure.server.grpc.code_placement import CodePlacement
from perdure.server.grpc.connection import Connection
from perdure.server.grpc.pools import WorkerPools
from perdure.server.grpc.remote_queries import RemoteQueries

SHARE_TASKS: Final = 64
"""Tasks one worker gets before the next one of its pool has its turn."""


class ConnectedWorkers:
    outlives_engine = True

    def __init__(self) -> None:
        self.by_id: dict[bytes, Connection] = {}
        """Workers that are connected, or may reconnect within their grace period."""
        self.pools = WorkerPools()
        self.placement = CodePlacement(self.pools)
        self.queries = RemoteQueries(self.pools)
        self.placed: dict[tuple[bytes, int], Connection] = {}
        """(run, seq) of an attempt -> the worker that has it."""
        self.ns = 0
        self.is_closing = False
        self._upstream: Upstream | None = None

    def open(self, upstream: Upstream) -> None:
        self.ns, self._upstream = upstream.ns, upstream

    async def close(self) -> None: ...

    def go_away(self) -> None:
        """The server is leaving: no more work from here; workers finish and look for another one."""
        self.is_closing = True
        self.placement.stop_parking()
        for c in self.by_id.values():
            c.go_away()

    def connections(self) -> list[Connection]:
        return list(self.by_id.values())

    @property
    def code(self) -> dict[CodeKey, ServedCode]:
        return self.pools.code

    @property
    def task_options(self) -> dict[str, bytes | None]:
        """Remote workers declare theirs with their signatures."""
        return {}

    @property
    def served(self) -> list[Kind]:
        return self.pools.kinds

    @property
    def slots(self) -> int:
        return sum(c.slots for c in self.by_id.values() if c.is_open and not c.draining)

    @property
    def slots_free(self) -> int:
        return self.pools.slots_free

    def free_for(self, kind: Kind) -> int:
        return self.pools.free_for(kind)

    def name_of(self, run_id: bytes, seq: int) -> str:
        c = self.placed.get((run_id, seq))
        return c.name if c is not None else ""

    def assign(self, batch: list[Assignment]) -> None:
        """Assign tasks round robin to workers with a free slot. Tasks that no worker can take go back unstarted."""
        unplaced: list[Assignment] = []
        for kind, group in _by_kind(batch).items():
            while group:
                pool = self.pools.roomiest(kind)
                c = (pool.next_free() or pool.next_open()) if pool is not None else None
                if pool is None or c is None:
                    unplaced.extend(group)
                    break
                share = group[: max(1, min(SHARE_TASKS, c.free, -(-len(group) // len(pool.members))))]
                del group[: len(share)]
                c.assign(share)
                pool.recount(c)
                for a in share:
                    self.placed[a.run_id, a.seq] = c
        if unplaced:
            self._give_back(unplaced)

    def _give_back(self, unplaced: list[Assignment]) -> None:
        assert self._upstream is not None
        now = self._upstream.clock_us()
        returned = [Report(a.run_id, a.seq, a.attempt, End.RETURNED, b"", None, now, now) for a in unplaced]
        asyncio.get_running_loop().call_soon(self._upstream.reported, returned)

    def cancel(self, run_id: bytes, seq: int, attempt: int) -> None:
        """The slot is freed when the worker reports that the attempt has ended."""
        c = self.placed.get((run_id, seq))
        if c is not None and c.running.get((run_id, seq)) == attempt:
            c.cancel((run_id, seq, attempt))

    def activate(self, batch: list[Activation]) -> list[Decided]:
        """Answers come later, through `decided`; only what cannot be sent is answered at once."""
        return self.placement.activate(batch)

    def query(self, code: CodeKey, call: QueryCall) -> asyncio.Future[QueryAnswer] | None:
        return self.queries.ask(code, call)

    def forget(self, run_id: bytes) -> None:
        self.placement.forget(run_id)

    def forget_all(self) -> None:
        self.placement.forget_all()


def _by_kind(batch: list[Assignment]) -> dict[Kind, list[Assignment]]:
    first = batch[0]
    kind = (first.ns, first.queue, first.name)
    if all(a.name == first.name and a.queue == first.queue and a.ns == first.ns for a in batch):
        return {kind: list(batch)}
    found: dict[Kind, list[Assignment]] = {}
    for a in batch:
        found.setdefault((a.ns, a.queue, a.name), []).append(a)
    return found
