"""Every kind of message through every door that it has."""

from __future__ import annotations

import asyncio
import json
import re
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
    reply: Any = None
    """From Python and gRPC."""


REFUSED: Final = "refused"
SENT: Final = object()
EXPLAINED: Final = re.compile(r"perdure explain (\w+)")
"""The code of an error on the command line."""
NAMES: Final[dict[Kind, str]] = {
    Kind.SIGNAL: "pairs_word",
    Kind.SIGNAL_WITH_START: "pairs_word",
    Kind.PROMISE: "pairs_value",
    Kind.DECISION: "pairs_solo",
    Kind.VOTE: "pairs_deal",
    Kind.DELEGATION: "pairs_deal",
    Kind.UPDATE: "pairs_change",
    Kind.EVENT: "pairs_paid",
    Kind.QUERY: "noted",
    Kind.STATE: "pairs_note",
}


@dataclass(frozen=True)
class Letter:
    """A message of this kind, and whom it is for."""

    kind: Kind
    run: str
    key: str
    """Of the run."""
    start: StartRequest
    """What a signal that starts a run starts."""
    name: str
    """Of the signal, promise, approval, update, event, query or state."""
    value: Any = VALUE
    link: str = ""


REQUESTS: Final[dict[Kind, Callable[[Letter], tuple[Any, Any]]]] = {
    Kind.SIGNAL: lambda m: (messages.SIGNAL, SendSignal(m.run, m.name, _json(m.value))),
    Kind.SIGNAL_WITH_START: lambda m: (
        messages.SIGNAL_WITH_START,
        SignalWithStart(m.start, m.name, _json(m.value)),
    ),
    Kind.PROMISE: lambda m: (messages.RESOLVE, ResolvePromise(m.run, m.name, _json(m.value))),
    Kind.DECISION: lambda m: (approvals.ANSWER, AnswerApproval(m.run, m.name, True, on_behalf_of=VOTER)),
    Kind.VOTE: lambda m: (approvals.ANSWER, AnswerApproval(m.run, m.name, True, on_behalf_of=VOTER)),
    Kind.DELEGATION: lambda m: (approvals.DELEGATE, DelegateApproval(m.run, m.name, DELEGATE, VOTER)),
    Kind.UPDATE: lambda m: (messages.UPDATE, AskUpdate(m.run, m.name, _json(m.value), m.key, QUICK_S)),
    Kind.EVENT: lambda m: (named_events.EMIT, EmitEvent(m.name, _json(_payload(m)))),
    Kind.CANCEL: lambda m: (runs.CANCEL, CancelRun(m.run)),
    Kind.TERMINATE: lambda m: (runs.TERMINATE, TerminateRun(m.run)),
    Kind.PAUSE: lambda m: (runs.PAUSE, PauseRun(m.run)),
    Kind.QUERY: lambda m: (messages.QUERY, AskQuery(m.run, m.name)),
    Kind.STATE: lambda m: (messages.STATE, ReadState(m.run, m.name)),
}
ROUTES: Final[dict[Kind, Callable[[Letter], tuple[str, str, Any]]]] = {
    Kind.SIGNAL: lambda m: ("POST", f"/runs/{m.run}/signals/{m.name}", m.value),
    Kind.SIGNAL_WITH_START: lambda m: (
        "POST",
        f"/workflows/{m.start.workflow}/signal-with-start",
        {"key": m.key, "signal": m.name, "value": m.value, "input": json.loads(m.start.input)},
    ),
    Kind.PROMISE: lambda m: ("POST", f"/runs/{m.run}/promises/{m.name}", m.value),
    Kind.DECISION: lambda m: ("POST", f"/approvals/{m.run}/{m.name}/approve", {"as": VOTER}),
    Kind.VOTE: lambda m: ("POST", f"/approvals/{m.run}/{m.name}/approve", {"as": VOTER}),
    Kind.DELEGATION: lambda m: ("POST", f"/approvals/{m.run}/{m.name}/delegate", {"to": DELEGATE, "as": VOTER}),
    Kind.UPDATE: lambda m: (
        "POST",
        f"/runs/{m.run}/updates/{m.name}",
        {"value": m.value, "key": m.key, "wait": QUICK_S},
    ),
    Kind.EVENT: lambda m: ("POST", f"/events/{m.name}", {"payload": _payload(m)}),
    Kind.CANCEL: lambda m: ("POST", f"/runs/{m.run}/cancel", {}),
    Kind.TERMINATE: lambda m: ("POST", f"/runs/{m.run}/terminate", {}),
    Kind.PAUSE: lambda m: ("POST", f"/runs/{m.run}/pause", {}),
    Kind.QUERY: lambda m: ("POST", f"/runs/{m.run}/queries/{m.name}", {}),
    Kind.STATE: lambda m: ("GET", f"/runs/{m.run}/state/{m.name}", None),
}
COMMANDS: Final[dict[Kind, Callable[[Letter], tuple[str, ...]]]] = {
    Kind.SIGNAL: lambda m: ("signal", m.run, m.name, json.dumps(m.value)),
    Kind.SIGNAL_WITH_START: lambda m: (
        *("signal", f"key:{m.key}", m.name, json.dumps(m.value)),
        *("--start", m.start.workflow, "--input", m.start.input.decode()),
    ),
    Kind.PROMISE: lambda m: ("resolve", m.run, m.name, json.dumps(m.value)),
    Kind.DECISION: lambda m: ("approval", "approve", m.run, m.name, "--as", VOTER),
    Kind.VOTE: lambda m: ("approval", "approve", m.run, m.name, "--as", VOTER),
    Kind.DELEGATION: lambda m: ("approval", "delegate", m.run, m.name, "--to", DELEGATE, "--as", VOTER),
    Kind.UPDATE: lambda m: ("update", m.run, m.name, json.dumps(m.value), "--key", m.key, "--wait", str(QUICK_S)),
    Kind.EVENT: lambda m: ("event", "send", m.name, "-d", json.dumps(_payload(m))),
    Kind.CANCEL: lambda m: ("cancel", m.run),
    Kind.TERMINATE: lambda m: ("terminate", m.run),
    Kind.PAUSE: lambda m: ("pause", m.run),
    Kind.QUERY: lambda m: ("query", m.run, m.name),
    Kind.STATE: lambda m: ("state", m.run, m.name),
}
STATEMENTS: Final[dict[Kind, Callable[[Letter], str]]] = {
    Kind.SIGNAL: lambda m: f"select perdure.signal('{m.run}'::uuid, '{m.name}', '{json.dumps(m.value)}')",
    Kind.EVENT: lambda m: f"select perdure.emit('{m.name}', '{json.dumps(_payload(m))}')",
}
LINKS: Final[dict[Kind, tuple[str, Any, Callable[[Letter], Any]]]] = {
    Kind.PROMISE: ("/runs/{run}/promises/{name}/links", {}, lambda m: {"value": m.value}),
    Kind.DECISION: ("/approvals/{run}/{name}/links", {"who": VOTER}, lambda m: {"approved": True}),
    Kind.VOTE: ("/approvals/{run}/{name}/links", {"who": VOTER}, lambda m: {"approved": True}),
}
"""Where a link is made, from what, and what is sent to it."""
WEBHOOKS: Final[dict[Kind, Callable[[str], Any]]] = {
    Kind.SIGNAL: lambda name: {"signal": name, "run": "${ body.run }", "value": "body.value"},
    Kind.SIGNAL_WITH_START: lambda name: {
        "signal": name,
        "run": "key:${ body.key }",
        "value": "body.value",
        "start": "pairs_reader",
        "input": "body.input",
    },
    Kind.EVENT: lambda name: {"event": name},
}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _payload(m: Letter) -> Any:
    return {"run": m.key, "value": m.value} if m.value == VALUE else [m.key]


