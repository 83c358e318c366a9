"""Parts of a run's life in which its tasks are counted when they end: fine at first, and coarser the older the run is. perdure.age_bin computes
the same in SQL."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

COUNTED_FROM: Final = 1_000
"""Tasks from this number on are counted when they end (perdure.count_tasks); earlier ones are read one by one."""
PARTS_PER_S: Final = 16
PART_US: Final = 1_000_000 // PARTS_PER_S
FINE_BINS: Final = 256
OCTAVE_PARTS: Final = 128


class Moments(NamedTuple):
    """Moments that lie between two others, in microseconds since the beginning of a run: how many, and their sum."""

    low_us: float
    high_us: float
    n: int
    sum_us: float


def point(at_us: float) -> Moments:
    return Moments(at_us, at_us, 1, at_us)


def age_bin(age_us: int) -> int:
    """Of a moment, by microseconds since the beginning. In whole numbers, so that SQL finds the same."""
    return part_bin(age_us // PART_US)


def part_bin(parts: int) -> int:
    """Of a sixteenth of a second."""
    if parts < FINE_BINS:
        return parts if parts > 0 else 0
    octave = parts.bit_length() - 8
    return octave * OCTAVE_PARTS + (parts >> octave)


def bin_bounds_us(number: int) -> tuple[float, float]:
    """Where a bin begins and ends."""
    if number < FINE_BINS:
        low, width = number, 1
    else:
        octave = (number - OCTAVE_PARTS) // OCTAVE_PARTS
        width = 1 << octave
        low = (number - octave * OCTAVE_PARTS) * width
    return low / PARTS_PER_S * 1e6, (low + width) / PARTS_PER_S * 1e6


def spread(clusters: Iterable[Moments], from_us: float, width: float) -> dict[int, tuple[float, float]]:
    """Equal bins: number -> how many moments lie in it, and the sum of their offsets. A cluster that covers several is spread over them."""
    found: dict[int, tuple[float, float]] = {}
    for c in clusters:
        first, last = (max(math.floor((at - from_us) / width), 0) for at in (c.low_us, c.high_us))
        if first == last or c.high_us - c.low_us <= 0:
            _add(found, first, c.n, max(c.sum_us - c.n * (from_us + first * width), 0.0))
            continue
        for at in range(first, last + 1):
            begin, end = max(c.low_us, from_us + at * width), min(c.high_us, from_us + (at + 1) * width)
            part = max(end - begin, 0.0) / (c.high_us - c.low_us) * c.n
            _add(found, at, part, part * ((begin + end) / 2 - from_us - at * width))
    return found


def _add(found: dict[int, tuple[float, float]], at: int, n: float, offset_us: float) -> None:
    before = found.get(at, (0.0, 0.0))
    found[at] = before[0] + n, before[1] + offset_us
