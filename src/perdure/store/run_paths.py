"""Histories of many runs on PostgreSQL, for their paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.core import wait_reasons as reasons
from perdure.core.api.run_paths import FindPaths
from perdure.engine.api.ports import SCAN_ROWS_MAX, HistoryRows, PathRun
from perdure.store.clashes import retried
from perdure.store.queries import fetch
from perdure.store.run_lists import PostgresRunLists
from perdure.store.run_query_sql import HIGHEST, LOWEST, first_id

_LISTENS: Final = frozenset({"signal", "update"})


@retried()
class PostgresRunPaths(PostgresRunLists):
    async def path_runs(self, ns: int, wanted: FindPaths, limit: int) -> tuple[list[PathRun], bytes | None]:
        low = LOWEST if wanted.since_us is None else first_id(wanted.since_us // 1000)
        high = HIGHEST if wanted.below is None else wanted.below
        async with self._pool.take() as c:
            if wanted.ended:
                rows = await fetch(
                    c, "path_runs_ended", ns=ns, low=low, high=high, workflow=wanted.workflows[0], limit=limit
                )
            else:
                rows = await fetch(
                    c,
                    "path_runs",
                    ns=ns,
                    low=low,
                    high=high,
                    workflows=list(wanted.workflows) or None,
                    scan_limit=SCAN_ROWS_MAX if wanted.workflows else limit,
                    limit=limit,
                )
        found = [_run(r) for r in rows if r["run_id"] is not None]
        if len(found) >= limit:
            return found, found[-1].run_id
        scanned_all = not rows or rows[0]["scanned"] < SCAN_ROWS_MAX
        return found, None if wanted.ended or scanned_all else rows[0]["floor"]

    async def histories(self, ns: int, run_ids: Sequence[bytes], bytes_max: int) -> dict[bytes, HistoryRows]:
        found: dict[bytes, HistoryRows] = {}
        for r in await self._fetch("histories", ns=ns, run_ids=list(run_ids), bytes_max=bytes_max):
            one = found.get(r["run_id"])
            if one is None:
                one = found[r["run_id"]] = HistoryRows([], int(r["size"]))
            one.rows.append((r["seq"], r["at"], r["body"]))
        return found


def _run(r: Any) -> PathRun:
    waits = [f"{w.on}:{w.name}" for w in reasons.decode(r["wait_reasons"]) if w.on in _LISTENS]
    return PathRun(r["run_id"], r["workflow"], r["version"], r["kind"], tuple(waits), r["pinned"])
