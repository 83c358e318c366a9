"""Edits of a run's input: single fields of what its workflow was called with (core/calls.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from perdure.core.calls import encode_json
from perdure.core.errors import InvalidInput

INDEX_DIGITS_MAX: Final = 9


def edited(raw: bytes, edits: Mapping[str, bytes], names: Sequence[str] = ()) -> bytes:
    """The input with these fields changed. `names` are the parameters that can be given by position, where they are known. InvalidInput
    for a path that leads nowhere."""
    try:
        call: Any = msgspec.json.decode(raw or b"{}")
    except (ValueError, RecursionError) as e:
        raise InvalidInput(f"the input of the run is not JSON, so no field of it can be edited: {e}") from None
    for path, value in edits.items():
        holder, rest = _holder(call, path.split("."), names)
        try:
            new = msgspec.json.decode(value)
        except (ValueError, RecursionError) as e:
            raise InvalidInput(f"the value for {path!r} is not JSON: {e}") from None
        _put(holder, rest, new, path)
    return encode_json(call)


def _holder(call: Any, steps: list[str], names: Sequence[str]) -> tuple[Any, list[str]]:
    """Where the first name of a path is looked for."""
    if not isinstance(call, dict):
        return call, steps
    given = cast(dict[str, Any], call)
    if list(given) == ["**"]:
        return given["**"], steps
    by_position: Any = given.get("*")
    if not isinstance(by_position, list) or steps[0] in given:
        return given, steps
    args: list[Any] = by_position
    if steps[0] in names[: len(args)]:
        return args, [str(names.index(steps[0])), *steps[1:]]
    if not names and len(args) == 1 and isinstance(args[0], dict):
        return args[0], steps  # a flow that was called with one object
    return given, steps


def _put(holder: Any, steps: list[str], value: Any, path: str) -> None:
    for step in steps[:-1]:
        holder = _at(holder, step, path)
    last = steps[-1]
    if isinstance(holder, list):
        _at(holder, last, path)  # it must exist: a list does not grow by an edit
        holder[int(last)] = value
    elif isinstance(holder, dict) and last not in ("*", "**", ""):
        holder[last] = value
    else:
        raise _nowhere(path, last)


def _at(holder: Any, step: str, path: str) -> Any:
    if isinstance(holder, dict) and step in holder:
        return cast(dict[str, Any], holder)[step]
    if isinstance(holder, list):
        items: list[Any] = holder
        if step.isascii() and step.isdigit() and len(step) <= INDEX_DIGITS_MAX and int(step) < len(items):
            return items[int(step)]
    raise _nowhere(path, step)


def _nowhere(path: str, step: str) -> InvalidInput:
    return InvalidInput(f"the input has nothing at {path!r}: there is no {step!r}; `perdure show RUN` prints the input")
