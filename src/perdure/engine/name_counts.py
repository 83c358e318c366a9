"""What an engine counts by name: attempts of tasks, and runs of workflows.

Law: there are never more than METRIC_NAMES_MAX names of either kind; what comes after them is counted together, as OTHER.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from perdure.core.limits import METRIC_NAMES_MAX
from perdure.engine.counters import Histogram

OTHER: Final = (0, "_other")

Name = tuple[int, str]
"""(namespace, name)"""
T = TypeVar("T", bound="Counted")


class Counted:
    """Ends by word, and how long it took."""

    __slots__ = ("ends", "took_us")

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}
        self.took_us = Histogram()

    def ended(self, word: str, took_us: int) -> None:
        self.ends[word] = self.ends.get(word, 0) + 1
        self.took_us.add(max(took_us, 0))


class CountedTask(Counted):
    """Attempts of a task that ended here: success, error, timeout, lost, cancelled."""

    __slots__ = ()


class CountedWorkflow(Counted):
    """Runs of a workflow that ended here: success, failed, cancelled."""

    __slots__ = ("started",)

    def __init__(self) -> None:
        super().__init__()
        self.started = 0


class _Names(Generic[T]):
    """By name; the last one is asked for again more often than not."""

    __slots__ = ("_make", "found")

    def __init__(self, make: type[T]) -> None:
        self._make = make
        self.found: dict[Name, T] = {}

    def of(self, name: Name) -> T:
        known = self.found.get(name)
        if known is None:
            known = self.found.get(OTHER) if len(self.found) >= METRIC_NAMES_MAX else None
            if known is None:
                known = self.found[name if len(self.found) < METRIC_NAMES_MAX else OTHER] = self._make()
        return known


class NameCounts:
    __slots__ = ("tasks", "workflows")

    def __init__(self) -> None:
        self.tasks = _Names(CountedTask)
        self.workflows = _Names(CountedWorkflow)
