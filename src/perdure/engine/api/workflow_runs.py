"""Acts about the latest runs of a workflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.core.api import workflow_runs as acts
from perdure.core.api.workflow_runs import (
    ERROR_DAYS_MAX,
    GRID_RUNS_MAX,
    GetErrors,
    GetGrid,
    GetInputs,
    Grid,
    GridCell,
    GridRun,
    RecentInputs,
    WorkflowErrors,
)
from perdure.core.error_causes import DAY_US, causes_of
from perdure.core.lifecycle import TASK_TERMINAL, TaskStatus
from perdure.core.timeline.nodes import status_of
from perdure.engine.api.api import NamespaceApi, handles
from perdure.engine.api.definitions import compiled_flow
from perdure.engine.api.ports import NodeCounts
from perdure.engine.api.starts import workflow_of
from perdure.flows.drawing.chart import chart_of
from perdure.flows.drawing.outline import outline_of

GRID_NODES_MAX: Final = 200
"""Rows of a grid."""


@handles(acts.GRID)
async def grid(api: NamespaceApi, r: GetGrid) -> Grid:
    workflow = await workflow_of(api, r.workflow)
    runs = await api.ports.reads.latest_runs(api.ns, r.workflow, min(max(r.runs, 1), GRID_RUNS_MAX))
    counts = await api.ports.reads.node_counts(api.ns, [item.run_id for item in runs])
    flow = await compiled_flow(api, r.workflow, workflow.current)
    known = [o.path for o in outline_of(chart_of(flow.body))] if flow is not None else []
    found = dict.fromkeys(n.node for item in runs for n in counts.get(item.run_id, ()))
    nodes = [*(n for n in known if n in found), *(n for n in found if n not in known)][:GRID_NODES_MAX]
    return Grid(
        nodes,
        [
            GridRun(
                run_id=item.run_id,
                key=item.key,
                status=item.status,
                created_us=item.created_us,
                finished_us=item.finished_us,
                cells=_cells(counts.get(item.run_id, ()), set(nodes)),
            )
            for item in reversed(runs)
        ],
    )


def _cells(counts: Sequence[NodeCounts], nodes: set[str]) -> dict[str, GridCell]:
    return {
        n.node: GridCell(
            status=status_of(n.counts),
            tasks=sum(n.counts.values()),
            done=sum(tasks for status, tasks in n.counts.items() if status in TASK_TERMINAL),
            failed=n.counts.get(TaskStatus.FAILED, 0),
            attempts=n.attempts,
        )
        for n in counts
        if n.node in nodes
    }


@handles(acts.ERRORS)
async def errors(api: NamespaceApi, r: GetErrors) -> WorkflowErrors:
    await workflow_of(api, r.workflow)
    days, now_us = min(max(r.days, 1), ERROR_DAYS_MAX), api.engine.clock.now_us()
    since_us = (now_us // DAY_US - days + 1) * DAY_US
    failed, scanned, capped = await api.ports.reads.failed_runs(api.ns, r.workflow, since_us)
    return WorkflowErrors(causes_of(failed, days, now_us), scanned, capped)


@handles(acts.INPUTS)
async def inputs(api: NamespaceApi, r: GetInputs) -> RecentInputs:
    await workflow_of(api, r.workflow)
    return RecentInputs(await api.ports.reads.recent_inputs(api.ns, r.workflow))
