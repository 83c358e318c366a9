"""Token buckets: so many requests a second on average, and a burst at once. Memory is bounded, the clock is a parameter.

A bucket that was not asked for the longest is the one that is forgotten when there are too many; it comes back full.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

BUCKETS_MAX: Final = 10_000


class Buckets:
    def __init__(self, size_max: int = BUCKETS_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        self._size_max = size_max
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """When each bucket is full again. Absent: full."""

    def __len__(self) -> int:
        return len(self._full_at)

    def wait_s(self, name: str, rate_per_s: float, burst: float) -> float:
        """Seconds until there is a token in this bucket; 0 when there is one now."""
        missing = max(0.0, self._full_at.get(name, 0.0) - self._clock()) * rate_per_s
        return max(0.0, (missing + 1 - burst) / rate_per_s)

    def take(self, name: str, rate_per_s: float, burst: float) -> float:
        """Take a token. Returns 0, or the seconds to wait when there is none; then nothing was taken."""
        wait = self.wait_s(name, rate_per_s, burst)
        if wait == 0.0:
            self._full_at[name] = max(self._full_at.get(name, 0.0), self._clock()) + 1 / rate_per_s
            self._full_at.move_to_end(name)
            while len(self._full_at) > self._size_max:
                self._full_at.popitem(last=False)
        return wait
