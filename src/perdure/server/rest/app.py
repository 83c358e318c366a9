"""The HTTP application of a server: REST under /api/v1, pages. Health and metrics are mounted beside them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.core.access import Permission
from perdure.core.limits import STREAMS_MAX
from perdure.core.version import VERSION
from perdure.server.auth.rates import Buckets
from perdure.server.context import Server
from perdure.server.rest import (
    admin,
    approvals,
    attempts,
    bulk_jobs,
    dead_letters,
    flow_control,
    inspection,
    messages,
    named_events,
    notifications,
    pages,
    payloads,
    repairs,
    retention,
    run_paths,
    runs,
    saved_views,
    schedules,
    services,
    sessions,
    statistics,
    stream,
    timeline,
    ui,
    versions,
    webhooks,
    workers,
    workflow_runs,
    workflows,
)
from perdure.server.rest.browsers import BrowserGuard
from perdure.server.rest.guard import NAMESPACE_HEADER, Anyone, GuardedRoute, Need, allow_of
from perdure.server.rest.models import Problem
from perdure.server.rest.problems import MEDIA_TYPE, install
from perdure.server.rest.stream import Streams

API: Final = "/api/v1"
API_ROUTERS: Final = (
    versions.router,
    workflows.router,
    statistics.router,
    runs.router,
    attempts.router,
    timeline.router,
    workflow_runs.router,
    repairs.router,
    run_paths.router,
    inspection.router,
    messages.router,
    approvals.router,
    flow_control.router,
    retention.router,
    services.router,  # before workers: /workers/allocate is no id of one
    workers.router,
    stream.router,
    admin.router,
    dead_letters.router,
    saved_views.router,
    bulk_jobs.router,
    schedules.router,
    named_events.router,
    webhooks.router,
    notifications.router,
    payloads.router,
    sessions.router,
)
BESIDE: Final = (
    pages.router,
    sessions.signing_in,
    approvals.links,
    webhooks.hooks,
    services.compatible,
    services.receiving,
    ui.router,
    ui.unknown,
)
"""Not under API: pages, and what other programs know by another address."""
DESCRIPTION: Final = """Durable workflows on PostgreSQL.

Lists answer `{"items": [...], "next": cursor}`. Errors are `application/problem+json` with a stable `code`. Times are RFC 3339 in UTC. A credential
that is bound to no namespace picks one with the header `Perdure-Namespace`; what belongs to another namespace is not found."""

described = APIRouter(include_in_schema=False, route_class=GuardedRoute)


@described.get("/openapi.json")
async def openapi(_: Anyone, request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi())


def create_app(
    server: Server, *, streams_max: int = STREAMS_MAX, hosts: Iterable[str] = (), dev_token: str = ""
) -> FastAPI:
    """`hosts`: names that the server answers for, beside localhost, IP addresses and that of its public URL."""
    app = application()
    app.add_middleware(BrowserGuard, hosts=tuple(hosts), public_url=server.api.public_url, dev_token=dev_token)
    app.add_middleware(SafeHeaders)
    app.state.server = server
    app.state.streams = Streams(server, streams_max)
    app.state.link_rates = Buckets()
    return app


def application() -> FastAPI:
    """Everything but the server behind it: enough to describe the API."""
    app = _bare()
    install(app)
    app.router.routes.extend(_routes())
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _bare() -> FastAPI:
    return FastAPI(
        title="Perdure",
        version=VERSION,
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # its redirects repeat the host that the request names
        generate_unique_id_function=lambda route: route.name,  # what generated clients call their methods
    )


def prepare() -> None:
    """Make the routes, which takes a third of a second, before something measures how promptly the event loop turns."""
    _routes()


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Shared by the applications of a process. FastAPI prepares a route when a request is first compared with it, which takes a third of a
    second for all of them: that is done here, before the server listens."""
    app = _bare()
    for router in (*API_ROUTERS, described):
        app.include_router(router, prefix=API)
    for router in BESIDE:
        app.include_router(router)
    unknown: Scope = {"type": "http", "method": "GET", "path": "/-", "root_path": "", "headers": []}
    for route in app.router.routes:
        route.matches(dict(unknown))
    return tuple(app.router.routes)


def guarded_routes() -> list[GuardedRoute]:
    """All routes, with the permission that each needs."""
    routers = (*API_ROUTERS, described, *BESIDE)
    return [route for router in routers for route in router.routes if isinstance(route, GuardedRoute)]


class SafeHeaders:
    """Security headers of every response."""

    HEADERS: Final = (
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"same-origin"),  # without any, browsers would hide the origin of our own forms
        (b"x-frame-options", b"DENY"),
        (b"content-security-policy", ui.CONTENT_SECURITY_POLICY.encode()),
    )

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def safe_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(h for h in self.HEADERS if h[0] not in given)]
                if b"cache-control" not in given:
                    message["headers"].append((b"cache-control", b"no-store"))
            await send(message)

        await self.app(scope, receive, safe_send)


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            separate_input_output_schemas=False,
        )
        app.openapi_schema = _completed(document)
    return app.openapi_schema


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    """What FastAPI cannot know: problems instead of its own error form, credentials, the namespace header, what each operation needs."""
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs", {}))
    schemas["Problem"] = problem
    document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    needs: dict[tuple[str, str], Need] = {
        (f"{API}{route.path_format}", method.lower()): allow_of(route.dependant).need
        for router in (*API_ROUTERS, described)
        for route in router.routes
        if isinstance(route, GuardedRoute)
        for method in route.methods or ()
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete(operation, needs[path, method])
    return document


_PROBLEM: Final = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


def _complete(operation: dict[str, Any], need: Need) -> None:
    operation["x-permission"] = need.value if isinstance(need, Permission) else need or "any"
    operation["security"] = [{"bearer": []}]
    operation.setdefault("parameters", []).append(
        {
            "name": NAMESPACE_HEADER.title(),
            "in": "header",
            "required": False,
            "description": "The namespace to work in, for a credential that is bound to none.",
            "schema": {"type": "string", "maxLength": 100},
        }
    )
    answers = operation["responses"]
    if "requestBody" in operation:
        answers["415"] = {"description": "Unsupported Media Type", **_PROBLEM}
    for status, name in (
        ("401", "Unauthorized"),
        ("404", "Not Found"),
        ("422", "Unprocessable Content"),
        ("429", "Too Many Requests"),
        ("503", "Service Unavailable"),
    ):
        if status not in answers or "HTTPValidationError" in str(answers[status]):
            answers[status] = {"description": name, **_PROBLEM}
    operation["responses"] = dict(sorted(answers.items()))
