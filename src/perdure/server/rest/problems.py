"""Errors on their way out: application/problem+json (RFC 9457), one table from code to status.

Nothing internal leaves: an error Perdure does not know how to explain is logged and answered with 500 and no more.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from perdure.core.errors import PerdureError, Unavailable

log = logging.getLogger("perdure.server")

MEDIA_TYPE: Final = "application/problem+json"
FAULTS_SHOWN_MAX: Final = 10
"""Faults of one request that are named."""
RETRY_UNAVAILABLE_S: Final = 1

CODES: Final[dict[str, tuple[int, str]]] = {
    "several_credentials": (400, "The request has more than one Authorization header; send one."),
    "unauthenticated": (401, "No credential was given, or it does not hold."),
    "forbidden": (403, "The credential holds but does not allow this."),
    "cross_site": (
        403,
        "A browser sent the request for a page of another site; only this server's own pages may change something.",
    ),
    "not_assigned": (403, "Others are asked for this approval; the detail names them."),
    "not_found": (404, "There is no such thing in this namespace."),
    "not_registered": (404, "No workflow of that name or version is known in this namespace."),
    "method_not_allowed": (405, "The path is right, the method is not."),
    "conflict": (409, "What was asked for collides with what is there, or names several things."),
    "run_already_exists": (409, "The run id is taken; choose another, or `attach`, or `replace`."),
    "run_finished": (409, "The run has ended and takes no more messages."),
    "promise_already_resolved": (409, "The promise has its value; the first one stands."),
    "approval_closed": (409, "The approval is decided; the detail says how and by whom."),
    "approval_expired": (409, "The deadline of the approval has passed."),
    "link_used": (409, "The signed link was used; it works once."),
    "link_expired": (410, "The signed link has expired; ask for a new one."),
    "update_failed": (409, "The code that handled the update raised; the detail says what."),
    "workflow_deleted": (409, "The workflow was deleted and takes no new runs; registering it again brings it back."),
    "idempotency_conflict": (409, "The idempotency key was used for a different request; use a new key."),
    "body_too_large": (
        413,
        "The body of the request is over the limit; store the data elsewhere and pass a reference.",
    ),
    "unsupported_media_type": (
        415,
        "The body has no content type that this route reads; send `Content-Type: application/json`.",
    ),
    "unknown_host": (
        421,
        "The server does not answer for the host that the request names; see `PERDURE_ALLOWED_HOSTS`.",
    ),
    "invalid_input": (422, "The request can never work as it is; the detail names what is wrong."),
    "invalid_flow": (422, "The flow's document is not valid; `problems` says what is wrong and where."),
    "update_rejected": (422, "The run refuses the update; the detail says why."),
    "payload_mismatch": (422, "A value does not fit the declared type."),
    "payload_too_large": (422, "A value is over the limit for values inside a run."),
    "rate_limited": (429, "Too many requests under one credential; wait as long as `Retry-After` says."),
    "too_many_streams": (429, "Too many event streams under one credential; close one."),
    "no_secret_key": (409, "The server has no key to keep a secret with; see `PERDURE_SECRET_KEY_FILE`."),
    "internal": (500, "The server failed; its log says why."),
    "unavailable": (503, "Try again later: the database is away, or the server is stopping."),
    "fenced": (503, "The server was taken for dead and is registering anew; try again."),
}
"""Every code a client may meet, its status, and what it means. The server shows them at /errors."""


class BodyTooLarge(PerdureError):
    code = "body_too_large"


class UnsupportedMediaType(PerdureError):
    code = "unsupported_media_type"


class TooManyStreams(PerdureError):
    code = "too_many_streams"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.retry_after_s = 5.0


def status_of(error: PerdureError) -> int:
    """By the error's own code, else by that of the nearest class above it."""
    for kind in type(error).__mro__:
        known = CODES.get(getattr(kind, "code", ""))
        if known is not None:
            return known[0]
    return 500


def problem(
    request: Request, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    server = getattr(request.app.state, "server", None)
    body = {
        "type": f"{server.api.public_url if server else ''}/errors#{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail.encode("utf-8", "replace").decode(),
        "instance": request.url.path.encode("utf-8", "replace").decode(),
    }
    return JSONResponse(body, status, dict(headers or {}), MEDIA_TYPE)


def problem_of(request: Request, error: PerdureError) -> JSONResponse:
    status = status_of(error)
    if status == 500:
        return internal(request, error)
    headers: dict[str, str] = {}
    wait_s = getattr(error, "retry_after_s", None)
    if wait_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(wait_s)))
    elif isinstance(error, Unavailable):
        headers["Retry-After"] = str(RETRY_UNAVAILABLE_S)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return problem(request, status, error.code, str(error), headers)


def internal(request: Request, error: BaseException) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(request, 500, "internal", "the server failed at this request; its log says why")


def _faults(error: RequestValidationError) -> str:
    """What is wrong and where, without repeating what was sent."""
    faults: list[str] = []
    for fault in error.errors()[:FAULTS_SHOWN_MAX]:
        place = ".".join(str(part) for part in fault.get("loc", ()))
        faults.append(f"{place}: {fault.get('msg', 'is not valid')}" if place else str(fault.get("msg")))
    return "; ".join(faults)


_BY_STATUS: Final = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large", 422: "invalid_input"}


def install(app: FastAPI) -> None:
    """Every error of the application goes out as a problem, whoever raised it."""

    async def perdure_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, PerdureError)
        return problem_of(request, error)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return problem(request, 422, "invalid_input", _faults(error))

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = _BY_STATUS.get(error.status_code, "invalid_input" if error.status_code < 500 else "internal")
        detail = str(error.detail)
        if error.status_code == 404:
            detail = f"there is nothing at {request.url.path}; GET /api/v1/openapi.json lists what there is"
        elif error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            detail = f"{request.method} is not a thing to do here; allowed: {allowed or 'see /api/v1/openapi.json'}"
        return problem(request, error.status_code, code, detail, error.headers)

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return internal(request, error)

    app.add_exception_handler(PerdureError, perdure_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, unexpected)


def responses(*statuses: int, **others: Any) -> dict[int | str, dict[str, Any]]:
    """For a route's declaration: the problems it answers with, and answers that are none, as `s200={...}`."""
    schema = {"$ref": "#/components/schemas/Problem"}
    problems: dict[int | str, dict[str, Any]] = {
        s: {"description": HTTPStatus(s).phrase, "content": {MEDIA_TYPE: {"schema": schema}}} for s in sorted(statuses)
    }
    return {int(name.removeprefix("s")): answer for name, answer in others.items()} | problems
