"""One engine behind REST, gRPC and the embedded client, the runs that scenarios act on, and what a scenario consists of."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from perdure import Approval, Client, Handle, Perdure, Promise, Retry, Signal, State, Update, task, workflow
from perdure.core import ids
from perdure.core.access import AuditLine, NewKey, Role
from perdure.core.api.act import Act
from perdure.engine.api.api import EMBEDDED, Caller, NamespaceApi
from perdure.server.grpc.connected_workers import ConnectedWorkers
from perdure.server.grpc.hub import WorkerHub
from perdure.server.grpc.server import GrpcServer
from tests.server.rest_live import Live, live

NOWHERE = ids.text(bytes(16))
"""The id of no run."""
CALL = b"{}"
"""A call without arguments."""

hear = Signal("parity_hear", int)
said = Signal("parity_said", str)
given = Promise("parity_given", int)
note = State("parity_note", "")
change = Update("parity_change", int, int)
ok = Approval("parity_ok", assignees=["ada", "ben"], quorum=2)


@task(name="parity_double")
async def double(x: int) -> int:
    print(f"doubling {x}")
    return 2 * x


@task(name="parity_break", retry=Retry(1))
async def break_() -> None:
    raise ValueError("broken")


@workflow(name="parity_done")
async def done() -> int:
    return await double(21)


@workflow(name="parity_wait")
async def wait() -> int:
    change.handle(lambda n: n + 1)
    note.set("here")
    return await given.wait()


@wait.query
def noted(times: int = 1) -> str:
    return note.get() * times


@workflow(name="parity_ask")
async def ask() -> None:
    await ok.wait()


@workflow(name="parity_fail")
async def fail() -> None:
    await break_()


WORKFLOWS = (done, wait, ask, fail)
FLOW = "flow: {name}\ntasks: {{a: {{value: {n}}}}}\n"


@dataclass
class Stage:
    live: Live
    client: Client
    address: str
    """Of gRPC."""
    keys: dict[Role, str]
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def perdure(self) -> Perdure:
        return self.live.perdure

    def name(self) -> str:
        """Of something new. All have the same length, so that one can be replaced by another in what is compared."""
        return f"parity-{next(self._numbers):04}"

    async def embedded(self, act: Act[Any, Any], request: Any) -> Any:
        return await self.perdure._backend.call(act, request)

    async def audit(self) -> list[AuditLine]:
        """Oldest first."""
        return list(reversed((await self.live.server.api.ports.audit.page(None, limit=500)).items))

    async def ended(self, definition: Any) -> str:
        handle = await self.perdure.start(definition)
        async for _ in handle.events():
            pass
        return handle.id

    async def failed(self) -> str:
        return await self._reached(await self.perdure.start(fail), "RunFailed")

    async def waiting(self, definition: Any = wait) -> str:
        """A run that waits for its promise."""
        return await self._reached(await self.perdure.start(definition), "PromiseCreated")

    async def stuck(self) -> str:
        run = await self.waiting()
        async with self.perdure.store.pool.take() as c:
            await c.execute(
                "update perdure.run_queue set stuck = 'parity: stuck', owner = null where run_id = $1", ids.parse(run)
            )
        return run

    async def _reached(self, handle: Handle[Any], event: str) -> str:
        async for found in handle.events():
            if found.type == event:
                return handle.id
        raise AssertionError(f"run {handle.id} ended without {event}")


@contextlib.asynccontextmanager
async def stage(dsn: str) -> AsyncIterator[Stage]:
    async with live(dsn, keys=True) as one:
        for definition in WORKFLOWS:
            one.perdure._backend.adopt(definition)
        await one.perdure.engine.refresh()
        api = one.server.api
        one.perdure._backend.acts.api = NamespaceApi(api, one.perdure.engine.ns, Caller(EMBEDDED, "default", "sdk"))  # type: ignore[attr-defined]
        new = [NewKey(name=role.value, role=role, created_by="test") for role in Role]
        keys = {key.role: (await api.ports.keys.create(key))[1] for key in new}
        one.http.headers["Authorization"] = f"Bearer {keys[Role.ADMIN]}"
        served = GrpcServer(api, WorkerHub(api.engine, ConnectedWorkers()), one.server.auth, "127.0.0.1:0")  # type: ignore[arg-type]
        await served.start()
        try:
            address = f"127.0.0.1:{served.port}"
            async with Client(address, api_key=keys[Role.ADMIN]) as client:
                yield Stage(one, client, address, keys)
        finally:
            await served.stop(0.5)


@dataclass(frozen=True)
class Rest:
    method: str
    path: str
    body: Any = None
    params: dict[str, Any] = field(default_factory=dict)


async def a_name(stage: Stage) -> str:
    return stage.name()


def same(subject: str) -> Callable[[Stage], Awaitable[str]]:
    async def setup(stage: Stage) -> str:
        return subject

    return setup


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A request that is refused with the same code at every door."""

    code: str
    request: Any
    rest: Rest


@dataclass(frozen=True, kw_only=True)
class Scenario:
    act: Act[Any, Any]
    setup: Callable[[Stage], Awaitable[str]] = a_name
    """Prepares what the act is about and returns its name or id: for each door anew where the act changes something."""
    request: Callable[[str], Any]
    rest: Callable[[str], Rest] | None
    """None: REST has no route for the act."""
    fields: str = ""
    """What REST shows of the reply: `path.in.reply=path.in.json`, or one word where both are the same. `a[]` goes through a list."""
    shows: Callable[[Any], dict[str, Any]] = lambda reply: {}
    """Further paths in REST's answer and what the reply has there; `http` is the status."""
    made: str = ""
    """Where the reply, and REST's answer, name what the act made by a name that is different each time; written as in `fields`."""
    nowhere: tuple[str, str] | None = None
    """(subject, code): the same request about something that is not there, and what refuses it."""
    refusal: Callable[[str], Refusal] | None = None
    """Another request that is refused; given a new name."""
    without_refusal: str = ""
    """Why no request is refused."""

    def refused(self, name: str) -> Refusal | None:
        if self.refusal is not None:
            return self.refusal(name)
        if self.nowhere is None:
            return None
        subject, code = self.nowhere
        return Refusal(code=code, request=self.request(subject), rest=(self.rest or _no_rest)(subject))


NO_ROUTE = Rest("", "")


def _no_rest(subject: str) -> Rest:
    return NO_ROUTE


def within(fields: str, path: str) -> str:
    """Fields of a struct inside the reply, which REST shows without it."""
    pairs = [f.partition("=") for f in fields.split()]
    return " ".join(f"{path}.{a}={b or a}" for a, _, b in pairs)


def each(fields: str) -> str:
    """Fields of each item of a page."""
    pairs = [f.partition("=") for f in fields.split()]
    return " ".join(f"items[].{a}=items[].{b or a}" for a, _, b in pairs)
