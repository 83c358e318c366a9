"""What each worker has done in the last minutes: attempts that ended, how many failed, how long they took.

A window consists of slices; the oldest is dropped when a new one begins. A duration goes into a bucket by its bits and the two after the
highest, so that a percentile is off by an eighth at most. Workers that did nothing within the window are forgotten.
"""

from __future__ import annotations

from collections import deque
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
    __slots__ = ("buckets", "failed", "number")

    def __init__(self, number: int) -> None:
        self.number, self.failed = number, 0
        self.buckets: dict[int, int] = {}

    def add(self, took_us: list[int], failed: bool) -> None:
        buckets = self.buckets
        for us in took_us:
            bits = us.bit_length()
            bucket = bits << 2 | (us >> bits - 3 & 3 if bits > 2 else 0)
            buckets[bucket] = buckets.get(bucket, 0) + 1
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
        buckets: dict[int, int] = {}
        for s in slices:
            for bucket, count in s.buckets.items():
                buckets[bucket] = buckets.get(bucket, 0) + count
        ended = sum(buckets.values())
        shares = [_percentile(buckets, ended, share) for share in (0.5, 0.95, 0.99)]
        return WorkerLoad(ended, sum(s.failed for s in slices), *shares)


def _percentile(buckets: dict[int, int], total: int, share: float) -> int:
    """The upper bound of the bucket in which the percentile lies."""
    left = total * share
    for bucket in sorted(buckets):
        left -= buckets[bucket]
        if left <= 0:
            return _bound(bucket)
    return _bound(max(buckets))


def _bound(bucket: int) -> int:
    bits, quarter = bucket >> 2, bucket & 3
    return (1 << bits) - 1 if bits <= 2 else ((5 + quarter) << bits - 3) - 1
