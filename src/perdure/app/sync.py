"""A thin facade for code that is not async: the same client, driven by a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

from perdure.app.embedded import Perdure
from perdure.core.durations import Duration
from perdure.sdk.client.handles import Handle, ambient
from perdure.sdk.definitions import Startable
from perdure.sdk.messages import Promise, Signal, State
from perdure.sdk.updates import Update

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class SyncHandle(Generic[R_co]):
    """`Handle`, blocking."""

    def __init__(self, client: SyncPerdure, handle: Handle[R_co]) -> None:
        self._client, self._handle = client, handle
        self.id = handle.id

    def result(self, timeout: Duration | None = None) -> R_co:
        return self._client._call(self._handle.result(timeout))

    def cancel(self, reason: str = "") -> None:
        self._client._call(self._handle.cancel(reason))

    def retry(self) -> None:
        self._client._call(self._handle.retry())

    def status(self) -> str:
        return self._client._call(self._handle.status())


class SyncPerdure:
    """`Perdure` for sync code: `with SyncPerdure(dsn) as p: p.run(workflow, ...)`. Takes the same arguments."""

    def __init__(self, dsn: str | None = None, **options: Any) -> None:
        self._dsn, self._options = dsn, options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="perdure", daemon=True)
        self._client: Perdure

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._client = self._call(self._open())
        except BaseException:
            self._stop()
            raise
        return self

    async def _open(self) -> Perdure:
        return await Perdure(self._dsn, **self._options).__aenter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call(self._client.close())
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _here(self, work: Coroutine[Any, Any, T]) -> T:
        """With this client as the ambient one."""

        async def scoped() -> T:
            ambient.set(self._client)
            return await work

        return self._call(scoped())

    def start(self, workflow: Startable[P, R], *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        return SyncHandle(self, self._call(self._client.start_workflow(workflow, *args, **kwargs)))

    def run(self, workflow: Startable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self.start(workflow, *args, **kwargs).result()

    def send(self, signal: Signal[T], run_id: str, value: T) -> None:
        self._here(signal.send(run_id, value))

    def resolve(self, promise: Promise[T], run_id: str, value: T) -> None:
        self._here(promise.resolve(run_id, value))

    def ask(
        self, update: Update[T, R], run_id: str, value: T, *, key: str | None = None, timeout: Duration = "30s"
    ) -> R:
        return self._here(update.ask(run_id, value, key=key, timeout=timeout))

    def read(self, state: State[T], run_id: str) -> T:
        return self._here(state.read(run_id))
