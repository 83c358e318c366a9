"""Named events, and the webhooks that turn signed requests into them or into signals."""

from __future__ import annotations

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act
from perdure.core.webhooks import SignatureScheme


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


class EventStartItem(msgspec.Struct, frozen=True):
    """What became of an event in a workflow that subscribes to it."""

    workflow: str
    outcome: str | None
    """`started`: a new run; `attached`: an active run under its key; `failed`; None: not decided yet."""
    run_id: bytes | None
    error: str | None


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
    started: int = 0
    """Runs that it has started."""
    failed: int = 0
    """Workflows that subscribe to it and of which it could start no run."""
    undecided: int = 0
    """Workflows that subscribe to it, of which it is not decided yet whether it starts a run."""
    starts: list[EventStartItem] = []
    """What became of it in each workflow; EVENT_STARTS_SHOWN_MAX at most, and those that failed first of all."""


class EventPage(msgspec.Struct, frozen=True):
    items: list[EventItem]
    next: int | None


class SignalTarget(msgspec.Struct, frozen=True, omit_defaults=True):
    """A signal to one run, as a webhook describes it (core/webhook_signals.py)."""

    signal: str
    run: str
    """`key:KEY` or an id, with expressions over `body` and `headers`."""
    value: str = ""
    """Expression for the signal's value; empty: the body."""
    start: str = ""
    """Workflow of the run that is started if none is active under the key; empty: none is."""
    input: str = ""
    """Expression for the input of the started run; empty: no arguments."""


class PutWebhook(msgspec.Struct, frozen=True):
    name: str
    event: str = ""
    """Name of the event, with expressions over `body` and `headers`; empty: as the scheme has it, or none beside a signal."""
    scheme: SignatureScheme = SignatureScheme()
    key: str = ""
    """Expression for the key of the event or of the message; empty: as the scheme has it."""
    secret: str = ""
    """The sender's own; empty: a new webhook gets one, an existing one keeps its own."""
    signal: SignalTarget | None = None
    """In place of an event: requests are signals to one run."""


class RotateWebhook(msgspec.Struct, frozen=True):
    name: str
    secret: str = ""
    """The sender's own; empty: it is made."""
    keep_old_us: int = 0
    """How long the secret that is replaced stays valid."""


class WebhookRef(msgspec.Struct, frozen=True):
    name: str


class WebhookItem(msgspec.Struct, frozen=True):
    name: str
    event: str
    """Empty beside a signal."""
    key: str
    scheme: SignatureScheme
    old_until_us: int | None
    """Until when the secret before the current one is valid; None: it is not."""
    created_us: int
    created_by: str
    signal: SignalTarget | None = None


class WebhookReply(msgspec.Struct, frozen=True):
    webhook: WebhookItem
    secret: str | None
    """What the sender signs with. In this reply and nowhere else; None for a secret that was given or existed before."""
    is_new: bool = False
    """The webhook did not exist before."""


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
ROTATE_WEBHOOK: Act[RotateWebhook, WebhookReply] = Act(
    "webhook.rotate", RotateWebhook, WebhookReply, Permission.DEVELOP, ("webhook.rotate",)
)
DELETE_WEBHOOK: Act[WebhookRef, None] = Act("webhook.delete", WebhookRef, None, Permission.DEVELOP, ("webhook.delete",))
LIST_WEBHOOKS: Act[ListWebhooks, WebhookPage] = Act("webhook.list", ListWebhooks, WebhookPage, Permission.READ)

ACTS = (EMIT, LIST, PUT_WEBHOOK, ROTATE_WEBHOOK, DELETE_WEBHOOK, LIST_WEBHOOKS)
