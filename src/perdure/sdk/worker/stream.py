"""A worker on the other end of a stream: `perdure worker`, or `RemoteWorker` in a program of your own.

    worker --hello, reports, decisions, heartbeats, logs--> server
           <--welcome, tasks, activations, cancellations--

Theory. The stream may break at any moment and nothing is lost by that: attempts go on, their ends are kept until a server has
acknowledged them, and the next stream, to the same server or another, opens by saying what is still running. Workflow code that was held
for the old stream is dropped, because the server reads it again from the history.

What becomes ready in one turn of the loop travels in one message; a message that is being sent lets the next one grow.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections import deque
from collections.abc import Iterator
from time import monotonic_ns, time_ns  # bound here, before workflow guards wrap them
from typing import Any, Final

import grpc

from perdure.core.errors import Failure, Forbidden, InvalidInput, NotFound, Unauthenticated, Unavailable, VersionTaken
from perdure.core.events import Recorded
from perdure.core.limits import CALL_TIMEOUT_S
from perdure.core.outage import Outage
from perdure.core.retry import End
from perdure.core.version import VERSION
from perdure.core.work import Activation, Beat, Decided, LogChunk, QueryAnswer, QueryCall, Report, Upstream
from perdure.sdk.client.backend import Backend, ambient
from perdure.sdk.client.channel import Access, end_of, error_of
from perdure.sdk.client.client import RemoteBackend
from perdure.sdk.client.payloads import PayloadOptions, payload_options
from perdure.sdk.worker.worker import Worker
from perdure.wire import protocol
from perdure.wire.parts import decision_parts, decision_size
from perdure.wire.protocol import PART_BYTES, Down, Hello, Token, Up

log = logging.getLogger("perdure.worker")

PAUSE_S_MAX: Final = 5.0
"""Longest pause between two tries to connect."""
WELCOME_S_MAX: Final = 15.0
URGENT_S_MAX: Final = 5.0
DRAIN_S_DEFAULT: Final = 30.0
UNKNOWN_US: Final = -(1 << 62)
EXIT_OVERRUN: Final = 70
"""Exit code of a worker whose workflow code could not be stopped."""
LOGS_MAX: Final = 10_000
"""Chunks of output that wait for a stream; older ones are dropped."""


class RemoteWorker:
    def __init__(
        self,
        worker: Worker,
        access: Access,
        *,
        drain_s: float = DRAIN_S_DEFAULT,
        payloads: PayloadOptions | None = None,
    ) -> None:
        self._worker, self._access, self._drain_s = worker, access, drain_s
        self._server = RemoteBackend(access, CALL_TIMEOUT_S, payloads or payload_options())
        """What executors and tasks ask the server, and payloads, beside the stream. Nothing is connected before the first question."""
        self.client = Backend(self._server)
        self._id = os.urandom(16)
        self._reports: deque[Report] = deque()
        self._unacked: deque[tuple[int, list[Report]]] = deque()
        self._number = 0
        self._decisions: deque[tuple[int, Decided, bool, int]] = deque()
        """(number, decision, more follows, size)"""
        self._beats: dict[Token, Beat] = {}
        self._deferred: list[Token] = []
        """Attempts that gave their slots back, to be sent."""
        self._logs: deque[LogChunk] = deque(maxlen=LOGS_MAX)
        self._answering: dict[bytes, int] = {}
        """Run -> number of the activation that is being decided."""
        self._arriving: dict[bytes, list[Recorded]] = {}
        """Events of activations of which more is to come."""
        self._answers: deque[tuple[int, QueryAnswer]] = deque()
        """Of the queries of this stream: the next one has a queue of its own, because numbers count per server."""
        self._news = asyncio.Event()
        self._draining = asyncio.Event()
        self._drained = asyncio.Event()
        self._connected = asyncio.Event()
        self._outage = Outage("the connection to a server", log, time.monotonic)
        self._offset_us = UNKNOWN_US
        self._alive_every_s = 10.0
        self._address = access.addresses[0]
        self._threads_channel: tuple[str, Any] | None = None
        self.streams = 0
        """Streams begun so far, for tests and diagnostics."""

    async def run(self) -> None:
        """Serve until drained. Raises only what trying again cannot help: a refused key, an unknown namespace, a wrong protocol."""
        self.client.open(is_found=False)
        if ambient.get(None) is None:  # tasks run in this context, and send messages through this connection
            ambient.set(self.client)
        self._worker.refresh()
        self._worker.open(
            Upstream(
                clock_us=self.clock_us,
                reported=self._reported,
                decided=self._decided,
                beats=self._beat,
                logged=self._logged,
                deferred=self._defer,
                urgent_beats=self._urgent,
                code_overran=self._end_process,
                acknowledges=True,
                payloads=self._server.payloads,
            )
        )
        await self._worker.connect_executors(self._server.call)
        draining = asyncio.create_task(self._drain())
        try:
            await self._serve()
        finally:
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
            await self._worker.close()
            await self._server.close()
            if self._threads_channel is not None:
                self._threads_channel[1].close()

    def drain(self) -> None:
        """Take nothing new, finish what is under way, then let `run` return."""
        self._draining.set()
        self._news.set()

    async def connected(self) -> None:
        """Wait until a server has welcomed this worker."""
        await self._connected.wait()

    async def _drain(self) -> None:
        await self._draining.wait()
        await self._worker.drain(self._drain_s)
        self._drained.set()
        self._news.set()

    async def _serve(self) -> None:
        pause_s, outage = 0.1, self._outage
        turn = random.randrange(len(self._access.addresses))
        while not self._is_done:
            self._address = self._access.addresses[turn % len(self._access.addresses)]
            turn += 1
            began = time.monotonic()
            try:
                await self._stream(self._address)
            except grpc.aio.AioRpcError as e:
                error = error_of(e, self._address)
                if isinstance(error, Unauthenticated | Forbidden | NotFound | InvalidInput | VersionTaken):
                    raise error from None
                outage.failed(error)
            except (TimeoutError, OSError) as e:
                outage.failed(Unavailable(f"no welcome from {self._address}: {e or 'it took too long'}"))
            finally:
                self._connected.clear()
            if self._is_done:
                return
            if time.monotonic() - began > 5:
                pause_s = 0.1
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    @property
    def _is_done(self) -> bool:
        """Drained, and everything that was reported has arrived."""
        return self._drained.is_set() and not self._reports and not self._unacked

    async def _stream(self, address: str) -> None:
        async with self._access.channel(address) as channel:
            call = channel.stream_stream(protocol.CONNECT)(metadata=self._access.metadata())
            self._begin_anew()
            try:
                await call.write(protocol.encode_up(self._hello()))
            except asyncio.InvalidStateError:
                raise await end_of(call) from None
            async with asyncio.timeout(WELCOME_S_MAX):
                first = await call.read()
            if first is grpc.aio.EOF:
                raise await end_of(call)
            self._received(protocol.decode_down(first))
            self.streams += 1
            self._connected.set()
            self._outage.over()
            self._news.set()
            await self._talk(call)

    def _begin_anew(self) -> None:
        """Of the old stream nothing counts but what is running and what has not been acknowledged."""
        self._worker.forget_all()
        self._answering.clear()
        self._arriving.clear()
        self._decisions.clear()
        self._answers = deque()
        self._deferred = self._worker.deferred()
        for _, reports in reversed(self._unacked):
            self._reports.extendleft(reversed(reports))
        self._unacked.clear()

    def _hello(self) -> Up:
        """Reports that wait travel along, so that the server knows what became of attempts that are no longer running."""
        w = self._worker
        hello = Hello(
            self._id,
            w.name,
            socket.gethostname(),
            os.getpid(),
            f"perdure-python {VERSION}",
            w.slots,
            w.definitions.kinds,
            w.definitions.code,
            [*w.running(), *((r.run_id, r.seq, r.attempt) for r in self._reports)],
            signatures=protocol.bounded_signatures(w.definitions.signatures),
            build_id=w.definitions.build_id,
        )
        return Up(hello=hello)

    async def _talk(self, call: Any) -> None:
        work = [asyncio.create_task(self._send(call)), asyncio.create_task(self._receive(call))]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            errors = [error for task in done if (error := task.exception()) is not None]
            if any(isinstance(error, asyncio.InvalidStateError) for error in errors):
                raise await end_of(call)  # writing found out first that it had ended
            for error in errors:
                raise error
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            call.cancel()

    async def _receive(self, call: Any) -> None:
        while True:
            data = await call.read()
            if data is grpc.aio.EOF:
                error = await end_of(call)
                if error.code() is not grpc.StatusCode.OK:
                    raise error
                return
            self._received(protocol.decode_down(data))

    async def _send(self, call: Any) -> None:
        said_draining = False
        while True:
            try:
                async with asyncio.timeout(self._alive_every_s):
                    await self._news.wait()
            except TimeoutError:
                await call.write(protocol.encode_up(Up(alive=True)))
                continue
            self._news.clear()
            up = self._take()
            if self._draining.is_set() and not said_draining:
                up.draining = said_draining = True
            if up.reports or up.decisions or up.beats or up.logs or up.draining or up.deferred or up.answers:
                await call.write(protocol.encode_up(up))
            if self._is_done:
                await call.done_writing()
                return

    def _take(self) -> Up:
        """What is ready, up to about PART_BYTES."""
        room = PART_BYTES
        logs: list[LogChunk] = []
        while self._logs and room > PART_BYTES // 2:  # before the report of their attempt: after it they are dropped
            chunk = self._logs.popleft()
            logs.append(chunk)
            room -= sum(len(line.text) + 32 for line in chunk.lines)
        reports: list[Report] = []
        while self._reports and room > 0 and not self._logs:
            r = self._reports.popleft()
            reports.append(r)
            room -= 64 + len(r.value)
        if reports:
            self._number += 1
            self._unacked.append((self._number, reports))
        decisions: list[tuple[int, Decided, bool]] = []
        while self._decisions and room > 0:
            number, decided, more, size = self._decisions.popleft()
            decisions.append((number, decided, more))
            room -= size
        answers: list[tuple[int, QueryAnswer]] = []
        while self._answers and room > 0:
            answers.append(self._answers.popleft())
            room -= 64 + len(answers[-1][1].value)
        beats, self._beats = list(self._beats.values()), {}
        deferred, self._deferred = self._deferred, []
        if self._reports or self._decisions or self._logs or self._answers:
            self._news.set()
        number = self._number if reports else 0
        return Up(None, reports, number, decisions, beats, logs, deferred=deferred, answers=answers)

    def _received(self, down: Down) -> None:
        if down.clock_us:
            # Never ahead of the database: the reading is a moment old, and the freshest one counts.
            self._offset_us = max(self._offset_us, down.clock_us - monotonic_ns() // 1000)
        if down.welcome is not None:
            self._alive_every_s = max(0.5, down.welcome.alive_every_ms / 1000 / 2)
        while self._unacked and self._unacked[0][0] <= down.acked:
            _, reports = self._unacked.popleft()
            self._worker.acknowledged(reports)
            if self._is_done:
                self._news.set()
        if down.tasks:
            self._assign(down)
        for token in down.cancels:
            self._cancel(token)
        for run_id in down.forgets:
            self._answering.pop(run_id, None)
            self._arriving.pop(run_id, None)
            self._worker.forget(run_id)
        for number, run_id, why in down.unreadable:
            stuck = Decided(run_id, [], Failure("unreadable_history", why))
            self._decisions.append((number, stuck, False, 64))
            self._news.set()
        for number, call in down.queries:
            self._query(number, call)
        if down.activations:
            asyncio.get_running_loop().call_soon(self._activate, down.activations)

    def _assign(self, down: Down) -> None:
        """While draining nothing new is begun: it goes back unstarted."""
        if not self._draining.is_set():
            self._worker.assign(down.tasks)
            return
        now = self.clock_us()
        self._reported(
            [Report(a.run_id, a.seq, a.attempt, End.RETURNED, b"", None, now, now, a.epoch) for a in down.tasks]
        )

    def _query(self, number: int, call: QueryCall) -> None:
        answers = self._answers

        def answered(future: asyncio.Future[QueryAnswer]) -> None:
            if not future.cancelled():
                answers.append((number, future.result()))
                self._news.set()

        self._worker.answer(call).add_done_callback(answered)

    def _cancel(self, token: Token) -> None:
        """An attempt that had not begun ends without a report of its own; the server waits for one."""
        self._worker.cancel(*token)
        if not self._worker.is_running(*token) and not any(
            (r.run_id, r.seq, r.attempt) == token for r in self._reports
        ):
            now = self.clock_us()
            self._reported([Report(*token, End.CANCELLED, b"", None, now, now)])

    def _activate(self, parts: list[tuple[int, Activation, bool]]) -> None:
        """A plain callback of the loop, as workflow code requires."""
        batch: list[Activation] = []
        for number, a, more in parts:
            earlier = self._arriving.pop(a.run_id, None)
            if earlier is not None:
                a.events = [*earlier, *a.events]
            if more:
                self._arriving[a.run_id] = a.events
                continue
            self._answering[a.run_id] = number
            batch.append(a)
        for d in self._worker.activate(batch):
            number = self._answering.pop(d.run_id, 0)
            if number:
                self._decisions.extend(_sendable(number, d))
        self._news.set()

    def _reported(self, reports: list[Report]) -> None:
        self._reports.extend(reports)
        self._news.set()

    def _decided(self, decided: list[Decided]) -> None:
        """Side effects that ended, and answers to activations that took more than one slice."""
        for d in decided:
            number = 0 if d.spontaneous else self._answering.pop(d.run_id, 0)
            if d.spontaneous or number:
                self._decisions.extend(_sendable(number, d))
        self._news.set()

    def _beat(self, beats: list[Beat]) -> None:
        for b in beats:
            self._beats[b.run_id, b.seq, b.attempt] = b
        self._news.set()

    def _defer(self, tokens: list[Token]) -> None:
        self._deferred.extend(tokens)
        self._news.set()

    def _logged(self, chunks: list[LogChunk]) -> None:
        self._logs.extend(chunks)
        self._news.set()

    def _end_process(self, run_id: bytes, stack: str) -> None:
        """From a thread, while workflow code holds the loop and cannot be stopped: report it, so that the server gives the run to no
        other worker, and end the process. Its supervisor starts another; what it was running is run again."""
        self._urgent([Beat(run_id, 0, 0, b"", stack)])
        log.critical("this worker ends, because nothing else of it can run any more")
        os._exit(EXIT_OVERRUN)

    def _urgent(self, beats: list[Beat]) -> None:
        """From the watchdog's thread, while the loop is blocked: beside the stream, on a channel of its own."""
        if self._threads_channel is None or self._threads_channel[0] != self._address:
            self._threads_channel = (self._address, self._access.thread_channel(self._address))
        call = self._threads_channel[1].unary_unary(protocol.BEAT)
        try:
            call(
                protocol.encode_beats(self._id, beats),
                timeout=URGENT_S_MAX,
                metadata=self._access.metadata(),
                wait_for_ready=True,
            )
        except grpc.RpcError as e:
            log.debug("an urgent heartbeat did not arrive: %s", e)

    def clock_us(self) -> int:
        """The database's clock as far as it is known here; this machine's own before the first welcome."""
        if self._offset_us == UNKNOWN_US:
            return time_ns() // 1000
        return monotonic_ns() // 1000 + self._offset_us


def _sendable(number: int, d: Decided) -> Iterator[tuple[int, Decided, bool, int]]:
    """A decision in parts. One record that no message can carry stops its run, visibly, instead of every stream it is sent on."""
    for part in decision_parts(number, d):
        size = decision_size(part[1])
        if size > protocol.MESSAGE_BYTES_MAX - PART_BYTES:
            why = f"a command of {size} bytes is over the limit MESSAGE_BYTES_MAX={protocol.MESSAGE_BYTES_MAX}"
            yield number, Decided(d.run_id, [], Failure("payload_too_large", why)), False, 64
            return
        yield *part, size
