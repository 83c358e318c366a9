"""Stored values and blobs in what commands print: a line that says what there is and how to get it, in the place of a reference."""

from __future__ import annotations

from typing import Any, Final

from perdure.core.names import escaped

DIGEST_CHARS_SHORT: Final = 8
UNITS: Final = ("bytes", "KiB", "MiB", "GiB")


def readable(value: Any, *, short: bool = False) -> Any:
    """The value with a line of text for each reference. `short`: without the command that downloads it."""
    if isinstance(value, dict):
        found: dict[str, Any] = value
        about = _about(found)
        if about is not None:
            return _line(about, short=short)
        return {key: readable(member, short=short) for key, member in found.items()}
    if isinstance(value, list):
        members: list[Any] = value
        return [readable(member, short=short) for member in members]
    return value


def _about(found: dict[str, Any]) -> dict[str, Any] | None:
    """What the REST API says in the place of stored content. None: it is data, which may use the same key."""
    about = found.get("$payload")
    if len(found) != 1 or not isinstance(about, dict):
        return None
    told: dict[str, Any] = about
    return told if {"sha256", "size", "media_type", "href"} <= told.keys() else None


def _line(about: dict[str, Any], *, short: bool) -> str:
    what = "blob" if about.get("is_blob") else "stored value"
    name = f" {escaped(str(about['name']), keep='')}" if about.get("name") else ""
    text = f"{what}{name}, {size(about['size'])}, {about['media_type']}"
    if short:
        return f"{text}, sha256 {about['sha256'][:DIGEST_CHARS_SHORT]}…"
    return f"{text}; perdure payload get {about['sha256']}"


def size(count: int) -> str:
    """12 bytes, 1.2 MiB."""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{count} {UNITS[0]}" if unit == 0 else f"{amount:.1f} {UNITS[unit]}"
