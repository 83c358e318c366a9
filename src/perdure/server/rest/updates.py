"""Updates of a run: ask it to change something and wait for what it says. And its states, for those who only look."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from perdure.core.errors import update_error
from perdure.core.limits import NAME_CHARS_MAX, UPDATE_WAIT_S_MAX
from perdure.core.messages import UpdateAsked
from perdure.core.work import Answer
from perdure.engine.api.updates import Updates
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import Caller, GuardedRoute, Operator, Reader
from perdure.server.rest.messages import MessageName
from perdure.server.rest.paging import Cursor
from perdure.server.rest.problems import responses
from perdure.server.rest.run_lookup import RunName, resolve
from perdure.server.rest.runs import audit

STATES_PAGE_MAX = 100
"""States on one page; each may have PAYLOAD_BYTES_MAX bytes."""


class AskUpdate(m.Body):
    value: Any = Field(default=None, description="What is asked for; any JSON.")
    id: m.Name | None = Field(
        default=None, description="A text of your own: asked for twice under the same one, it is done once."
    )
    wait: Annotated[float, Field(ge=0, le=UPDATE_WAIT_S_MAX)] = Field(
        default=UPDATE_WAIT_S_MAX, description="Seconds to wait for the answer."
    )


class UpdateAnswer(BaseModel):
    id: str
    status: Literal["done", "pending"]
    value: Any = None


PENDING = {"model": UpdateAnswer, "description": "It has not been answered yet; ask for it by its id."}
router = APIRouter(prefix="/runs", tags=["messages"], route_class=GuardedRoute)


@router.post("/{id}/updates/{name}", responses=responses(401, 403, 404, 409, 413, 422, s202=PENDING))
async def ask_update(
    caller: Operator, id: RunName, name: MessageName, response: Response, body: AskUpdate | None = None
) -> UpdateAnswer:
    """Ask a run to change something, and wait for its answer. A run that continued as new is followed. What the run refuses is a problem
    `update_rejected`; what went wrong while it was handled is `update_failed`."""
    run_id = await resolve(caller, id)
    wanted = body or AskUpdate()
    asked = UpdateAsked(wanted.id or uuid4().hex, name, views.payload(wanted.value, f"the update {name!r}"))
    answer = await _updates(caller).ask(caller.use, run_id, asked, wanted.wait)
    await audit(caller, "run.update", run_id, name=name)
    return _shown(asked.id, answer, response)


@router.get("/{id}/updates/{update_id}", responses=responses(401, 403, 404, 409, 422, s202=PENDING))
async def get_update(
    caller: Reader,
    id: RunName,
    update_id: Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX)],
    response: Response,
) -> UpdateAnswer:
    """The answer to an update that was asked for under this id."""
    run_id = await resolve(caller, id)
    return _shown(update_id, await _updates(caller).find(caller.use, run_id, update_id), response)


@router.get("/{id}/state", responses=responses(401, 403, 404, 409, 422))
async def list_state(
    caller: Reader,
    id: RunName,
    limit: Annotated[int, Query(ge=1, le=STATES_PAGE_MAX, description="Items of one page at most.")] = 50,
    cursor: Cursor = None,
) -> m.Page[m.StateValue]:
    """The states that a run has set, by name. The run is not disturbed: it is neither woken nor claimed."""
    run_id = await resolve(caller, id)
    after = views.read_cursor(cursor, str) or ""
    found = await _updates(caller).states(caller.use, run_id, after, limit + 1)
    return m.Page[m.StateValue](
        items=[m.StateValue(name=name, value=views.plain(value)) for name, value in found[:limit]],
        next=views.cursor_of(found[limit - 1][0]) if len(found) > limit else None,
    )


def _updates(caller: Caller) -> Updates:
    return caller.server.engine.updates


def _shown(id: str, answer: Answer | None, response: Response) -> UpdateAnswer:
    if answer is None:
        response.status_code = 202
        return UpdateAnswer(id=id, status="pending")
    if answer.failure is not None:
        raise update_error(answer.failure)
    return UpdateAnswer(id=id, status="done", value=views.plain(answer.value))
