"""Errors on the wire: the gRPC status of the error's class, and its code in the trailing metadata under `perdure-code`."""

from __future__ import annotations

from typing import Final

import grpc

from perdure.core.errors import PerdureError

CODE_KEY: Final = "perdure-code"


def status_of(error: PerdureError) -> grpc.StatusCode:
    return grpc.StatusCode[error.grpc_status]
