"""The commands of a run's code, one handler each.

A handler records the event, does what belongs to it, and answers whether something waits for the record to be durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from perdure.core import chain, ids
from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.api.texts import check_attributes
from perdure.core.attributes import changed
from perdure.core.errors import Failure, InvalidInput, clip
from perdure.core.limits import PENDING_TASKS_MAX
from perdure.core.messages import CancelMessage, Message, PromiseMessage, SignalMessage, UpdateMessage
from perdure.core.trace import run_traceparent
from perdure.core.work import is_flow
from perdure.engine.commits.rows import TaskRow
from perdure.engine.context import EngineContext
from perdure.engine.flow_control import FlowControl
from perdure.engine.runs.changes import ChildStart
from perdure.engine.runs.exits import RunExits
from perdure.engine.runs.flow_definitions import not_registered
from perdure.engine.runs.owned import OwnedRuns
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.task_port import TaskPort
from perdure.engine.runs.timers import Timers
from perdure.engine.runs.version_choice import VersionChoices
from perdure.wire.codec import decode_row, encode_failure


class RunCommands:
    def __init__(
        self,
        context: EngineContext,
        runs: OwnedRuns,
        tasks: TaskPort,
        exits: RunExits,
        timers: Timers,
        versions: VersionChoices,
        flow_control: FlowControl,
    ) -> None:
        self._runs, self._tasks, self._exits, self._timers = runs, tasks, exits, timers
        self._versions, self._flow_control = versions, flow_control
        self._now_us, self._new_run_id, self._store = context.now_us, context.new_run_id, context.store
        self._handlers: dict[type, Callable[[ActiveRun, Any], bool]] = {
            cm.ScheduleTasks: self._schedule_tasks,
            cm.SkipTasks: self._skip_tasks,
            cm.CancelTasks: self._cancel_tasks,
            cm.StartTimer: self._start_timer,
            cm.CancelTimer: self._cancel_timer,
            cm.StartChild: self._start_child,
            cm.CancelChild: self._cancel_child,
            cm.CreatePromise: self._create_promise,
            cm.RecordOperation: self._record_operation,
            cm.SetState: self._set_state,
            cm.ClearState: self._clear_state,
            cm.RecordPatch: self._record_patch,
            cm.SetAttributes: self._set_attributes,
            cm.AnswerUpdate: self._answer_update,
            cm.CompleteRun: self._complete,
            cm.FailRun: self._fail,
            cm.CancelRun: self._cancel,
            cm.ContinueAsNew: self._continue,
        }

    def carry_out(self, run: ActiveRun, commands: list[cm.Command]) -> bool:
        """Execute commands in order, until one ends the run. Returns whether something waits for a record to be durable."""
        urgent = False
        for command in commands:
            urgent |= self._handlers[type(command)](run, command)
            if not run.phase.is_active:
                break
        return urgent

    def unknown_children(self, run: ActiveRun, commands: list[cm.Command]) -> list[str]:
        """Workflows to start whose current version, or what it says about flow control, has to be looked up first."""
        unknown = [c.workflow for c in commands if type(c) is cm.StartChild and not self._knows(run, c)]
        if commands and type(commands[-1]) is cm.ContinueAsNew and not self._versions.knows(run.ns, run.workflow):
            unknown.append(run.workflow)
        return unknown

    async def look_up(self, ns: int, names: list[str], commands: list[cm.Command]) -> None:
        """Read the versions and options that `unknown_children` lists."""
        await self._versions.find_all(ns, names)
        children = [c for c in commands if isinstance(c, cm.StartChild)]
        found = {(c.workflow, v) for c in children for v in self._versions.candidates(ns, c.workflow, c.version)}
        await self._flow_control.find(ns, sorted(found))

    def _knows(self, run: ActiveRun, c: cm.StartChild) -> bool:
        return self._versions.knows(run.ns, c.workflow) and all(
            self._flow_control.knows((run.ns, c.workflow, version))
            for version in self._versions.candidates(run.ns, c.workflow, c.version)
        )

    def _schedule_tasks(self, run: ActiveRun, c: cm.ScheduleTasks) -> bool:
        options = c.options
        if options.secrets and not is_flow(run.version):
            # Only the text of a flow says where secrets stand. A worker that runs workflow code could otherwise have those of another worker.
            options = msgspec.structs.replace(options, secrets=())
        event = ev.TasksScheduled(c.first, c.name, c.queue, c.inputs, options, c.nodes, c.index)
        run.record(event, sum(map(len, c.inputs)))
        if len(run.state.tasks) > PENDING_TASKS_MAX:
            why = f"the run has more than PENDING_TASKS_MAX={PENDING_TASKS_MAX} unfinished tasks"
            self._exits.fail(run, Failure("limit_exceeded", why))
            return True
        self._tasks.schedule(run, event)
        return run.pending[-1].has_extras

    def _skip_tasks(self, run: ActiveRun, c: cm.SkipTasks) -> bool:
        changes = run.record(ev.TasksSkipped(c.first, c.nodes, c.reason))
        now = self._now_us()
        changes.tasks.extend(_skipped(run, c.first + i, n, c.reason, now) for i, n in enumerate(c.nodes))
        changes.rows += len(c.nodes)
        return False

    def _cancel_tasks(self, run: ActiveRun, c: cm.CancelTasks) -> bool:
        self._tasks.cancel(run, c.seqs)
        return True

    def _start_timer(self, run: ActiveRun, c: cm.StartTimer) -> bool:
        fire_at_us = c.fire_at_us
        # Set by code that replays events from before the run failed, or copied events of a fork.
        if fire_at_us < run.retried.at_us or run.seq == run.retried.fork:
            fire_at_us += run.retried.us
        run.record(ev.TimerStarted(c.seq, fire_at_us))
        self._timers.push(run, fire_at_us, c.seq)
        return False

    def _cancel_timer(self, run: ActiveRun, c: cm.CancelTimer) -> bool:
        if c.seq in run.state.timers:
            run.record(ev.TimerCancelled(c.seq))
        return False

    def _start_child(self, run: ActiveRun, c: cm.StartChild) -> bool:
        child_id = self._new_run_id()
        chosen = self._versions.of_start(run.ns, c.workflow, c.version, child_id)
        if chosen is None:
            run.record(ev.ChildStarted(c.seq, child_id, c.workflow, c.input, c.key, c.parent_close), len(c.input))
            run.record(ev.ChildFailed(c.seq, Failure("not_registered", not_registered(c.workflow), "NotRegistered")))
            return True
        version, pinned = chosen.version, chosen.pinned
        deadline = self._now_us() + c.timeout_us if c.timeout_us else 0
        trace = run.trace or run_traceparent(run.id, "")
        parent_seq = -1 if c.detached else c.seq
        started = ev.RunStarted(
            c.workflow,
            version,
            c.input,
            c.key,
            run.id,
            parent_seq,
            deadline,
            attributes=c.attributes,
            trace=trace,
            pinned=pinned,
        )
        group = self._flow_control.of_run((run.ns, c.workflow, version), c.input)
        own = group is None and self._runs.reserve(run.ns, c.workflow, version, pinned)
        child = ev.ChildStarted(c.seq, child_id, c.workflow, c.input, c.key, c.parent_close, c.detached)
        changes = run.record(child, len(c.input))
        changes.extras.starts.append(
            ChildStart(child_id, c.seq, version, c.key, chain.input_hash(c.workflow, c.input), own, started, group)
        )
        changes.rows += 2
        return True

    def _cancel_child(self, run: ActiveRun, c: cm.CancelChild) -> bool:
        child_id = run.state.children.get(c.seq)
        if child_id is not None:
            run.send(child_id, CancelMessage("its parent no longer waits for it"))
            run.record(ev.ChildCancelRequested(c.seq, c.awaited))
        return True

    def _create_promise(self, run: ActiveRun, c: cm.CreatePromise) -> bool:
        created = ev.PromiseCreated(c.seq, c.name, c.spec, c.kind)
        run.record(created).extras.promises.append(created)
        return True

    def _record_operation(self, run: ActiveRun, c: cm.RecordOperation) -> bool:
        run.operations = max(0, run.operations - 1)  # one that a former owner's worker began is not counted here
        if c.seq not in run.state.operations:
            run.record(ev.OperationRecorded(c.seq, c.name, c.value, c.failure), len(c.value))
        return True

    def _set_state(self, run: ActiveRun, c: cm.SetState) -> bool:
        run.record(ev.StateSet(c.name, c.value), len(c.value)).extras.states[c.name] = c.value
        return False

    def _clear_state(self, run: ActiveRun, c: cm.ClearState) -> bool:
        run.record(ev.StateCleared(c.name)).extras.states[c.name] = None
        return False

    def _answer_update(self, run: ActiveRun, c: cm.AnswerUpdate) -> bool:
        if c.id in run.state.updates:
            changes = run.record(ev.UpdateAnswered(c.id, c.value, c.failure), len(c.value))
            changes.extras.answers.append((c.id, c.value, encode_failure(c.failure) if c.failure else None))
        return True

    def _record_patch(self, run: ActiveRun, c: cm.RecordPatch) -> bool:
        run.record(ev.PatchRecorded(c.name))
        return False

    def _set_attributes(self, run: ActiveRun, c: cm.SetAttributes) -> bool:
        try:
            check_attributes(changed(run.state.attributes, c.change))
        except InvalidInput as e:  # a worker of another language may not have checked it
            self._exits.fail(run, e.to_failure())
            return True
        changes = run.record(ev.AttributesSet(c.change), len(c.change))
        changes.extras.attributes = run.state.attributes
        return False

    def _complete(self, run: ActiveRun, c: cm.CompleteRun) -> bool:
        result = c.result or b"null"  # a success without a value is how a handover looks
        if run.own_start is not None:
            self._start_heir(run, run.own_start, c)
        self._exits.close(run, ev.RunSucceeded(result), None, result)
        return True

    def lacks_own_start(self, run: ActiveRun, commands: list[cm.Command]) -> bool:
        """Whether the run ends and leaves signals to a next run that is to be started like it. One that was started for such signals and has
        read none is not followed by another: code that never reads them would be started for ever."""
        if run.own_start is not None or not commands or not run.state.key:
            return False
        last = commands[-1]
        if type(last) is not cm.CompleteRun:
            return False
        return bool(last.unread or run.unseen) and not (run.state.inherits and _has_read_none(run, last.unread))

    async def find_own_start(self, run: ActiveRun) -> None:
        """That of the chain: its key stands for the input of its first run, and a run that continued has another one."""
        rows = await self._store.history_after(run.state.first or run.id, run.ns, 0, 1)
        if not rows:  # retention has removed the first run, and nothing else has its input: the signals are set aside
            run.state.starts_again = False
            return
        started = decode_row(rows[0].seq, rows[0].at_us, rows[0].body)[0]
        assert isinstance(started.event, ev.RunStarted)
        await self._versions.find_all(run.ns, [run.workflow])
        await self._flow_control.find(run.ns, [(run.workflow, run.version)])
        run.own_start = started

    def _start_heir(self, run: ActiveRun, began: ev.Recorded, c: cm.CompleteRun) -> None:
        """The next run under the key of this one, with the signals that this one did not read: their senders were promised one that does."""
        old, heir_id = began.event, self._new_run_id()
        assert isinstance(old, ev.RunStarted)
        chosen = self._versions.of_successor(run, heir_id)
        started = ev.RunStarted(
            run.workflow,
            chosen.version,
            old.input,
            run.state.key,
            deadline_us=self._now_us() + old.deadline_us - began.at_us if old.deadline_us else 0,
            attributes=old.attributes,
            pinned=chosen.pinned,
            inherits=True,
        )
        group = self._flow_control.of_run((run.ns, run.workflow, chosen.version), old.input)
        own = group is None and self._runs.reserve(run.ns, run.workflow, chosen.version, chosen.pinned)
        start = ChildStart(heir_id, -1, chosen.version, run.state.key, b"", own, started, group)
        run.segment().extras.starts.append(start)
        run.heir = heir_id
        for name, value in c.unread:
            run.send(heir_id, SignalMessage(name, value, starts=True))
        for message in run.unseen:
            if isinstance(message, SignalMessage):
                run.send(heir_id, message)

    def _fail(self, run: ActiveRun, c: cm.FailRun) -> bool:
        self._exits.fail(run, c.failure, c.cause)
        return True

    def _cancel(self, run: ActiveRun, c: cm.CancelRun) -> bool:
        failure = Failure("run_cancelled", clip(c.reason) or "the run was cancelled")
        self._exits.close(run, ev.RunCancelled(c.reason), failure)
        return True

    def _continue(self, run: ActiveRun, c: cm.ContinueAsNew) -> bool:
        """The successor carries the parent link, the waiting signals, and the updates that the code did not begin to handle; the old run
        ends in success."""
        next_id, state = self._new_run_id(), run.state
        chosen = self._versions.of_successor(run, next_id)
        started = ev.RunStarted(
            run.workflow,
            chosen.version,
            c.input,
            state.key,
            run.state.parent_id,
            run.state.parent_seq,
            run.state.deadline_us,
            run.id,
            run.state.attributes,
            trace=run.trace or run_traceparent(run.id, ""),
            known_as=run.known_as if run.state.parent_id else b"",
            pinned=chosen.pinned,
            first=state.first or run.id,
            inherits=state.inherits and _has_read_none(run, c.signals),
        )
        own = self._runs.reserve(run.ns, run.workflow, chosen.version, chosen.pinned)
        messages: list[Message] = [
            *(SignalMessage(name, value, starts=state.starts_again) for name, value in c.signals),
            *(PromiseMessage(name, value) for name, value in c.promises),
            *(CancelMessage(reason, deadline) for reason, deadline in c.cancels),
            *run.unseen,  # it arrived while the code decided to continue as new
            *(UpdateMessage(u.id, u.name, u.value) for u in run.state.updates.values()),
        ]

        def hand_over() -> None:
            start = ChildStart(next_id, -1, chosen.version, state.key, b"", own, started)
            run.segment().extras.starts.append(start)
            for message in messages:
                run.send(next_id, message)

        event = ev.RunContinued(next_id, c.input)
        self._exits.close(run, event, None, b"", next_id, hand_over)
        return True


def _skipped(run: ActiveRun, seq: int, node: str, reason: str, now_us: int) -> TaskRow:
    return TaskRow(
        id=ids.derive(run.id, ids.TASK, seq),
        ns=run.ns,
        run_id=run.id,
        seq=seq,
        name=node,
        queue="",
        status="skipped",
        attempts=0,
        lost=0,
        epoch=run.epoch,
        scheduled_at=now_us,
        started_at=None,
        finished_at=now_us,
        worker=None,
        cpu_us=None,
        error=reason or None,
        error_code=None,
        error_type=None,
        traceback=None,
        node=node,
    )


def _has_read_none(run: ActiveRun, unread: list[tuple[str, bytes]]) -> bool:
    """Whether the code of a run has read none of its signals. `unread`: those that it was given and left."""
    return len(unread) + sum(isinstance(m, SignalMessage) for m in run.unseen) >= run.state.signals
