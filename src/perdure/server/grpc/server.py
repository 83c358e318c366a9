"""The gRPC side of a server: the worker stream and the Runs service, on one port, over the same engine as REST.

Every method names the permission it needs in METHODS; one that does not is not served. The namespace comes from the credential, once,
and everything a call names is looked up inside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn, Protocol

import grpc
import msgspec
from google.protobuf.message import DecodeError

from perdure.core import ids
from perdure.core.access import Permission, Principal
from perdure.core.deadlines import unanswered
from perdure.core.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    PerdureError,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from perdure.core.limits import (
    CALL_TIMEOUT_S,
    CALL_TIMEOUT_S_MAX,
    GRPC_CONNECTIONS_MAX,
    GRPC_HANDSHAKE_S,
    GRPC_IDLE_S,
    GRPC_STREAMS_PER_CONNECTION_MAX,
    UPDATE_WAIT_S_MAX,
)
from perdure.core.messages import CancelAsked
from perdure.core.work import Outcome, StartRequest
from perdure.engine.api.approvals import Approvals, Ballot, link_url
from perdure.engine.api.runs import UseCases
from perdure.engine.api.schedules import Schedules
from perdure.engine.engine import Engine
from perdure.server.auth.authenticator import SeveralCredentials
from perdure.server.auth.ports import Detail
from perdure.server.grpc.connection import Connection
from perdure.server.grpc.health import Reasons, add_health
from perdure.server.grpc.hub import WorkerHub
from perdure.server.grpc.schedules import answer, audited
from perdure.server.grpc.status import CODE_KEY, status_of
from perdure.wire import protocol, runs
from perdure.wire.schedules import Asked, decode_asked, encode_answered

log = logging.getLogger("perdure.server")

WORKERS: Final = "perdure.v1.Workers"
RUNS: Final = "perdure.v1.Runs"
METHODS: Final[dict[str, Permission | None]] = {
    f"{WORKERS}/Connect": Permission.WORK,
    f"{WORKERS}/Beat": Permission.WORK,
    f"{RUNS}/Start": Permission.START,
    f"{RUNS}/Run": Permission.START,
    f"{RUNS}/Outcome": Permission.READ,
    f"{RUNS}/Describe": Permission.READ,
    f"{RUNS}/Find": Permission.READ,
    f"{RUNS}/History": Permission.READ,
    f"{RUNS}/ReadState": Permission.READ,
    f"{RUNS}/Cancel": Permission.OPERATE,
    f"{RUNS}/Signal": Permission.OPERATE,
    f"{RUNS}/SignalWithStart": Permission.OPERATE,
    f"{RUNS}/Emit": Permission.OPERATE,
    f"{RUNS}/Resolve": Permission.OPERATE,
    f"{RUNS}/Vote": Permission.OPERATE,
    f"{RUNS}/Delegate": Permission.OPERATE,
    f"{RUNS}/Link": Permission.OPERATE,
    f"{RUNS}/Update": Permission.OPERATE,
    f"{RUNS}/Resume": Permission.OPERATE,
    f"{RUNS}/Retry": Permission.OPERATE,
    f"{RUNS}/ReadSchedule": Permission.READ,
    f"{RUNS}/OperateSchedule": Permission.OPERATE,
    f"{RUNS}/ChangeSchedule": Permission.DEVELOP,
    f"{RUNS}/Session": None,
}
"""None: anybody who is somebody. Calls inside a session are each checked against their own line."""
WAIT_MS_MAX: Final = 60_000
"""How long one Outcome or Run call may wait; the client asks again."""
RECHECK_S: Final = 5.0
"""How often the credential of an open stream is looked at again."""
HELLO_S_MAX: Final = 10.0
SESSION_CALLS_MAX: Final = 10_000
"""Calls of one session that wait for their answer."""
CALLS_MAX: Final = 20_000
"""Calls and streams under way at once."""
STOP_GRACE_S: Final = 5.0
EXPIRY_SHARE: Final = 0.1
"""Of a call's time: that much later it is answered for it, whatever it is doing."""


class Auth(Protocol):
    async def check(self, headers: Mapping[str, str], permission: Permission | None) -> Principal: ...
    async def recheck(self, principal: Principal) -> bool: ...
    def admit(self, principal: Principal) -> None: ...


