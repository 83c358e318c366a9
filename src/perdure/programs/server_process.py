"""A server: one engine, REST and gRPC in front of it, in one event loop. Any number of them share a database.

    start   store -> engine -> gRPC -> REST: the ports open only when there is something behind them
    stop    not ready (load balancers and workers turn away) -> REST ends its requests -> the engine hands back its runs -> gRPC -> store

The second signal ends the process at once: the database holds everything that was acknowledged, and other servers take over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Route

from perdure.app.api_ports import api_ports
from perdure.app.gc_tuning import CollectorPace
from perdure.app.outbox import outbox
from perdure.app.payload_keys import use_sealing
from perdure.app.secret_box import SecretBox
from perdure.app.tracing import Tracing
from perdure.core.errors import Conflict, InvalidInput, Unavailable
from perdure.core.limits import PEER_SILENT_S
from perdure.engine.api.api import Api
from perdure.engine.api.bulk_work import BulkWork
from perdure.engine.api.sql_requests import SqlRequests
from perdure.engine.engine import Engine
from perdure.engine.services.stalls import StallWatch
from perdure.programs.connections import descriptors
from perdure.programs.http_server import HttpServer
from perdure.programs.logs import exported
from perdure.programs.settings import Address, ServerSettings, TlsFiles
from perdure.programs.signals import signals
from perdure.programs.task_signatures import TaskTypes
from perdure.server import health
from perdure.server.auth import Authenticator, OidcSignIn, OpenAccess, Tokens, WebSessions
from perdure.server.context import Server
from perdure.server.grpc.connected_workers import ConnectedWorkers
from perdure.server.grpc.hub import WorkerHub
from perdure.server.grpc.server import GrpcServer, ServerTls
from perdure.server.metrics import Metrics
from perdure.server.rest.app import create_app, prepare
from perdure.store.api_keys import Keys
from perdure.store.connections import Connections
from perdure.store.definitions import PostgresDefinitions
from perdure.store.engine_stores import engine_stores
from perdure.store.migrate import check, migrate
from perdure.store.postgres import PostgresStore
from perdure.store.reads import PostgresReads
from perdure.store.telemetry import PostgresTelemetry
from perdure.store.web_sessions import PostgresWebSessions
from perdure.wire import otlp

log = logging.getLogger("perdure.server")

SERVICE: Final = "perdure-server"
BACKLOG: Final = 1024
GRPC_SHARE: Final = 0.1
"""Part of the drain time for the last messages of workers; then their streams are cut, and they connect elsewhere."""
HTTP_SHARE: Final = 0.25
"""Part of the drain time for running requests."""


class ServerProcess:
    """All parts of a server. `start` returns when it can be used, `stop` when its runs are released."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.url = ""
        self.http, self.grpc = settings.http, settings.grpc
        self.server: Server
        self.is_draining = False
        self._stack = AsyncExitStack()
        self._app: FastAPI
        self._workers: ConnectedWorkers
        self._doors: list[HttpServer] = []
        self._bounds = settings.connections

    async def start(self) -> None:
        s = self.settings
        if not s.dsn:
            raise InvalidInput("no database: pass --dsn or set PERDURE_DSN")
        for warning in s.warnings():
            log.warning("%s", warning)
        self._bounds = s.connections.within(descriptors())
        try:
            http = self._listen(s.http, "--http")
            metrics = self._listen(s.metrics, "--metrics") if s.metrics is not None else None
            listen(s.grpc, "--grpc").close()  # gRPC would bind the port itself, with a less helpful error
            await self._open(http, metrics)
        except BaseException:
            await self._stack.aclose()
            raise

    def _listen(self, address: Address, option: str) -> socket.socket:
        sock = listen(address, option)
        self._stack.callback(sock.close)
        return sock

    async def _open(self, http: socket.socket, metrics: socket.socket | None) -> None:
        s = self.settings
        prepare()
        await (migrate(s.dsn) if s.migrate else check(s.dsn))
        await use_sealing(s.dsn, s.sealing, os.environ)
        store, reads, registry = PostgresStore(s.dsn), PostgresReads(s.dsn), PostgresDefinitions(s.dsn)
        for one in (store, reads, registry):
            self._stack.push_async_callback(one.close)
            await one.open()
        notes = PostgresTelemetry(store.pool)
        workers = self._workers = ConnectedWorkers()
        engine = Engine(engine_stores(store), workers, s.engine_settings)
        hub = WorkerHub(engine, workers)
        types = TaskTypes(registry)
        engine.events.task_signatures_received.subscribe(types.received)
        self._stack.push_async_callback(types.close)
        tracing = Tracing(SERVICE)
        tracing.trace_runs(engine)
        self._stack.push_async_callback(tracing.close)
        pace = CollectorPace()
        pace.slow_down()
        self._stack.callback(pace.restore)
        stalls = StallWatch(engine.counters)
        stalls.start()
        self._stack.callback(stalls.stop)
        await engine.open()
        hub.start()
        tokens = Tokens(s.oidc) if s.oidc is not None else None
        auth = OpenAccess(s.http.host, s.dev_token) if s.auth == "open" else Authenticator(Keys(store.pool), tokens)
        ports = api_ports(store, reads=reads, definitions=registry, secrets=SecretBox(s.secret_keys))
        api = Api(engine, ports, lambda: self.url)
        engine.add_service(BulkWork(api))
        engine.add_service(SqlRequests(api))
        engine.add_service(outbox(api, s.notify_settings))
        # No web page can make a browser send gRPC requests: the token of `perdure dev` is for HTTP alone.
        grpc = GrpcServer(
            api,
            hub,
            OpenAccess(s.grpc.host) if s.auth == "open" else auth,
            str(s.grpc),
            tls=grpc_tls(s.tls),
            connections_max=self._bounds.grpc_max,
            not_ready=health.Health(engine, notes, lambda: self.is_draining).reasons,
        )
        self.http = bound(http)
        self.url = s.url_of(self.http)
        self._stack.push_async_callback(grpc.stop, s.drain_s * GRPC_SHARE)
        self._stack.callback(hub.close)
        self._stack.push_async_callback(engine.close)
        await grpc.start()
        self.grpc = Address(s.grpc.host, grpc.port)
        self.server = signing_in(s, api, auth, tokens, store.pool)
        self._export_metrics(Metrics(engine, notes))
        await self._open_doors(http, metrics, health.routes(engine, notes, lambda: self.is_draining))

    def _export_metrics(self, figures: Metrics) -> None:
        if not otlp.wanted("metrics"):
            return
        from perdure.server.otlp_metrics import metrics_export

        export = metrics_export(figures, SERVICE)
        export.start()
        self._stack.push_async_callback(export.close)

    async def _open_doors(self, http: socket.socket, metrics: socket.socket | None, probes: list[Route]) -> None:
        """Metrics name namespaces and queues and need no credential: they are served on loopback or on a separate address only."""
        s = self.settings
        app = create_app(
            self.server,
            streams_max=self._bounds.streams_max,
            hosts=(*s.allowed_hosts, s.http.host),
            dev_token=s.dev_token,
        )
        self._app = app
        own = metrics is None and s.http.is_loopback
        app.router.routes[:0] = [route for route in probes if own or route.path != "/metrics"]
        self._doors.append(
            HttpServer(app, http, s.tls_of_http, s.drain_s * HTTP_SHARE, self._bounds, s.trusted_proxies)
        )
        if metrics is not None:
            self._doors.append(HttpServer(Starlette(routes=probes), metrics, None, 1.0, self._bounds))
        for door in self._doors:
            await door.start()

    async def stop(self) -> None:
        """Within `drain_s`, even if the database does not answer."""
        self.is_draining = True
        self.server.engine.drain()
        self._workers.go_away()
        try:
            async with asyncio.timeout(self.settings.drain_s):
                await asyncio.sleep(min(self.settings.not_ready_s, self.settings.drain_s / 4))
                self._app.state.streams.close()  # they would keep their connections open
                for door in self._doors:
                    await door.stop()
                await self._stack.aclose()
        except TimeoutError:
            log.warning("draining took longer than %g s; other servers take over the rest", self.settings.drain_s)


