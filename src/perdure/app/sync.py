"""Clients for code that is not async: the same methods, blocking, carried out by an event loop in a thread of its own."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, Self, Unpack

from perdure.app.embedded import Perdure
from perdure.app.embedded_options import PerdureOptions
from perdure.core.errors import PerdureError
from perdure.sdk.client.base import ClientBase, ContextClient
from perdure.sdk.client.loop_calls import LoopCalls, LoopThread
from perdure.sdk.client.sync_surface import SyncClientBase

if TYPE_CHECKING:  # perdure-core may be without gRPC
    from perdure.sdk.client.client import Client, ClientOptions

NOT_OPEN: Final = "the client is not open: use it inside `with`"


class OpenedHere(SyncClientBase):
    """A client that is opened by `with`, on a loop in a thread of its own."""

    _client: Perdure | Client

    def _new(self) -> Perdure | Client:
        raise NotImplementedError

    def __getattr__(self, name: str) -> NoReturn:
        raise PerdureError(NOT_OPEN) if name in ("_loop", "_client") else AttributeError(name)

    def __enter__(self) -> Self:
        thread = LoopThread()
        thread.start()
        try:
            client = thread.call(self._open())
        except BaseException:
            thread.stop()
            raise
        self._thread = thread
        super().__init__(thread, client)
        return self

    async def _open(self) -> Perdure | Client:
        return await self._new().__aenter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.call(self._client.__aexit__(kind, error, trace))
        finally:
            self._thread.stop()


class SyncPerdure(OpenedHere):
    """`Perdure` for sync code: `with SyncPerdure(dsn) as client: client.run(workflow, ...)`. Takes the same arguments."""

    def __init__(self, dsn: str | None = None, **options: Unpack[PerdureOptions]) -> None:
        self._dsn, self._options = dsn, options

    def _new(self) -> Perdure:
        return Perdure(self._dsn, **self._options)


class SyncClient(OpenedHere):
    """`Client` for sync code: `with SyncClient("host:8601") as client: client.run(workflow, ...)`. Takes the same arguments."""

    def __init__(self, address: str | None = None, **options: Unpack[ClientOptions]) -> None:
        self._address, self._options = address, options

    def _new(self) -> Client:
        from perdure.sdk.client.client import Client

        return Client(self._address, **self._options)


def sync_client(client: ClientBase | None = None) -> SyncClientBase:
    """The blocking form of an async client that is open: for handlers that are plain functions, and for threads.

        @app.get("/orders/{order}")
        def state(order: str) -> str:
            return sync_client().query(stage, f"key:{order}")

    Args:
        client: the client found by context unless given.
    """
    found = ContextClient() if client is None else client
    loop = found.loop
    if loop is None:
        raise PerdureError("the client is not open: open it with `async with` first")
    return SyncClientBase(LoopCalls(loop), found)
