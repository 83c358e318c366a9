"""Thin facades for code that is not async: the same clients, driven by a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

from perdure.app.embedded import Perdure
from perdure.core.api.bulk_jobs import BulkAction
from perdure.core.durations import Duration
from perdure.sdk.client.backend import ambient
from perdure.sdk.client.base import RunInfo, StartableWorkflow
from perdure.sdk.client.bulk_jobs import BulkInfo
from perdure.sdk.client.client import Client
from perdure.sdk.client.handles import Handle
from perdure.sdk.messages import Promise, Signal, State
from perdure.sdk.updates import Update

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
C = TypeVar("C", Perdure, Client)


class SyncHandle(Generic[R_co]):
    """`Handle`, blocking."""

    def __init__(self, loop: LoopThread, handle: Handle[R_co]) -> None:
        self._loop, self._handle = loop, handle
        self.id, self.key = handle.id, handle.key

    def result(self, timeout: Duration | None = None) -> R_co:
        return self._loop.call(self._handle.result(timeout))

    def cancel(self, reason: str = "") -> None:
        self._loop.call(self._handle.cancel(reason))

    def terminate(self, reason: str = "") -> None:
        self._loop.call(self._handle.terminate(reason))

    def pause(self, reason: str = "") -> None:
        self._loop.call(self._handle.pause(reason))

    def delete(self) -> None:
        self._loop.call(self._handle.delete())

    def retry(self) -> None:
        self._loop.call(self._handle.retry())

    def resume(self) -> None:
        self._loop.call(self._handle.resume())

    def status(self) -> str:
        return self._loop.call(self._handle.status())


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="perdure", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class SyncBase(Generic[C]):
    """The methods of a client, blocking."""

    def __init__(self) -> None:
        self._thread = LoopThread()
        self._client: C

    def _new(self) -> C:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._client = self._thread.call(self._open())
        except BaseException:
            self._thread.stop()
            raise
        return self

    async def _open(self) -> C:
        return await self._new().__aenter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.call(self._client.__aexit__(kind, error, trace))
        finally:
            self._thread.stop()

    def _here(self, work: Coroutine[Any, Any, T]) -> T:
        """With this client as the ambient one."""

        async def scoped() -> T:
            ambient.set(self._client._backend)
            return await work

        return self._thread.call(scoped())

    def start(self, workflow: StartableWorkflow[P, R], *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        return SyncHandle(self._thread, self._thread.call(self._client.start(workflow, *args, **kwargs)))

    def run(self, workflow: StartableWorkflow[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._thread.call(self._client.run(workflow, *args, **kwargs))

    def get(
        self, id: str | None = None, *, key: str | None = None, workflow: StartableWorkflow[Any, R] | None = None
    ) -> SyncHandle[R]:
        return SyncHandle(self._thread, self._thread.call(self._client.get(id, key=key, workflow=workflow)))

    def list(
        self,
        *,
        workflow: str = "",
        status: str | Sequence[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
    ) -> list[RunInfo]:
        found = self._client.list(workflow=workflow, status=status, since=since, until=until, limit=limit)
        return self._thread.call(found)

    def runs(self, query: str = "", *, view: str = "", limit: int | None = None) -> Iterator[RunInfo]:
        """Runs that match a query, newest first; see `Client.runs`."""
        found = self._client.runs(query, view=view, limit=limit)

        async def following() -> RunInfo | None:
            return await anext(found, None)

        while (run := self._thread.call(following())) is not None:
            yield run

    def bulk(
        self,
        action: BulkAction,
        query: str = "",
        *,
        view: str = "",
        reason: str = "",
        dry_run: bool = False,
        signal: str = "",
        payload: Any = None,
    ) -> BulkInfo:
        """Act on every run that matches, and wait for the end of that; see `Client.bulk`."""

        async def carried_out() -> BulkInfo:
            job = await self._client.bulk(
                action, query, view=view, reason=reason, dry_run=dry_run, signal=signal, payload=payload
            )
            return await job.wait()

        return self._thread.call(carried_out())

    def send(self, signal: Signal[T], run: str, value: T) -> None:
        self._here(signal.send(run, value))

    def resolve(self, promise: Promise[T], run: str, value: T) -> None:
        self._here(promise.resolve(run, value))

    def ask(self, update: Update[T, R], run: str, value: T, *, key: str | None = None, timeout: Duration = "30s") -> R:
        return self._here(update.ask(run, value, key=key, timeout=timeout))

    def read(self, state: State[T], run: str) -> T:
        return self._here(state.read(run))


class SyncPerdure(SyncBase[Perdure]):
    """`Perdure` for sync code: `with SyncPerdure(dsn) as p: p.run(workflow, ...)`. Takes the same arguments."""

    def __init__(self, dsn: str | None = None, **options: Any) -> None:
        super().__init__()
        self._dsn, self._options = dsn, options

    def _new(self) -> Perdure:
        return Perdure(self._dsn, **self._options)


class SyncClient(SyncBase[Client]):
    """`Client` for sync code: `with SyncClient("host:8601") as c: c.run(workflow, ...)`. Takes the same arguments."""

    def __init__(self, address: str | None = None, **options: Any) -> None:
        super().__init__()
        self._address, self._options = address, options

    def _new(self) -> Client:
        return Client(self._address, **self._options)
