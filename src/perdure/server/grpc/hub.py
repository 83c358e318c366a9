"""All workers that are connected to this server, behind the engine's WorkerPort.

Theory. A worker's stream may break at any moment, and the worker lives on. So its attempts are kept for RECONNECT_GRACE_S: if it comes
back, here or at another server, it says what it is still running and nothing is repeated. Its workflow code is not kept: every run it
held is read again from the history by another worker, because some of its last answers may have been lost.

Laws:

1. A report, a heartbeat, a log line counts only from the worker the attempt was given to; a decision only from the worker that holds
   the run, for the activation it answers. So no message of a worker can reach another namespace.
2. Tasks are given out by slots. A worker gets more than it has only where kinds share slots and were claimed together; it lets them wait.
3. Everything here runs on the engine's loop, in plain callbacks; nothing waits.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from perdure.core.calls import BUILT_IN
from perdure.core.errors import Failure, InvalidInput, Unavailable, clip
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.core.names import checked_name
from perdure.core.retry import End
from perdure.core.work import VERSION_PREFIX, Activation, Assignment, Beat, Decided, LogChunk, Report, is_flow
from perdure.engine.engine import Engine
from perdure.engine.ports import Kind, Named
from perdure.engine.services.telemetry import WorkerRow
from perdure.server.grpc.connection import Connection
from perdure.wire.protocol import (
    PROTOCOL,
    SERVED_MAX,
    TASK_SCHEMAS_BYTES_MAX,
    Hello,
    Token,
    Up,
    Welcome,
    decision_size,
)

log = logging.getLogger("perdure.server")

RECONNECT_GRACE_S: Final = 5.0
"""How long a worker whose stream broke may stay away before its attempts count as lost."""
ALIVE_EVERY_S: Final = 20.0
"""Workers send a message at least this often. gRPC itself notices a broken connection sooner."""
SILENT_S_MAX: Final = 3 * ALIVE_EVERY_S
"""A worker that is silent for longer counts as disconnected."""
WORKERS_MAX: Final = 10_000
"""Workers connected to one server."""
SLOTS_MAX: Final = 10_000
"""Slots of one worker."""
TELL_EVERY_S: Final = 10.0
REFRESH_WORKERS_S: Final = 1.0
"""How often the list of workers and their load is refreshed for display."""
PRESENT_PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Between tries to take over what a worker brought along. After the last its attempts are left alone: their runs have them run again."""
DECISION_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of one decision, over all messages it comes in."""
SHARE_TASKS: Final = 64
"""Tasks one worker gets before the next one of its pool has its turn."""

_CACHE_MISS: Final = Failure("cache_miss", "the worker that held the run is gone")
_NO_WORKER: Final = Failure("no_worker", "no worker here has the code of this workflow")


class Pool:
    """Workers that serve the same tasks and workflows: one entry for the engine, however many they are."""

    def __init__(self, ns: int, hello: Hello) -> None:
        self.kinds: frozenset[Kind] = frozenset((ns, queue, name) for queue, name in hello.tasks)
        self.workflows: dict[Named, str] = {(ns, name): version for name, version in hello.workflows.items()}
        self.controls: dict[Named, bytes] = {(ns, name): control for name, control in hello.controls.items()}
        self.parameters: dict[Named, bytes] = {(ns, name): taken for name, taken in hello.parameters.items()}
        self.members: deque[Connection] = deque()
        self.free = 0

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


class WorkerHub:
    def __init__(self, *, grace_s: float = RECONNECT_GRACE_S) -> None:
        self.ns = 0
        self.outlives_engine = True
        self.refused = 0
        """Reports, decisions and heartbeats refused because the worker does not hold the attempt or run."""
        self.on_signatures: Callable[[int, dict[str, bytes]], None] = lambda ns, signatures: None
        """Called with the JSON Schemas of tasks' calls, by name, when a worker registers them. Many workers register the same."""
        self._grace_s = grace_s
        self._engine: Engine
        self._connections: dict[bytes, Connection] = {}
        self._pools: dict[object, Pool] = {}
        self._by_kind: dict[Kind, list[Pool]] = {}
        self._by_workflow: dict[Named, list[Pool]] = {}
        self._pool_of: dict[bytes, Pool] = {}
        self._placed: dict[tuple[bytes, int], Connection] = {}
        self._unplaced: set[Token] = set()
        """Attempts that no worker had at the last check."""
        self._holder: dict[bytes, tuple[Connection, int]] = {}
        """Run -> the worker that holds its code, and the number of its current activation (0: none)."""
        self._parked: dict[bytes, Activation] = {}
        """Activations for workers that may come back."""
        self._number = 0
        self._graces: dict[bytes, asyncio.TimerHandle] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._closing = False
        self._telling: asyncio.TimerHandle | None = None
        self._told_us = 0
        self._changed = False
        self._clock_us: Callable[[], int] = lambda: 0
        self._reported: Callable[[list[Report]], None] = lambda _: None
        self._decided: Callable[[list[Decided]], None] = lambda _: None
        self._beats: Callable[[list[Beat]], None] = lambda _: None
        self._logged: Callable[[list[LogChunk]], None] = lambda _: None

    def bind(self, engine: Engine) -> None:
        self._engine = engine

    def open(
        self,
        clock_us: Callable[[], int],
        reported: Callable[[list[Report]], None],
        decided: Callable[[list[Decided]], None],
        beats: Callable[[list[Beat]], None],
        logged: Callable[[list[LogChunk]], None],
    ) -> None:
        self._clock_us, self._reported, self._decided = clock_us, reported, decided
        self._beats, self._logged = beats, logged
        self._refresh_workers()

    @property
    def workflows(self) -> dict[Named, str]:
        return {named: version for pool in self._pools.values() for named, version in pool.workflows.items()}

    @property
    def controls(self) -> dict[Named, bytes]:
        return {named: control for pool in self._pools.values() for named, control in pool.controls.items()}

    @property
    def parameters(self) -> dict[Named, bytes]:
        return {named: taken for pool in self._pools.values() for named, taken in pool.parameters.items()}

    @property
    def task_options(self) -> dict[str, bytes | None]:
        """Remote workers declare theirs with their signatures."""
        return {}

    @property
    def served(self) -> list[Kind]:
        return list(self._by_kind)

    @property
    def slots(self) -> int:
        return sum(c.slots for c in self._connections.values() if c.is_open and not c.draining)

    @property
    def slots_free(self) -> int:
        return sum(pool.free for pool in self._pools.values())

    def free_for(self, kind: Kind) -> int:
        pools = self._by_kind.get(kind)
        if not pools:
            return 0
        return pools[0].free if len(pools) == 1 else sum(pool.free for pool in pools)

    def name_of(self, run_id: bytes, seq: int) -> str:
        c = self._placed.get((run_id, seq))
        return c.name if c is not None else ""

    def assign(self, batch: list[Assignment]) -> None:
        """Assign tasks round robin to workers with a free slot. Tasks that no worker can take go back unstarted."""
        unplaced: list[Assignment] = []
        for kind, group in _by_kind(batch).items():
            while group:
                pool = max(self._by_kind.get(kind, ()), key=lambda p: p.free, default=None)
                c = (pool.next_free() or pool.next_open()) if pool is not None else None
                if pool is None or c is None:
                    unplaced.extend(group)
                    break
                share = group[: max(1, min(SHARE_TASKS, c.free, -(-len(group) // len(pool.members))))]
                del group[: len(share)]
                c.assign(share)
                pool.recount(c)
                for a in share:
                    self._placed[a.run_id, a.seq] = c
        if unplaced:
            now = self._clock_us()
            returned = [Report(a.run_id, a.seq, a.attempt, End.RETURNED, b"", None, now, now) for a in unplaced]
            asyncio.get_running_loop().call_soon(self._reported, returned)

    def cancel(self, run_id: bytes, seq: int, attempt: int) -> None:
        """The slot is freed when the worker reports that the attempt has ended."""
        c = self._placed.get((run_id, seq))
        if c is not None and c.running.get((run_id, seq)) == attempt:
            c.cancel((run_id, seq, attempt))

    def activate(self, batch: list[Activation]) -> list[Decided]:
        """Answers come later, through `decided`; only what cannot be sent is answered at once."""
        refused: list[Decided] = []
        for a in batch:
            holder = self._holder.get(a.run_id)
            if a.replay:
                if holder is not None:
                    self.forget(a.run_id)
                c = self._home_for((a.ns, a.workflow))
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

    def _home_for(self, named: Named) -> Connection | None:
        pools = self._by_workflow.get(named, [])
        if len(pools) > 1:  # by their number of workers, so that those of an older deploy do not get everything
            (chosen,) = random.choices(pools, [len(p.members) for p in pools])
            pools = [chosen, *pools]
        return next((c for pool in pools if (c := pool.next_open()) is not None), None)

    def _park(self, a: Activation, refused: list[Decided]) -> None:
        """No worker is connected, but one may reconnect within its grace period."""
        if (a.ns, a.workflow) in self._by_workflow and not self._closing:
            self._parked[a.run_id] = a
        else:
            refused.append(Decided(a.run_id, [], _NO_WORKER))

    def forget(self, run_id: bytes) -> None:
        self._parked.pop(run_id, None)
        holder = self._holder.pop(run_id, None)
        if holder is not None and holder[0].is_open:
            holder[0].forget(run_id)

    def forget_all(self) -> None:
        for run_id in list(self._holder):
            self.forget(run_id)
        self._parked.clear()

    async def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        for handle in self._graces.values():
            handle.cancel()
        for task in list(self._background):
            task.cancel()

    def _refresh_workers(self) -> None:
        """The connected workers and their load, for display."""
        now = self._clock_us()
        if self._changed or now - self._told_us > TELL_EVERY_S * 1e6:
            self._changed, self._told_us = False, now
            self._engine.telemetry.set_workers([row_of(c) for c in self._connections.values() if c.is_open])
        self._find_unplaced()
        self._telling = asyncio.get_running_loop().call_later(REFRESH_WORKERS_S, self._refresh_workers)

    def _find_unplaced(self) -> None:
        """Attempts that the engine waits for and no worker has. There should be none; seen twice, they count as lost."""
        now = self._engine.attempts.unplaced(self._placed)
        lost = now & self._unplaced
        self._unplaced = now - lost
        if lost:
            log.warning("%d attempts are with no worker any more; they count as lost", len(lost))
            self._run(self._engine.worker_lost(list(lost)))

    def connections(self) -> list[Connection]:
        return list(self._connections.values())

    def go_away(self) -> None:
        """The server is leaving: no more work from here; workers finish and look for another one."""
        self._closing = True
        for c in self._connections.values():
            c.go_away()

    def join(self, hello: Hello, ns: int, namespace: str) -> Connection:
        """A stream has begun. If the worker was here before, it gets its attempts back."""
        _check(hello)
        # Not kept with the connection: thousands of workers say the same.
        signatures, hello.signatures = _usable(hello), {}
        if self._closing:
            raise Unavailable("this server is going away; connect to another one")
        before = self._connections.get(hello.worker_id)
        if before is not None and before.ns != ns:
            raise InvalidInput("this worker id belongs to a worker of another namespace")
        if before is None and len(self._connections) >= WORKERS_MAX:
            raise Unavailable(f"this server has WORKERS_MAX={WORKERS_MAX} workers; connect to another one")
        c = Connection(hello, ns, namespace, self._clock_us())
        c.greet(Welcome(self._engine.name, self._clock_us(), int(ALIVE_EVERY_S * 1000)))
        returned = self._take_over(before, c) if before is not None else []
        self._connections[c.id] = c
        is_new = self._enter_pool(c)
        self._changed = True
        foreign: list[Token] = []
        for token in hello.running:
            key = token[:2]
            if self._placed.get(key) is not c:
                foreign.append(token)
                if key not in self._placed:
                    self._placed[key] = c
                    c.running[key] = token[2]
        self._pool_of[c.id].recount(c)
        if foreign:
            c.early = []
            self._run(self._present(c, foreign))
        if returned:
            asyncio.get_running_loop().call_soon(self._reported, returned)
        if is_new:
            self._engine.workers_changed()
        else:
            self._engine.workers_more()
        self._unpark()
        if signatures:
            self.on_signatures(ns, signatures)
        log.info("worker %s (%s) is here with %d slots", c.name, namespace, c.slots)
        return c

    def _take_over(self, before: Connection, c: Connection) -> list[Report]:
        """A reconnected worker keeps its attempts. Those that it does not report never reached it and go back unstarted."""
        handle = self._graces.pop(before.id, None)
        if handle is not None:
            handle.cancel()
        self._let_go_of_code(before)
        self._leave_pool(before)
        before.is_open = False
        before.end(Unavailable("this worker has another stream by now"))
        has = set(c.hello.running)
        now = self._clock_us()
        returned: list[Report] = []
        for (run_id, seq), attempt in before.running.items():
            if (run_id, seq, attempt) in has:
                c.running[run_id, seq] = attempt
                if (run_id, seq) in before.epochs:
                    c.epochs[run_id, seq] = before.epochs[run_id, seq]
                self._placed[run_id, seq] = c
            else:
                self._placed.pop((run_id, seq), None)
                returned.append(Report(run_id, seq, attempt, End.RETURNED, b"", None, now, now))
        return returned

    async def _present(self, c: Connection, tokens: list[Token]) -> None:
        """Attempts that the worker started for another engine: adopted, or stopped when no run waits for them."""
        void: list[Token] = []
        for pause_s in PRESENT_PAUSES_S:
            try:
                void = await self._engine.present(c.ns, tokens)
                break
            except Unavailable as e:  # the database is away, or this engine has just lost its session
                log.warning("worker %s: what it is running could not be taken over yet: %s", c.name, e)
                await asyncio.sleep(pause_s)
            if not c.is_open:
                return  # it brings them again
        for token in void:
            c.cancel(token)
        early, c.early = c.early or [], None
        # What was assigned meanwhile to a worker of another namespace is not ended by a token that was only claimed.
        self._reported([r for r in early if not self._is_of_other_namespace(c, r.run_id, r.seq)])

    def _is_of_other_namespace(self, c: Connection, run_id: bytes, seq: int) -> bool:
        """An attempt that is under way here in another namespace than the worker's."""
        flight = self._engine.attempts.get(run_id, seq)
        return flight is not None and flight.assignment.ns != c.ns

    def left(self, c: Connection) -> None:
        """Its stream has ended."""
        if self._connections.get(c.id) is not c:
            return  # it is back already, on another stream
        c.is_open = False
        self._pool_of[c.id].recount(c)
        self._let_go_of_code(c)
        if c.draining and not c.running:
            log.info("worker %s has left", c.name)
            self._remove(c)
            return
        log.info("worker %s lost its stream with %d attempts under way", c.name, len(c.running))
        loop = asyncio.get_running_loop()
        self._graces[c.id] = loop.call_later(self._grace_s, self._give_up, c)

    def _give_up(self, c: Connection) -> None:
        """The worker has not reconnected within its grace period."""
        self._graces.pop(c.id, None)
        if self._connections.get(c.id) is c and not c.is_open:
            tokens = [(*key, attempt) for key, attempt in c.running.items() if self._placed.get(key) is c]
            self._remove(c)
            if tokens:
                log.warning("worker %s is gone, and with it %d attempts", c.name, len(tokens))
                self._run(self._engine.worker_lost(tokens))

    def _remove(self, c: Connection) -> None:
        for key in c.running:
            if self._placed.get(key) is c:
                del self._placed[key]
        was_last = self._leave_pool(c)
        self._connections.pop(c.id, None)
        self._changed = True
        if was_last:
            self._engine.workers_changed()
        self._unpark()

    def _let_go_of_code(self, c: Connection) -> None:
        """Runs whose code it held are read again for another worker."""
        lost = [run_id for run_id in c.held if self._holder.get(run_id, (None,))[0] is c]
        for run_id in lost:
            del self._holder[run_id]
        c.held.clear()
        c.parts.clear()
        if lost:
            self._decided([Decided(run_id, [], _CACHE_MISS) for run_id in lost])

    def _unpark(self) -> None:
        if self._parked:
            parked, self._parked = self._parked, {}
            self._decided(self.activate(list(parked.values())))

    def _enter_pool(self, c: Connection) -> bool:
        """Whether no other worker here serves the same combination."""
        h = c.hello
        key = (
            c.ns,
            frozenset(h.tasks),
            frozenset(h.workflows.items()),
            frozenset(h.controls.items()),
            frozenset(h.parameters.items()),
        )
        pool = self._pools.get(key)
        is_new = pool is None
        if pool is None:
            pool = self._pools[key] = Pool(c.ns, c.hello)
            self._index()
        pool.members.append(c)
        self._pool_of[c.id] = pool
        pool.recount(c)
        return is_new

    def _leave_pool(self, c: Connection) -> bool:
        """Whether it was the last of its kind."""
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
        self._by_kind, self._by_workflow = {}, {}
        for pool in self._pools.values():
            for kind in pool.kinds:
                self._by_kind.setdefault(kind, []).append(pool)
            for named in pool.workflows:
                self._by_workflow.setdefault(named, []).append(pool)

    def received(self, c: Connection, up: Up) -> None:
        if self._connections.get(c.id) is not c:
            return  # the worker has another stream by now
        c.seen_us = self._clock_us()
        if up.draining and not c.draining:
            c.draining = True
            self._pool_of[c.id].recount(c)
            self._hand_over_code(c)
        if up.logs:
            self._take_logs(c, up.logs)
        if up.beats:
            self.take_beats(c, up.beats)
        if up.reports_number:
            c.acknowledge(up.reports_number)
        if up.reports:
            self._take_reports(c, up.reports)
        if up.decisions:
            self._take_decisions(c, up.decisions)

    def _hand_over_code(self, c: Connection) -> None:
        """The worker drains: idle runs move to other workers at once, the others after their decision."""
        idle = [run_id for run_id in c.held if self._holder.get(run_id) == (c, 0)]
        for run_id in idle:
            self.forget(run_id)
        if idle:
            self._decided([Decided(run_id, [], _CACHE_MISS) for run_id in idle])

    def _take_reports(self, c: Connection, reports: list[Report]) -> None:
        mine: list[Report] = []
        now = self._clock_us()
        for r in reports:
            # The worker's word on its times counts as far as they can be.
            r.finished_us = max(1, min(r.finished_us, now))
            r.started_us = max(1, min(r.started_us, r.finished_us))
            key = (r.run_id, r.seq)
            if not c.expects(r) or self._placed.get(key) is not c:
                self.refused += 1
                if self._placed.get(key) is not c:  # it has been assigned to another worker since
                    c.drop(key)
                continue
            if len(r.value) > PAYLOAD_BYTES_MAX:
                r.end, r.value, r.failure = End.FINAL_ERROR, b"", _too_large(len(r.value))
            c.drop(key)
            del self._placed[key]
            mine.append(r)
        self._pool_of[c.id].recount(c)
        if c.early is not None:
            c.early.extend(mine)
        else:
            self._reported(mine)

    def _take_decisions(self, c: Connection, decisions: list[tuple[int, Decided, bool]]) -> None:
        mine: list[Decided] = []
        for number, d, more in decisions:
            holder = self._holder.get(d.run_id)
            if holder is None or holder[0] is not c or (number and number != holder[1]):
                self.refused += 1
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
            mine.append(d)
            if d.stuck is not None:
                self.forget(d.run_id)
        if mine:
            self._decided(mine)
        if c.draining:
            self._hand_over_code(c)

    def take_beats(self, c: Connection, beats: list[Beat]) -> None:
        c.seen_us = self._clock_us()
        for b in beats:
            if not b.attempt:
                self._take_overrun(c, b)
        beats = [b for b in beats if b.attempt]
        mine = [
            b
            for b in beats
            if c.running.get((b.run_id, b.seq)) == b.attempt and not self._is_of_other_namespace(c, b.run_id, b.seq)
        ]
        self.refused += len(beats) - len(mine)
        c.blocked = next((b.blocked for b in mine if b.blocked), "")
        self._beats(mine)

    def _take_overrun(self, c: Connection, b: Beat) -> None:
        """The last message of a worker whose workflow code cannot be stopped."""
        holder = self._holder.get(b.run_id)
        if holder is None or holder[0] is not c:
            self.refused += 1
            return
        self.forget(b.run_id)
        self._decided([Decided(b.run_id, [], _overran(b.blocked))])

    def _take_logs(self, c: Connection, chunks: list[LogChunk]) -> None:
        mine: list[LogChunk] = []
        for chunk in chunks:
            if c.running.get((chunk.run_id, chunk.seq)) == chunk.attempt or (
                chunk.seq == -1 and chunk.run_id in c.held
            ):
                chunk.ns = c.ns
                mine.append(chunk)
        self.refused += len(chunks) - len(mine)
        if mine:
            self._logged(mine)

    def find(self, worker_id: bytes) -> Connection | None:
        return self._connections.get(worker_id)

    def is_silent(self, c: Connection) -> bool:
        return self._clock_us() - c.seen_us > SILENT_S_MAX * 1e6

    def clock_us(self) -> int:
        return self._clock_us()

    def _run(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a worker's attempts could not be settled", exc_info=task.exception())


def _decision_too_large() -> Failure:
    why = f"the commands of one decision are over the limit DECISION_BYTES_MAX={DECISION_BYTES_MAX}; fan out in steps"
    return Failure("payload_too_large", why)


def _too_large(size: int) -> Failure:
    return Failure(
        "payload_too_large", f"the result has {size} bytes, over the limit PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX}"
    )


def _by_kind(batch: list[Assignment]) -> dict[Kind, list[Assignment]]:
    first = batch[0]
    kind = (first.ns, first.queue, first.name)
    if all(a.name == first.name and a.queue == first.queue and a.ns == first.ns for a in batch):
        return {kind: list(batch)}
    found: dict[Kind, list[Assignment]] = {}
    for a in batch:
        found.setdefault((a.ns, a.queue, a.name), []).append(a)
    return found


def row_of(c: Connection) -> WorkerRow:
    h = c.hello
    return WorkerRow(
        id=c.id,
        ns=c.ns,
        name=h.name,
        host=h.host,
        pid=h.pid,
        sdk=h.sdk,
        queues=sorted({q for q, _ in h.tasks}),
        tasks=sorted({t for _, t in h.tasks} - BUILT_IN),
        workflows=sorted(h.workflows),
        slots=h.slots,
        slots_used=len(c.running),
        runs_held=len(c.held),
        draining=c.draining,
        connected_us=c.connected_us,
        seen_us=c.seen_us,
        blocked=c.blocked,
    )


def _usable(h: Hello) -> dict[str, bytes]:
    """Schemas of tasks the worker serves that are JSON objects, if they keep to their bound. They only help editors and readers, so an unusable schema is ignored."""
    if sum(map(len, h.signatures.values())) > TASK_SCHEMAS_BYTES_MAX:
        return {}
    served = {name for _, name in h.tasks} - BUILT_IN
    return {name: data for name, data in h.signatures.items() if name in served and _is_object(data)}


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(data), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _check(h: Hello) -> None:
    """Refuse a worker that cannot be served, with the reason, before it is registered."""
    if h.protocol != PROTOCOL:
        raise InvalidInput(f"this worker speaks protocol {h.protocol}, this server {PROTOCOL}; upgrade the older one")
    if len(h.worker_id) != 16:
        raise InvalidInput("worker_id must be 16 bytes")
    if not 1 <= h.slots <= SLOTS_MAX:
        raise InvalidInput(f"a worker has between 1 and SLOTS_MAX={SLOTS_MAX} slots, not {h.slots}")
    if len(h.running) > 2 * SLOTS_MAX:
        raise InvalidInput(f"a worker brings along at most {2 * SLOTS_MAX} attempts, not {len(h.running)}")
    if len(h.tasks) > SERVED_MAX or len(h.workflows) > SERVED_MAX:
        raise InvalidInput(f"a worker serves at most SERVED_MAX={SERVED_MAX} tasks and workflows")
    flows = next((name for name, version in h.workflows.items() if is_flow(version)), None)
    if flows is not None:
        raise InvalidInput(
            f"the workflow {flows[:50]!r} is code: versions that begin with {VERSION_PREFIX!r} are those of flows"
        )
    names = [h.name, *h.workflows, *(x for pair in h.tasks for x in pair)]
    for name in names:
        checked_name("worker, task, queue or workflow", name)


def _overran(stack: str) -> Failure:
    message = f"the workflow's code computed without an await, could not be stopped, and its worker ended. Repair it, then resume the run. It was at\n{stack}"
    return Failure("code_overrun", clip(message))
