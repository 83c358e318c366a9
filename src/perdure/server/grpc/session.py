"""A client's calls over one stream, answered as they end, many replies to a message."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

import grpc
import msgspec
from google.protobuf.message import DecodeError

from perdure.core.access import Principal
from perdure.core.api import ACTS
from perdure.core.deadlines import unanswered
from perdure.core.errors import InvalidInput, PerdureError, RateLimited, Unavailable
from perdure.core.limits import CALL_TIMEOUT_S, CALL_TIMEOUT_S_MAX
from perdure.engine.api.api import NamespaceApi
from perdure.wire import acts, protocol

log = logging.getLogger("perdure.server")

SESSION_CALLS_MAX: Final = 10_000
"""Calls of one session that wait for their reply."""
EXPIRY_SHARE: Final = 0.1
"""Share of a call's time limit that is added to it before the session answers with an error, even if the call is still running."""


async def answer(api: NamespaceApi, name: str, request: bytes) -> bytes:
    """A caller without the permission learns nothing about the form of the request."""
    act = acts.act_named(name)
    api.check(act.permission)
    return acts.encode(await api.call(act, acts.decode_request(act, request)))


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock_us() -> int:
    """Goes on while the process is stopped and while the machine sleeps."""
    return time.clock_gettime_ns(_CLOCK) // 1000


class CallSession:
    def __init__(self, api: NamespaceApi, admit: Callable[[Principal], None], context: Any) -> None:
        """`admit` applies the principal's rate limit to each call."""
        self._api, self._admit, self._context = api, admit, context
        self._replies: list[acts.Reply] = []
        self._news = asyncio.Event()
        self._calls: dict[int, asyncio.Task[None]] = {}
        """Calls that have no answer yet, by their ids."""
        self._ending: set[asyncio.Task[None]] = set()
        """Cancelled calls that are still unwinding."""
        self._over: asyncio.Future[PerdureError] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        work = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]
        try:
            await asyncio.wait(set[asyncio.Future[Any]]([*work, self._over]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = [*work, *self._calls.values(), *self._ending]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._over.done():
            raise self._over.result()
        error = next((e for task in work if task.done() and not task.cancelled() and (e := task.exception())), None)
        if isinstance(error, PerdureError | DecodeError | msgspec.DecodeError):
            raise error

    def end(self, why: PerdureError) -> None:
        if not self._over.done():
            self._over.set_result(why)

    async def _receive(self) -> None:
        while (data := await self._context.read()) is not grpc.aio.EOF:
            calls, given_up = acts.decode_calls(data)
            for id in given_up:
                self._drop(id)
            for call in calls:
                if call.id in self._calls:
                    self._answer(acts.Reply(call.id, b"", InvalidInput.code, f"the call id {call.id} is in use"))
                    continue
                if len(self._calls) + len(self._ending) >= SESSION_CALLS_MAX:
                    limit = f"this session has SESSION_CALLS_MAX={SESSION_CALLS_MAX} calls under way"
                    self._answer(acts.Reply(call.id, b"", RateLimited.code, limit))
                    continue
                self._calls[call.id] = asyncio.create_task(self._handle(call))

    def _drop(self, id: int) -> None:
        """Cancel a call that was answered or that its caller gave up."""
        task = self._calls.pop(id, None)
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    def _expire(self, call: acts.Call, within_s: float) -> None:
        """Nothing a call waits for, nor what it does when it is cancelled, keeps its caller beyond the limit."""
        if call.id in self._calls:
            act = ACTS.get(call.act)
            error = unanswered(within_s, effect=act is not None and bool(act.audits))
            self._answer(acts.Reply(call.id, b"", error.code, str(error)))
            self._drop(call.id)

    async def _handle(self, call: acts.Call) -> None:
        within_s = min(call.timeout_ms / 1000, CALL_TIMEOUT_S_MAX) or CALL_TIMEOUT_S
        if call.until_us:
            within_s = min(within_s, (call.until_us - clock_us()) / 1e6)
            if within_s <= 0:  # it was held up on its way, and its caller has given up: nothing is done
                late = Unavailable("the call arrived after its time was over; it was not carried out")
                if self._calls.pop(call.id, None) is not None:
                    self._answer(acts.Reply(call.id, b"", late.code, str(late)))
                return
        act = ACTS.get(call.act)
        limit_s = within_s + EXPIRY_SHARE * within_s + (act.wait_s_max if act is not None else 0.0)
        timer = asyncio.get_running_loop().call_later(limit_s, self._expire, call, within_s)
        try:
            reply = await self._replied(call, within_s)
        finally:
            timer.cancel()
        if self._calls.pop(call.id, None) is not None:
            self._answer(reply)

    async def _replied(self, call: acts.Call, within_s: float) -> acts.Reply:
        try:
            self._admit(self._api.caller.principal)
            return acts.Reply(call.id, await answer(self._api.within(within_s), call.act, call.request))
        except PerdureError as e:
            return acts.Reply(call.id, b"", e.code, str(e))
        except (DecodeError, msgspec.DecodeError, UnicodeDecodeError) as e:
            return acts.Reply(call.id, b"", InvalidInput.code, f"the request cannot be read: {e}")
        except Exception:
            log.exception("%s failed", call.act)
            return acts.Reply(call.id, b"", "internal", "internal error; the server's log has the details")

    def _answer(self, reply: acts.Reply) -> None:
        self._replies.append(reply)
        self._news.set()

    async def _send(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._replies:
                part, self._replies = _fitting(self._replies)
                await self._context.write(acts.encode_replies(part))


def _fitting(replies: list[acts.Reply]) -> tuple[list[acts.Reply], list[acts.Reply]]:
    """As many as fit into a message, and the rest."""
    room = protocol.PART_BYTES
    for i, reply in enumerate(replies):
        room -= 32 + len(reply.reply)
        if room < 0 and i:
            return replies[:i], replies[i:]
    return replies, []
