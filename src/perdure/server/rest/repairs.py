"""What repeats or repairs a run: rerun, fork, override a node."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Response
from pydantic import Field

from perdure.core import ids
from perdure.core.api import repairs
from perdure.core.api.repairs import ForkRun, OverrideNode, RerunRun
from perdure.core.api.runs import StartedRun
from perdure.core.limits import FORK_EDITS_MAX
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.messages import IdempotencyKey
from perdure.server.rest.problems import responses
from perdure.server.rest.runs import RunName, shown

router = APIRouter(prefix="/runs", tags=["runs"], route_class=GuardedRoute)

EXISTED: Final = {"model": m.Run, "description": "The run existed before, by the same idempotency key."}


class RerunRunRequest(m.Body):
    """Nothing: the same input. Either `input`, `args` and `kwargs`, or `edits`."""

    input: Any = Field(default=None, description="Another input, as in a start.")
    args: list[Any] = Field(default_factory=list, max_length=m.ARGUMENTS_MAX, description="Arguments by position.")
    kwargs: dict[str, Any] = Field(default_factory=dict, max_length=m.ARGUMENTS_MAX, description="Arguments by name.")
    edits: dict[m.Name, Any] = Field(
        default_factory=dict,
        max_length=m.ARGUMENTS_MAX,
        description="Fields of the input that change, by their path.",
        examples=[{"order.amount": 42}],
    )
    key: m.Name | None = Field(default=None, description="A key of your own, unique in the namespace.")
    version: Annotated[str, Field(min_length=1, max_length=m.VERSION_CHARS_MAX)] | None = Field(
        default=None, description="A registered version; the current one unless given."
    )


class ForkRunRequest(m.Body):
    at: Annotated[int, Field(ge=1, le=2**31 - 1)] = Field(description="The last event that is copied.", examples=[7])
    edits: dict[m.Name, Any] = Field(
        default_factory=dict,
        max_length=FORK_EDITS_MAX,
        description="Results that are replaced: a task's number, its node or its name, or `child:NUMBER`.",
        examples=[{"charge": {"paid": True}}],
    )
    code: Literal["same", "current"] = Field(
        default="same", description="The version of the run, or the one that a new run gets."
    )


class OverrideNodeRequest(m.Body):
    node: m.Name = Field(
        description="A node that failed, with the bodies around it.", examples=["load", "each[2].load"]
    )
    how: Literal["rerun", "skip", "set"]
    value: Any = Field(default=None, description="Its output, where it is set.")


@router.post("/{id}/rerun", status_code=201, responses=responses(401, 403, 404, 409, 413, 422, s200=EXISTED))
async def rerun_run(
    caller: Annotated[RestCaller, asks(repairs.RERUN)],
    id: RunName,
    response: Response,
    body: RerunRunRequest | None = None,
    idempotency_key: IdempotencyKey = None,
) -> m.Run:
    """Start a new run of the same workflow, with the same or an edited input and the same attributes."""
    body = body or RerunRunRequest()
    is_other = body.input is not None or body.args or body.kwargs
    begun = await caller.call(
        repairs.RERUN,
        RerunRun(
            run=id,
            input=views.call(body.input, body.args, body.kwargs) if is_other else None,
            edits={path: views.payload(value) for path, value in body.edits.items()},
            version=body.version or "",
            key=body.key or "",
            idempotency_key=idempotency_key or "",
        ),
    )
    return await _begun(caller, response, begun)


@router.post("/{id}/fork", status_code=201, responses=responses(401, 403, 404, 409, 413, 422, s200=EXISTED))
async def fork_run(
    caller: Annotated[RestCaller, asks(repairs.FORK)],
    id: RunName,
    body: ForkRunRequest,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> m.Run:
    """Start a new run with a copy of a run's first events, perhaps with other results, which goes on from there."""
    edits = {step: views.payload(value) for step, value in body.edits.items()}
    wanted = ForkRun(run=id, at=body.at, edits=edits, code=body.code, idempotency_key=idempotency_key or "")
    return await _begun(caller, response, await caller.call(repairs.FORK, wanted))


async def _begun(caller: RestCaller, response: Response, begun: StartedRun) -> m.Run:
    response.status_code = 201 if begun.is_new else 200
    response.headers["Location"] = f"/api/v1/runs/{ids.text(begun.run_id)}"
    return await shown(caller, begun.run_id)


@router.post("/{id}/override", status_code=202, responses=responses(401, 403, 404, 409, 413, 422))
async def override_node(
    caller: Annotated[RestCaller, asks(repairs.OVERRIDE)], id: RunName, body: OverrideNodeRequest
) -> m.Run:
    """Retry a failed run of a flow with the failure of one node replaced: it runs again, is skipped, or has the given output."""
    run_id = await caller.api.run_id(id)
    has_value = "value" in body.model_fields_set
    value = views.payload(body.value) if has_value else b""
    await caller.call(repairs.OVERRIDE, OverrideNode(ids.text(run_id), body.node, body.how, value))
    return await shown(caller, run_id)
