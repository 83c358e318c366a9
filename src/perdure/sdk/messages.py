"""Typed keys used at both ends: signals, promises and state of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from perdure.core import ids
from perdure.core.durations import Duration, to_us
from perdure.core.errors import PerdureError
from perdure.core.mail import SignalSent
from perdure.sdk.client import backend
from perdure.sdk.options import checked_name
from perdure.sdk.payloads import Converter
from perdure.sdk.runtime import Runtime, current
from perdure.sdk.step import Step

T = TypeVar("T")


def _runtime(what: str) -> Runtime:
    runtime = current.get(None)
    if runtime is None:
        raise PerdureError(f"{what} works inside a workflow only")
    return runtime


class Signal(Generic[T]):
    """Messages into a run, in order, any number: `async for v in signal`, or `await signal.next()`."""

    def __init__(self, name: str, type: type[T]) -> None:
        self.name = checked_name("signal name", name)
        self._converter: Converter[T] = Converter.of(type)

    def next(self, timeout: Duration | None = None) -> Step[T]:
        """The next message; raises TimeoutError when none comes in time."""
        return _runtime(f"Signal({self.name!r}).next()").next_signal(
            self.name, self._converter.decode, to_us(timeout) if timeout is not None else 0
        )

    async def __aiter__(self) -> AsyncIterator[T]:
        while True:
            yield await self.next()

    async def send(self, run_id: str, value: T) -> None:
        """Returns when the message is durable."""
        await backend().post(ids.parse(run_id), SignalSent(self.name, self._converter.encode(value)))


class Promise(Generic[T]):
    """A value that is resolved from outside, once."""

    def __init__(self, name: str, type: type[T]) -> None:
        self.name = checked_name("promise name", name)
        self._converter: Converter[T] = Converter.of(type)

    def wait(self, timeout: Duration | None = None) -> Step[T]:
        return _runtime(f"Promise({self.name!r}).wait()").wait_promise(
            self.name, self._converter.decode, to_us(timeout) if timeout is not None else 0
        )

    async def resolve(self, run_id: str, value: T) -> None:
        """The first one wins; a second one raises PromiseAlreadyResolved."""
        await backend().resolve(ids.parse(run_id), self.name, self._converter.encode(value))


class State(Generic[T]):
    """A named value of a run: written by its code, readable from outside at any time."""

    def __init__(self, name: str, default: T, type: Any = None) -> None:
        self.name = checked_name("state name", name)
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
        data = await backend().read_state(ids.parse(run_id), self.name)
        return self.default if data is None else self._converter.decode(data)


def _type_of(default: Any) -> Any:
    """Containers say nothing about their items, so those stay unchecked; None says nothing at all."""
    return Any if default is None else type(default)
