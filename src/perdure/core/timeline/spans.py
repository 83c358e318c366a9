"""Arithmetic of times: idle spans, work at a time, classes of durations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from perdure.core.api.timeline import DurationBars, WorkBins
from perdure.core.timeline.rows import OCTAVE_BINS

IDLE_US_MIN: Final = 60_000_000
"""A shorter time without work is no idle span."""
IDLE_SHARE_MIN: Final = 0.1
"""Nor is one that is a smaller part of the run."""
IDLE_SPANS_MAX: Final = 20
BARS: Final = 16
LN2: Final = math.log(2)
BIN_US_MIN: Final = 1_000


def idle_spans(work: Iterable[tuple[int, int]], from_us: int, to_us: int) -> list[tuple[int, int]]:
    """Long times between `from_us` and `to_us` that no piece of work covers, in order."""
    least = max(IDLE_US_MIN, IDLE_SHARE_MIN * (to_us - from_us))
    found: list[tuple[int, int]] = []
    at = from_us
    for start, end in sorted(work):
        if start - at >= least:
            found.append((at, start))
        at = max(at, end)
    if to_us - at >= least:
        found.append((at, to_us))
    longest = sorted(found, key=lambda s: s[0] - s[1])[:IDLE_SPANS_MAX]
    return sorted(longest)


def duration_class(us: int) -> int:
    """As perdure.duration_size, to the last bit."""
    return math.floor(OCTAVE_BINS * math.log(us if us > 1 else 1) / LN2)


def class_us(number: int) -> int:
    """The middle of a class."""
    return int(2 ** ((number + 0.5) / OCTAVE_BINS))


def duration_bars(classes: Mapping[int, int], longest_us: int) -> DurationBars | None:
    """None without any."""
    if not classes:
        return None
    total, longest = sum(classes.values()), max(longest_us, 1)
    bars = [0] * BARS
    for number, tasks in classes.items():
        bars[min(int(min(class_us(number), longest) / longest * BARS), BARS - 1)] += tasks
    return DurationBars(bars, longest, *(_percentile(classes, total, p, longest) for p in (0.5, 0.95)))


def _percentile(classes: Mapping[int, int], total: int, part: float, longest_us: int) -> int:
    seen = 0
    for number in sorted(classes):
        seen += classes[number]
        if seen >= part * total:
            return min(class_us(number), longest_us)
    return longest_us


def exact_bars(durations: list[int]) -> DurationBars | None:
    """The same of known durations, exactly."""
    if not durations:
        return None
    known = sorted(durations)
    longest = max(known[-1], 1)
    bars = [0] * BARS
    for us in known:
        bars[min(int(us / longest * BARS), BARS - 1)] += 1
    p50, p95 = (known[max(math.ceil(part * len(known)) - 1, 0)] for part in (0.5, 0.95))
    return DurationBars(bars, longest, p50, p95)


def work_bins(spans: Iterable[tuple[int, int, bool]], bins: int) -> WorkBins | None:
    """Of attempts as (begin, end, whether it failed). None without any."""
    known = list(spans)
    if not known:
        return None
    from_us = min(start for start, _, _ in known)
    width = max(math.ceil((max(end for _, end, _ in known) - from_us) / bins), BIN_US_MIN)
    starts: dict[int, tuple[float, float]] = {}
    ends: dict[int, tuple[float, float]] = {}
    failures: dict[int, int] = {}
    for start, end, failed in known:
        _count(starts, start - from_us, width)
        _count(ends, end - from_us, width)
        if failed:
            at = min((end - from_us) // width, bins - 1)
            failures[at] = failures.get(at, 0) + 1
    last = max(max(ends), max(failures, default=0))
    return binned(starts, ends, failures, from_us, width, 0, min(last, bins))


def _count(counts: dict[int, tuple[float, float]], offset_us: int, width: int) -> None:
    at = offset_us // width
    n, total = counts.get(at, (0, 0.0))
    counts[at] = n + 1, total + offset_us % width


def binned(
    starts: Mapping[int, tuple[float, float]],
    ends: Mapping[int, tuple[float, float]],
    failures: Mapping[int, int],
    from_us: int,
    width: int,
    first: int,
    last: int,
) -> WorkBins:
    """Work at a time, on average over each bin from `first` to `last`: what ran before it, and the rest of the bin of each that began in
    it, without the rest of the bin of each that ended."""
    running: list[int] = []
    before = sum(n for at, (n, _) in starts.items() if at < first) - sum(n for at, (n, _) in ends.items() if at < first)
    for at in range(first, last + 1):
        begun, begun_us = starts.get(at, (0, 0.0))
        ended, ended_us = ends.get(at, (0, 0.0))
        area = before * width + (begun * width - begun_us) - (ended * width - ended_us)
        running.append(max(math.ceil(area / width - 1e-6), 0))
        before += begun - ended
    failed = [failures.get(at, 0) for at in range(first, last + 1)]
    return WorkBins(from_us + first * width, width, running, failed)
