"""The cases of CEL's conformance tests, and what becomes of each in an expression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from perdure.core.errors import ExprError
from perdure.core.expressions import parse
from perdure.core.expressions.times import time_text
from perdure.core.expressions.values import Instant, TimeSpan

HERE: Final = Path(__file__).parent
NS: Final = 1_000_000_000
DIFFERENCES: Final[dict[str, Any]] = json.loads((HERE / "differences.json").read_text())
"""`categories`: why expressions differ. `different`: for each file the cases that do, with their category."""
FILES: Final = tuple(DIFFERENCES["different"])
LEFT_OUT: Final[dict[str, str]] = DIFFERENCES["left_out"]
"""Whole files, and why."""


class NoSuchValue(Exception):
    """An expression cannot have this value: bytes, types, numbers that JSON does not have, keys that are no strings."""


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text())
    return found


def expected(value: Any) -> Any:
    """As it leaves an expression."""
    if isinstance(value, list):
        return [expected(one) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "uint":
            return inner
        case "double" if not isinstance(inner, str):
            return inner
        case "map" if all(isinstance(key, str) for key, _ in inner):
            return {key: expected(one) for key, one in inner}
        case "timestamp":
            return time_text(Instant(inner[0] * NS + inner[1]))
        case "duration":
            return time_text(TimeSpan(inner[0] * NS + inner[1]))
        case _:
            raise NoSuchValue(kind)


def outcome(case: dict[str, Any]) -> str:
    """Empty: as the conformance test wants it. An expected error is any refusal, when the expression is read or when it is evaluated."""
    try:
        scope = {name: expected(value) for name, value in case.get("bindings", {}).items()}
        wanted = None if "error" in case else expected(case["value"])
    except NoSuchValue as exc:
        return f"no such value: {exc}"
    try:
        found = parse(case["expr"]).evaluate(scope.__getitem__)
    except ExprError as exc:
        return "" if "error" in case else f"error: {exc.message}"
    if "error" in case:
        return f"a value instead of an error: {found!r}"
    return "" if _same(found, wanted) else f"{found!r} instead of {wanted!r}"


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_same(found[key], wanted[key]) for key in found)
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)
