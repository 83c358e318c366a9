"""Search attributes: a flat JSON object that a run is found by.

Laws:

1. A value is a text, a number or a truth value. In a change, None deletes the attribute.
2. Attributes of a run are a function of its history: those of its start, changed by each `AttributesSet` in order. What a
   run continues as begins with them.
3. They are bounded in number and size (limits.py), at the start and after every change.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.limits import ATTRIBUTE_NAME_CHARS_MAX, ATTRIBUTE_VALUE_CHARS_MAX, ATTRIBUTES_MAX
from perdure.core.names import checked_name

AttributeValue = str | bool | int | float
Attributes = dict[str, AttributeValue | None]

_NUMBER_MAX: Final = 2**63
_decoder: Final = msgspec.json.Decoder(Attributes)


def decode_attributes(data: bytes) -> Attributes:
    """Empty bytes are no attributes. Raises InvalidInput for what is no flat JSON object."""
    if not data:
        return {}
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidInput(
            f"attributes: write a flat JSON object of texts, numbers and truth values: {error}"
        ) from None


def encode_attributes(given: Mapping[str, AttributeValue | datetime | None]) -> bytes:
    """Attributes or a change of them as they are recorded. A datetime becomes its text in UTC, which sorts like the time."""
    return msgspec.json.encode({name: _plain(name, value) for name, value in given.items()})


def start_attributes(given: Mapping[str, AttributeValue | datetime]) -> bytes:
    """Those of a start, within the bounds. Raises InvalidInput."""
    check_bounds(given)
    return encode_attributes(given)


def changed(attributes: bytes, change: bytes) -> bytes:
    """The attributes after a change."""
    after: Attributes = {**decode_attributes(attributes), **decode_attributes(change)}
    return msgspec.json.encode({name: value for name, value in after.items() if value is not None})


def check_bounds(attributes: Mapping[str, Any]) -> None:
    if len(attributes) > ATTRIBUTES_MAX:
        raise InvalidInput(
            f"{len(attributes)} attributes are over the limit ATTRIBUTES_MAX={ATTRIBUTES_MAX}; delete some, or keep the value in a State"
        )
    for name, value in attributes.items():
        checked_name("attribute", name, ATTRIBUTE_NAME_CHARS_MAX)
        if isinstance(value, str) and len(value) > ATTRIBUTE_VALUE_CHARS_MAX:
            raise InvalidInput(
                f"attribute {name!r} has {len(value)} characters, over the limit "
                f"ATTRIBUTE_VALUE_CHARS_MAX={ATTRIBUTE_VALUE_CHARS_MAX}; keep the value in a State, and a short form of it here"
            )


def _plain(name: str, value: AttributeValue | datetime | None) -> AttributeValue | None:
    checked_name("attribute", name, ATTRIBUTE_NAME_CHARS_MAX)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInput(f"attribute {name!r}: a datetime needs a time zone")
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if "\x00" in value or not _is_text(value):
            raise InvalidInput(
                f"attribute {name!r}: a text without NUL and without halves of surrogate pairs is needed"
            )
        return str(value)
    if isinstance(value, int) and -_NUMBER_MAX <= value < _NUMBER_MAX:
        return int(value)
    if isinstance(value, float) and isfinite(value):
        return float(value)
    raise InvalidInput(f"attribute {name!r}: {value!r} is not a text, a number of 64 bits, a truth value or a datetime")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
