"""Every door of a server: route x role x namespace, from the router and from the service descriptors themselves.

The tables below are the contract, written out. A route or a method that they do not name fails, and so does one that is gone.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import grpc
import pytest
from starlette.routing import BaseRoute, Route

from perdure import Approval, Perdure, Promise, Schedule, State, Update, task, workflow
from perdure.app.server_process import ServerProcess
from perdure.app.settings import Address, ServerSettings
from perdure.core import ids
from perdure.core.access import GRANTS, NewKey, Permission, Role
from perdure.core.api_keys import compose
from perdure.engine.api.runs import UseCases
from perdure.sdk import registry as definitions
from perdure.server.grpc import server as grpc_server
from perdure.server.rest.guard import GuardedRoute, Need, need_of
from perdure.store import api_keys as store_keys
from perdure.store.api_keys import Keys
from perdure.wire import runs as wire_runs
from perdure.wire.pb import runs_pb2, worker_pb2
from perdure.wire.schedules import Asked, encode_asked

READ, START, OPERATE, DEVELOP, ADMIN = (
    Permission.READ, Permission.START, Permission.OPERATE, Permission.DEVELOP, Permission.ADMIN,
)  # fmt: skip
API = "/api/v1"

ROUTES: dict[str, Permission | Need] = {
    "GET /": READ,
    "GET /runs/{id}": READ,
    "GET /static/{name}": Need.PUBLIC,
    "GET /errors": Need.PUBLIC,
    "GET /livez": Need.PUBLIC,
    "GET /readyz": Need.PUBLIC,
    "GET /metrics": Need.PUBLIC,
    f"GET {API}/openapi.json": Need.PUBLIC,
    f"GET {API}/workflows": READ,
    f"POST {API}/workflows": DEVELOP,
    f"GET {API}/workflows/{{name}}": READ,
    f"DELETE {API}/workflows/{{name}}": DEVELOP,
    f"GET {API}/workflows/{{name}}/versions": READ,
    f"POST {API}/workflows/validate": READ,
    f"GET {API}/workflows/{{name}}/versions/{{version}}": READ,
    f"POST {API}/workflows/{{name}}/current": DEVELOP,
    f"GET {API}/workflows/{{name}}/graph": READ,
    f"GET {API}/schema/flow.json": READ,
    f"POST {API}/workflows/{{name}}/runs": START,
    f"GET {API}/runs": READ,
    f"GET {API}/runs/{{id}}": READ,
    f"GET {API}/runs/{{id}}/result": READ,
    f"POST {API}/runs/{{id}}/cancel": OPERATE,
    f"POST {API}/runs/{{id}}/retry": OPERATE,
    f"POST {API}/runs/{{id}}/resume": OPERATE,
    f"GET {API}/runs/{{id}}/graph": READ,
    f"GET {API}/runs/{{id}}/tasks": READ,
    f"GET {API}/runs/{{id}}/tasks/{{task}}/logs": READ,
    f"GET {API}/runs/{{id}}/logs": READ,
    f"GET {API}/runs/{{id}}/history": READ,
    f"GET {API}/runs/{{id}}/state": READ,
    f"GET {API}/runs/{{id}}/state/{{name}}": READ,
    f"POST {API}/runs/{{id}}/updates/{{name}}": OPERATE,
    f"GET {API}/runs/{{id}}/updates/{{update_id}}": READ,
    f"POST {API}/runs/{{id}}/signals/{{name}}": OPERATE,
    f"POST {API}/runs/{{id}}/promises/{{name}}": OPERATE,
    f"POST {API}/runs/{{id}}/promises/{{name:path}}/links": OPERATE,
    f"GET {API}/approvals": READ,
    f"GET {API}/approvals/{{id}}/{{name:path}}": READ,
    f"POST {API}/approvals/{{id}}/{{name:path}}/approve": OPERATE,
    f"POST {API}/approvals/{{id}}/{{name:path}}/reject": OPERATE,
    f"POST {API}/approvals/{{id}}/{{name:path}}/delegate": OPERATE,
    f"POST {API}/approvals/{{id}}/{{name:path}}/links": OPERATE,
    "GET /links/{token}": Need.PUBLIC,
    "POST /links/{token}": Need.PUBLIC,
    f"POST {API}/workflows/{{name}}/signal-with-start": OPERATE,
    f"GET {API}/events": READ,
    f"POST {API}/events/{{name}}": OPERATE,
    f"GET {API}/webhooks": READ,
    f"PUT {API}/webhooks/{{name}}": DEVELOP,
    f"POST {API}/webhooks/{{name}}/rotate": DEVELOP,
    f"DELETE {API}/webhooks/{{name}}": DEVELOP,
    "POST /hooks/{namespace}/{name}": Need.PUBLIC,
    f"GET {API}/dead-letters": READ,
    f"POST {API}/dead-letters/retry": OPERATE,
    f"GET {API}/schedules": READ,
    f"POST {API}/schedules": DEVELOP,
    f"POST {API}/schedules/preview": READ,
    f"GET {API}/schedules/{{name:path}}/times": READ,
    f"GET {API}/schedules/{{name:path}}/fires": READ,
    f"POST {API}/schedules/{{name:path}}/pause": OPERATE,
    f"POST {API}/schedules/{{name:path}}/resume": OPERATE,
    f"POST {API}/schedules/{{name:path}}/trigger": OPERATE,
    f"POST {API}/schedules/{{name:path}}/backfill": OPERATE,
    f"GET {API}/schedules/{{name:path}}": READ,
    f"PUT {API}/schedules/{{name:path}}": DEVELOP,
    f"DELETE {API}/schedules/{{name:path}}": DEVELOP,
    f"GET {API}/calendars": READ,
    f"GET {API}/calendars/{{name:path}}": READ,
    f"PUT {API}/calendars/{{name:path}}": DEVELOP,
    f"DELETE {API}/calendars/{{name:path}}": DEVELOP,
    f"GET {API}/workers": READ,
    f"GET {API}/queues": READ,
    f"GET {API}/rules": READ,
    f"PUT {API}/rules/{{scope}}/{{name}}": OPERATE,
    f"DELETE {API}/rules/{{scope}}/{{name}}": OPERATE,
    f"POST {API}/queues/{{name}}/pause": OPERATE,
    f"POST {API}/queues/{{name}}/resume": OPERATE,
    f"POST {API}/workflows/{{name}}/pause": OPERATE,
    f"POST {API}/workflows/{{name}}/resume": OPERATE,
    f"GET {API}/stream": READ,
    f"GET {API}/whoami": Need.ANYBODY,
    f"GET {API}/namespaces": ADMIN,
    f"POST {API}/namespaces": ADMIN,
    f"DELETE {API}/namespaces/{{name}}": ADMIN,
    f"GET {API}/keys": ADMIN,
    f"POST {API}/keys": ADMIN,
    f"DELETE {API}/keys/{{id}}": ADMIN,
    f"GET {API}/audit": ADMIN,
}

PROBES = {"/livez", "/readyz", "/metrics"}
OPEN_ROUTES = {
    "POST /hooks/{namespace}/{name}",
    *(f"GET {path}" for path in PROBES),
    "GET /static/{name}",
    "GET /errors",
    f"GET {API}/openapi.json",
    "GET /links/{token}",
    "POST /links/{token}",
}
"""What a stranger may see. Exact names: a pattern would let in whatever is added below it."""

METHODS: dict[str, Permission | None] = {
    "perdure.v1.Workers/Connect": Permission.WORK,
    "perdure.v1.Workers/Beat": Permission.WORK,
    "perdure.v1.Runs/Start": START,
    "perdure.v1.Runs/Run": START,
    "perdure.v1.Runs/Outcome": READ,
    "perdure.v1.Runs/Describe": READ,
    "perdure.v1.Runs/Find": READ,
    "perdure.v1.Runs/History": READ,
    "perdure.v1.Runs/ReadState": READ,
    "perdure.v1.Runs/Cancel": OPERATE,
    "perdure.v1.Runs/Signal": OPERATE,
    "perdure.v1.Runs/SignalWithStart": OPERATE,
    "perdure.v1.Runs/Emit": OPERATE,
    "perdure.v1.Runs/Resolve": OPERATE,
    "perdure.v1.Runs/Vote": OPERATE,
    "perdure.v1.Runs/Delegate": OPERATE,
    "perdure.v1.Runs/Link": OPERATE,
    "perdure.v1.Runs/Update": OPERATE,
    "perdure.v1.Runs/Resume": OPERATE,
    "perdure.v1.Runs/Retry": OPERATE,
    "perdure.v1.Runs/ReadSchedule": READ,
    "perdure.v1.Runs/OperateSchedule": OPERATE,
    "perdure.v1.Runs/ChangeSchedule": DEVELOP,
    "perdure.v1.Runs/Session": None,
}
"""None: anybody who is somebody; each call inside is checked on its own."""

BODIES: dict[str, Any] = {
    f"POST {API}/workflows": {"name": "matrix_other", "version": "1", "kind": "code"},
    f"POST {API}/workflows/validate": {"source": "flow: matrix_written\ntasks: {a: {value: 1}}"},
    f"POST {API}/workflows/{{name}}/current": {"version": "0"},
    f"POST {API}/workflows/{{name}}/runs": {"args": ["x"]},
    f"POST {API}/runs/{{id}}/signals/{{name}}": "value",
    f"POST {API}/runs/{{id}}/promises/{{name}}": "value",
    f"POST {API}/runs/{{id}}/promises/{{name:path}}/links": {},
    f"POST {API}/approvals/{{id}}/{{name:path}}/approve": {"as": "ada"},
    f"POST {API}/approvals/{{id}}/{{name:path}}/reject": {"as": "ada"},
    f"POST {API}/approvals/{{id}}/{{name:path}}/delegate": {"to": "ben", "as": "ada"},
    f"POST {API}/approvals/{{id}}/{{name:path}}/links": {"who": "ada"},
    "POST /links/{token}": {"approved": True},
    f"POST {API}/workflows/{{name}}/signal-with-start": {"id": "matrix-signalled", "args": ["x"], "signal": "go"},
    f"POST {API}/events/{{name}}": {"payload": 1},
    f"PUT {API}/webhooks/{{name}}": {"event": "matrix.event"},
    f"POST {API}/runs/{{id}}/updates/{{name}}": {"value": 1, "wait": 0},
    f"PUT {API}/rules/{{scope}}/{{name}}": {"concurrency": 1000},
    f"POST {API}/dead-letters/retry": {"workflow": "matrix_none", "dry_run": True},
    f"POST {API}/schedules": {"name": "matrix-made", "workflow": "matrix_flow", "args": ["x"], "spec": {"every": "1h"}},
    f"POST {API}/schedules/preview": {"spec": {"every": "1h"}},
    f"POST {API}/schedules/{{name:path}}/backfill": {"since": "1h", "dry_run": True},
    f"PUT {API}/schedules/{{name:path}}": {"workflow": "matrix_flow", "args": ["x"], "spec": {"every": "1h"}},
    f"PUT {API}/calendars/{{name:path}}": {"weekdays": ["sat"]},
    f"POST {API}/namespaces": {"name": "matrix-made"},
    f"POST {API}/keys": {"name": "made", "role": "viewer"},
}

CALL_S = 1.0
"""A call that has not been refused by then was let in and waits for something."""

matrix_answer = Promise("matrix_answer", str)
matrix_note = State("matrix_note", "")
matrix_ok = Approval("matrix_ok")
matrix_update = Update("matrix_update", int, int)


@task
def matrix_step(text: str) -> str:
    return text


@workflow
async def matrix_flow(text: str) -> str:
    matrix_ok.wait(details=text)
    matrix_note.set(await matrix_step(text))
    return await matrix_answer.wait()


# -- the doors --------------------------------------------------------------------------------------------------------


def routes_of(routes: list[BaseRoute], prefix: str = "") -> Iterator[tuple[str, BaseRoute]]:
    """Every route of an application with its whole path, however it was put in."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from routes_of(inner.routes, prefix + route.include_context.prefix)  # type: ignore[attr-defined]
        else:
            yield prefix + str(getattr(route, "path", route)), route


