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
from perdure.core import ids
from perdure.core.access import GRANTS, NewKey, Permission, Role
from perdure.core.api import (
    ACTS,
    approvals,
    attempts,
    bulk_jobs,
    cluster,
    definitions,
    flow_control,
    inspection,
    messages,
    named_events,
    notifications,
    repairs,
    retention,
    runs,
    saved_views,
    schedules,
    services,
    statistics,
    timeline,
    versions,
    workflow_runs,
)
from perdure.core.api_keys import compose
from perdure.programs.server_process import ServerProcess
from perdure.programs.settings import Address, ServerSettings
from perdure.sdk import registry
from perdure.server.grpc import server as grpc_server
from perdure.server.rest.guard import PUBLIC, GuardedRoute, Need, allow_of
from perdure.store import api_keys as store_keys
from perdure.store.api_keys import Keys
from perdure.wire import acts
from perdure.wire.pb import api_pb2, worker_pb2
from tests.fakes.waiting import until

READ, START, OPERATE, DEVELOP, WORK, ADMIN = (
    Permission.READ,
    Permission.START,
    Permission.OPERATE,
    Permission.DEVELOP,
    Permission.WORK,
    Permission.ADMIN,
)
API = "/api/v1"

UI_PAGES = (
    "runs",
    "bulk-jobs",
    "workflows",
    "schedules",
    "approvals",
    "workers",
    "limits",
    "dead-letters",
    "events",
    "audit",
    "settings",
)
UI_ROUTES = {
    *("GET /", "GET /assets/{name}", "GET /theme.js", "GET /favicon.svg", "GET /{rest:path}"),
    *(f"GET /{page}" for page in UI_PAGES),
    *(f"GET /{page}/{{rest:path}}" for page in UI_PAGES),
}
"""Files of the package, the same for everyone: what they show comes through the API."""

