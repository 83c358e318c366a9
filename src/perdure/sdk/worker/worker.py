"""A worker: runs tasks, and drives code workflows that it keeps alive between activations.

It has no database credentials and exchanges only batches of the messages in core/work.py. In embedded mode the engine calls it
directly; a remote worker is the same object behind a stream.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter  # bound here, before workflow guards wrap it
from typing import Any, Literal

import msgspec

from perdure.core import commands as cm
from perdure.core import parameters
from perdure.core.declared import KEY, encode
from perdure.core.errors import Failure, NotRegistered, PerdureError, clip
from perdure.core.limits import WORKFLOW_SLICE_MS, WORKFLOW_STRETCH_S_MAX
from perdure.core.work import Activation, Assignment, Beat, Decided, LogChunk, Report
from perdure.sdk import registry
from perdure.sdk.definitions import DEFAULT_QUEUE, Task, Workflow
from perdure.sdk.worker import output
from perdure.sdk.worker.builtin_tasks import Verbs
from perdure.sdk.worker.execution import PROCESSES_DEFAULT, TaskExecutor
from perdure.sdk.worker.overrun import Overrun, StretchBound
from perdure.sdk.worker.processes import refuse_in_child_that_starts
from perdure.sdk.worker.tracing import TaskTracer
from perdure.sdk.workflow import guards
from perdure.sdk.workflow.endings import failure_of
from perdure.sdk.workflow.instance import WorkflowInstance
from perdure.sdk.workflow.loop import driving
from perdure.sdk.workflow.requests import Operation

SLOTS_DEFAULT = 100
THREADS_DEFAULT = min(32, (os.cpu_count() or 1) + 4)
RUNS_MAX_DEFAULT = 2_000
"""Live workflow runs that a worker holds; see Worker."""

SLICE_S = WORKFLOW_SLICE_MS / 1_000

Output = Literal["tee", "capture", "ignore"]


class Worker:
    """Serves the tasks and workflows defined in this process.

    `threads` run sync tasks and `processes` those with `process=True`; both are started when they are needed. `runs_max` bounds
    the live workflow runs: the one that was idle longest is forgotten, and replayed when something happens to it. What
    tasks print and log is sent to the engine and still printed (`output="tee"`), only sent (`"capture"`) or left alone
    (`"ignore"`).

    Beside what is defined it serves the built-in tasks (verbs.py), unless `verbs=False`: `perdure.http`, which calls `services` by
    their names and reaches the public internet and what `http_allow` names, and with `allow_run` also `perdure.run`, whose
    commands get the variables that `run_env` names beside a base set. What is not given comes from PERDURE_SERVICES,
    PERDURE_HTTP_ALLOW, PERDURE_ALLOW_RUN and PERDURE_RUN_ENV.
    """

    def __init__(
        self,
        *,
        slots: int = SLOTS_DEFAULT,
        threads: int = THREADS_DEFAULT,
        processes: int = PROCESSES_DEFAULT,
        queues: list[str] | None = None,
        runs_max: int = RUNS_MAX_DEFAULT,
        output: Output = "tee",
        verbs: bool = True,
        services: Mapping[str, str] | None = None,
        allow_run: bool | None = None,
        http_allow: Sequence[str] | None = None,
        run_env: Sequence[str] | None = None,
    ) -> None:
        guards.install()
        self._verbs = Verbs(services, allow_run, http_allow, run_env) if verbs else None
        self._tasks = registry.tasks.copy()
        self._workflows = registry.workflows.copy()
        self._queues = queues
        self._slots, self._threads, self._processes = slots, threads, processes
        self._runs_max, self._output = runs_max, output
        self.ns = 0
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._execution: TaskExecutor | None = None
        self._live: dict[bytes, WorkflowInstance] = {}
        """In the order they were last activated."""
        self._operations: set[asyncio.Task[None]] = set()
        self._operating: Counter[WorkflowInstance] = Counter()
        """How many side effects of each run are being executed."""
        self._begun: list[tuple[WorkflowInstance, Operation]] = []
        """Side effects asked for in the activations under way; executed outside workflow code."""
        self._waiting_turn: deque[Activation] = deque()
        """Activations that have not begun."""
        self._unfinished: deque[tuple[bytes, WorkflowInstance]] = deque()
        """Runs whose code can go on, and whose slice was up."""
        self._turn_due = False
        self._bound = StretchBound(self._cannot_stop)
        self.give_up: Callable[[bytes, str], None] | None = None
        """Called from a thread when workflow code cannot be stopped: run, and the stack it is at. To be set before `open`."""
        self._decided: Callable[[list[Decided]], None] = lambda _: None
        self.tracer: TaskTracer | None = None
        """Makes attempts spans; to be set before `open`."""
        self.overrides: dict[str, Any] = {}
        """Stand-ins for tasks by name, for tests."""
        self.stand_ins: dict[str, Any] = {}
        """The same for workflows."""

    def adopt(self, definition: Any) -> None:
        """Serve this very definition under its name."""
        kind = self._tasks if isinstance(definition, Task) else self._workflows
        kind.adopt(definition)

    @property
    def workflow_names(self) -> list[str]:
        return self._workflows.names()

    def defined(self, name: str) -> Any:
        """The task or workflow of this name. NotRegistered when there is none, or one of each."""
        in_tasks, in_workflows = name in self._tasks.names(), name in self._workflows.names()
        if in_tasks and in_workflows:
            raise NotRegistered(f"{name!r} is a task and a workflow here; give the one that you mean itself")
        if in_workflows:
            return self._workflows.get(name)
        if not in_tasks and self._verbs is not None and name in self._verbs.tasks:
            return self._verbs.tasks[name]
        if not in_tasks:
            raise NotRegistered(
                f"no task or workflow {name!r} is defined in this program; import the module that defines it, "
                f"or give flow({name!r}) for a workflow that is only known by its name"
            )
        return self._tasks.get(name)

    def refresh(self) -> None:
        """Take in what was defined since; a definition adopted by hand keeps its name."""
        for mine, everyone in ((self._tasks, registry.tasks), (self._workflows, registry.workflows)):
            for definition in everyone.values():
                if definition.name not in mine.names():
                    mine.add(definition)

    @property
    def workflows(self) -> dict[tuple[int, str], str]:
        """(namespace, name) -> version."""
        return {(self.ns, w.name): w.version for w in self._workflows.values()}

    @property
    def controls(self) -> dict[tuple[int, str], bytes]:
        """(namespace, name) -> what the workflow says about flow control of its runs."""
        return {
            (self.ns, w.name): msgspec.json.encode(control)
            for w in self._workflows.values()
            if (control := getattr(w, "control", None)) is not None
        }

    @property
    def parameters(self) -> dict[tuple[int, str], bytes]:
        """(namespace, name) -> what the workflow takes; see core/parameters.py."""
        found: dict[tuple[int, str], bytes] = {}
        for w in self._workflows.values():
            if isinstance(w, Workflow):
                with suppress(PerdureError):  # it has no signature: nothing is checked
                    found[self.ns, w.name] = parameters.encode(w.signature.parameters())
        return found

    @property
    def served(self) -> list[tuple[int, str, str]]:
        """(namespace, queue, task name)."""
        tasks: list[Task[Any, Any]] = self._tasks.values()
        queues = self._queues if self._queues is not None else sorted({DEFAULT_QUEUE, *(t.queue for t in tasks)})
        names = [*(t.name for t in tasks), *(self._verbs.tasks if self._verbs is not None else ())]
        return [(self.ns, q, name) for q in queues for name in names]

    @property
    def signatures(self) -> dict[str, dict[str, Any]]:
        """Task name -> JSON Schema of its call, for editors, and its declared options, for flows. A task whose annotations cannot
        be resolved has no schema."""
        found: dict[str, dict[str, Any]] = {}
        for t in self._tasks.values():
            said = {} if t.declared is None else {KEY: t.declared}
            try:
                found[t.name] = {**t.signature.json_schema(), **said}
            except PerdureError:  # its first call will say so
                if said:
                    found[t.name] = said
        return found

    @property
    def task_options(self) -> dict[str, bytes | None]:
        """Task name -> its declared options as JSON."""
        return {t.name: encode(t.declared) if t.declared is not None else None for t in self._tasks.values()}

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def slots_free(self) -> int:
        return self._slots - (self._execution.in_use if self._execution else 0)

    def free_for(self, kind: tuple[int, str, str]) -> int:
        """All kinds share the slots."""
        return self.slots_free

    def name_of(self, run_id: bytes, seq: int) -> str:
        """This process."""
        return self.name

    outlives_engine = False

    def open(
        self,
        clock_us: Callable[[], int],
        reported: Callable[[list[Report]], None],
        decided: Callable[[list[Decided]], None],
        beats: Callable[[list[Beat]], None],
        logged: Callable[[list[LogChunk]], None],
        urgent_beats: Callable[[list[Beat]], None] | None = None,
    ) -> None:
        """Connect to an engine. Must be called with the loop running.

        Called again while open, as after a reconnect, it replaces the callbacks and leaves what is running alone. All are
        called on the loop, but for `urgent_beats`: that one is called from a thread while the loop is blocked, must be safe
        there and must not need the loop. Without it `beats` is, which is right for an engine in the same process.
        """
        refuse_in_child_that_starts()
        self._decided = decided
        if self._execution is not None and not self._execution.closed:
            self._execution.connect(clock_us, reported, beats, self._kept(logged), urgent_beats)
            return
        self._execution = TaskExecutor(
            self._find_task,
            clock_us,
            self._slots,
            self._threads,
            reported,
            beats,
            self._kept(logged),
            urgent_beats=urgent_beats,
            processes=self._processes,
            tee=self._output == "tee",
        )
        self._execution.tracer = self.tracer

    def _kept(self, logged: Callable[[list[LogChunk]], None]) -> Callable[[list[LogChunk]], None] | None:
        return logged if self._output != "ignore" else None

    async def drain(self, grace_s: float) -> None:
        """Begin nothing new and wait for what runs; what has not ended after the grace is cancelled.

        Everything is reported when this returns: unstarted assignments as `returned`, cut off ones as `cancelled`, for the
        engine to run elsewhere. Assignments that still arrive are returned.
        """
        if self._execution is not None:
            await self._execution.drain(grace_s)

    def running(self) -> list[tuple[bytes, int, int]]:
        """(run_id, seq, attempt) of everything that was assigned and has not been reported."""
        return self._execution.tokens() if self._execution is not None else []

    def held(self) -> list[bytes]:
        """Ids of the runs whose workflow code is alive here."""
        return list(self._live)

    async def close(self) -> None:
        for operation in list(self._operations):
            operation.cancel()
        if self._execution is not None:
            await self._execution.close()
        if self._verbs is not None:
            await self._verbs.close()
        self.forget_all()
        self._bound.stop()

    def _find_task(self, name: str) -> Any:
        found = self.overrides.get(name)
        if found is None and self._verbs is not None:
            found = self._verbs.tasks.get(name)
        return found or self._tasks.get(name)

    def assign(self, batch: list[Assignment]) -> None:
        assert self._execution is not None
        self._execution.assign(batch)

    def cancel(self, run_id: bytes, seq: int, attempt: int) -> None:
        assert self._execution is not None
        self._execution.cancel(run_id, seq, attempt)

    def activate(self, batch: list[Activation]) -> list[Decided]:
        """Run workflow code until it can go no further. Never raises; must not be called from inside an asyncio task.

        For WORKFLOW_SLICE_MS at a time: what is decided by then is answered, the rest by `decided`, slice by slice."""
        self._waiting_turn.extend(batch)
        if len(self._waiting_turn) > len(batch) or self._unfinished:
            self._arm()  # those before it have the next turn
            return []
        return self._turn()

    def _turn(self) -> list[Decided]:
        if self._execution is not None and self._execution.sink is not None:
            output.keep()
        done: list[Decided] = []
        with driving(None):
            until_s = perf_counter() + SLICE_S
            for _ in range(len(self._unfinished)):
                run_id, instance = self._unfinished.popleft()
                if self._live.get(run_id) is instance:
                    self._advance(instance, until_s, done)
                if perf_counter() >= until_s:
                    break
            # Those that have not begun have time of their own, or one that takes long would keep them waiting.
            until_s = perf_counter() + SLICE_S
            while self._waiting_turn:
                self._activate(self._waiting_turn.popleft(), until_s, done)
                if perf_counter() >= until_s:
                    break
        for instance, operation in self._begun:
            task = asyncio.get_running_loop().create_task(self._operate(instance, operation))
            self._operations.add(task)
            task.add_done_callback(self._operations.discard)
        self._begun.clear()
        if self._unfinished or self._waiting_turn:
            self._arm()
        return done

    def _arm(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_due = False
        done = self._turn()
        if done:
            self._decided(done)

    def _activate(self, a: Activation, until_s: float, done: list[Decided]) -> None:
        instance = self._live.pop(a.run_id, None)
        if a.replay or instance is None:
            if instance is not None:  # the engine knows better than what is here
                self._end(instance)
            if not a.replay:
                done.append(Decided(a.run_id, [], Failure("cache_miss", "this worker does not hold the run")))
                return
            try:
                instance = WorkflowInstance(a.run_id, self.stand_ins.get(a.workflow) or self._workflows.get(a.workflow))
            except PerdureError as e:
                done.append(Decided(a.run_id, [], e.to_failure()))
                return
            if self._execution is not None:
                instance.run.sink, instance.run.ns = self._execution.sink, a.ns
            self._make_room()
        self._live[a.run_id] = instance
        instance.give(a.events, replay=a.replay)
        self._advance(instance, until_s, done)

    def _advance(self, instance: WorkflowInstance, until_s: float, done: list[Decided]) -> None:
        """A slice of a run's code."""
        run_id, completion, stack = instance.run_id, None, ""
        self._bound.enter(run_id)
        try:
            try:
                completion = instance.advance(until_s)
            finally:
                stack = self._bound.leave()
        except Overrun:
            stack = self._bound.leave()
        if stack:
            self.forget(run_id)
            done.append(Decided(run_id, [], overran(stack)))
        elif completion is None:
            self._unfinished.append((run_id, instance))
        else:
            if completion.stuck is not None or instance.run.phase.closed:
                self.forget(run_id)
            if completion.operations:
                self._operating[instance] += len(completion.operations)
                self._begun.extend((instance, operation) for operation in completion.operations)
            done.append(
                Decided(
                    run_id,
                    completion.commands,
                    completion.stuck,
                    len(completion.operations),
                    False,
                    completion.waiting,
                )
            )

    def _cannot_stop(self, run_id: bytes, stack: str) -> None:
        """From the watching thread: code that cannot be stopped. The process has to be replaced, unless the program embeds the worker."""
        if self.give_up is not None:
            self.give_up(run_id, stack)

    def _make_room(self) -> None:
        """Forget the run that has been idle longest. One whose side effects are being executed is not idle."""
        if len(self._live) >= self._runs_max:
            idle = next((run_id for run_id, instance in self._live.items() if instance not in self._operating), None)
            if idle is not None:
                self.forget(idle)

    async def _operate(self, instance: WorkflowInstance, operation: Operation) -> None:
        """Execute a side effect of workflow code: a coroutine on the loop, a plain function in a thread."""
        try:
            value = await asyncio.to_thread(operation.call)
            if asyncio.iscoroutine(value):
                value = await value
            command = cm.RecordOperation(operation.seq, operation.name, operation.encode(value))
        except Exception as e:
            command = cm.RecordOperation(operation.seq, operation.name, b"", failure_of(e, "task_failed"))
        finally:
            self._operating[instance] -= 1
            if not self._operating[instance]:
                del self._operating[instance]
        if (
            self._live.get(instance.run_id) is instance
        ):  # else the run left this worker, and the next one executes it again
            self._decided([Decided(instance.run_id, [command], spontaneous=True)])

    def forget(self, run_id: bytes) -> None:
        instance = self._live.pop(run_id, None)
        if instance is not None:
            self._end(instance)

    def _end(self, instance: WorkflowInstance) -> None:
        if instance.run.output is not None:
            instance.run.output.close()
        if not instance.run.loop.has_code:
            instance.evict()
            return
        self._bound.enter(instance.run_id)  # its code runs once more: `finally`
        try:
            try:
                instance.evict()
            finally:
                self._bound.leave()
        except Overrun:
            self._bound.leave()

    def forget_all(self) -> None:
        self._waiting_turn.clear()
        self._unfinished.clear()
        for run_id in list(self._live):
            self.forget(run_id)

    @property
    def live_runs(self) -> int:
        return len(self._live)


def overran(stack: str) -> Failure:
    return Failure(
        "code_overrun",
        clip(
            f"the workflow's code computed for WORKFLOW_STRETCH_S_MAX={WORKFLOW_STRETCH_S_MAX} s without an await and was stopped, because "
            f"nothing else of its worker runs meanwhile. Move the computation into a task, then resume the run. It was at\n{stack}"
        ),
    )
