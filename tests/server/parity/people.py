"""Scenarios of approvals, links, named events, webhooks, notifications and dead letters."""

from __future__ import annotations

from perdure.core.api import approvals, dead_letters, named_events, notifications
from perdure.core.api.approvals import AnswerApproval, CreateLink, DelegateApproval, GetApproval, ListApprovals
from perdure.core.api.dead_letters import DeadLetterFilter, ListDeadLetters, RetryDeadLetters
from perdure.core.api.named_events import EmitEvent, ListEvents, ListWebhooks, PutWebhook, RotateWebhook, WebhookRef
from perdure.core.api.notifications import (
    ListNotificationRules,
    ListNotifications,
    NotificationRuleRef,
    PutNotificationRule,
    RetryNotifications,
)
from perdure.core.limits import NAME_CHARS_MAX
from perdure.core.questions import QUESTION_CHARS
from tests.fakes.waiting import until
from tests.server.parity.stage import NOWHERE, Refusal, Rest, Scenario, Stage, ask

MISSING = (NOWHERE, "not_found")
OTHER_QUESTION = "0" * QUESTION_CHARS
STANDING = (
    "run_id workflow name question key status assignees answerers escalate_to created_us=created_at "
    "spec.title=title spec.quorum=quorum spec.reject_quorum=reject_quorum spec.details=details"
)
VOTES = "votes[].who votes[].approved votes[].comment"
WEBHOOK = (
    "webhook.name=name webhook.event=event webhook.key=key webhook.scheme.kind=scheme "
    "webhook.old_until_us=old_secret_until webhook.created_by=created_by webhook.created_us=created_at secret"
)


RULE_FIELDS = "name workflows kinds target address created_by pending dead dropped"
RULE = " ".join(f"rule.{name}={name}" for name in RULE_FIELDS.split()) + " rule.created_us=created_at secret"
RULE_BODY = {
    "kinds": ["run.late"],
    "workflows": ["parity_none"],
    "late_after": "1d",
    "target": "webhook",
    "address": "https://parity.example/hook",
}


def new_rule(name: str, **changes: str) -> PutNotificationRule:
    return PutNotificationRule(
        name=name,
        kinds=["run.late"],
        workflows=["parity_none"],
        late_after_us=86_400_000_000,
        target="webhook",
        address=changes.get("address", "https://parity.example/hook"),
    )


async def ruled(stage: Stage) -> str:
    name = stage.name()
    await stage.embedded(notifications.PUT_RULE, new_rule(name))
    return name


def bad_rule(name: str) -> Refusal:
    return Refusal(
        code="invalid_input",
        request=new_rule(name, address="nowhere"),
        rest=Rest("PUT", f"/notification-rules/{name}", {**RULE_BODY, "address": "nowhere"}),
    )


def to_another_question(run: str) -> tuple[tuple[Scenario, Refusal], ...]:
    """Answers and a delegation that name a question which the run does not ask."""
    given = {"as": "ada", "question": OTHER_QUESTION}
    answers = {
        verb: Refusal(
            code="conflict",
            request=AnswerApproval(run, "parity_ok", approves, on_behalf_of="ada", question=OTHER_QUESTION),
            rest=Rest("POST", f"/approvals/{run}/parity_ok/{verb}", given),
        )
        for verb, approves in (("approve", True), ("reject", False))
    }
    delegation = Refusal(
        code="conflict",
        request=DelegateApproval(run, "parity_ok", "cleo", "ada", OTHER_QUESTION),
        rest=Rest("POST", f"/approvals/{run}/parity_ok/delegate", {**given, "to": "cleo"}),
    )
    scenario = {s.act.name: s for s in SCENARIOS}
    return (
        *((scenario[approvals.ANSWER.name], refusal) for refusal in answers.values()),
        (scenario[approvals.DELEGATE.name], delegation),
    )


async def asked(stage: Stage) -> str:
    return await stage.waiting(ask)


async def failed(stage: Stage) -> str:
    return await stage.failed()


