"""Acts on notification rules and notifications.

A secret signs the requests of a webhook; the URL of a Slack channel is a secret itself. Both are sealed for the database, bound to their
rule, and not shown again.
"""

from __future__ import annotations

import base64
import secrets
from typing import Final

from perdure.core import ids
from perdure.core import notifications as rules
from perdure.core.api import notifications as acts
from perdure.core.api.notifications import (
    ListNotificationRules,
    ListNotifications,
    NotificationPage,
    NotificationRulePage,
    NotificationRuleRef,
    NotificationRuleReply,
    NotificationsRetried,
    PutNotificationRule,
    RetryNotifications,
)
from perdure.core.errors import InvalidInput, NotFound
from perdure.core.names import checked_name
from perdure.core.suggestions import did_you_mean
from perdure.engine.api.api import NamespaceApi, handles, page_limit

SECRET_BYTES: Final = 32


@handles(acts.LIST_RULES)
async def list_rules(api: NamespaceApi, r: ListNotificationRules) -> NotificationRulePage:
    limit = page_limit(r.limit)
    found = await api.ports.outbox.rules(api.ns, r.after, limit + 1)
    return NotificationRulePage(found[:limit], found[limit - 1].name if len(found) > limit else None)


@handles(acts.PUT_RULE)
async def put_rule(api: NamespaceApi, r: PutNotificationRule) -> NotificationRuleReply:
    """Facts that are committed from now on follow it. A webhook keeps its secret when its rule is changed."""
    new = _checked(r)
    secret = _new_secret() if r.target == "webhook" else None
    kept = secret or (r.address if r.target == "slack" else None)
    sealed = api.ports.secrets.seal(kept.encode(), owner_of(api.ns, r.name)) if kept is not None else None
    rule, has_new_secret = await api.ports.outbox.put_rule(api.ns, new, sealed, api.by, rotate=False)
    await api.record(
        "notification_rule.put",
        r.name,
        kinds=", ".join(new.kinds),
        workflows=", ".join(new.workflows),
        sends_to=f"{new.target} {new.address}",
    )
    api.engine.events.outbox_changed.publish()
    return NotificationRuleReply(rule, secret if has_new_secret else None)


@handles(acts.ROTATE_RULE)
async def rotate_rule(api: NamespaceApi, r: NotificationRuleRef) -> NotificationRuleReply:
    """Give a webhook another secret, for every notification that is sent from now on."""
    found = await api.ports.outbox.rules(api.ns, "", 1, name=checked_name("notification rule", r.name))
    if not found:
        raise _unknown(r.name)
    rule = found[0]
    if rule.target != "webhook":
        raise InvalidInput(
            f"the rule {r.name!r} sends to {rule.target}, which has no secret to rotate: put the rule again"
        )
    secret = _new_secret()
    sealed = api.ports.secrets.seal(secret.encode(), owner_of(api.ns, r.name))
    new = PutNotificationRule(
        name=rule.name,
        workflows=rule.workflows,
        kinds=rule.kinds,
        target=rule.target,
        address=rule.address,
        late_after_us=rule.late_after_us,
    )
    rotated, _ = await api.ports.outbox.put_rule(api.ns, new, sealed, api.by, rotate=True)
    await api.record("notification_rule.rotate", r.name)
    return NotificationRuleReply(rotated, secret)


@handles(acts.DELETE_RULE)
async def delete_rule(api: NamespaceApi, r: NotificationRuleRef) -> None:
    """Its notifications go with it, also those that wait."""
    if not await api.ports.outbox.delete_rule(api.ns, checked_name("notification rule", r.name)):
        raise _unknown(r.name)
    await api.record("notification_rule.delete", r.name)


@handles(acts.LIST)
async def list_notifications(api: NamespaceApi, r: ListNotifications) -> NotificationPage:
    if r.status and r.status not in rules.STATUSES:
        raise InvalidInput(
            f"{r.status[:50]!r} is no status of a notification: {', '.join(rules.STATUSES)}. "
            f"{did_you_mean(r.status, rules.STATUSES)}".strip()
        )
    limit = page_limit(r.limit)
    found = await api.ports.outbox.page(api.ns, r.rule or None, r.status or None, r.before, limit + 1)
    return NotificationPage(found[:limit], found[limit - 1].n if len(found) > limit else None)


@handles(acts.RETRY)
async def retry(api: NamespaceApi, r: RetryNotifications) -> NotificationsRetried:
    """Dead notifications get the full number of attempts again."""
    count = await api.ports.outbox.retry(api.ns, ids.parse(r.id) if r.id else None, r.rule or None)
    if r.id and not count:
        raise NotFound(f"no dead notification {r.id} in this namespace; `perdure notify log --status dead` shows them")
    await api.record("notification.retry", r.id or r.rule or "*", count=count)
    if count:
        api.engine.events.outbox_changed.publish()
    return NotificationsRetried(count)


def owner_of(ns: int, name: str) -> str:
    """What the sealed secret of a rule belongs to."""
    return f"notification rule {name} of namespace {ns}"


def _new_secret() -> str:
    return rules.SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def _checked(r: PutNotificationRule) -> PutNotificationRule:
    if r.target not in rules.TARGETS:
        raise InvalidInput(
            f"{r.target[:50]!r} is no target of notifications: {', '.join(rules.TARGETS)}. "
            f"{did_you_mean(r.target, rules.TARGETS)}".strip()
        )
    address = rules.check_email(r.address) if r.target == "email" else rules.check_url(r.address)
    return PutNotificationRule(
        name=checked_name("notification rule", r.name),
        workflows=rules.check_workflows(r.workflows),
        kinds=rules.check_kinds(r.kinds, r.late_after_us),
        target=r.target,
        address=rules.host_of(address) if r.target == "slack" else address,
        late_after_us=r.late_after_us,
    )


def _unknown(name: str) -> NotFound:
    return NotFound(f"no notification rule {name!r} in this namespace; `perdure notify list` shows the existing ones")
