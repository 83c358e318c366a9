"""How a run leaves the memory of its engine: it ends, it is released to the database, or it is set aside.

Laws:

1. Nothing of a run outlives it: its tasks and timers are cancelled before its end, its children are asked to stop.
2. What goes with an end is put into its segment right before it, so that both are written or neither is.
3. A fault in one run stops that run, visibly, and no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from perdure.core import events as ev
from perdure.core import wait_reasons
from perdure.core.errors import Failure, PayloadKeyMissing, clip
from perdure.core.lifecycle import RunStatus, next_run_status
from perdure.core.messages import ChildEndedMessage, PauseMessage, TerminateMessage
from perdure.engine.context import EngineContext
from perdure.engine.runs.children import close_children
from perdure.engine.runs.delivery import InboxDelivery, refuse_update
from perdure.engine.runs.owned import OwnedRuns
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.task_port import TaskPort
from perdure.engine.runs.transitions import ENDED, RELEASED, SET_ASIDE, Leaving, Transition

log = logging.getLogger("perdure.engine")

_STATUS: Final[dict[type, RunStatus]] = {
    ev.RunSucceeded: next_run_status(RunStatus.RUNNING, "succeed"),
    ev.RunContinued: next_run_status(RunStatus.RUNNING, "succeed"),
    ev.RunFailed: next_run_status(RunStatus.RUNNING, "fail"),
    ev.RunCancelled: next_run_status(RunStatus.RUNNING, "cancel"),
    ev.RunTerminated: next_run_status(RunStatus.RUNNING, "cancel"),
}
"""What each end of a run makes of it, by the table of core/lifecycle.py."""
SOON_US: Final = 1_000_000
"""A released run that is due within this time is claimed in time by this engine."""


class RunExits:
    def __init__(self, context: EngineContext, runs: OwnedRuns, tasks: TaskPort, delivery: InboxDelivery) -> None:
        self._runs, self._tasks, self._delivery = runs, tasks, delivery
        self._queue, self._worker, self._counters = context.queue, context.worker, context.counters
        self._events, self._now_us = context.events, context.now_us

    def fail(self, run: ActiveRun, failure: Failure, cause: int = 0) -> None:
        self.close(run, ev.RunFailed(failure, cause), failure)

    def close(
        self,
        run: ActiveRun,
        event: ev.Event,
        failure: Failure | None,
        value: bytes = b"",
        successor: bytes | None = None,
        hand_over: Callable[[], None] | None = None,
    ) -> None:
        status, state = _STATUS[type(event)], run.state
        if state.tasks:
            self._tasks.cancel(run, list(state.tasks))
        if state.timers or state.children:
            _stop_others(run)
        if hand_over is not None:
            hand_over()
        elif state.updates:
            _leave_unanswered(run, status)
        if successor is None and state.has_waiting_parent:
            # A parent that lives here gets the end after the commit; one that lives elsewhere gets a message in it.
            parent = self._runs.get(state.parent_id)
            if parent is None or type(parent.phase) is Leaving:
                run.send(state.parent_id, ChildEndedMessage(state.parent_seq, status, value, failure, run.known_as))
        changes = run.record(event, len(value))
        changes.close = (status, failure, successor)
        changes.rows += 2
        run.phase = ENDED[run.phase](status, value, failure, successor)
        self._tasks.abandon(run)
        self._queue.mark(run, urgent=True)

    def terminate(self, run: ActiveRun, request: TerminateMessage) -> None:
        """End a run at once, without its code. The request stays in the inbox until the end is durable: the last commit deletes all that
        is there, and if this engine dies before, the next one finds it."""
        run.inbox_used = True
        end = ev.RunTerminated(request.reason, request.by)
        self.close(run, end, ev.terminated(end))

    def pause(self, run: ActiveRun, request: PauseMessage, inbox_id: int) -> None:
        """Release a run, with everything of it that is only in memory, until an operator resumes it."""
        self._tasks.hand_over(run)
        word, waits = wait_reasons.encode(waits_of(run))
        run.phase = RELEASED[run.phase](None, None)
        changes = run.segment()  # the request goes in the commit that pauses the run
        changes.release = (None, None, word, waits)
        changes.extras.consumed.append(inbox_id)
        changes.extras.paused = request
        self._tasks.abandon(run)
        self._worker.forget(run.id)
        self._queue.mark(run, urgent=True)

    def stop(self, run: ActiveRun, failure: Failure) -> None:
        """The code cannot continue: the run is stuck until an operator resumes it."""
        self._counters.runs_stuck += 1
        log.error("run %s of %s is stuck: %s", run.id.hex(), run.workflow, failure.message)
        self.set_aside(run, f"{failure.code}: {failure.message}")

    def broke(self, run: ActiveRun, error: Exception) -> None:
        self._delivery.drop_pending(run)
        if isinstance(error, PayloadKeyMissing):
            self.stop(run, error.to_failure())
            return
        log.error("run %s: internal error", run.id.hex(), exc_info=error)
        self.stop(run, Failure("internal", clip(f"{type(error).__name__}: {error}")))

    def refused(self, run: ActiveRun, why: str) -> None:
        """The database refuses a record of it. Its segments are back in `pending`."""
        self._delivery.drop_pending(run)
        run.writing = None
        self.set_aside(run, why)

    def set_aside(self, run: ActiveRun, stuck: str) -> None:
        self._leave(run, SET_ASIDE, stuck)

    def release(self, run: ActiveRun) -> None:
        """Release a run to the database until its next timer, message or retry."""
        self._leave(run, RELEASED, None)

    def _leave(self, run: ActiveRun, event: Transition[type[Leaving]], stuck: str | None) -> None:
        wake_us = run.state.next_wake_us() if _can_sleep(run) else 0
        word, waits = wait_reasons.encode(waits_of(run)) if not stuck and wake_us != 0 else (None, None)
        before, run.phase = run.phase, event[run.phase](wake_us, stuck)
        if isinstance(before, Leaving):
            run.phase.ends = before.ends
        run.segment().release = (None if stuck else wake_us, stuck, word, waits)
        self._tasks.abandon(run)
        self._worker.forget(run.id)
        self._queue.mark(run, urgent=stuck is not None)
        if wake_us is not None and (delay_us := wake_us - self._now_us()) < SOON_US:
            self._events.work_due.publish(delay_us)


def waits_of(run: ActiveRun) -> list[wait_reasons.WaitReason]:
    blocked = run.decider.blocked(wait_reasons.WAITS_MAX) if run.decider is not None else ()
    return wait_reasons.of_run(run.state, run.waiting, blocked)


def _stop_others(run: ActiveRun) -> None:
    for seq in list(run.state.timers):
        run.record(ev.TimerCancelled(seq))
    close_children(run)


def _can_sleep(run: ActiveRun) -> bool:
    """Whether only time or a message can move it: nothing to see, and every unfinished task has a row whose end is a message."""
    return run.is_idle and all(seq in run.queued for seq in run.state.tasks)


def _leave_unanswered(run: ActiveRun, status: RunStatus) -> None:
    """The end of the run answers the updates that its code did not. No event says so, because a retry of the run takes the end back, and
    its code may answer after all."""
    why = f"the run ended ({status.word}) before it answered; it may have begun to act on the update"
    for id in run.state.updates:
        refuse_update(run, id, "run_finished", why)
