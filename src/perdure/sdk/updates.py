"""Updates: validated requests into a running workflow, each with an answer.

    set_price = Update("set_price", Price, Receipt)

    @workflow
    async def shop() -> None:
        set_price.handle(change, validate=sane)     # inside: whoever asks gets what `change` returns
        ...

    receipt = await set_price.ask(run_id, Price(3))  # outside: raises UpdateRejected, UpdateFailed, RunFinished or TimeoutError

Laws:

1. A handler belongs to the run that registered it and runs as a task of its workflow: it may await steps, and it is replayed with it.
2. An update is handled once, whatever its asker repeats under the same id. One that comes before its handler waits for it; one of a name
   that no `Update` of the program has is refused at once. So define updates where the module is loaded, not inside a workflow.
3. What `validate` refuses has changed nothing: it comes first and cannot await.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic  # bound here, before workflow guards wrap it
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
from perdure.sdk.client.backend import backend
from perdure.sdk.payloads import Converter
from perdure.sdk.workflow.instance import ContinueAsNewRequest, Runtime, current, failure_of, update_names

T = TypeVar("T")
R = TypeVar("R")


class Request(Generic[T, R]):
    """One update, for code that takes them one by one. The first answer stands."""

    def __init__(self, runtime: Runtime, id: str, value: T, encode: Callable[[R], bytes]) -> None:
        self._runtime, self.id, self.value, self._encode = runtime, id, value, encode

    def reply(self, answer: R) -> None:
        self._runtime.answer_update(self.id, self._encode(answer), None)

    def reject(self, why: str) -> None:
        self._runtime.answer_update(self.id, b"", _rejection(UpdateRejected(why)))


class Update(Generic[T, R]):
    """A request into a run, and its answer: `update.handle(fn)` or `async for request in update` inside, `update.ask(run_id, value)` outside."""

    def __init__(self, name: str, request: type[T], answer: type[R]) -> None:
        self.name = checked_name("update", name)
        update_names.add(self.name)
        self._request: Converter[T] = Converter.of(request)
        self._answer: Converter[R] = Converter.of(answer)

    # -- inside -----------------------------------------------------------------------------------------------------

    def handle(
        self, fn: Callable[[T], Awaitable[R]] | Callable[[T], R], *, validate: Callable[[T], object] | None = None
    ) -> None:
        """From here on, `fn` answers this run's updates, first those that wait. What it raises is the refusal.

        `validate` is called first; what it raises rejects the update before anything has changed. It must not await.
        """
        if validate is not None and inspect.iscoroutinefunction(validate):
            raise InvalidInput(
                f"Update({self.name!r}).handle(validate={validate.__name__}): a validator cannot await; "
                "check in the handler what needs a step, and raise UpdateRejected there"
            )
        runtime = _runtime(f"Update({self.name!r}).handle()")
        runtime.handle_updates(
            self.name, lambda e: runtime.begin_task(self._handle(runtime, e, fn, validate), f"update {self.name}")
        )

    async def _handle(
        self,
        runtime: Runtime,
        e: ev.UpdateReceived,
        fn: Callable[[T], Any],
        validate: Callable[[T], object] | None,
    ) -> None:
        try:
            value = self._request.decode(e.value)
            if validate is not None:
                validate(value)
        except Exception as error:
            runtime.answer_update(e.id, b"", _rejection(error))
            return
        try:
            answer = fn(value)
            if inspect.isawaitable(answer):
                answer = await answer
            runtime.answer_update(e.id, self._answer.encode(answer), None)
        except UpdateRejected as error:
            runtime.answer_update(e.id, b"", _rejection(error))
        except ContinueAsNewRequest:
            why = WorkflowRuleBroken(
                "wf.continue_as_new() works in the workflow's own function, not in the handler of an update"
            )
            runtime.answer_update(e.id, b"", failure_of(why, "update_failed"))
        except asyncio.CancelledError:
            runtime.answer_update(e.id, b"", Failure("update_failed", "the handler was cancelled", "CancelledError"))
            raise
        except Exception as error:
            runtime.answer_update(e.id, b"", failure_of(error, "update_failed"))

    async def next(self, timeout: Duration | None = None) -> Request[T, R]:
        """The next update, to be answered with `reply` or `reject`; raises TimeoutError when none comes in time. One whose value does not fit
        is rejected by itself."""
        runtime = _runtime(f"Update({self.name!r}).next()")
        while True:
            e = await runtime.next_update(self.name, to_us(timeout) if timeout is not None else 0)
            try:
                return Request(runtime, e.id, self._request.decode(e.value), self._answer.encode)
            except PayloadMismatch as error:
                runtime.answer_update(e.id, b"", _rejection(error))

    async def __aiter__(self) -> AsyncIterator[Request[T, R]]:
        while True:
            yield await self.next()

    # -- outside ----------------------------------------------------------------------------------------------------

    async def ask(self, run_id: str, value: T, *, id: str | None = None, timeout: Duration = "30s") -> R:
        """Ask the run and wait for its answer. Raises UpdateRejected, UpdateFailed, RunFinished, or TimeoutError: then the update goes on, and
        asking again under the same `id` waits for the same answer. Without one, each call is an update of its own."""
        if current.get(None) is not None:
            raise WorkflowRuleBroken(
                f"Update({self.name!r}).ask() works outside workflows only; ask from a @task, or send a signal"
            )
        ask_id, data, end_s = id or uuid4().hex, self._request.encode(value), monotonic() + to_us(timeout) / 1e6
        while True:
            left_s = max(0.0, end_s - monotonic())
            reply = await backend().call(messages.UPDATE, AskUpdate(run_id, self.name, data, ask_id, left_s))
            answer = reply.answer
            if answer is not None:
                break
            if monotonic() >= end_s:
                raise TimeoutError(
                    f"run {run_id} has not answered the update {self.name!r} within {timeout}; it goes on: ask again with id={ask_id!r}"
                )
        if answer.failure is not None:
            raise update_error(answer.failure)
        return self._answer.decode(answer.value)


def _runtime(what: str) -> Runtime:
    runtime = current.get(None)
    if runtime is None:
        raise PerdureError(f"{what} works inside a workflow only")
    return runtime


def _rejection(error: Exception) -> Failure:
    return Failure(UpdateRejected.code, clip(str(error) or type(error).__name__), type(error).__name__)
