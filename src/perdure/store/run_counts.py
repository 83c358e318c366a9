"""Numbers of runs on PostgreSQL: reads of the counters that commits keep, and their upkeep (sql/run_counts.sql)."""

from __future__ import annotations

from typing import Any, Final

from perdure.core import ids
from perdure.core.api.statistics import (
    DayStats,
    NamespaceCounts,
    RunBin,
    RunHistogram,
    RunTotals,
    WorkflowDurations,
    WorkflowStats,
)
from perdure.core.limits import (
    ACTIVE_RUNS_COUNTED_MAX,
    DEAD_LETTERS_COUNTED_DAYS,
    DURATIONS_MAX,
    OPEN_COUNTED_MAX,
    RUN_COUNTS_KEPT_DAYS,
)
from perdure.core.run_counts import DAY_S, MERGES, Bins, merge_age_s, percentiles
from perdure.store.clashes import retried
from perdure.store.queries import fetch, fetch_value
from perdure.store.run_lists import PostgresRunLists

MERGED_ROWS: Final = 5_000
"""Counters that one statement of upkeep merges or deletes."""
MERGE_ROUNDS: Final = 20
"""Statements of one kind in a row."""
_SHARES: Final = (0.5, 0.95)
_ENDED: Final = ("success", "failed", "cancelled")
_ACTIVE: Final = ("running", "pending")
_STATUSES: Final = (*_ENDED, *_ACTIVE)


@retried()
class PostgresRunCounts(PostgresRunLists):
    async def histogram(self, ns: int, workflow: str, bins: Bins) -> RunHistogram:
        async with self._snapshot() as c:
            found, capped = await _bins(c, ns, workflow, bins)
        return RunHistogram(
            from_us=bins.from_us,
            to_us=bins.to_us,
            bin_s=bins.bin_s,
            bins=found,
            totals=RunTotals(**{status: sum(getattr(b, status) for b in found) for status in _STATUSES}),
            capped=capped,
        )

    async def workflow_stats(self, ns: int, workflow: str, days: Bins) -> WorkflowStats:
        """`days` has bins of a day. Without the versions."""
        async with self._snapshot() as c:
            found, capped = await _bins(c, ns, workflow, days)
            rows = await fetch(c, "run_durations_by_day", ns=ns, workflow=workflow, from_at=days.from_us)
        sizes = {r["day"]: dict(zip(r["sizes"], r["counts"], strict=True)) for r in rows}
        total: dict[int, int] = {}
        for of_day in sizes.values():
            for size, n in of_day.items():
                total[size] = total.get(size, 0) + n
        success, failed = (sum(getattr(b, status) for b in found) for status in ("success", "failed"))
        p50_s, p95_s = percentiles(total, _SHARES)
        return WorkflowStats(
            days=[_day(b, sizes.get(b.at_us, {})) for b in found],
            p50_s=p50_s,
            p95_s=p95_s,
            success_rate=success / (success + failed) if success + failed else None,
            versions=[],
            capped=capped,
        )

    async def durations(self, ns: int, since_us: int) -> list[WorkflowDurations]:
        day_us = DAY_S * 1_000_000
        rows = await self._fetch(
            "run_durations_by_workflow", ns=ns, from_at=since_us // day_us * day_us, limit=DURATIONS_MAX
        )
        found: list[WorkflowDurations] = []
        for r in rows:
            p50_s, p95_s = percentiles(dict(zip(r["sizes"], r["counts"], strict=True)), _SHARES)
            if p50_s is not None and p95_s is not None:
                found.append(WorkflowDurations(r["workflow"], p50_s, p95_s, sum(n for n in r["counts"] if n > 0)))
        return found

    async def counts(self, ns: int) -> NamespaceCounts:
        """Without what an engine knows."""
        now_ms = await self._value("read_clock") // 1000
        row = await self._row(
            "namespace_counts",
            ns=ns,
            low=ids.lowest_at(max(now_ms - DEAD_LETTERS_COUNTED_DAYS * DAY_S * 1000, 0)).bytes,
            active_max=ACTIVE_RUNS_COUNTED_MAX,
            approvals_max=OPEN_COUNTED_MAX,
            failed_max=OPEN_COUNTED_MAX,
        )
        return NamespaceCounts(
            active=row["active"],
            pending=row["pending"],
            failed_24h=row["failed_24h"],
            approvals=row["approvals"],
            dead_letters=row["dead_letters"],
            workers=row["workers"],
            engines=row["engines"],
            commit_p50_ms=None,
            capped=row["active"] >= ACTIVE_RUNS_COUNTED_MAX
            or OPEN_COUNTED_MAX in (row["approvals"], row["failed_tasks"]),
        )


async def _bins(c: Any, ns: int, workflow: str, bins: Bins) -> tuple[list[RunBin], bool]:
    """All bins, and whether there are more active runs than were counted."""
    ended = await fetch(
        c,
        "ended_run_bins",
        ns=ns,
        workflow=workflow,
        bin_s=bins.bin_s,
        from_at=bins.from_us,
        to_at=bins.to_us,
    )
    active = await fetch(
        c,
        "active_run_bins",
        ns=ns,
        workflow=workflow,
        bin_s=bins.bin_s,
        low=ids.lowest_at(bins.from_us // 1000).bytes,
        high=ids.lowest_at(bins.to_us // 1000).bytes,
        limit=ACTIVE_RUNS_COUNTED_MAX,
    )
    by_time: dict[int, dict[str, int]] = {}
    for rows, statuses in ((ended, _ENDED), (active, _ACTIVE)):
        for r in rows:
            by_time.setdefault(r["at"], {}).update((status, max(r[status] or 0, 0)) for status in statuses)
    moments = range(bins.from_us, bins.to_us, bins.bin_s * 1_000_000)
    capped = active[0]["scanned"] >= ACTIVE_RUNS_COUNTED_MAX
    return [RunBin(at_us=at, **by_time.get(at, {})) for at in moments], capped


def _day(counted: RunBin, sizes: dict[int, int]) -> DayStats:
    p50_s, p95_s = percentiles(sizes, _SHARES)
    return DayStats(
        at_us=counted.at_us,
        started=sum(getattr(counted, status) for status in _STATUSES),
        success=counted.success,
        failed=counted.failed,
        cancelled=counted.cancelled,
        p50_s=p50_s,
        p95_s=p95_s,
    )


async def merge_counts(c: Any) -> int:
    """Merge counters by age and delete those that are too old. How many rows that was; the next round takes what is left."""
    now_us: int = await fetch_value(c, "read_clock")
    done = 0
    for age_s, step_s in reversed(MERGES):  # a late row goes into its last step at once
        below = now_us - merge_age_s(age_s, step_s) * 1_000_000
        done += await _rounds(c, "merge_run_counts", below=below, into_s=step_s)
    done += await _rounds(c, "merge_run_durations", below=now_us - 2 * DAY_S * 1_000_000, into_s=DAY_S)
    return done + await _rounds(c, "delete_old_run_counts", below=now_us - RUN_COUNTS_KEPT_DAYS * DAY_S * 1_000_000)


async def _rounds(c: Any, name: str, **args: Any) -> int:
    done = 0
    for _ in range(MERGE_ROUNDS):
        found: int = await fetch_value(c, name, limit=MERGED_ROWS, **args)
        done += found
        if found < MERGED_ROWS:
            break
    return done
