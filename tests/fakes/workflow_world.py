"""A world for one workflow run, without a database: it records what the code asks for and answers with facts.

It does what the engine does, in the simplest way: commands become events, tasks are plain calls, timers fire in order once nothing
else can happen. `rng` makes it unkind: facts arrive in any order, several before the code sees the first.

    world = World(crawl, ["a"]).run()             the history of a whole run
    assert_replays(world)                         the same history drives a fresh runtime to the same place
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import Failure
from perdure.core.runstate import RunState
from perdure.core.work import Decided
from perdure.sdk import registry
from perdure.sdk.definitions import Task, Workflow
from perdure.sdk.workflow.instance import WorkflowInstance
from perdure.sdk.workflow.requests import Operation

RUN_ID = ids.run_id(1_700_000_000_000, 0, 7)
START_US = 1_700_000_000_000_000
STEPS_MAX = 20_000

ASKED = (
    ev.TasksScheduled,
    ev.TimerStarted,
    ev.ChildStarted,
    ev.PromiseCreated,
    ev.StateSet,
    ev.StateCleared,
    ev.PatchRecorded,
    ev.AttributesSet,
    ev.UpdateAnswered,
)
"""Events that record what the code asked for, one per command and in their order."""
CANCELS = (cm.CancelTasks, cm.CancelTimer, cm.CancelChild)


def keep_private(module: dict[str, Any]) -> None:
    """Take a test file's definitions out of the process's registry: other files may use the same names."""
    for known, kind in ((registry.tasks, Task), (registry.workflows, Workflow)):
        for name in {d.name for d in module.values() if isinstance(d, kind)}:
            known._by_name.pop(name, None)
            if name in known._ambiguous:
                known._by_name[name] = known._ambiguous.pop(name)


class World:
    def __init__(self, workflow: Workflow[..., Any], *args: Any, run_id: bytes = RUN_ID, **kwargs: Any) -> None:
        self.workflow, self.run_id = workflow, run_id
        self.history: list[ev.Recorded] = []
        self.state = RunState()
        self.now_us = START_US
        self.inbox: list[ev.Recorded] = []
        """Facts that the code has not seen yet."""
        self.script: list[ev.Event | Callable[[], ev.Event]] = []
        """Facts from outside, each delivered when the run has nothing else to do but sleep."""
        self.operations: dict[int, Operation] = {}
        self.operations_run = 0
        self.activations: list[list[cm.Command]] = []
        self.closing: cm.Command | None = None
        self.stuck: Failure | None = None
        self.rng: random.Random | None = None
        self.runtime = WorkflowInstance(run_id, workflow)
        self._first = True
        self.add(ev.RunStarted(workflow.name, workflow.version, workflow.signature.encode_call(args, kwargs)))

    # -- the engine's part ----------------------------------------------------------------------------------------------------

    def add(self, event: ev.Event) -> World:
        self.state.apply(event)
        self.now_us += 1_000
        record = ev.Recorded(len(self.history) + 1, self.now_us, event)
        self.history.append(record)
        if isinstance(event, ev.FACTS):
            self.inbox.append(record)
        return self

    def deliver(self) -> Decided:
        """Give the code what it has not seen; record what it asks for."""
        facts, self.inbox = self.inbox, []
        done = self.runtime.activate(facts, replay=self._first)
        self._first = False
        self.activations.append(done.commands)
        self.stuck = done.stuck
        for operation in self.runtime.take_operations():
            self.operations[operation.seq] = operation
        for command in done.commands:
            self._record(command)
        return done

    def _record(self, c: cm.Command) -> None:
        assert self.closing is None, f"{c} after the run was closed"
        match c:
            case cm.ScheduleTasks():
                self.add(ev.TasksScheduled(c.first, c.name, c.queue, c.inputs, c.options))
            case cm.CancelTasks():
                live = [s for s in c.seqs if s in self.state.tasks]
                if live:
                    self.add(ev.TasksCancelled(live))
            case cm.StartTimer():
                self.add(ev.TimerStarted(c.seq, c.fire_at_us))
            case cm.CancelTimer():
                if c.seq in self.state.timers:
                    self.add(ev.TimerCancelled(c.seq))
            case cm.StartChild():
                self.add(ev.ChildStarted(c.seq, ids.derive(self.run_id, ids.CHILD, c.seq), c.workflow, c.input, c.key))
            case cm.CancelChild():
                if c.seq in self.state.children:
                    self.add(ev.ChildCancelRequested(c.seq))
                    self.script.append(ev.ChildCancelled(c.seq, "asked to"))
            case cm.CreatePromise():
                self.add(ev.PromiseCreated(c.seq, c.name))
            case cm.SetState():
                self.add(ev.StateSet(c.name, c.value))
            case cm.ClearState():
                self.add(ev.StateCleared(c.name))
            case cm.RecordPatch():
                self.add(ev.PatchRecorded(c.name))
            case cm.SetAttributes():
                self.add(ev.AttributesSet(c.change))
            case cm.AnswerUpdate():
                self.add(ev.UpdateAnswered(c.id, c.value, c.failure))
            case cm.CompleteRun() | cm.FailRun() | cm.CancelRun() | cm.ContinueAsNew():
                self.closing = c
            case _:
                raise AssertionError(c)

    # -- the rest of the world -------------------------------------------------------------------------------------------------

    def happen(self) -> bool:
        """Let one thing happen; False when nothing can."""
        choices: list[Callable[[], None]] = [lambda s=s: self._operate(s) for s in self.operations]
        choices += [lambda s=s: self._execute(s) for s in self.state.tasks]
        choices += [lambda s=s: self._end_child(s) for s in self.state.children if not self._is_cancelling(s)]
        if choices:
            (self.rng.choice(choices) if self.rng else choices[0])()
            return True
        while self.script:
            fact = self.script.pop(0)
            event = fact() if callable(fact) else fact
            if isinstance(event, ev.ChildCancelled) and event.seq not in self.state.children:
                continue
            self.add(event)
            return True
        if self.state.timers:
            seq = min(self.state.timers, key=lambda s: (self.state.timers[s], s))
            self.now_us = max(self.now_us, self.state.timers[seq])
            self.add(ev.TimerFired(seq))
            return True
        return False

    def _is_cancelling(self, seq: int) -> bool:
        return any(isinstance(r.event, ev.ChildCancelRequested) and r.event.seq == seq for r in self.history)

    def _defined(self, kind: type[Any], name: str) -> Any:
        """In the module of the workflow, so that equal names in other test files do not matter."""
        return next(d for d in self.workflow.fn.__globals__.values() if isinstance(d, kind) and d.name == name)

    def _operate(self, seq: int) -> None:
        operation = self.operations.pop(seq)
        self.operations_run += 1
        try:
            event = ev.OperationRecorded(seq, operation.name, operation.encode(operation.call()))
        except Exception as e:
            event = ev.OperationRecorded(seq, operation.name, b"", Failure("task_failed", str(e), type(e).__name__))
        self.add(event)

    def _execute(self, seq: int) -> None:
        scheduled = self.state.tasks[seq]
        task = self._defined(Task, scheduled.name)
        args, kwargs = task.signature.decode_call(scheduled.inputs[seq - scheduled.first])
        try:
            value = task.signature.encode_result(task.fn(*args, **kwargs))
        except Exception as e:
            self.add(ev.TaskFailed(seq, Failure("task_failed", str(e), type(e).__name__), 3))
        else:
            self.add(ev.TasksSucceeded([seq], [value]))

    def _end_child(self, seq: int) -> None:
        """A child is a world of its own."""
        started = next(r.event for r in self.history if isinstance(r.event, ev.ChildStarted) and r.event.seq == seq)
        child = self._defined(Workflow, started.workflow)
        args, kwargs = child.signature.decode_call(started.input)
        closing = World(child, *args, run_id=started.run_id, **kwargs).run().closing
        match closing:
            case cm.CompleteRun():
                self.add(ev.ChildSucceeded(seq, closing.result))
            case cm.FailRun():
                self.add(ev.ChildFailed(seq, closing.failure))
            case _:
                raise AssertionError(closing)

    # -- driving --------------------------------------------------------------------------------------------------------------

    def run(self, seed: int | None = None) -> World:
        """To the end, or to where nothing can happen any more."""
        self.rng = random.Random(seed) if seed is not None else None
        for _ in range(STEPS_MAX):
            if self.inbox and not (self.rng and self.rng.random() < 0.4):
                self.deliver()
            if self.closing is not None or self.stuck is not None:
                return self
            if not self.happen():
                if not self.inbox:
                    return self
                self.deliver()
        raise AssertionError("the run does not end")

    # -- looking --------------------------------------------------------------------------------------------------------------

    @property
    def result(self) -> Any:
        assert isinstance(self.closing, cm.CompleteRun), self.closing or self.stuck
        return self.workflow.signature.decode_result(self.closing.result)

    @property
    def failure(self) -> Failure:
        assert isinstance(self.closing, cm.FailRun), self.closing or self.stuck
        return self.closing.failure

    @property
    def commands(self) -> list[cm.Command]:
        return [c for batch in self.activations for c in batch]

    def of(self, kind: type[Any]) -> list[Any]:
        return [r.event for r in self.history if isinstance(r.event, kind)]

    def evict(self) -> None:
        self.runtime.evict()


def assert_replays(world: World, seeds: int = 5) -> None:
    """The history drives a fresh runtime to the same end, whole, cut anywhere, and however it is split into activations."""
    _assert_whole(world)
    _assert_split(world)
    rng = random.Random(len(world.history))
    for _ in range(seeds):
        _assert_resumes(world, rng.randint(1, len(world.history)))


def _assert_whole(world: World) -> None:
    runtime = WorkflowInstance(world.run_id, world.workflow)
    done = runtime.activate(world.history, replay=True)
    assert done.stuck is None, done.stuck
    assert [c for c in done.commands if not isinstance(c, CANCELS)] == ([world.closing] if world.closing else [])
    if world.closing:
        assert not done.operations
    runtime.evict()


def _assert_split(world: World) -> None:
    """A worker that holds the run gets new facts only, in other groups than the first time."""
    runtime = WorkflowInstance(world.run_id, world.workflow)
    rng = random.Random(len(world.history))
    facts = [r for r in world.history if isinstance(r.event, ev.FACTS)]
    commands: list[cm.Command] = []
    while facts:
        count = rng.randint(1, 4)
        done = runtime.activate(facts[:count], replay=False)
        assert done.stuck is None, done.stuck
        commands += done.commands
        facts = facts[count:]
    assert commands == world.commands
    runtime.evict()


def _assert_resumes(world: World, kept: int) -> None:
    """A crash kept only some of the events; the rest of the world does what it did before."""
    runtime = WorkflowInstance(world.run_id, world.workflow)
    activations = [world.history[:kept], *([r] for r in world.history[kept:] if isinstance(r.event, ev.FACTS))]
    issued: list[cm.Command] = []
    for n, events in enumerate(activations):
        done = runtime.activate(events, replay=n == 0)
        assert done.stuck is None, f"after {kept} of {len(world.history)} events: {done.stuck}"
        issued += [c for c in done.commands if not isinstance(c, CANCELS)]
    recorded = sum(isinstance(r.event, ASKED) for r in world.history[:kept])
    asked = [c for c in world.commands if not isinstance(c, CANCELS)]
    assert issued == asked[recorded:]
    runtime.evict()