async def emitted(stage: Stage) -> str:
    name = stage.name()
    await stage.embedded(named_events.EMIT, EmitEvent(name, b'{"a": 1}', "k"))

    async def matched() -> bool:
        page = await stage.embedded(named_events.LIST, ListEvents(name))
        return page.items[0].done_us is not None

    await until(matched, "a later answer is the same")
    return name


async def hooked(stage: Stage) -> str:
    name = stage.name()
    await stage.embedded(named_events.PUT_WEBHOOK, PutWebhook(name, "parity.hooked"))
    return name


def long_event(name: str) -> Refusal:
    event = "x" * NAME_CHARS_MAX
    return Refusal(code="invalid_input", request=EmitEvent(event, b"1"), rest=Rest("POST", f"/events/{event}"))


def bad_webhook(name: str) -> Refusal:
    return Refusal(
        code="invalid_input",
        request=PutWebhook("a b", "parity.hooked"),
        rest=Rest("PUT", "/webhooks/a b", {"event": "parity.hooked"}),
    )


SCENARIOS = (
    Scenario(
        act=approvals.LIST,
        setup=asked,
        request=lambda s: ListApprovals(run=s),
        rest=lambda s: Rest("GET", "/approvals", params={"run": s}),
        fields="items[].run_id items[].name items[].question items[].status items[].assignees items[].created_us=items[].created_at",
        refusal=lambda name: Refusal(
            code="not_found",
            request=ListApprovals(run="key:nobody"),
            rest=Rest("GET", "/approvals", params={"run": "key:nobody"}),
        ),
    ),
    Scenario(
        act=approvals.GET,
        setup=asked,
        request=lambda s: GetApproval(s, "parity_ok"),
        rest=lambda s: Rest("GET", f"/approvals/{s}/parity_ok"),
        fields=f"{STANDING} {VOTES}",
        nowhere=MISSING,
    ),
    Scenario(
        act=approvals.ANSWER,
        setup=asked,
        request=lambda s: AnswerApproval(s, "parity_ok", True, b"null", "fine", "ada"),
        rest=lambda s: Rest("POST", f"/approvals/{s}/parity_ok/approve", {"comment": "fine", "as": "ada"}),
        fields=f"{STANDING} {VOTES}",
        made="question=question",
        nowhere=MISSING,
    ),
    Scenario(
        act=approvals.ANSWER,
        setup=asked,
        request=lambda s: AnswerApproval(s, "parity_ok", False, b"null", "no", "ada"),
        rest=lambda s: Rest("POST", f"/approvals/{s}/parity_ok/reject", {"comment": "no", "as": "ada"}),
        fields=f"{STANDING} {VOTES}",
        made="question=question",
        nowhere=MISSING,
    ),
    Scenario(
        act=approvals.DELEGATE,
        setup=asked,
        request=lambda s: DelegateApproval(s, "parity_ok", "cleo", "ada"),
        rest=lambda s: Rest("POST", f"/approvals/{s}/parity_ok/delegate", {"to": "cleo", "as": "ada"}),
        fields=STANDING,
        made="question=question",
        nowhere=MISSING,
    ),
    Scenario(
        act=approvals.CREATE_LINK,
        setup=asked,
        request=lambda s: CreateLink(s, "approval", "parity_ok", "ada"),
        rest=lambda s: Rest("POST", f"/approvals/{s}/parity_ok/links", {"who": "ada"}),
        fields="url who expires_us=expires_at",
        nowhere=MISSING,
    ),
    Scenario(
        act=named_events.EMIT,
        request=lambda s: EmitEvent(s, b'{"a": 1}', "k"),
        rest=lambda s: Rest("POST", f"/events/{s}", {"payload": {"a": 1}, "key": "k"}),
        fields="is_new",
        refusal=long_event,
    ),
    Scenario(
        act=named_events.LIST,
        setup=emitted,
        request=ListEvents,
        rest=lambda s: Rest("GET", "/events", params={"name": s}),
        fields="items[].name items[].key items[].source items[].at_us=items[].at items[].body=items[].payload next",
        shows=lambda r: {"items": [{"id": str(e.id)} for e in r.items]},
        without_refusal="a name without events has none",
    ),
    Scenario(
        act=named_events.PUT_WEBHOOK,
        request=lambda s: PutWebhook(s, "parity.hooked"),
        rest=lambda s: Rest("PUT", f"/webhooks/{s}", {"event": "parity.hooked"}),
        fields=WEBHOOK,
        refusal=bad_webhook,
    ),
    Scenario(
        act=named_events.ROTATE_WEBHOOK,
        setup=hooked,
        request=lambda s: RotateWebhook(s, keep_old_us=3_600_000_000),
        rest=lambda s: Rest("POST", f"/webhooks/{s}/rotate", {"keep_old": "1h"}),
        fields=WEBHOOK,
        nowhere=("parity-nowhere", "not_found"),
    ),
    Scenario(
        act=named_events.DELETE_WEBHOOK,
        setup=hooked,
        request=WebhookRef,
        rest=lambda s: Rest("DELETE", f"/webhooks/{s}"),
        nowhere=("parity-nowhere", "not_found"),
    ),
    Scenario(
        act=named_events.LIST_WEBHOOKS,
        setup=hooked,
        request=lambda s: ListWebhooks(),
        rest=lambda s: Rest("GET", "/webhooks"),
        fields="items[].name items[].event items[].key items[].scheme.kind=items[].scheme items[].created_by items[].created_us=items[].created_at next",
        without_refusal="it names nothing",
    ),
    Scenario(
        act=notifications.PUT_RULE,
        request=new_rule,
        rest=lambda s: Rest("PUT", f"/notification-rules/{s}", RULE_BODY),
        fields=RULE,
        refusal=bad_rule,
    ),
    Scenario(
        act=notifications.ROTATE_RULE,
        setup=ruled,
        request=NotificationRuleRef,
        rest=lambda s: Rest("POST", f"/notification-rules/{s}/rotate"),
        fields=RULE,
        nowhere=("parity-nowhere", "not_found"),
    ),
    Scenario(
        act=notifications.DELETE_RULE,
        setup=ruled,
        request=NotificationRuleRef,
        rest=lambda s: Rest("DELETE", f"/notification-rules/{s}"),
        nowhere=("parity-nowhere", "not_found"),
    ),
    Scenario(
        act=notifications.LIST_RULES,
        setup=ruled,
        request=lambda s: ListNotificationRules(),
        rest=lambda s: Rest("GET", "/notification-rules"),
        fields=" ".join(f"items[].{name}" for name in RULE_FIELDS.split()) + " next",
        without_refusal="it names nothing",
    ),
    Scenario(
        act=notifications.LIST,
        request=lambda s: ListNotifications(rule=s),
        rest=lambda s: Rest("GET", "/notifications", params={"rule": s}),
        fields="items next",
        without_refusal="a rule without notifications has none",
    ),
    Scenario(
        act=notifications.RETRY,
        request=lambda s: RetryNotifications(rule=s),
        rest=lambda s: Rest("POST", "/notifications/retry", {"rule": s}),
        fields="count",
        without_refusal="nothing that is dead is no mistake",
    ),
    Scenario(
        act=dead_letters.LIST,
        setup=failed,
        request=lambda s: ListDeadLetters(DeadLetterFilter(workflow="parity_fail"), limit=1),
        rest=lambda s: Rest("GET", "/dead-letters", params={"workflow": "parity_fail", "limit": 1}),
        fields="items[].task_id=items[].id items[].run_id items[].seq items[].task items[].queue items[].attempts "
        "items[].error items[].workflow items[].failed_us=items[].failed_at",
        without_refusal="a filter that fits nothing finds none",
    ),
    Scenario(
        act=dead_letters.RETRY,
        setup=failed,
        request=lambda s: RetryDeadLetters([s]),
        rest=lambda s: Rest("POST", "/dead-letters/retry", {"runs": [s]}),
        fields="items[].run_id items[].outcome next",
        refusal=lambda name: Refusal(
            code="invalid_input",
            request=RetryDeadLetters([NOWHERE], DeadLetterFilter(workflow="x")),
            rest=Rest("POST", "/dead-letters/retry", {"runs": [NOWHERE], "workflow": "x"}),
        ),
    ),
)
