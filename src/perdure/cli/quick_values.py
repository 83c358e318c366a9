"""Parses option values without pydantic, whose import takes longer than most commands. Typer 0.26 and newer import it for every option.

Only simple values are parsed here: strings, integers within their bounds, members of a choice. Everything else, invalid values
included, goes to typer, which prints the error.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, Union, get_args, get_origin

import typer.core

_OTHER: Final = object()


def install() -> None:
    """Older versions of typer have no such function and do not need this."""
    core: Any = typer.core
    build = getattr(core, "build_runtime_param", None)
    if build is None or getattr(build, "is_quick", False):
        return

    def quick(descriptor: Any) -> Any:
        return _Quick(descriptor, build)

    quick.is_quick = True  # type: ignore[attr-defined]
    core.build_runtime_param = quick


@dataclass(frozen=True)
class _Quick:
    descriptor: Any
    build: Any

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        found = quick_value(self.descriptor.annotation, self.descriptor.parameter_info, value)
        return self.build(self.descriptor).coerce(value, param, ctx) if found is _OTHER else found


def quick_value(annotation: Any, info: Any, value: Any) -> Any:
    if info.parser is not None or getattr(info, "click_type", None) is not None or value is None:
        return _OTHER
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        return quick_value(kinds[0], info, value) if len(kinds) == 1 else _OTHER
    if origin is list:
        if not isinstance(value, (list, tuple)):
            return _OTHER
        found = [quick_value(get_args(annotation)[0], info, one) for one in value]
        return _OTHER if any(one is _OTHER for one in found) else found
    if origin is Literal:
        return value if value in get_args(annotation) else _OTHER
    return _scalar(annotation, info, value)


def _scalar(kind: Any, info: Any, value: Any) -> Any:
    if kind is bool or kind is str:
        return value if type(value) is kind else _OTHER
    if kind is int:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
            value = int(value)
        within = (
            type(value) is int and (info.min is None or value >= info.min) and (info.max is None or value <= info.max)
        )
        return value if within else _OTHER
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next((one for one in kind if value is one or value == one.value), _OTHER)
    return _OTHER
