"""Every kind of message through every door that it has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from perdure.core.access import Role
from perdure.core.api import approvals, messages, named_events, runs
from perdure.core.api.approvals import AnswerApproval, DelegateApproval
from perdure.core.api.messages import AskQuery, AskUpdate, ReadState, ResolvePromise, SendSignal, SignalWithStart
from perdure.core.api.named_events import EmitEvent
from perdure.core.api.runs import CancelRun, PauseRun, TerminateRun
from perdure.core.work import StartRequest
from perdure.errors import PerdureError
from tests.cli.live import Cli
from tests.fakes.waiting import until
from tests.messages.pairs import Door, Kind
from tests.server.parity.stage import Stage
from tests.server.test_webhooks import signed

VALUE: Final = 7
VOTER: Final = "ben"
DELEGATE: Final = "dan"
QUICK_S: Final = 0.01
"""How long an update waits for its reply: most runs of these tests reply later."""
JSON: Final = {"accept": "application/json"}


@dataclass
class Sent:
    """What the sender was told."""

    refused: str = ""
    """The code of the error; empty: the message was acknowledged. A door that has no codes says REFUSED."""
    text: str = ""


REFUSED: Final = "refused"
SENT: Final = object()


@dataclass(frozen=True)
class Letter:
    """A message of this kind, and whom it is for."""

    kind: Kind
    run: str
    key: str
    """Of the run."""
    start: StartRequest
    """What a signal that starts a run starts."""
    link: str = ""


REQUESTS: Final[dict[Kind, Callable[[Letter], tuple[Any, Any]]]] = {
    Kind.SIGNAL: lambda m: (messages.SIGNAL, SendSignal(m.run, "pairs_word", _json(VALUE))),
    Kind.SIGNAL_WITH_START: lambda m: (
        messages.SIGNAL_WITH_START,
        SignalWithStart(m.start, "pairs_word", _json(VALUE)),
    ),
    Kind.PROMISE: lambda m: (messages.RESOLVE, ResolvePromise(m.run, "pairs_value", _json(VALUE))),
    Kind.DECISION: lambda m: (approvals.ANSWER, AnswerApproval(m.run, "pairs_solo", True, on_behalf_of=VOTER)),
    Kind.VOTE: lambda m: (approvals.ANSWER, AnswerApproval(m.run, "pairs_deal", True, on_behalf_of=VOTER)),
    Kind.DELEGATION: lambda m: (approvals.DELEGATE, DelegateApproval(m.run, "pairs_deal", DELEGATE, VOTER)),
    Kind.UPDATE: lambda m: (messages.UPDATE, AskUpdate(m.run, "pairs_change", _json(VALUE), m.key, QUICK_S)),
    Kind.EVENT: lambda m: (named_events.EMIT, EmitEvent("pairs_paid", _json(_payload(m)))),
    Kind.CANCEL: lambda m: (runs.CANCEL, CancelRun(m.run)),
    Kind.TERMINATE: lambda m: (runs.TERMINATE, TerminateRun(m.run)),
    Kind.PAUSE: lambda m: (runs.PAUSE, PauseRun(m.run)),
    Kind.QUERY: lambda m: (messages.QUERY, AskQuery(m.run, "noted")),
    Kind.STATE: lambda m: (messages.STATE, ReadState(m.run, "pairs_note")),
}
ROUTES: Final[dict[Kind, Callable[[Letter], tuple[str, str, Any]]]] = {
    Kind.SIGNAL: lambda m: ("POST", f"/runs/{m.run}/signals/pairs_word", VALUE),
    Kind.SIGNAL_WITH_START: lambda m: (
        "POST",
        f"/workflows/{m.start.workflow}/signal-with-start",
        {"key": m.key, "signal": "pairs_word", "value": VALUE, "input": json.loads(m.start.input)},
    ),
    Kind.PROMISE: lambda m: ("POST", f"/runs/{m.run}/promises/pairs_value", VALUE),
    Kind.DECISION: lambda m: ("POST", f"/approvals/{m.run}/pairs_solo/approve", {"as": VOTER}),
    Kind.VOTE: lambda m: ("POST", f"/approvals/{m.run}/pairs_deal/approve", {"as": VOTER}),
    Kind.DELEGATION: lambda m: ("POST", f"/approvals/{m.run}/pairs_deal/delegate", {"to": DELEGATE, "as": VOTER}),
    Kind.UPDATE: lambda m: (
        "POST",
        f"/runs/{m.run}/updates/pairs_change",
        {"value": VALUE, "key": m.key, "wait": QUICK_S},
    ),
    Kind.EVENT: lambda m: ("POST", "/events/pairs_paid", {"payload": _payload(m)}),
    Kind.CANCEL: lambda m: ("POST", f"/runs/{m.run}/cancel", {}),
    Kind.TERMINATE: lambda m: ("POST", f"/runs/{m.run}/terminate", {}),
    Kind.PAUSE: lambda m: ("POST", f"/runs/{m.run}/pause", {}),
    Kind.QUERY: lambda m: ("POST", f"/runs/{m.run}/queries/noted", {}),
    Kind.STATE: lambda m: ("GET", f"/runs/{m.run}/state/pairs_note", None),
}
COMMANDS: Final[dict[Kind, Callable[[Letter], tuple[str, ...]]]] = {
    Kind.SIGNAL: lambda m: ("signal", m.run, "pairs_word", str(VALUE)),
    Kind.SIGNAL_WITH_START: lambda m: (
        *("signal", f"key:{m.key}", "pairs_word", str(VALUE)),
        *("--start", m.start.workflow, "--input", m.start.input.decode()),
    ),
    Kind.PROMISE: lambda m: ("resolve", m.run, "pairs_value", str(VALUE)),
    Kind.DECISION: lambda m: ("approval", "approve", m.run, "pairs_solo", "--as", VOTER),
    Kind.VOTE: lambda m: ("approval", "approve", m.run, "pairs_deal", "--as", VOTER),
    Kind.DELEGATION: lambda m: ("approval", "delegate", m.run, "pairs_deal", "--to", DELEGATE, "--as", VOTER),
    Kind.UPDATE: lambda m: ("update", m.run, "pairs_change", str(VALUE), "--key", m.key, "--wait", str(QUICK_S)),
    Kind.EVENT: lambda m: ("event", "send", "pairs_paid", "-d", json.dumps(_payload(m))),
    Kind.CANCEL: lambda m: ("cancel", m.run),
    Kind.TERMINATE: lambda m: ("terminate", m.run),
    Kind.PAUSE: lambda m: ("pause", m.run),
    Kind.QUERY: lambda m: ("query", m.run, "noted"),
    Kind.STATE: lambda m: ("state", m.run, "pairs_note"),
}
STATEMENTS: Final[dict[Kind, Callable[[Letter], str]]] = {
    Kind.SIGNAL: lambda m: f"select perdure.signal('{m.run}'::uuid, 'pairs_word', '{VALUE}')",
    Kind.EVENT: lambda m: f"select perdure.emit('pairs_paid', '{json.dumps(_payload(m))}')",
}
LINKS: Final[dict[Kind, tuple[Callable[[str], str], Any, Any]]] = {
    Kind.PROMISE: (lambda run: f"/runs/{run}/promises/pairs_value/links", {}, {"value": VALUE}),
    Kind.DECISION: (lambda run: f"/approvals/{run}/pairs_solo/links", {"who": VOTER}, {"approved": True}),
    Kind.VOTE: (lambda run: f"/approvals/{run}/pairs_deal/links", {"who": VOTER}, {"approved": True}),
}
"""Where a link is made, from what, and what is sent to it."""
WEBHOOKS: Final[dict[Kind, Any]] = {
    Kind.SIGNAL: {"signal": "pairs_word", "run": "key:${ body.run }", "value": "body.value"},
    Kind.SIGNAL_WITH_START: {
        "signal": "pairs_word",
        "run": "key:${ body.run }",
        "value": "body.value",
        "start": "pairs_reader",
        "input": "body.input",
    },
    Kind.EVENT: {"event": "pairs_paid"},
}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _payload(m: Letter) -> dict[str, Any]:
    return {"run": m.key, "value": VALUE}


class Doors:
    def __init__(self, stage: Stage, pool: Any, state: Path) -> None:
        self._stage, self._pool = stage, pool
        self._cli = Cli(stage.live.url, state)
        self._one_command, self._one_request = asyncio.Lock(), asyncio.Lock()
        self._hooks: dict[Kind, tuple[str, str]] = {}
        self._send: dict[Door, Callable[[Letter], Awaitable[Sent]]] = {
            Door.EMBEDDED: lambda m: _called(stage.embedded(*REQUESTS[m.kind](m))),
            Door.GRPC: lambda m: _called(stage.client._backend.call(*REQUESTS[m.kind](m))),
            Door.REST: self._rest,
            Door.CLI: self._command,
            Door.SQL: self._sql,
            Door.LINK: self._link,
            Door.WEBHOOK: self._webhook,
        }

    async def open(self) -> None:
        for kind, body in WEBHOOKS.items():
            name = f"pairs-{kind.name.lower()}"
            made = await self._stage.live.ask("PUT", f"/webhooks/{name}", 201, json=body)
            self._hooks[kind] = (made["url"], made["secret"])

    async def send(self, door: Door, letter: Letter) -> Sent:
        return await self._send[door](letter)

    async def link(self, kind: Kind, run: str) -> str:
        path, body, _ = LINKS[kind]
        return str((await self._stage.live.post(path(run), body))["url"])

    async def _rest(self, m: Letter) -> Sent:
        method, path, body = ROUTES[m.kind](m)
        return _answered(await self._stage.live.http.request(method, path, json=body))

    async def _command(self, m: Letter) -> Sent:
        async with self._one_command:  # it has the streams and the environment of this process
            words, key = COMMANDS[m.kind](m), self._stage.keys[Role.ADMIN]
            done = await asyncio.to_thread(self._cli, *words, PERDURE_API_KEY=key)
        return Sent(REFUSED, " ".join(done.err.split())) if done.code else Sent()

    async def _sql(self, m: Letter) -> Sent:
        """The statement returns at once. An engine then sends the message, or leaves the request with its error."""
        async with self._one_request:
            await self._pool.execute(STATEMENTS[m.kind](m))
            error = await until(self._request_error)
            await self._pool.execute("delete from perdure.sql_request")
        return Sent() if error is SENT else Sent(REFUSED, error)

    async def _request_error(self) -> Any:
        open_ = await self._pool.fetchrow("select error from perdure.sql_request")
        return SENT if open_ is None else open_["error"]

    async def _link(self, m: Letter) -> Sent:
        async with httpx2.AsyncClient() as stranger:
            return _answered(await stranger.post(m.link, json=LINKS[m.kind][2], headers=JSON))

    async def _webhook(self, m: Letter) -> Sent:
        url, secret = self._hooks[m.kind]
        data = _json({"run": m.key, "value": VALUE, "input": json.loads(m.start.input)})
        async with httpx2.AsyncClient() as stranger:
            return _answered(await stranger.post(url, content=data, headers=signed(secret, data)))


async def _called(call: Awaitable[Any]) -> Sent:
    try:
        await call
    except PerdureError as e:
        return Sent(e.code, str(e))
    return Sent()


def _answered(answer: httpx2.Response) -> Sent:
    if answer.is_success:
        return Sent()
    problem = answer.json()
    return Sent(problem["code"], problem["detail"])
