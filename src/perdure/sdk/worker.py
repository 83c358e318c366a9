"""A worker: runs tasks, and drives code workflows that it keeps alive between activations.

It owns no database credentials and speaks only in batches of the messages in core/work.py. In embedded mode the engine calls it
directly; a remote worker is the same object behind a stream.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from perdure.core import commands as cm
from perdure.core.errors import Failure, PerdureError
from perdure.core.work import Activation, Assignment, Decided, Report
from perdure.sdk import guards, registry
from perdure.sdk.definitions import DEFAULT_QUEUE, Task, Workflow
from perdure.sdk.execution import Execution
from perdure.sdk.loop import driving
from perdure.sdk.runtime import Operation, Runtime, failure_of

SLOTS_DEFAULT = 100
THREADS_DEFAULT = min(32, (os.cpu_count() or 1) + 4)


class Worker:
    """Serves the tasks and workflows defined in this process."""

    def __init__(
        self, *, slots: int = SLOTS_DEFAULT, threads: int = THREADS_DEFAULT, queues: list[str] | None = None
    ) -> None:
        guards.install()
        self._tasks = registry.tasks.copy()
        self._workflows = registry.workflows.copy()
        self._queues = queues
        self._slots, self._threads = slots, threads
        self._execution: Execution | None = None
        self._live: dict[bytes, Runtime] = {}
        self._operations: set[asyncio.Task[None]] = set()
        self._begun: list[tuple[bytes, Operation]] = []
        """Side effects asked for in the activations under way; executed outside workflow code."""
        self._decided: Callable[[list[Decided]], None] = lambda _: None
        self.overrides: dict[str, Any] = {}
        """Stand-ins for tasks by name, for tests."""

    # -- what it serves ---------------------------------------------------------------------------------------------

    def adopt(self, definition: Any) -> None:
        """Serve this very definition under its name."""
        kind = self._workflows if isinstance(definition, Workflow) else self._tasks
        kind.adopt(definition)

    def refresh(self) -> None:
        """Take in what was defined since; a definition adopted by hand keeps its name."""
        for mine, everyone in ((self._tasks, registry.tasks), (self._workflows, registry.workflows)):
            for definition in everyone.values():
                if definition.name not in mine.names():
                    mine.add(definition)

    @property
    def workflows(self) -> dict[str, str]:
        """Name -> version."""
        return {w.name: w.version for w in self._workflows.values()}

    @property
    def served(self) -> list[tuple[str, str]]:
        """(queue, task name) pairs."""
        tasks: list[Task[Any, Any]] = self._tasks.values()
        queues = self._queues if self._queues is not None else sorted({DEFAULT_QUEUE, *(t.queue for t in tasks)})
        return [(q, t.name) for q in queues for t in tasks]

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def slots_free(self) -> int:
        return self._slots - (self._execution.in_use if self._execution else 0)

    # -- life -------------------------------------------------------------------------------------------------------

    def open(
        self,
        clock_us: Callable[[], int],
        reported: Callable[[list[Report]], None],
        decided: Callable[[list[Decided]], None],
        beat: Callable[[Assignment], None],
    ) -> None:
        """Connect to an engine. Must be called with the loop running."""
        self._decided = decided
        self._execution = Execution(self._find_task, clock_us, self._slots, self._threads, reported, beat)

    async def close(self) -> None:
        for operation in list(self._operations):
            operation.cancel()
        if self._execution is not None:
            await self._execution.close()
        self.forget_all()

    def _find_task(self, name: str) -> Any:
        return self.overrides.get(name) or self._tasks.get(name)

    # -- tasks ------------------------------------------------------------------------------------------------------

    def assign(self, batch: list[Assignment]) -> None:
        assert self._execution is not None
        self._execution.assign(batch)

    def cancel(self, run_id: bytes, seq: int, attempt: int) -> None:
        assert self._execution is not None
        self._execution.cancel(run_id, seq, attempt)

    # -- workflows --------------------------------------------------------------------------------------------------

    def activate(self, batch: list[Activation]) -> list[Decided]:
        """Run workflow code until it can go no further. Never raises; must not be called from inside an asyncio task."""
        with driving(None):
            done = [self._activate(a) for a in batch]
        for run_id, operation in self._begun:
            task = asyncio.get_running_loop().create_task(self._operate(run_id, operation))
            self._operations.add(task)
            task.add_done_callback(self._operations.discard)
        self._begun.clear()
        return done

    def _activate(self, a: Activation) -> Decided:
        runtime = self._live.get(a.run_id)
        if a.replay or runtime is None:
            if not a.replay:
                return Decided(a.run_id, [], Failure("cache_miss", "this worker does not hold the run"))
            try:
                runtime = self._live[a.run_id] = Runtime(a.run_id, self._workflows.get(a.workflow))
            except PerdureError as e:
                return Decided(a.run_id, [], e.to_failure())
        done = runtime.activate(a.events, replay=a.replay)
        if done.stuck is not None or runtime.closed:
            self.forget(a.run_id)
        self._begun.extend((a.run_id, operation) for operation in done.operations)
        return Decided(a.run_id, done.commands, done.stuck, len(done.operations))

    async def _operate(self, run_id: bytes, operation: Operation) -> None:
        """Execute a side effect of workflow code: a coroutine on the loop, a plain function in a thread."""
        try:
            value = await asyncio.to_thread(operation.call)
            if asyncio.iscoroutine(value):
                value = await value
            command = cm.RecordOperation(operation.seq, operation.name, operation.encode(value))
        except Exception as e:
            command = cm.RecordOperation(operation.seq, operation.name, b"", failure_of(e, "task_failed"))
        if run_id in self._live:
            self._decided([Decided(run_id, [command])])

    def forget(self, run_id: bytes) -> None:
        runtime = self._live.pop(run_id, None)
        if runtime is not None:
            runtime.evict()

    def forget_all(self) -> None:
        for run_id in list(self._live):
            self.forget(run_id)

    @property
    def live_runs(self) -> int:
        return len(self._live)
