"""Typed keys used at both ends: signals, events, promises and state of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from copy import copy
from typing import Any, Final, Generic, Self, TypeVar

import msgspec

from perdure.core.api import approvals, messages, named_events
from perdure.core.api.approvals import CreateLink
from perdure.core.api.messages import ReadState, ResolvePromise, SendSignal
from perdure.core.api.named_events import EmitEvent
from perdure.core.durations import Duration, to_us
from perdure.core.errors import PerdureError
from perdure.core.names import checked_name
from perdure.sdk.client.backend import backend
from perdure.sdk.payloads import Converter
from perdure.sdk.workflow.instance import Runtime, current
from perdure.sdk.workflow.step import Step

T = TypeVar("T")

BY_KEY: Final = "key:"
"""How the name of a run begins that is the id its starter gave it."""


def _runtime(what: str) -> Runtime:
    runtime = current.get(None)
    if runtime is None:
        raise PerdureError(f"{what} works inside a workflow only")
    return runtime


class Signal(Generic[T]):
    """Messages into a run, in order, any number: `async for v in signal`, or `await signal.next()`."""

    def __init__(self, name: str, type: type[T]) -> None:
        self.name = checked_name("signal", name)
        self._converter: Converter[T] = Converter.of(type)
        self.key = ""
        """Of `keyed`."""

    def keyed(self, key: str) -> Self:
        """The same signal for `signal_with_start`, under a key of your own: sent again under that key, it is the same message."""
        twin = copy(self)
        twin.key = key
        return twin

    def next(self, timeout: Duration | None = None) -> Step[T]:
        """The next message; raises TimeoutError when none comes in time."""
        return _runtime(f"Signal({self.name!r}).next()").next_signal(
            self.name, self._converter.decode, to_us(timeout) if timeout is not None else 0
        )

    async def __aiter__(self) -> AsyncIterator[T]:
        while True:
            yield await self.next()

    async def send(self, run_id: str, value: T, *, key: str = "") -> bool:
        """Returns when the message is durable. `run_id` may also be `key:` and the id that the run was started under (`options(id=...)`).
        With a key of your own, a second message to the run under that key is the first one sent again, and False comes back."""
        sent = await backend().call(messages.SIGNAL, SendSignal(run_id, self.name, self.encode(value), key or self.key))
        return sent.is_new

    def encode(self, value: T) -> bytes:
        return self._converter.encode(value)


class NamedEvent(Generic[T]):
    """Something that happens outside, by name: every run that waits for it hears of it."""

    def __init__(self, name: str, type: type[T]) -> None:
        self.name = checked_name("event", name)
        self._converter: Converter[T] = Converter.of(type)

    def wait(self, match: str = "", timeout: Duration | None = None, **bound: Any) -> Step[T]:
        """The next event of this name for which `match` is true: an expression over `event`, its payload, over `input`, the arguments of
        this run, and over the values bound here by name. Without one, the next event of this name. Raises TimeoutError when none comes."""
        from perdure.core.named_events import parsed, wait_spec  # only who waits for events pays for expressions

        runtime = _runtime(f"NamedEvent({self.name!r}).wait()")
        values = {name: _plain(value) for name, value in bound.items()}
        if match and "input" not in values and "input" in parsed(match, self.name).roots:
            values["input"] = runtime.input_object()
        spec = wait_spec(self.name, match, values)
        timeout_us = to_us(timeout) if timeout is not None else 0
        return runtime.wait_event(self.name, spec, self._converter.decode, timeout_us)

    async def emit(self, value: T, *, key: str = "") -> bool:
        """Tell of it; returns when that is durable, which is before anybody has heard of it. With a key of your own, a second event of
        this name under that key is the first one sent again, and False comes back."""
        return (
            await backend().call(named_events.EMIT, EmitEvent(self.name, self._converter.encode(value), key))
        ).is_new


def _plain(value: Any) -> Any:
    """As JSON has it."""
    return msgspec.json.decode(Converter.of(type(value)).encode(value))


class Promise(Generic[T]):
    """A value that is resolved from outside, once."""

    def __init__(self, name: str, type: type[T]) -> None:
        self.name = checked_name("promise", name)
        self._converter: Converter[T] = Converter.of(type)

    def wait(self, timeout: Duration | None = None) -> Step[T]:
        return _runtime(f"Promise({self.name!r}).wait()").wait_promise(
            self.name, self._converter.decode, to_us(timeout) if timeout is not None else 0
        )

    async def resolve(self, run_id: str, value: T) -> None:
        """The first one wins; a second one raises PromiseAlreadyResolved."""
        await backend().call(messages.RESOLVE, ResolvePromise(run_id, self.name, self._converter.encode(value)))

    async def link(self, run_id: str, who: str = "", *, expires_in: Duration | None = None) -> str:
        """The address of a page where whoever has it can give the value, once and without any credential."""
        lasts_us = to_us(expires_in) if expires_in is not None else 0
        link = CreateLink(run_id, "promise", self.name, who, lasts_us)
        return (await backend().call(approvals.CREATE_LINK, link)).url


class State(Generic[T]):
    """A named value of a run: written by its code, readable from outside at any time."""

    def __init__(self, name: str, default: T, type: Any = None) -> None:
        self.name = checked_name("state", name)
        self.default = default
        self._converter: Converter[T] = Converter.of(type if type is not None else _type_of(default))

    def get(self) -> T:
        data = _runtime(f"State({self.name!r}).get()").state.get(self.name)
        return self.default if data is None else self._converter.decode(data)

    def set(self, value: T) -> None:
        _runtime(f"State({self.name!r}).set()").set_state(self.name, self._converter.encode(value))

    def clear(self) -> None:
        _runtime(f"State({self.name!r}).clear()").set_state(self.name, None)

    async def read(self, run_id: str) -> T:
        """The value as of the run's last commit."""
        data = (await backend().call(messages.STATE, ReadState(run_id, self.name))).value
        return self.default if data is None else self._converter.decode(data)


def _type_of(default: Any) -> Any:
    """Containers say nothing about their items, so those stay unchecked; None says nothing at all."""
    return Any if default is None else type(default)
