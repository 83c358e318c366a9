"""JSON that REST takes: as the standard has it, of bounded depth, and nothing that PostgreSQL could not store."""

from __future__ import annotations

import pytest

from perdure.core.errors import InvalidInput
from perdure.server.rest.guard import JSON_DEPTH_MAX, parse_json

DEEPEST = b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX


@pytest.mark.parametrize(
    "body",
    [
        b'{"\\u0000": 1}',
        b'{"a": {"b": [{"\\u0000": 1}]}}',
        b'{"\\ud800": 1}',
        b'["\\u0000"]',
        b'"\\ud800"',
        b"NaN",
        b"[Infinity]",
        b"1e999",
        b"{",
        b"\xff",
        b"[" + DEEPEST + b"]",
    ],
)
def test_what_could_not_be_stored_or_read_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        parse_json(body)


def test_what_is_within_bounds_is_taken() -> None:
    assert parse_json(b'{"a": [1, 2.5, "\\u00e9", null, {"b": true}]}') == {"a": [1, 2.5, "é", None, {"b": True}]}
    assert parse_json(DEEPEST) is not None
