"""Messages into a run: signals, promise values and updates; and the states that a run publishes."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from uuid import uuid4

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import BaseModel, Field

from perdure.core.api import messages
from perdure.core.api.messages import (
    AskQuery,
    AskUpdate,
    GetUpdate,
    ListStates,
    ResolvePromise,
    SendSignal,
    SignalWithStart,
)
from perdure.core.errors import InvalidInput, QueryFailed, update_error
from perdure.core.limits import IDEMPOTENCY_KEY_CHARS_MAX, MESSAGE_KEY_CHARS_MAX, NAME_CHARS_MAX, UPDATE_WAIT_S_MAX
from perdure.core.work import UpdateAnswer
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import Cursor
from perdure.server.rest.problems import responses
from perdure.server.rest.runs import RunName, shown
from perdure.server.rest.start_requests import StartRunRequest, WorkflowName, start_request

STATES_PAGE_MAX: Final = 100
"""States on one page; each may have PAYLOAD_BYTES_MAX bytes."""
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=IDEMPOTENCY_KEY_CHARS_MAX,
        description="A text of your own for this request: sent twice under the same one, it has its effect once.",
    ),
]
MessageName = Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX)]
MessageKey = Annotated[str, Field(min_length=1, max_length=MESSAGE_KEY_CHARS_MAX)]
MESSAGE_KEY_HELP: Final = "A text of your own: sent twice under the same one, it has its effect once."
ANY_JSON: Final = {
    "requestBody": {
        "description": "The value.",
        "content": {"application/json": {"schema": {}, "example": {"approved": True}}},
    }
}
ARGUMENTS: Final = {
    "requestBody": {
        "description": "The arguments of the query by name.",
        "content": {"application/json": {"schema": {"type": "object"}, "example": {"digits": 1}}},
    }
}

router = APIRouter(tags=["messages"], route_class=GuardedRoute)


class SignalWithStartRequest(StartRunRequest):
    signal: m.Name = Field(description="The signal's name.")
    value: Any = Field(default=None, description="The signal's value; any JSON.")
    signal_key: MessageKey | None = Field(default=None, description=MESSAGE_KEY_HELP)


class AskUpdateRequest(m.Body):
    value: Any = Field(default=None, description="What is asked for; any JSON.")
    key: m.Name | None = Field(
        default=None, description="A text of your own: asked for twice under the same one, it is done once."
    )
    wait: Annotated[float, Field(ge=0, le=UPDATE_WAIT_S_MAX)] = Field(
        default=UPDATE_WAIT_S_MAX, description="Seconds to wait for the answer."
    )


class Update(BaseModel):
    """An update of a run. What the run refused is a problem instead."""

    key: str
    status: Literal["done", "pending"]
    value: Any = None


class QueryValue(BaseModel):
    """The answer to a query."""

    name: str
    value: Any


PENDING: Final = {"model": Update, "description": "It has not been answered yet; ask for it by its key."}


@router.post(
    "/runs/{id}/signals/{name}",
    status_code=202,
    response_class=Response,
    openapi_extra=ANY_JSON,
    responses=responses(401, 403, 404, 409, 413, 422),
)
async def send_signal(
    request: Request,
    caller: Annotated[RestCaller, asks(messages.SIGNAL)],
    id: RunName,
    name: MessageName,
    key: Annotated[str, Query(max_length=MESSAGE_KEY_CHARS_MAX, description=MESSAGE_KEY_HELP)] = "",
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Send a signal; the body is its value, no body is null. A run that continued as new is followed."""
    value = views.payload(request.state.value)
    await caller.call(messages.SIGNAL, SendSignal(id, name, value, key, idempotency_key or ""))
    return Response(status_code=202)


@router.post(
    "/workflows/{name}/signal-with-start",
    status_code=201,
    responses=responses(401, 403, 404, 409, 413, 422, s200={"model": m.Run, "description": "The run existed before."}),
)
async def signal_with_start(
    caller: Annotated[RestCaller, asks(messages.SIGNAL_WITH_START)],
    name: WorkflowName,
    response: Response,
    body: SignalWithStartRequest,
    traceparent: Annotated[str | None, Header(max_length=100)] = None,
) -> m.Run:
    """Send a signal to the run under `key`, and start that run if none is active there. Run and signal are written together."""
    value = views.payload(body.value)
    start = start_request(caller, name, body, traceparent, None)
    sent = await caller.call(
        messages.SIGNAL_WITH_START, SignalWithStart(start, body.signal, value, body.signal_key or "")
    )
    response.status_code = 201 if sent.is_new else 200
    return await shown(caller, sent.run_id)


