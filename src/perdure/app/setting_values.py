"""Values of settings: from text to types, and back to TOML."""

from __future__ import annotations

import json
import os
import types
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from perdure.core.durations import to_us

SWITCH: Final = {
    "on": True,
    "1": True,
    "true": True,
    "yes": True,
    "off": False,
    "0": False,
    "false": False,
    "no": False,
}


def struct_of(annotation: Any) -> type[msgspec.Struct] | None:
    """The struct that a field holds; None for other types."""
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, msgspec.Struct) and _is_group(o)), None)


def _is_group(cls: type[msgspec.Struct]) -> bool:
    """Not a value that is written as one text, such as an address."""
    return not hasattr(cls, "parse")


def converted(value: object, name: str, annotation: Any) -> object:
    """A value of a struct's field, from text or TOML. Seconds may be written as durations."""
    kinds = set(get_args(annotation)) if get_origin(annotation) in (Union, types.UnionType) else {annotation}
    if isinstance(value, str):
        if bool in kinds:
            return switch(value)
        if Path in kinds:
            return file(value)
        if any(get_origin(kind) in (Mapping, dict) for kind in kinds):
            return table(value)
        if float in kinds and name.endswith("_s"):
            return seconds(value)
    try:
        made = msgspec.convert(value, annotation, strict=False)
    except msgspec.ValidationError:
        raise ValueError(f"{value!r} is not {_shown(kinds)}") from None
    if name.endswith("_max") and isinstance(made, int) and made < 1:
        raise ValueError(f"{value} is not 1 or more")
    return made


def _shown(kinds: set[Any]) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return next((word for kind, word in words.items() if kind in kinds), "a value of the right type")


def words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def hosts(text: str) -> tuple[str, ...]:
    found = words(text)
    for host in found:
        if "/" in host or ":" in host:
            raise ValueError(f"{host!r} is not a host name: leave out https:// and the port")
    return found


def networks(text: str) -> tuple[str, ...]:
    return tuple(str(ip_network(word)) for word in words(text))


def url(text: str) -> str:
    if text and not text.startswith(("http://", "https://")):
        raise ValueError(f"{text!r} does not begin with http:// or https://")
    return text.rstrip("/")


def table(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        raise ValueError(f'{text!r} is not a JSON object of texts such as {{"platform-team": "admin"}}') from None


def file(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ValueError(f"{text} is not a file that can be read")
    return path


def seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return to_us(text) / 1e6


def switch(text: str) -> bool:
    if text.lower() not in SWITCH:
        raise ValueError(f"{text!r} is neither on nor off")
    return SWITCH[text.lower()]


def choice(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"{text!r} is not one of {', '.join(allowed)}")
        return text

    return parse


def as_toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(as_toml(one) for one in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(str(k))} = {as_toml(v)}' for k, v in value.items())}}}"
    return json.dumps(str(value))
