"""The port of retention on PostgreSQL. sql/retention.sql and migration 0003 have the statements and their theory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import msgspec

from perdure.core import ids
from perdure.core.api.retention import PolicyView
from perdure.core.retention import REST, ExportPart
from perdure.core.retention_limits import RETENTION_POLICIES_MAX
from perdure.engine.retention_port import DayRange, JobStatus, NewJob, RetentionJob, Rules, StoredPart
from perdure.exports.records import HistoryLine, RunRows
from perdure.store.clashes import retried
from perdure.store.port import PostgresPort
from perdure.store.queries import fetch, opened, queries

PAGE_EVENTS: Final = 5_000
"""Events of one page of runs, unless the first run alone has more."""
HISTORY_FETCHED: Final = 1_000
"""Rows of history in memory at a time, and those of one run."""
KEYS_FREED: Final = 1_000
DROP_ORDER: Final = ("run", "history", "task", "task_attempt", "node_count", "run_state", "task_log", "payload_use")
"""`run` first: it decides which runs are kept; see perdure.drop_expired."""
_NOTHING: Final = bytes(16)
_job_fields: Final = RetentionJob.__struct_fields__


@retried()
class PostgresRetention(PostgresPort):
    # policies

    async def policies(self, ns: int) -> list[PolicyView]:
        return [_policy(r) for r in await self._fetch("list_retention_policies", ns=ns)]

    async def set_policy(self, ns: int, workflow: str, days: float | None, by: str) -> PolicyView | None:
        """None: the namespace has RETENTION_POLICIES_MAX."""
        row = await self._row(
            "set_retention_policy", ns=ns, workflow=workflow, days=days, by=by, policies_max=RETENTION_POLICIES_MAX
        )
        return None if row is None else _policy(row)

    async def remove_policy(self, ns: int, workflow: str) -> bool:
        return await self._row("remove_retention_policy", ns=ns, workflow=workflow) is not None

    async def rules(self, default_days: float | None) -> Rules:
        row = await self._row("retention_rules", default_days=default_days)
        days = msgspec.json.decode(row["rules"], type=dict[str, float | None])
        return Rules(days, row["clock"], row["changed_at"] or 0)

    # ranges

    async def ranges(self) -> list[DayRange]:
        found = await self._fetch("list_partitions", tables=["run"])
        days = sorted(r["name"].rpartition("_p")[2] for r in found if r["name"].rpartition("_p")[2].isdigit())
        out: list[DayRange] = []
        for stamp in days:
            day = datetime.strptime(stamp, "%Y%m%d").replace(tzinfo=UTC)
            end = day + timedelta(days=1)
            out.append(DayRange(f"{day:%Y-%m-%d}", _first(day), _first(end), int(end.timestamp()) * 1_000_000))
        oldest = out[0].low if out else b"\xff" * 16
        return [DayRange(REST, _NOTHING, oldest, 0), *out]

    async def looks(self) -> dict[str, int]:
        return {r["name"]: r["looked_at"] for r in await self._fetch("retention_looks")}

    async def looked(self, name: str, at_us: int) -> None:
        await self._execute("note_retention_look", name=name, at=at_us)

    async def count(self, of: DayRange, rules: Rules) -> tuple[int, int]:
        row = await self._row("count_expired", low=of.low, high=of.high, rules=_text(rules.days), cutoff=rules.clock_us)
        return row["expired"], row["kept"]

    async def export_address(self) -> str:
        return await self._value("read_export_address") or ""

    async def set_export_address(self, url: str) -> None:
        await (self._execute("set_export_address", url=url) if url else self._execute("remove_export_address"))

    # jobs

    async def create(self, job: NewJob, default_days: float | None, lease_s: float) -> RetentionJob | None:
        row = await self._row(
            "insert_retention_job",
            id=uuid4().bytes,
            name=job.range.name,
            action=job.action,
            low=job.range.low,
            high=job.range.high,
            cutoff=job.rules.clock_us,
            default_days=default_days,
            rules=_text(job.rules.days),
            url=job.url or None,
            format=job.format if job.url else None,
            lease_s=lease_s,
            expected=job.expected,
        )
        return None if row is None else await self.find(row["id"])

    async def is_busy(self) -> bool:
        return bool(await self._value("has_open_retention_job"))

    async def claim(self, lease_s: float) -> RetentionJob | None:
        row = await self._row("claim_retention_job", lease_s=lease_s)
        return None if row is None else await self.find(row["id"])

    async def find(self, id: bytes) -> RetentionJob:
        return _job(await self._row("find_retention_job", id=id))

    async def jobs(self, limit: int) -> list[RetentionJob]:
        return [_job(r) for r in await self._fetch("list_retention_jobs", limit=limit)]

    async def keep(self, job: RetentionJob, lease_s: float, error: str | None = None) -> bool:
        row = await self._row("keep_retention_job", id=job.id, epoch=job.epoch, lease_s=lease_s, error=error)
        return row is not None

    async def give_back(self, job: RetentionJob) -> None:
        await self.keep(job, 0.0)

    async def end(self, job: RetentionJob, status: JobStatus, error: str | None = None) -> bool:
        row = await self._row("end_retention_job", id=job.id, epoch=job.epoch, status=status, error=error)
        return row is not None

    # export

    async def page(self, job: RetentionJob, after: bytes, limit: int) -> AsyncGenerator[list[RunRows]]:
        """One snapshot of all its rows. Histories come through a cursor, so that no more than one is in memory as a whole."""
        async with self._pool.take() as c, c.transaction(isolation="repeatable_read", readonly=True):
            found = await fetch(
                c,
                "export_runs",
                after=after,
                low=job.low,
                high=job.high,
                rules=job.rules,
                cutoff=job.cutoff_us,
                limit=limit,
            )
            runs = _bounded(found)
            if not runs:
                return
            pages = {r["run_id"]: RunRows(run=dict(r)) for r in runs}
            await _read_rows(c, pages)
            run_ids = list(pages)
            query = queries()["export_history"]
            given = query.bind({"first": run_ids[0], "last": run_ids[-1], "run_ids": run_ids})
            await c.execute(f"declare exported_history no scroll cursor for {query.sql}", *given)
            ready, at = list[RunRows](), 0
            while rows := await c.fetch(f"fetch {HISTORY_FETCHED} from exported_history"):
                for r, readable in zip(rows, await opened(c, query, rows, {}), strict=True):
                    while run_ids[at] != r["run_id"]:
                        ready.append(pages.pop(run_ids[at]))
                        at += 1
                    pages[r["run_id"]].history.append(_history(r, readable))
                if ready:
                    yield ready
                    ready = []
            yield [pages[run_id] for run_id in run_ids[at:]]

    async def add_part(self, job: RetentionJob, part: StoredPart, lease_s: float) -> bool:
        p = part.part
        row = await self._row(
            "insert_retention_part",
            id=job.id,
            epoch=job.epoch,
            lease_s=lease_s,
            n=part.n,
            object=p.object,
            first=ids.parse(p.first),
            last=ids.parse(p.last),
            runs=p.runs,
            events=p.events,
            tasks=p.tasks,
            bytes=p.bytes,
            sha256=bytes.fromhex(p.sha256),
        )
        return row is not None

    async def parts(self, job: RetentionJob) -> list[StoredPart]:
        rows = await self._fetch("list_retention_parts", id=job.id)
        return [
            StoredPart(
                r["n"],
                ExportPart(
                    object=r["object"],
                    first=ids.text(r["first"]),
                    last=ids.text(r["last"]),
                    runs=r["runs"],
                    events=r["events"],
                    tasks=r["tasks"],
                    bytes=r["bytes"],
                    sha256=r["sha256"].hex(),
                ),
            )
            for r in rows
        ]

    async def namespaces(self) -> dict[str, int]:
        return {r["name"]: r["id"] for r in await self._fetch("export_namespaces")}

    # removal

    async def begin_removal(self, job: RetentionJob) -> str:
        return str(await self._value("begin_removal", id=job.id, epoch=job.epoch))

    async def drop(self, job: RetentionJob, table: str) -> str:
        return str(await self._value("drop_expired", id=job.id, epoch=job.epoch, parent=table))

    async def delete(self, job: RetentionJob, batch: int) -> int:
        return int(await self._value("delete_expired", id=job.id, epoch=job.epoch, batch=batch))

    async def free_keys(self, job: RetentionJob, after: bytes) -> bytes | None:
        """A page of what is not partitioned. The next position; None: there is no more."""
        last: bytes | None = await self._value("delete_dropped_keys", after=after, high=job.high, limit=KEYS_FREED)
        if last is None:
            while await self._value("delete_dropped_messages", low=job.low, high=job.high, limit=KEYS_FREED):
                pass
        return last

    async def delete_old_holds(self) -> None:
        await self._execute("delete_old_holds")


def _first(day: datetime) -> bytes:
    return ids.lowest_at(int(day.timestamp()) * 1000).bytes


def _text(days: dict[str, float | None]) -> str:
    return msgspec.json.encode(days).decode()


def _policy(r: Any) -> PolicyView:
    return PolicyView(
        everywhere=r["ns"] == 0,
        workflow=r["workflow"],
        days=r["days"],
        updated_us=r["updated_at"],
        updated_by=r["updated_by"],
    )


def _job(r: Any) -> RetentionJob:
    row = dict(r)
    row["bytes_"] = row.pop("bytes")
    for name in ("cutoff", "created", "updated", "finished"):
        at = row.pop(name if name == "cutoff" else f"{name}_at")
        row[f"{name}_us"] = at
    return RetentionJob(**{name: row[name] for name in _job_fields})


def _bounded(runs: list[Any]) -> list[Any]:
    """As many of the first as have PAGE_EVENTS together."""
    total = 0
    for n, r in enumerate(runs):
        total += r["events"]
        if n and total > PAGE_EVENTS:
            return runs[:n]
    return runs


def _history(r: Any, readable: Any) -> HistoryLine:
    """PayloadKeyMissing if it cannot be opened: then nothing is removed."""
    body = readable["body"]
    sealed = None if readable is r else r["body"]
    return HistoryLine(r["seq"], r["last"], r["epoch"], r["at"], body, r["hash"], sealed)


async def _read_rows(c: Any, pages: dict[bytes, RunRows]) -> None:
    """Everything but the histories."""
    run_ids = list(pages)
    bounds = {"first": run_ids[0], "last": run_ids[-1]}
    of_tasks = {"low": run_ids[0][:8] + bytes(8), "high": run_ids[-1][:8] + b"\xff" * 8}
    found: defaultdict[bytes, list[Any]] = defaultdict(list)
    for query, field, within in (
        ("export_tasks", "tasks", of_tasks),
        ("export_attempts", "attempts", of_tasks),
        ("export_logs", "logs", bounds),
    ):
        found.clear()
        for r in await fetch(c, query, run_ids=run_ids, **within):
            row = dict(r)
            found[row.pop("run_id")].append(row)
        for run_id, rows in found.items():
            setattr(pages[run_id], field, rows)
    for r in await fetch(c, "export_states", run_ids=run_ids, **bounds):
        pages[r["run_id"]].states.append((r["name"], r["value"]))
    for r in await fetch(c, "export_node_counts", run_ids=run_ids, **bounds):
        pages[r["run_id"]].node_counts.append((r["node"], r["what"], r["bin"], r["n"]))
    for r in await fetch(c, "export_payloads", run_ids=run_ids, **bounds):
        pages[r["run_id"]].payloads.append((r["store"], r["sha256"], r["size"]))