@router.post(
    "/runs/{id}/promises/{name}",
    status_code=202,
    response_class=Response,
    openapi_extra=ANY_JSON,
    responses=responses(401, 403, 404, 409, 413, 422),
)
async def resolve_promise(
    request: Request, caller: Annotated[RestCaller, asks(messages.RESOLVE)], id: RunName, name: MessageName
) -> Response:
    """Give a promise its value; the body is the value. The first value stands; a second one is refused."""
    value = views.payload(request.state.value)
    await caller.call(messages.RESOLVE, ResolvePromise(id, name, value))
    return Response(status_code=202)


@router.post("/runs/{id}/updates/{name}", responses=responses(401, 403, 404, 409, 413, 422, s202=PENDING))
async def ask_update(
    caller: Annotated[RestCaller, asks(messages.UPDATE)],
    id: RunName,
    name: MessageName,
    response: Response,
    body: AskUpdateRequest | None = None,
) -> Update:
    """Ask a run to change something, and wait for its answer. A run that continued as new is followed. What the run refuses is a problem
    `update_rejected`; what went wrong while it was handled is `update_failed`."""
    wanted = body or AskUpdateRequest()
    key, value = wanted.key or uuid4().hex, views.payload(wanted.value)
    reply = await caller.call(messages.UPDATE, AskUpdate(id, name, value, key, wanted.wait))
    return _update(key, reply.answer, response)


@router.get("/runs/{id}/updates/{key}", responses=responses(401, 403, 404, 409, 422, s202=PENDING))
async def get_update(
    caller: Annotated[RestCaller, asks(messages.UPDATE_RESULT)],
    id: RunName,
    key: Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX)],
    response: Response,
) -> Update:
    """The answer to an update that was asked for under this key."""
    return _update(key, (await caller.call(messages.UPDATE_RESULT, GetUpdate(id, key))).answer, response)


def _update(key: str, answer: UpdateAnswer | None, response: Response) -> Update:
    if answer is None:
        response.status_code = 202
        return Update(key=key, status="pending")
    if answer.failure is not None:
        raise update_error(answer.failure)
    return Update(key=key, status="done", value=views.plain(answer.value))


@router.post(
    "/runs/{id}/queries/{name}", openapi_extra=ARGUMENTS, responses=responses(401, 403, 404, 409, 413, 422, 503)
)
async def query_run(
    request: Request, caller: Annotated[RestCaller, asks(messages.QUERY)], id: RunName, name: MessageName
) -> QueryValue:
    """Compute a query of the run's workflow; the body has its arguments by name. A worker computes it from the states of the run, which is
    neither woken nor claimed. A problem `query_failed` says what its code raised; `unavailable`, which worker is missing."""
    arguments = request.state.value if request.state.value is not None else {}
    if not isinstance(arguments, dict):
        raise InvalidInput("the body of a query is a JSON object: its arguments by name")
    reply = await caller.call(messages.QUERY, AskQuery(id, name, views.payload(arguments)))
    if reply.failure is not None:
        raise QueryFailed(reply.failure)
    return QueryValue(name=name, value=views.plain(reply.value))


@router.get("/runs/{id}/state", responses=responses(401, 403, 404, 409, 422))
async def list_state(
    caller: Annotated[RestCaller, asks(messages.STATES)],
    id: RunName,
    limit: Annotated[int, Query(ge=1, le=STATES_PAGE_MAX, description="Items of one page at most.")] = 50,
    cursor: Cursor = None,
) -> m.Page[m.StateValue]:
    """The states that a run has set, by name. Reading neither wakes nor claims the run."""
    page = await caller.call(messages.STATES, ListStates(id, views.read_cursor(cursor, str) or "", limit))
    items = [m.StateValue(name=name, value=views.plain(value)) for name, value in page.items]
    return m.Page[m.StateValue](items=items, next=views.next_cursor(page.next))