class Tls(msgspec.Struct, frozen=True):
    """PEM files' contents. With `client_ca` only workers and clients with a certificate of that authority are let in."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None


Record = Callable[[Principal, str, str, int, Detail | None], Awaitable[None]]
"""(who, action, target, namespace, detail) into the audit log."""


class GrpcServer:
    def __init__(
        self,
        engine: Engine,
        hub: WorkerHub,
        auth: Auth,
        address: str,
        *,
        tls: Tls | None = None,
        audit: Record | None = None,
        connections_max: int = GRPC_CONNECTIONS_MAX,
        not_ready: Reasons | None = None,
    ) -> None:
        self._not_ready = not_ready
        self._engine, self._hub, self._auth, self._audit = engine, hub, auth, audit
        self._address, self._tls, self._connections_max = address, tls, connections_max
        self.port = 0
        self.approvals: Approvals | None = None
        self.public_url = ""
        """Where the pages are that links lead to."""
        self._server: Any = None
        self._streams: dict[Connection | Session, Principal] = {}
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
        server.add_generic_rpc_handlers((self._handlers(WORKERS), self._handlers(RUNS)))
        if self._not_ready is not None:
            add_health(server, self._not_ready, (WORKERS, RUNS))
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
        made: dict[str, Any] = {}
        for full, permission in METHODS.items():
            owner, _, name = full.partition("/")
            if owner != service:
                continue
            if full == f"{WORKERS}/Connect":
                made[name] = grpc.stream_stream_rpc_method_handler(self._connect)
            elif full == f"{RUNS}/Session":
                made[name] = grpc.stream_stream_rpc_method_handler(self._session)
            else:
                made[name] = grpc.unary_unary_rpc_method_handler(self._unary(full, permission))
        return grpc.method_handlers_generic_handler(service, made)

    # -- unary calls ------------------------------------------------------------------------------------------------

    def _unary(self, full: str, permission: Permission | None) -> Callable[[bytes, Any], Awaitable[bytes]]:
        call = _CALLS[full]

        async def handle(request: bytes, context: Any) -> bytes:
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S + _waits_s(full)):
                    caller = await self._caller(context, permission)
                    return await call(self, caller, request)
            except PerdureError as e:
                await _abort(context, e)
            except TimeoutError:
                await _abort(context, _unanswered(full, CALL_TIMEOUT_S))
            except (DecodeError, msgspec.DecodeError, UnicodeDecodeError) as e:
                await _abort(context, InvalidInput(f"the request cannot be read: {e}"))
            except Exception:
                log.exception("%s failed", full)
                await context.abort(grpc.StatusCode.INTERNAL, "internal error; the server's log has the details")
            raise AssertionError("aborted above")

        return handle

    async def _caller(self, context: Any, permission: Permission | None) -> Caller:
        given = [(key.lower(), value) for key, value in context.invocation_metadata() or () if isinstance(value, str)]
        if sum(key == "authorization" for key, _ in given) > 1:
            raise SeveralCredentials(
                "there is more than one authorization entry: send one, so that it is clear who asks"
            )
        metadata = dict(given)
        principal = await self._auth.check(metadata, permission)
        asked = metadata.get("perdure-namespace")
        namespace = asked or principal.namespace or self._engine.settings.namespace
        if not principal.sees(namespace):
            raise NotFound(f"there is no namespace {namespace!r}")
        return Caller(principal, namespace, await self._engine.use_of(namespace))

    async def record(self, caller: Caller, action: str, target: bytes | str, **detail: str | int) -> None:
        """As REST does: the same action and the same details for the same act; a run is named by its text id."""
        if self._audit is not None:
            shown = target if isinstance(target, str) else ids.text(target)
            await self._audit(caller.principal, action, shown, caller.use.ns, dict(detail))

    # -- many calls over one stream ----------------------------------------------------------------------------------

    async def _session(self, _: Any, context: Any) -> None:
        try:
            caller = await self._caller(context, METHODS[f"{RUNS}/Session"])
            await context.send_initial_metadata(())  # accepted: from here on calls may arrive
            session = Session(self, caller, self._auth, context)
            self._streams[session] = caller.principal
            try:
                await session.run()
            finally:
                del self._streams[session]
        except PerdureError as e:
            await _abort(context, e)
        except (DecodeError, msgspec.DecodeError) as e:
            await _abort(context, InvalidInput(f"a message cannot be read: {e}"))

    # -- the worker stream ------------------------------------------------------------------------------------------

    async def _connect(self, _: Any, context: Any) -> None:
        try:
            caller = await self._caller(context, Permission.WORK)
            async with asyncio.timeout(HELLO_S_MAX):
                first = await context.read()
            if first is grpc.aio.EOF:
                return
            up = protocol.decode_up(first)
            if up.hello is None:
                raise InvalidInput("the first message of a worker must be its hello")
            connection = self._hub.join(up.hello, caller.use.ns, caller.namespace)
        except PerdureError as e:
            await _abort(context, e)
        except TimeoutError:
            await _abort(context, InvalidInput(f"no hello within {HELLO_S_MAX:g} s"))
        except (DecodeError, msgspec.DecodeError) as e:
            await _abort(context, InvalidInput(f"the first message cannot be read: {e}"))
        try:
            await self._talk(connection, up, caller, context)
        finally:
            self._hub.left(connection)

    async def _talk(self, connection: Connection, first: protocol.Up, caller: Caller, context: Any) -> None:
        """Until either side ends it. Both directions end together."""
        work = [
            asyncio.create_task(self._send(connection, context)),
            asyncio.create_task(self._receive(connection, first, context)),
        ]
        self._streams[connection] = caller.principal
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
        self._hub.received(connection, first)
        while True:
            data = await context.read()
            if data is grpc.aio.EOF:
                return
            try:
                up = protocol.decode_up(data)
            except (DecodeError, msgspec.DecodeError) as e:
                raise InvalidInput(f"a message of the worker cannot be read: {e}") from e
            self._hub.received(connection, up)

    async def _watch(self) -> None:
        """A worker that is silent is gone, and whoever's key was revoked must go. Each principal is looked at once."""
        while True:
            await asyncio.sleep(RECHECK_S)
            for connection in list(self._streams):
                if isinstance(connection, Connection) and self._hub.is_silent(connection):
                    connection.end(Unavailable("this worker has not been heard of for too long"))
            for principal in set(self._streams.values()):
                try:
                    welcome = await self._auth.recheck(principal)
                except Exception as e:  # the database is away for a moment; that is no reason to cut anybody off
                    log.warning("the credential of %s could not be looked at again: %s", principal.subject, e)
                    continue
                if not welcome:
                    for stream in [s for s, owner in self._streams.items() if owner == principal]:
                        stream.end(Unauthenticated("this credential is no longer valid"))

    # -- methods ----------------------------------------------------------------------------------------------------

    async def beat(self, caller: Caller, request: bytes) -> bytes:
        worker_id, beats = protocol.decode_beats(request)
        connection = self._hub.find(worker_id)
        if connection is None or connection.ns != caller.use.ns:
            return protocol.encode_beat_reply(unknown=True)
        self._hub.take_beats(connection, beats)
        return protocol.encode_beat_reply(unknown=False)

    async def start_run(self, caller: Caller, request: bytes) -> bytes:
        return runs.encode_id(await self._started(caller, runs.decode_start(request, caller.namespace)))

    async def _started(self, caller: Caller, asked: StartRequest) -> bytes:
        run_id, created = await caller.use.started(asked, caller.within_s)
        if created:
            await self.record(caller, "run.start", run_id, workflow=asked.workflow)
        return run_id

    async def run(self, caller: Caller, request: bytes) -> bytes:
        """Start and wait. A client that has to ask again does so with Outcome."""
        run_id = await self._started(caller, runs.decode_start(request, caller.namespace))
        return runs.encode_outcome(run_id, await self._outcome(caller, run_id, WAIT_MS_MAX))

    async def outcome(self, caller: Caller, request: bytes) -> bytes:
        run_id, wait_ms = runs.decode_run(request)
        return runs.encode_outcome(run_id, await self._outcome(caller, run_id, wait_ms or WAIT_MS_MAX))

    async def _outcome(self, caller: Caller, run_id: bytes, wait_ms: int) -> Outcome | None:
        run = self._engine.run_in_memory(run_id)
        known = run is not None and run.ns == caller.use.ns
        try:
            async with asyncio.timeout(min(wait_ms, WAIT_MS_MAX) / 1000):
                return await caller.use.outcome(run_id, known=known)
        except TimeoutError:
            return None

    async def describe(self, caller: Caller, request: bytes) -> bytes:
        return runs.encode_view(await caller.use.describe(runs.decode_run(request)[0]))

    async def find(self, caller: Caller, request: bytes) -> bytes:
        return runs.encode_id(await caller.use.run_of(runs.decode_find(request)))

    async def history(self, caller: Caller, request: bytes) -> bytes:
        run_id, after = runs.decode_history_request(request)
        found = await caller.use.history(run_id, after)
        if not found:
            await caller.use.describe(run_id)  # NotFound for a run that is not there
        return runs.encode_history(found)

    async def read_state(self, caller: Caller, request: bytes) -> bytes:
        run_id, name = runs.decode_name(request)
        value = await caller.use.read_state(run_id, name)
        if value is None:
            await caller.use.describe(run_id)  # NotFound for a run that is not there
        return runs.encode_value(value)

    async def cancel(self, caller: Caller, request: bytes) -> bytes:
        run_id, reason = runs.decode_cancel(request)
        await caller.use.post(run_id, CancelAsked(reason))
        await self.record(caller, "run.cancel", run_id)
        return runs.EMPTY

    async def signal(self, caller: Caller, request: bytes) -> bytes:
        run_id, mail, key = runs.decode_signal(request)
        sent = await caller.use.post(run_id, mail, key)
        if sent:
            await self.record(caller, "run.signal", run_id, name=mail.name)
        return runs.encode_sent(sent)

    async def signal_with_start(self, caller: Caller, request: bytes) -> bytes:
        """Sending is what its line in METHODS is for; starting needs a permission of its own."""
        if not caller.principal.may(Permission.START):
            raise Forbidden(f"{caller.principal.subject} has no permission to start runs")
        asked = runs.decode_signal_with_start(request, caller.namespace)
        run_id, started = await caller.use.signal_with_start(*asked)
        if started:
            await self.record(caller, "run.start", run_id, workflow=asked[0].workflow)
        await self.record(caller, "run.signal", run_id, name=asked[1].name)
        return runs.encode_signalled(run_id, started)

    async def emit(self, caller: Caller, request: bytes) -> bytes:
        name, value, key = runs.decode_emit(request)
        source = caller.principal.subject
        found = await self._engine.named_events.emit(caller.use.ns, name, value, key=key, source=source)
        if found.fresh:
            await self.record(caller, "event.emit", name, id=found.id)
        return runs.encode_sent(found.fresh)

    async def resolve(self, caller: Caller, request: bytes) -> bytes:
        run_id, name, value = runs.decode_message(request)
        if self.approvals is not None:
            await self.approvals.check_resolve(caller.use, run_id, name, caller.principal)
        await caller.use.resolve(run_id, name, value, sure=caller.principal.may(Permission.ADMIN))
        await self.record(caller, "run.resolve", run_id, name=name)
        return runs.EMPTY

    async def vote(self, caller: Caller, request: bytes) -> bytes:
        v = runs.decode_vote(request)
        actor = await self._approvals.actor(caller.principal, v.by, "sdk")
        ballot = Ballot(v.approved, msgspec.json.decode(v.value or b"null"), v.comment)
        after = await self._approvals.vote(caller.use, v.run_id, v.name, actor, ballot)
        return runs.encode_voted(after.resolved_us is not None)

    async def delegate(self, caller: Caller, request: bytes) -> bytes:
        run_id, name, to, by = runs.decode_delegate(request)
        actor = await self._approvals.actor(caller.principal, by, "sdk")
        await self._approvals.delegate(caller.use, run_id, name, actor, to)
        return runs.EMPTY

    async def link(self, caller: Caller, request: bytes) -> bytes:
        run_id, kind, name, who, lasts_us = runs.decode_link_request(request)
        actor = await self._approvals.actor(caller.principal, None, "sdk")
        token, _ = await self._approvals.issue(
            caller.use, caller.namespace, kind, run_id, name, actor, who, lasts_us or None
        )
        return runs.encode_link(link_url(self.public_url, token))

    @property
    def _approvals(self) -> Approvals:
        if self.approvals is None:
            raise Unavailable("this server has no approvals")
        return self.approvals

    async def update(self, caller: Caller, request: bytes) -> bytes:
        run_id, asked, wait_ms = runs.decode_update(request)
        answer = await self._engine.updates.ask(caller.use, run_id, asked, min(wait_ms / 1000, UPDATE_WAIT_S_MAX))
        await self.record(caller, "run.update", run_id, name=asked.name)
        return runs.encode_answer(answer)

    async def resume(self, caller: Caller, request: bytes) -> bytes:
        run_id, _ = runs.decode_run(request)
        await caller.use.resume(run_id)
        await self.record(caller, "run.resume", run_id)
        return runs.encode_resumed(True)

    async def retry(self, caller: Caller, request: bytes) -> bytes:
        run_id, _ = runs.decode_run(request)
        await caller.use.retry(run_id, caller.principal.subject)
        await self.record(caller, "run.retry", run_id)
        return runs.EMPTY

    async def read_schedule(self, caller: Caller, request: bytes) -> bytes:
        return await self._schedule(caller, decode_asked(request, "ReadSchedule"))

    async def operate_schedule(self, caller: Caller, request: bytes) -> bytes:
        return await self._schedule(caller, decode_asked(request, "OperateSchedule"))

    async def change_schedule(self, caller: Caller, request: bytes) -> bytes:
        return await self._schedule(caller, decode_asked(request, "ChangeSchedule"))

    async def _schedule(self, caller: Caller, asked: Asked) -> bytes:
        use = Schedules(self._engine.scheduler, caller.use.ns, caller.principal.subject)
        answered = await answer(use, asked)
        line = audited(asked)
        if line is not None and self._audit is not None:
            await self._audit(caller.principal, *line, caller.use.ns, None)
        return encode_answered(answered)


