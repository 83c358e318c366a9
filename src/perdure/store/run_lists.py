"""Lists of runs on PostgreSQL.

They have connections of their own, so that a long list never delays an engine. The connections plan every call anew: a filter that
is not given drops out of the plan, and a filter that is given picks its index.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core import wait_reasons as reasons
from perdure.core.api.runs import RunFilter, RunItem, RunPage
from perdure.core.durations import FOREVER_US
from perdure.core.lifecycle import RUN_TERMINAL, RunStatus
from perdure.engine.api.ports import SCAN_ROWS_MAX
from perdure.store import wait_reasons
from perdure.store.clashes import retried
from perdure.store.connections import Connections
from perdure.store.port import PostgresPort
from perdure.store.queries import fetch, fetch_value
from perdure.store.words import run_status

READ_SETTINGS: Final = {
    "plan_cache_mode": "force_custom_plan",
    "statement_timeout": "20s",
    # A list that sorts has read everything: the index that has the order is always the better one, also against the statistics.
    "enable_sort": "off",
    "enable_incremental_sort": "off",
}
DAY_MS: Final = 86_400_000
LOWEST: Final = bytes(16)
HIGHEST: Final = b"\xff" * 16
ENDED: Final = frozenset(int(s) for s in RUN_TERMINAL)
ACTIVE: Final = frozenset({int(RunStatus.PENDING), int(RunStatus.RUNNING)})
_BADLY: Final = frozenset({int(RunStatus.FAILED), int(RunStatus.CANCELLED)})


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
        """Active runs with a given wait reason, each with all its wait reasons."""
        async with self._snapshot() as c:
            found, floor = await wait_reasons.waiting_on(c, ns, f.waiting_on, low, high, limit + 1)
            rows = await fetch(c, "run_items", run_ids=found[:limit], ns=ns)
            items = [
                msgspec.structs.replace(
                    run_item(r), waits=_asked(await wait_reasons.waits_of(c, ns, r["run_id"]), f.waiting_on)
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
        rows = await fetch(
            c,
            name,
            ns=ns,
            low=low,
            high=high,
            statuses=[RunStatus(s).word for s in statuses] if statuses else None,
            workflow=f.workflow or None,
            attributes=[a.decode() for a in f.attributes] or None,
            text=f.text.lower() or None,
            scan_limit=scan,
            limit=limit + 1,
        )
        return _source(rows, scan, limit + 1)

    async def _by_attributes(self, c: Any, ns: int, f: RunFilter, low: bytes, high: bytes, limit: int) -> list[_Source]:
        """Rare attributes: through their index, over windows of days that double until the page is full."""
        statuses = sorted(f.statuses)
        out: list[_Source] = []
        if not statuses or f.statuses & ACTIVE:
            out.append(await self._list(c, ("list_active_by_attributes", statuses or None), ns, f, low, high, limit))
        if statuses and not f.statuses & ENDED:
            return out
        tomorrow_ms = await fetch_value(c, "read_clock") // 1000 + DAY_MS
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
        return [r["run_id"] for r in await self._fetch("find_runs", ns=ns, low=low, high=high, limit=limit)]

    async def newest(self, ns: int) -> bytes | None:
        row = await self._row("newest_run", ns=ns)
        return row["run_id"] if row is not None else None

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
    if not statuses or statuses & ACTIVE:
        out.append(("list_active", sorted(statuses & ACTIVE) if statuses else None))
    ended = statuses & ENDED
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