ROUTES: dict[str, Need] = {
    **dict.fromkeys(UI_ROUTES, PUBLIC),
    "GET /static/{name}": PUBLIC,
    "GET /errors": PUBLIC,
    "GET /auth/oidc/start": PUBLIC,
    "GET /auth/oidc/callback": PUBLIC,
    f"GET {API}/session": PUBLIC,
    f"POST {API}/session": PUBLIC,
    f"DELETE {API}/session": PUBLIC,
    f"GET {API}/session/device": PUBLIC,
    "GET /livez": PUBLIC,
    "GET /readyz": PUBLIC,
    "GET /metrics": PUBLIC,
    f"GET {API}/openapi.json": PUBLIC,
    f"GET {API}/workflows": READ,
    f"POST {API}/workflows": DEVELOP,
    f"POST {API}/workflows/deploy": DEVELOP,
    f"GET {API}/workflows/{{name}}": READ,
    f"DELETE {API}/workflows/{{name}}": DEVELOP,
    f"GET {API}/workflows/{{name}}/versions": READ,
    f"POST {API}/workflows/validate": READ,
    f"GET {API}/workflows/{{name}}/versions/{{version}}": READ,
    f"POST {API}/workflows/{{name}}/current": DEVELOP,
    f"POST {API}/workflows/{{name}}/rollback": DEVELOP,
    f"POST {API}/workflows/{{name}}/versions/{{version}}/move": DEVELOP,
    f"GET {API}/workflows/{{name}}/graph": READ,
    f"GET {API}/schema/flow.json": READ,
    f"POST {API}/workflows/{{name}}/runs": START,
    f"GET {API}/runs": READ,
    f"GET {API}/runs/histogram": READ,
    f"GET {API}/counts": READ,
    f"GET {API}/workflow-durations": READ,
    f"GET {API}/workflows/{{name}}/stats": READ,
    f"GET {API}/runs/{{id}}": READ,
    f"GET {API}/runs/{{id}}/status": READ,
    f"GET {API}/runs/{{id}}/result": READ,
    f"POST {API}/runs/{{id}}/cancel": OPERATE,
    f"GET {API}/runs/{{id}}/children": READ,
    f"POST {API}/runs/{{id}}/terminate": OPERATE,
    f"POST {API}/runs/{{id}}/pause": OPERATE,
    f"DELETE {API}/runs/{{id}}": OPERATE,
    f"POST {API}/runs/{{id}}/retry": OPERATE,
    f"POST {API}/runs/{{id}}/resume": OPERATE,
    f"POST {API}/runs/{{id}}/rerun": START,
    f"POST {API}/runs/{{id}}/fork": OPERATE,
    f"POST {API}/runs/{{id}}/override": OPERATE,
    f"GET {API}/runs/{{id}}/at/{{event}}": READ,
    f"GET {API}/runs/{{id}}/diff": READ,
    f"GET {API}/runs/{{id}}/export": READ,
    f"GET {API}/runs/{{id}}/graph": READ,
    f"GET {API}/runs/{{id}}/tasks": READ,
    f"GET {API}/runs/{{id}}/tasks/{{task}}/logs": READ,
    f"GET {API}/runs/{{id}}/logs": READ,
    f"GET {API}/runs/{{id}}/attempts": READ,
    f"GET {API}/runs/{{id}}/tasks/{{task}}/attempts": READ,
    f"GET {API}/runs/{{id}}/history": READ,
    f"GET {API}/runs/{{id}}/timeline": READ,
    f"GET {API}/runs/count": READ,
    f"GET {API}/workflows/{{name}}/grid": READ,
    f"GET {API}/workflows/{{name}}/errors": READ,
    f"GET {API}/workflows/{{name}}/inputs": READ,
    f"GET {API}/workers/{{id}}": READ,
    f"GET {API}/limit-use": READ,
    f"GET {API}/run-paths": READ,
    f"GET {API}/runs/{{id}}/state": READ,
    f"GET {API}/runs/{{id}}/state/{{name}}": READ,
    f"POST {API}/runs/{{id}}/updates/{{name}}": OPERATE,
    f"GET {API}/runs/{{id}}/updates/{{key}}": READ,
    f"POST {API}/runs/{{id}}/queries/{{name}}": READ,
    f"POST {API}/runs/{{id}}/signals/{{name}}": OPERATE,
    f"POST {API}/runs/{{id}}/promises/{{name}}": OPERATE,
    f"POST {API}/runs/{{id}}/promises/{{name:path}}/links": OPERATE,
    f"GET {API}/approvals": READ,
    f"GET {API}/approvals/{{id}}/{{name:path}}": READ,
    f"POST {API}/approvals/{{id}}/{{name:path}}/approve": OPERATE,
    f"POST {API}/approvals/{{id}}/{{name:path}}/reject": OPERATE,
    f"POST {API}/approvals/{{id}}/{{name:path}}/delegate": OPERATE,
    f"POST {API}/approvals/{{id}}/{{name:path}}/links": OPERATE,
    "GET /links/{token}": PUBLIC,
    "POST /links/{token}": PUBLIC,
    f"POST {API}/workflows/{{name}}/signal-with-start": OPERATE,
    f"GET {API}/events": READ,
    f"POST {API}/events/{{name}}": OPERATE,
    f"GET {API}/webhooks": READ,
    f"PUT {API}/webhooks/{{name}}": DEVELOP,
    f"POST {API}/webhooks/{{name}}/rotate": DEVELOP,
    f"DELETE {API}/webhooks/{{name}}": DEVELOP,
    f"GET {API}/notification-rules": READ,
    f"PUT {API}/notification-rules/{{name}}": DEVELOP,
    f"POST {API}/notification-rules/{{name}}/rotate": DEVELOP,
    f"DELETE {API}/notification-rules/{{name}}": DEVELOP,
    f"GET {API}/notifications": READ,
    f"POST {API}/notifications/retry": OPERATE,
    "POST /hooks/{namespace}/{name}": PUBLIC,
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
    f"GET {API}/views": READ,
    f"PUT {API}/views/{{name:path}}": OPERATE,
    f"DELETE {API}/views/{{name:path}}": OPERATE,
    f"POST {API}/bulk-jobs": OPERATE,
    f"GET {API}/bulk-jobs": READ,
    f"GET {API}/bulk-jobs/{{id}}": READ,
    f"GET {API}/bulk-jobs/{{id}}/runs": READ,
    f"POST {API}/bulk-jobs/{{id}}/cancel": OPERATE,
    f"GET {API}/calendars": READ,
    f"GET {API}/calendars/{{name:path}}": READ,
    f"PUT {API}/calendars/{{name:path}}": DEVELOP,
    f"DELETE {API}/calendars/{{name:path}}": DEVELOP,
    f"GET {API}/workers": READ,
    f"GET {API}/services": READ,
    **{f"POST {base}/workers/{word}": WORK for base in ("", API) for word in ("register", "heartbeat")},
    **{f"GET {base}/workers/{word}": READ for base in ("", API) for word in ("list", "allocate")},
    "POST /callbacks/{token}": PUBLIC,
    f"GET {API}/queues": READ,
    f"GET {API}/server": READ,
    f"GET {API}/payloads/{{sha256}}": None,
    f"GET {API}/limits": READ,
    f"GET {API}/retention": READ,
    f"PUT {API}/retention/{{scope}}/{{name}}": ADMIN,
    f"DELETE {API}/retention/{{scope}}/{{name}}": ADMIN,
    f"GET {API}/retention-status": READ,
    f"PUT {API}/limits/{{scope}}/{{name}}": OPERATE,
    f"DELETE {API}/limits/{{scope}}/{{name}}": OPERATE,
    f"POST {API}/queues/{{name}}/pause": OPERATE,
    f"POST {API}/queues/{{name}}/resume": OPERATE,
    f"POST {API}/workflows/{{name}}/pause": OPERATE,
    f"POST {API}/workflows/{{name}}/resume": OPERATE,
    f"GET {API}/stream": READ,
    f"GET {API}/whoami": None,
    f"GET {API}/namespaces": ADMIN,
    f"POST {API}/namespaces": ADMIN,
    f"DELETE {API}/namespaces/{{name}}": ADMIN,
    f"GET {API}/api-keys": ADMIN,
    f"POST {API}/api-keys": ADMIN,
    f"DELETE {API}/api-keys/{{id}}": ADMIN,
    f"GET {API}/audit": ADMIN,
}

