"""`matches`: regular expressions of RE2, whose time grows with the text and never with the number of ways to match.

A pattern's states can grow to the product of its repetitions, and the time with them, so a match is paid for by `weight` times the length of
the text before it is made. The weight comes from the pattern's text alone and not from the library: costs decide how a flow is batched and have
to be the same in every replay.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from perdure.core.expressions.nodes import Fault, Meter
from perdure.core.limits import EXPR_MATCH_CHARS_MAX, EXPR_PATTERN_CHARS_MAX

PATTERNS_CACHED: Final = 256
PATTERN_BYTES_MAX: Final = 1 << 20
"""Memory of one compiled pattern and its states."""
_WIDE: Final = 16
"""Weight of a class of Unicode, which has many ranges."""
_STATES_PER_STEP_BITS: Final = 5
"""So many states (as a power of two) at one character count as a step: measured, on the slowest of RE2's engines."""
_MATCHED: Final = 16
"""Steps of one match besides its text."""
_REPEATS_MAX: Final = 1_000
"""RE2 takes no more."""
_PIECE: Final = re.compile(
    r"\\[pP](?:\{[^}]*\}|.)|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?[a-zA-Z-]*[:)]|\?P?<\w+>)?|\)|\{(\d+)(?:,(\d*))?\}|.",
    re.DOTALL | re.ASCII,
)


def matches(meter: Meter, text: str, pattern: str) -> bool:
    """Whether the pattern occurs anywhere in the text."""
    if len(text) > EXPR_MATCH_CHARS_MAX:
        raise Fault(f"the text has {len(text)} characters; {EXPR_MATCH_CHARS_MAX} is the most that is matched")
    _check_length(pattern)
    weight = pattern_weight(pattern)
    meter.spend(_MATCHED + len(pattern) + (weight * (len(text) + 1) >> _STATES_PER_STEP_BITS))
    try:
        return compiled_pattern(pattern).search(text) is not None
    except UnicodeEncodeError:
        raise Fault("the string has half of a surrogate pair in it") from None


def check_pattern(pattern: str) -> None:
    """Raises Fault for one that cannot be used with any text."""
    _check_length(pattern)
    compiled_pattern(pattern)


def _check_length(pattern: str) -> None:
    if len(pattern) > EXPR_PATTERN_CHARS_MAX:
        raise Fault(f"the pattern has {len(pattern)} characters; {EXPR_PATTERN_CHARS_MAX} is the most")


@lru_cache(PATTERNS_CACHED)
def compiled_pattern(pattern: str) -> Any:
    """Raises Fault for what is no pattern of RE2."""
    re2: Any = import_module("re2")  # 5 ms that expressions without patterns need not pay
    options = re2.Options()
    options.max_mem = PATTERN_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as exc:
        said = exc.args[0].decode(errors="replace") if exc.args and isinstance(exc.args[0], bytes) else str(exc)
        raise Fault(f"the pattern cannot be read: {said}") from None
    except UnicodeEncodeError:
        raise Fault("the pattern has half of a surrogate pair in it") from None


@lru_cache(PATTERNS_CACHED)
def pattern_weight(pattern: str) -> int:
    """About how many states a pattern has: its parts, each times its repetitions and those of the groups around it."""
    groups: list[int] = [0]
    last = 0
    for piece in _PIECE.finditer(pattern):
        token = piece[0]
        if piece[1] is not None:
            times = max(1, min(int(piece[2] or piece[1]), _REPEATS_MAX))
            groups[-1] += last * (times - 1)
            last *= times
        elif token[0] == "(" and not (len(token) > 1 and token[-1] == ")"):
            groups.append(0)
            last = 0
        elif token == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        else:
            last = _WIDE if token[:2] in (r"\p", r"\P") else 1
            groups[-1] += last
    return sum(groups) + 1
