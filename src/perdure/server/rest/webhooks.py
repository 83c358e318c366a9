"""Webhooks: signed requests from other systems that become events or signals, without a Perdure credential.

Laws:

1. A signature over the very bytes of the body names the sender (core/webhooks.py). Nothing of a request is used, parsed or kept
   before that holds.
2. It fails closed, and says no more than that: a missing webhook, a missing namespace, and a missing, wrong or old signature get one and
   the same answer, after the same work.
3. A delivery that comes twice is one event (core/webhook_events.py) or one signal (core/webhook_signals.py). It is answered once that
   is durable.
4. Wrong signatures never delay right ones: the signature is checked first, and only refused requests are counted, per webhook and per
   client. The cost of a check is bounded: WEBHOOK_BODY_BYTES_MAX of the body are read, one row is looked up, and as many hashes are made as the webhook has secrets: two at most.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from perdure.core import ids, webhook_events, webhooks
from perdure.core.access import NAMESPACE_CHARS_MAX
from perdure.core.api import named_events as acts
from perdure.core.api.named_events import (
    ListWebhooks,
    PutWebhook,
    RotateWebhook,
    SignalTarget,
    WebhookItem,
    WebhookRef,
)
from perdure.core.durations import to_us
from perdure.core.errors import InvalidInput, NotFound, RateLimited
from perdure.core.limits import EXPR_CHARS_MAX, NAME_CHARS_MAX, WEBHOOK_BODY_BYTES_MAX, WEBHOOK_SECRET_CHARS_MAX
from perdure.core.webhooks import AFFIX_CHARS_MAX, SignatureScheme
from perdure.engine.api.webhooks import ReceivedHook, check_hook, receive_hook, signal_hook
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


Scheme = Literal["standard", "github", "stripe", "slack", "hmac"]
Algorithm = Literal["sha256", "sha1", "sha384", "sha512"]
Encoding = Literal["hex", "base64"]
Secret = Annotated[str, Field(max_length=WEBHOOK_SECRET_CHARS_MAX)]


class PutWebhookRequest(m.Body):
    event: Annotated[str, Field(max_length=EXPR_CHARS_MAX)] = Field(
        default="",
        description="The name of the event that a request becomes, with expressions over `body` and `headers`. Without one it is that of the scheme.",
        examples=["order.paid", "github.${ headers['x-github-event'] }"],
    )
    signal: Annotated[str, Field(max_length=NAME_CHARS_MAX)] = Field(
        default="",
        description="In place of `event`: the name of the signal that a request becomes. It goes to one run.",
        examples=["paid"],
    )
    run: Annotated[str, Field(max_length=EXPR_CHARS_MAX)] = Field(
        default="",
        description="With `signal`: `key:` and the key of the run, or its id, with expressions over `body` and `headers`.",
        examples=["key:order-${ body.order_id }"],
    )
    value: Annotated[str, Field(max_length=EXPR_CHARS_MAX)] = Field(
        default="",
        description="With `signal`: an expression for its value; the body unless given.",
        examples=["body.amount"],
    )
    start: Annotated[str, Field(max_length=NAME_CHARS_MAX)] = Field(
        default="",
        description="With `signal`: the workflow of a run that is started under the key of `run` if none is active there.",
        examples=["checkout"],
    )
    input: Annotated[str, Field(max_length=EXPR_CHARS_MAX)] = Field(
        default="",
        description="With `start`: an expression for the run's input. An object has the arguments by name; no arguments unless given.",
        examples=["{order: body.order_id}"],
    )
    scheme: Scheme = Field(default="standard", description="How the sender signs.")
    key: Annotated[str, Field(max_length=EXPR_CHARS_MAX)] = Field(
        default="",
        description="An expression over `body` and `headers`: requests with the same key are one event, or one signal. Without one it is that of the scheme.",
        examples=["body.id"],
    )
    header: Annotated[str, Field(max_length=AFFIX_CHARS_MAX)] = Field(
        default="", description="Scheme `hmac`: the header that holds the signature.", examples=["X-Signature"]
    )
    algorithm: Algorithm = Field(default="sha256", description="Scheme `hmac`.")
    prefix: Annotated[str, Field(max_length=AFFIX_CHARS_MAX)] = Field(
        default="", description="Scheme `hmac`: what stands before the signature.", examples=["sha256="]
    )
    encoding: Encoding = Field(default="hex", description="Scheme `hmac`.")
    secret: Secret = Field(
        default="",
        description="The sender's own secret. Without one a new webhook gets one, and an existing webhook keeps its own.",
    )


class RotateWebhookRequest(m.Body):
    secret: Secret = Field(default="", description="The sender's own secret. Without one it is made.")
    keep_old: m.Seconds | m.DurationText = Field(
        default=0.0, description="How long the secret that is replaced stays valid.", examples=["24h"]
    )


class Webhook(BaseModel):
    name: str
    event: str | None = Field(
        description="The name of the event that a request becomes, with expressions; null beside a signal."
    )
    signal: str | None = Field(description="The name of the signal that a request becomes; null beside an event.")
    run: str | None = Field(description="The run that gets the signal, with expressions.")
    value: str | None = Field(description="An expression for the signal's value; null: the body.")
    start: str | None = Field(description="The workflow of a run that is started if none is active under the key.")
    input: str | None = Field(description="An expression for the input of the started run.")
    key: str = Field(description="Requests with the same value of this expression are one event, or one signal.")
    scheme: Scheme = Field(description="How the sender signs.")
    header: str | None = Field(description="Scheme `hmac`: the header that holds the signature.")
    url: str = Field(description="Where the sender is to POST to.")
    old_secret_until: m.Moment | None = Field(description="Until when the secret before the current one is valid.")
    created_at: m.Moment
    created_by: str


class WebhookWithSecret(Webhook):
    secret: str | None = Field(
        description="What the sender signs with. In this answer and nowhere else; null for a secret that was given or existed before."
    )


def _fields(caller: RestCaller, w: WebhookItem) -> dict[str, Any]:
    return {
        "name": w.name,
        "event": w.event or None,
        **{name: w.signal and (getattr(w.signal, name) or None) for name in SignalTarget.__struct_fields__},
        "key": w.key,
        "scheme": w.scheme.kind,
        "header": w.scheme.header or None,
        "old_secret_until": views.moment_or_none(w.old_until_us),
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
        s200={"model": WebhookWithSecret, "description": "It existed before."},
    ),
)
async def put_webhook(
    caller: Annotated[RestCaller, asks(acts.PUT_WEBHOOK)],
    name: WebhookName,
    body: PutWebhookRequest,
    response: Response,
) -> WebhookWithSecret:
    """Create a webhook, or change one. Without `secret` an existing one keeps its secret."""
    scheme = SignatureScheme(body.scheme, body.header, body.algorithm, body.prefix, body.encoding)
    target = SignalTarget(body.signal, body.run, body.value, body.start, body.input)
    signal = target if target != SignalTarget("", "") else None
    made = await caller.call(acts.PUT_WEBHOOK, PutWebhook(name, body.event, scheme, body.key, body.secret, signal))
    response.status_code = 201 if made.is_new else 200
    return WebhookWithSecret(**_fields(caller, made.webhook), secret=made.secret)


@router.post("/{name}/rotate", responses=responses(401, 403, 404, 409, 413, 422))
async def rotate_webhook(
    caller: Annotated[RestCaller, asks(acts.ROTATE_WEBHOOK)],
    name: WebhookName,
    body: RotateWebhookRequest | None = None,
) -> WebhookWithSecret:
    """Give a webhook another secret. The old one ends at once, or after `keep_old`."""
    asked = body or RotateWebhookRequest()
    request = RotateWebhook(name, asked.secret, to_us(asked.keep_old))
    made = await caller.call(acts.ROTATE_WEBHOOK, request)
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
    """A request of a webhook. It becomes an event or a signal, once, however often it is sent."""
    server: Server = request.app.state.server
    body: bytes = request.state.value or b""
    headers = _headers(request)
    hook = await check_hook(server.api, namespace, name, headers, body)
    if hook is None:
        _count_refusal(request, f"{namespace}/{name}")
        raise NotFound("there is no such webhook, or this request is not signed for it now")
    value = _value(headers.get("content-type", ""), body)
    if (asked := webhook_events.challenge(hook.spec.scheme, value)) is not None:
        return _json({"challenge": asked})
    reply = await (
        _signal(server, namespace, hook, value, headers) if hook.spec.signal else _event(server, hook, value, headers)
    )
    # Slack shows a body to the person who gave the command, and takes no other status for a success.
    return Response() if hook.spec.scheme.kind == webhooks.SLACK else reply


async def _event(server: Server, hook: ReceivedHook, value: Any, headers: webhooks.Headers) -> Response:
    event = hook.event_of(value, headers)
    emitted = await receive_hook(server.api, hook, event, _encoded(value))
    return _json({"id": str(emitted.id), "event": event.name})


async def _signal(
    server: Server, namespace: str, hook: ReceivedHook, value: Any, headers: webhooks.Headers
) -> Response:
    assert hook.spec.signal is not None
    _encoded(value)  # what cannot be kept is refused as for an event
    run_id = await signal_hook(server.api, namespace, hook, hook.signal_of(value, headers))
    return _json({"run_id": ids.text(run_id), "signal": hook.spec.signal.signal}, 202)


def _json(answer: dict[str, str], status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


def _headers(request: Request) -> dict[str, str]:
    """By name, in lower case. One that comes twice is joined as HTTP has it, which no signature survives."""
    found: dict[str, str] = {}
    for name, value in request.headers.items():
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _count_refusal(request: Request, hook: str) -> None:
    """RateLimited when there were too many lately."""
    log.warning("a request for webhook %s is not signed for it and was refused", hook)
    rates: Buckets = request.app.state.link_rates
    client = client_of(request.client.host) if request.client else ""
    wait = max(rates.take(place, REFUSALS_PER_S, REFUSALS_BURST) for place in (f"hook:{hook}", f"hooks of:{client}"))
    if wait:
        raise RateLimited(f"too many requests were refused lately: wait {wait:.1f} s", wait)


def _value(content_type: str, body: bytes) -> Any:
    """The body as JSON, or the fields of a form."""
    if not webhook_events.is_form(content_type):
        return parse_json(body) if body else None
    fields = webhook_events.form_fields(body)
    if (text := webhook_events.json_field(fields)) is not None:
        return parse_json(text.encode())
    check_value(fields)
    return fields


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError) as e:
        raise InvalidInput(f"the body cannot be kept: {e}") from None
