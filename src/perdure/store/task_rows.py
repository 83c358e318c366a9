"""Rows of tasks as the API shows them."""

from __future__ import annotations

from typing import Any

from perdure.core.api.runs import TaskItem
from perdure.core.progress import split_progress
from perdure.store.words import task_status


def ended_task(r: Any) -> TaskItem:
    return TaskItem(
        id=r["id"],
        seq=r["seq"],
        name=r["name"],
        queue=r["queue"],
        status=task_status(r["status"]),
        attempts=r["attempts"],
        lost=r["lost"],
        scheduled_us=r["scheduled_at"],
        started_us=r["started_at"],
        finished_us=r["finished_at"],
        error=r["error"],
        worker=r["worker"],
        node=r["node"],
        copied=r["copied"],
    )


def queued_task(r: Any) -> TaskItem:
    pending = r["status"] == "pending"
    progress, details = split_progress(r["details"] or b"")
    return TaskItem(
        id=r["id"],
        seq=r["seq"],
        name=r["name"],
        queue=r["queue"],
        status=task_status(r["status"]),
        attempts=r["attempt"] - pending,
        lost=r["lost"],
        scheduled_us=r["scheduled_at"],
        started_us=None if pending else r["started_at"],
        run_at_us=r["run_at"] if pending else None,
        error=r["error"],
        worker=r["worker"],
        details=details,
        progress=progress,
        blocked=r["blocked"],
        node=r["node"],
    )
