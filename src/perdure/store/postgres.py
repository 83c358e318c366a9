"""The engine's Store port on PostgreSQL, put together from its parts, with what an engine reads and its upkeep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.calls import encode_json
from perdure.core.durations import FOREVER_US
from perdure.core.errors import Failure
from perdure.core.flow_control.groups import FlowControlGroup
from perdure.core.lifecycle import RunStatus
from perdure.core.limits import (
    CALLBACK_KEPT_S,
    DECIDED_APPROVALS_KEPT_DAYS,
    DECLARED_TASKS_MAX,
    INSTANCE_KEPT_S,
    MESSAGE_KEYS_KEPT_S,
    UPDATE_ANSWERS_KEPT_S,
)
from perdure.core.subscriptions import events_of
from perdure.core.versions import VersionChoice
from perdure.core.work import Outcome, RunView, ServedCode
from perdure.engine.ports import (
    DeletedRun,
    ForkedRun,
    HistoryRow,
    PublishedVersion,
    RetryChanges,
)
from perdure.store import flow_control, partitions
from perdure.store.claims import PostgresClaims
from perdure.store.clashes import retried
from perdure.store.commits import PostgresCommits
from perdure.store.connections import Connections
from perdure.store.inbox import PostgresInbox
from perdure.store.notifications import PostgresNotifications
from perdure.store.queries import fetch, fetch_row
from perdure.store.run_counts import merge_counts
from perdure.store.run_fork import fork_run
from perdure.store.run_retry import retry_run
from perdure.store.sessions import PostgresSessions
from perdure.store.words import run_status
from perdure.wire.codec import decode_events

TASK_NAMES_MAX: Final = 10_000
"""Python tasks of a namespace that services of flows are held against."""
TRIM_ROWS: Final = 5_000
"""Old answers to updates, ends of calls and decisions that one sweep deletes."""
KEYS_TRIMMED: Final = 10_000
"""Old keys of messages that one sweep deletes."""


@retried()
class PostgresStore(PostgresSessions, PostgresCommits, PostgresInbox, PostgresClaims, PostgresNotifications):
    async def close(self) -> None:
        self._committing.drop()
        self._sending.drop()
        await super().close()

    @property
    def pool(self) -> Connections:
        """For other ports on the same database."""
        return self._pool

    def shift_clock(self, seconds: float) -> None:
        """Tests only: let the database clock of these connections run ahead."""
        self._pool.clock_offset_s = seconds

    @property
    def clock_offset_s(self) -> float:
        return self._pool.clock_offset_s

    @property
    def away_s(self) -> float:
        """Seconds since connections began to fail; 0 when the last one succeeded."""
        return self._pool.away_s

    async def forget_key(self, ns: int, key: str, run_id: bytes) -> None:
        await self._fetch("release_run_key", ns=ns, key=key, run_id=run_id)

    async def pause(self, run_id: bytes, ns: int, by: str, reason: str, body: bytes) -> bool | None:
        """True when it is paused now, False when its owner will pause it, None when there is no such active run."""
        row = await self._row("pause_run", run_id=run_id, ns=ns, by=by, reason=reason or None, body=body)
        return None if row is None else row["is_done"]

    async def delete_run(self, run_id: bytes, ns: int) -> DeletedRun:
        low, high = ids.task_range(run_id)
        row = await self._row("delete_run", run_id=run_id, ns=ns, low=low, high=high)
        return cast("DeletedRun", row["outcome"])

    async def resume(self, run_id: bytes, ns: int, group: FlowControlGroup | None) -> bool:
        async with self._pool.take() as c, c.transaction():
            if (
                await fetch_row(c, "resume_run", run_id=run_id, ns=ns, group_id=group.id if group is not None else None)
                is None
            ):
                return False
            await flow_control.put_groups(c, [group] if group is not None else [])
            return True

    async def retry_run(self, r: RetryChanges) -> bool:
        async with self._pool.take() as c:
            return await retry_run(c, r)

    async def fork_run(self, r: ForkedRun) -> bool:
        async with self._pool.take() as c:
            return await fork_run(c, r)

    async def register_versions(self, ns: int, code: Sequence[tuple[str, ServedCode]]) -> list[tuple[str, str]]:
        rows = [
            (
                workflow,
                one.version,
                _text(one.control or None),
                _text(one.parameters or None),
                one.hash or None,
                one.pinned,
                one.build_id or None,
                _text(one.hooks or None),
                _text(one.subscriptions or None),
                _text(encode_json(events_of(one.subscriptions))) if one.subscriptions else None,
                _text(one.messages or None),
            )
            for workflow, one in code
        ]
        refused = await self._fetch("register_versions", ns=ns, versions=rows)
        return [(r["workflow"], r["version"]) for r in refused]

    async def published(self, ns: int, workflow: str, version: str) -> PublishedVersion:
        row = await self._row("workflow_published", ns=ns, workflow=workflow, version=version)
        if row is None:
            return PublishedVersion()
        parameters, messages = (
            row[name].encode() if row[name] is not None else None for name in ("parameters", "messages")
        )
        return PublishedVersion(parameters, messages, row["pinned"])

    async def save_task_options(self, ns: int, options: Mapping[str, bytes | None]) -> None:
        await self._execute(
            "save_task_options", ns=ns, tasks=[(name, _text(options[name])) for name in sorted(options)]
        )

    async def task_options(self, ns: int) -> dict[str, bytes]:
        return {
            r["name"]: r["options"].encode() for r in await self._fetch("task_options", ns=ns, limit=DECLARED_TASKS_MAX)
        }

    async def service_routes(self, ns: int) -> tuple[frozenset[str], frozenset[str]]:
        rows = await self._fetch("service_routes", ns=ns, limit=TASK_NAMES_MAX)
        return (
            frozenset(r["name"] for r in rows if r["is_registered"]),
            frozenset(r["name"] for r in rows if not r["is_registered"]),
        )

    async def current_versions(self, ns: int, names: Sequence[str]) -> dict[str, VersionChoice]:
        rows = await self._fetch("current_versions", ns=ns, names=list(names))
        return {
            r["name"]: VersionChoice(
                r["current"], r["pinned"], r["ramp"] or "", r["ramp_pinned"], r["ramp_percent"], r["by_hand"]
            )
            for r in rows
        }

    async def document(self, ns: int, workflow: str, version: str) -> bytes | None:
        row = await self._row("get_definition", ns=ns, workflow=workflow, version=version)
        return row["document"].encode() if row is not None and row["document"] is not None else None

    async def namespace(self, name: str) -> int:
        row = await self._row("namespace_id", name=name) or await self._row("create_namespace", name=name)
        number: int = row["id"]
        return number

    async def find_namespace(self, name: str) -> int | None:
        row = await self._row("namespace_id", name=name)
        return row["id"] if row is not None else None

    async def run_by_key(self, ns: int, key: str) -> tuple[bytes, bytes] | None:
        row = await self._row("run_by_key", ns=ns, key=key)
        return (row["run_id"], row["input_hash"]) if row is not None else None

    async def describe(self, run_id: bytes, ns: int) -> RunView | None:
        r = await self._row("get_run", run_id=run_id, ns=ns)
        if r is None:
            return None
        return RunView(
            run_id=r["run_id"],
            workflow=r["workflow"],
            version=r["version"],
            key=r["key"],
            status=run_status(r["status"]),
            created_us=r["created_at"],
            finished_us=r["finished_at"],
            error=r["error"],
            stuck=r["stuck"],
            wake_us=None if r["wake_at"] in (None, FOREVER_US) else r["wake_at"],
            owner=r["owner"],
            epoch=r["epoch"],
            successor=r["successor"],
            paused_by=r["paused_by"],
            head=r["head"],
        )

    async def ended(self, ns: int, run_ids: Sequence[bytes]) -> dict[bytes, Outcome]:
        """Outcomes of those that ended; a stuck run counts with its reason, under status running."""
        async with self._pool.take() as c:
            rows = await fetch(c, "ended_runs", ns=ns, run_ids=list(run_ids))
            ends = [r["run_id"] for r in rows if r["stuck"] is None]
            last = {r["run_id"]: r["body"] for r in await fetch(c, "last_rows", run_ids=ends)} if ends else {}
        found: dict[bytes, Outcome] = {}
        for r in rows:
            outcome = _stuck(r) if r["stuck"] is not None else _outcome(last[r["run_id"]])
            if outcome is not None:
                found[r["run_id"]] = outcome
        return found

    async def history_after(self, run_id: bytes, ns: int, after: int, limit: int) -> list[HistoryRow]:
        rows = await self._fetch("history_after", run_id=run_id, ns=ns, after=after, limit=limit)
        return [HistoryRow(run_id, r["seq"], r["last"], r["at"], r["body"]) for r in rows]

    async def read_state(self, run_id: bytes, ns: int, name: str) -> bytes | None:
        row = await self._row("read_state", run_id=run_id, ns=ns, name=name)
        return row["value"] if row is not None else None

    async def sweep(self) -> int:
        forwarded = await self._fetch("forward_orphaned_messages")
        await self._fetch("delete_orphaned_messages")
        await self._fetch("delete_old_message_keys", age_s=float(MESSAGE_KEYS_KEPT_S), limit=KEYS_TRIMMED)
        await self._fetch("delete_orphaned_workers")
        await self._fetch("delete_orphaned_backlogs")
        async with self._pool.take() as c:
            await flow_control.sweep(c)
        await self._fetch("delete_old_updates", age_s=float(UPDATE_ANSWERS_KEPT_S), limit=TRIM_ROWS)
        await self._fetch("delete_old_decisions", age_days=DECIDED_APPROVALS_KEPT_DAYS, limit=TRIM_ROWS)
        await self._fetch("delete_old_instances", age_s=float(INSTANCE_KEPT_S))
        await self._fetch("delete_old_callbacks", age_s=float(CALLBACK_KEPT_S), limit=TRIM_ROWS)
        return len(forwarded)

    async def merge_counts(self) -> int:
        async with self._pool.take() as c:
            return await merge_counts(c)

    async def create_partitions(self, ahead_days: int) -> int:
        async with self._pool.take() as c:
            return await partitions.create_ahead(c, ahead_days)


def _text(data: bytes | None) -> str | None:
    return data.decode() if data is not None else None


def _outcome(body: bytes) -> Outcome | None:
    """The end of a run by its last event. None: it has been retried meanwhile."""
    last = decode_events(body)[-1]
    match last:
        case ev.RunSucceeded():
            return Outcome(RunStatus.SUCCESS, last.result)
        case ev.RunFailed():
            return Outcome(RunStatus.FAILED, b"", last.failure)
        case ev.RunCancelled():
            return Outcome(RunStatus.CANCELLED, b"", Failure("run_cancelled", last.reason or "the run was cancelled"))
        case ev.RunTerminated():
            return Outcome(RunStatus.CANCELLED, b"", ev.terminated(last))
        case ev.RunContinued():
            return Outcome(RunStatus.SUCCESS)
        case _:
            return None


def _stuck(row: Any) -> Outcome:
    code, _, message = row["stuck"].partition(": ")
    return Outcome(run_status(row["status"]), b"", Failure(code, message))
