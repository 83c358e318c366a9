"""What the answer to an approval says."""

from __future__ import annotations

from typing import Any, Final, cast

from perdure.flows.model import APPROVED, REJECTED

_YES: Final = frozenset({APPROVED, "approve", "yes", "true", "ok"})
_NO: Final = frozenset({REJECTED, "reject", "no", "false", "denied"})


def verdict(value: Any) -> str:
    """The action that an answer leads to."""
    if isinstance(value, dict):
        answer = cast(dict[str, Any], value)
        found = next((answer[k] for k in ("approved", "decision", "action") if k in answer), True)
        return verdict(found if not isinstance(found, dict) else True)
    if isinstance(value, bool):
        return APPROVED if value else REJECTED
    if isinstance(value, str):
        word = value.strip().lower()
        return APPROVED if word in _YES else REJECTED if word in _NO else value
    return APPROVED
