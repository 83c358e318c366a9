"""The latest runs of a workflow on PostgreSQL: nodes by status, failures, inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.core import events as ev
from perdure.core.api.runs import RunItem
from perdure.core.api.workflow_runs import RecentInput
from perdure.core.error_causes import FailedRun
from perdure.core.run_query import Op, Term
from perdure.engine.api.ports import SCAN_ROWS_MAX, TASKS_COUNTED_MAX, NodeCounts
from perdure.store.clashes import retried
from perdure.store.node_tasks import first_tasks
from perdure.store.queries import fetch
from perdure.store.run_query_sql import first_id
from perdure.store.timeline import PostgresTimelines
from perdure.store.words import task_status
from perdure.wire.codec import decode_events

NODE_TASKS_MAX: Final = 2_000
"""Tasks of a run that are counted by node, where several runs are."""
FAILURES_MAX: Final = 1_000
"""Failed runs whose causes are compared."""
FAILED_AMONG_TASKS: Final = 500
"""Tasks of a run among which the one that failed is looked for."""
INPUTS_SHOWN: Final = 10
INPUT_RUNS: Final = 200
"""Runs whose inputs are compared."""
INPUT_BYTES_MAX: Final = 64 * 1024
"""A longer input is left out."""


@retried()
class PostgresWorkflowRuns(PostgresTimelines):
    async def latest_runs(self, ns: int, workflow: str, limit: int) -> list[RunItem]:
        """Newest first."""
        return (await self.runs(ns, Term("workflow", Op.EQUAL, workflow), None, limit)).items

    async def node_counts(self, ns: int, run_ids: Sequence[bytes]) -> dict[bytes, list[NodeCounts]]:
        """Tasks of runs by node, in the order in which nodes were first asked for. Of a run with many, most are counted already."""
        async with self._snapshot() as c:
            rows = await fetch(c, "counted_nodes", run_ids=list(run_ids), ns=ns)
            large = sorted({r["run_id"] for r in rows})
            small = [run_id for run_id in run_ids if run_id not in large]
            rows += await fetch(c, "count_nodes", run_ids=small, ns=ns, limit=NODE_TASKS_MAX)
            if large:
                first = [task for run_id in large for task in first_tasks(run_id)]
                rows += await fetch(c, "count_first_nodes", ids=first, run_ids=large, ns=ns, limit=TASKS_COUNTED_MAX)
        return _counts(rows)

    async def failed_runs(self, ns: int, workflow: str, since_us: int) -> tuple[list[FailedRun], int, bool]:
        """Failed runs since a moment, how many runs were looked at, and whether there were more."""
        rows = await self._fetch(
            "latest_failures",
            ns=ns,
            workflow=workflow,
            low=first_id(since_us // 1000),
            scan_limit=SCAN_ROWS_MAX,
            limit=FAILURES_MAX,
            tasks=FAILED_AMONG_TASKS,
        )
        found = [_failed(r) for r in rows if r["run_id"] is not None]
        scanned: int = rows[0]["scanned"]
        return found, scanned, scanned >= SCAN_ROWS_MAX or len(found) >= FAILURES_MAX

    async def recent_inputs(self, ns: int, workflow: str) -> list[RecentInput]:
        runs = await self.latest_runs(ns, workflow, INPUT_RUNS)
        async with self._pool.take() as c:
            rows = await fetch(c, "first_events", run_ids=[r.run_id for r in runs], ns=ns, bytes_max=INPUT_BYTES_MAX)
        bodies = {r["run_id"]: r["body"] for r in rows}
        found: dict[bytes, RecentInput] = {}
        for run in runs:
            first = decode_events(bodies[run.run_id])[0] if run.run_id in bodies else None
            if isinstance(first, ev.RunStarted) and first.input not in found:
                found[first.input] = RecentInput(first.input, run.run_id, run.created_us)
                if len(found) == INPUTS_SHOWN:
                    break
        return list(found.values())


def _counts(rows: Sequence[Any]) -> dict[bytes, list[NodeCounts]]:
    found: dict[bytes, dict[str, NodeCounts]] = {}
    for r in sorted(rows, key=lambda r: r["seq"]):
        nodes = found.setdefault(r["run_id"], {})
        one = nodes.get(r["node"])
        if one is None:
            one = nodes[r["node"]] = NodeCounts(r["node"], {}, 0)
        if r["tasks"]:
            status = int(task_status(r["status"]))
            one.counts[status] = one.counts.get(status, 0) + r["tasks"]
        one.attempts = max(one.attempts, r["attempts"])
    return {run_id: list(nodes.values()) for run_id, nodes in found.items()}


def _failed(r: Any) -> FailedRun:
    kind, message = r["error_type"], r["task_error"]
    if r["failed_node"] is None and r["body"] is not None:
        last = decode_events(r["body"])[-1]
        if isinstance(last, ev.RunFailed):
            kind, message = last.failure.type, last.failure.message
    return FailedRun(
        run_id=r["run_id"],
        finished_us=r["finished_at"],
        type=kind or r["error_code"] or "run_failed",
        message=message or r["error"] or "",
        task=r["failed_node"],
    )
