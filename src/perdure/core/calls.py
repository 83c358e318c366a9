"""A call of a function as JSON, written without access to the function.

Arguments are one JSON object keyed by parameter name. Who knows only their order puts them first, under `*`, which no parameter is
called: `{"*":[1,2],"depth":3}`. Who knows neither names nor order offers all that is there, under `**`, and the function takes what
its parameters name: `{"**":{"url":"...","depth":3,"unused":null}}`. The SDK turns both into names when it runs the function.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from perdure.core.errors import InvalidInput

POSITIONAL: Final = b'{"*":'
"""How a call by position begins."""
OFFER: Final = b'{"**":'
"""How an offer begins."""

RESERVED: Final = "perdure."
"""How the names of the tasks begin that every worker of ours serves by itself."""
HTTP: Final = "perdure.http"
RUN: Final = "perdure.run"


def is_built_in(task: str) -> bool:
    """Whether it is a task of Perdure's own, and none that a user defined."""
    return task.startswith(RESERVED)


def encode_json(value: Any) -> bytes:
    """Compact JSON. ValueError for NaN and infinities, which JSON does not have."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def encode_call(args: list[Any], kwargs: dict[str, Any]) -> bytes:
    return encode_json({"*": args, **kwargs} if args else kwargs)


def encode_input(value: Any) -> bytes:
    """The arguments of a program without Python's calls: an object has them by name, null has none, any other value is the one argument."""
    if value is None:
        return encode_call([], {})
    if not isinstance(value, dict):
        return encode_call([value], {})
    if "*" in value:
        raise InvalidInput("no parameter can be called `*`; give arguments by position in `args`")
    return encode_call([], value)


def encode_offer(values: Mapping[str, Any]) -> bytes:
    """A call with everything that is at hand; what the function does not name is left aside."""
    return encode_json({"**": dict(values)})
