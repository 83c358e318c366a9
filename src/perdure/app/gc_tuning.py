"""How often Python's garbage collector runs while an engine is open.

The interpreter's default is one collection per 700 new objects. An engine makes that many for a handful of tasks and leaves next to no cycles,
so a sixth of its time went into collections. Memory is freed by reference counting as ever; cycles of the application are
found a little later.
"""

from __future__ import annotations

import gc
from typing import Final

OBJECTS: Final = 50_000
"""New objects between two collections of the youngest generation."""


class CollectorPace:
    """Slows the collector down and gives back what was set before. An application that chose more itself is left alone."""

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None

    def slow_down(self) -> None:
        threshold = gc.get_threshold()
        if 0 < threshold[0] < OBJECTS:  # 0 is off
            self._before = threshold
            gc.set_threshold(OBJECTS, *threshold[1:])

    def settle(self) -> None:
        """For a dedicated process: freeze the objects loaded so far, so that no collection visits them again."""
        self.slow_down()
        gc.collect()
        gc.freeze()

    def restore(self) -> None:
        if self._before is not None and gc.get_threshold()[0] == OBJECTS:
            gc.set_threshold(*self._before)
        self._before = None
