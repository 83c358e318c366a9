"""Signals, named events, promises and state: typed names that are used inside a run and outside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from copy import copy
from datetime import datetime
from typing import Any, Final, Generic, Self, TypeVar

import msgspec

from perdure.core.api import approvals, messages, named_events
from perdure.core.api.approvals import CreateLink
from perdure.core.api.messages import ReadState, ResolvePromise, SendSignal
from perdure.core.api.named_events import EmitEvent
from perdure.core.durations import Duration, to_us
from perdure.core.errors import PerdureError
from perdure.core.names import checked_name
from perdure.sdk.client.backend import Backend, backend
from perdure.sdk.client.keys import within
from perdure.sdk.client.payloads import decoded
from perdure.sdk.message_registry import messages as registry
from perdure.sdk.payloads import Converter
from perdure.sdk.workflow.live_run import LiveRun, current
from perdure.sdk.workflow.step import Step

T = TypeVar("T")

BY_KEY: Final = "key:"
"""Prefix of a run name that is the key it was started under."""


def _runtime(what: str) -> LiveRun:
    runtime = current.get(None)
    if runtime is None:
        raise PerdureError(f"{what} works inside a workflow only")
    return runtime


class Signal(Generic[T]):
    """Messages to a run, in order, any number of them.

        steer = Signal("steer", str)
        word = await steer.next()           # in a workflow; or `async for word in steer`
        await steer.send(run_id, "left")    # outside

    Args:
        name: the name of the signal.
        type: the type of its values.
    """

    def __init__(self, name: str, type: type[T]) -> None:
        self.name = checked_name("signal", name)
        self._converter: Converter[T] = Converter.of(type)
        registry.add("signal", self.name, type)
        self.key = ""
        """The key that `keyed()` has set."""

    def keyed(self, key: str) -> Self:
        """The same signal with a key for `signal_with_start()`: a second message to the run under that key is dropped."""
        changed = copy(self)
        changed.key = key
        return changed

    def next(self, timeout: Duration | None = None) -> Step[T]:
        """Wait for the next message, inside a workflow. The await raises TimeoutError when none comes within `timeout`."""
        return _runtime(f"Signal({self.name!r}).next()").signals.next(
            self.name, self._converter.decode, to_us(timeout) if timeout is not None else 0
        )

    async def __aiter__(self) -> AsyncIterator[T]:
        while True:
            yield await self.next()

    async def send(self, run_id: str, value: T, *, key: str = "", timeout: Duration | None = None) -> bool:
        """Send a message to a run; returns when it is durable.

        Args:
            run_id: the id of the run, or `key:` and the key that it was started under (`options(key=...)`).
            value: the message.
            key: an idempotency key: a second message to the run under the same key is dropped.
            timeout: how long the call may take; that of the client unless given.

        Returns False if the message was dropped. Raises RunFinished, NotFound or Unavailable.
        """
        return await self.send_on(backend(), run_id, value, key=key, within_s=within(timeout))

    async def send_on(
        self, target: Backend, run_id: str, value: T, *, key: str = "", within_s: float | None = None
    ) -> bool:
        """`send` through a client."""
        message = SendSignal(run_id, self.name, self.encode(value), key or self.key)
        return (await target.call(messages.SIGNAL, message, within_s)).is_new

    def encode(self, value: T) -> bytes:
        """The message as it is sent."""
        return self._converter.encode(value)


class NamedEvent(Generic[T]):
    """Something that happened outside, by name. Every run that waits for it gets it, also if it happened since the run started.

        paid = NamedEvent("paid", Payment)
        payment = await paid.wait("event.order == order", order=42)  # in a workflow
        await paid.emit(Payment(order=42))                           # outside

    Args:
        name: the name of the event.
        type: the type of its payload.
    """

    def __init__(self, name: str, type: type[T]) -> None:
        self.name = checked_name("event", name)
        self._converter: Converter[T] = Converter.of(type)
        registry.add("event", self.name)

    def wait(
        self,
        match: str = "",
        timeout: Duration | None = None,
        since: Duration | datetime | None = None,
        **bound: Any,
    ) -> Step[T]:
        """Wait for an event, inside a workflow: the oldest one that no earlier wait of this run for the same event, match and values got.

        Args:
            match: an expression that must be true of it, over `event` (its payload), `input` (the arguments of the run) and the
                names in `bound`; every event of this name unless given.
            timeout: the await raises TimeoutError when no event comes in time.
            since: how far the wait looks back: a duration before now ("10m"), a time, or "now" to get only events after the wait
                began; to the start of the run unless given. In a run that continued as new, that is the start of the latest run.
            bound: values for names in `match`.

        Raises ExprError for an expression that cannot be parsed.
        """
        from perdure.core.named_events import (  # loads the expression language: only where events are waited for
            parsed,
            since_us,
            wait_spec,
        )

        runtime = _runtime(f"NamedEvent({self.name!r}).wait()")
        values = {name: _plain(value) for name, value in bound.items()}
        if match and "input" not in values and "input" in parsed(match, self.name).roots:
            values["input"] = runtime.input_object()
        from_us = since_us(since, started_us=runtime.started_us, now_us=runtime.now_us)
        spec = wait_spec(self.name, match, values, from_us)
        timeout_us = to_us(timeout) if timeout is not None else 0
        return runtime.promises.wait_event(self.name, spec, self._converter.decode, timeout_us)

    async def emit(self, value: T, *, key: str = "", timeout: Duration | None = None) -> bool:
        """Send the event; returns when it is durable, which is before runs get it.

        Args:
            value: its payload.
            key: an idempotency key: a second event of this name under the same key is dropped.
            timeout: how long the call may take; that of the client unless given.

        Returns False if the event was dropped.
        """
        return await self.emit_on(backend(), value, key=key, within_s=within(timeout))

    def encode(self, value: T) -> bytes:
        """The payload as it is sent."""
        return self._converter.encode(value)

    async def emit_on(self, target: Backend, value: T, *, key: str = "", within_s: float | None = None) -> bool:
        """`emit` through a client."""
        event = EmitEvent(self.name, self._converter.encode(value), key)
        return (await target.call(named_events.EMIT, event, within_s)).is_new


def _plain(value: Any) -> Any:
    """The value as plain JSON data."""
    return msgspec.json.decode(Converter.of(type(value)).encode(value))


class Promise(Generic[T]):
    """A value that is resolved from outside, once.

        answer = Promise("answer", int)
        n = await answer.wait()            # in a workflow
        await answer.resolve(run_id, 42)   # outside

    Args:
        name: the name of the promise in its run.
        type: the type of its value.
    """

    def __init__(self, name: str, type: type[T]) -> None:
        self.name = checked_name("promise", name)
        self._converter: Converter[T] = Converter.of(type)
        registry.add("promise", self.name, type)

    def wait(self, timeout: Duration | None = None) -> Step[T]:
        """Wait for the value, inside a workflow. The await raises TimeoutError when it does not come within `timeout`."""
        return _runtime(f"Promise({self.name!r}).wait()").promises.wait(
            self.name, self._converter.decode, to_us(timeout) if timeout is not None else 0
        )

    async def resolve(self, run_id: str, value: T, *, timeout: Duration | None = None) -> None:
        """Resolve the promise of a run. The first value stands: a second one raises PromiseAlreadyResolved. Raises RunFinished or NotFound."""
        await self.resolve_on(backend(), run_id, value, within_s=within(timeout))

    async def resolve_on(self, target: Backend, run_id: str, value: T, *, within_s: float | None = None) -> None:
        """`resolve` through a client."""
        answer = ResolvePromise(run_id, self.name, self._converter.encode(value))
        await target.call(messages.RESOLVE, answer, within_s)

    async def link(
        self, run_id: str, who: str = "", *, expires_in: Duration | None = None, timeout: Duration | None = None
    ) -> str:
        """The address of a page where the value can be given once, without a credential. Keep it secret: the link is the permission.

        Args:
            run_id: the id of the run.
            who: recorded as the author of the value.
            expires_in: how long the link works.
            timeout: how long the call may take; that of the client unless given.
        """
        lasts_us = to_us(expires_in) if expires_in is not None else 0
        link = CreateLink(run_id, "promise", self.name, who, lasts_us)
        return (await backend().call(approvals.CREATE_LINK, link, within(timeout))).url


class State(Generic[T]):
    """A named value of a run: written by its code, readable from outside at any time.

        progress = State("progress", 0)
        progress.set(50)               # in a workflow
        await progress.read(run_id)    # outside

    Args:
        name: the name of the value in its run.
        default: the value until the run sets one.
        type: the type of the value; that of the default unless given.
    """

    def __init__(self, name: str, default: T, type: Any = None) -> None:
        self.name = checked_name("state", name)
        self.default = default
        self._converter: Converter[T] = Converter.of(type if type is not None else _type_of(default))

    def get(self) -> T:
        """The value, inside a workflow."""
        data = _runtime(f"State({self.name!r}).get()").state.get(self.name)
        return self.default if data is None else self._converter.decode(data)

    def set(self, value: T) -> None:
        """Set the value, inside a workflow. Raises PayloadMismatch if it does not fit the type."""
        _runtime(f"State({self.name!r}).set()").set_state(self.name, self._converter.encode(value))

    def clear(self) -> None:
        """Go back to the default, inside a workflow."""
        _runtime(f"State({self.name!r}).clear()").set_state(self.name, None)

    async def read(self, run_id: str, *, timeout: Duration | None = None) -> T:
        """The value in a run, as of its last commit. Raises NotFound."""
        return await self.read_on(backend(), run_id, within_s=within(timeout))

    async def read_on(self, target: Backend, run_id: str, *, within_s: float | None = None) -> T:
        """`read` through a client."""
        data = (await target.call(messages.STATE, ReadState(run_id, self.name), within_s)).value
        if data is None:
            return self.default
        value: T = await decoded(target, self._converter.decode, data)
        return value


def _type_of(default: Any) -> Any:
    """The type of a default. Items of a container are not checked; a default of None accepts any value."""
    return Any if default is None else type(default)
