"""Runs the code of workflows that a worker holds, and keeps them alive between activations.

Code runs in turns of WORKFLOW_SLICE_MS, so that one long run does not keep the rest of the event loop waiting:

    activate -> not begun --> a slice of its code --> decided
                                  ^          |
                                  '-unfinished (its slice was up)

Side effects of workflow code (`wf.run`) are executed outside of it, and come back as decisions of their own.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter, deque
from collections.abc import Callable
from time import perf_counter  # bound here, before workflow guards wrap it
from typing import Any

from perdure.core import commands as cm
from perdure.core.errors import Failure, PerdureError, clip
from perdure.core.limits import WORKFLOW_SLICE_MS, WORKFLOW_STRETCH_S_MAX
from perdure.core.work import Activation, Decided, Upstream
from perdure.sdk.payloads.access import LoopAccess, blob_access
from perdure.sdk.worker import output
from perdure.sdk.worker.output import Outbox
from perdure.sdk.worker.overrun import Overrun, StretchBound
from perdure.sdk.worker.run_payloads import RunPayloads
from perdure.sdk.workflow.endings import failure_of
from perdure.sdk.workflow.instance import WorkflowInstance
from perdure.sdk.workflow.loop import driving
from perdure.sdk.workflow.requests import Operation

SLICE_S = WORKFLOW_SLICE_MS / 1_000


class WorkflowRunner:
    """`find` looks up a workflow by its name; captured output goes to `sink`."""

    def __init__(self, find: Callable[[str], Any], upstream: Upstream, runs_max: int, sink: Outbox | None) -> None:
        self._find, self._upstream, self._runs_max, self._sink = find, upstream, runs_max, sink
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
        carrier = upstream.payloads
        self._payloads = RunPayloads(carrier, self._activate_later, self._unanswered) if carrier is not None else None
        self._outside = contextvars.copy_context()
        """For side effects, which may read blobs."""
        if carrier is not None:
            self._outside.run(blob_access.set, LoopAccess(carrier))

    def held(self) -> list[bytes]:
        """Ids of the runs whose code is alive here."""
        return list(self._live)

    def activate(self, batch: list[Activation]) -> list[Decided]:
        """Run workflow code until it can go no further. Never raises; must not be called from inside an asyncio task.

        For WORKFLOW_SLICE_MS at a time: what is decided by then is answered, the rest by `decided`, slice by slice."""
        if self._payloads is not None:
            batch = self._payloads.activatable(batch)
        self._waiting_turn.extend(batch)
        if len(self._waiting_turn) > len(batch) or self._unfinished:
            self._arm()  # those before it have the next turn
            return []
        return self._turn()

    def _turn(self) -> list[Decided]:
        if self._sink is not None:
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
            task = asyncio.get_running_loop().create_task(
                self._operate(instance, operation), context=self._outside.copy()
            )
            self._operations.add(task)
            task.add_done_callback(self._operations.discard)
        self._begun.clear()
        if self._unfinished or self._waiting_turn:
            self._arm()
        return done if self._payloads is None else self._payloads.sendable(done)

    def _arm(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_due = False
        done = self._turn()
        if done:
            self._upstream.decided(done)

    def _activate_later(self, a: Activation) -> None:
        """Its values have been loaded."""
        self._waiting_turn.append(a)
        self._arm()

    def _unanswered(self, decided: list[Decided]) -> None:
        """Decisions that had to wait for the payload store."""
        for d in decided:
            if d.stuck is not None:
                self.forget(d.run_id)
        self._upstream.decided(decided)

    def _activate(self, a: Activation, until_s: float, done: list[Decided]) -> None:
        instance = self._live.pop(a.run_id, None)
        if a.replay or instance is None:
            if instance is not None:  # the engine knows better than what is here
                self._end(instance)
            if not a.replay:
                done.append(Decided(a.run_id, [], Failure("cache_miss", "this worker does not hold the run")))
                return
            try:
                instance = WorkflowInstance(a.run_id, self._find(a.workflow), self._sink, a.ns)
            except PerdureError as e:
                done.append(Decided(a.run_id, [], e.to_failure()))
                return
            self._make_room()
        self._live[a.run_id] = instance
        instance.give(a.events, replay=a.replay)
        self._advance(instance, until_s, done)

    def _advance(self, instance: WorkflowInstance, until_s: float, done: list[Decided]) -> None:
        """A slice of a run's code."""
        run_id, decided, stack = instance.run_id, None, ""
        self._bound.enter(run_id)
        try:
            try:
                decided = instance.advance(until_s)
            finally:
                stack = self._bound.leave()
        except Overrun:
            stack = self._bound.leave()
        if stack:
            self.forget(run_id)
            done.append(Decided(run_id, [], overran(stack)))
        elif decided is None:
            self._unfinished.append((run_id, instance))
        else:
            if decided.operations:
                self._operating[instance] += decided.operations
                self._begun.extend((instance, operation) for operation in instance.take_operations())
            if decided.stuck is not None or instance.run.phase.closed:
                self._forget_code(run_id)
            done.append(decided)

    def _cannot_stop(self, run_id: bytes, stack: str) -> None:
        """From the watching thread: code that cannot be stopped. The process has to be replaced, unless the program embeds the worker."""
        if self._upstream.code_overran is not None:
            self._upstream.code_overran(run_id, stack)

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
        if self._live.get(instance.run_id) is instance:
            # Otherwise the run left this worker, and the next one executes the side effect again.
            done = [Decided(instance.run_id, [command], spontaneous=True)]
            if self._payloads is not None:
                done = self._payloads.sendable(done)
            if done:
                self._upstream.decided(done)

    def forget(self, run_id: bytes) -> None:
        if self._payloads is not None:
            self._payloads.forget(run_id)
        self._forget_code(run_id)

    def _forget_code(self, run_id: bytes) -> None:
        """Its last decision may still wait for the payload store."""
        instance = self._live.pop(run_id, None)
        if instance is not None:
            self._end(instance)

    def _end(self, instance: WorkflowInstance) -> None:
        instance.run.close_output()
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
        if self._payloads is not None:
            self._payloads.forget_all()
        for run_id in list(self._live):
            self.forget(run_id)

    def cancel_operations(self) -> None:
        for operation in list(self._operations):
            operation.cancel()

    def close(self) -> None:
        self.forget_all()
        if self._payloads is not None:
            self._payloads.close()
        self._bound.stop()


def overran(stack: str) -> Failure:
    return Failure(
        "code_overrun",
        clip(
            f"the workflow's code computed for WORKFLOW_STRETCH_S_MAX={WORKFLOW_STRETCH_S_MAX} s without an await and was stopped, because "
            f"nothing else of its worker runs meanwhile. Move the computation into a task, then resume the run. It was at\n{stack}"
        ),
    )
