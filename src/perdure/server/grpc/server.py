"""The gRPC side of a server: the worker stream and the acts of the API, on one port, over the same engine as REST.

The namespace comes from the credential, once, and everything a call names is looked up inside it. Which permission a call needs is a
field of its act.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn, Protocol

import grpc
import msgspec
from google.protobuf.message import DecodeError

from perdure.core.access import Permission, Principal, namespace_of
from perdure.core.deadlines import unanswered
from perdure.core.errors import InvalidInput, PerdureError, Unauthenticated, Unavailable
from perdure.core.limits import (
    CALL_TIMEOUT_S,
    GRPC_CONNECTIONS_MAX,
    GRPC_HANDSHAKE_S,
    GRPC_IDLE_S,
    GRPC_STREAMS_PER_CONNECTION_MAX,
)
from perdure.engine.api.api import Api, Caller, NamespaceApi
from perdure.server.auth.authenticator import SeveralCredentials
from perdure.server.grpc.connection import Connection
from perdure.server.grpc.health import Reasons, add_health
from perdure.server.grpc.hello import check_hello
from perdure.server.grpc.hub import WorkerHub
from perdure.server.grpc.session import CallSession, answer, clock_us
from perdure.server.grpc.status import CODE_KEY, status_of
from perdure.wire import acts, protocol

log = logging.getLogger("perdure.server")

WORKERS: Final = "perdure.v1.Workers"
METHODS: Final[dict[str, Permission | None]] = {
    f"{WORKERS}/Connect": Permission.WORK,
    f"{WORKERS}/Beat": Permission.WORK,
    f"{acts.SERVICE}/Call": None,
    f"{acts.SERVICE}/Session": None,
}
"""None: any authenticated principal; each call inside is checked against its act."""
RECHECK_S: Final = 5.0
"""How often the credential of an open stream is checked again."""
HELLO_S_MAX: Final = 10.0
CALLS_MAX: Final = 20_000
"""Calls and streams under way at once."""
STOP_GRACE_S: Final = 5.0


class GrpcAuth(Protocol):
    async def check(self, headers: Mapping[str, str], permission: Permission | None) -> Principal: ...
    async def recheck(self, principal: Principal) -> bool: ...
    def admit(self, principal: Principal) -> None: ...


class ServerTls(msgspec.Struct, frozen=True):
    """PEM files' contents. With `client_ca` only workers and clients with a certificate of that authority are let in."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None


