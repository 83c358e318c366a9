"""Named events."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.api import named_events
from perdure.core.api.named_events import EmitEvent, EventItem, EventStartItem, ListEvents
from perdure.core.limits import NAME_CHARS_MAX
from perdure.core.named_events import EVENT_NAME_CHARS_MAX
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.messages import MESSAGE_KEY_HELP, IdempotencyKey, MessageKey
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses

router = APIRouter(tags=["messages"], route_class=GuardedRoute)

EventName = Annotated[
    str,
    Path(min_length=1, max_length=EVENT_NAME_CHARS_MAX, description="The event's name.", examples=["order.paid"]),
]


class EmitEventRequest(m.Body):
    payload: Any = Field(default=None, description="The event's payload; any JSON.", examples=[{"order_id": 42}])
    key: MessageKey | None = Field(default=None, description=MESSAGE_KEY_HELP, examples=["payment-981"])


class EventStart(BaseModel):
    workflow: str
    outcome: Literal["started", "attached", "failed"] | None = Field(
        description="`attached`: an active run under its key stands for it. Null: not decided yet."
    )
    run_id: str | None
    error: str | None = Field(description="Why it could start no run.")


class EventSummary(BaseModel):
    id: str = Field(examples=["1207"])
    name: str
    key: str | None
    payload: Any
    source: str = Field(description="Its sender: a credential, a webhook, a program.", examples=["webhook:shop"])
    at: m.Moment
    reached: int = Field(description="Runs that waited for it and that it has reached so far.")
    started: int = Field(description="Runs that it has started so far.")
    failed: int = Field(description="Workflows that subscribe to it and of which it could start no run.")
    is_done: bool = Field(
        description="It has reached every run that was waiting for it, and started every run that it starts."
    )
    starts: list[EventStart] = Field(description="What became of it in the workflows that subscribe to it.")


class EmittedEvent(BaseModel):
    id: str = Field(examples=["1207"])
    name: str
    is_new: bool = Field(description="False: an event of this name and key existed before, and stands.")


@router.post("/events/{name}", status_code=202, responses=responses(401, 403, 413, 422))
async def emit_event(
    caller: Annotated[RestCaller, asks(named_events.EMIT)],
    name: EventName,
    body: EmitEventRequest | None = None,
    idempotency_key: IdempotencyKey = None,
) -> EmittedEvent:
    """Emit an event. Answered once it is durable; it reaches the runs that wait for it right after. Without a `key` in the body, the header
    `Idempotency-Key` is the event's key."""
    body = body or EmitEventRequest()
    payload = views.payload(body.payload)
    found = await caller.call(named_events.EMIT, EmitEvent(name, payload, body.key or idempotency_key or ""))
    return EmittedEvent(id=str(found.id), name=name, is_new=found.is_new)


@router.get("/events", responses=responses(401, 403, 422))
async def list_events(
    caller: Annotated[RestCaller, asks(named_events.LIST)],
    name: Annotated[str, Query(max_length=NAME_CHARS_MAX, description="Of this name only.")] = "",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[EventSummary]:
    """Events of the last days, newest first."""
    page = await caller.call(named_events.LIST, ListEvents(name, views.read_number_cursor(cursor), limit))
    return m.Page[EventSummary](items=[_event(e) for e in page.items], next=views.next_cursor(page.next))


def _start(s: EventStartItem) -> EventStart:
    outcome = cast(Literal["started", "attached", "failed"] | None, s.outcome)
    run_id = ids.text(s.run_id) if s.run_id is not None else None
    return EventStart(workflow=s.workflow, outcome=outcome, run_id=run_id, error=s.error)


def _event(e: EventItem) -> EventSummary:
    return EventSummary(
        id=str(e.id),
        name=e.name,
        key=e.key,
        payload=views.plain(e.body),
        source=e.source,
        at=views.moment(e.at_us),
        reached=e.matched,
        started=e.started,
        failed=e.failed,
        is_done=e.done_us is not None and not e.undecided,
        starts=[_start(s) for s in e.starts],
    )
