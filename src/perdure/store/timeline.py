"""A run over time on PostgreSQL: its tasks and attempts one by one, or counted by node where there are many."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from perdure.core import ids
from perdure.core.api.runs import TaskItem
from perdure.core.events import Recorded
from perdure.core.lifecycle import RUN_TERMINAL, TaskStatus
from perdure.core.timeline.bins import PARTS_PER_S, Moments, bin_bounds_us, point
from perdure.core.timeline.rows import SMALL_TASKS, NodeTally, TimelineRows
from perdure.core.timeline.spans import class_us, duration_class
from perdure.core.timeline.steps import node_name
from perdure.engine.api.ports import OUTSTANDING_BYTES_MAX, OUTSTANDING_EVENTS_MAX, TASKS_COUNTED_MAX
from perdure.store import wait_reasons
from perdure.store.clashes import retried
from perdure.store.node_tasks import first_tasks, marks_of
from perdure.store.queries import fetch, fetch_row, fetch_value
from perdure.store.run_lists import run_item
from perdure.store.run_paths import PostgresRunPaths
from perdure.store.run_query_sql import LOWEST
from perdure.store.task_rows import ended_task, queued_task
from perdure.wire.codec import decode_row

ATTEMPTS_MAX: Final = 10_000
"""Earlier attempts that the timeline of a small run shows."""
EXPECTED_RUNS: Final = 8
"""Runs from which is known how long nodes take."""
EXPECTED_TASKS: Final = 300
"""Tasks of each of them that are looked at."""
DECODED_AT_ONCE: Final = 256 * 1024
"""Bytes of history that are decoded in the event loop; more beside it."""
COUNT_ROWS_MAX: Final = 50_000
"""Counts of one run that are read."""
SAMPLE_ROWS_MAX: Final = 20_000
"""Tasks among which failed ones are looked for, to show why."""
SAMPLES_MAX: Final = 100


@retried()
class PostgresTimelines(PostgresRunPaths):
    async def timeline(self, ns: int, run_id: bytes) -> TimelineRows | None:
        low, high = ids.task_range(run_id)
        span: dict[str, Any] = {"low": low, "high": high, "run_id": run_id, "ns": ns}
        async with self._snapshot() as c:
            row = await fetch_row(c, "run_item", run_id=run_id, ns=ns)
            if row is None:
                return None
            item = run_item(row)
            now_us = await fetch_value(c, "read_clock")
            encoded = await _history(c, ns, run_id)
            waits = None if item.status in RUN_TERMINAL else await wait_reasons.waits_of(c, ns, run_id)
            rows = TimelineRows(item=item, now_us=now_us, waits=waits or [])
            if await fetch_value(c, "timeline_size", **span, limit=SMALL_TASKS + 1) <= SMALL_TASKS:
                await _each(c, span, rows)
            else:
                await _tally(c, span, rows)
        rows.history = await _decoded(encoded)
        return rows

    async def expected_us(self, ns: int, workflow: str, below: bytes) -> dict[str, int]:
        """Node -> the median of how long it took in the latest runs of the workflow before this one."""
        found = await self._fetch(
            "latest_node_durations",
            ns=ns,
            workflow=workflow,
            low=LOWEST,
            below=below,
            runs=EXPECTED_RUNS,
            tasks=EXPECTED_TASKS,
        )
        took: defaultdict[str, list[int]] = defaultdict(list)
        for r in found:
            took[r["node"]].append(r["took_us"])
        return {node: int(median(each)) for node, each in took.items()}


async def _history(c: Any, ns: int, run_id: bytes) -> list[Any] | None:
    ends = await fetch_row(c, "history_ends", run_id=run_id, ns=ns)
    if ends is None or ends["events"] > OUTSTANDING_EVENTS_MAX:
        return None
    if await fetch_value(c, "history_size", run_id=run_id, ns=ns) > OUTSTANDING_BYTES_MAX:
        return None
    return await fetch(c, "whole_history", run_id=run_id, ns=ns)


async def _decoded(rows: Sequence[Any] | None) -> list[Recorded] | None:
    if rows is None:
        return None
    size = sum(len(r["body"]) for r in rows)
    return _decode(rows) if size <= DECODED_AT_ONCE else await asyncio.to_thread(_decode, rows)


def _decode(rows: Sequence[Any]) -> list[Recorded]:
    return [record for r in rows for record in decode_row(r["seq"], r["at"], r["body"])]


async def _each(c: Any, span: dict[str, Any], rows: TimelineRows) -> None:
    ended = await fetch(c, "timeline_ended", **span)
    queued = await fetch(c, "timeline_queued", run_id=span["run_id"], ns=span["ns"])
    found = {r["seq"]: ended_task(r) for r in ended} | {r["seq"]: queued_task(r) for r in queued}
    rows.tasks = [found[seq] for seq in sorted(found)]
    rows.attempts = marks_of(await fetch(c, "timeline_attempts", **span, limit=ATTEMPTS_MAX))


async def _tally(c: Any, span: dict[str, Any], rows: TimelineRows) -> None:
    """The first tasks one by one, the others as they were counted when they ended."""
    run = {"run_id": span["run_id"], "ns": span["ns"]}
    rows.from_us = ids.unix_ms_of(span["run_id"]) * 1000
    tallies = Tallies(rows.from_us)
    for r in await fetch(c, "ended_tasks", ids=first_tasks(span["run_id"]), **run):
        tallies.add_task(ended_task(r))
    for r in await fetch(c, "run_node_counts", limit=COUNT_ROWS_MAX, **run):
        tallies.add_count(r)
    given = {"from_s": rows.from_us / 1e6, "limit": TASKS_COUNTED_MAX, "rows": COUNT_ROWS_MAX}
    for r in await fetch(c, "tally_attempts", **span, **given):
        tallies.add_attempts(r)
    for r in await fetch(c, "tally_queued", **run, **given):
        tallies.add_queued(r)
    rows.tallies = list(tallies.by_node.values())
    if any(t.counts.get("failed") and t.error is None for t in rows.tallies):
        for r in await fetch(c, "failed_samples", **span, scan_limit=SAMPLE_ROWS_MAX, limit=SAMPLES_MAX):
            found = tallies.by_node.get(r["node"])
            if found is not None and found.error is None:
                found.error = r["error"]


class Tallies:
    """Counts by node."""

    def __init__(self, from_us: int) -> None:
        self._from_us = from_us
        self.by_node: dict[str, NodeTally] = {}

    def _of(self, node: str) -> NodeTally:
        found = self.by_node.get(node)
        if found is None:
            found = self.by_node[node] = NodeTally(node=node)
        return found

    def add_task(self, task: TaskItem) -> None:
        t = self._of(node_name(task.node) if task.node else task.name)
        word = TaskStatus(task.status).word
        t.counts[word] = t.counts.get(word, 0) + 1
        t.attempts = max(t.attempts, task.attempts)
        t.first_us, t.started_us = _least(t.first_us, task.scheduled_us), _least(t.started_us, task.started_us)
        assert task.finished_us is not None
        t.finished_us = max(t.finished_us or 0, task.finished_us)
        end = point(task.finished_us - self._from_us)
        if task.started_us is not None:
            t.starts.append(point(task.started_us - self._from_us))
            t.ends.append(end)
        if task.status == TaskStatus.FAILED:
            t.failures.append(end)
            t.error = t.error or task.error
        if task.status == TaskStatus.SUCCESS and task.started_us is not None:
            took_us = max(task.finished_us - task.started_us, 1)
            size = duration_class(took_us)
            t.durations[size] = t.durations.get(size, 0) + 1
            t.longest_us = max(t.longest_us, took_us)

    def add_count(self, r: Any) -> None:
        t, n = self._of(r["node"]), r["n"]
        match r["what"]:
            case "start":
                t.starts.append(_cluster(r["bin"], n))
            case "end":
                t.ends.append(_cluster(r["bin"], n))
            case "duration":
                t.durations[r["bin"]] = t.durations.get(r["bin"], 0) + n
                t.longest_us = max(t.longest_us, class_us(r["bin"]))
            case "attempts":
                t.attempts = max(t.attempts, r["bin"])
            case status:
                t.counts[status] = t.counts.get(status, 0) + n
                if status == "failed":
                    t.failures.append(_cluster(r["bin"], n))

    def add_attempts(self, r: Any) -> None:
        t = self._of(r["node"])
        if r["start_part"] is not None:
            t.starts.append(_part(r["start_part"], r["attempts"]))
            t.started_us = _least(t.started_us, r["started_at"])
            return
        t.ends.append(_part(r["end_part"], r["attempts"]))
        if r["failed"]:
            t.failures.append(_part(r["end_part"], r["failed"]))

    def add_queued(self, r: Any) -> None:
        t = self._of(r["node"])
        t.counts[r["status"]] = t.counts.get(r["status"], 0) + r["tasks"]
        t.attempts = max(t.attempts, r["attempts"])
        t.first_us, t.started_us = _least(t.first_us, r["first_at"]), _least(t.started_us, r["started_at"])
        if r["start_part"] is not None:
            t.starts.append(_part(r["start_part"], r["tasks"]))


def _cluster(number: int, n: int) -> Moments:
    low, high = bin_bounds_us(number)
    return Moments(low, high, n, n * (low + high) / 2)


def _part(number: int, n: int) -> Moments:
    """Of a sixteenth of a second."""
    low, high = number / PARTS_PER_S * 1e6, (number + 1) / PARTS_PER_S * 1e6
    return Moments(low, high, n, n * (low + high) / 2)


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
