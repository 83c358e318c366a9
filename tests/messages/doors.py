"""Doors: the ways by which a message or an act reaches an engine. Each one takes the acts of the API, and stories draw one for each call."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import httpx2
import msgspec
import uvicorn

from perdure import Client
from perdure.core import ids
from perdure.core.api import approvals, messages, named_events, repairs, runs
from perdure.core.api.act import Act
from perdure.core.api.messages import MessageSent, SignalledRun, UpdateReply
from perdure.core.api.named_events import EventEmitted
from perdure.core.api.runs import StartedRun
from perdure.core.error_codes import error_for
from perdure.core.errors import Conflict, NotFound, RunFinished, Unavailable
from perdure.core.payload_port import PayloadCarrier
from perdure.core.work import UpdateAnswer
from perdure.engine.api.api import Api
from perdure.sdk.client.backend import Backend
from perdure.server.auth.authenticator import OpenAccess
from perdure.server.context import Server
from perdure.server.grpc.connected_workers import ConnectedWorkers
from perdure.server.grpc.hub import WorkerHub
from perdure.server.grpc.server import GrpcServer
from perdure.server.rest.app import create_app
from tests.fakes.waiting import busy, until

DOORS: Final = {"embedded": 5, "grpc": 3, "rest": 3, "sql": 1}
"""How often each one is drawn."""
HOST: Final = "127.0.0.1"
CALL_S: Final = 30.0
CLOSE_S: Final = 5.0
"""A server that is killed waits for nothing; calls under way end with it."""
SQL_S: Final = 90.0
"""An engine that dies holds what it has taken for a while."""
SQL_POLL_S: Final = 0.05


@dataclass(frozen=True)
class Door:
    """A way to one engine."""

    name: str
    _backend: Backend
    engine: Any
    """The engine that answers: what has no door of its own goes to it directly."""
    http: httpx2.AsyncClient


class Answered(NamedTuple):
    """What REST shows of an approval."""

    resolved_us: int | None


class Front:
    """REST and gRPC over an engine, on ports of their own. It dies with the engine."""

    def __init__(self, engine: Any, pool: Any) -> None:
        self._engine, self._pool = engine, pool
        self._sock = socket.create_server((HOST, 0))
        self._url = f"http://{HOST}:{self._sock.getsockname()[1]}"
        api = Api(engine.engine, engine.api.ports, lambda: self._url)
        access = OpenAccess(HOST)
        self._app = create_app(Server(api=api, auth=access))
        config = uvicorn.Config(self._app, log_config=None, lifespan="off", timeout_graceful_shutdown=0)
        self._http = uvicorn.Server(config)
        self._http.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._grpc = GrpcServer(api, WorkerHub(api.engine, ConnectedWorkers()), access, f"{HOST}:0")  # type: ignore[arg-type]
        self._serving: asyncio.Task[None]
        self.doors: dict[str, Door] = {}

    async def open(self) -> None:
        self._serving = asyncio.create_task(self._http._serve([self._sock]))
        await until(lambda: self._http.started or self._serving.done())
        await self._grpc.start()
        self._client = await Client(f"{HOST}:{self._grpc.port}").__aenter__()
        self._web = httpx2.AsyncClient(base_url=self._url, timeout=CALL_S)
        embedded = self._engine._backend
        backends = {
            "embedded": embedded,
            "grpc": self._client._backend,
            "rest": _opened(RestActs(self._web, embedded.acts)),
            "sql": _opened(SqlActs(self._pool, embedded.acts, self._engine.died)),
        }
        self.doors = {name: Door(name, b, self._engine, self._web) for name, b in backends.items()}

    async def close(self) -> None:
        self._app.state.streams.close()
        self._http.should_exit = self._http.force_exit = True
        closing = [self._client.__aexit__(None, None, None), self._grpc.stop(0), self._web.aclose()]
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*closing, self._serving, return_exceptions=True)
        self._serving.cancel()
        self._sock.close()  # last: the event loop watches its number, which the next socket gets


def _opened(acts: Any) -> Backend:
    backend = Backend(acts)
    backend.open(is_found=False)
    return backend


class Borrowed:
    """What a door doesn't take itself goes to the engine directly."""

    timeout_s = CALL_S

    def __init__(self, direct: Any) -> None:
        self._direct = direct

    @property
    def payloads(self) -> PayloadCarrier:
        carrier: PayloadCarrier = self._direct.payloads
        return carrier

    def adopt(self, definition: Any) -> None:
        self._direct.adopt(definition)


