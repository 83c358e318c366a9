"""Errors by their codes: how an error of one process is raised in another."""

from __future__ import annotations

from typing import Final

from perdure.core import errors
from perdure.core.errors import PerdureError

ERRORS_BY_CODE: Final[dict[str, type[PerdureError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, PerdureError) and kind.__init__ is PerdureError.__init__
}


def error_for(code: str, text: str) -> PerdureError:
    """The error of another process: as the class it was there, or with its code where that class needs more than a text."""
    kind = ERRORS_BY_CODE.get(code)
    if kind is not None:
        return kind(text)
    error = PerdureError(text)
    error.code = code  # type: ignore[misc]
    return error
