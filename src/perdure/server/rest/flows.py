"""Declarative workflows: documents checked before they count, versions, which one is current, and pictures."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import JSONResponse

from perdure.core import ids
from perdure.core.errors import NotRegistered, PerdureError
from perdure.engine.runs.turns import within
from perdure.flows.decide.decider import DecisionTooLarge
from perdure.flows.decide.progress import statuses_of
from perdure.flows.drawing.chart import Chart, chart_of
from perdure.flows.drawing.svg import svg
from perdure.flows.model import Flow
from perdure.flows.scheduled import trigger_requests
from perdure.flows.schema import document_schema
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.documents import FlowRoute, changes_of, draft_of, kept
from perdure.server.rest.guard import Caller, Developer, Reader
from perdure.server.rest.problems import responses
from perdure.server.rest.run_lookup import RunName, detail_of, resolve
from perdure.server.rest.workflows import WorkflowName, check_commands, get_workflow, known, version_known

log = logging.getLogger("perdure.server")

EVENTS_REPLAYED_MAX: Final = 10_000
"""Events of a run up to which its nodes' statuses are worked out for a reader."""
BYTES_REPLAYED_MAX: Final = 16 * 1024 * 1024
REPLAY_S_MAX: Final = 1.0
"""Seconds that a history is worked off for a picture, one at a time; one that takes longer is shown without statuses."""
_replaying: Final = asyncio.Semaphore(1)
SVG: Final = "image/svg+xml"
SVG_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"
"""A picture brings its own style and needs nothing else; whatever else were in it would do nothing."""
NOTHING: Final = Chart((), ())

router = APIRouter(tags=["flows"], route_class=FlowRoute)

Version = Annotated[str, Path(min_length=1, max_length=m.VERSION_CHARS_MAX)]
Format = Annotated[Literal["json", "svg"], Query(description="Nodes and links, or the picture of them.")]
PICTURE: Final[dict[str, Any]] = {
    "model": m.FlowGraph,
    "content": {SVG: {"schema": {"type": "string"}}},
    "description": "The graph; with `format=svg`, a picture of it.",
}


# -- documents -----------------------------------------------------------------------------------------------------


@router.post("/workflows/validate", responses=responses(401, 403, 413, 422))
async def validate_flow(caller: Reader, body: m.FlowText) -> m.ValidFlow:
    """Check a flow's document and say what deploying it would change. Nothing is written."""
    draft = await draft_of(body)
    current = await caller.server.reads.workflow(caller.ns, draft.flow.name)
    current = None if current is None or current.deleted_us is not None else current
    definition = await caller.server.reads.definition(caller.ns, draft.flow.name, draft.version)
    changed = await changes_of(caller, current, draft)
    return m.ValidFlow(
        name=draft.flow.name,
        version=draft.version,
        kind=draft.flow.body.kind,
        nodes=len(draft.flow.body.nodes),
        is_known=definition is not None,
        current=current.current if current else None,
        changes=None if changed is None else views.flow_changes(changed),
        warnings=[views.flow_problem(p) for p in draft.compiled.warnings],
    )


@router.get("/workflows/{name}/versions/{version}", responses=responses(401, 403, 404))
async def get_version(caller: Reader, name: WorkflowName, version: Version) -> m.WorkflowDefinition:
    """One version, with the document that it was deployed as."""
    current = (await known(caller, name)).current
    found = await caller.server.reads.definition(caller.ns, name, version)
    if found is None:
        raise NotRegistered(f"the workflow {name!r} has no version {version!r}; the current one is {current}")
    return m.WorkflowDefinition(
        name=name,
        version=found.version,
        kind=found.kind,
        registered_at=views.moment(found.registered_us),
        current=found.version == current,
        document=msgspec.json.decode(found.document) if found.document else None,
        source=found.source or None,
    )


