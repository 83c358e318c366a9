"""What each event does to a live run, by phase, and how one phase follows another.

Law: an event that the table has no entry for changes nothing in that phase. So the code of a run that has ended, or that is being undone,
never runs again, and messages that arrive during a handover all reach the new run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.errors import Failure, PerdureError
from perdure.core.late_messages import MESSAGES
from perdure.core.undo import TIMED_OUT, told_of, why
from perdure.sdk.workflow import guards
from perdure.sdk.workflow.endings import ContinueAsNewRequest, cause_of, failure_of
from perdure.sdk.workflow.live_run import LiveRun
from perdure.sdk.workflow.phases import CLOSED, Closed, HandingOver, Running, Unwinding

Transition = Callable[[LiveRun, Any], None]


def apply(run: LiveRun, record: ev.Recorded) -> bool:
    """Apply one event. True: the code may go further now."""
    event = record.event
    transition = _RUNNING.get(type(event))
    if transition is None:
        return False
    journal = run.journal
    if journal.facts_ahead:
        journal.facts_ahead -= 1
    run.now_us, run.event_seq = record.at_us, record.seq
    phase = type(run.phase)
    if phase is not Running:
        transition = TRANSITIONS[phase].get(type(event))
        if transition is None:
            return False
    transition(run, event)
    return type(run.phase) is Running


def finish(run: LiveRun, phase: Running, main: asyncio.Task[Any]) -> None:
    """The workflow's function has ended."""
    try:
        command = _closing_command(run, phase, main)
    except PerdureError as e:  # the result does not fit its declared type, or is too large
        command = cm.FailRun(e.to_failure())
    _end(run, command)


def _closing_command(run: LiveRun, phase: Running, main: asyncio.Task[Any]) -> cm.Command:
    if phase.cancel is not None and phase.cancel.deadline:
        return cm.FailRun(TIMED_OUT)  # as the engine fails a run that has nothing to undo
    if main.cancelled():
        if phase.cancel is not None:
            return cm.CancelRun(phase.cancel.reason)
        text = "the workflow cancelled itself: CancelledError left its function"
        return cm.FailRun(Failure("run_failed", text, "CancelledError"))
    error = main.exception()
    if error is None:
        with guards.lifted():  # a type that is compiled at its first use may load plugins of its library
            unread = run.signals.waits.unclaimed() if run.has_messages else []
            return cm.CompleteRun(run.workflow.signature.encode_result(main.result()), unread)
    if isinstance(error, ContinueAsNewRequest):
        run.refuse_left_undos()
        run.updates.refuse_begun()
        return cm.ContinueAsNew(error.data, run.signals.waits.unclaimed(), run.promises.waits.unclaimed(), [])
    return cm.FailRun(failure_of(error, "run_failed"), cause_of(error, phase.timer_fired))


def _end(run: LiveRun, command: cm.Command) -> None:
    """A run that fails or is cancelled first undoes what it did."""
    undo = run.undo_if_any
    if isinstance(command, cm.FailRun | cm.CancelRun) and undo is not None and undo.is_needed:
        run.phase = Unwinding(command)
        run.requests.stop_all()
        run.signals.waits.stop_all()
        run.updates.waits.stop_all()
        undo.wind_up(why(command))
        _close_if_undone(run)
        return
    run.phase = HandingOver(command) if isinstance(command, cm.ContinueAsNew | cm.CompleteRun) else CLOSED
    run.journal.close(command)


def _close_if_undone(run: LiveRun) -> None:
    phase, undo = run.phase, run.undo_if_any
    if type(phase) is Unwinding and undo is not None and undo.is_done:
        run.phase = CLOSED
        run.journal.close(told_of(phase.end, undo.failures))


def _started(run: LiveRun, e: ev.RunStarted) -> None:
    phase = run.phase
    assert type(phase) is Running
    run.started, run.started_us = e, run.now_us
    if e.lineage:
        run.journal.forked(run.run_id, e.lineage)
        run.loop.number_from(e.lineage[0])
    try:
        phase.main = run.context.run(_create_main, run, e)
    except PerdureError as error:  # the input does not fit the code, or the code breaks the rules of a workflow
        run.phase = CLOSED
        run.journal.close(cm.FailRun(error.to_failure()))


def _create_main(run: LiveRun, e: ev.RunStarted) -> asyncio.Task[Any]:
    return run.loop.create_task(run.workflow.body(e), name="main", context=run.context)


def _cancel_requested(run: LiveRun, e: ev.CancelRequested) -> None:
    phase = run.phase
    assert type(phase) is Running
    if phase.cancel is not None:  # the second request: do not wait any longer for children to stop
        run.requests.stop_waiting_for_cancelled_children()
    elif phase.main is not None:
        phase.cancel = e
        phase.main.cancel(e.reason or "the run was cancelled")


def _timer_fired(run: LiveRun, e: ev.TimerFired) -> None:
    phase = run.phase
    assert type(phase) is Running
    phase.timer_fired = run.event_seq
    run.requests.timer_fired(e)


def _hand_over(
    run: LiveRun, e: ev.CancelRequested | ev.SignalReceived | ev.PromiseResolved | ev.UpdateReceived
) -> None:
    """A message for the next run."""
    phase = run.phase
    assert type(phase) is HandingOver
    if isinstance(phase.command, cm.CompleteRun):
        phase.command.late.append(run.event_seq)
        if isinstance(e, ev.SignalReceived):
            phase.command.unread.append((e.name, e.value))
    elif isinstance(e, ev.CancelRequested):
        phase.command.cancels.append((e.reason, e.deadline))
    elif isinstance(e, ev.SignalReceived):
        phase.command.signals.append((e.name, e.value))
    elif isinstance(e, ev.PromiseResolved) and not e.question:  # an answer is for a question of this run
        phase.command.promises.append((e.name, e.value))


def _then_close_if_undone(transition: Transition) -> Transition:
    def applied(run: LiveRun, event: Any) -> None:
        transition(run, event)
        _close_if_undone(run)

    return applied


_RUNNING: Mapping[type, Transition] = {
    ev.RunStarted: _started,
    ev.RunBegan: lambda run, e: None,  # its time is that of the start, which `from_beginning` has set
    ev.CancelRequested: _cancel_requested,
    ev.TasksSucceeded: lambda run, e: run.requests.tasks_succeeded(e),
    ev.TaskFailed: lambda run, e: run.requests.task_failed(e),
    ev.TimerFired: _timer_fired,
    ev.ChildSucceeded: lambda run, e: run.requests.child_succeeded(e),
    ev.ChildFailed: lambda run, e: run.requests.child_failed(e),
    ev.ChildCancelled: lambda run, e: run.requests.child_cancelled(e),
    ev.SignalReceived: lambda run, e: run.signals.received(e),
    ev.PromiseResolved: lambda run, e: run.promises.resolved(e),
    ev.UpdateReceived: lambda run, e: run.updates.received(e),
    ev.OperationRecorded: lambda run, e: run.requests.operation_recorded(e),
}
TRANSITIONS: Mapping[type, Mapping[type, Transition]] = {
    Running: _RUNNING,
    HandingOver: dict.fromkeys(MESSAGES, _hand_over),
    Unwinding: {
        ev.TasksSucceeded: _then_close_if_undone(_RUNNING[ev.TasksSucceeded]),
        ev.TaskFailed: _then_close_if_undone(_RUNNING[ev.TaskFailed]),
        ev.TimerFired: _then_close_if_undone(lambda run, e: run.requests.timer_fired(e)),
    },
    Closed: {},
}
