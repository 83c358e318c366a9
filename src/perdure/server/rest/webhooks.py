"""Webhooks: ways in for events from elsewhere, without a credential of ours.

Laws:

1. Who sends is told by a signature over the time and the very bytes of the body (core/webhooks.py). Nothing of a request is believed, read
   as JSON or kept before that holds.
2. It fails closed, and says no more than that: a webhook that is not there, a namespace that is not there, a signature that is missing,
   wrong or old get one and the same answer, after the same work.
3. A request that comes twice is one event.
4. Wrong signatures never stand in the way of right ones: the signature is checked first, and only refused requests are counted, per webhook and per
   client. What a check costs is bounded: WEBHOOK_BODY_BYTES_MAX of the body are read, one row is looked up, one hash is made.
"""

from __future__ import annotations

import logging
import secrets
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from perdure.core import webhooks
from perdure.core.access import NAMESPACE_CHARS_MAX
from perdure.core.errors import InvalidInput, NotFound, RateLimited
from perdure.core.limits import WEBHOOK_BODY_BYTES_MAX
from perdure.core.named_events import EVENT_NAME_CHARS_MAX
from perdure.engine.services.named_events import Hook, Webhook
from perdure.server.auth.addresses import client_of
from perdure.server.auth.rates import Buckets
from perdure.server.context import Server
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import Anyone, Caller, Developer, GuardedRoute, Reader, check_value, parse_json
from perdure.server.rest.named_events import occasions_of
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses
from perdure.server.secret_box import CannotOpen

log = logging.getLogger("perdure.server")

SECRET_PREFIX: Final = "pdh_"
WEBHOOK_NAME_CHARS_MAX: Final = 100
REFUSALS_PER_S: Final = 2.0
REFUSALS_BURST: Final = 50.0
"""Requests for one webhook, and from one client, that are told that they are refused: so many at once, then so many a second. More are told to wait."""
_NOBODY: Final = b"a secret that no webhook has"

router = APIRouter(prefix="/webhooks", tags=["webhooks"], route_class=GuardedRoute)

WebhookName = Annotated[
    str, Path(min_length=1, max_length=WEBHOOK_NAME_CHARS_MAX, pattern=r"^[A-Za-z0-9._-]+$", examples=["shop"])
]


class PutWebhook(m.Body):
    event: Annotated[str, Field(min_length=1, max_length=EVENT_NAME_CHARS_MAX)] = Field(
        description="The name of the event that a request becomes.", examples=["order.paid"]
    )


class WebhookView(BaseModel):
    name: str
    event: str
    url: str = Field(description="Where the sender is to POST to.")
    created_at: m.Moment
    created_by: str


class WebhookSecret(WebhookView):
    secret: str | None = Field(
        description="What the sender signs with. In this answer and nowhere else; null for a webhook that was there."
    )


def _view(caller: Caller, w: Webhook) -> dict[str, Any]:
    url = f"{caller.server.public_url}/hooks/{caller.namespace}/{w.name}"
    return {"name": w.name, "event": w.event, "url": url, "created_at": views.moment(w.created_us), "created_by": w.created_by}  # fmt: skip


def _new_secret(caller: Caller, name: str) -> tuple[str, bytes]:
    """A secret, and the same as it is stored."""
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    return secret, caller.server.secrets.seal(secret.encode(), _owner(caller.ns, name))


def _owner(ns: int, name: str) -> str:
    return f"webhook {name} of namespace {ns}"


@router.get("", responses=responses(401, 403, 422))
async def list_webhooks(caller: Reader, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> m.Page[WebhookView]:
    """Webhooks by name, without their secrets."""
    after = (views.read_cursor(cursor, str) or "").replace("\x00", "")
    found = await occasions_of(caller.server).store.webhooks(caller.ns, after, limit + 1)
    page = found[:limit]
    return m.Page[WebhookView](
        items=[WebhookView(**_view(caller, w)) for w in page],
        next=views.cursor_of(page[-1].name) if len(found) > limit else None,
    )


@router.put("/{name}", status_code=201, responses=responses(401, 403, 409, 413, 422, s200={"model": WebhookSecret, "description": "It was there already, and keeps its secret."}))  # fmt: skip
async def put_webhook(caller: Developer, name: WebhookName, body: PutWebhook, response: Response) -> WebhookSecret:
    """Make a webhook, or let one become another event."""
    secret, sealed = _new_secret(caller, name)
    port = occasions_of(caller.server).store
    made, fresh = await port.put_webhook(caller.ns, name, body.event, sealed, caller.principal.subject)
    response.status_code = 201 if fresh else 200
    await caller.server.audit(caller.principal, "webhook.put", name, {"event": body.event}, ns=caller.ns)
    return WebhookSecret(**_view(caller, made), secret=secret if fresh else None)


@router.post("/{name}/rotate", responses=responses(401, 403, 404, 409))
async def rotate_webhook(caller: Developer, name: WebhookName) -> WebhookSecret:
    """Give a webhook another secret. The old one ends at once."""
    secret, sealed = _new_secret(caller, name)
    found = await occasions_of(caller.server).store.rotate_webhook(caller.ns, name, sealed)
    if found is None:
        raise _unknown(name)
    await caller.server.audit(caller.principal, "webhook.rotate", name, ns=caller.ns)
    return WebhookSecret(**_view(caller, found), secret=secret)


@router.delete("/{name}", status_code=204, responses=responses(401, 403, 404))
async def delete_webhook(caller: Developer, name: WebhookName) -> None:
    """Close a webhook."""
    if not await occasions_of(caller.server).store.delete_webhook(caller.ns, name):
        raise _unknown(name)
    await caller.server.audit(caller.principal, "webhook.delete", name, ns=caller.ns)


def _unknown(name: str) -> NotFound:
    return NotFound(f"no webhook {name!r} in this namespace; `perdure webhook list` shows those there are")


# -- the way in ----------------------------------------------------------------------------------------------------


class HookRoute(GuardedRoute):
    """Leaves the body as it is: it is signed byte by byte, and not read before that is checked."""

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
    name: Annotated[str, Path(min_length=1, max_length=WEBHOOK_NAME_CHARS_MAX)],
) -> Response:
    """A request of a webhook. It becomes an event, once, however often it is sent."""
    server = request.app.state.server
    body: bytes = request.state.value or b""
    hook = await occasions_of(server).store.hook(namespace, name)
    given = request.headers.get(webhooks.HEADER.lower(), "")
    now_s = server.engine.clock.now_us() / 1e6
    secret = _opened(server, hook, name) if hook is not None else b""
    mark = webhooks.checked(secret or _NOBODY, given, body, now_s)
    if hook is None or not secret or mark is None:
        _count_refusal(request, f"{namespace}/{name}")
        raise NotFound(f"there is no such webhook, or this request is not signed for it now: see {webhooks.HEADER}")
    payload = _compact(body)
    emitted = await occasions_of(server).emit(
        hook.ns, hook.event, payload, key=f"hook:{mark}", source=f"webhook:{name}"
    )
    return Response(msgspec.json.encode({"id": str(emitted.id), "event": hook.event}), media_type="application/json")


def _opened(server: Server, hook: Hook, name: str) -> bytes:
    """Empty when this server cannot read it: nobody is let in, and the log says why."""
    try:
        return server.secrets.open(hook.secret, _owner(hook.ns, name))
    except CannotOpen as error:
        log.error("requests of a webhook are refused: %s. See PERDURE_SECRET_KEY_FILE", error)
        return b""


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
