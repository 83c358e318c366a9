"""Workflows: lists, versions, registration of code, deployment of flows, starting runs, graphs."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from perdure.core import ids
from perdure.core.api import definitions, runs
from perdure.core.api.definitions import (
    DeployFlow,
    FlowText,
    GetGraph,
    GetRunGraph,
    GetSchema,
    GraphReply,
    ListWorkflows,
    RegisterWorkflow,
    VersionRef,
    WorkflowRef,
)
from perdure.core.errors import PerdureError
from perdure.core.limits import NAME_CHARS_MAX
from perdure.flows.compile import compile_value
from perdure.flows.drawing.chart import Chart, chart_of
from perdure.flows.drawing.mermaid import mermaid
from perdure.flows.drawing.svg import svg
from perdure.flows.problems import FlowError
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.messages import IdempotencyKey
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import MEDIA_TYPE, responses
from perdure.server.rest.runs import RunName, shown
from perdure.server.rest.start_requests import StartRunRequest, WorkflowName, start_request

SVG: Final = "image/svg+xml"
MERMAID: Final = "text/vnd.mermaid"
SVG_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"
"""A picture has its own style and needs nothing else; anything else in it has no effect."""
NO_NODES: Final = Chart((), ())


class FlowRoute(GuardedRoute):
    """A route that takes documents: every problem of one is reported."""

    def refused(self, request: Request, error: PerdureError) -> Response:
        answer = super().refused(request, error)
        if not isinstance(error, FlowError) or not isinstance(answer, JSONResponse):
            return answer
        body: dict[str, Any] = msgspec.json.decode(bytes(answer.body))
        body["problems"] = [views.flow_problem(p).model_dump() for p in error.problems]
        return JSONResponse(body, answer.status_code, media_type=MEDIA_TYPE)


router = APIRouter(tags=["workflows"], route_class=FlowRoute)

Version = Annotated[str, Path(min_length=1, max_length=m.VERSION_CHARS_MAX)]
Format = Annotated[Literal["json", "svg", "mermaid"], Query(description="Nodes and links, or a drawing of them.")]
PICTURE: Final[dict[str, Any]] = {
    "model": m.FlowGraph,
    "content": {SVG: {"schema": {"type": "string"}}, MERMAID: {"schema": {"type": "string"}}},
    "description": "The graph; with `format=svg`, a drawing of it; with `format=mermaid`, a Mermaid flowchart.",
}


@router.get("/workflows", responses=responses(401, 403, 422))
async def list_workflows(
    caller: Annotated[RestCaller, asks(definitions.LIST)],
    q: Annotated[str, Query(max_length=NAME_CHARS_MAX, description="Part of the name.")] = "",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[m.WorkflowSummary]:
    """Workflows by name; deleted ones are left out."""
    page = await caller.call(definitions.LIST, ListWorkflows(q, views.read_text_cursor(cursor), limit))
    return m.Page[m.WorkflowSummary](items=[views.workflow(w) for w in page.items], next=views.next_cursor(page.next))


@router.post(
    "/workflows",
    status_code=201,
    responses=responses(
        401, 403, 409, 413, 422, s200={"model": m.Workflow, "description": "This version was registered before."}
    ),
)
async def register_workflow(
    caller: Annotated[RestCaller, asks(definitions.REGISTER)],
    body: m.RegisterWorkflowRequest,
    response: Response,
) -> m.Workflow:
    """Make a version of code known and current. A deleted workflow is restored."""
    made = await caller.call(
        definitions.REGISTER,
        RegisterWorkflow(name=body.name, version=body.version, description=body.description),
    )
    response.status_code = 201 if made.is_new else 200
    return views.workflow_detail(made.workflow)


@router.post(
    "/workflows/deploy",
    status_code=201,
    responses=responses(
        401, 403, 409, 413, 422, s200={"model": m.Workflow, "description": "This version was deployed before."}
    ),
)
async def deploy_flow(
    caller: Annotated[RestCaller, asks(definitions.DEPLOY)], body: m.DeployFlowRequest, response: Response
) -> m.Workflow:
    """Deploy a flow: make its version known, and with `activate` current. A deleted workflow is restored."""
    made = await caller.call(definitions.DEPLOY, DeployFlow(_flow_text(body), body.activate))
    response.status_code = 201 if made.is_new else 200
    workflow = views.workflow_detail(made.workflow)
    workflow.deployed = m.DeploymentResult(
        version=made.version,
        created=made.is_new,
        activated=made.is_activated,
        changes=views.flow_changes(made.changes),
        warnings=[views.flow_problem(p) for p in made.warnings],
    )
    return workflow


def _flow_text(body: m.FlowRequest) -> FlowText:
    return FlowText(document=body.document, source=body.source, name=body.name, file=body.file)


@router.post("/workflows/validate", responses=responses(401, 403, 413, 422))
async def validate_flow(caller: Annotated[RestCaller, asks(definitions.VALIDATE)], body: m.FlowRequest) -> m.ValidFlow:
    """Check a flow's document and report what deploying it would change. Nothing is written."""
    found = await caller.call(definitions.VALIDATE, _flow_text(body))
    return m.ValidFlow(
        name=found.name,
        version=found.version,
        kind=found.kind,  # type: ignore[arg-type]
        nodes=found.nodes,
        is_known=found.is_known,
        current=found.current,
        changes=views.flow_changes(found.changes),
        warnings=[views.flow_problem(p) for p in found.warnings],
        graph=m.FlowGraph.model_validate(
            found.graph | {"name": found.name, "version": found.version, "kind": found.kind}
        ),
    )


