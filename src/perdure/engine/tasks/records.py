"""Records of attempts that ended and were not the last of their task. The last one is the row of the task itself."""

from __future__ import annotations

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.retry import Requeue, outcome_of
from perdure.engine.commits.rows import AttemptRow, RecoveredRow, RequeuedRow, Spent, error_columns
from perdure.engine.runs.run import ActiveRun


def record_attempt(
    run: ActiveRun, seq: int, scheduled: ev.TasksScheduled, attempt: int, verdict: Requeue, spent: Spent
) -> None:
    """The task of a run of this engine is tried again. A worker that gave it back unstarted has made no attempt."""
    if verdict.attempt == attempt:
        return
    changes = run.segment()
    changes.rows += 1
    changes.extras.attempts.append(
        AttemptRow(
            ids.derive(run.id, ids.TASK, seq),
            run.epoch,
            attempt,
            run.ns,
            run.id,
            seq,
            scheduled.name,
            ev.label(scheduled, seq) if scheduled.nodes else None,
            outcome_of(verdict.failure.code),
            *spent[1:],
            *error_columns(verdict.failure),
        )
    )


def requeued_row(
    task_id: bytes, run_id: bytes, verdict: Requeue, ended: int, expires_us: int | None, spent: Spent
) -> RequeuedRow:
    """The same for a task of another engine's run."""
    return RequeuedRow(
        task_id,
        verdict.attempt,
        verdict.lost,
        verdict.delay_us,
        expires_us,
        ended,
        outcome_of(verdict.failure.code),
        *spent[1:],
        *error_columns(verdict.failure),
        run_id,
    )


def recover_attempt(run: ActiveRun, seq: int, attempt: int) -> None:
    """An attempt that counts as lost has succeeded: the row of its task is its record. What is not written yet is not written at all."""
    task_id = ids.derive(run.id, ids.TASK, seq)
    for changes in run.pending:
        if changes.has_extras:
            kept = [a for a in changes.extras.attempts if (a.id, a.attempt) != (task_id, attempt)]
            changes.extras.attempts = kept
    run.segment().extras.recovered.append(RecoveredRow(task_id, attempt, run.retried[0]))
