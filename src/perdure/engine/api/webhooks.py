"""Acts on webhooks, and the reception of signed requests."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from perdure.core import ids, webhook_events, webhook_signals, webhooks
from perdure.core.access import Principal, Role
from perdure.core.api import messages
from perdure.core.api import named_events as acts
from perdure.core.api.messages import SendSignal, SignalWithStart
from perdure.core.api.named_events import (
    EventEmitted,
    ListWebhooks,
    PutWebhook,
    RotateWebhook,
    WebhookPage,
    WebhookRef,
    WebhookReply,
)
from perdure.core.calls import encode_input, encode_json
from perdure.core.durations import human
from perdure.core.errors import CannotOpenSecret, InvalidInput, NotFound, NotRegistered, Unavailable
from perdure.core.limits import WEBHOOK_OLD_SECRET_S_MAX
from perdure.core.webhook_events import WebhookEvent
from perdure.core.webhook_signals import WebhookSignal
from perdure.core.webhooks import OWN_SECRET, SignatureScheme
from perdure.core.work import StartRequest
from perdure.engine.api.api import Api, Caller, NamespaceApi, handles, page_limit
from perdure.engine.services.named_events import HookSpec

log = logging.getLogger("perdure.server")

SECRET_BYTES: Final = 32
"""Random bytes of a secret that is made here."""
NO_SECRET: Final = b"whsec_" + b"a secret that no webhook has".hex().encode()
"""Checked against where there is no webhook, so that a missing one takes as long as a wrong signature."""


@handles(acts.LIST_WEBHOOKS)
async def list_webhooks(api: NamespaceApi, r: ListWebhooks) -> WebhookPage:
    limit = page_limit(r.limit)
    found = await api.engine.named_events.store.webhooks(api.ns, r.after, limit + 1)
    return WebhookPage(found[:limit], found[limit - 1].name if len(found) > limit else None)


@handles(acts.PUT_WEBHOOK)
async def put_webhook(api: NamespaceApi, r: PutWebhook) -> WebhookReply:
    """Create a webhook or change one. Without a secret in the request an existing one keeps its own."""
    hook = _spec(r)
    store = api.engine.named_events.store
    if r.secret:
        webhooks.check_secret(r.scheme, r.secret)
    elif (before := await store.webhook_scheme(api.ns, r.name)) is not None and before.kind != r.scheme.kind:
        raise InvalidInput(
            f"the webhook {r.name} has a secret of the scheme {before.kind}: give one of {r.scheme.kind}, or delete the webhook first"
        )
    elif r.scheme.kind in OWN_SECRET:
        changed = await store.change_webhook(api.ns, hook)
        if changed is None:
            raise InvalidInput(f"{r.scheme.kind} chooses the secret itself: copy it from there and give it as `secret`")
        return await _put(api, WebhookReply(changed, None))
    secret, sealed = _sealed(api, r.name, r.scheme, r.secret)
    found = await store.put_webhook(api.ns, hook, sealed, bool(r.secret), api.by)
    is_shown = found.is_held and not r.secret
    return await _put(api, WebhookReply(found.webhook, secret if is_shown else None, found.is_new))


async def _put(api: NamespaceApi, reply: WebhookReply) -> WebhookReply:
    made, signal = reply.webhook, reply.webhook.signal
    target = {"event": made.event} if signal is None else msgspec.structs.asdict(signal)
    await api.record("webhook.put", made.name, scheme=made.scheme.kind, **target)
    return reply


def _spec(r: PutWebhook) -> HookSpec:
    webhooks.check_name(r.name)
    webhooks.check_scheme(r.scheme)
    key = r.key or webhook_events.default_key(r.scheme)
    webhook_events.check_key(key)
    if r.signal is not None:
        if r.event:
            raise InvalidInput("a request becomes an event or a signal, not both. Leave out event or signal.")
        webhook_signals.check_target(r.signal)
        return HookSpec(r.name, "", key, r.scheme, r.signal)
    event = r.event or webhook_events.default_event(r.scheme, r.name)
    webhook_events.check_event(event)
    return HookSpec(r.name, event, key, r.scheme)


@handles(acts.ROTATE_WEBHOOK)
async def rotate_webhook(api: NamespaceApi, r: RotateWebhook) -> WebhookReply:
    """Replace the secret. The old one ends at once, or after keep_old_us."""
    longest_us = WEBHOOK_OLD_SECRET_S_MAX * 1_000_000
    if not 0 <= r.keep_old_us <= longest_us:
        raise InvalidInput(
            f"an old secret stays valid for WEBHOOK_OLD_SECRET_S_MAX ({human(longest_us)}) at most, not {human(abs(r.keep_old_us))}"
        )
    store = api.engine.named_events.store
    scheme = await store.webhook_scheme(api.ns, r.name)
    if scheme is None:
        raise _unknown(r.name)
    if r.secret:
        webhooks.check_secret(scheme, r.secret)
    elif scheme.kind in OWN_SECRET:
        raise InvalidInput(
            f"{scheme.kind} chooses the secret itself: copy the new one from there and give it as `secret`"
        )
    secret, sealed = _sealed(api, r.name, scheme, r.secret)
    found = await store.rotate_webhook(api.ns, r.name, sealed, r.keep_old_us)
    if found is None:
        raise _unknown(r.name)
    await api.record("webhook.rotate", r.name, keep_old_us=r.keep_old_us)
    return WebhookReply(found, None if r.secret else secret)


@handles(acts.DELETE_WEBHOOK)
async def delete_webhook(api: NamespaceApi, r: WebhookRef) -> None:
    if not await api.engine.named_events.store.delete_webhook(api.ns, r.name):
        raise _unknown(r.name)
    await api.record("webhook.delete", r.name)


def _unknown(name: str) -> NotFound:
    return NotFound(f"no webhook {name!r} in this namespace; `perdure webhook list` shows the existing ones")


def _sealed(api: NamespaceApi, name: str, scheme: SignatureScheme, given: str) -> tuple[str, bytes]:
    """The secret that was given, or a new one: plain, and as it is stored."""
    secret = given or webhooks.new_secret(scheme, secrets.token_bytes(SECRET_BYTES))
    return secret, api.ports.secrets.seal(secret.encode(), _owner(api.ns, name))


def _owner(ns: int, name: str) -> str:
    return f"webhook {name} of namespace {ns}"


class ReceivedHook(msgspec.Struct, frozen=True):
    """A request whose signature holds."""

    ns: int
    spec: HookSpec
    fingerprint: str
    """A repetition has the same."""

    def event_of(self, body: Any, headers: Mapping[str, str]) -> WebhookEvent:
        """InvalidInput when the request does not say which event it is."""
        request = {"body": body, "headers": webhook_events.shown_headers(headers)}
        return webhook_events.event_of(self.spec.name, self.spec.event, self.spec.key, request, self.fingerprint)

    def signal_of(self, body: Any, headers: Mapping[str, str]) -> WebhookSignal:
        """InvalidInput when the request does not say which run it is for."""
        assert self.spec.signal is not None
        request = {"body": body, "headers": webhook_events.shown_headers(headers)}
        return webhook_signals.signal_of(self.spec.name, self.spec.signal, self.spec.key, request, self.fingerprint)


async def check_hook(
    api: Api, namespace: str, name: str, headers: Mapping[str, str], body: bytes
) -> ReceivedHook | None:
    """None when there is no such webhook or the request is not signed for it now. The signature is the credential, so this is no act."""
    hook = await api.engine.named_events.store.hook(namespace, name)
    opened: list[bytes] = []
    for sealed in hook.sealed if hook is not None else ():
        assert hook is not None
        try:
            opened.append(api.ports.secrets.open(sealed, _owner(hook.ns, name)))
        except CannotOpenSecret as error:
            log.error("requests of a webhook are refused: %s. See PERDURE_SECRET_KEY_FILE", error)
    known = [secret for secret in opened if secret]
    scheme = hook.spec.scheme if hook is not None else SignatureScheme()
    fingerprint = webhooks.verified(scheme, known or [NO_SECRET], headers, body, api.engine.clock.now_us() / 1e6)
    if hook is None or not known or fingerprint is None:
        return None
    return ReceivedHook(hook.ns, hook.spec, fingerprint)


async def receive_hook(api: Api, hook: ReceivedHook, event: WebhookEvent, payload: bytes) -> EventEmitted:
    """The request becomes an event, once, however often it is sent."""
    source = f"webhook:{hook.spec.name}"
    return await api.engine.named_events.emit(hook.ns, event.name, payload, key=event.key, source=source)


async def signal_hook(api: Api, namespace: str, hook: ReceivedHook, sent: WebhookSignal) -> bytes:
    """The request becomes a message to one run, once, however often it is sent. Returns the id of the run.

    The run that got this delivery before is looked for first: its key may belong to another run by now.
    """
    before = await api.engine.named_events.store.delivered_to(hook.ns, sent.key)
    if before is not None:
        return before
    principal = Principal(subject=f"webhook:{hook.spec.name}", role=Role.OPERATOR)
    space = NamespaceApi(api, hook.ns, Caller(principal, namespace, "rest"))
    try:
        return await _send_signal(space, hook, sent)
    except (NotFound, NotRegistered) as e:
        # A provider repeats what failed with 503, and the run may exist in a moment. Some take 404 for a dead address.
        raise Unavailable(f"{e}. Send this delivery again later.") from e


async def _send_signal(space: NamespaceApi, hook: ReceivedHook, sent: WebhookSignal) -> bytes:
    target, value = hook.spec.signal, encode_json(sent.value)
    assert target is not None
    if not target.start:
        run_id = await space.run_id(sent.run)
        await space.call(messages.SIGNAL, SendSignal(ids.text(run_id), target.signal, value, sent.key))
        return run_id
    start = StartRequest(
        namespace=space.caller.namespace,
        workflow=target.start,
        version="",
        input=encode_input(sent.input),
        key=sent.run_key,
        registered_only=True,
    )
    request = SignalWithStart(start, target.signal, value, sent.key)
    return (await space.call(messages.SIGNAL_WITH_START, request)).run_id
