"""Errors as the API gives them: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.executors.kubernetes_emulator.resources import Resource


class Cause(NamedTuple):
    """Why a field is refused."""

    reason: str
    field: str
    message: str


class ApiError(Exception):
    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.details = code, reason, details

    def as_json(self) -> dict[str, Any]:
        found = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
        }
        found |= {"reason": self.reason} if self.reason else {}
        return found | ({"details": self.details} if self.details else {}) | {"code": self.code}


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    return ApiError(403, "Forbidden", f'{resource.full} "{name}" is forbidden: {why}', _details(resource, name))


def not_found(resource: Resource, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{resource.full} "{name}" not found', _details(resource, name))


def not_served() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def already_exists(resource: Resource, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{resource.full} "{name}" already exists', _details(resource, name))


def conflict(resource: Resource, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {resource.full} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(resource, name))


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def unsupported_media(accepted: Sequence[str]) -> ApiError:
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return ApiError(415, "UnsupportedMediaType", message)


def internal(message: str) -> ApiError:
    """What the server of 1.20 did not expect; later ones answer some of it with 400."""
    return ApiError(500, "", message)


def invalid(kind: str, group: str, name: str, causes: Sequence[Cause]) -> ApiError:
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = {
        "name": name,
        "group": group,
        "kind": kind,
        "causes": [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes],
    }
    full = f"{kind}.{group}" if group else kind
    return ApiError(422, "Invalid", f'{full} "{name}" is invalid: {text}', details)


def _details(resource: Resource, name: str) -> dict[str, Any]:
    return {"name": name, "kind": resource.plural} | ({"group": resource.group} if resource.group else {})
