"""Plain pages: the latest runs, and one run with everything in it. They need no build, no framework and no script to be read.

Payloads are text and stay text: templates escape by default, and the policy lets no script in but our own file.
"""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException

from perdure.core import ids
from perdure.core.api import runs as acts
from perdure.core.api.attempts import LIST as ATTEMPTS
from perdure.core.api.attempts import ListAttempts
from perdure.core.api.runs import ListChildren, ListHistory, ListLogs, ListRuns, ListTasks, RunFilter
from perdure.core.errors import PerdureError
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.attempts import view as attempt_view
from perdure.server.rest.guard import Anyone, GuardedRoute, Reader, RestCaller
from perdure.server.rest.paging import Cursor
from perdure.server.rest.problems import answered_errors
from perdure.server.rest.runs import RunName, shown
from perdure.server.rest.tracebacks import frames

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
RUNS_SHOWN: Final = 50
TASKS_SHOWN: Final = 200
EVENTS_SHOWN: Final = 200
LINES_SHOWN: Final = 500
PAYLOAD_CHARS_SHOWN: Final = 20_000
STATIC: Final = {"perdure.css": "text/css", "refresh.js": "text/javascript"}


class PageRoute(GuardedRoute):
    """An HTML page: refusals are pages as well."""

    def refused(self, request: Request, error: PerdureError) -> Response:
        status = error.http_status
        if status == 500:
            return super().refused(request, error)
        text = _environment().get_template("error.html").render(code=error.code, detail=str(error), status=status)
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        return HTMLResponse(text, status, headers)


router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/", response_class=HTMLResponse)
async def runs_page(
    caller: Reader,
    cursor: Cursor = None,
    status: Annotated[list[m.RunStatusWord], Query(max_length=5)] = [],  # noqa: B006
    q: Annotated[str, Query(max_length=200)] = "",
) -> HTMLResponse:
    wanted = RunFilter(statuses=frozenset(STATUSES[w] for w in status), text=q)
    page = await caller.call(acts.LIST, ListRuns(wanted, views.read_id_cursor(cursor), RUNS_SHOWN))
    runs = [views.summary(item, "") for item in page.items]
    following = views.next_cursor(page.next)
    live = cursor is None and any(run.finished_at is None for run in runs)
    return _render("runs.html", caller, runs=runs, next=following, live=live, q=q, chosen=status, words=list(STATUSES))


STATUSES: Final = {"pending": 0, "running": 1, "success": 2, "failed": 3, "cancelled": 4}


@router.get("/runs/{id}", response_class=HTMLResponse)
async def run_page(caller: Reader, id: RunName) -> HTMLResponse:
    run_id = await caller.api.run_id(id)
    ref = ids.text(run_id)
    run, tasks, children, attempts, events, lines = await asyncio.gather(
        shown(caller, run_id),
        caller.call(acts.TASKS, ListTasks(ref, limit=TASKS_SHOWN)),
        caller.call(acts.CHILDREN, ListChildren(ref, limit=TASKS_SHOWN)),
        caller.call(ATTEMPTS, ListAttempts(ref, unsuccessful=True, limit=TASKS_SHOWN)),
        caller.call(acts.HISTORY, ListHistory(ref, limit=EVENTS_SHOWN)),
        caller.call(acts.LOGS, ListLogs(ref, limit=LINES_SHOWN)),
    )
    stack = frames(run.error.traceback) if run.error else []
    return _render(
        "run.html",
        caller,
        run=run,
        live=run.finished_at is None,
        tasks=[views.task(t) for t in tasks.items],
        more_tasks=tasks.next is not None,
        children=[views.summary(c, caller.api.api.public_url) for c in children.items],
        more_children=children.next is not None,
        attempts=[attempt_view(a) for a in attempts.items],
        more_attempts=attempts.next is not None,
        events=[views.history_event(r) for r in events.items],
        lines=[views.log_entry(i) for i in lines.items],
        more_lines=lines.next is not None,
        own=[f for f in stack if f.own],
        others=[f for f in stack if not f.own],
    )


@router.get("/errors", response_class=HTMLResponse)
async def errors_page(_: Anyone) -> HTMLResponse:
    """Where the `type` of a problem leads."""
    return HTMLResponse(_environment().get_template("errors.html").render(errors=answered_errors()))


@router.get("/static/{name}")
async def static(_: Anyone, name: str) -> Response:
    media_type = STATIC.get(name)
    if media_type is None:
        raise HTTPException(404)
    return Response(_static(name), media_type=media_type, headers={"Cache-Control": "max-age=300"})


@cache
def _static(name: str) -> bytes:
    return (resources.files("perdure.server.rest") / "static" / name).read_bytes()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("perdure.server.rest"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = environment.filters
    filters |= {"clock": clock, "duration": duration, "short": short, "pretty": pretty, "since": since}
    return environment


def render(name: str, *, status_code: int = 200, **values: Any) -> HTMLResponse:
    """A page that needs no credential."""
    return HTMLResponse(_environment().get_template(name).render(**values), status_code)


def _render(name: str, caller: RestCaller, **values: Any) -> HTMLResponse:
    # Not `namespace`: where a page has none, Jinja would show its own function of that name.
    text = _environment().get_template(name).render(namespace_shown=caller.api.caller.namespace, **values)
    return HTMLResponse(text)


def clock(at: datetime | None) -> str:
    return "–" if at is None else at.strftime("%Y-%m-%d %H:%M:%S")


def since(end: datetime | None, begin: datetime | None) -> str:
    return "–" if begin is None or end is None else duration((end - begin).total_seconds())


def duration(seconds: float) -> str:
    """At most two units: 620 ms, 8.4 s, 4 m 07 s, 1 h 42 m, 3 d 4 h."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 3_600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60:02d} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def short(ident: str) -> str:
    return f"{ident[:8]}…{ident[-4:]}"


def pretty(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    if len(text) > PAYLOAD_CHARS_SHOWN:
        return f"{text[:PAYLOAD_CHARS_SHOWN]}\n… {len(text) - PAYLOAD_CHARS_SHOWN:,} characters more"
    return text
