"""Webhooks: signed requests from other systems that become events, without a Perdure credential.

Laws:

1. A signature over the time and the very bytes of the body names the sender (core/webhooks.py). Nothing of a request is used, read
   as JSON or kept before that holds.
2. It fails closed, and says no more than that: a missing webhook, a missing namespace, and a missing, wrong or old signature get one and
   the same answer, after the same work.
3. A request that comes twice is one event.
4. Wrong signatures never delay right ones: the signature is checked first, and only refused requests are counted, per webhook and per
   client. The cost of a check is bounded: WEBHOOK_BODY_BYTES_MAX of the body are read, one row is looked up, one hash is made.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from perdure.core import webhooks
from perdure.core.access import NAMESPACE_CHARS_MAX
from perdure.core.api import named_events as acts
from perdure.core.api.named_events import ListWebhooks, PutWebhook, WebhookItem, WebhookRef
from perdure.core.errors import InvalidInput, NotFound, RateLimited
from perdure.core.limits import WEBHOOK_BODY_BYTES_MAX
from perdure.core.named_events import EVENT_NAME_CHARS_MAX
from perdure.engine.api.named_events import check_hook, receive_hook
from perdure.server.auth.addresses import client_of
from perdure.server.auth.rates import Buckets
from perdure.server.context import Server
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import Anyone, GuardedRoute, RestCaller, asks, check_value, parse_json
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses

log = logging.getLogger("perdure.server")

REFUSALS_PER_S: Final = 2.0
REFUSALS_BURST: Final = 50.0
"""Refusals of one webhook, and of one client, that are answered at once: so many, then so many a second. Further requests must wait."""

router = APIRouter(prefix="/webhooks", tags=["webhooks"], route_class=GuardedRoute)

WebhookName = Annotated[
    str, Path(min_length=1, max_length=webhooks.NAME_CHARS_MAX, pattern=r"^[A-Za-z0-9._-]+$", examples=["shop"])
]


class PutWebhookRequest(m.Body):
    event: Annotated[str, Field(min_length=1, max_length=EVENT_NAME_CHARS_MAX)] = Field(
        description="The name of the event that a request becomes.", examples=["order.paid"]
    )


class Webhook(BaseModel):
    name: str
    event: str
    url: str = Field(description="Where the sender is to POST to.")
    created_at: m.Moment
    created_by: str


class WebhookWithSecret(Webhook):
    secret: str | None = Field(
        description="What the sender signs with. In this answer and nowhere else; null for a webhook that existed before."
    )


def _fields(caller: RestCaller, w: WebhookItem) -> dict[str, Any]:
    return {
        "name": w.name,
        "event": w.event,
        "url": f"{caller.api.api.public_url}/hooks/{caller.api.caller.namespace}/{w.name}",
        "created_at": views.moment(w.created_us),
        "created_by": w.created_by,
    }


@router.get("", responses=responses(401, 403, 422))
async def list_webhooks(
    caller: Annotated[RestCaller, asks(acts.LIST_WEBHOOKS)], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[Webhook]:
    """Webhooks by name, without their secrets."""
    page = await caller.call(acts.LIST_WEBHOOKS, ListWebhooks(views.read_text_cursor(cursor), limit))
    items = [Webhook(**_fields(caller, w)) for w in page.items]
    return m.Page[Webhook](items=items, next=views.next_cursor(page.next))


@router.put(
    "/{name}",
    status_code=201,
    responses=responses(
        401,
        403,
        409,
        413,
        422,
        s200={"model": WebhookWithSecret, "description": "It existed before, and keeps its secret."},
    ),
)
async def put_webhook(
    caller: Annotated[RestCaller, asks(acts.PUT_WEBHOOK)],
    name: WebhookName,
    body: PutWebhookRequest,
    response: Response,
) -> WebhookWithSecret:
    """Create a webhook, or change its event."""
    made = await caller.call(acts.PUT_WEBHOOK, PutWebhook(name, body.event))
    response.status_code = 201 if made.secret is not None else 200
    return WebhookWithSecret(**_fields(caller, made.webhook), secret=made.secret)


@router.post("/{name}/rotate", responses=responses(401, 403, 404, 409))
async def rotate_webhook(
    caller: Annotated[RestCaller, asks(acts.ROTATE_WEBHOOK)], name: WebhookName
) -> WebhookWithSecret:
    """Give a webhook another secret. The old one ends at once."""
    made = await caller.call(acts.ROTATE_WEBHOOK, WebhookRef(name))
    return WebhookWithSecret(**_fields(caller, made.webhook), secret=made.secret)


@router.delete("/{name}", status_code=204, responses=responses(401, 403, 404))
async def delete_webhook(caller: Annotated[RestCaller, asks(acts.DELETE_WEBHOOK)], name: WebhookName) -> None:
    """Delete a webhook."""
    await caller.call(acts.DELETE_WEBHOOK, WebhookRef(name))


class HookRoute(GuardedRoute):
    """Leaves the body as it is: it is signed byte by byte, and not parsed before that is checked."""

    takes_any_query = True  # senders add parameters of their own

    body_bytes_max = WEBHOOK_BODY_BYTES_MAX

    def parse(self, request: Request, body: bytes) -> Any:
        return body


hooks = APIRouter(include_in_schema=False, route_class=HookRoute)


@hooks.post("/hooks/{namespace}/{name}")
async def receive(
    _: Anyone,
    request: Request,
    namespace: Annotated[str, Path(min_length=1, max_length=NAMESPACE_CHARS_MAX)],
    name: Annotated[str, Path(min_length=1, max_length=webhooks.NAME_CHARS_MAX)],
) -> Response:
    """A request of a webhook. It becomes an event, once, however often it is sent."""
    server: Server = request.app.state.server
    body: bytes = request.state.value or b""
    hook = await check_hook(server.api, namespace, name, request.headers.get(webhooks.HEADER.lower(), ""), body)
    if hook is None:
        _count_refusal(request, f"{namespace}/{name}")
        raise NotFound(f"there is no such webhook, or this request is not signed for it now: see {webhooks.HEADER}")
    emitted = await receive_hook(server.api, hook, name, _compact(body))
    return Response(msgspec.json.encode({"id": str(emitted.id), "event": hook.event}), media_type="application/json")


def _count_refusal(request: Request, hook: str) -> None:
    """RateLimited when there were too many lately."""
    log.warning("a request for webhook %s is not signed for it and was refused", hook)
    rates: Buckets = request.app.state.link_rates
    client = client_of(request.client.host) if request.client else ""
    wait = max(rates.take(place, REFUSALS_PER_S, REFUSALS_BURST) for place in (f"hook:{hook}", f"hooks of:{client}"))
    if wait:
        raise RateLimited(f"too many requests were refused lately: wait {wait:.1f} s", wait)


def _compact(body: bytes) -> bytes:
    if not body:
        return b"null"
    value = parse_json(body)
    check_value(value)
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError) as e:
        raise InvalidInput(f"the body cannot be kept: {e}") from None