class Request(NamedTuple):
    path: str
    body: Any = None
    read: Callable[[Any], Any] = lambda answer: None
    method: str = "POST"


class RestActs(Borrowed):
    def __init__(self, http: httpx2.AsyncClient, direct: Any) -> None:
        super().__init__(direct)
        self._http = http

    async def call(self, act: Act[Any, Any], request: Any, within_s: float | None = None) -> Any:
        write = REST.get(act.name)
        if write is None:
            return await self._direct.call(act, request, within_s)
        wanted = write(request)
        try:
            answer = await ask(self._http, wanted.method, f"/api/v1{wanted.path}", wanted.body)
        except httpx2.TransportError as e:
            raise Unavailable(f"no answer: {e!r}") from e
        return wanted.read(answer)


async def ask(http: httpx2.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    """The answer as JSON. Raises what the problem stands for."""
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    answer = await http.request(method, path, content=msgspec.json.encode(body), headers=headers)
    found = msgspec.json.decode(answer.content) if answer.content else None
    if answer.status_code < 400:
        return found
    raise error_for(found["code"], found.get("detail", ""))


def _run(name: str) -> str:
    return f"/runs/{quote(name, safe='')}"


def _json(data: bytes) -> Any:
    return msgspec.json.decode(data or b"null")


def _begun(answer: Any) -> StartedRun:
    return StartedRun(ids.parse(answer["id"]))


def _standing(answer: Any) -> Answered:
    return Answered(None if answer["status"] == "open" else 1)


def _start_body(r: Any) -> dict[str, Any]:
    return {"input": _json(r.input), "key": r.key or None, "on_conflict": r.on_conflict}


def _signal(r: messages.SendSignal) -> Request:
    path = f"{_run(r.run)}/signals/{r.name}" + (f"?key={quote(r.key)}" if r.key else "")
    return Request(path, _json(r.value), lambda _: MessageSent(None))  # type: ignore[arg-type]


def _signal_with_start(r: messages.SignalWithStart) -> Request:
    body = {**_start_body(r.start), "signal": r.name, "value": _json(r.value), "signal_key": r.key or None}
    del body["on_conflict"]
    return Request(
        f"/workflows/{r.start.workflow}/signal-with-start",
        body,
        lambda answer: SignalledRun(ids.parse(answer["id"]), False),
    )


def _update(r: messages.AskUpdate) -> Request:
    def read(answer: Any) -> UpdateReply:
        done = answer["status"] == "done"
        return UpdateReply(UpdateAnswer(msgspec.json.encode(answer["value"])) if done else None)

    body = {"value": _json(r.value), "key": r.key, "wait": r.wait_s}
    return Request(f"{_run(r.run)}/updates/{r.name}", body, read)


def _answer(r: approvals.AnswerApproval) -> Request:
    verb = "approve" if r.is_approved else "reject"
    body = {"value": _json(r.value), "comment": r.comment, "as": r.on_behalf_of or None}
    return Request(f"/approvals/{r.run}/{quote(r.name, safe='')}/{verb}", body, _standing)


def _delegate(r: approvals.DelegateApproval) -> Request:
    path = f"/approvals/{r.run}/{quote(r.name, safe='')}/delegate"
    return Request(path, {"to": r.to, "as": r.on_behalf_of or None}, _standing)


class Link(NamedTuple):
    url: str


def _link(r: approvals.CreateLink) -> Request:
    folder = f"/approvals/{r.run}" if r.kind == "approval" else f"{_run(r.run)}/promises"
    path = f"{folder}/{quote(r.name, safe='')}/links"
    return Request(path, {"who": r.who or None}, lambda answer: Link(answer["url"]))


def _emit(r: named_events.EmitEvent) -> Request:
    body = {"payload": _json(r.payload), "key": r.key or None}
    return Request(f"/events/{r.name}", body, lambda a: EventEmitted(int(a["id"]), a["is_new"]))


def _fork(r: repairs.ForkRun) -> Request:
    body = {"at": r.at, "edits": {step: _json(value) for step, value in r.edits.items()}, "code": r.code}
    return Request(f"{_run(r.run)}/fork", body, _begun)


def _reason(verb: str) -> Callable[[Any], Request]:
    return lambda r: Request(f"{_run(r.run)}/{verb}", {"reason": r.reason})


def _verb(verb: str) -> Callable[[Any], Request]:
    return lambda r: Request(f"{_run(r.run)}/{verb}")


REST: Final[dict[str, Callable[[Any], Request]]] = {
    messages.SIGNAL.name: _signal,
    messages.SIGNAL_WITH_START.name: _signal_with_start,
    messages.RESOLVE.name: lambda r: Request(f"{_run(r.run)}/promises/{r.name}", _json(r.value)),
    messages.UPDATE.name: _update,
    approvals.ANSWER.name: _answer,
    approvals.DELEGATE.name: _delegate,
    approvals.CREATE_LINK.name: _link,
    named_events.EMIT.name: _emit,
    runs.START.name: lambda r: Request(f"/workflows/{r.workflow}/runs", _start_body(r), _begun),
    runs.CANCEL.name: _reason("cancel"),
    runs.TERMINATE.name: _reason("terminate"),
    runs.PAUSE.name: _reason("pause"),
    runs.RESUME.name: _verb("resume"),
    runs.RETRY.name: _verb("retry"),
    runs.DELETE.name: lambda r: Request(_run(r.run), method="DELETE"),
    repairs.FORK.name: _fork,
    repairs.RERUN.name: lambda r: Request(f"{_run(r.run)}/rerun", {"key": r.key or None}, _begun),
}


class SqlActs(Borrowed):
    """perdure.start, perdure.signal and perdure.emit. What was asked for is done later, and then its row is gone or has an error."""

    def __init__(self, pool: Any, direct: Any, died: asyncio.Future[None]) -> None:
        super().__init__(direct)
        self._pool, self._died = pool, died

    async def call(self, act: Act[Any, Any], request: Any, within_s: float | None = None) -> Any:
        match act.name:
            case messages.SIGNAL.name:
                r = request
                await self._done("signal($1::text, $2, $3, $4)", r.run, r.name, r.value.decode(), r.key or None)
                return MessageSent(None)  # type: ignore[arg-type]
            case named_events.EMIT.name:
                r = request
                await self._done("emit($1, $2, $3)", r.name, r.payload.decode(), r.key or None)
                return EventEmitted(0, True)
            case _:
                return await self._before_death(self._direct.call(act, request, within_s))

    async def _before_death(self, answer: Coroutine[Any, Any, Any]) -> Any:
        """What goes to the engine directly. A call through this door outlives its engine, and this one doesn't."""
        asked = asyncio.ensure_future(answer)
        await asyncio.wait({asked, self._died}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            asked.cancel()
            raise Unavailable("the engine died")
        return asked.result()

    async def _done(self, function: str, *args: Any) -> None:
        async with self._pool.acquire() as c, c.transaction():
            await c.execute(f"select perdure.{function}", *args)
            number = await c.fetchval("select currval('perdure.sql_request_id_seq')")
        for _ in range(int(SQL_S / SQL_POLL_S)):
            await busy(SQL_POLL_S)
            row = await self._pool.fetchrow("select error from perdure.sql_request where id = $1", number)
            if row is None:
                return
            if row["error"] is not None:
                raise _sql_error(row["error"])
        raise Unavailable(f"the request {number} in SQL is not carried out")


def _sql_error(text: str) -> Exception:
    """The row has the words of the error, and not its code."""
    return RunFinished(text) if "has ended" in text else NotFound(text) if "no run" in text else Conflict(text)