@router.get("/workflows/{name}", responses=responses(401, 403, 404))
async def get_workflow(caller: Annotated[RestCaller, asks(definitions.GET)], name: WorkflowName) -> m.Workflow:
    """A workflow with its versions, newest first."""
    return views.workflow_detail(await caller.call(definitions.GET, WorkflowRef(name)))


@router.delete("/workflows/{name}", status_code=204, responses=responses(401, 403, 404))
async def delete_workflow(caller: Annotated[RestCaller, asks(definitions.DELETE)], name: WorkflowName) -> None:
    """Take no new runs. Active runs continue, and history stays."""
    await caller.call(definitions.DELETE, WorkflowRef(name))


@router.get("/workflows/{name}/versions/{version}", responses=responses(401, 403, 404))
async def get_version(
    caller: Annotated[RestCaller, asks(definitions.VERSION)], name: WorkflowName, version: Version
) -> m.WorkflowDefinition:
    """One version, with the document that it was deployed as."""
    found = await caller.call(definitions.VERSION, VersionRef(name, version))
    return m.WorkflowDefinition(
        name=name,
        version=found.version,
        kind=found.kind,
        registered_at=views.moment(found.registered_us),
        current=found.is_current,
        document=msgspec.json.decode(found.document) if found.document else None,
        source=found.source or None,
    )


@router.post(
    "/workflows/{name}/runs",
    status_code=201,
    response_model=m.Run,
    responses=responses(
        401,
        403,
        404,
        409,
        413,
        422,
        s200={"model": m.Run, "description": "The run existed before."},
        s202={"model": m.DeferredRun, "description": "The start is deferred."},
    ),
)
async def start_run(
    caller: Annotated[RestCaller, asks(runs.START)],
    name: WorkflowName,
    response: Response,
    body: StartRunRequest | None = None,
    idempotency_key: IdempotencyKey = None,
    traceparent: Annotated[str | None, Header(max_length=100)] = None,
) -> m.Run | JSONResponse:
    """Start a run. Answered once it is durable. A start that is debounced or batched is answered with 202 and the id of the run to come."""
    body = body or StartRunRequest.model_validate({})
    started = await caller.call(runs.START, start_request(caller, name, body, traceparent, idempotency_key))
    run_id = ids.text(started.run_id)
    where = f"/api/v1/runs/{run_id}"
    if started.due_us is not None:
        url = f"{caller.api.api.public_url}/runs/{run_id}"
        deferred = m.DeferredRun(id=run_id, workflow=name, due_at=views.moment(started.due_us), url=url)
        return JSONResponse(deferred.model_dump(mode="json"), status_code=202, headers={"Location": where})
    response.status_code = 201 if started.is_new else 200
    response.headers["Location"] = where
    return await shown(caller, started.run_id)


@router.get("/schema/flow.json", responses=responses(401, 403))
async def flow_schema(caller: Annotated[RestCaller, asks(definitions.SCHEMA)]) -> dict[str, Any]:
    """JSON Schema of flow documents, with the tasks that this namespace's workers have registered: for editors."""
    return await caller.call(definitions.SCHEMA, GetSchema())


@router.get(
    "/workflows/{name}/graph", response_model=m.FlowGraph, responses=responses(401, 403, 404, 422, s200=PICTURE)
)
async def get_graph(
    caller: Annotated[RestCaller, asks(definitions.GRAPH)],
    name: WorkflowName,
    format: Format = "json",
    version: Annotated[
        str | None, Query(min_length=1, max_length=m.VERSION_CHARS_MAX, description="Another than the current one.")
    ] = None,
) -> Response:
    """Nodes and links of a flow. A workflow of code has none that could be known beforehand."""
    return await _picture(await caller.call(definitions.GRAPH, GetGraph(name, version or "")), format)


@router.get("/runs/{id}/graph", response_model=m.FlowGraph, responses=responses(401, 403, 404, 409, 422, s200=PICTURE))
async def get_run_graph(
    caller: Annotated[RestCaller, asks(definitions.RUN_GRAPH)], id: RunName, format: Format = "json"
) -> Response:
    """The flow of a run, and the status of each of its nodes."""
    return await _picture(await caller.call(definitions.RUN_GRAPH, GetRunGraph(id)), format)


async def _picture(graph: GraphReply, format: str) -> Response:
    chart = await asyncio.to_thread(_chart, graph) if graph.document else NO_NODES
    if format == "svg":
        text = await asyncio.to_thread(svg, chart, graph.name, graph.statuses)
        return Response(text, media_type=SVG, headers={"Content-Security-Policy": SVG_POLICY})
    if format == "mermaid":
        text = await asyncio.to_thread(mermaid, chart, graph.name, graph.statuses)
        return Response(text, media_type=f"{MERMAID}; charset=utf-8")
    return JSONResponse(views.flow_graph(graph, chart).model_dump())


def _chart(graph: GraphReply) -> Chart:
    return chart_of(compile_value(msgspec.json.decode(graph.document), name=graph.name, stored=True).flow.body)
