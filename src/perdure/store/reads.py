"""The Reads port on PostgreSQL: runs, tasks, logs, workflows, workers and queues, over the connections of run_lists.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.core import events as ev
from perdure.core import ids
from perdure.core import wait_reasons as reasons
from perdure.core.api.admin import NamespaceItem
from perdure.core.api.attempts import AttemptPage, AttemptPosition
from perdure.core.api.cluster import QueueItem
from perdure.core.api.definitions import Definition, VersionItem, WorkflowItem
from perdure.core.api.runs import (
    ListTasks,
    LogItem,
    LogPage,
    LogPosition,
    Outstanding,
    RunDetail,
    RunItem,
    TaskItem,
    TaskPage,
    UnreadMessage,
)
from perdure.core.errors import IllegalTransition
from perdure.core.lifecycle import RUN_TERMINAL, TaskStatus
from perdure.core.runstate import RunState
from perdure.core.work import LogLine
from perdure.engine.api.ports import (
    NAMES_MAX,
    OUTSTANDING_BYTES_MAX,
    OUTSTANDING_EVENTS_MAX,
    QUEUE_COUNT_MAX,
    QUEUES_MAX,
    RUNS_COUNTED_MAX,
    SCAN_ROWS_MAX,
    TASKS_COUNTED_MAX,
    UNREAD_SHOWN_MAX,
)
from perdure.store import wait_reasons
from perdure.store.attempts import read_attempts
from perdure.store.clashes import retried
from perdure.store.node_tasks import first_tasks, node_tasks, with_segments
from perdure.store.queries import fetch, fetch_row, fetch_value
from perdure.store.run_counts import PostgresRunCounts
from perdure.store.run_lists import run_item
from perdure.store.run_query_sql import LOWEST
from perdure.store.task_rows import ended_task, queued_task
from perdure.store.words import task_status
from perdure.store.workers import PostgresWorkers
from perdure.store.workflow_runs import PostgresWorkflowRuns
from perdure.wire.codec import decode_row

LOG_CHUNKS: Final = 200
"""Chunks of log lines fetched at a time."""
_FIRST_LINE: Final = LogPosition(0, -1, 0, 0, -1)
_LAST_LINE: Final = LogPosition(253_402_300_799_000_000, (1 << 31) - 1, (1 << 31) - 1, (1 << 31) - 1, 1 << 30)
"""Before and behind all lines; times of PostgreSQL and Python end with the year 9999."""
_UNENDED: Final = (int(TaskStatus.PENDING), int(TaskStatus.DISPATCHED), int(TaskStatus.RUNNING))
_lines = msgspec.json.Decoder(list[LogLine])


@retried()
class PostgresReads(PostgresWorkflowRuns, PostgresWorkers, PostgresRunCounts):
    async def detail(self, ns: int, run_id: bytes) -> RunDetail | None:
        async with self._snapshot() as c:
            found = await self._run(c, ns, run_id)
            if found is None:
                return None
            item, ends, outstanding = found
            counts = await self._counts(c, ns, run_id)
            waits = await wait_reasons.waits_of(c, ns, run_id)
            unread = await _unread(c, ns, run_id)
            if not waits and outstanding is not None:  # its engine has it in memory
                waits = reasons.ordered(outstanding.waits)
        if outstanding is not None:  # those that have no row yet
            counts[_unwritten(item)] += max(0, len(outstanding.tasks) - sum(counts[s] for s in _UNENDED))
        return RunDetail(
            item=item,
            started=ends["first"] if ends else b"",
            last=ends["last"] if ends else b"",
            events=ends["events"] if ends else item.events or 0,
            tasks=counts,
            outstanding=outstanding,
            waits=waits or [],
            unread=unread,
        )

    async def _run(self, c: Any, ns: int, run_id: bytes) -> tuple[RunItem, Any, Outstanding | None] | None:
        """The run, the ends of its history, and what it waits for if it is active."""
        row = await fetch_row(c, "run_item", run_id=run_id, ns=ns)
        if row is None:
            return None
        item = run_item(row)
        ends = await fetch_row(c, "history_ends", run_id=run_id, ns=ns)
        return item, ends, await self._outstanding(c, ns, item, ends["events"] if ends else 0)

    async def _counts(self, c: Any, ns: int, run_id: bytes) -> dict[int, int]:
        low, high = ids.task_range(run_id)
        span: dict[str, Any] = {"low": low, "high": high, "run_id": run_id, "ns": ns}
        ended = await fetch(c, "counted_ended_tasks", run_id=run_id, ns=ns)
        if ended:
            ended += await fetch(c, "count_first_tasks", ids=first_tasks(run_id), **span)
        else:
            ended = await fetch(c, "count_ended_tasks", **span, limit=TASKS_COUNTED_MAX)
        queued = await fetch(c, "count_queued_tasks", run_id=run_id, ns=ns, limit=TASKS_COUNTED_MAX)
        counts = dict.fromkeys((int(s) for s in TaskStatus), 0)
        for r in (*ended, *queued):
            counts[task_status(r["status"])] += r["tasks"]
        return counts

    async def _outstanding(self, c: Any, ns: int, item: RunItem, events: int) -> Outstanding | None:
        if item.status in RUN_TERMINAL or not 0 < events <= OUTSTANDING_EVENTS_MAX:
            return None
        size = await fetch_value(c, "history_size", run_id=item.run_id, ns=ns)
        if size > OUTSTANDING_BYTES_MAX:
            return None
        return fold(await fetch(c, "whole_history", run_id=item.run_id, ns=ns))

    async def history(self, ns: int, run_id: bytes, after: int, limit: int, bytes_max: int) -> list[ev.Recorded]:
        rows = await self._fetch("history_page", run_id=run_id, ns=ns, after=after, limit=limit, bytes_max=bytes_max)
        found = [r for row in rows for r in decode_row(row["seq"], row["at"], row["body"]) if r.seq > after]
        return found[:limit]

    async def tasks(self, ns: int, run_id: bytes, statuses: frozenset[int], after: int, limit: int) -> TaskPage | None:
        async with self._snapshot() as c:
            run = await self._run(c, ns, run_id)
            if run is None:
                return None
            item, _, outstanding = run
            waiting = _waiting(item, outstanding)
            if statuses or (outstanding is None and item.status not in RUN_TERMINAL):
                found = await self._tasks_by_status(c, ns, run_id, statuses, after, limit + 1, waiting)
            else:
                found = await self._tasks_by_number(c, ns, run_id, after, limit + 1, waiting)
            page = await with_segments(c, ns, item, found[:limit])
        return TaskPage(page, page[-1].seq if len(found) > limit else None)

    async def tasks_of_node(self, ns: int, run_id: bytes, wanted: ListTasks, limit: int) -> TaskPage | None:
        async with self._snapshot() as c:
            run = await self._run(c, ns, run_id)
            if run is None:
                return None
            found = await node_tasks(c, ns, run[0], _waiting(run[0], run[2]), wanted, limit)
            return msgspec.structs.replace(found, items=await with_segments(c, ns, run[0], found.items))

    async def _tasks_by_number(
        self, c: Any, ns: int, run_id: bytes, after: int, limit: int, waiting: dict[int, TaskItem]
    ) -> list[TaskItem]:
        """Tasks are numbered without gaps and their ids follow from their numbers: a page costs what it shows."""
        wanted = [ids.derive(run_id, ids.TASK, seq) for seq in range(after + 1, after + 1 + limit)]
        ended = await fetch(c, "ended_tasks", ids=wanted, run_id=run_id, ns=ns)
        queued = await fetch(c, "queued_tasks", ids=wanted, run_id=run_id, ns=ns)
        window = {s: t for s, t in waiting.items() if after < s <= after + limit}
        return _joined(ended, queued, window)

    async def _tasks_by_status(
        self,
        c: Any,
        ns: int,
        run_id: bytes,
        statuses: frozenset[int],
        after: int,
        limit: int,
        waiting: dict[int, TaskItem],
    ) -> list[TaskItem]:
        low, high = ids.task_range(run_id)
        wanted = sorted(statuses or (int(s) for s in TaskStatus))
        words = [TaskStatus(s).word for s in wanted]
        ended = await fetch(
            c,
            "ended_tasks_by_status",
            low=low,
            high=high,
            run_id=run_id,
            ns=ns,
            after=after,
            statuses=words,
            limit=limit,
        )
        queued = await fetch(
            c, "queued_tasks_by_status", run_id=run_id, ns=ns, after=after, statuses=words, limit=limit
        )
        left = sorted(s for s, t in waiting.items() if s > after and t.status in wanted)
        unwritten: dict[int, TaskItem] = {}
        while left and len(unwritten) < limit:  # those that have a row are known better by it
            some, left = left[:limit], left[limit:]
            rows = await fetch(c, "queued_tasks", ids=[waiting[s].id for s in some], run_id=run_id, ns=ns)
            unwritten |= {s: waiting[s] for s in set(some) - {r["seq"] for r in rows}}
        return _joined(ended, queued, unwritten)[:limit]

    async def tasks_named(self, ns: int, run_id: bytes, name: str, limit: int) -> list[int]:
        low, high = ids.task_range(run_id)
        rows = await self._fetch("tasks_named", low=low, high=high, run_id=run_id, ns=ns, name=name, limit=limit)
        found = {r["seq"] for r in rows}
        async with self._snapshot() as c:
            run = await self._run(c, ns, run_id)
        outstanding = run[2] if run is not None else None
        if outstanding is not None:
            found.update(
                s for s, (task, _, _, node) in outstanding.tasks.items() if name in (task, node, node.partition("[")[0])
            )
        return sorted(found)[:limit]

    async def logs(
        self, ns: int, run_id: bytes, after: LogPosition | None, limit: int, newest: bool = False
    ) -> LogPage:
        query = "run_logs_newest" if newest else "run_logs"
        return await self._lines(query, ns, run_id, after, limit, newest)

    async def task_logs(
        self,
        ns: int,
        run_id: bytes,
        seqs: Sequence[int],
        attempt: int | None,
        after: LogPosition | None,
        limit: int,
        newest: bool = False,
    ) -> LogPage:
        query = "task_logs_newest" if newest else "task_logs"
        return await self._lines(query, ns, run_id, after, limit, newest, seqs=list(seqs), attempt=attempt)

    async def _lines(
        self, query: str, ns: int, run_id: bytes, after: LogPosition | None, limit: int, newest: bool, **more: Any
    ) -> LogPage:
        found: list[tuple[LogPosition, LogLine]] = []
        place = after or (_LAST_LINE if newest else _FIRST_LINE)
        async with self._snapshot() as c:
            while len(found) <= limit:
                rows = await fetch(
                    c,
                    query,
                    run_id=run_id,
                    ns=ns,
                    after_at=place.at_us,
                    after_seq=place.seq,
                    after_attempt=place.attempt,
                    after_n=place.n,
                    limit=LOG_CHUNKS,
                    **more,
                )
                found += [line for r in rows for line in _lines_from(r, place, newest)]
                if len(rows) < LOG_CHUNKS:
                    break
                edge = -1 if newest else _LAST_LINE.line
                place = LogPosition(rows[-1]["at"], rows[-1]["seq"], rows[-1]["attempt"], rows[-1]["n"], edge)
            page = found[:limit]
            names = await self._names(c, ns, run_id, {p.seq for p, _ in page if p.seq >= 0})
        items: list[LogItem] = []
        for p, line in page:
            name, node = names.get(p.seq, ("", ""))
            items.append(LogItem(p.seq, name, p.attempt, p, line, node))
        return LogPage(items, page[-1][0] if len(found) > limit else None)

    async def _names(self, c: Any, ns: int, run_id: bytes, seqs: set[int]) -> dict[int, tuple[str, str]]:
        """Of tasks: their names, and their nodes in a flow."""
        if not seqs:
            return {}
        wanted = [ids.derive(run_id, ids.TASK, s) for s in seqs]
        rows = [
            *await fetch(c, "ended_tasks", ids=wanted, run_id=run_id, ns=ns),
            *await fetch(c, "queued_tasks", ids=wanted, run_id=run_id, ns=ns),
        ]
        names = {r["seq"]: (r["name"], r["node"] or "") for r in rows}
        if len(names) < len(seqs):
            run = await self._run(c, ns, run_id)
            if run is not None and (out := run[2]) is not None:
                names |= {s: (out.tasks[s][0], out.tasks[s][3]) for s in seqs if s in out.tasks}
        return names

    async def attempts(
        self,
        ns: int,
        run_id: bytes,
        seqs: Sequence[int] | None,
        unsuccessful: bool,
        after: AttemptPosition | None,
        limit: int,
    ) -> AttemptPage:
        async with self._snapshot() as c:
            return await read_attempts(c, ns, run_id, seqs, unsuccessful, after, limit)

    async def workflows(self, ns: int, q: str, after: str, limit: int) -> list[WorkflowItem]:
        rows = await self._fetch(
            "list_workflows", ns=ns, text=q.lower() or None, after=after, limit=limit, count_max=RUNS_COUNTED_MAX
        )
        return [_workflow_item(r) for r in rows]

    async def workflow(self, ns: int, name: str) -> WorkflowItem | None:
        row = await self._row("get_workflow", ns=ns, name=name, count_max=RUNS_COUNTED_MAX)
        return _workflow_item(row) if row is not None else None

    async def workflow_names(self, ns: int) -> list[str]:
        return [r["name"] for r in await self._fetch("workflow_names", ns=ns, limit=NAMES_MAX)]

    async def versions(self, ns: int, name: str, limit: int) -> list[VersionItem]:
        return [
            VersionItem(version=r["version"], kind=r["kind"], registered_us=r["registered_at"], current=r["current"])
            for r in await self._fetch("list_versions", ns=ns, workflow=name, limit=limit)
        ]

    async def subscriptions(self, ns: int, name: str, version: str) -> str:
        rows = await self._fetch("get_subscriptions", ns=ns, workflow=name, version=version)
        return rows[0]["subscriptions"] or "" if rows else ""

    async def definition(self, ns: int, name: str, version: str) -> Definition | None:
        rows = await self._fetch("get_definition", ns=ns, workflow=name, version=version)
        if not rows:
            return None
        r = rows[0]
        return Definition(
            version=r["version"],
            kind=r["kind"],
            document=(r["document"] or "").encode(),
            source=r["source"] or "",
            registered_us=r["registered_at"],
        )

    async def queues(self, ns: int) -> list[QueueItem]:
        async with self._snapshot() as c:
            waiting = await fetch(c, "waiting_tasks", ns=ns, limit=QUEUES_MAX, count_max=QUEUE_COUNT_MAX)
            held = await fetch(c, "held_tasks", ns=ns)
            memory = await fetch(c, "backlog_tasks", ns=ns, limit=QUEUES_MAX)
            workers = await fetch(c, "list_workers", ns=ns, after=LOWEST, limit=SCAN_ROWS_MAX)
        pending = {(r["queue"], r["name"]): (r["pending"], r["age_s"]) for r in waiting}
        running = {(r["queue"], r["name"]): r["running"] for r in held}
        for r in memory:
            kind = r["queue"], r["name"]
            count, age_s = pending.get(kind, (0, None))
            if r["waiting"]:
                pending[kind] = count + r["waiting"], max(age_s or 0.0, r["age_s"] or 0.0)
            running[kind] = running.get(kind, 0) + r["running"]
        out: list[QueueItem] = []
        for queue, task in sorted(pending.keys() | running.keys())[:QUEUES_MAX]:
            count, age_s = pending.get((queue, task), (0, None))
            serving = sum(queue in w["queues"] and task in w["tasks"] for w in workers)
            out.append(
                QueueItem(
                    queue=queue,
                    task=task,
                    pending=count,
                    running=running.get((queue, task), 0),
                    oldest_age_s=None if age_s is None else max(age_s, 0.0),
                    workers=serving,
                )
            )
        return out

    async def namespaces(self, after: str, limit: int) -> list[NamespaceItem]:
        rows = await self._fetch("list_namespaces", after=after, limit=limit)
        return [NamespaceItem(name=r["name"], created_us=r["created_at"]) for r in rows]


def _unwritten(item: RunItem) -> int:
    """A task without a row is in the memory of the engine that owns its run, or will be scheduled by the next owner."""
    return TaskStatus.DISPATCHED if item.owned else TaskStatus.PENDING


def _waiting(item: RunItem, outstanding: Outstanding | None) -> dict[int, TaskItem]:
    if outstanding is None:
        return {}
    status = _unwritten(item)
    return {
        seq: TaskItem(
            id=ids.derive(item.run_id, ids.TASK, seq),
            seq=seq,
            name=name,
            queue=queue,
            status=status,
            attempts=0,
            lost=0,
            scheduled_us=at_us,
            node=node or None,
        )
        for seq, (name, queue, at_us, node) in outstanding.tasks.items()
    }


def _joined(ended: list[Any], queued: list[Any], waiting: dict[int, TaskItem]) -> list[TaskItem]:
    found = {r["seq"]: ended_task(r) for r in ended} | waiting | {r["seq"]: queued_task(r) for r in queued}
    return [found[seq] for seq in sorted(found)]


def fold(rows: Sequence[Any]) -> Outstanding | None:
    """What a history leaves open. None for one that this version does not understand."""
    state = RunState()
    scheduled: dict[int, int] = {}
    try:
        for row in rows:
            for record in decode_row(row["seq"], row["at"], row["body"]):
                state.apply(record.event)
                if isinstance(record.event, ev.TasksScheduled):
                    first = record.event.first
                    scheduled.update(dict.fromkeys(range(first, first + len(record.event.inputs)), record.at_us))
    except IllegalTransition:
        return None
    return Outstanding(
        tasks={seq: (e.name, e.queue, scheduled[seq], ev.label(e, seq)) for seq, e in state.tasks.items()},
        timer_us=min(state.timers.values(), default=None),
        children=len(state.children),
        promises=sorted(created.name for created in state.open_promises()),
        cancel_requested=state.cancel_requested,
        waits=reasons.of_run(state),
    )


async def _unread(c: Any, ns: int, run_id: bytes) -> list[UnreadMessage]:
    """Pending messages, and those that were set aside."""
    where: dict[str, Any] = {"run_id": run_id, "ns": ns, "limit": UNREAD_SHOWN_MAX}
    aside = await fetch(c, "set_aside_messages", **where)
    pending = await fetch(c, "pending_messages", **where)
    return [UnreadMessage(r["kind"], r["name"] or "", r["at"], r["reason"]) for r in aside] + [
        UnreadMessage(r["kind"], r["name"] or "", r["at"]) for r in pending
    ]


def _lines_from(r: Any, place: LogPosition, newest: bool) -> list[tuple[LogPosition, LogLine]]:
    """Lines of a chunk behind a position; for `newest`, those before it, the last first."""
    lines = [
        (LogPosition(r["at"], r["seq"], r["attempt"], r["n"], i), line)
        for i, line in enumerate(_lines.decode(r["body"]))
    ]
    at = msgspec.structs.astuple(place)
    if newest:
        return [line for line in reversed(lines) if msgspec.structs.astuple(line[0]) < at]
    return [line for line in lines if msgspec.structs.astuple(line[0]) > at]


def _workflow_item(r: Any) -> WorkflowItem:
    return WorkflowItem(
        name=r["name"],
        kind=r["kind"],
        current=r["current"],
        description=r["description"],
        versions=r["versions"],
        created_us=r["created_at"],
        deleted_us=r["deleted_at"],
        runs_active=r["runs_active"],
    )
