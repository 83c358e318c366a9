"""Lists of runs on PostgreSQL.

They have connections of their own, so that a long list never delays an engine. What is known of the matches of a query (Hints) picks the
statements, each of which walks an index; the query itself is a condition on the rows that they look at.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from perdure.core import ids
from perdure.core import wait_reasons as reasons
from perdure.core.api.runs import RunCount, RunItem, RunPage
from perdure.core.durations import FOREVER_US
from perdure.core.lifecycle import RunStatus
from perdure.core.run_query import Node
from perdure.engine.api.ports import RUN_COUNT_ROWS_MAX, SCAN_ROWS_MAX
from perdure.store import wait_reasons
from perdure.store.clashes import retried
from perdure.store.connections import Connections
from perdure.store.port import PostgresPort
from perdure.store.queries import bound_arguments, fetch, fetch_row, fetch_value, opened, queries
from perdure.store.run_query_sql import ACTIVE, ENDED, HIGHEST, Hints, QueryCondition, hints_of, is_answered_by
from perdure.store.words import run_status

READ_SETTINGS: Final = {
    "plan_cache_mode": "force_custom_plan",
    "statement_timeout": "20s",
    # A list that sorts has read everything: the index that has the order is always the better one, also against the statistics.
    "enable_sort": "off",
    "enable_incremental_sort": "off",
}
DAY_MS: Final = 86_400_000
WINDOW_DAYS: Final = 3
"""Days of ended runs that a list looks at first."""
WINDOW_GROWTH: Final = 4
"""How many times as many days it looks at next."""
WINDOW_DAYS_MAX: Final = 192
"""After so many at once a page ends, though there may be matches further back."""
ATTEMPTS_SEEN: Final = 200
"""Earlier attempts of a run that are looked at for a list."""
_COUNTS: Final = {
    "list_active": "count_active",
    "list_ended": "count_ended",
    "list_ended_of_workflow": "count_ended_of_workflow",
    "list_ended_badly": "count_ended_badly",
}
_BADLY: Final = frozenset({RunStatus.FAILED.word, RunStatus.CANCELLED.word})


class _Walk(NamedTuple):
    """A statement that finds matches, and which rows it looks at."""

    name: str
    statuses: frozenset[str]
    """Of the rows it looks at; empty: not known."""
    workflow: str | None
    arguments: dict[str, Any]

    def answers(self, query: Node, hints: Hints) -> bool:
        """Whether every row that it looks at matches."""
        return bool(self.statuses) and is_answered_by(
            query, workflow=self.workflow, statuses=self.statuses, low=hints.low, high=hints.high
        )


class _Source(msgspec.Struct, frozen=True):
    """What one statement found. Every match down to `horizon` is among the items; None: every match there is."""

    items: list[RunItem]
    horizon: bytes | None


@retried()
class PostgresRunLists(PostgresPort):
    def __init__(self, database: str | Connections) -> None:
        """`database` is a DSN, for a pool of its own that commits do not compete for, or a pool shared with other ports."""
        super().__init__(Connections(database, READ_SETTINGS) if isinstance(database, str) else database)

    def shift_clock(self, seconds: float) -> None:
        """Tests only: let the database clock of these connections run ahead."""
        self._pool.clock_offset_s = seconds

    @asynccontextmanager
    async def _snapshot(self) -> AsyncGenerator[Any]:
        """Several statements that see the database at one moment: a run that ends meanwhile is neither missed nor seen twice."""
        async with self._pool.take() as c, c.transaction(isolation="repeatable_read", readonly=True):
            yield c

    async def runs(
        self, ns: int, query: Node, below: bytes | None, limit: int, waiting_on: str = "", *, with_waits: bool = False
    ) -> RunPage:
        hints = hints_of(query)
        if below is not None:
            hints = replace(hints, high=min(hints.high, below))
        if waiting_on:
            return await self._waiting(ns, query, waiting_on, hints, limit)
        async with self._snapshot() as c:
            page = _merged([await self._walked(c, w, ns, query, hints, limit) for w in _walks(hints)], limit)
            if hints.attributes and len(page.items) < limit and page.next is not None:
                page = _merged(await self._by_attributes(c, ns, query, hints, limit), limit)
            if with_waits and page.items:
                page = RunPage(await _with_waits(c, ns, page.items), page.next)
        return page

    async def count_runs(self, ns: int, query: Node, waiting_on: str = "") -> RunCount:
        hints = hints_of(query)
        async with self._snapshot() as c:
            if waiting_on:
                found, floor = await wait_reasons.waiting_on(
                    c, ns, waiting_on, hints.low, hints.high, RUN_COUNT_ROWS_MAX
                )
                rows = await fetch_matching(c, "matching_run_ids", query, run_ids=found, ns=ns)
                return RunCount(len(rows), floor is None and len(found) < RUN_COUNT_ROWS_MAX)
            count, exact = 0, True
            for walk in _walks(hints):
                matched, is_all = await self._count(c, walk, ns, query, hints)
                count, exact = count + matched, exact and is_all
        return RunCount(count, exact)

    async def _count(self, c: Any, walk: _Walk, ns: int, query: Node, hints: Hints) -> tuple[int, bool]:
        """How many match, and whether these are all."""
        matched, left, reached = 0, RUN_COUNT_ROWS_MAX, hints.high
        for window in await _windows(c, walk, hints):
            reached = window.low
            [row] = await fetch_matching(
                c,
                _COUNTS[walk.name],
                query,
                ns=ns,
                low=window.low,
                high=window.high,
                scan_limit=left,
                **walk.arguments,
            )
            matched, left = matched + row["matched"], left - row["scanned"]
            if left <= 0:
                return matched, False
        return matched, reached == hints.low

    async def _waiting(self, ns: int, query: Node, on: str, hints: Hints, limit: int) -> RunPage:
        """Active runs with a given wait reason, each with all its wait reasons."""
        async with self._snapshot() as c:
            found, floor = await wait_reasons.waiting_on(c, ns, on, hints.low, hints.high, limit + 1)
            rows = await fetch_matching(c, "run_items", query, run_ids=found[:limit], ns=ns)
            waits = await wait_reasons.waits_of_runs(c, ns, [r["run_id"] for r in rows])
            items = [msgspec.structs.replace(run_item(r), waits=_asked(waits.get(r["run_id"]), on)) for r in rows]
        if len(found) > limit:
            return RunPage(items, found[limit - 1])
        return RunPage(items, floor)

    async def _list(self, c: Any, walk: _Walk, ns: int, query: Node, hints: Hints, limit: int) -> _Source:
        scan = limit + 1 if walk.answers(query, hints) else SCAN_ROWS_MAX
        rows = await fetch_matching(
            c,
            walk.name,
            query,
            ns=ns,
            low=hints.low,
            high=hints.high,
            scan_limit=scan,
            limit=limit + 1,
            **walk.arguments,
        )
        return _source(rows, scan, limit + 1)

    async def _walked(self, c: Any, walk: _Walk, ns: int, query: Node, hints: Hints, limit: int) -> _Source:
        """One window after the other until the page is full."""
        items, reached = list[RunItem](), hints.high
        for window in await _windows(c, walk, hints):
            reached = window.low
            part = await self._list(c, walk, ns, query, window, limit)
            items += part.items
            if part.horizon is not None:
                return _Source(items, part.horizon)
            if len(items) > limit:
                break
        return _Source(items, None if reached == hints.low else reached)

    async def _by_attributes(self, c: Any, ns: int, query: Node, hints: Hints, limit: int) -> list[_Source]:
        """Rare attributes: through their index, over windows of days that double until the page is full."""
        given = {"attributes": list(hints.attributes)}
        out: list[_Source] = []
        if hints.statuses & ACTIVE:
            walk = _Walk("list_active_by_attributes", frozenset(), None, given)
            out.append(await self._list(c, walk, ns, query, hints, limit))
        if not hints.statuses & ENDED:
            return out
        tomorrow_ms = await fetch_value(c, "read_clock") // 1000 + DAY_MS
        top, days, items = hints.high, 1, list[RunItem]()
        while True:
            newest_ms = min(ids.unix_ms_of(top), tomorrow_ms)
            floor = max(hints.low, ids.lowest_at(max(newest_ms - days * DAY_MS, 0)).bytes)
            window = replace(hints, low=floor, high=top)
            part = await self._list(
                c, _Walk("list_ended_by_attributes", frozenset(), None, given), ns, query, window, limit
            )
            items += part.items
            if part.horizon is not None:
                return [*out, _Source(items, part.horizon)]
            if floor <= hints.low or len(items) > limit:
                return [*out, _Source(items, None if floor <= hints.low else floor)]
            top, days = floor, days * 2

    async def matching(self, ns: int, query: Node, run_ids: Sequence[bytes]) -> list[RunItem]:
        async with self._snapshot() as c:
            return [run_item(r) for r in await fetch_matching(c, "matching_runs", query, run_ids=list(run_ids), ns=ns)]

    async def find(self, ns: int, low: bytes, high: bytes, limit: int) -> list[bytes]:
        return [r["run_id"] for r in await self._fetch("find_runs", ns=ns, low=low, high=high, limit=limit)]

    async def newest(self, ns: int) -> bytes | None:
        row = await self._row("newest_run", ns=ns)
        return row["run_id"] if row is not None else None

    async def children(self, ns: int, run_id: bytes, below: bytes | None, limit: int) -> RunPage:
        rows = await self._fetch("list_children", ns=ns, run_id=run_id, below=below or b"\xff" * 16, limit=limit + 1)
        items = [run_item(r) for r in rows[:limit]]
        return RunPage(items, items[-1].run_id if len(rows) > limit else None)

    async def created_since(self, ns: int, above: bytes, limit: int) -> list[RunItem]:
        """Active runs above an id, oldest first."""
        return [run_item(r) for r in await self._fetch("created_since", ns=ns, after_run_id=above, limit=limit)]

    async def ended_since(self, ns: int, from_us: int, above: bytes, limit: int) -> list[RunItem]:
        """Runs that ended after (moment, id), in that order."""
        return [
            run_item(r)
            for r in await self._fetch("ended_since", ns=ns, after_at=from_us, after_run_id=above, limit=limit)
        ]

    async def clock_us(self) -> int:
        row = await self._row("read_clock")
        us: int = row["clock"]
        return us


async def _with_waits(c: Any, ns: int, items: list[RunItem]) -> list[RunItem]:
    active = [i.run_id for i in items if i.finished_us is None]
    waits = await wait_reasons.waits_of_runs(c, ns, active)
    rows = await fetch(c, "most_attempts", run_ids=[i.run_id for i in items], ns=ns, limit=ATTEMPTS_SEEN)
    attempts = {r["run_id"]: r["attempts"] for r in rows}
    return [msgspec.structs.replace(i, waits=waits.get(i.run_id, []), attempts=attempts.get(i.run_id)) for i in items]


async def fetch_matching(c: Any, name: str, query: Node, /, **args: Any) -> list[Any]:
    """The rows of a statement with a condition, see sql/lists.sql."""
    statement = queries()[name]
    bound = bound_arguments(c, statement, args)
    condition = QueryCondition(query, len(bound) + 1)
    sql = statement.sql.replace("/*query*/", f"and {condition.sql}")
    return await opened(c, statement, await c.fetch(sql, *bound, *condition.parameters), args)


async def _windows(c: Any, walk: _Walk, hints: Hints) -> list[Hints]:
    """The range of ids in windows of days, newest first, each longer than the one before. To plan a statement about ended runs takes time
    for each day that it may look at, whether there are matches or not."""
    if walk.statuses == ACTIVE:
        return [hints]
    known = await fetch_row(c, "run_days")
    oldest, top, days = max(hints.low, _first_of(known["oldest"])), hints.high, WINDOW_DAYS
    newest_ms = min(ids.unix_ms_of(top), known["clock"] // 1000 + DAY_MS)
    windows: list[Hints] = []
    while True:
        newest_ms -= days * DAY_MS
        floor = ids.lowest_at(max(newest_ms, 0)).bytes
        if floor <= oldest:
            return [*windows, replace(hints, high=top)]
        windows.append(replace(hints, low=floor, high=top))
        if days >= WINDOW_DAYS_MAX:
            return windows
        top, days = floor, days * WINDOW_GROWTH


def _first_of(partition: str | None) -> bytes:
    """The first id of a partition by its name; of none: the last there is, for nothing is below the default partition."""
    if partition is None:
        return HIGHEST
    day = datetime.strptime(partition.removeprefix("run_p"), "%Y%m%d").replace(tzinfo=UTC)
    return ids.lowest_at(int(day.timestamp() * 1000)).bytes


def _walks(hints: Hints) -> list[_Walk]:
    """Which statements find the matches."""
    out: list[_Walk] = []
    ended = hints.statuses & ENDED
    if hints.statuses & ACTIVE:
        out.append(_Walk("list_active", ACTIVE, None, {}))
    if ended and ended <= _BADLY:
        out.extend(_Walk("list_ended_badly", frozenset({s}), None, {"status": s}) for s in sorted(ended))
    elif ended and hints.workflow is not None:
        out.append(_Walk("list_ended_of_workflow", ENDED, hints.workflow, {"workflow": hints.workflow}))
    elif ended:
        out.append(_Walk("list_ended", ENDED, None, {}))
    return out


def _source(rows: list[Any], scan: int, limit: int) -> _Source:
    items = [run_item(r) for r in rows if r["run_id"] is not None]
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


def run_item(r: Any) -> RunItem:
    return RunItem(
        run_id=r["run_id"],
        workflow=r["workflow"],
        version=r["version"],
        key=r["key"],
        status=run_status(r["status"]),
        created_us=r["created_at"],
        finished_us=r["finished_at"],
        attributes=(r["attributes"] or "").encode(),
        error_code=r["error_code"],
        error=r["error"],
        stuck=r["stuck"],
        paused_us=r["paused_at"],
        wake_us=None if r["wake_at"] in (None, FOREVER_US) else r["wake_at"],
        owned=r["owned"],
        epoch=r["epoch"],
        events=r["events"],
        parent_id=r["parent_id"],
        successor=r["successor"],
        waits=reasons.decode(r["wait_reasons"]),
    )


def _asked(waits: list[reasons.WaitReason] | None, on: str) -> list[reasons.WaitReason]:
    """The requested wait reason comes first."""
    return sorted(waits or [], key=lambda w: w.on != on)
