"""Scenarios of reads for pages: a run over time, counts of runs, the latest runs of a workflow, a worker, limits in use."""

from __future__ import annotations

from typing import Any

from perdure.core import ids
from perdure.core.api import cluster, flow_control, runs, timeline, workflow_runs
from perdure.core.api.cluster import ListWorkers, WorkerRef
from perdure.core.api.flow_control import ListLimitUse
from perdure.core.api.runs import CountRuns, RunFilter
from perdure.core.api.timeline import GetTimeline
from perdure.core.api.workflow_runs import GetErrors, GetGrid, GetInputs
from perdure.core.lifecycle import RunStatus, TaskStatus
from tests.server.parity.stage import NOWHERE, Refusal, Rest, Scenario, Stage, done, each

UNKNOWN = ("parity_nowhere", "not_registered")


async def ended(stage: Stage) -> str:
    return await stage.ended(done)


async def ran(stage: Stage) -> str:
    await stage.ended(done)
    return done.name


async def failed(stage: Stage) -> str:
    run = await stage.failed()
    return (await stage.embedded(runs.STATUS, runs.GetRun(run))).workflow


async def worker(stage: Stage) -> str:
    await stage.ended(done)
    found = await stage.embedded(cluster.LIST_WORKERS, ListWorkers())
    return ids.text(found.items[0].id)


def words(r: Any) -> dict[str, Any]:
    return {
        "counts": {TaskStatus(s).word: n for s, n in r.counts.items()},
        "nodes": [{"status": TaskStatus(n.status).word} for n in r.nodes],
    }


SCENARIOS = (
    Scenario(
        act=timeline.GET,
        setup=ended,
        request=GetTimeline,
        rest=lambda s: Rest("GET", f"/runs/{s}/timeline"),
        fields="run_id from_us=from to_us=to ended total truncated nodes[].node nodes[].kind nodes[].tasks nodes[].seq nodes[].attempts "
        "nodes[].first_us=nodes[].first_at nodes[].finished_us=nodes[].finished_at nodes[].after",
        shows=words,
        nowhere=(NOWHERE, "not_found"),
    ),
    Scenario(
        act=runs.COUNT,
        setup=ran,
        request=lambda s: CountRuns(RunFilter(workflow=s)),
        rest=lambda s: Rest("GET", "/runs/count", params={"workflow": s}),
        fields="count exact",
        refusal=lambda name: Refusal(
            code="invalid_input",
            request=CountRuns(RunFilter(query="stauts = failed")),
            rest=Rest("GET", "/runs/count", params={"query": "stauts = failed"}),
        ),
    ),
    Scenario(
        act=workflow_runs.GRID,
        setup=ran,
        request=lambda s: GetGrid(s, 1),
        rest=lambda s: Rest("GET", f"/workflows/{s}/grid", params={"runs": 1}),
        fields="nodes runs[].run_id=runs[].id runs[].key runs[].created_us=runs[].created_at runs[].finished_us=runs[].finished_at",
        shows=lambda r: {"runs": [{"status": RunStatus(one.status).word} for one in r.runs]},
        nowhere=UNKNOWN,
    ),
    Scenario(
        act=workflow_runs.ERRORS,
        setup=failed,
        request=GetErrors,
        rest=lambda s: Rest("GET", f"/workflows/{s}/errors"),
        fields=f"{each('type message task count last_us=last_at days sample_run')} scanned capped",
        nowhere=UNKNOWN,
    ),
    Scenario(
        act=workflow_runs.INPUTS,
        setup=ran,
        request=GetInputs,
        rest=lambda s: Rest("GET", f"/workflows/{s}/inputs"),
        fields=each("input run_id created_us=created_at"),
        nowhere=UNKNOWN,
    ),
    Scenario(
        act=cluster.GET_WORKER,
        setup=worker,
        request=WorkerRef,
        rest=lambda s: Rest("GET", f"/workers/{s}"),
        fields="item.id=id item.name=name item.host=host item.pid=pid item.queues=queues item.slots=slots",
        nowhere=(NOWHERE, "not_found"),
    ),
    Scenario(
        act=flow_control.USE,
        setup=ran,
        request=lambda s: ListLimitUse(),
        rest=lambda s: Rest("GET", "/limit-use"),
        fields=each("key held waiting"),
        without_refusal="it names nothing",
    ),
)
