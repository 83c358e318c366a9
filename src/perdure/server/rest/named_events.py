"""Named events, and signals that start the run they are for."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Response
from pydantic import BaseModel, Field

from perdure.core.access import Permission
from perdure.core.errors import Forbidden
from perdure.core.limits import MESSAGE_KEY_CHARS_MAX, NAME_CHARS_MAX
from perdure.core.messages import SignalSent
from perdure.core.named_events import EVENT_NAME_CHARS_MAX
from perdure.engine.services.named_events import EventItem, NamedEvents
from perdure.server.context import Server
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, Operator, Reader
from perdure.server.rest.messages import IdempotencyKey, check_key
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses
from perdure.server.rest.runs import audit, shown
from perdure.server.rest.workflows import WorkflowName, request_of

router = APIRouter(tags=["messages"], route_class=GuardedRoute)

EventName = Annotated[
    str,
    Path(min_length=1, max_length=EVENT_NAME_CHARS_MAX, description="The event's name.", examples=["order.paid"]),
]
Key = Annotated[str, Field(min_length=1, max_length=MESSAGE_KEY_CHARS_MAX)]
KEY_HELP = "A text of your own: sent twice under the same one, it has its effect once."


class EmitEvent(m.Body):
    payload: Any = Field(default=None, description="What the event tells; any JSON.", examples=[{"order_id": 42}])
    key: Key | None = Field(default=None, description=KEY_HELP, examples=["payment-981"])


class EventView(BaseModel):
    id: str = Field(examples=["1207"])
    name: str
    key: str | None
    payload: Any
    source: str = Field(description="Who told of it: a credential, a webhook, a program.", examples=["webhook:shop"])
    at: m.Moment
    reached: int = Field(description="Runs that it has reached so far.")
    is_done: bool = Field(description="It has reached every run that was waiting for it.")


class EmittedView(BaseModel):
    id: str = Field(examples=["1207"])
    name: str
    is_new: bool = Field(description="False: an event of this name and key was there before, and stands.")


class SignalWithStart(m.StartRun):
    signal: m.Name = Field(description="The signal's name.")
    value: Any = Field(default=None, description="The signal's value; any JSON.")
    key: Key | None = Field(default=None, description=KEY_HELP)


def occasions_of(server: Server) -> NamedEvents:
    return server.engine.named_events


@router.post("/events/{name}", status_code=202, responses=responses(401, 403, 413, 422))
async def emit_event(
    caller: Operator, name: EventName, body: EmitEvent | None = None, idempotency_key: IdempotencyKey = None
) -> EmittedView:
    """Tell of an event. Answered once it is durable; it reaches the runs that wait for it right after. Without a `key` in the body, the header
    `Idempotency-Key` is the event's key."""
    body = body or EmitEvent()
    key = body.key or (check_key(idempotency_key) if idempotency_key else "")
    payload = views.payload(body.payload, f"the event {name!r}")
    found = await occasions_of(caller.server).emit(caller.ns, name, payload, key=key, source=caller.principal.subject)
    if found.fresh:
        await caller.server.audit(caller.principal, "event.emit", name, {"id": found.id}, ns=caller.ns)
    return EmittedView(id=str(found.id), name=name, is_new=found.fresh)


@router.get("/events", responses=responses(401, 403, 422))
async def list_events(
    caller: Reader,
    name: Annotated[str, Query(max_length=NAME_CHARS_MAX, description="Of this name only.")] = "",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[EventView]:
    """Events of the last days, newest first."""
    before = views.read_cursor(cursor, int)
    if before is not None and not 0 <= before < 1 << 63:
        raise views.no_cursor()
    found = await occasions_of(caller.server).store.events(caller.ns, name, before, limit + 1)
    page = found[:limit]
    return m.Page[EventView](
        items=[_view(e) for e in page], next=views.cursor_of(page[-1].id) if len(found) > limit else None
    )


def _view(e: EventItem) -> EventView:
    return EventView(
        id=str(e.id), name=e.name, key=e.key, payload=views.plain(e.body), source=e.source, at=views.moment(e.at_us),
        reached=e.matched, is_done=e.done_us is not None,
    )  # fmt: skip


@router.post("/workflows/{name}/signal-with-start", status_code=201, responses=responses(401, 403, 404, 409, 413, 422, s200={"model": m.Run, "description": "The run was there already."}))  # fmt: skip
async def signal_with_start(
    caller: Operator,
    name: WorkflowName,
    response: Response,
    body: SignalWithStart,
    traceparent: Annotated[str | None, Header(max_length=100)] = None,
) -> m.Run:
    """Send a signal to the run under `id`, and start that run if none is active there. Run and signal are written together."""
    if not caller.principal.may(Permission.START):
        raise Forbidden(f"{caller.principal.subject} has no permission to start runs")
    request = await request_of(caller, name, body, traceparent)
    signal = SignalSent(body.signal, views.payload(body.value, f"the signal {body.signal!r}"))
    run_id, started = await caller.use.signal_with_start(request, signal, body.key or "")
    response.status_code = 201 if started else 200
    if started:
        await audit(caller, "run.start", run_id, workflow=name)
    await audit(caller, "run.signal", run_id, name=body.signal)
    return await shown(caller, run_id)
