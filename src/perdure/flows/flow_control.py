"""What people write about flow control, checked and brought into the form that is recorded (core/flow_control/options.py).

`by`, `units`, `fair` and `weight` are expressions over `input`, the arguments of the call by name. A bare path such as `customer` or
`order.customer` means `input.customer`, because nothing else could be meant.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Final

from perdure.core import expressions
from perdure.core.errors import InvalidInput
from perdure.core.expressions import KEYWORDS, ExprError
from perdure.core.suggestions import did_you_mean
from perdure.flows.problems import one_of

INPUT: Final = "input"
_BARE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z")
SHOWN_MAX: Final = 20
"""Parameters that a message names."""


def with_root(text: str) -> str:
    """A bare path begins at `input`; anything else is as written."""
    bare = text.strip()
    root = bare.partition(".")[0]
    return f"{INPUT}.{bare}" if _BARE.match(bare) and root != INPUT and root not in KEYWORDS else text


def canonical(text: str, what: str, parameters: Collection[str] | None = None) -> str:
    """The expression in the form that is recorded. `parameters`: the names that the input has; None where they are not known."""
    try:
        read = expressions.parse(with_root(text))
    except ExprError as e:
        raise InvalidInput(
            f'{what}: {text!r} is not an expression: {e.message}; write a path such as "customer" or "input.order.customer"'
        ) from None
    for root in sorted(read.roots - {INPUT}):
        raise InvalidInput(f'{what}: unknown name {root!r}; only input is known here: did you mean "input.{root}"?')
    if parameters is not None:
        for path in read.paths:
            if len(path) > 1 and path[1] not in parameters:
                raise InvalidInput(f"{what}: there is no parameter {path[1]!r}; {_known(str(path[1]), parameters)}")
    return expressions.to_text(read)


def _known(name: str, parameters: Collection[str]) -> str:
    if not parameters:
        return "the function takes none"
    return did_you_mean(name, parameters) or f"there are {one_of(sorted(parameters)[:SHOWN_MAX])}"


def number_or_expression(
    value: float | str, what: str, parameters: Collection[str] | None, least: float, most: float
) -> str:
    """A number within bounds, or an expression, whose value is held to them when it is known."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return canonical(str(value), what, parameters)
    if not math.isfinite(value) or not least <= value <= most:
        raise InvalidInput(f"{what} is {value:g}; it must lie between {least:g} and {most:g}, or be an expression")
    return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))
