"""What `TestEnv.mock` puts in the place of a task or a workflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, MutableMapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from perdure.core import events as ev
from perdure.core.calls import HTTP, RUN
from perdure.core.jobs import JOB_TASK
from perdure.sdk.payloads import Converter
from perdure.sdk.workflow import guards
from perdure.sdk.workflow.live_run import current

_ANY: Final[Converter[Any]] = Converter.of(Any)

NOT_GIVEN: Final[Any] = object()


class MockCall(NamedTuple):
    """Arguments of one call. Arguments that can be given by position are in `args`, however the caller gave them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Mock:
    """Stands in for a task or a workflow, and records its calls. `with env.mock(...) as m:` ends it with the block."""

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self.name = name
        """Of what it stands in for."""
        self.calls: list[MockCall] = []
        """One for each attempt of a task, one for each run of a workflow."""
        self._fn = fn
        self._runs: set[bytes] = set()
        self._ends: list[Callable[[], None]] = []

    @property
    def call_count(self) -> int:
        return len(self.calls)

    def assert_called(self) -> None:
        """AssertionError if it was not called."""
        assert self.calls, f"the mock of {self.name} was not called"

    def assert_not_called(self) -> None:
        """AssertionError if it was called."""
        assert not self.calls, f"the mock of {self.name} was called with {self.calls}"

    def end(self) -> None:
        """Put back what it stood in for."""
        ends, self._ends = self._ends, []
        for end in reversed(ends):
            end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def __repr__(self) -> str:
        return f"<mock of {self.name}, {self.call_count} calls>"

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self._fn)

    @property
    def recording(self) -> Callable[..., Any]:
        """The function to execute: a coroutine function if the mock is one."""
        fn = self._fn

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            self._record(args, kwargs)
            return await fn(*args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._record(args, kwargs)
            return fn(*args, **kwargs)

        return call_async if self.is_async else call

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        run = current.get(None)
        if run is not None:  # code of a workflow, which a replay executes again
            if run.run_id in self._runs:
                return
            self._runs.add(run.run_id)
        self.calls.append(MockCall(args, kwargs))

    def put(self, place: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Until the mock ends. A mock that was put there since stays."""
        before = place.get(key, NOT_GIVEN)
        place[key] = value

        def restore() -> None:
            if place.get(key) is not value:
                return
            if before is NOT_GIVEN:
                del place[key]
            else:
                place[key] = before

        self._ends.append(restore)

    def then(self, end: Callable[[], None]) -> None:
        """When the mock has ended."""
        self._ends.insert(0, end)


def function_of(calls: Any, returns: Any, raises: Any) -> Callable[..., Any] | None:
    """What a mock does, which is given in one of three ways. None: in no way or in several."""
    if sum(given is not NOT_GIVEN for given in (calls, returns, raises)) != 1:
        return None
    if calls is not NOT_GIVEN:
        fn: Callable[..., Any] = calls
        return fn

    async def fake(*_: Any, **__: Any) -> Any:
        if raises is not NOT_GIVEN:
            raise raises
        return returns

    return fake


def is_mockable_built_in(name: str) -> bool:
    """Tasks of Perdure's own that a flow may call. The worker need not serve them."""
    return name in (HTTP, RUN) or name.startswith(JOB_TASK)


class ByName:
    """Calls and results of a workflow or a job of which only the name is known: an object of arguments, and any JSON."""

    def decode_call(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given: dict[str, Any] = _ANY.decode(data) or {}
        return tuple(given.pop("*", ())), given

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return _ANY.encode(kwargs)

    def encode_result(self, value: Any) -> bytes:
        return _ANY.encode(value)


class StandIn:
    """A workflow whose code is a mock."""

    def __init__(self, name: str, version: str, signature: Any, fn: Callable[..., Any]) -> None:
        self.name, self.version, self.signature, self.fn = name, version, signature, fn

    async def body(self, started: ev.RunStarted) -> Any:
        args, kwargs = self.signature.decode_call(started.input)
        if inspect.iscoroutinefunction(self.fn):
            return await self.fn(*args, **kwargs)
        # A plain function is not workflow code: it may count its calls, read a file, look at the clock.
        with guards.lifted():
            value = self.fn(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value
