"""Scenarios of approvals, links, named events, webhooks and dead letters."""

from __future__ import annotations

from perdure.core.api import approvals, dead_letters, named_events
from perdure.core.api.approvals import AnswerApproval, CreateLink, DelegateApproval, GetApproval, ListApprovals
from perdure.core.api.dead_letters import DeadLetterFilter, ListDeadLetters, RetryDeadLetters
from perdure.core.api.named_events import EmitEvent, ListEvents, ListWebhooks, PutWebhook, WebhookRef
from perdure.core.limits import NAME_CHARS_MAX
from tests.fakes.waiting import until
from tests.server.parity.stage import NOWHERE, Refusal, Rest, Scenario, Stage, ask

MISSING = (NOWHERE, "not_found")
STANDING = (
    "run_id workflow name key status assignees answerers escalate_to created_us=created_at "
    "spec.title=title spec.quorum=quorum spec.reject_quorum=reject_quorum spec.details=details"
)
VOTES = "votes[].who votes[].approved votes[].comment"
WEBHOOK = "webhook.name=name webhook.event=event webhook.created_by=created_by webhook.created_us=created_at secret"


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
        fields="items[].run_id items[].name items[].status items[].assignees items[].created_us=items[].created_at",
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
        nowhere=MISSING,
    ),
    Scenario(
        act=approvals.ANSWER,
        setup=asked,
        request=lambda s: AnswerApproval(s, "parity_ok", False, b"null", "no", "ada"),
        rest=lambda s: Rest("POST", f"/approvals/{s}/parity_ok/reject", {"comment": "no", "as": "ada"}),
        fields=f"{STANDING} {VOTES}",
        nowhere=MISSING,
    ),
    Scenario(
        act=approvals.DELEGATE,
        setup=asked,
        request=lambda s: DelegateApproval(s, "parity_ok", "cleo", "ada"),
        rest=lambda s: Rest("POST", f"/approvals/{s}/parity_ok/delegate", {"to": "cleo", "as": "ada"}),
        fields=STANDING,
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
        request=WebhookRef,
        rest=lambda s: Rest("POST", f"/webhooks/{s}/rotate"),
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
        fields="items[].name items[].event items[].created_by items[].created_us=items[].created_at next",
        without_refusal="it names nothing",
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
