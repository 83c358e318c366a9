"""Records of attempts, against the tasks that they belong to."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from perdure.core.invariants.findings import Findings
from perdure.core.invariants.rows import StoredTask
from perdure.core.invariants.run_fold import RunFold
from perdure.core.lifecycle import TaskStatus

NUMBERED = 25


class StoredAttempt(msgspec.Struct, frozen=True):
    """A row of task_attempt."""

    seq: int
    epoch: int
    attempt: int
    outcome: str


def is_attempt(t: StoredTask) -> bool:
    """Whether the row of a task is also the record of its last attempt, as perdure.is_attempt says."""
    c = t.columns
    began = c is None or c.started_us is not None or t.status == TaskStatus.SUCCESS or c.error_code == "task_lost"
    return t.attempts > 0 and began


def check_attempts(
    fold: RunFold,
    tasks: Sequence[StoredTask],
    attempts: Sequence[StoredAttempt],
    queued: Mapping[int, int],
    findings: Findings,
) -> None:
    """Attempts of a task are numbered from 1, anew after every retry of the run. The last one is in the row of the task; only one that
    became void because of it may have a higher number. `queued`: the attempt that a task in task_queue waits for or is at."""
    if fold.broken:
        return
    by_task: defaultdict[tuple[int, int], list[StoredAttempt]] = defaultdict(list)
    for a in attempts:
        by_task[a.seq, bisect_left(fold.retries, a.epoch)].append(a)
    ended = {(t.seq, bisect_left(fold.retries, t.epoch)): t for t in tasks if not t.copied}
    waiting = {(seq, len(fold.retries)): attempt for seq, attempt in queued.items()}
    for key in (ended.keys() | waiting.keys()) - by_task.keys():
        by_task[key] = []
    for key, found in by_task.items():
        seq, _ = key
        findings.examine(NUMBERED)
        numbers = sorted(a.attempt for a in found if a.outcome != "cancelled")
        if key in ended or key in waiting:
            wrong = _newest(numbers, ended.get(key), waiting.get(key))
        else:
            wrong = "" if _is_gapless(_all(found)) else "they have gaps"
        if wrong:
            shown = ", ".join(map(str, _all(found))) or "none"
            findings.violate(NUMBERED, fold.text, f"attempts on record of task {seq}: {shown}; {wrong}")


def _newest(numbers: list[int], task: StoredTask | None, queued: int | None) -> str:
    if task is not None and is_attempt(task):
        return "" if numbers == list(range(1, task.attempts)) else f"it ended with attempt {task.attempts}"
    if task is None and queued is not None:
        return "" if numbers == list(range(1, queued)) else f"it is in the queue for attempt {queued}"
    if task is not None and task.status == TaskStatus.FAILED:  # its time was over while it waited for the next one
        return "" if numbers == list(range(1, task.attempts + 1)) else f"it failed after attempt {task.attempts}"
    return "" if _is_gapless(numbers) else "they have gaps"


def _all(found: Sequence[StoredAttempt]) -> list[int]:
    return sorted(a.attempt for a in found)


def _is_gapless(numbers: Sequence[int]) -> bool:
    return list(numbers) == list(range(1, len(numbers) + 1))