PROBES = {"/livez", "/readyz", "/metrics"}
OPEN_ROUTES = {
    *UI_ROUTES,
    "POST /hooks/{namespace}/{name}",
    *(f"GET {path}" for path in PROBES),
    "GET /static/{name}",
    "GET /errors",
    f"GET {API}/openapi.json",
    "GET /links/{token}",
    "POST /links/{token}",
    "POST /callbacks/{token}",
    "GET /auth/oidc/start",
    "GET /auth/oidc/callback",
    f"GET {API}/session",
    f"POST {API}/session",
    f"DELETE {API}/session",
    f"GET {API}/session/device",
}
"""What a stranger may see. Exact names: a pattern would let in whatever is added below it."""

METHODS: dict[str, Permission | None] = {
    "perdure.v1.Workers/Connect": Permission.WORK,
    "perdure.v1.Workers/Beat": Permission.WORK,
    "perdure.v1.Api/Call": None,
    "perdure.v1.Api/Session": None,
}
"""None: any authenticated principal; each call inside is checked against its act."""

PERMISSIONS: dict[Permission | None, set[str]] = {
    None: {"whoami", "payload.announce", "payload.put", "payload.get", "payload.find"},
    READ: {
        *(
            "run.list",
            "run.status",
            "run.get",
            "run.result",
            "run.tasks",
            "run.logs",
            "run.history",
            "run.graph",
            "run.paths",
        ),
        *("run.attempts", "run.children", "run.timeline", "run.count"),
        *("workflow.grid", "workflow.errors", "workflow.inputs", "worker.get", "rule.use"),
        *("run.histogram", "workflow.stats", "workflow.durations", "namespace.counts"),
        *("run.update_result", "run.state", "run.states", "run.query", "run.at", "run.diff", "run.export"),
        *("approval.list", "approval.get", "event.list", "webhook.list"),
        *("notification_rule.list", "notification.list"),
        *("schedule.list", "schedule.get", "schedule.times", "schedule.preview", "schedule.fires"),
        *("calendar.list", "calendar.get", "view.list", "bulk_job.list", "bulk_job.get", "bulk_job.runs"),
        *(
            "workflow.list",
            "workflow.get",
            "workflow.validate",
            "workflow.version",
            "workflow.graph",
            "workflow.schema",
            "version.list",
        ),
        *("rule.list", "dead_letter.list", "worker.list", "queue.list", "server.get"),
        *("service.list", "service.allocate"),
        *("retention.list", "retention.status"),
    },
    START: {"run.start", "run.run", "run.rerun"},
    OPERATE: {
        *("run.fork", "node.override"),
        *("run.cancel", "run.terminate", "run.pause", "run.resume", "run.retry", "run.delete"),
        *("run.signal", "run.signal_with_start", "run.resolve", "run.update"),
        *("approval.answer", "approval.delegate", "link.create", "event.emit", "notification.retry"),
        *("schedule.pause", "schedule.resume", "schedule.trigger", "schedule.backfill"),
        *("view.save", "view.delete", "bulk_job.start", "bulk_job.cancel"),
        *("rule.set", "rule.clear", "rule.pause", "rule.resume", "dead_letter.retry"),
    },
    DEVELOP: {
        *("workflow.register", "workflow.deploy", "workflow.delete"),
        *("version.set_current", "version.rollback", "version.move"),
        *("schedule.put", "schedule.delete", "calendar.put", "calendar.delete"),
        *("webhook.put", "webhook.rotate", "webhook.delete"),
        *("notification_rule.put", "notification_rule.rotate", "notification_rule.delete"),
    },
    WORK: {
        *("service.register", "service.heartbeat"),
        *("service_call.begin", "service_call.accept", "service_call.ends", "service_call.close"),
    },
    ADMIN: {
        *("retention.set", "retention.remove"),
        *("namespace.list", "namespace.create", "namespace.delete"),
        *("key.list", "key.create", "key.revoke", "audit.list"),
    },
}
"""Every act. Written out, so that a wrong permission in the table of acts is noticed."""

