"""The values of a query, by the field they are compared with."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from perdure.core.durations import datetime_of, is_iso, to_us, us_of
from perdure.core.errors import InvalidInput
from perdure.core.lifecycle import RunStatus
from perdure.core.run_query.nodes import Op, Value
from perdure.core.suggestions import did_you_mean

STATUSES: Final = tuple(status.word for status in RunStatus)
RECORDED_WAITS: Final = ("approval", "signal", "event", "promise", "update", "child", "timer", "task", "slot")
"""Wait reasons that are stored with a run."""
BOOLEANS: Final = {"true": True, "yes": True, "false": False, "no": False}
ID_DIGITS: Final = 32
NUMBER_CHARS_MAX: Final = 40
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")
_HEX: Final = re.compile(r"[0-9a-f]+")


def is_number(word: str) -> bool:
    return len(word) <= NUMBER_CHARS_MAX and _NUMBER.fullmatch(word) is not None


def attribute_value(word: str, quoted: bool, op: Op, now_us: int) -> Value:
    """A relative time becomes the text that attributes store a datetime as."""
    if quoted or op is Op.PREFIX:
        return word
    if is_number(word):
        return Decimal(word)
    if word.lower() in ("true", "false"):
        if op is not Op.EQUAL:
            raise InvalidInput("truth values have no order: use = or !=")
        return word.lower() == "true"
    if word == "now" or (word.startswith("-") and (word[1:2].isdigit() or is_iso(word[1:]))):
        return datetime_of(moment(word, now_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return word


def status(word: str) -> str:
    if word.lower() in STATUSES:
        return word.lower()
    raise InvalidInput(_unknown("status", word, STATUSES))


def wait_reason(word: str) -> str:
    if word in RECORDED_WAITS:
        return word
    if word in ("stuck", "paused"):
        raise InvalidInput(f"waiting_on has no reason {word!r}; write: {word}")
    unknown = _unknown("wait reason", word, RECORDED_WAITS)
    raise InvalidInput(
        unknown
        + ("" if unknown.endswith("?") else ".")
        + " Reasons that are not stored with the run, such as limit, are found by the filter waiting_on beside the query"
    )


def boolean(word: str) -> bool:
    if word.lower() in BOOLEANS:
        return BOOLEANS[word.lower()]
    raise InvalidInput(f"{word!r} is not a truth value; write true or false")


def run_id(word: str, op: Op) -> str:
    """The digits of an id, or the first of them."""
    digits = word.lower().replace("-", "")
    if not _HEX.fullmatch(digits) or len(digits) > ID_DIGITS:
        raise InvalidInput(f"{word!r} is not the id of a run")
    if op is not Op.PREFIX and len(digits) < ID_DIGITS:
        raise InvalidInput(f"{word!r} is the beginning of an id; write: prefix {word}")
    return digits


def moment(word: str, now_us: int) -> int:
    """`-2h`, `now`, a date, or a time, which is UTC unless it names a zone."""
    if word.lower() == "now":
        return now_us
    if word.startswith("-"):
        try:
            return max(now_us - to_us(word[1:]), 0)
        except InvalidInput:
            if is_iso(word[1:]):
                raise  # It says what is wrong with years and months.
    else:
        try:
            at = datetime.fromisoformat(word)
            return us_of(at if at.tzinfo is not None else at.replace(tzinfo=UTC))
        except ValueError:
            pass
    raise InvalidInput(
        f"{word!r} is no time: write how long ago (-2h, -1d12h), a date (2026-10-21) or a time (2026-10-21T14:00)"
    )


def _unknown(kind: str, word: str, known: tuple[str, ...]) -> str:
    hint = did_you_mean(word, known)
    return f"there is no {kind} {word[:50]!r}; {hint or 'use one of ' + ', '.join(known)}"
