"""Named events, and the webhooks that turn signed requests into them."""

from __future__ import annotations

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act


class EmitEvent(msgspec.Struct, frozen=True):
    name: str
    payload: bytes
    key: str = ""
    """The sender's own: a second event of this name under it is the first one sent again."""


class EventEmitted(msgspec.Struct, frozen=True):
    id: int
    is_new: bool
    """False: it was sent before, under this key."""


class ListEvents(msgspec.Struct, frozen=True):
    name: str = ""
    before: int | None = None
    limit: int = 50


class EventItem(msgspec.Struct, frozen=True):
    id: int
    name: str
    key: str | None
    body: bytes
    source: str
    at_us: int
    matched: int
    """Runs that it has reached."""
    done_us: int | None
    """When it had reached every run that waited for it; None: matching goes on."""


class EventPage(msgspec.Struct, frozen=True):
    items: list[EventItem]
    next: int | None


class PutWebhook(msgspec.Struct, frozen=True):
    name: str
    event: str


class WebhookRef(msgspec.Struct, frozen=True):
    name: str


class WebhookItem(msgspec.Struct, frozen=True):
    name: str
    event: str
    created_us: int
    created_by: str


class WebhookReply(msgspec.Struct, frozen=True):
    webhook: WebhookItem
    secret: str | None
    """What the sender signs with. In this reply and nowhere else; None for a webhook that existed before."""


class ListWebhooks(msgspec.Struct, frozen=True):
    after: str = ""
    limit: int = 50


class WebhookPage(msgspec.Struct, frozen=True):
    items: list[WebhookItem]
    next: str | None


EMIT: Act[EmitEvent, EventEmitted] = Act(
    "event.emit", EmitEvent, EventEmitted, Permission.OPERATE, ("event.emit",), once_by="key"
)
LIST: Act[ListEvents, EventPage] = Act("event.list", ListEvents, EventPage, Permission.READ)
PUT_WEBHOOK: Act[PutWebhook, WebhookReply] = Act(
    "webhook.put", PutWebhook, WebhookReply, Permission.DEVELOP, ("webhook.put",)
)
ROTATE_WEBHOOK: Act[WebhookRef, WebhookReply] = Act(
    "webhook.rotate", WebhookRef, WebhookReply, Permission.DEVELOP, ("webhook.rotate",)
)
DELETE_WEBHOOK: Act[WebhookRef, None] = Act("webhook.delete", WebhookRef, None, Permission.DEVELOP, ("webhook.delete",))
LIST_WEBHOOKS: Act[ListWebhooks, WebhookPage] = Act("webhook.list", ListWebhooks, WebhookPage, Permission.READ)

ACTS = (EMIT, LIST, PUT_WEBHOOK, ROTATE_WEBHOOK, DELETE_WEBHOOK, LIST_WEBHOOKS)
