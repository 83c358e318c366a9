"""uvicorn inside our loop: our socket, our signals, our logs, and bounds on what a client may hold.

uvicorn bounds how long a connection idles between two requests and nothing else. Here connections are accepted one by one into `Seats`, and
the protocol says at each step which state a connection is in and how long it may stay there:

    header   nothing, or part of a request's headers, has arrived      REQUEST_HEADER_S, then it is closed
    body     the headers are there, the body is not                    REQUEST_BODY_S, then it is closed
    answer   the application has the request                           as long as the application takes
    idle     it is answered                                            CONNECTION_IDLE_S, then it is closed
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Generator, Sequence
from ipaddress import ip_address, ip_network
from typing import Any, Final, Literal, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from perdure.core.errors import Unavailable
from perdure.programs.connections import ConnectionBounds, Seat, Seats
from perdure.programs.settings import TlsFiles

log = logging.getLogger("perdure.server")

ACCEPTS_PER_TURN: Final = 64
"""Connections accepted before the loop turns to other work."""
ACCEPT_PAUSE_S: Final = 1.0
"""Before the next connection is accepted when the system had no descriptor for one."""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

State = Literal["header", "body", "answer", "idle"]


class HttpServer:
    """One listening socket and the application behind it."""

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        tls: TlsFiles | None,
        grace_s: float,
        bounds: ConnectionBounds,
        trusted_proxies: Sequence[str] = (),
    ) -> None:
        """`trusted_proxies`: addresses and networks whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed. Of all others they are ignored."""
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            proxy_headers=bool(trusted_proxies),
            forwarded_allow_ips=list(trusted_proxies),
            timeout_graceful_shutdown=max(1, round(grace_s)),
            ssl_certfile=tls.cert if tls else None,
            ssl_keyfile=tls.key if tls else None,
            ssl_ca_certs=str(tls.client_ca) if tls and tls.client_ca else None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
        )
        self._server = _Uvicorn(config, bounds, trusted_proxies)
        self._socket = sock
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve([self._socket]), name="perdure-http")
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise Unavailable("the HTTP server ended before it had started; its log says why")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, bounds: ConnectionBounds, trusted_proxies: Sequence[str]) -> None:
        super().__init__(config)
        self._bounds, self._trusted = bounds, [ip_network(one) for one in trusted_proxies]

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals are the process's business."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, with a listener of ours in place of the loop's."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise Unavailable("the HTTP application did not start; its log says why")
        self.servers: list[Any] = []
        for sock in sockets or ():
            listener = Listener(self, sock, self._bounds, self._is_trusted)
            listener.start()
            self.servers.append(listener)
        self.started = True

    def _is_trusted(self, host: str) -> bool:
        """A proxy holds the connections of many clients."""
        address = ip_address(host.partition("%")[0])
        return any(address in network for network in self._trusted)


class Listener:
    """Accepts connections while there are seats. Has what uvicorn asks of a server: `close` and `wait_closed`."""

    def __init__(
        self, server: uvicorn.Server, sock: socket.socket, bounds: ConnectionBounds, is_trusted: Callable[[str], bool]
    ) -> None:
        self._server, self._socket, self._bounds = server, sock, bounds
        self._seats = Seats(bounds.http_max, bounds.per_address_max, is_trusted)
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        self._paused = None
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        self._is_closed = True
        if self._paused is not None:
            self._paused.cancel()
        else:
            self._loop.remove_reader(self._socket)
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.error("no connection can be accepted for %g s: %s", ACCEPT_PAUSE_S, error)
                self._loop.remove_reader(self._socket)
                self._paused = self._loop.call_later(ACCEPT_PAUSE_S, self.start)
                return
            accepted = Accepted()
            seat = self._seats.take(peer[0], accepted.close)
            if seat is None:
                connection.close()
                continue
            connection.setblocking(False)
            task = accepted.opening = self._loop.create_task(self._open(connection, seat, accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, seat: Seat, accepted: Accepted) -> None:
        """Up to the end of the TLS handshake, if there is one; then the protocol has it."""
        tls = self._server.config.ssl
        try:
            await self._loop.connect_accepted_socket(
                lambda: BoundedProtocol(self._server, self._seats, seat, accepted, self._bounds),
                connection,
                ssl=tls,
                ssl_handshake_timeout=self._bounds.header_s if tls else None,
            )
        except asyncio.CancelledError:
            self._seats.leave(seat)
            connection.close()
            if not self._is_closed:
                return  # its seat was given to another
            raise
        except (OSError, ssl.SSLError) as error:
            self._seats.leave(seat)
            log.info("a connection of %s ended in its TLS handshake: %s", seat.client, error)


class Accepted:
    """A connection: while it is being opened, a task; then a transport."""

    def __init__(self) -> None:
        self.opening: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 of one connection, with a deadline for each state but the application's."""

    def __init__(
        self, server: uvicorn.Server, seats: Seats, seat: Seat, accepted: Accepted, bounds: ConnectionBounds
    ) -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state, asyncio.get_running_loop())
        self._seats, self._seat, self._accepted, self._bounds = seats, seat, accepted, bounds
        self._state: State | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._accepted.transport = transport
        self._enter("header")

    def connection_lost(self, exc: Exception | None) -> None:
        self._seats.leave(self._seat)
        for timer in (self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._enter(self._where())

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._enter(self._where())

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._bounds.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _where(self) -> State:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn's type says that there always is one
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        if cycle is not None and not cycle.response_complete:
            return "answer"
        return "header" if cycle is None or self.conn.trailing_data[0] else "idle"

    def _enter(self, state: State) -> None:
        """A state that goes on keeps its deadline: bytes that trickle in do not move it."""
        if state == self._state or self.transport.is_closing():
            return
        self._state = state
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        (self._seats.works if state in ("body", "answer") else self._seats.waits)(self._seat)
        seconds = {"header": self._bounds.header_s, "body": self._bounds.body_s, "idle": self._bounds.idle_s}.get(state)
        if seconds is not None:
            self._deadline = self.loop.call_later(seconds, self._expired, seconds)

    def _expired(self, seconds: float) -> None:
        if self._state == "body" and self.flow.read_paused:  # the application has not taken what is there
            self._deadline = self.loop.call_later(seconds, self._expired, seconds)
            return
        self.transport.abort()
