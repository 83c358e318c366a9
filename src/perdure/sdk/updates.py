"""Updates: validated requests to a running workflow, each with an answer.

    set_price = Update("set_price", Price, Receipt)

    @workflow
    async def shop() -> None:
        set_price.handle(change, validate=sane)     # inside: callers get what `change` returns
        ...

    receipt = await set_price.ask(run_id, Price(3))  # outside: raises UpdateRejected, UpdateFailed, RunFinished or TimeoutError

Laws:

1. A handler belongs to the run that registered it and runs as a task of its workflow: it may await steps, and it is replayed with it.
2. An update is handled once, however often it is asked under the same key. One that comes before its handler waits for it; one whose name
   no `Update` of the program has is refused at once. So define updates where the module is loaded, not inside a workflow.
3. What `validate` refuses has changed nothing: it runs first and cannot await.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar
from uuid import uuid4

from perdure.core import events as ev
from perdure.core.api import messages
from perdure.core.api.messages import AskUpdate
from perdure.core.durations import Duration, to_us
from perdure.core.errors import (
    Failure,
    InvalidInput,
    PayloadMismatch,
    PerdureError,
    UpdateRejected,
    WorkflowRuleBroken,
    clip,
    update_error,
)
from perdure.core.names import checked_name
from perdure.core.work import UpdateAnswer
from perdure.sdk.client.backend import Backend, backend
from perdure.sdk.client.keys import within
from perdure.sdk.client.payloads import decoded
from perdure.sdk.client.waiting import in_time
from perdure.sdk.message_registry import messages as registry
from perdure.sdk.payloads import Converter
from perdure.sdk.workflow.endings import ContinueAsNewRequest, failure_of
from perdure.sdk.workflow.live_run import LiveRun, current
from perdure.sdk.workflow.messages import update_names

T = TypeVar("T")
R = TypeVar("R")


class Request(Generic[T, R]):
    """One update, for code that takes them one by one: `value`, and the `key` it was asked under. The first answer stands."""

    def __init__(self, runtime: LiveRun, key: str, value: T, encode: Callable[[R], bytes]) -> None:
        self._runtime, self.key, self.value, self._encode = runtime, key, value, encode

    def reply(self, answer: R) -> None:
        """Answer the update. Raises PayloadMismatch if the answer does not fit its type."""
        self._runtime.updates.answer(self.key, self._encode(answer), None)

    def reject(self, why: str) -> None:
        """Refuse the update: `ask()` raises UpdateRejected with this text."""
        self._runtime.updates.answer(self.key, b"", _rejection(UpdateRejected(why)))


class Update(Generic[T, R]):
    """A request to a run, and its answer: `update.handle(fn)` or `async for request in update` inside, `update.ask(run_id, value)` outside.

    Args:
        name: the name of the update.
        request: the type of the request.
        answer: the type of the answer.
    """

    def __init__(self, name: str, request: type[T], answer: type[R]) -> None:
        self.name = checked_name("update", name)
        update_names.add(self.name)
        self._request: Converter[T] = Converter.of(request)
        self._answer: Converter[R] = Converter.of(answer)
        registry.add("update", self.name, request)

    def handle(
        self, fn: Callable[[T], Awaitable[R]] | Callable[[T], R], *, validate: Callable[[T], object] | None = None
    ) -> None:
        """Answer the updates of this run from now on, those that wait first.

        Args:
            fn: a plain or async function of the request; `ask()` returns its result. UpdateRejected refuses the update, any other error
                fails it.
            validate: called first; what it raises rejects the update before anything has changed. It cannot await.

        Raises InvalidInput if `validate` is async.
        """
        if validate is not None and inspect.iscoroutinefunction(validate):
            raise InvalidInput(
                f"Update({self.name!r}).handle(validate={validate.__name__}): a validator cannot await; "
                "check in the handler what needs a step, and raise UpdateRejected there"
            )
        runtime = _runtime(f"Update({self.name!r}).handle()")
        runtime.updates.handle(
            self.name, lambda e: runtime.begin_task(self._handle(runtime, e, fn, validate), f"update {self.name}")
        )

    async def _handle(
        self,
        runtime: LiveRun,
        e: ev.UpdateReceived,
        fn: Callable[[T], Any],
        validate: Callable[[T], object] | None,
    ) -> None:
        try:
            value = self._request.decode(e.value)
            if validate is not None:
                validate(value)
        except Exception as error:
            runtime.updates.answer(e.id, b"", _rejection(error))
            return
        try:
            answer = fn(value)
            if inspect.isawaitable(answer):
                answer = await answer
            runtime.updates.answer(e.id, self._answer.encode(answer), None)
        except UpdateRejected as error:
            runtime.updates.answer(e.id, b"", _rejection(error))
        except ContinueAsNewRequest:
            why = WorkflowRuleBroken(
                "wf.continue_as_new() works in the workflow's own function, not in the handler of an update"
            )
            runtime.updates.answer(e.id, b"", failure_of(why, "update_failed"))
        except asyncio.CancelledError:
            runtime.updates.answer(e.id, b"", Failure("update_failed", "the handler was cancelled", "CancelledError"))
            raise
        except Exception as error:
            runtime.updates.answer(e.id, b"", failure_of(error, "update_failed"))

    async def next(self, timeout: Duration | None = None) -> Request[T, R]:
        """Wait for the next update, inside a workflow. Answer it with `reply()` or `reject()`.

        A request that does not fit its type is rejected without being returned. Raises TimeoutError when none comes within `timeout`.
        """
        runtime = _runtime(f"Update({self.name!r}).next()")
        while True:
            e = await runtime.updates.next(self.name, to_us(timeout) if timeout is not None else 0)
            try:
                return Request(runtime, e.id, self._request.decode(e.value), self._answer.encode)
            except PayloadMismatch as error:
                runtime.updates.answer(e.id, b"", _rejection(error))

    async def __aiter__(self) -> AsyncIterator[Request[T, R]]:
        while True:
            yield await self.next()

    async def ask(self, run_id: str, value: T, *, key: str | None = None, timeout: Duration | None = None) -> R:
        """Ask the run and wait for its answer. Works outside workflows only.

        Args:
            run_id: the id of the run.
            value: the request.
            key: an idempotency key: asked again under the same key, the update is not handled again and the answer is the same.
                Unless given, each call is an update of its own.
            timeout: how long to wait; that of the client unless given. The update goes on afterwards.

        Raises UpdateRejected, UpdateFailed, RunFinished, NotFound, TimeoutError, or Unavailable.
        """
        return await self.ask_on(backend(), run_id, value, key=key, within_s=within(timeout))

    async def ask_on(
        self, target: Backend, run_id: str, value: T, *, key: str | None = None, within_s: float | None = None
    ) -> R:
        """`ask` through a client."""
        if current.get(None) is not None:
            raise WorkflowRuleBroken(
                f"Update({self.name!r}).ask() works outside workflows only; ask from a @task, or send a signal"
            )
        limit_s, ask_key, data = within_s or target.acts.timeout_s, key or uuid4().hex, self._request.encode(value)

        async def asked(wait_s: float) -> UpdateAnswer | None:
            return (
                await target.call(messages.UPDATE, AskUpdate(run_id, self.name, data, ask_key, wait_s), limit_s)
            ).answer

        answer = await in_time(limit_s, asked, effect=True)
        if answer is None:
            raise TimeoutError(
                f"run {run_id} has not answered the update {self.name!r} within {limit_s:g} s; it goes on: ask again with key={ask_key!r}"
            )
        if answer.failure is not None:
            raise update_error(answer.failure)
        found: R = await decoded(target, self._answer.decode, answer.value)
        return found


def _runtime(what: str) -> LiveRun:
    runtime = current.get(None)
    if runtime is None:
        raise PerdureError(f"{what} works inside a workflow only")
    return runtime


def _rejection(error: Exception) -> Failure:
    return Failure(UpdateRejected.code, clip(str(error) or type(error).__name__), type(error).__name__)
