"""Plain pages: links that are answered without an account, errors and their codes. They need no build, no framework and no script.

Payloads are text and stay text: templates escape by default.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException

from perdure.core.errors import PerdureError
from perdure.server.error_guide import explanation, without_links
from perdure.server.rest.guard import Anyone, GuardedRoute
from perdure.server.rest.problems import answered_errors

PAYLOAD_CHARS_SHOWN: Final = 20_000
STATIC: Final = {"perdure.css": "text/css"}


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


@router.get("/errors", response_class=HTMLResponse)
async def errors_page(_: Anyone) -> HTMLResponse:
    """Where the `type` of a problem leads."""
    return HTMLResponse(_environment().get_template("errors.html").render(errors=_explained()))


def _explained() -> list[dict[str, Any]]:
    return [
        {
            "code": kind.code,
            "status": kind.http_status,
            "meaning": kind.meaning(),
            "why": explanation(kind.code).why,
            "do": without_links(explanation(kind.code).do)[0],
        }
        for kind in answered_errors()
    ]


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
    filters |= {"clock": clock, "pretty": pretty}
    return environment


def render(name: str, *, status_code: int = 200, **values: Any) -> HTMLResponse:
    """A page that needs no credential."""
    return HTMLResponse(_environment().get_template(name).render(**values), status_code)


def clock(at: datetime | None) -> str:
    return "–" if at is None else at.strftime("%Y-%m-%d %H:%M:%S")


def pretty(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    if len(text) > PAYLOAD_CHARS_SHOWN:
        return f"{text[:PAYLOAD_CHARS_SHOWN]}\n… {len(text) - PAYLOAD_CHARS_SHOWN:,} characters more"
    return text