def signing_in(s: ServerSettings, api: Api, auth: Authenticator, tokens: Tokens | None, pool: Connections) -> Server:
    """The server with the ways in which browsers sign in; `--auth open` has none."""
    if s.auth == "open":
        return Server(api=api, auth=auth)
    sessions = WebSessions(PostgresWebSessions(pool), auth, lifetime_s=s.session_lifetime_s, idle_s=s.session_idle_s)
    oidc = None
    if tokens is not None and s.oidc is not None and s.oidc.client_id:
        oidc = OidcSignIn(s.oidc, tokens.keys, api.ports.approvals.secret)
    return Server(api=api, auth=auth, sessions=sessions, oidc=oidc)


def grpc_tls(files: TlsFiles | None) -> ServerTls | None:
    if files is None:
        return None
    client_ca = files.client_ca.read_bytes() if files.client_ca else None
    return ServerTls(files.cert.read_bytes(), files.key.read_bytes(), client_ca)


def listen(address: Address, option: str) -> socket.socket:
    """Take the port before anything else is opened, so that a conflict is reported first."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise Unavailable(f"{option}: {address.host!r} is not an address of this machine: {error.strerror}") from None
    sock = socket.socket(*found[:3])  # with the protocol: asyncio turns Nagle's delay off only where it reads TCP there
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Accepted connections inherit it: a peer that has vanished is noticed by what is sent to it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, PEER_SILENT_S * 1000)
    try:
        sock.bind(found[4])
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise Conflict(
            f"cannot listen on {address}: {(error.strerror or str(error)).lower()}. "
            f"Is another server running there? {option} takes another address."
        ) from None
    sock.setblocking(False)
    return sock


def bound(sock: socket.socket) -> Address:
    host, port = sock.getsockname()[:2]
    return Address(host, port)


async def serve(settings: ServerSettings, say: Callable[[str], None]) -> None:
    """Run a server until a signal stops it."""
    stop = asyncio.Event()
    async with signals(stop.set), exported(SERVICE):
        process = ServerProcess(settings)
        await process.start()
        CollectorPace().settle()
        say(f"Perdure is ready: {process.url}  workers: {process.grpc}  (Ctrl-C stops)")
        await stop.wait()
        say("stopping: waiting for running work; a second signal stops at once")
        await process.stop()
        say("stopped")
