"""Counting runs over time: steps of histograms, and percentiles of durations that are counted by size.

A duration of s microseconds has the size floor(8 log2 s), so that a size spans nine percent. A percentile is the middle of its size and is wrong by five
percent at most. SQL computes sizes (perdure.duration_size).

Counters of ended runs are kept in steps of STEP_S. Upkeep merges them into longer ones as they age, therefore a histogram that reaches further
back has longer bins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple

from perdure.core.errors import InvalidInput
from perdure.core.limits import HISTOGRAM_BINS_MAX, RUN_COUNTS_KEPT_DAYS

STEP_S: Final = 900
"""How exactly the creation of an ended run is counted at first."""
HOUR_S: Final = 3_600
DAY_S: Final = 86_400
MERGES: Final = ((HOUR_S, STEP_S), (2 * DAY_S, HOUR_S), (35 * DAY_S, DAY_S))
"""(age, step): counters older than this are merged into steps of that many seconds."""
STEPS_S: Final = (STEP_S, 1_800, HOUR_S, 2 * HOUR_S, 3 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S, DAY_S, 2 * DAY_S, 7 * DAY_S)
"""Lengths of a bin, each a multiple of the steps before it that counters may have."""
SIZES_PER_DOUBLING: Final = 8


class Bins(NamedTuple):
    """`number` bins of `bin_s` seconds from `from_us` on."""

    from_us: int
    bin_s: int
    number: int

    @property
    def to_us(self) -> int:
        return self.from_us + self.number * self.bin_s * 1_000_000


def bins_of(since_us: int, until_us: int, bins: int, now_us: int) -> Bins:
    """At most so many bins that end with the one of `until_us`. They begin at whole multiples of their length."""
    if not 1 <= bins <= HISTOGRAM_BINS_MAX:
        raise InvalidInput(f"bins is {bins}: give 1 to HISTOGRAM_BINS_MAX={HISTOGRAM_BINS_MAX}")
    if since_us >= until_us:
        raise InvalidInput("`since` is not before `until`")
    since_us = max(since_us, until_us - RUN_COUNTS_KEPT_DAYS * DAY_S * 1_000_000)
    # "The last 24 hours" are a moment longer by the time they are looked at.
    least_s = max(_step_at(now_us - since_us), ((until_us - since_us) / 1e6 - 60) / bins)
    bin_s = next((step for step in STEPS_S if step >= least_s), ceil(least_s / DAY_S) * DAY_S)
    bin_us = bin_s * 1_000_000
    last, first = -(-until_us // bin_us), since_us // bin_us
    return Bins(max(first, last - bins) * bin_us, bin_s, last - max(first, last - bins))


def days_until(now_us: int, days: int) -> Bins:
    """So many days (UTC), today the last."""
    today = now_us // (DAY_S * 1_000_000)
    return Bins((today - days + 1) * DAY_S * 1_000_000, DAY_S, days)


def merge_age_s(age_s: int, step_s: int) -> int:
    """Merging begins later than histograms expect it, so that one that is asked for the last two days has steps of 15 minutes throughout."""
    return age_s + 2 * step_s


def _step_at(age_us: int) -> int:
    return max((step for age_s, step in MERGES if age_us > (age_s + step) * 1_000_000), default=STEP_S)


def percentiles(sizes: Mapping[int, int], shares: Sequence[float]) -> list[float | None]:
    """In seconds, of durations of which there are so many per size. None where there is none."""
    counted = sorted((size, n) for size, n in sizes.items() if n > 0)
    total = sum(n for _, n in counted)
    return [_percentile(counted, total * share) if total else None for share in shares]


def _percentile(counted: list[tuple[int, int]], rank: float) -> float:
    size = next((size for size, below in _cumulated(counted) if below >= rank), counted[-1][0])
    return float(f"{2 ** ((size + 0.5) / SIZES_PER_DOUBLING) / 1e6:.3g}")


def _cumulated(counted: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    below = 0
    for size, n in counted:
        below += n
        yield size, below
