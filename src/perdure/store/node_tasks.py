"""Tasks of one node of a run, and what each task was doing over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.api.runs import ListTasks, NotablePosition, RunItem, TaskItem, TaskPage
from perdure.core.lifecycle import TaskStatus
from perdure.core.timeline.bins import COUNTED_FROM
from perdure.core.timeline.rows import AttemptMark
from perdure.core.timeline.steps import node_name, task_segments
from perdure.engine.api.ports import TASKS_COUNTED_MAX
from perdure.store.queries import fetch, fetch_value
from perdure.store.task_rows import ended_task, queued_task

EARLIER_ATTEMPTS_MAX: Final = 10_000
"""Attempts before the last that are shown with the tasks of one page."""
_FIRST: Final = NotablePosition(0, (1 << 56) - 1, -1, 0)
_BEGAN, _NOT_BEGUN = 1, 2

Placed = tuple[NotablePosition, TaskItem]


def first_tasks(run_id: bytes) -> list[bytes]:
    """The ids of tasks that are not counted when they end."""
    return [ids.derive(run_id, ids.TASK, seq) for seq in range(COUNTED_FROM)]


async def node_tasks(
    c: Any, ns: int, run: RunItem, unwritten: Mapping[int, TaskItem], wanted: ListTasks, limit: int
) -> TaskPage:
    """`unwritten`: tasks of the run that its engine has in memory; those that have a row by now are known better by it."""
    statuses = wanted.statuses or frozenset(int(s) for s in TaskStatus)
    given: dict[str, Any] = {
        "run_id": run.run_id,
        "ns": ns,
        "node": wanted.node or None,
        "statuses": [TaskStatus(s).word for s in sorted(statuses)],
        "limit": limit + 1,
    }
    memory = {s: t for s, t in unwritten.items() if t.status in statuses and _is_of(t, wanted.node)}
    if wanted.notable:
        return await _notable(c, given, memory, wanted.below, limit)
    return await _in_order(c, given, memory, wanted.after, limit)


def _is_of(t: TaskItem, node: str) -> bool:
    return not node or (node_name(t.node) if t.node else t.name) == node


async def _in_order(c: Any, given: dict[str, Any], memory: Mapping[int, TaskItem], after: int, limit: int) -> TaskPage:
    low, high = ids.task_range(given["run_id"])
    ended = await fetch(c, "ended_tasks_of_node", low=low, high=high, after=after, **given)
    queued = await fetch(c, "queued_tasks_of_node", after=after, **given)
    rest = await _without_row(c, given, [s for s in sorted(memory) if s > after][: limit + 1])
    found = {s: memory[s] for s in rest} | {r["seq"]: ended_task(r) for r in ended}
    found |= {r["seq"]: queued_task(r) for r in queued}
    items = [found[seq] for seq in sorted(found)]
    return TaskPage(items[:limit], items[limit - 1].seq if len(items) > limit else None)


async def _without_row(c: Any, given: dict[str, Any], seqs: list[int]) -> set[int]:
    wanted = [ids.derive(given["run_id"], ids.TASK, s) for s in seqs]
    rows = await fetch(c, "queued_tasks", ids=wanted, run_id=given["run_id"], ns=given["ns"])
    return set(seqs) - {r["seq"] for r in rows}


async def _notable(
    c: Any, given: dict[str, Any], memory: Mapping[int, TaskItem], below: NotablePosition | None, limit: int
) -> TaskPage:
    low, high = ids.task_range(given["run_id"])
    at = below or msgspec.structs.replace(_FIRST, now_us=await fetch_value(c, "read_clock"))
    place = {"rank": at.rank, "took": at.took_us, "after": at.seq, "scan_limit": TASKS_COUNTED_MAX}
    ended = await fetch(c, "notable_ended", low=low, high=high, **place, **given)
    queued = await fetch(c, "notable_queued", now=at.now_us, **place, **given)
    found = [_placed(r, ended_task(r), at) for r in ended] + [_placed(r, queued_task(r), at) for r in queued]
    if len(found) <= limit:  # those in memory come last
        after = at.seq if at.rank == _NOT_BEGUN else -1
        rest = await _without_row(c, given, [s for s in sorted(memory) if s > after][: limit + 1])
        found += [(NotablePosition(_NOT_BEGUN, 0, s, at.now_us), memory[s]) for s in rest]
    found.sort(key=lambda one: (one[0].rank, -one[0].took_us, one[0].seq))
    following = found[limit - 1][0] if len(found) > limit else None
    return TaskPage([item for _, item in found[:limit]], None, following)


def _placed(r: Any, item: TaskItem, at: NotablePosition) -> Placed:
    return NotablePosition(r["rank"], r["took"], r["seq"], at.now_us), item


async def with_segments(c: Any, ns: int, run: RunItem, tasks: Sequence[TaskItem]) -> list[TaskItem]:
    """Each with what it was doing, in order."""
    if not tasks:
        return []
    now_us = await fetch_value(c, "read_clock")
    earlier = await _earlier(c, ns, run, tasks)
    return [msgspec.structs.replace(t, segments=task_segments(t, earlier.get(t.seq, []), now_us)) for t in tasks]


async def _earlier(c: Any, ns: int, run: RunItem, tasks: Sequence[TaskItem]) -> dict[int, list[AttemptMark]]:
    """Attempts before the last, by task. Where there cannot be any they are not looked for."""
    wanted = [t.id for t in tasks if t.attempts > 1 or t.lost or t.run_at_us is not None or run.epoch > 1]
    if not wanted:
        return {}
    rows = await fetch(c, "timeline_attempts_of", ids=wanted, run_id=run.run_id, ns=ns, limit=EARLIER_ATTEMPTS_MAX)
    found: defaultdict[int, list[AttemptMark]] = defaultdict(list)
    for mark in marks_of(rows):
        found[mark.seq].append(mark)
    return found


def marks_of(rows: Sequence[Any]) -> list[AttemptMark]:
    return [
        AttemptMark(r["seq"], r["epoch"], r["attempt"], r["outcome"], r["started_at"], r["finished_at"], r["worker"])
        for r in rows
    ]
