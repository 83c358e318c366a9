"""Runs the functions of queries, in threads beside the worker's event loop.

    ask --> waiting --a place is free--> in a thread --> answered
               |                             |
               '--QUERY_S_MAX--> refused     '--QUERY_S_MAX--> answered as failed; the thread is interrupted until it ends

Laws:

1. Every query is answered within QUERY_S_MAX of its arrival.
2. A function that cannot be interrupted, because it hangs outside Python, keeps one of QUERY_THREADS_MAX places and nothing else: tasks, workflow code
   and the loop go on. With all places taken like this, queries are refused until the worker is restarted.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from perdure.core.errors import (
    Failure,
    NotFound,
    PayloadTooLarge,
    PerdureError,
    QueryFailed,
    Unavailable,
    WorkflowRuleBroken,
    clip,
)
from perdure.core.limits import OVERRUN_TRIES, QUERY_ANSWER_BYTES_MAX, QUERY_S_MAX, QUERY_THREADS_MAX
from perdure.core.payload_port import PayloadCarrier
from perdure.core.payloads import MARK
from perdure.core.suggestions import did_you_mean
from perdure.core.work import QueryAnswer, QueryCall
from perdure.payloads.content import UnsentPayload
from perdure.sdk.payloads.access import NO_ACCESS, LoopAccess, blob_access
from perdure.sdk.worker.attempts import AttemptCancelled
from perdure.sdk.worker.threads import ThreadInterrupt
from perdure.sdk.worker.watchdog import stack_of
from perdure.sdk.workflow.endings import trace_of
from perdure.sdk.workflow.live_run import LiveRun, current
from perdure.sdk.workflow.queried_run import QueriedRun

log = logging.getLogger("perdure.worker")

INTERRUPT_EVERY_S: Final = 0.25
"""Between two interruptions of a function that took too long."""
QUERIES_NAMED: Final = 10
"""Queries that the refusal of an unknown one lists."""


class ReadAccess(LoopAccess):
    """Blobs can be read and none can be made."""

    def check_writable(self) -> None:
        raise WorkflowRuleBroken("a blob cannot be made in a query, which records nothing; make it in a task")


class AskedQuery:
    """A query that has arrived and is not over."""

    def __init__(self, call: QueryCall, future: asyncio.Future[QueryAnswer]) -> None:
        self.call, self.future = call, future
        self.timer: asyncio.TimerHandle | None = None
        self.thread: threading.Thread | None = None
        self.interrupt: ThreadInterrupt | None = None
        """Set by the thread, while it can be interrupted."""
        self.tries = 0

    def answer(self, answer: QueryAnswer) -> None:
        if not self.future.done():
            self.future.set_result(answer)


class QueryRunner:
    """`find` looks up a workflow by its name. Made on the worker's loop."""

    def __init__(
        self, find: Callable[[str], Any], carrier: PayloadCarrier | None, *, limit_s: float = QUERY_S_MAX
    ) -> None:
        self._find, self._carrier, self._limit_s = find, carrier, limit_s
        self._loop = asyncio.get_running_loop()
        self._access = ReadAccess(carrier) if carrier is not None else None
        self._waiting: deque[AskedQuery] = deque()
        self._running: set[AskedQuery] = set()

    def ask(self, call: QueryCall) -> asyncio.Future[QueryAnswer]:
        """The answer. It never raises, and is cancelled when the caller has gone."""
        one = AskedQuery(call, self._loop.create_future())
        one.timer = self._loop.call_later(self._limit_s, self._expire, one)
        self._waiting.append(one)
        self._begin()
        return one.future

    def close(self) -> None:
        """What has not begun is refused. Threads are daemons: none keeps the process."""
        for one in [*self._waiting, *self._running]:
            self._end(one, QueryAnswer(b"", Unavailable("the worker is stopping; ask again").to_failure()))
        self._waiting.clear()

    def _begin(self) -> None:
        while self._waiting and len(self._running) < QUERY_THREADS_MAX:
            one = self._waiting.popleft()
            if one.future.done():
                self._end(one, None)
                continue
            self._running.add(one)
            one.thread = threading.Thread(target=self._work, args=(one,), name=f"query-{one.call.name}", daemon=True)
            one.thread.start()

    def _end(self, one: AskedQuery, answer: QueryAnswer | None) -> None:
        if one.timer is not None:
            one.timer.cancel()
        if answer is not None:
            one.answer(answer)

    def _ended(self, one: AskedQuery, answer: QueryAnswer) -> None:
        self._running.discard(one)
        self._end(one, answer)
        self._begin()

    def _expire(self, one: AskedQuery) -> None:
        if one.thread is None:
            with_place = [other.call.name for other in self._running]
            busy = Unavailable(
                f"the worker has {len(with_place)} queries in progress ({', '.join(sorted(set(with_place)))}), as many as "
                f"QUERY_THREADS_MAX={QUERY_THREADS_MAX} allows, and none ended within {self._limit_s:g} s; ask again"
            )
            if one in self._waiting:
                self._waiting.remove(one)
            self._end(one, QueryAnswer(b"", busy.to_failure()))
            return
        stack = stack_of(one.thread.ident or 0)
        one.answer(QueryAnswer(b"", self._overran(one.call, stack)))
        if one.tries == OVERRUN_TRIES:
            log.error("the query %s cannot be interrupted and keeps a thread; it is at\n%s", one.call.name, stack)
            return
        one.tries += 1
        if one.interrupt is not None:
            one.interrupt.interrupt()
        one.timer = self._loop.call_later(INTERRUPT_EVERY_S, self._expire, one)

    def _overran(self, call: QueryCall, stack: str) -> Failure:
        return Failure(
            QueryFailed.code,
            f"the query {call.name!r} took longer than QUERY_S_MAX={self._limit_s:g} s and was interrupted. A query computes from "
            "the states of the run; keep what takes long in a state, and read that",
            TimeoutError.__name__,
            stack,
        )

    def _work(self, one: AskedQuery) -> None:
        """The thread. An interruption may arrive anywhere between the two ends of the hold."""
        answer: QueryAnswer | None = None
        hold = ThreadInterrupt()
        while True:
            try:
                if answer is None:
                    one.interrupt = hold
                    answer = contextvars.Context().run(self._answer, one.call)
                hold.close()
                break
            except AttemptCancelled:
                answer = answer or QueryAnswer(b"", self._overran(one.call, ""))
        try:
            self._loop.call_soon_threadsafe(self._ended, one, answer)
        except RuntimeError:  # the loop is closed: the process is going down
            log.debug("the answer of the query %s came after the worker's end", one.call.name)

    def _answer(self, call: QueryCall) -> QueryAnswer:
        """In a context of its own, in which no client is found."""
        is_called = False
        try:
            workflow = self._find(call.workflow)
            query = _query_of(workflow, call)
            args, kwargs = query.signature.decode_call(self._load(call.arguments))
            blob_access.set(self._access or NO_ACCESS)
            current.set(cast(LiveRun, QueriedRun(call, workflow, self._load)))
            is_called = True
            return QueryAnswer(_sendable(query.signature.encode_result(query.fn(*args, **kwargs)), call.name))
        except AttemptCancelled:
            raise
        except BaseException as e:
            if isinstance(e, PerdureError) and not is_called:
                return QueryAnswer(b"", e.to_failure())
            # Even SystemExit: it is the query that ends, not the thread.
            return QueryAnswer(b"", Failure(QueryFailed.code, clip(str(e)), type(e).__name__, clip(trace_of(e))))

    def _load(self, payload: bytes) -> bytes:
        if self._carrier is None or self._access is None or not payload.startswith(MARK):
            return payload
        return self._access.wait(self._carrier.resolve(payload))


def _query_of(workflow: Any, call: QueryCall) -> Any:
    queries: dict[str, Any] = getattr(workflow, "queries", {})
    found = queries.get(call.name)
    if found is None:
        hint = did_you_mean(call.name, queries)
        names = ", ".join(list(queries)[:QUERIES_NAMED]) + (", …" if len(queries) > QUERIES_NAMED else "")
        raise NotFound(
            f"the workflow {call.workflow!r} has no query {call.name!r}{f'; {hint}' if hint else '.'} "
            f"{f'It has {names}' if names else 'It has none'}"
        )
    return found


def _sendable(value: bytes, name: str) -> bytes:
    if isinstance(value, UnsentPayload):
        raise WorkflowRuleBroken(f"the answer of the query {name!r} contains a new blob; a query records nothing")
    if len(value) > QUERY_ANSWER_BYTES_MAX:
        raise PayloadTooLarge(
            f"the answer of the query {name!r} has {len(value)} bytes, over the limit QUERY_ANSWER_BYTES_MAX={QUERY_ANSWER_BYTES_MAX}; "
            "return a part, or read the state itself"
        )
    return value
