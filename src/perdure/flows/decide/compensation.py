"""Undoing what the run of a flow did, before it ends failed or cancelled (core/undo.py)."""

from __future__ import annotations

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.payloads import encode_tree
from perdure.core.undo import PREFIX, CannotUndo, UndoSequence, error_value, offer, told_of, why
from perdure.flows.decide.executions import Executions, UndoableExecution
from perdure.flows.decide.frames import Trouble
from perdure.flows.decide.starting import checked
from perdure.flows.decide.values import JsonValue


class Compensation:
    """First everything stops. Tasks and child runs that may have succeeded all the same are waited for; then each success is undone."""

    def __init__(self, executions: Executions, end: cm.FailRun | cm.CancelRun, undecided: list[int]) -> None:
        self._executions, self._end = executions, end
        self._unwinding: UndoSequence[UndoableExecution] = UndoSequence(
            executions.undoable, self._call, lambda done: done.visit.label(done.index)
        )
        self._children = {-1 - key for key in undecided if key < 0}
        """Child runs that were stopped and may succeed all the same."""
        self._barrier = -1
        """The timer after which every success of a stopped task has arrived."""
        if any(key >= 0 for key in undecided):
            self._barrier = executions.journal.start_timer(executions.now_us)
        self._lift()

    @property
    def done(self) -> bool:
        return self._unwinding.done

    def end(self) -> cm.Command:
        """The end of the run, with the undos that failed."""
        return told_of(self._end, self._unwinding.failures)

    def apply(self, event: ev.Event) -> None:
        unwinding = self._unwinding
        match event:
            case ev.TasksSucceeded():
                for seq, raw in zip(event.seqs, event.results, strict=True):
                    if seq == unwinding.seq:
                        unwinding.over(None)
                        self._executions.agenda.later(self._next)
                    else:
                        self._executions.keep_result(seq, raw)
            case ev.TaskFailed() if event.seq == unwinding.seq:
                unwinding.over(event.failure)
                self._executions.agenda.later(self._next)
            case ev.TimerFired() if event.seq == self._barrier:
                self._barrier = -1
                self._lift()
            case ev.ChildSucceeded() | ev.ChildFailed() | ev.ChildCancelled() if event.seq in self._children:
                self._children.discard(event.seq)
                if isinstance(event, ev.ChildSucceeded):
                    self._executions.keep_result(-1 - event.seq, event.result or b"null")
                self._lift()
            case _:
                pass

    def _lift(self) -> None:
        self._unwinding.barrier = self._barrier >= 0 or bool(self._children)
        self._executions.agenda.later(self._next)

    def _next(self) -> None:
        """One entry is a step of the decision: entries that cannot be called cost as much as the others."""
        if self._unwinding.step():
            self._executions.agenda.later(self._next)

    def _call(self, done: UndoableExecution) -> int:
        visit, call = done.visit, done.visit.node.compensate
        assert call is not None
        error = why(self._end)
        scope = visit.frame.scope(visit, visit.scope_index(done.index), JsonValue(done.result))
        try:
            if call.args is None:
                data = offer(done.given, done.result, error)
            else:
                reason = error_value(error)
                args = self._executions.agenda.evaluate(
                    call.args, lambda name: reason if name == "error" else scope(name)
                )
                data = checked(encode_tree(args), "the input of what compensates")
        except Trouble as e:
            raise CannotUndo(e.failure.message) from None
        label = PREFIX + visit.label(done.index)
        return self._executions.schedule(call.task, call, [data], [label])


def compensate(executions: Executions, end: cm.FailRun | cm.CancelRun) -> Compensation | None:
    """Begin to undo; None when there is nothing to undo."""
    journal = executions.journal
    outstanding = {**executions.tasks, **{-1 - seq: place for seq, place in executions.children.items()}}
    stopped = {**outstanding, **executions.stopped}
    undecided = [key for key, place in stopped.items() if place is not None and place[0].node.compensate is not None]
    if not executions.undoable and not undecided:
        return None
    executions.stopped = stopped
    journal.cancel_tasks(sorted(executions.tasks))
    for seq in executions.timers:
        journal.cancel_timer(seq)
    for seq in executions.children:
        journal.cancel_child(seq)
    for table in (executions.tasks, executions.timers, executions.children):
        table.clear()
    executions.signals.stop_all()
    executions.promises.stop_all()
    return Compensation(executions, end, undecided)
