"""An estimate of the database's clock that is never ahead of it.

A reading was taken on the server before its answer got here, so reading minus arrival is a lower bound of the true offset. The
largest recent bound is the tightest. Timers decided by this clock are therefore never early.
"""

from __future__ import annotations

from time import monotonic_ns  # bound here, before workflow guards wrap the module's clocks

STEP_US = 50_000
"""A bound that falls behind by more than this means that the database's clock was set back."""


class DatabaseClock:
    def __init__(self) -> None:
        self._offset_us: int | None = None

    def sync(self, database_us: int) -> None:
        bound = database_us - monotonic_ns() // 1000
        if self._offset_us is None or bound > self._offset_us or self._offset_us - bound > STEP_US:
            self._offset_us = bound

    def now_us(self) -> int:
        assert self._offset_us is not None, "the clock is read before the first answer of the database"
        return monotonic_ns() // 1000 + self._offset_us
