"""The known name that a misspelled one was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

SUGGEST_CHARS_MAX: Final = 100
"""A longer name is not compared with others."""
PREFIX_CHARS: Final = 3
"""Characters of a name that are enough to stand for the only known one that begins with them."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that `name` was probably meant to be, or nothing."""
    if len(name) > SUGGEST_CHARS_MAX:
        return ""
    names = [k for k in known if len(k) <= SUGGEST_CHARS_MAX]
    lower = name.lower().replace("-", "_")
    close = next((k for k in names if k.lower().replace("-", "_") == lower), "")
    if not close and len(name) >= PREFIX_CHARS:
        longer = [k for k in names if k.startswith(name)]
        close = longer[0] if len(longer) == 1 else ""
    return close or next(iter(get_close_matches(name, names, 1, 0.6)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else ""