class GrpcServer:
    def __init__(
        self,
        api: Api,
        hub: WorkerHub,
        auth: GrpcAuth,
        address: str,
        *,
        tls: ServerTls | None = None,
        connections_max: int = GRPC_CONNECTIONS_MAX,
        not_ready: Reasons | None = None,
    ) -> None:
        self._not_ready = not_ready
        self._api, self._hub, self._messages, self._auth = api, hub, hub.messages, auth
        self._address, self._tls, self._connections_max = address, tls, connections_max
        self.port = 0
        self._server: Any = None
        self._streams: dict[Connection | CallSession, Principal] = {}
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        options = [
            *protocol.CHANNEL_OPTIONS,
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.max_concurrent_streams", GRPC_STREAMS_PER_CONNECTION_MAX),
            ("grpc.max_allowed_incoming_connections", self._connections_max),
            ("grpc.server_handshake_timeout_ms", GRPC_HANDSHAKE_S * 1000),
            ("grpc.max_connection_idle_ms", GRPC_IDLE_S * 1000),
            ("grpc.so_reuseport", 0),
        ]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
        server.add_generic_rpc_handlers((self._handlers(WORKERS), self._handlers(acts.SERVICE)))
        if self._not_ready is not None:
            add_health(server, self._not_ready, (WORKERS, acts.SERVICE))
        if self._tls is None:
            self.port = server.add_insecure_port(self._address)
        else:
            credentials = grpc.ssl_server_credentials(
                [(self._tls.key, self._tls.certificate)], self._tls.client_ca, self._tls.client_ca is not None
            )
            self.port = server.add_secure_port(self._address, credentials)
        await server.start()
        self._server = server
        self._watching = asyncio.create_task(self._watch(), name="perdure-streams")

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(grace_s)

    def _handlers(self, service: str) -> Any:
        made: dict[str, Any] = {
            WORKERS: {
                "Connect": grpc.stream_stream_rpc_method_handler(self._connect),  # pyrefly: ignore[bad-argument-type]
                "Beat": grpc.unary_unary_rpc_method_handler(self._unary(f"{WORKERS}/Beat", self._beat)),  # pyrefly: ignore[bad-argument-type]
            },
            acts.SERVICE: {
                "Session": grpc.stream_stream_rpc_method_handler(self._session),  # pyrefly: ignore[bad-argument-type]
                "Call": grpc.unary_unary_rpc_method_handler(self._unary(f"{acts.SERVICE}/Call", self._call)),  # pyrefly: ignore[bad-argument-type]
            },
        }[service]
        return grpc.method_handlers_generic_handler(service, made)

    def _unary(
        self, full: str, handler: Callable[[NamespaceApi, bytes], Awaitable[bytes]]
    ) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def handle(request: bytes, context: Any) -> bytes:
            try:
                return await handler(await self._opened(context, METHODS[full]), request)
            except PerdureError as e:
                await _abort(context, e)
            except (DecodeError, msgspec.DecodeError, UnicodeDecodeError) as e:
                await _abort(context, InvalidInput(f"the request cannot be read: {e}"))
            except Exception:
                log.exception("%s failed", full)
                await context.abort(grpc.StatusCode.INTERNAL, "internal error; the server's log has the details")
            raise AssertionError("aborted above")

        return handle

    async def _opened(self, context: Any, permission: Permission | None) -> NamespaceApi:
        given = [(key.lower(), value) for key, value in context.invocation_metadata() or () if isinstance(value, str)]
        if sum(key == "authorization" for key, _ in given) > 1:
            raise SeveralCredentials("there is more than one authorization entry: send exactly one")
        metadata = dict(given)
        principal = await self._auth.check(metadata, permission)
        asked = metadata.get("perdure-namespace") or principal.namespace or self._api.engine.settings.namespace
        return await self._api.of(Caller(principal, namespace_of(principal, asked), "sdk"))

    async def _call(self, api: NamespaceApi, data: bytes) -> bytes:
        name, request = acts.decode_call(data)
        act = acts.act_named(name)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S + act.wait_s_max):
                return acts.encode_call_reply(await answer(api, name, request))
        except TimeoutError:
            raise unanswered(CALL_TIMEOUT_S, effect=bool(act.audits)) from None

    async def _beat(self, api: NamespaceApi, request: bytes) -> bytes:
        worker_id, beats = protocol.decode_beats(request)
        connection = self._hub.find(worker_id)
        if connection is None or connection.ns != api.ns:
            return protocol.encode_beat_reply(unknown=True)
        self._messages.take_beats(connection, beats)
        return protocol.encode_beat_reply(unknown=False)

    async def _session(self, _: Any, context: Any) -> None:
        try:
            api = await self._opened(context, METHODS[f"{acts.SERVICE}/Session"])
            await context.send_initial_metadata(
                ((acts.CLOCK_KEY, str(clock_us())),)
            )  # accepted: from here on calls may arrive
            session = CallSession(api, self._auth.admit, context)
            self._streams[session] = api.caller.principal
            try:
                await session.run()
            finally:
                del self._streams[session]
        except PerdureError as e:
            await _abort(context, e)
        except (DecodeError, msgspec.DecodeError) as e:
            await _abort(context, InvalidInput(f"a message cannot be read: {e}"))

    async def _connect(self, _: Any, context: Any) -> None:
        try:
            api = await self._opened(context, Permission.WORK)
            async with asyncio.timeout(HELLO_S_MAX):
                first = await context.read()
            if first is grpc.aio.EOF:
                return
            up = protocol.decode_up(first)
            if up.hello is None:
                raise InvalidInput("the first message of a worker must be its hello")
            check_hello(up.hello)
            await self._api.engine.served.register(api.ns, up.hello.workflows)
            connection = self._hub.join(up.hello, api.ns, api.caller.namespace)
        except PerdureError as e:
            await _abort(context, e)
        except TimeoutError:
            await _abort(context, InvalidInput(f"no hello within {HELLO_S_MAX:g} s"))
        except (DecodeError, msgspec.DecodeError) as e:
            await _abort(context, InvalidInput(f"the first message cannot be read: {e}"))
        try:
            await self._talk(connection, up, api.caller.principal, context)
        finally:
            self._hub.left(connection)

    async def _talk(self, connection: Connection, first: protocol.Up, principal: Principal, context: Any) -> None:
        """Serve the stream until either side ends it. Both directions end together."""
        work = [
            asyncio.create_task(self._send(connection, context)),
            asyncio.create_task(self._receive(connection, first, context)),
        ]
        self._streams[connection] = principal
        try:
            await asyncio.wait(set[asyncio.Future[Any]]([*work, connection.over]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._streams[connection]
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        error: BaseException | None = connection.over.result() if connection.over.done() else None
        error = error or next(
            (e for task in work if task.done() and not task.cancelled() and (e := task.exception())), None
        )
        if isinstance(error, PerdureError):
            await _abort(context, error)
        elif error is not None and not isinstance(error, grpc.aio.AioRpcError | asyncio.CancelledError):
            log.warning("the stream of worker %s broke: %s: %s", connection.name, type(error).__name__, error)

    async def _send(self, connection: Connection, context: Any) -> None:
        while True:
            await context.write(protocol.encode_down(await connection.next_message(self._hub.clock_us)))

    async def _receive(self, connection: Connection, first: protocol.Up, context: Any) -> None:
        self._messages.received(connection, first)
        while True:
            data = await context.read()
            if data is grpc.aio.EOF:
                return
            try:
                up = protocol.decode_up(data)
            except (DecodeError, msgspec.DecodeError) as e:
                raise InvalidInput(f"a message of the worker cannot be read: {e}") from e
            self._messages.received(connection, up)

    async def _watch(self) -> None:
        """End the streams of silent workers and of revoked credentials. Each principal is checked once."""
        while True:
            await asyncio.sleep(RECHECK_S)
            for connection in list(self._streams):
                if isinstance(connection, Connection) and self._hub.is_silent(connection):
                    connection.end(Unavailable("this worker has not been heard of for too long"))
            for principal in set(self._streams.values()):
                try:
                    welcome = await self._auth.recheck(principal)
                except Exception as e:  # the database is briefly unavailable; keep the connection
                    log.warning("the credential of %s could not be looked at again: %s", principal.subject, e)
                    continue
                if not welcome:
                    for stream in [s for s, owner in self._streams.items() if owner == principal]:
                        stream.end(Unauthenticated("this credential is no longer valid"))


async def _abort(context: Any, error: PerdureError) -> NoReturn:
    await context.abort(status_of(error), str(error), ((CODE_KEY, error.code),))
    raise AssertionError("abort raises")
