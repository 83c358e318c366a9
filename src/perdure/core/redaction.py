"""Masks the values of secrets in texts that are kept or shown.

A value is found as it is, as it stands in JSON and in the `repr` of a string, quoted for a URL, and in base64, also as a part of something longer
that is in base64 (`user:password` of a header). Each line of a value that has several counts as well: output is kept by the line.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from json import dumps
from re import sub
from typing import Final
from urllib.parse import quote, quote_plus

from perdure.core.application_limits import SECRET_CHARS_MIN

_FRAME: Final = "-----"
"""How the first and last lines of keys and certificates begin: the same in all of them, and no secret."""


def mask_of(name: str) -> str:
    return f"***{name}***"


def forms_of(value: str) -> tuple[str, ...]:
    """What gives the value away, the longest first."""
    lines = [line for line in value.splitlines() if not line.startswith(_FRAME)] if "\n" in value else []
    found: dict[str, None] = {}
    for text in (value, *lines):
        for form in (*_written(text), *_base64(text.encode())):
            if len(form) >= SECRET_CHARS_MIN:
                found[form] = None
    return tuple(sorted(found, key=len, reverse=True))


def _written(text: str) -> Iterable[str]:
    yield text
    yield dumps(text)[1:-1]
    yield dumps(text)[1:-1].replace("/", "\\/")
    yield dumps(text, ensure_ascii=False)[1:-1]
    yield repr(text)[1:-1]
    for quoted in (quote(text, safe=""), quote(text), quote_plus(text)):
        yield quoted
        yield sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)


def _base64(data: bytes) -> Iterable[str]:
    """What every text in base64 has in common that holds the data after a multiple of three bytes, one more, or two more."""
    for before in range(3):
        text = b64encode(bytes(before) + data).decode()
        start = (0, 2, 3)[before]
        stop = (len(data) + before) * 4 // 3
        inner = text[start:stop]
        yield inner
        yield inner.replace("+", "-").replace("/", "_")


class Redactor:
    """Masks some values. Immutable."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        """`values`: names by value."""
        marks = {form: mask_of(name) for value, name in (values or {}).items() for form in forms_of(value)}
        self._texts = sorted(marks.items(), key=lambda item: len(item[0]), reverse=True)
        self._bytes = [(form.encode(), mark.encode()) for form, mark in self._texts if _is_text(form)]
        self.is_empty = not marks
        self.overlap = max(map(len, marks), default=1) - 1
        """Characters of the longest form but one: so much of it may be on one side of a cut."""

    @property
    def forms(self) -> tuple[bytes, ...]:
        """As bytes, the longest first."""
        return tuple(form for form, _ in self._bytes)

    def text(self, text: str) -> str:
        for form, mark in self._texts:
            if form in text:
                text = text.replace(form, mark)
        return text

    def data(self, data: bytes) -> bytes:
        for form, mark in self._bytes:
            if form in data:
                data = data.replace(form, mark)
        return data

    def is_in(self, data: bytes) -> bool:
        return any(form in data for form, _ in self._bytes)

    def unfinished(self, text: str) -> int:
        """Characters at the end of a text that may be the beginning of a value."""
        return max((_begun(text, form) for form, _ in self._texts), default=0)


def _begun(text: str, form: str) -> int:
    at = text.find(form[0], max(0, len(text) - len(form) + 1))
    while at >= 0:
        if form.startswith(text[at:]):
            return len(text) - at
        at = text.find(form[0], at + 1)
    return 0


def _is_text(form: str) -> bool:
    """Whether it can be written as UTF-8."""
    try:
        form.encode()
    except UnicodeEncodeError:
        return False
    return True
