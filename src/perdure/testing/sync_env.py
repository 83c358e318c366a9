"""`SyncTestEnv`: `TestEnv` for tests that are not async."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from perdure.core.durations import Duration
from perdure.sdk.client.backend import ambient
from perdure.sdk.client.loop_calls import LoopThread
from perdure.sdk.client.sync_handles import SyncHandle
from perdure.sdk.startable import Startable
from perdure.testing.env import TestEnv
from perdure.testing.mocks import NOT_GIVEN, Mock

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SyncTestEnv:
    """The same environment, blocking: it runs on an event loop in a thread of its own. `call` takes any coroutine there:
    `env.call(signal.send(handle.id, 1))`."""

    __test__ = False

    def __init__(self, dsn: str | None = None, *, crashes_max: int = 0) -> None:
        self.env = TestEnv(dsn, crashes_max=crashes_max)
        self._thread = LoopThread()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._thread.call(self.env.__aenter__())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.call(self.env.__aexit__(kind, error, trace))
        finally:
            self._thread.stop()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine, which finds the client of this environment."""

        async def scoped() -> T:
            ambient.set(self.env.client._backend)
            return await work

        return self._thread.call(scoped())

    def mock(
        self,
        target: Any,
        calls: Callable[..., Any] = NOT_GIVEN,
        *,
        returns: Any = NOT_GIVEN,
        raises: Any = NOT_GIVEN,
    ) -> Mock:
        """See `TestEnv.mock`. A mock that ends with a block is ended on the thread of the environment."""

        async def make() -> Mock:
            mock: Callable[..., Mock] = self.env.mock
            return mock(target, calls, returns=returns, raises=raises)

        return self.call(make())

    def assert_mocks_used(self) -> None:
        self.env.assert_mocks_used()

    def deploy(self, flow: str | Path | Mapping[str, Any], *, name: str | None = None) -> str:
        return self.call(self.env.deploy(flow, name=name))

    def start(self, w: Startable[P, R], *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        """Start a run and let it go as far as it can without time passing."""
        return SyncHandle(self._thread, self.call(self.env.start(w, *args, **kwargs)))

    def run(self, w: Startable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Start a run and skip every wait until it ends."""
        return self.call(self.env.run(w, *args, **kwargs))

    def advance(self, d: Duration) -> None:
        """Let time pass."""
        self.call(self.env.advance(d))

    @property
    def now(self) -> datetime:
        """The environment's time."""
        return self.env.now
