"""Acts on named events and webhooks, and the reception of signed webhook requests."""

from __future__ import annotations

import logging
import secrets
from typing import Final

import msgspec

from perdure.core import webhooks
from perdure.core.api import named_events as acts
from perdure.core.api.named_events import (
    EmitEvent,
    EventEmitted,
    EventPage,
    ListEvents,
    ListWebhooks,
    PutWebhook,
    WebhookPage,
    WebhookRef,
    WebhookReply,
)
from perdure.core.errors import CannotOpenSecret, NotFound
from perdure.core.named_events import check_name as check_event_name
from perdure.engine.api.api import Api, NamespaceApi, handles, page_limit

log = logging.getLogger("perdure.server")

SECRET_PREFIX: Final = "pdh_"
NO_SECRET: Final = b"a secret that no webhook has"
"""Checked against where there is no webhook, so that a missing one takes as long as a wrong signature."""


@handles(acts.EMIT)
async def emit(api: NamespaceApi, r: EmitEvent) -> EventEmitted:
    """The event reaches the runs that wait for it right after it is durable."""
    emitted = await api.engine.named_events.emit(api.ns, r.name, r.payload, key=r.key, source=api.by)
    if emitted.is_new:
        await api.record("event.emit", r.name, id=emitted.id)
    return emitted


@handles(acts.LIST)
async def list_events(api: NamespaceApi, r: ListEvents) -> EventPage:
    limit = page_limit(r.limit)
    found = await api.engine.named_events.store.events(api.ns, r.name, r.before, limit + 1)
    return EventPage(found[:limit], found[limit - 1].id if len(found) > limit else None)


@handles(acts.LIST_WEBHOOKS)
async def list_webhooks(api: NamespaceApi, r: ListWebhooks) -> WebhookPage:
    limit = page_limit(r.limit)
    found = await api.engine.named_events.store.webhooks(api.ns, r.after, limit + 1)
    return WebhookPage(found[:limit], found[limit - 1].name if len(found) > limit else None)


@handles(acts.PUT_WEBHOOK)
async def put_webhook(api: NamespaceApi, r: PutWebhook) -> WebhookReply:
    webhooks.check_name(r.name)
    check_event_name(r.event)
    secret, sealed = _new_secret(api, r.name)
    made, is_new = await api.engine.named_events.store.put_webhook(api.ns, r.name, r.event, sealed, api.by)
    await api.record("webhook.put", r.name, event=r.event)
    return WebhookReply(made, secret if is_new else None)


@handles(acts.ROTATE_WEBHOOK)
async def rotate_webhook(api: NamespaceApi, r: WebhookRef) -> WebhookReply:
    """The old secret ends at once."""
    secret, sealed = _new_secret(api, r.name)
    found = await api.engine.named_events.store.rotate_webhook(api.ns, r.name, sealed)
    if found is None:
        raise _unknown(r.name)
    await api.record("webhook.rotate", r.name)
    return WebhookReply(found, secret)


@handles(acts.DELETE_WEBHOOK)
async def delete_webhook(api: NamespaceApi, r: WebhookRef) -> None:
    if not await api.engine.named_events.store.delete_webhook(api.ns, r.name):
        raise _unknown(r.name)
    await api.record("webhook.delete", r.name)


def _unknown(name: str) -> NotFound:
    return NotFound(f"no webhook {name!r} in this namespace; `perdure webhook list` shows the existing ones")


def _new_secret(api: NamespaceApi, name: str) -> tuple[str, bytes]:
    """A secret, plain and as it is stored."""
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    return secret, api.ports.secrets.seal(secret.encode(), _owner(api.ns, name))


def _owner(ns: int, name: str) -> str:
    return f"webhook {name} of namespace {ns}"


class ReceivedHook(msgspec.Struct, frozen=True):
    """A request whose signature holds."""

    ns: int
    event: str
    mark: str
    """Of the request: a repetition has the same."""


async def check_hook(api: Api, namespace: str, name: str, signature: str, body: bytes) -> ReceivedHook | None:
    """None when there is no such webhook or the request is not signed for it now. The signature is the credential, so this is no act."""
    hook = await api.engine.named_events.store.hook(namespace, name)
    secret = b""
    if hook is not None:
        try:
            secret = api.ports.secrets.open(hook.secret, _owner(hook.ns, name))
        except CannotOpenSecret as error:
            log.error("requests of a webhook are refused: %s. See PERDURE_SECRET_KEY_FILE", error)
    mark = webhooks.checked(secret or NO_SECRET, signature, body, api.engine.clock.now_us() / 1e6)
    if hook is None or not secret or mark is None:
        return None
    return ReceivedHook(hook.ns, hook.event, mark)


async def receive_hook(api: Api, hook: ReceivedHook, name: str, payload: bytes) -> EventEmitted:
    """The request becomes an event, once, however often it is sent."""
    key, source = f"hook:{hook.mark}", f"webhook:{name}"
    return await api.engine.named_events.emit(hook.ns, hook.event, payload, key=key, source=source)