BODIES: dict[str, Any] = {
    f"POST {API}/workflows": {"name": "matrix_other", "version": "1"},
    f"POST {API}/workflows/deploy": {"source": "flow: matrix_written\ntasks: {a: {value: 1}}"},
    f"POST {API}/workflows/validate": {"source": "flow: matrix_written\ntasks: {a: {value: 1}}"},
    f"POST {API}/workflows/{{name}}/current": {"version": "0"},
    f"POST {API}/workflows/{{name}}/versions/{{version}}/move": {"to": "0"},
    f"POST {API}/workflows/{{name}}/runs": {"args": ["x"]},
    f"POST {API}/runs/{{id}}/fork": {"at": 1},
    f"POST {API}/runs/{{id}}/override": {"node": "a", "how": "skip"},
    f"POST {API}/runs/{{id}}/signals/{{name}}": "value",
    f"POST {API}/runs/{{id}}/promises/{{name}}": "value",
    f"POST {API}/runs/{{id}}/promises/{{name:path}}/links": {},
    f"POST {API}/approvals/{{id}}/{{name:path}}/approve": {},
    f"POST {API}/approvals/{{id}}/{{name:path}}/reject": {},
    f"POST {API}/approvals/{{id}}/{{name:path}}/delegate": {"to": "ben"},
    f"POST {API}/approvals/{{id}}/{{name:path}}/links": {"who": "ada"},
    "POST /links/{token}": {"approved": True},
    f"POST {API}/workflows/{{name}}/signal-with-start": {"key": "matrix-signalled", "args": ["x"], "signal": "go"},
    f"POST {API}/events/{{name}}": {"payload": 1},
    f"PUT {API}/webhooks/{{name}}": {"event": "matrix.event"},
    f"PUT {API}/notification-rules/{{name}}": {
        "kinds": ["run.late"],
        "workflows": ["matrix_none"],
        "late_after": "1d",
        "target": "webhook",
        "address": "https://matrix.example",
    },
    f"POST {API}/notifications/retry": {},
    f"POST {API}/runs/{{id}}/updates/{{name}}": {"value": 1, "wait": 0},
    f"POST {API}/runs/{{id}}/queries/{{name}}": {},
    f"PUT {API}/limits/{{scope}}/{{name}}": {"concurrency": 1000},
    f"PUT {API}/retention/{{scope}}/{{name}}": {"days": 30},
    f"POST {API}/dead-letters/retry": {"workflow": "matrix_none", "dry_run": True},
    f"POST {API}/schedules": {"name": "matrix-made", "workflow": "matrix_flow", "args": ["x"], "spec": {"every": "1h"}},
    f"POST {API}/schedules/preview": {"spec": {"every": "1h"}},
    f"POST {API}/schedules/{{name:path}}/backfill": {"since": "1h", "dry_run": True},
    f"PUT {API}/schedules/{{name:path}}": {"workflow": "matrix_flow", "args": ["x"], "spec": {"every": "1h"}},
    f"PUT {API}/calendars/{{name:path}}": {"weekdays": ["sat"]},
    f"PUT {API}/views/{{name:path}}": {"query": "status = failed"},
    f"POST {API}/bulk-jobs": {"action": "cancel", "query": "workflow = matrix_none", "dry_run": True},
    **{
        f"POST {base}/workers/{word}": {"id": "matrix", "url": "http://matrix.example", "services": ["matrix"]}
        for base in ("", API)
        for word in ("register", "heartbeat")
    },
    "POST /callbacks/{token}": {"result": 1, "error": ""},
    f"POST {API}/namespaces": {"name": "matrix-made"},
    f"POST {API}/api-keys": {"name": "made", "role": "viewer"},
}

