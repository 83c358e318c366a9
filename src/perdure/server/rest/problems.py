"""Error responses: application/problem+json (RFC 9457) with the code and the status of the error's class.

Nothing internal leaves: an error that Perdure cannot explain is logged and answered with 500 alone.
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

from perdure.core.errors import InvalidInput, NotFound, PerdureError, Unavailable, error_classes

log = logging.getLogger("perdure.server")

MEDIA_TYPE: Final = "application/problem+json"
FAULTS_SHOWN_MAX: Final = 10
"""Faults of one request that are named."""
RETRY_UNAVAILABLE_S: Final = 1


class MethodNotAllowed(PerdureError):
    """The path exists but does not allow this method."""

    code = "method_not_allowed"
    http_status = 405


class BodyTooLarge(PerdureError):
    """The body of the request is over the limit; store the data elsewhere and pass a reference."""

    code = "body_too_large"
    http_status = 413


class UnsupportedMediaType(PerdureError):
    """The body has no content type that this route reads; send `Content-Type: application/json`."""

    code = "unsupported_media_type"
    http_status = 415


class TooManyStreams(PerdureError):
    """Too many event streams under one credential; close one."""

    code = "too_many_streams"
    http_status = 429

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.retry_after_s = 5.0


class InternalError(PerdureError):
    """The server failed; its log says why."""

    code = "internal"
    grpc_status = "INTERNAL"


def answered_errors() -> list[type[PerdureError]]:
    """The errors that a client of this server may get, by status. All other errors leave as `internal`."""
    found = {kind.code: kind for kind in error_classes() if kind.http_status != 500}
    return sorted((*found.values(), InternalError), key=lambda kind: kind.http_status)


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
    status = error.http_status
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
    return problem(request, 500, InternalError.code, "the server failed at this request; its log says why")


def _faults(error: RequestValidationError) -> str:
    """What is wrong and where, without repeating what was sent."""
    faults: list[str] = []
    for fault in error.errors()[:FAULTS_SHOWN_MAX]:
        place = ".".join(str(part) for part in fault.get("loc", ()))
        faults.append(f"{place}: {fault.get('msg', 'is not valid')}" if place else str(fault.get("msg")))
    return "; ".join(faults)


_BY_STATUS: Final = {kind.http_status: kind for kind in (NotFound, MethodNotAllowed, BodyTooLarge, InvalidInput)}
"""For errors of the web framework."""


def install(app: FastAPI) -> None:
    """Answer every error of the application with a problem."""

    async def perdure_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, PerdureError)
        return problem_of(request, error)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return problem(request, InvalidInput.http_status, InvalidInput.code, _faults(error))

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        kind = _BY_STATUS.get(error.status_code, InvalidInput if error.status_code < 500 else InternalError)
        detail = str(error.detail)
        if error.status_code == 404:
            detail = f"no route matches {request.url.path}; GET /api/v1/openapi.json lists the routes"
        elif error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            detail = f"{request.method} is not allowed here; allowed: {allowed or 'see /api/v1/openapi.json'}"
        return problem(request, error.status_code, kind.code, detail, error.headers)

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
