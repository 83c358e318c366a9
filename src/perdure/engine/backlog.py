"""Tasks that wait in memory for a free slot of the local worker, taken turn by turn from run to run.

A fan-out of 100,000 is held as the events that scheduled it plus an index, not as 100,000 objects, and does not hold up
the next run's single task.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from perdure.core.events import TasksScheduled
from perdure.engine.active import ActiveRun

TURN_TASKS = 32
"""Tasks of one run that go before the next run has its turn."""


class Chunk:
    __slots__ = ("event", "next", "scheduled_us")

    def __init__(self, event: TasksScheduled, scheduled_us: int) -> None:
        self.event, self.scheduled_us, self.next = event, scheduled_us, 0


class Backlog:
    def __init__(self) -> None:
        self._lines: OrderedDict[ActiveRun, deque[Chunk]] = OrderedDict()
        self.size = 0
        """Upper bound: cancelled tasks are counted until their turn comes."""

    def push(self, run: ActiveRun, event: TasksScheduled, scheduled_us: int) -> None:
        line = self._lines.get(run)
        if line is None:
            line = self._lines[run] = deque()
        line.append(Chunk(event, scheduled_us))
        self.size += len(event.inputs)

    def runs(self) -> Iterator[ActiveRun]:
        return iter(self._lines)

    def drop(self, run: ActiveRun) -> None:
        for chunk in self._lines.pop(run, ()):
            self.size -= len(chunk.event.inputs) - chunk.next

    def clear(self) -> None:
        self._lines.clear()
        self.size = 0

    def take(self, count: int) -> Iterator[tuple[ActiveRun, int, TasksScheduled, int]]:
        """Up to `count` tasks as (run, seq, event, scheduled_us), fairly over runs. Cancelled ones are passed over."""
        while count > 0 and self._lines:
            run, line = next(iter(self._lines.items()))
            turn = min(count, TURN_TASKS)
            while turn > 0 and line:
                chunk = line[0]
                seq = chunk.event.first + chunk.next
                chunk.next += 1
                self.size -= 1
                if chunk.next >= len(chunk.event.inputs):
                    line.popleft()
                if seq in run.state.tasks:
                    turn -= 1
                    count -= 1
                    yield run, seq, chunk.event, chunk.scheduled_us
            if line:
                self._lines.move_to_end(run)
            else:
                self._lines.pop(run, None)
