"""Texts that PostgreSQL can store: without NUL and without lone surrogates. No request with another text reaches a handler.

Payloads are bytes and stored as bytes: JSON in them may contain an escaped NUL. Search attributes are stored as jsonb, which has no NUL.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, Final, get_type_hints

import msgspec

from perdure.core.attributes import check_bounds, decode_attributes
from perdure.core.errors import InvalidInput

_TEXTLESS: Final = (int, float, bool, bytes, int | None, float | None, bool | None, bytes | None)


def check_text(text: str) -> None:
    if "\x00" in text:
        raise InvalidInput("a text of this request contains the character NUL, which cannot be stored; leave it out")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidInput(
                "a text of this request contains half of a surrogate pair, which is no character; leave it out"
            ) from None


def check_texts(value: Any) -> None:
    """Every text of a request."""
    kind = type(value)
    if kind is str:
        check_text(value)
    elif issubclass(kind, msgspec.Struct):
        texts_of, others_of = _parts_of(value.__class__)
        together = "".join(texts_of(value))  # at once, because every request comes here
        if not together.isascii() or "\x00" in together:
            check_text(together)
        for part in others_of(value):
            if part:
                check_texts(part)
    elif kind is dict:
        for name, part in value.items():
            check_texts(name)
            check_texts(part)
    elif kind in (list, tuple, set, frozenset):
        for part in value:
            check_texts(part)


Getter = Callable[[Any], tuple[Any, ...]]


@cache
def _parts_of(kind: type[msgspec.Struct]) -> tuple[Getter, Getter]:
    """Read the fields that are texts, and those that can hold one."""
    hints = get_type_hints(kind)
    texts = [name for name in kind.__struct_fields__ if hints[name] is str]
    others = [name for name in kind.__struct_fields__ if hints[name] not in (str, *_TEXTLESS)]
    return _getter(texts), _getter(others)


def _getter(names: list[str]) -> Getter:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def check_attributes(data: bytes) -> None:
    """Search attributes: a flat JSON object; empty for none."""
    attributes = decode_attributes(data)
    check_texts(attributes)
    check_bounds(attributes)