CALL_S = 5.0
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


def doors(app: Any) -> dict[str, Need]:
    """What each way in needs. A route that passes no guard must be one of the probes, by its exact name."""
    found: dict[str, Need] = {}
    for path, route in routes_of(app.routes):
        assert isinstance(route, GuardedRoute) or (isinstance(route, Route) and path in PROBES), f"{path} has no guard"
        for method in (route.methods or set()) - {"HEAD"}:
            assert f"{method} {path}" not in found, f"{method} {path} is there twice"
            found[f"{method} {path}"] = _need(route)
    return found


def _need(route: BaseRoute) -> Need:
    if not isinstance(route, GuardedRoute):
        return PUBLIC
    allow = allow_of(route.dependant)
    assert allow.act is None or allow.act.permission == allow.need, f"{route.path} does not need what its act needs"
    return allow.need


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
    bulk_job: str = ""
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
        if "/api-keys/" in path:
            return path.replace("{id}", "nosuchkey123")
        real = self.bulk_job if "/bulk-jobs/" in path else run
        named = {
            "id": real if run else ids.text(secrets.token_bytes(16)),
            "task": "1",
            "event": "1",
            "name": _name_in(path, run is not None),
            "key": "matrix-one",
            "version": matrix_flow.version if run else "0",
            "scope": "workflow" if "/retention/" in path else "queue",
            "token": "nothing",
            "sha256": "0" * 64,
            "namespace": "default",
            "rest": run or "nothing",
        }
        filled = re.sub(r"\{(\w+)(?::path)?\}", lambda m: named[m[1]], path)
        if path.endswith("/diff"):
            return f"{filled}?other={named['id']}"
        return f"{filled}?run={run}" if path.endswith("/stream") and run else filled


def _name_in(path: str, real: bool) -> str:
    if not real:
        return "nothing"
    for part, name in (
        ("/workflows/", "matrix_flow"),
        ("/promises/", "matrix_answer"),
        ("/state/", "matrix_note"),
        ("/approvals/", "matrix_ok"),
        ("/schedules/", "matrix_schedule"),
    ):
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
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": plain,
        "raw_path": plain.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "headers": [(k.encode(), v.encode()) for k, v in given.items()],
    }
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
    registry.tasks.adopt(matrix_step)
    await store_keys.create_namespace(dsn, "other", by="test")
    server = ServerProcess(
        ServerSettings(
            dsn=dsn,
            http=Address("127.0.0.1", 0),
            grpc=Address("127.0.0.1", 0),
            drain_s=5.0,
            secret_keys=(bytes(32),),
        )
    )
    await server.start()
    try:
        async with Perdure(dsn) as p:
            handle = await matrix_flow.start("secret words")
            job = await p.bulk("cancel", "key = 'secret words'")
            await job.wait("10s")

            async def has_begun() -> bool:
                return await matrix_note.read(handle.id) == "secret words"

            await until(has_begun)
            with pytest.raises(TimeoutError):
                await matrix_update.ask(handle.id, 1, key="matrix-one", timeout=1.5)
            await Schedule("matrix_schedule", matrix_flow.bind("secret words"), every="1d").apply()
            keys = server.server.api.ports.keys
            assert isinstance(keys, Keys)
            found = World(server._app, str(server.grpc), keys, ids.parse(handle.id), job.id)
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
    assert {door for door, need in found.items() if need == PUBLIC} == OPEN_ROUTES


async def test_a_stranger_gets_through_no_door_but_the_open_ones(world: World) -> None:
    for door, need in ROUTES.items():
        for run in (None, ids.text(world.run_id)):
            for key in (None, unknown_key()):
                answer = await world.ask(door, world.address(door, run), key)
                assert (answer.status == 401) == (need != PUBLIC), f"{door}: {answer}"
                assert b"secret words" not in answer.body


