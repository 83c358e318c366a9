"""Which event a request of a webhook becomes: its name and its key, from expressions over `body` and `headers`.

    event  a text with expressions: "github.${ headers['x-github-event'] }"
    key    an expression: `body.id`. Deliveries with the same key are one event. Null, or no expression: the fingerprint of the request

Only requests whose signature holds come this far. `headers` has names in lower case, without those that carry credentials.

Law: what cannot be evaluated over a request is InvalidInput, for that request alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from perdure.core import webhooks
from perdure.core.errors import ExprError, InvalidInput
from perdure.core.expressions import Expr, parse
from perdure.core.expressions.nodes import Meter
from perdure.core.expressions.template import Template
from perdure.core.limits import EVENT_MATCH_STEPS_MAX, EXPR_CHARS_MAX, MESSAGE_KEY_CHARS_MAX
from perdure.core.named_events import check_name
from perdure.core.names import UNSAFE, checked_name

SCOPE: Final = frozenset({"body", "headers"})
HIDDEN_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
HOOK_KEY: Final = "hook:"
"""Begins the key of every delivery. The end of a run keeps the keys of its messages that begin so (store/sql/commits.sql)."""
FORM: Final = "application/x-www-form-urlencoded"
FORM_FIELDS_MAX: Final = 1_000
_COMPILED: Final = 256
"""Templates and expressions that are kept in their compiled form."""

EVENTS: Final[Mapping[str, str]] = {
    webhooks.GITHUB: "github.${ headers['x-github-event'] }",
    webhooks.STRIPE: "stripe.${ body.type }",
    webhooks.SLACK: "slack.${ body.event.type ?? body.type ?? (exists body.command ? 'command' : null) }",
}
"""The name of the event, where a webhook does not say one. Of the scheme `standard` it begins with the webhook's own name."""
KEYS: Final[Mapping[str, str]] = {
    webhooks.STANDARD: "headers['webhook-id']",
    webhooks.GITHUB: "headers['x-github-delivery']",
    webhooks.STRIPE: "body.id",
    webhooks.SLACK: "body.event_id ?? body.trigger_id",
    webhooks.HMAC: "",
}


class WebhookEvent(msgspec.Struct, frozen=True):
    name: str
    key: str


def default_event(scheme: webhooks.SignatureScheme, webhook: str) -> str:
    """InvalidInput where there is none."""
    if scheme.kind == webhooks.STANDARD:
        return webhook + ".${ body.type }"
    if scheme.kind not in EVENTS:
        raise InvalidInput(f"a webhook of the scheme {scheme.kind} needs the name of its event, such as order.paid")
    return EVENTS[scheme.kind]


def default_key(scheme: webhooks.SignatureScheme) -> str:
    return KEYS[scheme.kind]


def check_event(event: str) -> None:
    """InvalidInput for a name or a template that can never be the name of an event."""
    try:
        template = template_of(check_length("event", event))
    except ExprError as e:
        raise InvalidInput(f"event: {e}") from None
    check_roots("event", template.roots)
    if template.is_constant:
        check_name(template.constant)


def check_key(key: str) -> None:
    if not key:
        return
    try:
        expr = expression_of(check_length("key", key))
    except ExprError as e:
        raise InvalidInput(f"key: {e}") from None
    check_roots("key", expr.roots)


def check_length(what: str, text: str) -> str:
    if 0 < len(text) <= EXPR_CHARS_MAX:
        return text
    raise InvalidInput(f"{what}: use 1 to EXPR_CHARS_MAX={EXPR_CHARS_MAX} characters")


def check_roots(what: str, roots: frozenset[str]) -> None:
    for root in sorted(roots - SCOPE):
        raise InvalidInput(f"{what}: unknown name {root!r}; it can read {' and '.join(sorted(SCOPE))}")


def event_of(webhook: str, event: str, key: str, request: Mapping[str, Any], fingerprint: str) -> WebhookEvent:
    """`request`: `body` and `headers` of a request whose signature holds."""
    meter = bounded_meter()
    try:
        template = template_of(event)
        if any(part.evaluate(request.__getitem__, meter) is None for part in template.exprs):
            raise InvalidInput(f"the request says nothing for the name of its event, {event}")
        name = template.evaluate(request.__getitem__, meter)
        ident = expression_of(key).evaluate(request.__getitem__, meter) if key else None
    except ExprError as e:
        raise InvalidInput(f"the event of this request cannot be told: {e}") from None
    if not isinstance(name, str):
        raise InvalidInput(f"the name of the event is text; {event} is something else for this request")
    return WebhookEvent(check_name(name), delivery_key(webhook, key, ident, fingerprint))


def bounded_meter() -> Meter:
    """Of all expressions over one request."""
    meter = Meter()
    meter.steps = EVENT_MATCH_STEPS_MAX
    return meter


def delivery_key(webhook: str, key: str, ident: Any, fingerprint: str) -> str:
    """The key of a request; `ident` is the value of the expression `key` over it."""
    if ident is not None and (isinstance(ident, bool) or not isinstance(ident, (str, int))):
        raise InvalidInput(f"the key of a request is text or a whole number; {key} is something else for this request")
    return _key(webhook, fingerprint if ident is None or ident == "" else str(ident))


def _key(webhook: str, ident: str) -> str:
    """As it is where it can be shown; a digest of what is too long or cannot be."""
    key = f"{HOOK_KEY}{webhook}:{ident}"
    if len(key) > MESSAGE_KEY_CHARS_MAX or UNSAFE.search(key):
        key = f"{HOOK_KEY}{webhook}:{hashlib.sha256(ident.encode(errors='surrogatepass')).hexdigest()}"
    return checked_name("message key", key, MESSAGE_KEY_CHARS_MAX)


def shown_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Those that expressions may read."""
    return {name: value for name, value in headers.items() if name not in HIDDEN_HEADERS}


def is_form(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == FORM


def form_fields(body: bytes) -> dict[str, Any]:
    """Fields by name; those that come several times are lists."""
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=FORM_FIELDS_MAX
        )
    except ValueError as e:
        raise InvalidInput(f"the body is not a form: {e}") from None
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name not in found:
            found[name] = value
        elif isinstance(found[name], list):
            found[name].append(value)
        else:
            found[name] = [found[name], value]
    return found


def json_field(fields: Mapping[str, Any]) -> str | None:
    """The JSON that GitHub and Slack put into the one field `payload` of a form: that is the body then."""
    text = fields.get("payload") if len(fields) == 1 else None
    return text if isinstance(text, str) and text.lstrip().startswith(("{", "[")) else None


def challenge(scheme: webhooks.SignatureScheme, body: Any) -> str | None:
    """What Slack asks an address to answer before it sends events to it."""
    if scheme.kind != webhooks.SLACK or not isinstance(body, dict) or body.get("type") != "url_verification":
        return None
    asked = body.get("challenge")
    return asked if isinstance(asked, str) else None


@lru_cache(_COMPILED)
def template_of(text: str) -> Template:
    return Template.make(text)


@lru_cache(_COMPILED)
def expression_of(text: str) -> Expr:
    return parse(text)
