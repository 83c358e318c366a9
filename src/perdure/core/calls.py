"""A call of a workflow as JSON, written by somebody who does not have the function at hand.

Arguments are one JSON object keyed by parameter name. Who knows only their order puts them first, under `*`, which no parameter is
called: `{"*":[1,2],"depth":3}`. The SDK turns that into names when it runs the function.
"""

from __future__ import annotations

import json
from typing import Any, Final

POSITIONAL: Final = b'{"*":'
"""How such a call begins."""


def encode_json(value: Any) -> bytes:
    """Compact JSON. ValueError for NaN and infinities, which JSON does not have."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def encode_call(args: list[Any], kwargs: dict[str, Any]) -> bytes:
    return encode_json({"*": args, **kwargs} if args else kwargs)