async def test_a_role_gets_through_exactly_the_doors_it_is_granted(world: World) -> None:
    for door, need in ROUTES.items():
        for role in Role:
            allowed = need in (PUBLIC, None) or need in GRANTS[role]
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
            answer = await ask(world.app, "POST", f"{API}/workflows/deploy", world.own[role], body, {})
            allowed = {DEVELOP, Permission.COMMANDS} <= GRANTS[role]
            assert (answer.status == 403) == (not allowed), f"{what} as {role.value}: {answer}"
            if not allowed and DEVELOP in GRANTS[role]:
                assert b"'commands'" in answer.body and b"'a'" in answer.body or b"'b'" in answer.body
        version = json.loads(
            (await ask(world.app, "GET", f"{API}/workflows/{name}", world.own[Role.ADMIN], None, {})).body
        )["version"]
        for role, status in ((Role.DEVELOPER, 403), (Role.ADMIN, 200)):
            assert (
                await ask(world.app, "POST", f"{API}/workflows/deploy", world.own[Role.DEVELOPER], plain, {})
            ).status in (
                200,
                201,
            )
            answer = await ask(
                world.app, "POST", f"{API}/workflows/{name}/current", world.own[role], {"version": version}, {}
            )
            assert answer.status == status, f"{what} as {role.value}: {answer}"
    scopes = frozenset({DEVELOP, Permission.COMMANDS})
    narrow = (await world.keys.create(NewKey(name="n", role=Role.ADMIN, scopes=scopes, created_by="test")))[1]
    assert (await ask(world.app, "POST", f"{API}/workflows/deploy", narrow, body, {})).status == 200
    assert (await ask(world.app, "GET", f"{API}/api-keys", narrow, None, {})).status == 403
    less = (await world.keys.create(NewKey(name="n", role=Role.ADMIN, scopes=frozenset({DEVELOP}), created_by="test")))[
        1
    ]
    assert (await ask(world.app, "POST", f"{API}/workflows/deploy", less, body, {})).status == 403


async def test_what_is_in_another_namespace_is_not_found(world: World) -> None:
    run = ids.text(world.run_id)
    for door in ROUTES:
        if not any(
            part in door
            for part in ("/runs/{id}", "/approvals/{id}", "/workflows/{name}", "/schedules/{name", "/bulk-jobs/{id}")
        ):
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
        if need == PUBLIC:
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
    assert (await ask(world.app, "DELETE", f"{API}/api-keys/{victim}", admin, None, {})).status == 404
    assert (await world.ask(f"GET {API}/runs", f"{API}/runs", world.own[Role.VIEWER])).status == 200, "it still works"
    for body, expected in (
        ({"name": "x", "role": "viewer", "namespace": "default"}, {403, 404}),
        ({"name": "x", "role": "admin", "namespace": None}, {201, 403}),
        ({"name": "x", "role": "admin"}, {201, 403}),
    ):
        answer = await ask(world.app, "POST", f"{API}/api-keys", admin, body, {})
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
        assert (await ask(world.app, "POST", f"{API}/api-keys", narrow, body, {})).status == 403
    within = {"name": "x", "role": "admin", "scopes": ["admin"]}
    assert (await ask(world.app, "POST", f"{API}/api-keys", narrow, within, {})).status == 201


async def test_paths_that_resemble_an_open_door_are_not_open(world: World) -> None:
    for path in (
        f"{API}/runs/livez",
        f"{API}/runs/openapi.json",
        f"{API}/api-keys/readyz",
        f"{API}/workflows/metrics",
        f"{API}/runs/x%2flivez",
        f"{API}/api-keys/..%2f..%2flivez",
    ):
        assert (await ask(world.app, "GET", path, None, None, {})).status in (401, 404, 405), path
        seen = await ask(world.app, "GET", path, None, None, {})
        assert seen.status != 200, path


# -- gRPC -------------------------------------------------------------------------------------------------------------


def test_every_method_is_listed_and_needs_what_is_listed() -> None:
    described = service_methods(api_pb2, worker_pb2)
    assert described == set(METHODS), "a method that is in a .proto file and not here has no permission"
    assert METHODS == grpc_server.METHODS


def test_every_act_is_listed_and_needs_what_is_listed() -> None:
    listed = {name: permission for permission, names in PERMISSIONS.items() for name in names}
    assert listed == {name: act.permission for name, act in ACTS.items()}


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
    """The error code of a call inside a session; empty when it succeeded."""
    given = [*metadata.items(), ("authorization", f"Bearer {key}")]
    stream = channel.stream_stream(f"/{acts.SERVICE}/Session")(metadata=given, timeout=CALL_S)
    await stream.write(acts.encode_calls([acts.Call(1, name, request)]))
    data = await stream.read()
    if data is grpc.aio.EOF:
        return (await stream.code()).name
    (reply,) = acts.decode_replies(data)
    stream.cancel()
    return reply.code


