"""Finds where a value would come back changed.

JSON has fewer types than Python, so an encoder may write a value down as something else: NaN as null, a UUID as a
string, a subclass as its base. The typed decoder accepts some of these. A payload is therefore compared with what the
other end would read, and a difference is refused with its path instead of travelling silently.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from datetime import datetime, time
from typing import Any

_SEQUENCES = (list, tuple)


def difference(sent: Any, back: Any, path: str = "$") -> str | None:
    """Say where `back` is not `sent`, or None if they are the same value.

    A list and a tuple are the same here: JSON has one kind of array, and code that cares says so in its annotation.
    """
    if type(sent) in _SEQUENCES and type(back) in _SEQUENCES:
        return _difference_of_items(sent, back, path)
    if type(sent) is not type(back):
        return None if _equal(sent, back) else _changed(sent, back, path)
    if isinstance(sent, Mapping):
        return _difference_of_entries(sent, back, path)
    if isinstance(sent, tuple):  # a NamedTuple
        return _difference_of_items(sent, back, path)
    names = field_names(type(sent))
    if names is not None:
        found = (difference(getattr(sent, name), getattr(back, name), f"{path}.{name}") for name in names)
        return next((f for f in found if f), None)
    return None if _equal(sent, back) or _same_text(sent, back) else _changed(sent, back, path)


def field_names(cls: type[Any]) -> Iterable[str] | None:
    """Names of the fields of a dataclass, Struct, attrs class or pydantic model; None for anything else."""
    if dataclasses.is_dataclass(cls):
        return [f.name for f in dataclasses.fields(cls)]
    if hasattr(cls, "__struct_fields__"):
        return cls.__struct_fields__  # type: ignore[no-any-return]
    if hasattr(cls, "__attrs_attrs__"):
        return [a.name for a in cls.__attrs_attrs__]
    if hasattr(cls, "__pydantic_fields__"):
        return list(cls.__pydantic_fields__)
    return None


def type_name(kind: Any) -> str:
    """`int`, `shop.orders.Order`, `list[int]`: what a person would write."""
    if isinstance(kind, type) and not hasattr(kind, "__origin__"):
        return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return str(kind)


def _difference_of_items(sent: Any, back: Any, path: str) -> str | None:
    if len(sent) != len(back):
        return f"at `{path}`: {len(sent)} items would come back as {len(back)}"
    found = (difference(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(sent, back, strict=True)))
    return next((f for f in found if f), None)


def _difference_of_entries(sent: Mapping[Any, Any], back: Mapping[Any, Any], path: str) -> str | None:
    for key, value in sent.items():
        if key not in back:
            return f"at `{path}`: the key {key!r} ({type_name(type(key))}) would be lost or come back as another type"
        found = difference(value, back[key], f"{path}[{key!r}]")
        if found:
            return found
    return None if len(sent) == len(back) else f"at `{path}`: {len(sent)} keys would come back as {len(back)}"


def _changed(sent: Any, back: Any, path: str) -> str:
    if isinstance(sent, float) and not math.isfinite(sent):
        return f"at `{path}`: {sent!r} has no JSON form and would come back as {back!r}"
    if type(sent) is type(back):
        return f"at `{path}`: one {type_name(type(sent))} would come back as another"
    return f"at `{path}`: a `{type_name(type(sent))}` would come back as a `{type_name(type(back))}`"


def _equal(sent: Any, back: Any) -> bool:
    try:
        return bool(sent == back)
    except Exception:  # a comparison that fails, such as a signalling NaN's, proves nothing
        return False


def _same_text(sent: Any, back: Any) -> bool:
    """Two values that never compare equal (Decimal NaN, a local time in a clock change) may still be the same."""
    if isinstance(sent, (datetime, time)):
        return bool(sent.isoformat() == back.isoformat())
    return repr(sent) == repr(back)  # the default repr holds an address, so it never matches by accident
