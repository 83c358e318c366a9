"""Workers by what they serve. All that serve the same tasks and workflows are one pool: one entry for the engine, however many they are."""

from __future__ import annotations

import random
from collections import deque

from perdure.core.work import ServedCode
from perdure.engine.ports import CodeKey, Kind
from perdure.server.grpc.connection import Connection
from perdure.wire.protocol import Hello


class WorkerPool:
    """Workers that serve the same tasks and workflows."""

    def __init__(self, ns: int, hello: Hello) -> None:
        self.kinds: frozenset[Kind] = frozenset((ns, queue, name) for queue, name in hello.tasks)
        self.code: dict[CodeKey, ServedCode] = {
            (ns, name, code.version): code for name, code in hello.workflows.items()
        }
        self.members: deque[Connection] = deque()
        self.free = 0

    @property
    def takes_runs(self) -> bool:
        """Whether one of its workers is here to stay: connected, or likely to reconnect."""
        return any(not c.draining for c in self.members)

    def recount(self, c: Connection) -> None:
        self.free += c.free - c.counted
        c.counted = c.free

    def next_open(self) -> Connection | None:
        """The next worker, round robin, that is connected and not draining."""
        for _ in range(len(self.members)):
            c = self.members[0]
            self.members.rotate(-1)
            if c.is_open and not c.draining:
                return c
        return None

    def next_free(self) -> Connection | None:
        for _ in range(len(self.members)):
            c = self.members[0]
            self.members.rotate(-1)
            if c.free > 0:
                return c
        return None


class WorkerPools:
    def __init__(self) -> None:
        self._pools: dict[object, WorkerPool] = {}
        self._by_kind: dict[Kind, list[WorkerPool]] = {}
        self._by_code: dict[CodeKey, list[WorkerPool]] = {}
        self._pool_of: dict[bytes, WorkerPool] = {}
        """By the worker's id."""

    @property
    def code(self) -> dict[CodeKey, ServedCode]:
        """Versions of workflows that runs can be given to. Those of workers that leave are not among them."""
        return {key: code for pool in self._pools.values() if pool.takes_runs for key, code in pool.code.items()}

    @property
    def kinds(self) -> list[Kind]:
        return list(self._by_kind)

    @property
    def slots_free(self) -> int:
        return sum(pool.free for pool in self._pools.values())

    def free_for(self, kind: Kind) -> int:
        pools = self._by_kind.get(kind)
        if not pools:
            return 0
        return pools[0].free if len(pools) == 1 else sum(pool.free for pool in pools)

    def roomiest(self, kind: Kind) -> WorkerPool | None:
        return max(self._by_kind.get(kind, ()), key=lambda pool: pool.free, default=None)

    def has_code(self, key: CodeKey) -> bool:
        """Whether a worker with this version of the workflow is connected, or may reconnect within its grace period."""
        return key in self._by_code

    def next_with_code(self, key: CodeKey) -> Connection | None:
        pools = self._by_code.get(key, [])
        if len(pools) > 1:  # that differ in other workflows or tasks: by their number of workers
            (chosen,) = random.choices(pools, [len(p.members) for p in pools])
            pools = [chosen, *pools]
        return next((c for pool in pools if (c := pool.next_open()) is not None), None)

    def recount(self, c: Connection) -> None:
        """The free slots of this worker changed."""
        self._pool_of[c.id].recount(c)

    def add(self, c: Connection) -> bool:
        """Whether no other worker here serves the same combination."""
        h = c.hello
        key = (
            c.ns,
            frozenset(h.tasks),
            frozenset(h.workflows.items()),
        )
        pool = self._pools.get(key)
        is_new = pool is None
        if pool is None:
            pool = self._pools[key] = WorkerPool(c.ns, c.hello)
            self._index()
        pool.members.append(c)
        self._pool_of[c.id] = pool
        pool.recount(c)
        return is_new

    def remove(self, c: Connection) -> bool:
        """Whether it was the last of its pool."""
        pool = self._pool_of.pop(c.id, None)
        if pool is None:
            return False
        pool.members.remove(c)
        pool.free -= c.counted
        c.counted = 0
        if pool.members:
            return False
        self._pools = {key: p for key, p in self._pools.items() if p is not pool}
        self._index()
        return True

    def _index(self) -> None:
        self._by_kind, self._by_code = {}, {}
        for pool in self._pools.values():
            for kind in pool.kinds:
                self._by_kind.setdefault(kind, []).append(pool)
            for key in pool.code:
                self._by_code.setdefault(key, []).append(pool)
