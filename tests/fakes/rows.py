"""Rows of a commit with everything that a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from perdure.core import ids
from perdure.engine.commits.rows import QueuedRow, StartRow, TaskRow

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
        error=None,
        node=None,
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
    )
    return plain._replace(**fields)
