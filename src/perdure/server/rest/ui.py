"""The web UI: files that `npm run build` has put into perdure/server/ui, from memory.

Every page is the same document; its script reads the address. Files with a hash in their name never change and are cached for ever.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from functools import cache
from importlib import resources
from typing import Final

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from perdure.server.rest.guard import Anyone, GuardedRoute

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
MISSING: Final = (
    "The web UI is not built in this source checkout: run `just ui-build` (it needs Node 20 or later), or install the package from PyPI, "
    "which contains it. The REST API and the command line work without it.\n"
)
PAGES: Final = (
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
"""First parts of the addresses that are pages."""
MEDIA_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
}
FOR_EVER: Final = "public, max-age=31536000, immutable"
ASK_AGAIN: Final = "no-cache"


class UiRoute(GuardedRoute):
    takes_any_query = True


router = APIRouter(include_in_schema=False, route_class=UiRoute)


class UiFile(msgspec.Struct, frozen=True):
    body: bytes
    media_type: str
    tag: str


@router.get("/")
async def start_page(_: Anyone, request: Request) -> Response:
    return await document(request)


for _page in PAGES:

    @router.get(f"/{_page}", name=f"ui_{_page}")
    async def ui_page(_: Anyone, request: Request) -> Response:
        return await document(request)

    @router.get(f"/{_page}/{{rest:path}}", name=f"ui_{_page}_part")
    async def ui_part(_: Anyone, request: Request, rest: str) -> Response:
        return await document(request)


@router.get("/assets/{name}")
async def asset(_: Anyone, request: Request, name: str) -> Response:
    return await answer(request, f"assets/{name}", FOR_EVER)


@router.get("/theme.js")
@router.get("/favicon.svg")
async def fixed_file(_: Anyone, request: Request) -> Response:
    return await answer(request, request.url.path.lstrip("/"), ASK_AGAIN)


unknown = APIRouter(include_in_schema=False, route_class=UiRoute)
"""Comes after all other routes."""


@unknown.get("/{rest:path}")
async def unknown_page(_: Anyone, request: Request, rest: str) -> Response:
    """A person who follows a wrong link gets the page that says so; a program gets a problem."""
    if rest.startswith("api/") or "text/html" not in request.headers.get("accept", "") or "index.html" not in built():
        raise HTTPException(404)
    return Response(built()["index.html"].body, 404, media_type=MEDIA_TYPES["html"])


async def document(request: Request) -> Response:
    if "index.html" not in built():
        return Response(MISSING, 503, media_type="text/plain; charset=utf-8")
    return await answer(request, "index.html", ASK_AGAIN)


async def answer(request: Request, path: str, caching: str) -> Response:
    found = built().get(path)
    if found is None:
        raise HTTPException(404)
    headers = {"Cache-Control": caching, "ETag": found.tag, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        zipped = await asyncio.to_thread(_zipped, found)
        return Response(zipped, media_type=found.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(found.body, media_type=found.media_type, headers=headers)


@cache
def built() -> dict[str, UiFile]:
    """The files of the build by path; empty where there is none. A request can name no other file."""
    root = resources.files("perdure.server") / "ui"
    found: dict[str, UiFile] = {}
    for folder in ("", "assets"):
        inside = root / folder if folder else root
        if not inside.is_dir():
            continue
        for one in inside.iterdir():
            media_type = MEDIA_TYPES.get(one.name.rpartition(".")[2])
            if one.is_file() and media_type is not None:
                found[f"{folder}/{one.name}" if folder else one.name] = _file(one.read_bytes(), media_type)
    return found


def _file(body: bytes, media_type: str) -> UiFile:
    tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    return UiFile(body, media_type, tag)


@cache
def _zipped(file: UiFile) -> bytes:
    """Once for each file, when it is first asked for: all of them take a fifth of a second."""
    return gzip.compress(file.body, 9, mtime=0)