class Session:
    """A client's calls, answered as they come to an end, many to a message."""

    def __init__(self, server: GrpcServer, caller: Caller, auth: Auth, context: Any) -> None:
        self._server, self._caller, self._auth, self._context = server, caller, auth, context
        self._replies: list[runs.Reply] = []
        self._news = asyncio.Event()
        self._calls: dict[int, asyncio.Task[None]] = {}
        """Calls that have no answer yet, by their ids."""
        self._ending: set[asyncio.Task[None]] = set()
        """Calls that were answered for them, or given up, and have yet to notice."""
        self._over: asyncio.Future[PerdureError] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        work = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]
        try:
            await asyncio.wait(set[asyncio.Future[Any]]([*work, self._over]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = [*work, *self._calls.values(), *self._ending]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._over.done():
            raise self._over.result()
        error = next((e for task in work if task.done() and not task.cancelled() and (e := task.exception())), None)
        if isinstance(error, PerdureError | DecodeError | msgspec.DecodeError):
            raise error

    def end(self, why: PerdureError) -> None:
        if not self._over.done():
            self._over.set_result(why)

    async def _receive(self) -> None:
        while (data := await self._context.read()) is not grpc.aio.EOF:
            calls, given_up = runs.decode_calls(data)
            for id in given_up:
                self._drop(id)
            for call in calls:
                if call.id in self._calls:
                    self._answer(runs.Reply(call.id, b"", InvalidInput.code, f"the call id {call.id} is in use"))
                    continue
                if len(self._calls) + len(self._ending) >= SESSION_CALLS_MAX:
                    limit = f"this session has SESSION_CALLS_MAX={SESSION_CALLS_MAX} calls under way"
                    self._answer(runs.Reply(call.id, b"", RateLimited.code, limit))
                    continue
                self._calls[call.id] = asyncio.create_task(self._handle(call))

    def _drop(self, id: int) -> None:
        """The answer is not waited for any more, or was given: what the call does is stopped where it can be."""
        task = self._calls.pop(id, None)
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    def _expire(self, call: runs.Call, within_s: float) -> None:
        """Nothing a call waits for, nor what it does when it is cancelled, keeps its caller beyond the limit."""
        if call.id in self._calls:
            error = _unanswered(call.method, within_s)
            self._answer(runs.Reply(call.id, b"", error.code, str(error)))
            self._drop(call.id)

    async def _handle(self, call: runs.Call) -> None:
        within_s = min(call.timeout_ms / 1000, CALL_TIMEOUT_S_MAX) or CALL_TIMEOUT_S
        limit_s = within_s + EXPIRY_SHARE * within_s + _waits_s(call.method)
        timer = asyncio.get_running_loop().call_later(limit_s, self._expire, call, within_s)
        try:
            reply = await self._replied(call, within_s)
        finally:
            timer.cancel()
        if self._calls.pop(call.id, None) is not None:
            self._answer(reply)

    async def _replied(self, call: runs.Call, within_s: float) -> runs.Reply:
        full = f"{RUNS}/{call.method}"
        method = _CALLS.get(full)
        caller = self._caller
        if within_s != caller.within_s:
            caller = msgspec.structs.replace(caller, within_s=within_s)
        try:
            if method is None:
                raise InvalidInput(f"there is no method {call.method!r}")
            self._auth.admit(self._caller.principal)
            permission = METHODS[full]
            if permission is None or not self._caller.principal.may(permission):
                raise Forbidden(f"{self._caller.principal.subject} has no permission for {call.method}")
            return runs.Reply(call.id, await method(self._server, caller, call.request))
        except PerdureError as e:
            return runs.Reply(call.id, b"", e.code, str(e))
        except (DecodeError, msgspec.DecodeError, UnicodeDecodeError) as e:
            return runs.Reply(call.id, b"", InvalidInput.code, f"the request cannot be read: {e}")
        except Exception:
            log.exception("%s failed", full)
            return runs.Reply(call.id, b"", "internal", "internal error; the server's log has the details")

    def _answer(self, reply: runs.Reply) -> None:
        self._replies.append(reply)
        self._news.set()

    async def _send(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._replies:
                part, self._replies = _fitting(self._replies)
                await self._context.write(runs.encode_replies(part))


def _fitting(replies: list[runs.Reply]) -> tuple[list[runs.Reply], list[runs.Reply]]:
    """As many as fit into a message, and the rest."""
    room = protocol.PART_BYTES
    for i, reply in enumerate(replies):
        room -= 32 + len(reply.reply)
        if room < 0 and i:
            return replies[:i], replies[i:]
    return replies, []


class Caller(msgspec.Struct, frozen=True):
    principal: Principal
    namespace: str
    use: UseCases
    within_s: float = CALL_TIMEOUT_S
    """In which this call is to be answered."""


def _waits_s(method: str) -> float:
    """How long a call may wait by design, beside what it does."""
    match method.rpartition("/")[2]:
        case "Run" | "Outcome":
            return WAIT_MS_MAX / 1000
        case "Update":
            return UPDATE_WAIT_S_MAX
        case _:
            return 0.0


def _unanswered(method: str, seconds: float) -> Unavailable:
    return unanswered(seconds, effect=METHODS.get(f"{RUNS}/{method.rpartition('/')[2]}") is not Permission.READ)


_CALLS: Final[dict[str, Callable[[GrpcServer, Caller, bytes], Awaitable[bytes]]]] = {
    f"{WORKERS}/Beat": GrpcServer.beat,
    f"{RUNS}/Start": GrpcServer.start_run,
    f"{RUNS}/Run": GrpcServer.run,
    f"{RUNS}/Outcome": GrpcServer.outcome,
    f"{RUNS}/Describe": GrpcServer.describe,
    f"{RUNS}/Find": GrpcServer.find,
    f"{RUNS}/History": GrpcServer.history,
    f"{RUNS}/ReadState": GrpcServer.read_state,
    f"{RUNS}/Cancel": GrpcServer.cancel,
    f"{RUNS}/Signal": GrpcServer.signal,
    f"{RUNS}/SignalWithStart": GrpcServer.signal_with_start,
    f"{RUNS}/Emit": GrpcServer.emit,
    f"{RUNS}/Resolve": GrpcServer.resolve,
    f"{RUNS}/Vote": GrpcServer.vote,
    f"{RUNS}/Delegate": GrpcServer.delegate,
    f"{RUNS}/Link": GrpcServer.link,
    f"{RUNS}/Update": GrpcServer.update,
    f"{RUNS}/Resume": GrpcServer.resume,
    f"{RUNS}/Retry": GrpcServer.retry,
    f"{RUNS}/ReadSchedule": GrpcServer.read_schedule,
    f"{RUNS}/OperateSchedule": GrpcServer.operate_schedule,
    f"{RUNS}/ChangeSchedule": GrpcServer.change_schedule,
}


async def _abort(context: Any, error: PerdureError) -> NoReturn:
    await context.abort(status_of(error), str(error), ((CODE_KEY, error.code),))
    raise AssertionError("abort raises")
