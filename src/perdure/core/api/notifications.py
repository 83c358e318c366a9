"""Notification rules, and the notifications that follow from them."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act


class PutNotificationRule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    workflows: list[str]
    """Names, or `*` for all."""
    kinds: list[str]
    target: str
    """`webhook`, `email` or `slack`."""
    address: str
    """A URL, or email addresses separated by commas."""
    late_after_us: int | None = None
    """After this time an active run is late."""


class NotificationRuleRef(msgspec.Struct, frozen=True):
    name: str


class NotificationRule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    workflows: list[str]
    kinds: list[str]
    target: str
    address: str
    """Of a Slack URL, which is a secret, only the host."""
    late_after_us: int | None
    created_us: int
    created_by: str
    pending: int
    dead: int
    dropped: int
    """Notifications that were dropped, because too many waited."""


class NotificationRuleReply(msgspec.Struct, frozen=True):
    rule: NotificationRule
    secret: str | None
    """Signs the requests of a webhook. In this reply and nowhere else; None for a rule that existed before, or has none."""


class ListNotificationRules(msgspec.Struct, frozen=True):
    after: str = ""
    limit: int = 50


class NotificationRulePage(msgspec.Struct, frozen=True):
    items: list[NotificationRule]
    next: str | None


class ListNotifications(msgspec.Struct, frozen=True):
    rule: str = ""
    status: str = ""
    before: int | None = None
    limit: int = 50


class NotificationItem(msgspec.Struct, frozen=True, kw_only=True):
    n: int
    id: str
    rule: str
    """Empty for a hook."""
    kind: str
    workflow: str
    run_id: bytes | None
    hook: str | None
    """The workflow of which a run starts."""
    data: dict[str, Any]
    at_us: int
    status: str
    attempts: int
    due_us: int | None
    """When the next attempt is due."""
    ended_us: int | None
    error: str | None
    """Why the last attempt failed."""


class NotificationPage(msgspec.Struct, frozen=True):
    items: list[NotificationItem]
    next: int | None


class RetryNotifications(msgspec.Struct, frozen=True):
    """Dead ones: that of an id, those of a rule, or all."""

    id: str = ""
    rule: str = ""


class NotificationsRetried(msgspec.Struct, frozen=True):
    count: int


PUT_RULE: Act[PutNotificationRule, NotificationRuleReply] = Act(
    "notification_rule.put",
    PutNotificationRule,
    NotificationRuleReply,
    Permission.DEVELOP,
    ("notification_rule.put",),
)
ROTATE_RULE: Act[NotificationRuleRef, NotificationRuleReply] = Act(
    "notification_rule.rotate",
    NotificationRuleRef,
    NotificationRuleReply,
    Permission.DEVELOP,
    ("notification_rule.rotate",),
)
DELETE_RULE: Act[NotificationRuleRef, None] = Act(
    "notification_rule.delete", NotificationRuleRef, None, Permission.DEVELOP, ("notification_rule.delete",)
)
LIST_RULES: Act[ListNotificationRules, NotificationRulePage] = Act(
    "notification_rule.list", ListNotificationRules, NotificationRulePage, Permission.READ
)
LIST: Act[ListNotifications, NotificationPage] = Act(
    "notification.list", ListNotifications, NotificationPage, Permission.READ
)
RETRY: Act[RetryNotifications, NotificationsRetried] = Act(
    "notification.retry", RetryNotifications, NotificationsRetried, Permission.OPERATE, ("notification.retry",)
)

ACTS = (PUT_RULE, ROTATE_RULE, DELETE_RULE, LIST_RULES, LIST, RETRY)
