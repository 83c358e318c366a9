"""Tasks that wait in memory for a free slot, kind by kind, taken turn by turn from run to run.

A kind is (namespace, queue, task name): what a worker serves. A fan-out of 100,000 is held as the events that scheduled it plus an
index, not as 100,000 objects, and does not hold up the next run's single task.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from perdure.core.events import TasksScheduled
from perdure.engine.ports import Kind
from perdure.engine.runs.run import ActiveRun

TURN_TASKS = 32
"""Tasks of one run that go before the next run has its turn."""

WaitingTask = tuple[ActiveRun, int, TasksScheduled, int]
"""(run, seq, event, scheduled_us)"""


class Chunk:
    __slots__ = ("event", "next", "scheduled_us")

    def __init__(self, event: TasksScheduled, scheduled_us: int) -> None:
        self.event, self.scheduled_us, self.next = event, scheduled_us, 0


class KindBacklog:
    """The waiting tasks of one kind."""

    def __init__(self) -> None:
        self._runs: OrderedDict[ActiveRun, deque[Chunk]] = OrderedDict()
        self.size = 0
        """Upper bound: cancelled tasks are counted until their turn comes."""

    def push(self, run: ActiveRun, event: TasksScheduled, scheduled_us: int) -> None:
        chunks = self._runs.get(run)
        if chunks is None:
            chunks = self._runs[run] = deque()
        chunks.append(Chunk(event, scheduled_us))
        self.size += len(event.inputs)

    def runs(self) -> Iterator[ActiveRun]:
        return iter(self._runs)

    def oldest_us(self) -> int | None:
        """When the task that has waited longest was scheduled. Those of one run wait in order."""
        return min((chunks[0].scheduled_us for chunks in self._runs.values() if chunks), default=None)

    def drop(self, run: ActiveRun) -> None:
        for chunk in self._runs.pop(run, ()):
            self.size -= len(chunk.event.inputs) - chunk.next

    def take_where(self, wanted: Callable[[ActiveRun, TasksScheduled], bool]) -> Iterator[WaitingTask]:
        for run, chunks in list(self._runs.items()):
            for chunk in [c for c in chunks if wanted(run, c.event)]:
                chunks.remove(chunk)
                for i in range(chunk.next, len(chunk.event.inputs)):
                    self.size -= 1
                    seq = chunk.event.first + i
                    if seq in run.state.tasks:
                        yield run, seq, chunk.event, chunk.scheduled_us
            if not chunks:
                del self._runs[run]

    def take(self, count: int) -> Iterator[WaitingTask]:
        """Up to `count` tasks, fairly over runs. Cancelled ones are passed over."""
        while count > 0 and self._runs:
            run, chunks = next(iter(self._runs.items()))
            turn = min(count, TURN_TASKS)
            while turn > 0 and chunks:
                chunk = chunks[0]
                seq = chunk.event.first + chunk.next
                chunk.next += 1
                self.size -= 1
                if chunk.next >= len(chunk.event.inputs):
                    chunks.popleft()
                if seq in run.state.tasks:
                    turn -= 1
                    count -= 1
                    yield run, seq, chunk.event, chunk.scheduled_us
            if chunks:
                self._runs.move_to_end(run)
            else:
                self._runs.pop(run, None)


class Backlog:
    def __init__(self) -> None:
        self._kinds: dict[Kind, KindBacklog] = {}

    @property
    def size(self) -> int:
        return sum(tasks.size for tasks in self._kinds.values()) if self._kinds else 0

    def push(self, run: ActiveRun, event: TasksScheduled, scheduled_us: int) -> None:
        kind = (run.ns, event.queue, event.name)
        tasks = self._kinds.get(kind)
        if tasks is None:
            tasks = self._kinds[kind] = KindBacklog()
        tasks.push(run, event, scheduled_us)

    def kinds(self) -> list[tuple[Kind, KindBacklog]]:
        """Those that are not empty; the one that comes first comes last next time."""
        found = [(kind, tasks) for kind, tasks in self._kinds.items() if tasks.size > 0]
        if len(found) < len(self._kinds):
            self._kinds = dict(found)
        if len(found) > 1:
            self._kinds[found[0][0]] = self._kinds.pop(found[0][0])
        return found

    def waiting(self) -> dict[Kind, tuple[int, int | None]]:
        """By kind: how many wait, and since when the oldest does."""
        return {kind: (tasks.size, tasks.oldest_us()) for kind, tasks in self._kinds.items() if tasks.size > 0}

    def runs(self) -> Iterator[ActiveRun]:
        for tasks in self._kinds.values():
            yield from tasks.runs()

    def drop(self, run: ActiveRun) -> None:
        for tasks in self._kinds.values():
            tasks.drop(run)

    def clear(self) -> None:
        self._kinds.clear()

    def take(self, count: int) -> Iterator[WaitingTask]:
        """Up to `count` tasks of any kind, not meant for a worker here."""
        for _, tasks in self.kinds():
            for one in tasks.take(count):
                count -= 1
                yield one

    def take_where(self, limits: Callable[[int, TasksScheduled, str], bool]) -> list[WaitingTask]:
        """Take tasks that flow control limits, in whole chunks and out of turn."""
        return [one for _, tasks in self.kinds() for one in tasks.take_where(lambda r, e: limits(r.ns, e, r.workflow))]

    def take_of(self, run: ActiveRun) -> list[WaitingTask]:
        return [one for _, tasks in self.kinds() for one in tasks.take_where(lambda r, _: r is run)]

    def take_unserved(self, served: frozenset[Kind]) -> Iterator[WaitingTask]:
        """Tasks that no worker here serves any more."""
        for kind, tasks in self.kinds():
            if kind not in served:
                yield from tasks.take(tasks.size)
