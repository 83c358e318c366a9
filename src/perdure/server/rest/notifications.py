"""Notification rules, and the notifications that follow from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.api import notifications as acts
from perdure.core.api.notifications import (
    ListNotificationRules,
    ListNotifications,
    NotificationItem,
    NotificationRule,
    NotificationRuleRef,
    PutNotificationRule,
    RetryNotifications,
)
from perdure.core.application_limits import NOTIFY_URL_CHARS_MAX, NOTIFY_WORKFLOWS_MAX
from perdure.core.durations import to_us
from perdure.core.limits import NAME_CHARS_MAX
from perdure.core.notifications import KINDS
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses

router = APIRouter(tags=["notifications"], route_class=GuardedRoute)

RuleName = Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX, examples=["on-call"])]


class PutRuleRequest(m.Body):
    workflows: list[Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]] = Field(
        default=["*"],
        min_length=1,
        max_length=NOTIFY_WORKFLOWS_MAX,
        description="Names, or `*` for all.",
        examples=[["orders"]],
    )
    kinds: list[str] = Field(
        min_length=1, max_length=len(KINDS), description=f"Some of {', '.join(KINDS)}.", examples=[["run.failed"]]
    )
    target: Literal["webhook", "email", "slack"]
    address: str = Field(
        min_length=1,
        max_length=NOTIFY_URL_CHARS_MAX,
        description="A URL, or email addresses separated by commas.",
        examples=["https://example.com/hooks/perdure"],
    )
    late_after: m.Seconds | m.DurationText | None = Field(
        default=None, description="For `run.late`: after this time an active run is late.", examples=["1h"]
    )


class NotificationRuleDetail(BaseModel):
    name: str
    workflows: list[str]
    kinds: list[str]
    target: str
    address: str = Field(description="Of a Slack URL, which is a secret, only the host.")
    late_after_s: float | None
    created_at: m.Moment
    created_by: str
    pending: int = Field(description="Notifications that wait for delivery.")
    dead: int = Field(description="Notifications that were given up; they can be retried.")
    dropped: int = Field(description="Notifications that were dropped, because too many waited.")


class NotificationRuleWithSecret(NotificationRuleDetail):
    secret: str | None = Field(
        description="Signs the requests of a webhook. In this answer and nowhere else; null for a rule that existed before."
    )


class NotificationDetail(BaseModel):
    id: str = Field(description="The id that the receiver sees, the same in every attempt.")
    rule: str = Field(description="Empty for a hook.")
    kind: str
    workflow: str
    run_id: str | None
    hook: str | None = Field(description="The workflow of which a run starts.")
    data: dict[str, Any]
    at: m.Moment
    status: str = Field(description="`pending`, `done` or `dead`.")
    attempts: int
    due_at: m.Moment | None = Field(description="When the next attempt is due.")
    ended_at: m.Moment | None
    error: str | None = Field(description="Why the last attempt failed.")


class RetryNotificationsRequest(m.Body):
    id: str | None = Field(default=None, max_length=NAME_CHARS_MAX, description="Only this one.")
    rule: str | None = Field(default=None, max_length=NAME_CHARS_MAX, description="Only those of this rule.")


class NotificationsRetriedReply(BaseModel):
    count: int


@router.get("/notification-rules", responses=responses(401, 403, 422))
async def list_notification_rules(
    caller: Annotated[RestCaller, asks(acts.LIST_RULES)], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[NotificationRuleDetail]:
    """Notification rules by name, without their secrets."""
    page = await caller.call(acts.LIST_RULES, ListNotificationRules(views.read_text_cursor(cursor), limit))
    items = [NotificationRuleDetail(**_fields(r)) for r in page.items]
    return m.Page[NotificationRuleDetail](items=items, next=views.next_cursor(page.next))


@router.put(
    "/notification-rules/{name}",
    status_code=201,
    responses=responses(
        401,
        403,
        409,
        413,
        422,
        s200={"model": NotificationRuleWithSecret, "description": "No new secret was made."},
    ),
)
async def put_notification_rule(
    caller: Annotated[RestCaller, asks(acts.PUT_RULE)], name: RuleName, body: PutRuleRequest, response: Response
) -> NotificationRuleWithSecret:
    """Create a notification rule, or change it. Facts from now on follow it."""
    made = await caller.call(
        acts.PUT_RULE,
        PutNotificationRule(
            name=name,
            workflows=body.workflows,
            kinds=body.kinds,
            target=body.target,
            address=body.address,
            late_after_us=None if body.late_after is None else to_us(body.late_after),
        ),
    )
    response.status_code = 201 if made.secret is not None else 200
    return NotificationRuleWithSecret(**_fields(made.rule), secret=made.secret)


@router.post("/notification-rules/{name}/rotate", responses=responses(401, 403, 404, 409, 422))
async def rotate_notification_rule(
    caller: Annotated[RestCaller, asks(acts.ROTATE_RULE)], name: RuleName
) -> NotificationRuleWithSecret:
    """Give the webhook of a rule another secret."""
    made = await caller.call(acts.ROTATE_RULE, NotificationRuleRef(name))
    return NotificationRuleWithSecret(**_fields(made.rule), secret=made.secret)


@router.delete("/notification-rules/{name}", status_code=204, responses=responses(401, 403, 404, 422))
async def delete_notification_rule(caller: Annotated[RestCaller, asks(acts.DELETE_RULE)], name: RuleName) -> None:
    """Delete a notification rule, with its notifications."""
    await caller.call(acts.DELETE_RULE, NotificationRuleRef(name))


@router.get("/notifications", responses=responses(401, 403, 422))
async def list_notifications(
    caller: Annotated[RestCaller, asks(acts.LIST)],
    rule: Annotated[str, Query(max_length=NAME_CHARS_MAX, description="Of this rule only.")] = "",
    status: Annotated[Literal["", "pending", "done", "dead"], Query(description="In this status only.")] = "",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[NotificationDetail]:
    """Notifications and hooks, newest first."""
    request = ListNotifications(rule, status, views.read_number_cursor(cursor), limit)
    page = await caller.call(acts.LIST, request)
    return m.Page[NotificationDetail](items=[_shown(n) for n in page.items], next=views.next_cursor(page.next))


@router.post("/notifications/retry", responses=responses(401, 403, 404, 413, 422))
async def retry_notifications(
    caller: Annotated[RestCaller, asks(acts.RETRY)], body: RetryNotificationsRequest
) -> NotificationsRetriedReply:
    """Try dead notifications again: one, those of a rule, or all."""
    done = await caller.call(acts.RETRY, RetryNotifications(body.id or "", body.rule or ""))
    return NotificationsRetriedReply(count=done.count)


def _fields(r: NotificationRule) -> dict[str, Any]:
    return {
        "name": r.name,
        "workflows": r.workflows,
        "kinds": r.kinds,
        "target": r.target,
        "address": r.address,
        "late_after_s": None if r.late_after_us is None else r.late_after_us / 1e6,
        "created_at": views.moment(r.created_us),
        "created_by": r.created_by,
        "pending": r.pending,
        "dead": r.dead,
        "dropped": r.dropped,
    }


def _shown(n: NotificationItem) -> NotificationDetail:
    return NotificationDetail(
        id=n.id,
        rule=n.rule,
        kind=n.kind,
        workflow=n.workflow,
        run_id=None if n.run_id is None else ids.text(n.run_id),
        hook=n.hook,
        data=n.data,
        at=views.moment(n.at_us),
        status=n.status,
        attempts=n.attempts,
        due_at=views.moment_or_none(n.due_us),
        ended_at=views.moment_or_none(n.ended_us),
        error=n.error,
    )
