"""`async with Client("host:8601", api_key=...)`: start runs on a server and wait for them, with no database and no worker here."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from contextvars import Token
from types import TracebackType
from typing import Any, Final, Self, TypedDict, TypeVar, Unpack

import msgspec

from perdure.core.api import runs
from perdure.core.api.act import Act
from perdure.core.deadlines import call_timeout_s, given_up, unanswered
from perdure.core.durations import Duration
from perdure.core.error_codes import error_for
from perdure.core.errors import PerdureError, Unavailable
from perdure.sdk.client.backend import Backend, ambient
from perdure.sdk.client.base import ClientBase
from perdure.sdk.client.channel import Access, Tls, access
from perdure.sdk.client.payloads import PayloadOptions, payload_options, transfer_of
from perdure.sdk.client.session import ClientSession
from perdure.sdk.options import checked
from perdure.sdk.payloads.access import LoopAccess, blob_access
from perdure.wire import acts

Q = TypeVar("Q")
R = TypeVar("R")

AWAY_RETRY_S: Final = 2.0
"""How long a repeatable call is asked again of a server that answers that it is unavailable."""


class ClientOptions(TypedDict, total=False):
    """Options of `Client(...)` and `SyncClient(...)`."""

    api_key: str | None
    """PERDURE_API_KEY unless given."""
    namespace: str | None
    """PERDURE_NAMESPACE unless given; then the only one that the key allows."""
    tls: Tls | None
    call_timeout: Duration | None
    """How long a call may take unless it says otherwise; 30 seconds unless given."""
    payloads: str | None
    """Object stores for large values and blobs; PERDURE_PAYLOADS unless given. Without one the server's database takes them."""


class Client(ClientBase):
    """A client of a server. While it is open, `workflow.start()`, `signal.send()` and the like find it by themselves.

    Args:
        address: `host:port`, or several separated by commas. Unless given PERDURE_GRPC, then a server on this machine.
        options: see ClientOptions.
    """

    def __init__(self, address: str | None = None, **options: Unpack[ClientOptions]) -> None:
        given = checked("Client()", ClientOptions, options)
        where = access(address, api_key=given.get("api_key"), namespace=given.get("namespace"), tls=given.get("tls"))
        timeout_s = call_timeout_s(given.get("call_timeout"))
        self._remote = RemoteBackend(where, timeout_s, payload_options(given.get("payloads")))
        self._backend = Backend(self._remote)
        self._token: Token[Backend] | None = None

    async def __aenter__(self) -> Self:
        self._token = ambient.set(self._backend)
        blob_access.set(LoopAccess(self._remote.payloads))
        self._backend.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        self._backend.close()
        await self._remote.close()
        if token is not None:
            with suppress(ValueError):  # a fixture may leave in another context than it entered
                ambient.reset(token)


class RemoteBackend:
    """Acts of a server. One message carries all calls that are ready; the stream is opened with the first one, and again when it broke."""

    def __init__(self, where: Access, timeout_s: float, options: PayloadOptions) -> None:
        self.timeout_s, self._access = timeout_s, where
        self.payloads = transfer_of(self.call, options)
        self._metadata = self._access.metadata()
        self._channels: dict[str, Any] = {}
        self._turn = 0
        self._was_there = False
        """Some server has answered at some time: it may be back in a moment."""
        self._session: ClientSession | None = None

    def adopt(self, definition: Any) -> None:
        """Nothing is served here."""

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        for channel in self._channels.values():
            await channel.close()

    async def call(self, act: Act[Q, R], request: Q, within_s: float | None = None) -> R:
        """Waiting for a result outlasts a server or a database that is away, if there has ever been an answer."""
        limit_s = self.timeout_s if within_s is None else within_s
        if self.payloads.are_heavy([request]):
            request = await self.payloads.offload_record(request, f"a value of {act.name}")
        data = acts.encode(request)
        while True:
            try:
                return acts.decode_reply(act, await self._answered(act, request, data, limit_s))
            except msgspec.DecodeError as e:
                # It was carried out: what is missing is that this client knows what a newer server may answer.
                raise PerdureError(
                    f"the server's answer to {act.name} cannot be read, upgrade perdure here: {e}"
                ) from e
            except Unavailable:
                if act is not runs.RESULT or not self._was_there:
                    raise
                await asyncio.sleep(random.uniform(0.5, 1.5))

    async def _answered(self, act: Act[Q, R], request: Q, data: bytes, limit_s: float) -> bytes:
        """What can be asked twice is asked again until the call's time is up, so that a restarted server goes unnoticed; of a server
        that answers that its database is away, only for a moment."""
        began = time.monotonic()
        deadline, unavailable_until = began + limit_s, began + AWAY_RETRY_S
        repeatable, wait_s = act.is_repeatable(request), act.wait_s(request)
        pause_s, attempts = 0.05, 0

        def gave_up(last: Unavailable) -> Unavailable:
            return given_up(act.name, attempts, time.monotonic() - began, limit_s, last)

        while True:
            attempts += 1
            session = self._open_session()
            try:
                reply = await session.call(act.name, data, max(deadline - time.monotonic(), 0.001), wait_s)
            except TimeoutError as e:
                raise unanswered(limit_s, effect=session.was_open and bool(act.audits)) from e
            except Unavailable as error:
                self._was_there |= session.was_open
                nowhere = not self._was_there and self._turn >= len(self._access.addresses)
                again = repeatable or not session.was_open
                if nowhere or not again:
                    raise
                if time.monotonic() + pause_s >= deadline:
                    raise gave_up(error) from error
            else:
                self._was_there = True
                if not reply.code:
                    return reply.reply
                refusal = error_for(reply.code, reply.error)
                if not isinstance(refusal, Unavailable):
                    raise refusal
                if not repeatable or time.monotonic() + pause_s >= min(deadline, unavailable_until):
                    raise gave_up(refusal)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, 1.0)

    def _open_session(self) -> ClientSession:
        """The stream that is open, or one to the next address."""
        if self._session is None or self._session.is_over:
            addresses = self._access.addresses
            address = addresses[self._turn % len(addresses)]
            self._turn += 1
            if address not in self._channels:
                self._channels[address] = self._access.channel(address)
            self._session = ClientSession(self._channels[address], self._metadata, address)
        return self._session
