"""What a Python workflow takes, as far as a start is checked against it: the names of its parameters, and which are required; and its queries.

A worker publishes it with the workflow. Types are described for forms and editors; a start is not checked against them, because only the code
can say what it converts. See core/calls.py for the forms of a call.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final

import msgspec

from perdure.core.calls import OFFER


class Parameters(msgspec.Struct, frozen=True, omit_defaults=True):
    names: tuple[str, ...] = ()
    """Those that can be given by position first, in their order."""
    positional: int = 0
    """How many of them can be given by position."""
    required: tuple[str, ...] = ()
    takes_more: bool = False
    """It has `*args`: any number by position."""
    takes_any: bool = False
    """It has `**kwargs`: any name."""
    schema: dict[str, Any] | None = None
    """JSON Schema of a call by name; None where it is too long to publish."""
    queries: tuple[str, ...] = ()
    """Names of its queries, in their order."""


_decoder: Final = msgspec.json.Decoder(Parameters)
_by_name: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_by_position: Final = msgspec.json.Decoder(list[msgspec.Raw])


def encode(p: Parameters) -> bytes:
    return msgspec.json.encode(p)


def decode(data: bytes | str) -> Parameters | None:
    """None for what this version cannot read: then nothing is checked."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None


def parameters_schema(p: Parameters) -> dict[str, Any]:
    """JSON Schema of a call by name. Where no types were published any value may be given."""
    if p.schema is not None:
        return p.schema
    return {
        "type": "object",
        "properties": {name: {} for name in p.names},
        "required": list(p.required),
        "additionalProperties": p.takes_any,
    }


def call_problem(workflow: str, p: Parameters, raw: bytes) -> str:
    """What is wrong with the arguments of a start; "" when they fit."""
    try:
        given = _by_name.decode(raw or b"{}")
        by_position = _by_position.decode(given.pop("*")) if "*" in given else []
        if raw.startswith(OFFER):
            given = {n: v for n, v in _by_name.decode(given["**"]).items() if n in p.names}
    except msgspec.DecodeError:
        return f"the arguments of {workflow} are not an object of names and values; {_takes(workflow, p)}"
    if len(by_position) > p.positional and not p.takes_more:
        return f"{workflow} was given {len(by_position)} arguments by position; {_takes(workflow, p)}"
    placed = p.names[: min(len(by_position), p.positional)]
    if placed + tuple(given) == p.required:  # by far the most common
        return ""
    if given and not p.takes_any and (unknown := [n for n in given if n not in p.names]):
        near = get_close_matches(unknown[0], p.names, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"{workflow} has no argument {unknown[0]!r}; {hint}{_takes(workflow, p)}"
    if given and (twice := [n for n in placed if n in given]):
        return f"the argument {twice[0]!r} of {workflow} is given twice, by position and by name"
    if missing := [n for n in p.required if n not in given and n not in placed]:
        return f"the argument {missing[0]!r} of {workflow} is missing; {_takes(workflow, p)}"
    return ""


def _takes(workflow: str, p: Parameters) -> str:
    names = [n if n in p.required else f"{n} (optional)" for n in p.names]
    return f"it takes {', '.join(names) or 'no arguments'}"
