"""Answers of a bounded size: long texts, long lists and deep values are cut, and every answer lists what was cut.

An agent reads the whole answer of a tool, and the values in it are of any size. Nothing is cut without a note: the place has one, and so
has the answer under `cut`.
"""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple

from perdure.core.errors import InvalidInput

ANSWER_CHARS_MAX: Final = 40_000
"""Characters of one answer as JSON: about 10,000 tokens."""
TEXT_CHARS_MAX: Final = 4_000
"""Characters of one text in an answer."""
ENTRIES_MAX: Final = 200
"""Entries of one list in an answer."""
FIELDS_MAX: Final = 100
"""Fields of one object in an answer; objects of the API have fewer."""
DEPTH_MAX: Final = 16
CUTS_LISTED_MAX: Final = 20


class Bounds(NamedTuple):
    text_chars: int
    entries: int
    fields: int


STEPS: Final = (
    Bounds(TEXT_CHARS_MAX, ENTRIES_MAX, FIELDS_MAX),
    Bounds(1_000, 50, FIELDS_MAX),
    Bounds(250, 20, FIELDS_MAX),
    Bounds(60, 8, 40),
)
"""The first with which an answer is short enough."""

Cut = dict[str, Any]
"""`at` is a JSON pointer into the answer; `kept` of `of` characters, entries, fields or levels are there."""


def bounded(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with what was cut under `cut`."""
    for bounds in STEPS:
        shortened = Shortened(bounds)
        with suppress(_TooLong):
            value = shortened.value(answer, "", 0)
            if chars(value) <= ANSWER_CHARS_MAX:
                return {**value, "cut": listed(shortened.cuts)}
    raise InvalidInput(
        f"the answer is too large: more than {ANSWER_CHARS_MAX:,} characters even with its values cut. Ask for less: a lower limit, "
        "a filter, or one value with read_history_value."
    )


def is_short(value: Any) -> bool:
    """Whether it is short enough with no more than its longest texts and lists cut."""
    try:
        return chars(Shortened(STEPS[0]).value(value, "", 0)) <= ANSWER_CHARS_MAX
    except _TooLong:
        return False


def listed(cuts: list[Cut]) -> list[Cut]:
    if len(cuts) <= CUTS_LISTED_MAX:
        return cuts
    return [*cuts[:CUTS_LISTED_MAX], {"at": "", "kept": CUTS_LISTED_MAX, "of": len(cuts), "unit": "cuts listed here"}]


def chars(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False))


class _TooLong(Exception):
    """The value is too long within these bounds. The rest of it is not looked at: it may be large."""


class Shortened:
    """Makes a short copy of a value and notes what it has cut."""

    def __init__(self, bounds: Bounds) -> None:
        self.cuts: list[Cut] = []
        self._bounds, self._left = bounds, ANSWER_CHARS_MAX

    def value(self, value: Any, at: str, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _TooLong
        if isinstance(value, str):
            return self._text(value, at)
        if not isinstance(value, dict | list):
            return value
        if depth >= DEPTH_MAX:
            self.cuts.append({"at": at, "kept": depth, "of": None, "unit": "levels"})
            return f"[cut: nested more than {DEPTH_MAX} levels deep]"
        return self._list(value, at, depth) if isinstance(value, list) else self._object(value, at, depth)

    def _list(self, value: list[Any], at: str, depth: int) -> list[Any]:
        most = self._bounds.entries
        kept = [self.value(part, f"{at}/{n}", depth + 1) for n, part in enumerate(value[:most])]
        if len(value) > most:
            self.cuts.append({"at": at, "kept": most, "of": len(value), "unit": "entries"})
            kept.append(f"[cut: {len(value) - most:,} more entries]")
        return kept

    def _object(self, value: dict[str, Any], at: str, depth: int) -> dict[str, Any]:
        most = self._bounds.fields
        fields: dict[str, Any] = {}
        for name, part in islice(value.items(), most):
            short = self._text(name, at)
            fields[short] = self.value(part, f"{at}/{_pointer(short)}", depth + 1)
        if len(value) > most:
            self.cuts.append({"at": at, "kept": most, "of": len(value), "unit": "fields"})
            fields["[cut]"] = f"{len(value) - most:,} more fields"
        return fields

    def _text(self, text: str, at: str) -> str:
        short = cut_text(text, self._bounds.text_chars)
        self._left -= len(short)
        if len(text) > self._bounds.text_chars:
            self.cuts.append({"at": at, "kept": self._bounds.text_chars, "of": len(text), "unit": "characters"})
        return short


def cut_text(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… [cut: {len(text) - most:,} more characters]"


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def at_pointer(value: Any, pointer: str) -> Any:
    """The part of a value that a JSON pointer names."""
    if pointer and not pointer.startswith("/"):
        raise InvalidInput(f"{pointer!r} is no JSON pointer: it begins with /, such as /input/order or /inputs/0")
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise InvalidInput(f"there is nothing at {pointer!r}: {_what_is_there(value, name)}")
    return value


def _what_is_there(value: Any, name: str) -> str:
    if isinstance(value, dict):
        return f"no field {name!r}; fields are {', '.join(sorted(value)[:CUTS_LISTED_MAX])}"
    if isinstance(value, list):
        return f"no entry {name!r} in a list of {len(value)}"
    return f"{name!r} would be within a {type(value).__name__}"
