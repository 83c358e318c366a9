"""Parts of a text or of a value, as errors quote them."""

from __future__ import annotations

from typing import Final

EXPR_SHOWN_CHARS_MAX: Final = 120
"""Characters of an expression that its errors quote."""


def excerpt(text: str, offset: int) -> str:
    """The text around an offset, on one line."""
    if len(text) > EXPR_SHOWN_CHARS_MAX:
        start = min(max(0, offset - EXPR_SHOWN_CHARS_MAX // 2), len(text) - EXPR_SHOWN_CHARS_MAX)
        stop = start + EXPR_SHOWN_CHARS_MAX
        text = ("…" if start else "") + text[start:stop] + ("…" if stop < len(text) else "")
    return " ".join(text.split())


def shown_path(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
