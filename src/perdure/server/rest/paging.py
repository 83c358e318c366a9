"""Query parameters that lists share."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query

from perdure.server.rest.models import CURSOR_CHARS_MAX

LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 500

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="Items of one page at most.")]
Cursor = Annotated[
    str | None,
    Query(max_length=CURSOR_CHARS_MAX, description="The `next` of the page before; none for the first page."),
]
