"""`async with Client("host:8601", api_key=...)`: start runs on a server and wait for them, with no database and no worker here."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Token
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

import grpc

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.deadlines import call_timeout_s, unanswered
from perdure.core.durations import Duration
from perdure.core.errors import PerdureError, Unavailable
from perdure.core.limits import UPDATE_WAIT_S_MAX
from perdure.core.links import Kind
from perdure.core.messages import CancelAsked, Mail, SignalSent, UpdateAsked
from perdure.core.work import Answer, Outcome, RunView, StartRequest
from perdure.sdk.client.channel import Tls, access, end_of, error_for, error_of
from perdure.sdk.client.handles import Backend, Handle, Schedules, StartableDefinition, ambient, closed, opened
from perdure.wire import runs

P = ParamSpec("P")
R = TypeVar("R")

REPEATABLE: Final = frozenset({"Outcome", "Describe", "Find", "History", "ReadState", "Cancel", "Update"})
"""Calls that have the same effect twice as once. Whether a start or a signal arrived before a stream broke nobody knows."""
READS: Final = frozenset({"Outcome", "Describe", "Find", "History", "ReadState", "ReadSchedule"})
"""Calls that change nothing."""
AWAY_RETRY_S: Final = 2.0
"""How long a call that can be repeated is asked again of a server that says it is unavailable."""
TOLD_SHARE: Final = 0.8
"""Of the time of a call: in that the server is to answer. The rest is for its answer to arrive, so that what it says of the outcome holds."""
WAIT_S: Final = 60.0
"""How long a server waits for a run to end before it answers that it has not."""
PART_CALLS: Final = 1_000
"""Calls in one message."""


class Client:
    """A client of a server. While it is open, `workflow.start()`, `signal.send()` and the like find it by themselves.

    Without an address it takes PERDURE_GRPC, then a server on this machine; without a key PERDURE_API_KEY. Every call ends within
    `call_timeout` (30 seconds unless given) and raises Unavailable if there was no answer; only waiting for a result goes on.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        api_key: str | None = None,
        namespace: str | None = None,
        tls: Tls | None = None,
        call_timeout: Duration | None = None,
    ) -> None:
        self._timeout_s = call_timeout_s(call_timeout)
        self._access = access(address, api_key=api_key, namespace=namespace, tls=tls)
        self._address = self._access.addresses[0]
        self._metadata = self._access.metadata()
        self._channels: dict[str, Any] = {}
        self._turn = 0
        self._was_there = False
        """Some server has answered at some time: it may be back in a moment."""
        self._session: _Session | None = None
        self._token: Token[Backend] | None = None

    async def __aenter__(self) -> Self:
        self._token = ambient.set(self)
        opened(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        closed(self)
        if self._session is not None:
            await self._session.close()
        for channel in self._channels.values():
            await channel.close()
        if token is not None:
            with suppress(ValueError):  # a fixture may leave in another context than it entered
                ambient.reset(token)

    async def start_workflow(self, workflow: StartableDefinition[P, R], *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """`workflow.start(...)` on this very client."""
        return await workflow.start_on(self, workflow.signature.encode_call(args, kwargs))

    def handle(self, run_id: str, workflow: StartableDefinition[Any, R] | None = None) -> Handle[R]:
        """A handle to a run by its id; give its workflow for a typed result."""
        from perdure.sdk.payloads import Converter

        decode = workflow.signature.decode_result if workflow is not None else Converter.of(Any).decode
        return Handle(self, ids.parse(run_id), decode)

    async def find(self, id: str, workflow: StartableDefinition[Any, R] | None = None) -> Handle[R]:
        """A handle to the run that was started under a key of your own (`options(key=...)`)."""
        return self.handle(ids.text(await self.find_run(id)), workflow)

    async def _call(
        self,
        method: str,
        request: bytes,
        decode: Callable[[bytes], R],
        *,
        repeatable: bool = False,
        waits_s: float = 0.0,
    ) -> R:
        """One message carries all calls that are ready; the stream is opened with the first one, and again when it broke.

        What can be asked twice is asked again until the call's time is up, so that a server that is restarted is not noticed; of a server
        that answers that its database is away, only for a moment. `waits_s`: how long the server may wait by design.
        """
        now = time.monotonic()
        deadline, unavailable_until = now + self._timeout_s, now + AWAY_RETRY_S
        repeatable = repeatable or method in REPEATABLE
        pause_s = 0.05
        while True:
            session = self._open_session()
            try:
                reply = await session.call(method, request, max(deadline - time.monotonic(), 0.001), waits_s)
            except TimeoutError as e:
                raise unanswered(self._timeout_s, effect=session.was_open and method not in READS) from e
            except Unavailable:
                self._was_there |= session.was_open
                nobody = not self._was_there and self._turn >= len(self._access.addresses)
                again = repeatable or not session.was_open
                if nobody or not again or time.monotonic() + pause_s >= deadline:
                    raise
            else:
                self._was_there = True
                if not reply.code:
                    return decode(reply.reply)
                error = error_for(reply.code, reply.error)
                again = repeatable and isinstance(error, Unavailable)
                if not again or time.monotonic() + pause_s >= min(deadline, unavailable_until):
                    raise error
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, 1.0)

    def _open_session(self) -> _Session:
        """The stream that is open, or one to the next address."""
        if self._session is None or self._session.is_over:
            addresses = self._access.addresses
            address = addresses[self._turn % len(addresses)]
            self._turn += 1
            if address not in self._channels:
                self._channels[address] = self._access.channel(address)
            self._session = _Session(self._channels[address], self._metadata, address)
        return self._session

    # -- the Backend port -------------------------------------------------------------------------------------------

    async def start(self, request: StartRequest) -> bytes:
        return await self._call("Start", runs.encode_start(request), runs.decode_id)

    async def run(self, request: StartRequest) -> tuple[bytes, Outcome]:
        run_id, outcome = await self._call("Run", runs.encode_start(request), runs.decode_outcome, waits_s=WAIT_S)
        return run_id, outcome if outcome is not None else await self.outcome(run_id)

    async def outcome(self, run_id: bytes) -> Outcome:
        """However long it takes: a server or a database that is away is waited for, if there has ever been an answer."""
        while True:
            try:
                _, outcome = await self._call("Outcome", runs.encode_run(run_id), runs.decode_outcome, waits_s=WAIT_S)
            except Unavailable:
                if not self._was_there:
                    raise
                await asyncio.sleep(random.uniform(0.5, 1.5))
                continue
            if outcome is not None:
                return outcome

    async def post(self, run_id: bytes, mail: Mail, key: str = "") -> bool:
        match mail:
            case CancelAsked():
                await self._call("Cancel", runs.encode_cancel(run_id, mail.reason), bytes)
                return True
            case SignalSent():
                request = runs.encode_message(run_id, mail.name, mail.value, key)
                return await self._call("Signal", request, runs.decode_sent, repeatable=bool(key))
            case _:
                raise AssertionError(f"a client does not send {type(mail).__name__}")

    async def signal_with_start(self, request: StartRequest, signal: SignalSent, key: str) -> tuple[bytes, bool]:
        data = runs.encode_signal_with_start(request, signal, key)
        return await self._call("SignalWithStart", data, runs.decode_signalled, repeatable=bool(key))

    async def emit(self, name: str, value: bytes, key: str) -> bool:
        return await self._call("Emit", runs.encode_emit(name, value, key), runs.decode_sent, repeatable=bool(key))

    async def find_run(self, key: str) -> bytes:
        return await self._call("Find", runs.encode_find(key), runs.decode_id)

    async def resolve(self, run_id: bytes, name: str, value: bytes) -> None:
        await self._call("Resolve", runs.encode_message(run_id, name, value), bytes)

    async def update(self, run_id: bytes, asked: UpdateAsked, seconds: float) -> Answer | None:
        deadline = time.monotonic() + seconds
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            request = runs.encode_update(run_id, asked, int(min(left_s, UPDATE_WAIT_S_MAX) * 1000))
            waits_s = min(left_s, UPDATE_WAIT_S_MAX)
            answer = await self._call("Update", request, runs.decode_answer, waits_s=waits_s)
            if answer is not None or time.monotonic() >= deadline:
                return answer

    async def vote(self, run_id: bytes, name: str, approved: bool, value: bytes, comment: str, by: str) -> bool:
        vote = runs.VoteCast(run_id, name, approved, value, comment, by)
        return await self._call("Vote", runs.encode_vote(vote), runs.decode_voted)

    async def delegate(self, run_id: bytes, name: str, to: str, by: str) -> None:
        await self._call("Delegate", runs.encode_delegate(run_id, name, to, by), bytes)

    async def link(self, run_id: bytes, kind: Kind, name: str, who: str, lasts_us: int) -> str:
        return await self._call("Link", runs.encode_link_request(run_id, kind, name, who, lasts_us), runs.decode_link)

    async def read_state(self, run_id: bytes, name: str) -> bytes | None:
        return await self._call("ReadState", runs.encode_name(run_id, name), runs.decode_value)

    async def history(self, run_id: bytes, after: int) -> list[ev.Recorded]:
        return await self._call("History", runs.encode_history_request(run_id, after), runs.decode_history)

    async def describe(self, run_id: bytes) -> RunView:
        return await self._call("Describe", runs.encode_run(run_id), runs.decode_view)

    async def resume(self, run_id: bytes) -> None:
        await self._call("Resume", runs.encode_run(run_id), runs.decode_resumed)

    async def retry(self, run_id: bytes) -> None:
        await self._call("Retry", runs.encode_run(run_id), bytes)

    def adopt(self, definition: Any) -> None:
        """Nothing is served here."""

    async def schedules(self) -> Schedules:
        from perdure.sdk.client.schedules import RemoteSchedules

        return RemoteSchedules(self._call)


class _Session:
    """One stream of calls and replies. When it ends, whoever waits for a reply is told."""

    def __init__(self, channel: Any, metadata: tuple[tuple[str, str], ...], address: str) -> None:
        self._address = address
        self._stream = channel.stream_stream(f"/{runs.SERVICE}/Session")(metadata=metadata)
        self._waiting: dict[int, asyncio.Future[runs.Reply]] = {}
        self._calls: list[runs.Call] = []
        self._given_up: list[int] = []
        """Calls that were sent and whose answer is not waited for any more."""
        self._number = 0
        self._news = asyncio.Event()
        self.is_over = False
        self.was_open = False
        """A server has accepted it: a call that fails from here on may have arrived."""
        self._work = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]

    async def call(self, method: str, request: bytes, within_s: float, waits_s: float) -> runs.Reply:
        """Unavailable when the stream breaks, TimeoutError when there is no answer in time. What is given up is dropped by the server where
        it can be."""
        self._number += 1
        number = self._number
        future: asyncio.Future[runs.Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        call = runs.Call(number, method, request, max(int(TOLD_SHARE * within_s * 1000), 1))
        self._calls.append(call)
        self._news.set()
        try:
            async with asyncio.timeout(within_s + waits_s):
                return await future
        finally:
            del self._waiting[number]
            if future.cancelled():
                self._give_up(call)

    def _give_up(self, call: runs.Call) -> None:
        if call in self._calls:
            self._calls.remove(call)
        elif not self.is_over:
            self._given_up.append(call.id)
            self._news.set()

    async def close(self) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        self._stream.cancel()

    async def _send(self) -> None:
        try:
            await self._stream.initial_metadata()
            self.was_open = not self._stream.done()
            while self.was_open:
                await self._news.wait()
                self._news.clear()
                while self._calls or self._given_up:
                    part, self._calls = self._calls[:PART_CALLS], self._calls[PART_CALLS:]
                    given_up, self._given_up = self._given_up, []
                    await self._stream.write(runs.encode_calls(part, given_up))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the reading side knows why
        finally:
            self.is_over = True

    async def _receive(self) -> None:
        error: PerdureError | None = None
        try:
            while (data := await self._stream.read()) is not grpc.aio.EOF:
                for r in runs.decode_replies(data):
                    future = self._waiting.get(r.id)
                    if future is None or future.done():
                        continue
                    future.set_result(r)
            error = error_of(await end_of(self._stream), self._address)
        except grpc.aio.AioRpcError as e:
            error = error_of(e, self._address)
        finally:
            self.is_over = True
            self._work[0].cancel()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error or Unavailable(f"the connection to {self._address} was closed"))