async def test_an_act_is_granted_to_exactly_the_roles_that_have_its_permission(world: World) -> None:
    """Alone, and inside a session."""
    denied = grpc.StatusCode.PERMISSION_DENIED
    async with grpc.aio.insecure_channel(world.grpc_address) as channel:
        for permission, names in PERMISSIONS.items():
            for role in Role:
                key, granted = world.everywhere[role], permission is None or permission in GRANTS[role]
                for name in names:
                    code = await in_session(channel, key, name)
                    assert (code != "forbidden") == granted, f"{name} as {role.value}: {code}"
                    request = api_pb2.CallRequest(act=name).SerializeToString()
                    status = await call(channel, f"{acts.SERVICE}/Call", key, request)
                    assert (status is not denied) == granted, f"{name} as {role.value}: {status}"
        for name in ("Session", "run.drop", ""):
            assert await in_session(channel, world.everywhere[Role.ADMIN], name) == "invalid_input"


def foreign_requests(run: str, job: str) -> dict[str, Any]:
    """For each act that names something, a request about what the namespace `default` has."""
    flow, schedule = matrix_flow.name, "matrix_schedule"
    return {
        # First: an instance is online for some seconds after it was registered.
        "service.allocate": services.AllocateInstance("matrix"),
        "service.heartbeat": services.InstanceHeartbeat("matrix"),
        "run.status": runs.GetRun(run),
        "run.get": runs.GetRun(run),
        "run.result": runs.AwaitRun(run, 0.1),
        "run.tasks": runs.ListTasks(run),
        "run.logs": runs.ListLogs(run),
        "run.attempts": attempts.ListAttempts(run),
        "run.timeline": timeline.GetTimeline(run),
        "workflow.grid": workflow_runs.GetGrid(flow),
        "workflow.errors": workflow_runs.GetErrors(flow),
        "workflow.inputs": workflow_runs.GetInputs(flow),
        "worker.get": cluster.WorkerRef(run),
        "run.history": runs.ListHistory(run),
        "run.cancel": runs.CancelRun(run),
        "run.children": runs.ListChildren(run),
        "run.terminate": runs.TerminateRun(run),
        "run.pause": runs.PauseRun(run),
        "run.delete": runs.ChangeRun(run),
        "run.retry": runs.ChangeRun(run),
        "run.resume": runs.ChangeRun(run),
        "run.at": inspection.GetRunAt(run, 1),
        "run.diff": inspection.DiffRuns(run, run),
        "run.export": inspection.ExportRun(run),
        "run.rerun": repairs.RerunRun(run=run),
        "run.fork": repairs.ForkRun(run=run, at=1),
        "node.override": repairs.OverrideNode(run, "a", "skip"),
        "run.graph": definitions.GetRunGraph(run),
        "run.signal": messages.SendSignal(run, "x", b"1"),
        "run.resolve": messages.ResolvePromise(run, "matrix_answer", b'"x"'),
        "run.update": messages.AskUpdate(run, "matrix_update", b"1", "matrix-one", 0.1),
        "run.update_result": messages.GetUpdate(run, "matrix-one"),
        "run.state": messages.ReadState(run, "matrix_note"),
        "run.states": messages.ListStates(run),
        "run.query": messages.AskQuery(run, "matrix_query"),
        "approval.list": approvals.ListApprovals(run=run),
        "approval.get": approvals.GetApproval(run, "matrix_ok"),
        "approval.answer": approvals.AnswerApproval(run, "matrix_ok", True),
        "approval.delegate": approvals.DelegateApproval(run, "matrix_ok", "x"),
        "link.create": approvals.CreateLink(run, "approval", "matrix_ok", "x"),
        "workflow.get": definitions.WorkflowRef(flow),
        "workflow.delete": definitions.WorkflowRef(flow),
        "workflow.version": definitions.VersionRef(flow, matrix_flow.version),
        "version.list": definitions.WorkflowRef(flow),
        "workflow.stats": statistics.GetStats(flow),
        "version.set_current": versions.SetCurrent(flow, matrix_flow.version),
        "version.rollback": definitions.WorkflowRef(flow),
        "version.move": versions.MoveRuns(flow, "0", "1"),
        "workflow.graph": definitions.GetGraph(flow),
        "schedule.get": schedules.ScheduleRef(schedule),
        "schedule.pause": schedules.PauseSchedule(schedule),
        "schedule.resume": schedules.ScheduleRef(schedule),
        "schedule.trigger": schedules.ScheduleRef(schedule),
        "schedule.backfill": schedules.BackfillSchedule(schedule, 0, 1, True),
        "schedule.delete": schedules.ScheduleRef(schedule),
        "schedule.times": schedules.ListTimes(schedule, 1),
        "schedule.fires": schedules.ListFires(schedule),
        "calendar.get": schedules.CalendarRef("matrix_calendar"),
        "calendar.delete": schedules.CalendarRef("matrix_calendar"),
        "view.delete": saved_views.ViewRef("matrix_view"),
        "bulk_job.get": bulk_jobs.BulkJobRef(job),
        "bulk_job.runs": bulk_jobs.ListBulkRuns(job),
        "bulk_job.cancel": bulk_jobs.BulkJobRef(job),
        "webhook.rotate": named_events.RotateWebhook("matrix_hook"),
        "webhook.delete": named_events.WebhookRef("matrix_hook"),
        "notification_rule.rotate": notifications.NotificationRuleRef("matrix_rule"),
        "notification_rule.delete": notifications.NotificationRuleRef("matrix_rule"),
        "retention.remove": retention.PolicyRef("workflow", "matrix_kept"),
        "rule.clear": flow_control.RuleRef("queue", "matrix_queue"),
        "rule.resume": flow_control.RuleRef("queue", "matrix_queue"),
    }


