"""The Reads port on PostgreSQL.

It has connections of its own, so that a long list never stands in the way of an engine, and they plan every call anew: a filter that is
not given drops out of the plan, and a filter that is given picks its index.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from perdure.core import events as ev
from perdure.core import ids
from perdure.core import wait_reasons as why_core
from perdure.core.api.admin import NamespaceItem
from perdure.core.api.cluster import QueueItem, WorkerItem
from perdure.core.api.definitions import Definition, VersionItem, WorkflowItem
from perdure.core.api.runs import (
    LogItem,
    LogPage,
    LogPosition,
    Outstanding,
    RunDetail,
    RunFilter,
    RunItem,
    RunPage,
    TaskItem,
    TaskPage,
)
from perdure.core.durations import FOREVER_US
from perdure.core.errors import IllegalTransition
from perdure.core.lifecycle import RUN_TERMINAL, RunStatus, TaskStatus
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
)
from perdure.store import wait_reasons
from perdure.store.clashes import retried
from perdure.store.connections import Connections
from perdure.store.queries import queries
from perdure.wire.codec import decode_row

READ_SETTINGS: Final = {
    "plan_cache_mode": "force_custom_plan",
    "statement_timeout": "20s",
    # A list that sorts has read everything: the index that has the order is always the better one, whatever statistics say.
    "enable_sort": "off",
    "enable_incremental_sort": "off",
}
LOG_CHUNKS: Final = 200
"""Chunks of log lines fetched at a time."""
DAY_MS: Final = 86_400_000
LOWEST: Final = bytes(16)
HIGHEST: Final = b"\xff" * 16
_BADLY: Final = frozenset({int(RunStatus.FAILED), int(RunStatus.CANCELLED)})
_ENDED: Final = frozenset(int(s) for s in RUN_TERMINAL)
_ACTIVE: Final = frozenset({int(RunStatus.PENDING), int(RunStatus.RUNNING)})
_UNENDED: Final = (int(TaskStatus.PENDING), int(TaskStatus.DISPATCHED), int(TaskStatus.RUNNING))
_lines = msgspec.json.Decoder(list[LogLine])


class _Source(msgspec.Struct, frozen=True):
    """What one statement found. Every match down to `horizon` is among the items; None: every match there is."""

    items: list[RunItem]
    horizon: bytes | None


@retried()
class PostgresReads:
    def __init__(self, database: str | Connections) -> None:
        """`database` is a DSN, or a pool that is opened and closed elsewhere."""
        self._q = queries()
        self._pool = Connections(database, READ_SETTINGS) if isinstance(database, str) else database

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    def shift_clock(self, seconds: float) -> None:
        """Tests only: let the database clock of these connections run ahead."""
        self._pool.clock_offset_s = seconds

    @asynccontextmanager
    async def _snapshot(self) -> AsyncGenerator[Any]:
        """Several statements that see the database at one moment: a run that ends meanwhile is neither missed nor seen twice."""
        async with self._pool.take() as c, c.transaction(isolation="repeatable_read", readonly=True):
            yield c

    async def _fetch(self, name: str, *args: Any) -> list[Any]:
        async with self._pool.take() as c:
            rows: list[Any] = await c.fetch(self._q[name], *args)
            return rows

    async def _row(self, name: str, *args: Any) -> Any:
        async with self._pool.take() as c:
            return await c.fetchrow(self._q[name], *args)

    # -- runs -------------------------------------------------------------------------------------------------------

    async def runs(self, ns: int, wanted: RunFilter, below: bytes | None, limit: int) -> RunPage:
        low, high = _bounds(wanted, below)
        if wanted.waiting_on:
            return await self._waiting(ns, wanted, low, high, limit)
        async with self._snapshot() as c:
            page = _merged([await self._list(c, s, ns, wanted, low, high, limit) for s in _walks(wanted)], limit)
            if wanted.attributes and len(page.items) < limit and page.next is not None:
                page = _merged(await self._by_attributes(c, ns, wanted, low, high, limit), limit)
        return page

    async def _waiting(self, ns: int, f: RunFilter, low: bytes, high: bytes, limit: int) -> RunPage:
        """Active runs that wait for one thing, each with all that it waits for."""
        async with self._snapshot() as c:
            found, floor = await wait_reasons.waiting_on(c, ns, f.waiting_on, low, high, limit + 1)
            rows = await c.fetch(self._q["run_items"], found[:limit], ns)
            items = [
                msgspec.structs.replace(
                    _run_item(r), waits=_asked(await wait_reasons.waits_of(c, ns, r["run_id"]), f.waiting_on)
                )
                for r in rows
                if not f.workflow or r["workflow"] == f.workflow
            ]
        if len(found) > limit:
            return RunPage(items, found[limit - 1])
        return RunPage(items, floor)

    async def _list(
        self, c: Any, walk: tuple[str, list[int] | None], ns: int, f: RunFilter, low: bytes, high: bytes, limit: int
    ) -> _Source:
        name, statuses = walk
        scan = SCAN_ROWS_MAX if _sifts(name, statuses, f) else limit + 1
        rows = await c.fetch(
            self._q[name], ns, low, high, statuses, f.workflow or None, [a.decode() for a in f.attributes] or None, f.text.lower() or None, scan, limit + 1
        )  # fmt: skip
        return _source(rows, scan, limit + 1)

    async def _by_attributes(self, c: Any, ns: int, f: RunFilter, low: bytes, high: bytes, limit: int) -> list[_Source]:
        """Rare attributes: through their index, over windows of days that double until the page is full."""
        statuses = sorted(f.statuses)
        out: list[_Source] = []
        if not statuses or f.statuses & _ACTIVE:
            out.append(await self._list(c, ("list_active_by_attributes", statuses or None), ns, f, low, high, limit))
        if statuses and not f.statuses & _ENDED:
            return out
        tomorrow_ms = await c.fetchval(self._q["read_clock"]) // 1000 + DAY_MS
        top, days, items = high, 1, list[RunItem]()
        while True:
            newest_ms = min(ids.unix_ms_of(top), tomorrow_ms)
            floor = max(low, ids.lowest_at(max(newest_ms - days * DAY_MS, 0)).bytes)
            part = await self._list(c, ("list_ended_by_attributes", statuses or None), ns, f, floor, top, limit)
            items += part.items
            if part.horizon is not None:
                return [*out, _Source(items, part.horizon)]
            if floor <= low or len(items) > limit:
                return [*out, _Source(items, None if floor <= low else floor)]
            top, days = floor, days * 2

    async def find(self, ns: int, low: bytes, high: bytes, limit: int) -> list[bytes]:
        return [r["run_id"] for r in await self._fetch("find_runs", ns, low, high, limit)]

    async def newest(self, ns: int) -> bytes | None:
        row = await self._row("newest_run", ns)
        return row["run_id"] if row is not None else None

    async def detail(self, ns: int, run_id: bytes) -> RunDetail | None:
        async with self._snapshot() as c:
            row = await c.fetchrow(self._q["run_item"], run_id, ns)
            if row is None:
                return None
            item = _run_item(row)
            ends = await c.fetchrow(self._q["history_ends"], run_id, ns)
            counts = await self._counts(c, ns, run_id)
            outstanding = await self._outstanding(c, ns, item, ends["events"] if ends else 0)
            waits = await wait_reasons.waits_of(c, ns, run_id)
            if not waits and outstanding is not None:  # its engine has it in memory
                waits = why_core.ordered(outstanding.waits)
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
        )

    async def _counts(self, c: Any, ns: int, run_id: bytes) -> dict[int, int]:
        low, high = _task_range(run_id)
        ended = await c.fetch(self._q["count_ended_tasks"], low, high, run_id, ns, TASKS_COUNTED_MAX)
        queued = await c.fetch(self._q["count_queued_tasks"], run_id, ns, TASKS_COUNTED_MAX)
        counts = dict.fromkeys((int(s) for s in TaskStatus), 0)
        for r in (*ended, *queued):
            counts[r["status"]] += r["tasks"]
        return counts

    async def _outstanding(self, c: Any, ns: int, item: RunItem, events: int) -> Outstanding | None:
        if item.status in _ENDED or not 0 < events <= OUTSTANDING_EVENTS_MAX:
            return None
        size = await c.fetchval(self._q["history_size"], item.run_id, ns)
        if size > OUTSTANDING_BYTES_MAX:
            return None
        return fold(await c.fetch(self._q["whole_history"], item.run_id, ns))

    async def history(self, ns: int, run_id: bytes, after: int, limit: int, bytes_max: int) -> list[ev.Recorded]:
        rows = await self._fetch("history_page", run_id, ns, after, limit, bytes_max)
        found = [r for row in rows for r in decode_row(row["seq"], row["at"], row["body"]) if r.seq > after]
        return found[:limit]

    async def tasks(self, ns: int, run_id: bytes, statuses: frozenset[int], after: int, limit: int) -> TaskPage | None:
        async with self._snapshot() as c:
            row = await c.fetchrow(self._q["run_item"], run_id, ns)
            if row is None:
                return None
            item = _run_item(row)
            ends = await c.fetchrow(self._q["history_ends"], run_id, ns)
            outstanding = await self._outstanding(c, ns, item, ends["events"] if ends else 0)
            waiting = _waiting(item, outstanding)
            if statuses or (outstanding is None and item.status in _ACTIVE):
                found = await self._tasks_by_status(c, ns, run_id, statuses, after, limit + 1, waiting)
            else:
                found = await self._tasks_by_number(c, ns, run_id, after, limit + 1, waiting)
        page = found[:limit]
        return TaskPage(page, page[-1].seq if len(found) > limit else None)

    async def _tasks_by_number(
        self, c: Any, ns: int, run_id: bytes, after: int, limit: int, waiting: dict[int, TaskItem]
    ) -> list[TaskItem]:
        """Tasks are numbered without gaps and their ids follow from their numbers: a page costs what it shows."""
        wanted = [ids.derive(run_id, ids.TASK, seq) for seq in range(after + 1, after + 1 + limit)]
        ended = await c.fetch(self._q["ended_tasks"], wanted, run_id, ns)
        queued = await c.fetch(self._q["queued_tasks"], wanted, run_id, ns)
        window = {s: t for s, t in waiting.items() if after < s <= after + limit}
        return _joined(ended, queued, window)

    async def _tasks_by_status(
        self, c: Any, ns: int, run_id: bytes, statuses: frozenset[int], after: int, limit: int, waiting: dict[int, TaskItem]
    ) -> list[TaskItem]:  # fmt: skip
        low, high = _task_range(run_id)
        wanted = sorted(statuses or (int(s) for s in TaskStatus))
        ended = await c.fetch(self._q["ended_tasks_by_status"], low, high, run_id, ns, after, wanted, limit)
        queued = await c.fetch(self._q["queued_tasks_by_status"], run_id, ns, after, wanted, limit)
        left = sorted(s for s, t in waiting.items() if s > after and t.status in wanted)
        unwritten: dict[int, TaskItem] = {}
        while left and len(unwritten) < limit:  # those that have a row are known better by it
            some, left = left[:limit], left[limit:]
            rows = await c.fetch(self._q["queued_tasks"], [waiting[s].id for s in some], run_id, ns)
            unwritten |= {s: waiting[s] for s in set(some) - {r["seq"] for r in rows}}
        return _joined(ended, queued, unwritten)[:limit]

    async def tasks_named(self, ns: int, run_id: bytes, name: str, limit: int) -> list[int]:
        low, high = _task_range(run_id)
        rows = await self._fetch("tasks_named", low, high, run_id, ns, name, limit)
        found = {r["seq"] for r in rows}
        async with self._snapshot() as c:
            row = await c.fetchrow(self._q["run_item"], run_id, ns)
            ends = await c.fetchrow(self._q["history_ends"], run_id, ns)
            outstanding = await self._outstanding(c, ns, _run_item(row), ends["events"]) if row and ends else None
        if outstanding is not None:
            found.update(
                s for s, (task, _, _, node) in outstanding.tasks.items() if name in (task, node, node.partition("[")[0])
            )
        return sorted(found)[:limit]

    # -- logs -------------------------------------------------------------------------------------------------------

    async def logs(self, ns: int, run_id: bytes, after: LogPosition | None, limit: int) -> LogPage:
        return await self._lines("run_logs", ns, run_id, after, limit)

    async def task_logs(
        self, ns: int, run_id: bytes, seqs: Sequence[int], attempt: int | None, after: LogPosition | None, limit: int
    ) -> LogPage:
        return await self._lines("task_logs", ns, run_id, after, limit, list(seqs), attempt)

    async def _lines(
        self, query: str, ns: int, run_id: bytes, after: LogPosition | None, limit: int, *more: Any
    ) -> LogPage:
        found: list[tuple[LogPosition, LogLine]] = []
        place = after or LogPosition(0, -1, 0, 0, -1)
        async with self._snapshot() as c:
            while len(found) <= limit:
                rows = await c.fetch(
                    self._q[query], run_id, ns, place.at_us, place.seq, place.attempt, place.n, LOG_CHUNKS, *more
                )
                fresh = [line for r in rows for line in _lines_of(r) if msgspec.structs.astuple(line[0]) > msgspec.structs.astuple(place)]  # fmt: skip
                found += fresh
                if len(rows) < LOG_CHUNKS:
                    break
                place = LogPosition(rows[-1]["at"], rows[-1]["seq"], rows[-1]["attempt"], rows[-1]["n"], 1 << 30)
            page = found[:limit]
            names = await self._names(c, ns, run_id, {p.seq for p, _ in page if p.seq >= 0})
        items = [LogItem(p.seq, names.get(p.seq, ""), p.attempt, p, line) for p, line in page]
        return LogPage(items, page[-1][0] if len(found) > limit else None)

    async def _names(self, c: Any, ns: int, run_id: bytes, seqs: set[int]) -> dict[int, str]:
        if not seqs:
            return {}
        wanted = [ids.derive(run_id, ids.TASK, s) for s in seqs]
        rows = [
            *await c.fetch(self._q["ended_tasks"], wanted, run_id, ns),
            *await c.fetch(self._q["queued_tasks"], wanted, run_id, ns),
        ]
        names = {r["seq"]: r["name"] for r in rows}
        if len(names) < len(seqs):
            row = await c.fetchrow(self._q["run_item"], run_id, ns)
            ends = await c.fetchrow(self._q["history_ends"], run_id, ns)
            out = await self._outstanding(c, ns, _run_item(row), ends["events"]) if row and ends else None
            if out is not None:
                names |= {s: out.tasks[s][0] for s in seqs if s in out.tasks}
        return names

    # -- the rest ---------------------------------------------------------------------------------------------------

    async def workflows(self, ns: int, q: str, after: str, limit: int) -> list[WorkflowItem]:
        rows = await self._fetch("list_workflows", ns, q.lower() or None, after, limit, RUNS_COUNTED_MAX)
        return [_workflow_item(r) for r in rows]

    async def workflow(self, ns: int, name: str) -> WorkflowItem | None:
        row = await self._row("get_workflow", ns, name, RUNS_COUNTED_MAX)
        return _workflow_item(row) if row is not None else None

    async def workflow_names(self, ns: int) -> list[str]:
        return [r["name"] for r in await self._fetch("workflow_names", ns, NAMES_MAX)]

    async def versions(self, ns: int, name: str, limit: int) -> list[VersionItem]:
        return [
            VersionItem(version=r["version"], kind=r["kind"], registered_us=r["registered_at"], current=r["current"])
            for r in await self._fetch("list_versions", ns, name, limit)
        ]

    async def definition(self, ns: int, name: str, version: str) -> Definition | None:
        rows = await self._fetch("get_definition", ns, name, version)
        if not rows:
            return None
        r = rows[0]
        return Definition(
            version=r["version"], kind=r["kind"], document=(r["document"] or "").encode(), source=r["source"] or "",
            registered_us=r["registered_at"],
        )  # fmt: skip

    async def workers(self, ns: int, after: bytes, limit: int) -> list[WorkerItem]:
        return [
            WorkerItem(
                id=r["id"], name=r["name"], host=r["host"], pid=r["pid"], sdk=r["sdk"], queues=r["queues"], tasks=r["tasks"],
                workflows=r["workflows"], slots=r["slots"], slots_used=r["slots_used"], runs_held=r["runs_held"], draining=r["draining"],
                connected_us=r["connected_at"], seen_us=r["seen_at"], blocked=r["blocked"], engine=r["engine"],
            )
            for r in await self._fetch("list_workers", ns, after, limit)
        ]  # fmt: skip

    async def queues(self, ns: int) -> list[QueueItem]:
        async with self._snapshot() as c:
            waiting = await c.fetch(self._q["waiting_tasks"], ns, QUEUES_MAX, QUEUE_COUNT_MAX)
            held = await c.fetch(self._q["held_tasks"], ns)
            workers = await c.fetch(self._q["list_workers"], ns, LOWEST, SCAN_ROWS_MAX)
        pending = {(r["queue"], r["name"]): (r["pending"], r["age_s"]) for r in waiting}
        running = {(r["queue"], r["name"]): r["running"] for r in held}
        out: list[QueueItem] = []
        for queue, task in sorted(pending.keys() | running.keys())[:QUEUES_MAX]:
            count, age_s = pending.get((queue, task), (0, None))
            serving = sum(queue in w["queues"] and task in w["tasks"] for w in workers)
            out.append(
                QueueItem(
                    queue=queue, task=task, pending=count, running=running.get((queue, task), 0),
                    oldest_age_s=None if age_s is None else max(age_s, 0.0), workers=serving,
                )
            )  # fmt: skip
        return out

    async def namespaces(self, after: str, limit: int) -> list[NamespaceItem]:
        rows = await self._fetch("list_namespaces", after, limit)
        return [NamespaceItem(name=r["name"], created_us=r["created_at"]) for r in rows]

    # -- following --------------------------------------------------------------------------------------------------

    async def created_since(self, ns: int, above: bytes, limit: int) -> list[RunItem]:
        """Active runs above an id, oldest first."""
        return [_run_item(r) for r in await self._fetch("created_since", ns, above, limit)]

    async def ended_since(self, ns: int, from_us: int, above: bytes, limit: int) -> list[RunItem]:
        """Runs that ended after (moment, id), in that order."""
        return [_run_item(r) for r in await self._fetch("ended_since", ns, from_us, above, limit)]

    async def clock_us(self) -> int:
        row = await self._row("read_clock")
        us: int = row["clock"]
        return us


# -- pure ------------------------------------------------------------------------------------------------------------


def _bounds(f: RunFilter, below: bytes | None) -> tuple[bytes, bytes]:
    """Ids open with their millisecond: a time filter is a range of ids. A moment inside a millisecond takes all of it."""
    low = ids.lowest_at(_ms(f.since_us)).bytes if f.since_us is not None else LOWEST
    high = ids.lowest_at(_ms(f.until_us + 999)).bytes if f.until_us is not None else HIGHEST
    return low, min(high, below) if below is not None else high


def _ms(us: int) -> int:
    return min(max(us // 1000, 0), (1 << 48) - 1)


def _walks(f: RunFilter) -> list[tuple[str, list[int] | None]]:
    """Which statements find the matches, each with the statuses it is asked for."""
    statuses = f.statuses
    out: list[tuple[str, list[int] | None]] = []
    if not statuses or statuses & _ACTIVE:
        out.append(("list_active", sorted(statuses & _ACTIVE) if statuses else None))
    ended = statuses & _ENDED
    if statuses and not ended:
        return out
    if ended and ended <= _BADLY:
        out.extend(("list_ended_badly", [s]) for s in sorted(ended))
    elif f.workflow:
        out.append(("list_ended_of_workflow", sorted(ended) or None))
    else:
        out.append(("list_ended", sorted(ended) or None))
    return out


def _sifts(name: str, statuses: list[int] | None, f: RunFilter) -> bool:
    """Whether some of the rows that a statement walks over may not match."""
    if f.text or f.attributes:
        return True
    by_workflow, by_status = name == "list_ended_of_workflow", name == "list_ended_badly"
    return bool((f.workflow and not by_workflow) or (statuses and not by_status))


def _source(rows: list[Any], scan: int, limit: int) -> _Source:
    items = [_run_item(r) for r in rows if r["run_id"] is not None]
    if len(items) >= limit:
        return _Source(items, items[-1].run_id)
    return _Source(items, rows[0]["floor"] if rows[0]["scanned"] >= scan else None)


def _merged(sources: list[_Source], limit: int) -> RunPage:
    """The newest of all sources, as far down as every one of them can answer for."""
    horizon = max((s.horizon for s in sources if s.horizon is not None), default=None)
    known = {i.run_id: i for s in sources for i in s.items if horizon is None or i.run_id >= horizon}
    items = sorted(known.values(), key=lambda i: i.run_id, reverse=True)
    if len(items) > limit:
        return RunPage(items[:limit], items[limit - 1].run_id)
    return RunPage(items, horizon)


def _run_item(r: Any) -> RunItem:
    return RunItem(
        run_id=r["run_id"], workflow=r["workflow"], version=r["version"], key=r["key"], status=r["status"], created_us=r["created_at"],
        finished_us=r["finished_at"], attributes=(r["attributes"] or "").encode(), error_code=r["error_code"], error=r["error"], stuck=r["stuck"],
        wake_us=None if r["wake_at"] in (None, FOREVER_US) else r["wake_at"], owned=r["owned"], epoch=r["epoch"], events=r["events"],
        parent_id=r["parent_id"], successor=r["successor"], waits=why_core.decode(r["waits"]),
    )  # fmt: skip


def _asked(waits: list[why_core.Wait] | None, on: str) -> list[why_core.Wait]:
    """What was asked for comes first."""
    return sorted(waits or [], key=lambda w: w.on != on)


def _task_range(run_id: bytes) -> tuple[bytes, bytes]:
    return run_id[:8] + bytes(8), run_id[:8] + b"\xff" * 8


def _unwritten(item: RunItem) -> int:
    """A task without a row is in the memory of the engine that owns its run, or will be scheduled by the next owner."""
    return TaskStatus.DISPATCHED if item.owned else TaskStatus.PENDING


def _waiting(item: RunItem, outstanding: Outstanding | None) -> dict[int, TaskItem]:
    if outstanding is None:
        return {}
    status = _unwritten(item)
    return {
        seq: TaskItem(
            id=ids.derive(item.run_id, ids.TASK, seq), seq=seq, name=name, queue=queue, status=status, attempts=0, lost=0, scheduled_us=at_us,
            node=node or None,
        )
        for seq, (name, queue, at_us, node) in outstanding.tasks.items()
    }  # fmt: skip


def _joined(ended: list[Any], queued: list[Any], waiting: dict[int, TaskItem]) -> list[TaskItem]:
    found = {r["seq"]: _ended_task(r) for r in ended} | waiting | {r["seq"]: _queued_task(r) for r in queued}
    return [found[seq] for seq in sorted(found)]


def _ended_task(r: Any) -> TaskItem:
    return TaskItem(
        id=r["id"], seq=r["seq"], name=r["name"], queue=r["queue"], status=r["status"], attempts=r["attempts"], lost=r["lost"],
        scheduled_us=r["scheduled_at"], started_us=r["started_at"], finished_us=r["finished_at"], error=r["error"], node=r["node"],
    )  # fmt: skip


def _queued_task(r: Any) -> TaskItem:
    pending = r["status"] == TaskStatus.PENDING
    return TaskItem(
        id=r["id"], seq=r["seq"], name=r["name"], queue=r["queue"], status=r["status"], attempts=r["attempt"] - pending, lost=r["lost"],
        scheduled_us=r["scheduled_at"], started_us=None if pending else r["started_at"], run_at_us=r["run_at"] if pending else None,
        error=r["error"], worker=r["worker"], details=r["details"] or b"", blocked=r["blocked"], node=r["node"],
    )  # fmt: skip


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
        promises=sorted(state.promises.keys() - state.resolved),
        cancel_requested=state.cancel_requested,
        waits=why_core.of_run(state),
    )


def _lines_of(r: Any) -> list[tuple[LogPosition, LogLine]]:
    return [
        (LogPosition(r["at"], r["seq"], r["attempt"], r["n"], i), line)
        for i, line in enumerate(_lines.decode(r["body"]))
    ]


def _workflow_item(r: Any) -> WorkflowItem:
    return WorkflowItem(
        name=r["name"], kind=r["kind"], current=r["current"], description=r["description"], versions=r["versions"],
        created_us=r["created_at"], deleted_us=r["deleted_at"], runs_active=r["runs_active"],
    )  # fmt: skip