class Doors:
    def __init__(self, stage: Stage, pool: Any, state: Path) -> None:
        self._stage, self._pool = stage, pool
        self._cli = Cli(stage.live.url, state)
        self._one_command, self._one_request, self._one_hook = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._hooks: dict[tuple[Kind, str], tuple[str, str]] = {}
        self._send: dict[Door, Callable[[Letter], Awaitable[Sent]]] = {
            Door.EMBEDDED: lambda m: _called(stage.embedded(*REQUESTS[m.kind](m))),
            Door.GRPC: lambda m: _called(stage.client._backend.call(*REQUESTS[m.kind](m))),
            Door.REST: self._rest,
            Door.CLI: self._command,
            Door.SQL: self._sql,
            Door.LINK: self._link,
            Door.WEBHOOK: self._webhook,
        }

    async def send(self, door: Door, letter: Letter) -> Sent:
        return await self._send[door](letter)

    async def link(self, kind: Kind, run: str) -> str:
        path, body, _ = LINKS[kind]
        return str((await self._stage.live.post(path.format(run=run, name=NAMES[kind]), body))["url"])

    async def _rest(self, m: Letter) -> Sent:
        method, path, body = ROUTES[m.kind](m)
        return _answered(await self._stage.live.http.request(method, path, json=body))

    async def _command(self, m: Letter) -> Sent:
        async with self._one_command:  # it has the streams and the environment of this process
            words, key = COMMANDS[m.kind](m), self._stage.keys[Role.ADMIN]
            done = await asyncio.to_thread(self._cli, *words, PERDURE_API_KEY=key)
        if not done.code:
            return Sent()
        explained = EXPLAINED.search(done.err)
        return Sent(explained[1] if explained else REFUSED, " ".join(done.err.split()))

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
            return _answered(await stranger.post(m.link, json=LINKS[m.kind][2](m), headers=JSON))

    async def _webhook(self, m: Letter) -> Sent:
        url, secret = await self._hook(m)
        body = {"run": m.run, "key": m.key, "value": m.value, "input": json.loads(m.start.input)}
        data = _json(_payload(m) if m.kind is Kind.EVENT else body)
        async with httpx2.AsyncClient() as stranger:
            return _answered(await stranger.post(url, content=data, headers=signed(secret, data)))

    async def _hook(self, m: Letter) -> tuple[str, str]:
        """The address and the secret of the webhook for messages of this kind and name."""
        async with self._one_hook:
            if (m.kind, m.name) not in self._hooks:
                path = f"/webhooks/{m.kind.name.lower()}-{m.name}"
                made = await self._stage.live.ask("PUT", path, 201, json=WEBHOOKS[m.kind](m.name))
                self._hooks[m.kind, m.name] = (made["url"], made["secret"])
        return self._hooks[m.kind, m.name]


async def _called(call: Awaitable[Any]) -> Sent:
    try:
        return Sent(reply=await call)
    except PerdureError as e:
        return Sent(e.code, str(e))


def _answered(answer: httpx2.Response) -> Sent:
    if answer.is_success:
        return Sent()
    problem = answer.json()
    return Sent(problem["code"], problem["detail"])
