"""Work that is tried until it succeeds: the log says that it fails, at intervals that it still fails, and that it works again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from perdure.core.limits import OUTAGE_LOG_S


class Outage:
    def __init__(self, what: str, log: logging.Logger, clock: Callable[[], float]) -> None:
        """`what`: the work in plain words, to begin a sentence with."""
        self.what = what
        self._log, self._clock = log, clock
        self._since = self._said = 0.0
        self._failures = 0

    def failed(self, error: BaseException, *, unexpected: bool = False) -> None:
        """`unexpected`: a fault of the program; its trace is logged with every line that is."""
        now = self._clock()
        self._failures += 1
        trace = error if unexpected else None
        said = str(error) or type(error).__name__
        if self._failures == 1:
            self._since = self._said = now
            self._log.warning("%s failed and is tried again until it works: %s", self.what, said, exc_info=trace)
        elif now - self._said >= OUTAGE_LOG_S:
            self._said = now
            self._log.warning(
                "%s still fails after %.0f s and %d tries: %s",
                self.what,
                now - self._since,
                self._failures,
                said,
                exc_info=trace,
            )

    def over(self) -> None:
        """It works."""
        if self._failures:
            lasted = self._clock() - self._since
            self._log.warning("%s works again after %.0f s and %d failed tries", self.what, lasted, self._failures)
            self._failures = 0