def doors(app: Any) -> dict[str, Permission | Need]:
    """What each way in needs. A route that passes no guard must be one of the probes, by its exact name."""
    found: dict[str, Permission | Need] = {}
    for path, route in routes_of(app.routes):
        assert isinstance(route, GuardedRoute) or (isinstance(route, Route) and path in PROBES), f"{path} has no guard"
        for method in (route.methods or set()) - {"HEAD"}:
            assert f"{method} {path}" not in found, f"{method} {path} is there twice"
            found[f"{method} {path}"] = need_of(route.dependant) if isinstance(route, GuardedRoute) else Need.PUBLIC
    return found


def service_methods(*modules: ModuleType) -> set[str]:
    services = [s for m in modules for s in m.DESCRIPTOR.services_by_name.values()]
    return {f"{s.full_name}/{method.name}" for s in services for method in s.methods}


# -- a server ---------------------------------------------------------------------------------------------------------


@dataclass
class World:
    app: Any
    grpc_address: str
    keys: Keys
    run_id: bytes
    own: dict[Role, str] = field(default_factory=dict)
    """Keys of the namespace that has the run."""
    foreign: dict[Role, str] = field(default_factory=dict)
    everywhere: dict[Role, str] = field(default_factory=dict)

    async def key(self, role: Role, namespace: str | None) -> str:
        return (await self.keys.create(NewKey(name="matrix", role=role, namespace=namespace, created_by="test")))[1]

    async def ask(self, door: str, path: str, key: str | None, headers: dict[str, str] | None = None) -> Answer:
        return await ask(self.app, door.partition(" ")[0], path, key, BODIES.get(door), headers or {})

    def address(self, door: str, run: str | None = None) -> str:
        """A door's path with every name filled in: of a run that is not there, or of the one that is."""
        path = door.partition(" ")[2]
        if "/keys/" in path:
            return path.replace("{id}", "nosuchkey123")
        named = {
            "id": run or ids.text(secrets.token_bytes(16)), "task": "1", "name": _name_in(path, run is not None),
            "update_id": "matrix-one", "version": matrix_flow.version if run else "0", "scope": "queue", "token": "nothing", "namespace": "default",
        }  # fmt: skip
        filled = re.sub(r"\{(\w+)(?::path)?\}", lambda m: named[m[1]], path)
        return f"{filled}?run={run}" if path.endswith("/stream") and run else filled


