"""Counts ends of attempts by task and by worker."""

from __future__ import annotations

from typing import Final

from perdure.engine.name_counts import NameCounts
from perdure.engine.tasks.worker_windows import WorkerWindows

UNFAILED: Final = ("success", "cancelled")


class AttemptTally:
    def __init__(self, names: NameCounts) -> None:
        self._names, self.windows = names, WorkerWindows()

    def ended(self, task: tuple[int, str], worker: str | None, outcome: str, took_us: int, now_us: int) -> None:
        self.all_ended(task, worker, outcome, [took_us], now_us)

    def all_ended(
        self, task: tuple[int, str], worker: str | None, outcome: str, took_us: list[int], now_us: int
    ) -> None:
        """Attempts of one task that one worker has ended the same way. Reports come in batches, so the successes of a batch are one call."""
        counted = self._names.tasks.of(task)
        counted.ends[outcome] = counted.ends.get(outcome, 0) + len(took_us)
        counted.took_us.add_all(took_us)
        found = self.windows.slice_of(worker, now_us) if worker else None
        if found is not None:
            found.add(took_us, outcome not in UNFAILED)
