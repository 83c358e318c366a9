"""What each worker has done in the last minutes: attempts that ended, how many failed, how long they took.

A window consists of slices; the oldest is dropped when a new one begins. Durations are counted by size, an eighth of a power of two, so that
a percentile is too high by an eighth at most. Workers that did nothing within the window are forgotten.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import repeat
from math import isqrt
from typing import Final

import msgspec

from perdure.core.limits import WORKER_WINDOW_S, WORKERS_MEASURED_MAX

SLICES: Final = 10
SLICE_US: Final = WORKER_WINDOW_S * 1_000_000 // SLICES


class WorkerLoad(msgspec.Struct, frozen=True):
    """Of one worker, over the last WORKER_WINDOW_S."""

    ended: int = 0
    failed: int = 0
    p50_us: int | None = None
    p95_us: int | None = None
    p99_us: int | None = None


NO_LOAD: Final = WorkerLoad()


class WorkerSlice:
    __slots__ = ("failed", "number", "sizes")

    def __init__(self, number: int) -> None:
        self.number, self.failed = number, 0
        self.sizes = Counter[int]()

    def add(self, took_us: list[int], failed: bool) -> None:
        """A size is the number of bits of the eighth power. There is a duration per task, so this is no loop of Python's."""
        self.sizes.update(map(int.bit_length, map(pow, took_us, repeat(8))))
        if failed:
            self.failed += len(took_us)


class WorkerWindows:
    def __init__(self) -> None:
        self._workers: dict[str, deque[WorkerSlice]] = {}
        self._number = 0

    def slice_of(self, worker: str, now_us: int) -> WorkerSlice | None:
        """Where to add what the worker does now. None: too many workers are measured."""
        number = now_us // SLICE_US
        if number != self._number:
            self._turn(number)
        slices = self._workers.get(worker)
        if slices is None:
            if len(self._workers) >= WORKERS_MEASURED_MAX:
                return None
            slices = self._workers[worker] = deque(maxlen=SLICES)
        if not slices or slices[-1].number != number:
            slices.append(WorkerSlice(number))
        return slices[-1]

    def _turn(self, number: int) -> None:
        self._number = number
        for worker, slices in list(self._workers.items()):
            while slices and slices[0].number <= number - SLICES:
                slices.popleft()
            if not slices:
                del self._workers[worker]

    def load(self, worker: str, now_us: int) -> WorkerLoad:
        first = now_us // SLICE_US - SLICES
        slices = [s for s in self._workers.get(worker, ()) if s.number > first]
        if not slices:
            return NO_LOAD
        sizes = Counter[int]()
        for s in slices:
            sizes.update(s.sizes)
        ended = sizes.total()
        shares = [_percentile(sizes, ended, share) for share in (0.5, 0.95, 0.99)]
        return WorkerLoad(ended, sum(s.failed for s in slices), *shares)


def _longest(size: int) -> int:
    """The longest duration of this size."""
    return isqrt(isqrt(isqrt((1 << size) - 1)))


def _percentile(sizes: Counter[int], total: int, share: float) -> int:
    """The longest duration of the size in which the percentile lies."""
    left = total * share
    for size in sorted(sizes):
        left -= sizes[size]
        if left <= 0:
            return _longest(size)
    return _longest(max(sizes))
