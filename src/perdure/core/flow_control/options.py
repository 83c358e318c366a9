"""Flow-control options as users write them: concurrency, rate, priority. groups.py and admission.py apply them.

Laws:

1. A limit is acquired in the transaction that claims a task or lets in a run, and freed in the one that ends it. Nothing is counted in memory.
2. Expressions see `input`, the arguments by name. One that fails is null, and null is a value like any other.
"""

from __future__ import annotations

from typing import Final

import msgspec

POLICIES: Final = ("queue", "cancel_oldest", "cancel_newest", "skip")
"""What becomes of a run that finds its limit reached."""
PRIORITY_MIN: Final = -100
PRIORITY_MAX: Final = 100


class LimitOption(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """At most `max` at a time. `by` is an expression over the input: each of its values has a limit of its own. Limits with the same `key` share
    their slots across tasks and workflows; without one, a limit belongs to the task or workflow alone."""

    max: int
    by: str = ""
    key: str = ""
    policy: str = "queue"


class RateOption(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """At most `count` units within `per_us`, on average; up to `burst` at once. `units` is a number or an expression over the input."""

    count: float
    per_us: int
    by: str = ""
    key: str = ""
    units: str = "1"
    burst: float = 0.0
    """0: what comes in BURST_US, and 1 at least."""


class FlowControlSpec(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All that a task or workflow says about flow control."""

    limits: tuple[LimitOption, ...] = ()
    rates: tuple[RateOption, ...] = ()
    priority: int = 0
    """-100 to 100, higher first."""
    fair: str = ""
    """An expression over the input: its values take turns."""
    weight: str = "1"
    """A number, or an expression over the input: how often a value of `fair` has its turn, relative to the others."""
