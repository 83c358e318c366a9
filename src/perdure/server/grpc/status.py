"""Errors on the wire: a gRPC status, and the error's own code in the trailing metadata under `perdure-code`."""

from __future__ import annotations

from typing import Final

import grpc

from perdure.core.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NoSecretKey,
    NotFound,
    NotRegistered,
    PerdureError,
    RateLimited,
    Unauthenticated,
    Unavailable,
)

CODE_KEY: Final = "perdure-code"

_STATUS: Final[tuple[tuple[type[PerdureError], grpc.StatusCode], ...]] = (
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (Forbidden, grpc.StatusCode.PERMISSION_DENIED),
    (RateLimited, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (NotRegistered, grpc.StatusCode.NOT_FOUND),  # before InvalidInput, of which it is one: as REST answers 404
    (InvalidInput, grpc.StatusCode.INVALID_ARGUMENT),
    (Conflict, grpc.StatusCode.FAILED_PRECONDITION),
    (NoSecretKey, grpc.StatusCode.FAILED_PRECONDITION),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
)


def status_of(error: PerdureError) -> grpc.StatusCode:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), grpc.StatusCode.UNKNOWN)
