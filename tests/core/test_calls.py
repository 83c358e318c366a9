"""Calls that come from elsewhere: by name, by position, or both."""

from __future__ import annotations

import pytest

from perdure.core.calls import encode_call
from perdure.core.errors import PayloadMismatch
from perdure.sdk.payloads.signatures import Signature


def plain(a: int, b: int = 2) -> None: ...


def wide(a: int, *rest: int, scale: float = 1.0, **more: str) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [([1, 3], {}, ((1, 3), {})), ([1], {"b": 4}, ((1, 4), {})), ([], {"a": 1}, ((1, 2), {})), ([1], {}, ((1, 2), {}))],
)
def test_positions_become_names(args: list[int], kwargs: dict[str, int], expected: object) -> None:
    assert Signature(plain).decode_call(encode_call(args, kwargs)) == expected


def test_positions_fill_varargs() -> None:
    call = encode_call([1, 2, 3], {"scale": 2.5, "colour": "red"})
    assert Signature(wide).decode_call(call) == ((1, 2, 3), {"scale": 2.5, "colour": "red"})


@pytest.mark.parametrize(
    "call", [b'{"*":[1,2,3]}', b'{"*":[1],"a":2}', b'{"*":[1],"z":2}', b'{"*":["x"]}', b'{"*":1}', b'{"*":']
)
def test_a_call_that_does_not_fit_says_so(call: bytes) -> None:
    with pytest.raises(PayloadMismatch):
        Signature(plain).decode_call(call)
