"""Rows of a commit with everything that a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from perdure.core import ids
from perdure.engine.commits.rows import ChangeRow, QueuedRow, RequeuedRow, StartRow, TaskRow

NS = 1


def start_row(run_id: bytes, **fields: Any) -> StartRow:
    plain = StartRow(
        run_id=run_id,
        ns=NS,
        workflow="w",
        version="v",
        kind="code",
        key=None,
        input_hash=b"h",
        parent_id=None,
        parent_seq=None,
        own=False,
        body=b"",
        attributes=None,
        group_id=None,
        deadline_at=None,
        hash=b"",
    )
    return plain._replace(**fields)


def task_row(run_id: bytes, seq: int, **fields: Any) -> TaskRow:
    plain = TaskRow(
        id=ids.derive(run_id, ids.TASK, seq),
        ns=NS,
        run_id=run_id,
        seq=seq,
        name="t",
        queue="q",
        status="success",
        attempts=1,
        lost=0,
        epoch=1,
        scheduled_at=0,
        started_at=None,
        finished_at=0,
        worker=None,
        cpu_us=None,
        error=None,
        error_code=None,
        error_type=None,
        traceback=None,
        node=None,
    )
    return plain._replace(**fields)


def requeued_row(task_id: bytes, attempt: int, lost: int, **fields: Any) -> RequeuedRow:
    plain = RequeuedRow(
        id=task_id,
        attempt=attempt,
        lost=lost,
        delay_us=0,
        start_deadline_at=None,
        ended=attempt - 1,
        outcome="lost",
        started_at=0,
        finished_at=0,
        worker="w",
        cpu_us=None,
        error=None,
        error_code="task_lost",
        error_type=None,
        traceback=None,
        run_id=bytes(16),
    )
    return plain._replace(**fields)


def queued_row(run_id: bytes, seq: int, **fields: Any) -> QueuedRow:
    plain = QueuedRow(
        id=ids.derive(run_id, ids.TASK, seq),
        ns=NS,
        run_id=run_id,
        seq=seq,
        name="t",
        queue="default",
        status="pending",
        attempt=1,
        lost=0,
        delay_us=0,
        scheduled_at=0,
        options=b"",
        input=b"{}",
        error=None,
        trace=None,
        node=None,
        group_id=None,
        start_deadline_at=None,
        started_at=None,
    )
    return plain._replace(**fields)


def change_row(run_id: bytes, **fields: Any) -> ChangeRow:
    plain = ChangeRow(
        run_id=run_id,
        is_released=False,
        has_waits=False,
        waiting_on=None,
        wait_reasons=None,
        is_cancelled=False,
        is_settled=False,
        version=None,
    )
    return plain._replace(**fields)