OWN_ACTS = {
    *("whoami", "run.start", "run.run", "run.signal_with_start", "run.list", "run.paths", "event.emit", "event.list"),
    *("schedule.list", "schedule.put", "schedule.preview", "calendar.list", "calendar.put"),
    *("workflow.list", "workflow.register", "workflow.deploy", "workflow.validate", "workflow.schema"),
    *("view.save", "view.list", "bulk_job.start", "bulk_job.list"),
    *("notification_rule.put", "notification_rule.list", "notification.list", "notification.retry"),
    *("webhook.put", "webhook.list", "rule.list", "rule.set", "rule.pause"),
    *("dead_letter.list", "dead_letter.retry", "worker.list", "queue.list", "server.get"),
    *("run.histogram", "workflow.durations", "namespace.counts", "run.count", "rule.use"),
    *("service.register", "service.list"),
    *("retention.list", "retention.set", "retention.status"),
    *("service_call.begin", "service_call.accept", "service_call.ends", "service_call.close"),
    *("payload.announce", "payload.put", "payload.get", "payload.find"),
    *("namespace.list", "namespace.create", "namespace.delete"),
    *("key.list", "key.create", "key.revoke", "audit.list"),
}
"""Acts that create something, list what the namespace has, or administer. The tests above cover lists and administration."""


async def test_an_act_finds_nothing_of_another_namespace(world: World) -> None:
    requests = foreign_requests(ids.text(world.run_id), world.bulk_job)
    assert not OWN_ACTS & requests.keys() and OWN_ACTS | requests.keys() == ACTS.keys(), "an act without a request here"
    foreign, own = world.foreign[Role.ADMIN], world.own[Role.VIEWER]
    async with grpc.aio.insecure_channel(world.grpc_address) as channel:
        instance = services.RegisterInstance("http://matrix.example", ["matrix"], 0.0, "matrix")
        made = acts.encode_call(services.REGISTER, instance)
        assert await call(channel, f"{acts.SERVICE}/Call", world.own[Role.WORKER], made) is grpc.StatusCode.OK
        for name, request in requests.items():
            encoded = acts.encode_call(ACTS[name], request)
            if name != "approval.list":  # a list of a run that is not there is empty
                code = await call(channel, f"{acts.SERVICE}/Call", foreign, encoded)
                assert code is grpc.StatusCode.NOT_FOUND, f"{name}: {code}"
                inner = await in_session(channel, foreign, name, acts.encode(request))
                assert inner in ("not_found", "not_registered"), f"{name}: {inner}"
            picked = await call(channel, f"{acts.SERVICE}/Call", foreign, encoded, **{"perdure-namespace": "default"})
            assert picked is grpc.StatusCode.NOT_FOUND, f"{name}: {picked}"
            if ACTS[name].permission is READ and not name.startswith(("calendar", "worker.")):
                seen = await call(channel, f"{acts.SERVICE}/Call", own, encoded)
                if name == "run.query":  # it finds the run, and waits for a worker, of which this server has none
                    assert seen is grpc.StatusCode.DEADLINE_EXCEEDED, f"{name}: {seen}"
                    continue
                assert seen is grpc.StatusCode.OK, f"{name}: its owner sees it, or this test proves nothing: {seen}"


def test_no_request_names_the_namespace_to_work_in() -> None:
    """The caller's namespace is that of the credential. Two acts of administrators are about others, and check for themselves."""
    named = {name for name, act in ACTS.items() if "namespace" in act.request.__struct_fields__}
    assert named == {"run.start", "run.run", "key.create"}