def _name_in(path: str, real: bool) -> str:
    if not real:
        return "nothing"
    for part, name in (
        ("/workflows/", "matrix_flow"), ("/promises/", "matrix_answer"), ("/state/", "matrix_note"), ("/approvals/", "matrix_ok"),
        ("/schedules/", "matrix_schedule"),
    ):  # fmt: skip
        if part in path:
            return name
    return "anything"


def unknown_key() -> str:
    return compose(secrets.token_hex(6), secrets.token_urlsafe(32))


@dataclass
class Answer:
    status: int
    body: bytes


async def ask(app: Any, method: str, path: str, key: str | None, body: Any, headers: dict[str, str]) -> Answer:
    """One request, by hand: a stream is left as soon as it has shown its status and its first words."""
    plain, _, query = path.partition("?")
    credential = {"authorization": f"Bearer {key}"} if key else {}
    given = {"host": "127.0.0.1", **headers, **credential, "content-type": "application/json"}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http", "path": plain,
        "raw_path": plain.encode(), "query_string": query.encode(), "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        "headers": [(k.encode(), v.encode()) for k, v in given.items()],
    }  # fmt: skip
    content = json.dumps(body).encode() if body is not None else b""
    sent: list[dict[str, Any]] = []
    inbox = [{"type": "http.request", "body": content, "more_body": False}]
    enough = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if inbox:
            return inbox.pop(0)
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and (
            not message.get("more_body") or b"/stream" in scope["raw_path"]
        ):
            enough.set()

    serving = asyncio.create_task(app(scope, receive, send))
    looking = asyncio.create_task(enough.wait())
    try:
        # A stream that has nothing to say yet has at least answered.
        await asyncio.wait(
            {serving, looking}, timeout=5 if not plain.endswith("/stream") else 0.3, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        enough.set()
        looking.cancel()
        try:
            async with asyncio.timeout(2):
                await serving
        except (TimeoutError, asyncio.CancelledError):
            pass
    status = next(m["status"] for m in sent if m["type"] == "http.response.start")
    return Answer(status, b"".join(m.get("body", b"") for m in sent if m["type"] == "http.response.body"))


@pytest.fixture
async def world(dsn: str) -> AsyncIterator[World]:
    """A server as it is run, and beside it a process that has the code of a run which waits."""
    definitions.tasks.adopt(matrix_step)
    await store_keys.create_namespace(dsn, "other", by="test")
    server = ServerProcess(
        ServerSettings(dsn=dsn, http=Address("127.0.0.1", 0), grpc=Address("127.0.0.1", 0), drain_s=5.0)
    )
    await server.start()
    try:
        async with Perdure(dsn):
            handle = await matrix_flow.start("secret words")
            async with asyncio.timeout(30):
                while await matrix_note.read(handle.id) != "secret words":
                    await asyncio.sleep(0.01)
            with pytest.raises(TimeoutError):
                await matrix_update.ask(handle.id, 1, key="matrix-one", timeout=0.01)
            await Schedule("matrix_schedule", matrix_flow.bind("secret words"), every="1d").apply()
            keys = server.server.keys
            assert isinstance(keys, Keys)
            found = World(server._app, str(server.grpc), keys, ids.parse(handle.id))
            for role in Role:
                found.own[role] = await found.key(role, "default")
                found.foreign[role] = await found.key(role, "other")
                found.everywhere[role] = await found.key(role, None)
            yield found
    finally:
        await server.stop()


# -- REST -------------------------------------------------------------------------------------------------------------


async def test_every_route_is_listed_and_needs_what_is_listed(world: World) -> None:
    found = doors(world.app)
    assert found == ROUTES
    assert {door for door, need in found.items() if need is Need.PUBLIC} == OPEN_ROUTES


async def test_a_stranger_gets_through_no_door_but_the_open_ones(world: World) -> None:
    for door, need in ROUTES.items():
        for run in (None, ids.text(world.run_id)):
            for key in (None, unknown_key()):
                answer = await world.ask(door, world.address(door, run), key)
                assert (answer.status == 401) == (need is not Need.PUBLIC), f"{door}: {answer}"
                assert b"secret words" not in answer.body


async def test_a_role_gets_through_exactly_the_doors_it_is_granted(world: World) -> None:
    for door, need in ROUTES.items():
        for role in Role:
            allowed = need in Need if isinstance(need, Need) else need in GRANTS[role]
            answer = await world.ask(door, world.address(door), world.everywhere[role])
            assert answer.status != 401, f"{door} as {role.value}: {answer}"
            assert (answer.status != 403) == allowed, f"{door} as {role.value}: {answer}"


COMMANDS_FLOWS = {
    "run": "tasks: {a: {run: [echo, hi]}}",
    "by name": 'tasks: {a: {python: perdure.run, with: {command: "echo hi"}}}',
    "in a body": "tasks: {a: {tasks: {b: {run: [echo, hi]}}}}",
    "as undo": "tasks: {a: {python: matrix_step, compensate: {run: [echo, hi]}}}",
}


async def test_a_flow_with_commands_needs_a_permission_of_its_own(world: World) -> None:
    """Deploying it, and moving back to a version that has them."""
    for number, (what, text) in enumerate(COMMANDS_FLOWS.items()):
        name = f"matrix_commands_{number}"
        plain = {"source": f"flow: {name}\ntasks: {{a: {{value: 1}}}}"}
        body = {"source": f"flow: {name}\n{text}"}
        for role in Role:
            answer = await ask(world.app, "POST", f"{API}/workflows", world.own[role], body, {})
            allowed = {DEVELOP, Permission.COMMANDS} <= GRANTS[role]
            assert (answer.status == 403) == (not allowed), f"{what} as {role.value}: {answer}"
            if not allowed and DEVELOP in GRANTS[role]:
                assert b"'commands'" in answer.body and b"'a'" in answer.body or b"'b'" in answer.body
        version = json.loads((await ask(world.app, "GET", f"{API}/workflows/{name}", world.own[Role.ADMIN], None, {})).body)["version"]  # fmt: skip
        for role, status in ((Role.DEVELOPER, 403), (Role.ADMIN, 200)):
            assert (await ask(world.app, "POST", f"{API}/workflows", world.own[Role.DEVELOPER], plain, {})).status in (
                200,
                201,
            )
            answer = await ask(
                world.app, "POST", f"{API}/workflows/{name}/current", world.own[role], {"version": version}, {}
            )
            assert answer.status == status, f"{what} as {role.value}: {answer}"
    scopes = frozenset({DEVELOP, Permission.COMMANDS})
    narrow = (await world.keys.create(NewKey(name="n", role=Role.ADMIN, scopes=scopes, created_by="test")))[1]
    assert (await ask(world.app, "POST", f"{API}/workflows", narrow, body, {})).status == 200
    assert (await ask(world.app, "GET", f"{API}/keys", narrow, None, {})).status == 403
    less = (await world.keys.create(NewKey(name="n", role=Role.ADMIN, scopes=frozenset({DEVELOP}), created_by="test")))[
        1
    ]
    assert (await ask(world.app, "POST", f"{API}/workflows", less, body, {})).status == 403


async def test_what_is_in_another_namespace_is_not_found(world: World) -> None:
    run = ids.text(world.run_id)
    for door in ROUTES:
        if not any(part in door for part in ("/runs/{id}", "/approvals/{id}", "/workflows/{name}", "/schedules/{name")):
            continue
        answer = await world.ask(door, world.address(door, run), world.foreign[Role.ADMIN])
        assert answer.status == 404, f"{door}: {answer}"
        assert b"secret words" not in answer.body
        if door.startswith("GET") and not door.endswith("/logs"):
            seen = await world.ask(door, world.address(door, run), world.own[Role.ADMIN])
            assert seen.status in (200, 202), f"{door}: its owner sees it, or this test proves nothing: {seen}"
    for name in (run[:8], run[:13], f"{run[:18]}", "@last", "key:anything"):
        answer = await world.ask(f"GET {API}/runs/{{id}}", f"{API}/runs/{name}", world.foreign[Role.ADMIN])
        assert answer.status == 404, f"{name}: {answer}"


async def test_lists_and_streams_show_nothing_of_another_namespace(world: World) -> None:
    run = ids.text(world.run_id)
    own_key = world.own[Role.VIEWER][3:15]
    for door in ROUTES:
        path = door.partition(" ")[2]
        if not door.startswith("GET") or "{" in path or door in OPEN_ROUTES:
            continue
        queries = ("",) if not path.endswith("/stream") else ("?runs=1", f"?run={run}", f"?logs={run}")
        for query in queries:
            answer = await world.ask(door, path + query, world.foreign[Role.ADMIN])
            if run in query:
                assert answer.status == 404, f"{door}{query}: {answer}"
                continue
            for canary in (run, run.replace("-", ""), "matrix_flow", "secret words", own_key, "matrix_step"):
                assert canary.encode() not in answer.body, f"{door}{query}: {canary}"
    listed = await world.ask(f"GET {API}/runs", f"{API}/runs", world.own[Role.VIEWER])
    assert run.encode() in listed.body, "its owner sees it, or this test proves nothing"


async def test_a_key_of_a_namespace_cannot_pick_another_one(world: World) -> None:
    run = ids.text(world.run_id)
    for door, need in ROUTES.items():
        if need is Need.PUBLIC:
            continue
        for name in ("default", "nowhere"):
            answer = await world.ask(
                door, world.address(door, run), world.foreign[Role.ADMIN], {"perdure-namespace": name}
            )
            assert answer.status == 404, f"{door} in {name}: {answer}"
    door = f"GET {API}/runs/{{id}}"
    free = world.everywhere[Role.VIEWER]
    assert (await world.ask(door, world.address(door, run), free, {"perdure-namespace": "default"})).status == 200
    assert (await world.ask(door, world.address(door, run), free, {"perdure-namespace": "other"})).status == 404
    assert (await world.ask(door, world.address(door, run), free, {"perdure-namespace": "nowhere"})).status == 404


async def test_an_administrator_of_a_namespace_administers_that_one_alone(world: World) -> None:
    admin = world.foreign[Role.ADMIN]
    victim = world.own[Role.VIEWER][3:15]
    assert (await ask(world.app, "DELETE", f"{API}/keys/{victim}", admin, None, {})).status == 404
    assert (await world.ask(f"GET {API}/runs", f"{API}/runs", world.own[Role.VIEWER])).status == 200, "it still works"
    for body, expected in (
        ({"name": "x", "role": "viewer", "namespace": "default"}, {403, 404}),
        ({"name": "x", "role": "admin", "namespace": None}, {201, 403}),
        ({"name": "x", "role": "admin"}, {201, 403}),
    ):
        answer = await ask(world.app, "POST", f"{API}/keys", admin, body, {})
        assert answer.status in expected, answer
        if answer.status == 201:
            assert json.loads(answer.body)["namespace"] == "other", "never more than the issuer has"
    assert (await ask(world.app, "POST", f"{API}/namespaces", admin, {"name": "third"}, {})).status == 403
    assert (await ask(world.app, "DELETE", f"{API}/namespaces/default", admin, None, {})).status in (403, 404)


async def test_a_narrowed_administrator_hands_out_no_more_than_it_has(world: World) -> None:
    new = NewKey(name="n", role=Role.ADMIN, scopes=frozenset({Permission.ADMIN}), created_by="test")
    _, narrow = await world.keys.create(new)
    for body in (
        {"name": "x", "role": "admin"},
        {"name": "x", "role": "viewer"},
        {"name": "x", "role": "admin", "scopes": ["work"]},
    ):
        assert (await ask(world.app, "POST", f"{API}/keys", narrow, body, {})).status == 403
    within = {"name": "x", "role": "admin", "scopes": ["admin"]}
    assert (await ask(world.app, "POST", f"{API}/keys", narrow, within, {})).status == 201


async def test_paths_that_resemble_an_open_door_are_not_open(world: World) -> None:
    for path in (
        f"{API}/runs/livez", f"{API}/runs/openapi.json", f"{API}/keys/readyz", f"{API}/workflows/metrics", "/runs/livez", "/runs/openapi.json",
        f"{API}/runs/x%2flivez", f"{API}/keys/..%2f..%2flivez",
    ):  # fmt: skip
        assert (await ask(world.app, "GET", path, None, None, {})).status in (401, 404, 405), path
        seen = await ask(world.app, "GET", path, None, None, {})
        assert seen.status != 200, path


# -- gRPC -------------------------------------------------------------------------------------------------------------


def test_every_method_is_listed_and_needs_what_is_listed() -> None:
    described = service_methods(runs_pb2, worker_pb2)
    assert described == set(METHODS), "a method that is in a .proto file and not here has no permission"
    assert METHODS == grpc_server.METHODS


async def call(
    channel: grpc.aio.Channel, method: str, key: str | None, request: bytes = b"", **metadata: str
) -> grpc.StatusCode:
    given = [*metadata.items(), *([("authorization", f"Bearer {key}")] if key else [])]
    try:
        if method.endswith(("/Connect", "/Session")):
            stream = channel.stream_stream(f"/{method}")(metadata=given, timeout=CALL_S)
            await stream.write(request)
            await stream.done_writing()
            await stream.read()
            return await stream.code()
        await channel.unary_unary(f"/{method}")(request, metadata=given, timeout=CALL_S)
    except grpc.aio.AioRpcError as e:
        return e.code()
    return grpc.StatusCode.OK


async def test_a_method_lets_in_exactly_the_roles_it_is_granted_to(world: World) -> None:
    refused, denied = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
    async with grpc.aio.insecure_channel(world.grpc_address) as channel:
        for method, permission in METHODS.items():
            assert await call(channel, method, None) is refused, method
            assert await call(channel, method, unknown_key()) is refused, method
            for role in Role:
                code = await call(channel, method, world.everywhere[role])
                assert code is not refused, f"{method} as {role.value}"
                granted = permission is None or permission in GRANTS[role]
                assert (code is not denied) == granted, f"{method} as {role.value}: {code}"


async def in_session(channel: grpc.aio.Channel, key: str, name: str, request: bytes = b"", **metadata: str) -> str:
    """The error code of a call inside a session; empty when it went well."""
    given = [*metadata.items(), ("authorization", f"Bearer {key}")]
    stream = channel.stream_stream("/perdure.v1.Runs/Session")(metadata=given, timeout=CALL_S)
    await stream.write(wire_runs.encode_calls([wire_runs.Call(1, name, request)]))
    data = await stream.read()
    if data is grpc.aio.EOF:
        return (await stream.code()).name
    (reply,) = wire_runs.decode_replies(data)
    stream.cancel()
    return reply.code


async def test_a_call_inside_a_session_is_granted_and_confined_as_by_itself(world: World) -> None:
    inner = {m.split("/")[1]: p for m, p in METHODS.items() if m.startswith("perdure.v1.Runs/") and p is not None}
    run = wire_runs.encode_run(world.run_id, 50)
    async with grpc.aio.insecure_channel(world.grpc_address) as channel:
        for name, permission in inner.items():
            for role in Role:
                code = await in_session(channel, world.everywhere[role], name)
                assert (code != "forbidden") == (permission in GRANTS[role]), f"{name} as {role.value}: {code}"
        for name in ("Outcome", "Describe", "Resume", "Retry"):
            assert await in_session(channel, world.foreign[Role.ADMIN], name, run) == "not_found", name
        assert await in_session(channel, world.everywhere[Role.ADMIN], "Session") == "invalid_input"
        assert await in_session(channel, world.everywhere[Role.ADMIN], "Drop") == "invalid_input"


async def test_a_method_finds_nothing_of_another_namespace(world: World) -> None:
    run = world.run_id
    requests = {
        "Outcome": wire_runs.encode_run(run, 50), "Describe": wire_runs.encode_run(run), "Resume": wire_runs.encode_run(run), "Retry": wire_runs.encode_run(run),
        "Find": runs_pb2.FindRequest(key="anything").SerializeToString(), "History": runs_pb2.HistoryRequest(run_id=run).SerializeToString(),
        "ReadState": runs_pb2.NameRequest(run_id=run, name="matrix_note").SerializeToString(),
        "Cancel": runs_pb2.CancelRequest(run_id=run).SerializeToString(),
        "Signal": runs_pb2.MessageRequest(run_id=run, name="x", value=b"1").SerializeToString(),
        "Resolve": runs_pb2.MessageRequest(run_id=run, name="matrix_answer", value=b'"x"').SerializeToString(),
        "Update": runs_pb2.UpdateRequest(run_id=run, id="matrix-one", name="matrix_update", value=b"1").SerializeToString(),
        "Vote": runs_pb2.VoteRequest(run_id=run, name="matrix_ok", approved=True).SerializeToString(),
        "Delegate": runs_pb2.DelegateRequest(run_id=run, name="matrix_ok", to="x").SerializeToString(),
        "Link": runs_pb2.LinkRequest(run_id=run, kind="approval", name="matrix_ok", who="x").SerializeToString(),
        "Start": runs_pb2.StartRequest(workflow="matrix_flow", input=b'["x"]').SerializeToString(),
        "Run": runs_pb2.StartRequest(workflow="matrix_flow", input=b'["x"]').SerializeToString(),
        "SignalWithStart": runs_pb2.SignalWithStartRequest(signal="x", value=b"1").SerializeToString(),
        "Emit": runs_pb2.EmitRequest(name="matrix.event", value=b"1").SerializeToString(),
        "ReadSchedule": encode_asked(Asked(method="get", name="matrix_schedule")),
        "OperateSchedule": encode_asked(Asked(method="trigger", name="matrix_schedule")),
        "ChangeSchedule": encode_asked(Asked(method="delete", name="matrix_schedule")),
    }  # fmt: skip
    named = {m for m, permission in METHODS.items() if m.startswith("perdure.v1.Runs/") and permission is not None}
    assert {f"perdure.v1.Runs/{name}" for name in requests} == named
    async with grpc.aio.insecure_channel(world.grpc_address) as channel:
        for name, request in requests.items():
            if name not in ("Start", "Run", "SignalWithStart", "Emit"):  # those make something of their own
                code = await call(channel, f"perdure.v1.Runs/{name}", world.foreign[Role.ADMIN], request)
                assert code is grpc.StatusCode.NOT_FOUND, f"{name}: {code}"
            picked = await call(
                channel,
                f"perdure.v1.Runs/{name}",
                world.foreign[Role.ADMIN],
                request,
                **{"perdure-namespace": "default"},
            )
            assert picked is grpc.StatusCode.NOT_FOUND, f"{name}: {picked}"
        for name in ("Describe", "History", "ReadState", "ReadSchedule"):
            assert (
                await call(channel, f"perdure.v1.Runs/{name}", world.own[Role.VIEWER], requests[name])
                is grpc.StatusCode.OK
            )


def test_use_cases_of_a_namespace_cannot_be_asked_about_another() -> None:
    """Every use case works inside the namespace it was made for; none takes a namespace from its caller."""
    import inspect

    for name, method in inspect.getmembers(UseCases, inspect.isfunction):
        if not name.startswith("_"):
            assert not {"ns", "namespace"} & set(inspect.signature(method).parameters), name
