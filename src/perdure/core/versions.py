"""Which version of a workflow a new run gets.

    a start that names a version    that version
    a current version or ramp set by hand    the ramped version for the first percents of run ids, else the current one
    otherwise    the version that the starting code has, if a worker here serves it; else the current one, the newest that was registered

Laws:

1. The choice is made once, when the start is written, and recorded with it. It follows from the run's id and the percentage alone.
2. Raising a percentage adds runs to those that get the ramped version and takes none away.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec

_ALL: Final = float(1 << 64)


class Chosen(msgspec.Struct, frozen=True, gc=False):
    version: str
    pinned: bool = False
    """The run stays with it."""


class VersionChoice(msgspec.Struct, frozen=True):
    """What is set for a workflow."""

    current: str
    pinned: bool = False
    ramp: str = ""
    """The version that a part of new runs gets; empty: none."""
    ramp_pinned: bool = False
    percent: float = 0.0
    by_hand: bool = False
    """The current version or the ramp was set by hand: a version that a worker registers does not become current."""

    def of(self, run_id: bytes) -> Chosen:
        if self.ramp and is_ramped(run_id, self.percent):
            return Chosen(self.ramp, self.ramp_pinned)
        return Chosen(self.current, self.pinned)


def is_ramped(run_id: bytes, percent: float) -> bool:
    """Whether this run is among the first `percent` of all."""
    return int.from_bytes(blake2b(run_id, digest_size=8).digest(), "big") / _ALL * 100 < percent
