"""What an application that uses Perdure answers to its own callers when a call to Perdure fails.

The status of an error class is that of Perdure's own server. An application's callers are others: they have no credential of Perdure, and did not
write the workflows. So an error that only the application's developers can repair has no answer here. It goes the way of every other fault.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from perdure.core.errors import (
    Conflict,
    InvalidInput,
    LinkExpired,
    NotAssigned,
    NotFound,
    NotRegistered,
    PerdureError,
    RateLimited,
    Unavailable,
)

RETRY_AFTER_S: Final = 1
"""What `Retry-After` says unless the error knows better."""
UNAVAILABLE: Final = 503
ANSWERED: Final = (NotFound, Conflict, InvalidInput, LinkExpired, NotAssigned)
"""Errors about what the caller asked for, with the status of their class."""


class WebAnswer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: dict[str, str]


def answer_to(error: BaseException) -> WebAnswer | None:
    """None: a fault of the application, such as a refused API key, a workflow that is not registered or a run that failed."""
    if isinstance(error, Unavailable | RateLimited):
        wait_s = getattr(error, "retry_after_s", RETRY_AFTER_S)
        return WebAnswer(UNAVAILABLE, {"Retry-After": str(max(1, math.ceil(wait_s)))}, _body(error))
    if isinstance(error, ANSWERED) and not isinstance(error, NotRegistered):
        return WebAnswer(error.http_status, {}, _body(error))
    return None


def _body(error: PerdureError) -> dict[str, str]:
    return {"detail": str(error), "code": error.code}
