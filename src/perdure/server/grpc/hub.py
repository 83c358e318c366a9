"""Workers that connect and leave.

Theory. A worker's stream may break at any moment, and the worker lives on. So its attempts are kept for RECONNECT_GRACE_S: if it comes
back, here or at another server, it says what it is still running and nothing is repeated. Its workflow code is not kept: every run it
held is read again from the history by another worker, because some of its last answers may have been lost.

    hub (join, left) ------.
                           +--> connected workers (pools, placed attempts, code placement) <-- engine (WorkerPort)
    worker messages -------'

Everything runs on the engine's loop, in plain callbacks; nothing waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Final

from perdure.core.calls import is_built_in
from perdure.core.errors import InvalidInput, Unavailable
from perdure.core.retry import End
from perdure.core.work import Report
from perdure.engine.engine import Engine
from perdure.engine.services.telemetry import WorkerRow
from perdure.engine.tasks.worker_windows import NO_LOAD, WorkerLoad
from perdure.server.grpc.connected_workers import ConnectedWorkers
from perdure.server.grpc.connection import Connection
from perdure.server.grpc.hello import check_hello, usable_signatures
from perdure.server.grpc.worker_messages import WorkerMessages
from perdure.wire.protocol import Hello, Token, Welcome

log = logging.getLogger("perdure.server")

RECONNECT_GRACE_S: Final = 5.0
"""How long a worker whose stream broke may stay away before its attempts count as lost."""
REATTACH_GRACE_S: Final = 30.0
"""The same for attempts whose jobs run on the worker's machine: the next worker there finds them again."""
ALIVE_EVERY_S: Final = 20.0
"""Workers send a message at least this often. gRPC itself notices a broken connection sooner."""
SILENT_S_MAX: Final = 3 * ALIVE_EVERY_S
"""A worker that is silent for longer counts as disconnected."""
WORKERS_MAX: Final = 10_000
"""Workers connected to one server."""
SHOW_EVERY_S: Final = 10.0
REFRESH_S: Final = 1.0
"""How often attempts without a worker are looked for, and the list of workers is refreshed for display if it changed."""
PRESENT_PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Between tries to take over what a worker brought along. After the last its attempts are left alone: their runs have them run again."""


class WorkerHub:
    def __init__(
        self,
        engine: Engine,
        workers: ConnectedWorkers,
        *,
        grace_s: float = RECONNECT_GRACE_S,
        reattach_s: float = REATTACH_GRACE_S,
    ) -> None:
        self._engine, self._workers, self._grace_s, self._reattach_s = engine, workers, grace_s, reattach_s
        self._upstream = engine.upstream
        self.clock_us = self._upstream.clock_us
        self.messages = WorkerMessages(workers, engine.attempts, self._upstream, engine.served.serve)
        self._by_id, self._placed = workers.by_id, workers.placed
        self._pools, self._code = workers.pools, workers.placement
        self._unplaced: set[Token] = set()
        """Attempts that no worker had at the last check."""
        self._graces: dict[bytes, asyncio.TimerHandle] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.TimerHandle | None = None
        self._shown_us = 0
        self._changed = False
        self._is_closed = False

    def start(self) -> None:
        """Once the engine is open."""
        self._refresh()

    def close(self) -> None:
        """After the engine: attempts of workers that leave now are another engine's business."""
        self._is_closed = True
        if self._refreshing is not None:
            self._refreshing.cancel()
        for handle in self._graces.values():
            handle.cancel()
        for task in list(self._background):
            task.cancel()

    def _refresh(self) -> None:
        """The connected workers and their load, for display."""
        now = self.clock_us()
        if self._changed or now - self._shown_us > SHOW_EVERY_S * 1e6:
            self._changed, self._shown_us = False, now
            self._engine.telemetry.set_workers([self._row(c, now) for c in self._by_id.values() if c.is_open])
        self._find_unplaced()
        self._refreshing = asyncio.get_running_loop().call_later(REFRESH_S, self._refresh)

    def _row(self, c: Connection, now_us: int) -> WorkerRow:
        return row_of(c, self._engine.attempts.tally.windows.load(c.name, now_us))

    def _find_unplaced(self) -> None:
        """Attempts that the engine waits for and no worker has. There should be none; seen twice, they count as lost."""
        now = self._engine.attempts.unplaced(self._placed)
        lost = now & self._unplaced
        self._unplaced = now - lost
        if lost:
            log.warning("%d attempts are with no worker any more; they count as lost", len(lost))
            self._run(self._engine.worker_lost(list(lost)))

    def find(self, worker_id: bytes) -> Connection | None:
        return self._by_id.get(worker_id)

    def is_silent(self, c: Connection) -> bool:
        return self.clock_us() - c.seen_us > SILENT_S_MAX * 1e6

    def join(self, hello: Hello, ns: int, namespace: str) -> Connection:
        """A stream has begun. If the worker was here before, it gets its attempts back."""
        check_hello(hello)
        # Not kept with the connection: thousands of workers say the same.
        signatures, hello.signatures = usable_signatures(hello), {}
        before = self._replaced_by(hello, ns)
        c = Connection(hello, ns, namespace, self.clock_us())
        c.greet(Welcome(self._engine.name, self.clock_us(), int(ALIVE_EVERY_S * 1000)))
        returned = self._take_over(before, c) if before is not None else []
        self._by_id[c.id] = c
        is_new = self._pools.add(c)
        self._changed = True
        brought_along = self._claim(c)
        self._pools.recount(c)
        if brought_along:
            c.early = []
            self._run(self._present(c, brought_along))
        if returned:
            asyncio.get_running_loop().call_soon(self._upstream.reported, returned)
        if is_new:
            self._engine.workers_changed()
        else:
            self._engine.workers_more()
        self.messages.decided(self._code.unpark())
        if signatures:
            self._engine.events.task_signatures_received.publish(ns, signatures)
        log.info("worker %s (%s) is here with %d slots", c.name, namespace, c.slots)
        return c

    def _replaced_by(self, hello: Hello, ns: int) -> Connection | None:
        """The former connection of this worker; raises if it may not connect here."""
        if self._workers.is_closing:
            raise Unavailable("this server is going away; connect to another one")
        before = self._by_id.get(hello.worker_id)
        if before is not None and before.ns != ns:
            raise InvalidInput("this worker id belongs to a worker of another namespace")
        if before is None and len(self._by_id) >= WORKERS_MAX:
            raise Unavailable(f"this server has WORKERS_MAX={WORKERS_MAX} workers; connect to another one")
        return before

    def _claim(self, c: Connection) -> list[Token]:
        """Attempts that the worker says it is running and that it did not get here."""
        brought_along: list[Token] = []
        for token in c.hello.running:
            key = token[:2]
            placed = self._placed.get(key)
            if placed is not c:
                brought_along.append(token)
                if placed is None or self._is_left_by(placed, c, token):
                    self._placed[key] = c
                    c.running[key] = token[2]
        return brought_along

    def _is_left_by(self, placed: Connection, c: Connection, token: Token) -> bool:
        """A worker that started anew found the job that the worker before it left running. Its former connection gives it up."""
        key = token[:2]
        if placed.is_open or placed.ns != c.ns or placed.running.get(key) != token[2]:
            return False
        placed.drop(key)
        return True

    def _take_over(self, before: Connection, c: Connection) -> list[Report]:
        """A reconnected worker keeps its attempts. Those that it does not report never reached it and go back unstarted."""
        handle = self._graces.pop(before.id, None)
        if handle is not None:
            handle.cancel()
        self._workers.queries.release(before)
        self.messages.decided(self._code.release(before))
        self._pools.remove(before)
        before.is_open = False
        before.end(Unavailable("this worker has another stream by now"))
        has = set(c.hello.running)
        now = self.clock_us()
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
        self.messages.report_early(c)

    def left(self, c: Connection) -> None:
        """Its stream has ended."""
        if self._by_id.get(c.id) is not c:
            return  # it is back already, on another stream
        c.is_open = False
        self._pools.recount(c)
        self._workers.queries.release(c)
        self.messages.decided(self._code.release(c))
        if c.draining and not c.running:
            log.info("worker %s has left", c.name)
            self._remove(c)
            return
        log.info("worker %s lost its stream with %d attempts under way", c.name, len(c.running))
        if not self._is_closed:
            loop = asyncio.get_running_loop()
            self._graces[c.id] = loop.call_later(self._grace_s, self._give_up, c)

    def _give_up(self, c: Connection) -> None:
        """The worker has not reconnected within its grace period. Jobs that it may have left running have a longer one."""
        self._graces.pop(c.id, None)
        if self._by_id.get(c.id) is not c or c.is_open:
            return
        tokens = [(*key, attempt) for key, attempt in c.running.items() if self._placed.get(key) is c]
        jobs = self._engine.attempts.host_bound(tokens)
        lost = [token for token in tokens if token not in jobs]
        if jobs:
            for token in lost:
                del self._placed[token[:2]]
                c.drop(token[:2])
            self._graces[c.id] = asyncio.get_running_loop().call_later(self._reattach_s, self._remove_lost, c)
            self._lose(c, lost)
        else:
            self._remove_lost(c)

    def _remove_lost(self, c: Connection) -> None:
        self._graces.pop(c.id, None)
        if self._by_id.get(c.id) is c and not c.is_open:
            tokens = [(*key, attempt) for key, attempt in c.running.items() if self._placed.get(key) is c]
            self._remove(c)
            self._lose(c, tokens)

    def _lose(self, c: Connection, tokens: list[Token]) -> None:
        if tokens:
            log.warning("worker %s is gone, and with it %d attempts", c.name, len(tokens))
            self._run(self._engine.worker_lost(tokens, c.name))

    def _remove(self, c: Connection) -> None:
        for key in c.running:
            if self._placed.get(key) is c:
                del self._placed[key]
        was_last = self._pools.remove(c)
        self._by_id.pop(c.id, None)
        self._changed = True
        if was_last:
            self._engine.workers_changed()
        self.messages.decided(self._code.unpark())

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a worker's attempts could not be settled", exc_info=task.exception())


def row_of(c: Connection, load: WorkerLoad = NO_LOAD) -> WorkerRow:
    h = c.hello
    return WorkerRow(
        id=c.id,
        ns=c.ns,
        name=h.name,
        host=h.host,
        pid=h.pid,
        sdk=h.sdk,
        queues=sorted({q for q, _ in h.tasks}),
        tasks=sorted({t for _, t in h.tasks if not is_built_in(t)}),
        versions={name: code.version for name, code in sorted(h.workflows.items())},
        build_id=h.build_id,
        slots=h.slots,
        slots_used=c.slots_used,
        runs_held=len(c.held),
        draining=c.draining,
        connected_us=c.connected_us,
        seen_us=c.seen_us,
        blocked=c.blocked,
        load=load,
    )