@router.post("/workflows/{name}/current", responses=responses(401, 403, 404, 409, 413, 422))
async def move_current(caller: Developer, name: WorkflowName, body: m.MoveCurrent) -> m.WorkflowDetail:
    """Let new runs have another version, an earlier one for instance. Runs that are under way keep theirs."""
    before = await known(caller, name)
    version = await version_known(caller, name, body.version)
    if version != before.current:
        flow = await kept.flow(caller, name, version)
        if flow is not None:
            check_commands(caller, flow)
        triggers = trigger_requests(flow) if flow is not None else []
        if not await caller.server.registry.move(
            caller.ns, name, version, triggers=triggers, by=caller.principal.subject
        ):
            raise NotRegistered(f"the workflow {name!r} has no version {version!r}")
        caller.use.moved(name)
        caller.server.engine.scheduler.changed()
        await caller.server.audit(
            caller.principal, "workflow.move", name, {"from": before.current, "to": version}, ns=caller.ns
        )
    return await get_workflow(caller, name)


@router.get("/schema/flow.json", responses=responses(401, 403))
async def flow_schema(caller: Reader) -> dict[str, Any]:
    """JSON Schema of flow documents, with the tasks that this namespace's workers have registered: for editors."""
    types = await caller.server.registry.task_types(caller.ns)
    return document_schema({name: msgspec.json.decode(signature) for name, signature in types.items()})


# -- pictures ------------------------------------------------------------------------------------------------------


@router.get("/workflows/{name}/graph", response_model=m.FlowGraph, responses=responses(401, 403, 404, 422, s200=PICTURE))  # fmt: skip
async def get_graph(
    caller: Reader,
    name: WorkflowName,
    format: Format = "json",
    version: Annotated[
        str | None, Query(min_length=1, max_length=m.VERSION_CHARS_MAX, description="Another than the current one.")
    ] = None,
) -> Response:
    """Nodes and links of a flow. A workflow of code has none that could be known beforehand."""
    wanted = await version_known(caller, name, version)
    flow = await kept.flow(caller, name, wanted)
    return await _picture(name, wanted, flow, {}, format)


@router.get("/runs/{id}/graph", response_model=m.FlowGraph, responses=responses(401, 403, 404, 409, 422, s200=PICTURE))  # fmt: skip
async def get_run_graph(caller: Reader, id: RunName, format: Format = "json") -> Response:
    """The flow of a run, and how far each of its nodes is."""
    run_id = await resolve(caller, id)
    item = (await detail_of(caller, run_id)).item
    flow = await kept.flow(caller, item.workflow, item.version)
    statuses = await _statuses(caller, run_id, flow) if flow is not None else {}
    return await _picture(item.workflow, item.version, flow, statuses, format)


async def _statuses(caller: Caller, run_id: bytes, flow: Flow) -> dict[str, str]:
    """Nothing for a run whose history is too long to be worked off for a reader."""
    history = await caller.server.reads.history(caller.ns, run_id, 0, EVENTS_REPLAYED_MAX + 1, BYTES_REPLAYED_MAX)
    found = (await detail_of(caller, run_id)).events
    if len(history) > EVENTS_REPLAYED_MAX or len(history) < found:
        return {}
    try:
        async with _replaying:
            return await asyncio.to_thread(statuses_of, flow, run_id, history, within(REPLAY_S_MAX))
    except (PerdureError, DecisionTooLarge) as error:  # the picture is worth having all the same
        log.warning("statuses of run %s cannot be told: %s", ids.text(run_id), error)
        return {}


async def _picture(name: str, version: str, flow: Flow | None, statuses: dict[str, str], format: str) -> Response:
    chart = NOTHING if flow is None else chart_of(flow.body)
    if format == "svg":
        text = await asyncio.to_thread(svg, chart, name, statuses)
        return Response(text, media_type=SVG, headers={"Content-Security-Policy": SVG_POLICY})
    graph = views.flow_graph(name, version, flow.kind if flow is not None else "code", chart, statuses)
    return JSONResponse(graph.model_dump())
