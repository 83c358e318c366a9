"""Approvals in Python code: what a workflow sees of what people decide, with the engine in this process and time that skips."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from perdure import Approval, Signal, TestEnv, flow, workflow
from perdure.core import ids
from perdure.core.access import Principal, Role
from perdure.core.api import approvals, messages
from perdure.core.api.approvals import AnswerApproval, ListApprovals
from perdure.core.api.messages import ResolvePromise
from perdure.core.errors import Conflict, Forbidden, NotAssigned
from perdure.core.messages import PromiseMessage
from perdure.engine.api.api import Caller, NamespaceApi
from perdure.errors import (
    ApprovalClosed,
    ApprovalExpired,
    ApprovalRejected,
    InvalidInput,
    NotFound,
    RunFailed,
)
from perdure.testing.replayer import replay_one
from perdure.wire.codec import encode_message


@dataclass
class Terms:
    price: int
    note: str = ""


go = Approval("e2e_go")
publish = Approval("e2e_publish", Terms, assignees=["ada", "ben"], quorum=2, timeout="2d", title="Publish it?")
signed = Approval("e2e_signed", assignees=["ada"], escalate_after="1d", escalate_to=["lead"], timeout="3d")


@workflow
async def e2e_go_flow() -> str:
    await go.wait()
    return "went"


@workflow
async def e2e_publish_flow(rows: int) -> str:
    try:
        terms = await publish.wait(details={"rows": rows})
    except ApprovalRejected as e:
        return f"rejected by {', '.join(e.by)}: {e.comment}"
    except TimeoutError:
        return "nobody decided"
    return f"published at {terms.price} {terms.note}".strip()


@workflow
async def e2e_signed_flow() -> str:
    await signed.wait()
    return "signed"


@workflow
async def e2e_twice_flow() -> str:
    try:
        await go.wait(timeout="1h")
    except TimeoutError:
        await go.wait(title="Now?")
    return "in the end"


async def test_an_approval_without_a_type_lets_the_run_go_on(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(e2e_go_flow)
        assert await go.approve(handle.id, by="anyone") is True
        assert await handle.result("10s") == "went"


async def test_a_rejection_that_is_not_caught_fails_the_run_and_says_who_and_why(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(e2e_go_flow)
        await go.reject(handle.id, by="ada", comment="not today")
        with pytest.raises(RunFailed, match="rejected by ada: not today"):
            await handle.result("10s")


async def test_a_quorum_needs_two_different_people(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(e2e_publish_flow, 3)
        assert await publish.approve(handle.id, Terms(5, "first"), by="ada") is False
        assert await publish.approve(handle.id, Terms(6, "again"), by="ada") is False, "one name, one vote"
        assert await publish.approve(handle.id, Terms(7, "second"), by="ben") is True
        assert await handle.result("10s") == "published at 7 second", "the value of the vote that decided"


async def test_one_no_is_enough_and_the_workflow_may_catch_it(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(e2e_publish_flow, 3)
        await publish.approve(handle.id, Terms(5), by="ada")
        await publish.reject(handle.id, by="ben", comment="too cheap")
        assert await handle.result("10s") == "rejected by ben: too cheap"


async def test_a_vote_can_be_changed_until_it_is_decided(dsn: str) -> None:
    both = Approval("e2e_both", assignees=["ada", "ben"], quorum=2, reject_quorum=2)

    @workflow(name="e2e_both_flow")
    async def both_flow() -> str:
        await both.wait()
        return "yes"

    async with TestEnv(dsn) as env:
        handle = await env.start(both_flow)
        assert await both.reject(handle.id, by="ada") is False
        assert await both.approve(handle.id, by="ben") is False
        assert await both.approve(handle.id, by="ada") is True
        assert await handle.result("10s") == "yes"


async def test_an_answer_after_the_decision_says_who_decided(dsn: str) -> None:
    @workflow(name="e2e_slow_flow")
    async def slow_flow() -> None:
        await go.wait()
        await signed.wait()

    async with TestEnv(dsn) as env:
        handle = await env.start(slow_flow)
        await go.approve(handle.id, by="ada")
        await env.settle()
        with pytest.raises(ApprovalClosed, match="approved by ada"):
            await go.reject(handle.id, by="ben")


async def test_who_is_not_asked_cannot_answer(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(e2e_publish_flow, 3)
        with pytest.raises(NotAssigned, match="for ada, ben, and 'eve' is not among them"):
            await publish.approve(handle.id, Terms(1), by="eve")
        with pytest.raises(NotAssigned):
            await publish.approve(handle.id, Terms(1))


async def test_a_value_that_does_not_fit_the_form_does_not_count(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(e2e_publish_flow, 3)
        for value, said in ((b'{"note": "x"}', "value.price is missing"), (b'{"price": "much"}', "must be integer")):
            with pytest.raises(InvalidInput, match=said):
                await env.client._backend.call(
                    approvals.ANSWER, AnswerApproval(handle.id, "e2e_publish", True, value, "", "ada")
                )
        assert await publish.approve(handle.id, Terms(1), by="ada") is False, "the vote is as good as new"


async def test_after_the_deadline_the_run_goes_on_and_nobody_can_answer(dsn: str) -> None:
    async with TestEnv(dsn) as env:

        @workflow(name="e2e_late_flow")
        async def late_flow() -> str:
            try:
                await publish.wait()
            except TimeoutError as e:
                said = str(e)
            await go.wait()
            return said

        handle = await env.start(late_flow)
        await publish.approve(handle.id, Terms(5), by="ada")
        await env.advance("2d")
        with pytest.raises(ApprovalExpired):
            await publish.approve(handle.id, Terms(5), by="ben")
        await go.approve(handle.id, by="ben")
        assert await handle.result("10s") == "the approval 'e2e_publish' was not decided in time"


async def test_escalation_lets_somebody_else_answer_from_its_moment_on(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(e2e_signed_flow)
        with pytest.raises(NotAssigned, match="only once it has escalated"):
            await signed.approve(handle.id, by="lead")
        assert (await env.client._backend.call(approvals.LIST, ListApprovals(assignee="lead"))).items == []
        await env.advance("25h")
        inbox = await env.client._backend.call(approvals.LIST, ListApprovals(assignee="lead"))
        assert [s.name for s in inbox.items] == ["e2e_signed"]
        assert await signed.approve(handle.id, by="lead") is True
        assert await handle.result("10s") == "signed"


async def test_delegation_asks_somebody_else_instead(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(e2e_publish_flow, 3)
        with pytest.raises(NotAssigned):
            await publish.delegate(handle.id, "eve", by="eve")
        with pytest.raises(Conflict, match="asked for 'e2e_publish' already"):
            await publish.delegate(handle.id, "ben", by="ada")
        await publish.delegate(handle.id, "cleo", by="ada")
        with pytest.raises(NotAssigned):
            await publish.approve(handle.id, Terms(1), by="ada")
        await publish.approve(handle.id, Terms(1), by="cleo")
        with pytest.raises(Conflict, match="answered"):
            await publish.delegate(handle.id, "dan", by="cleo")
        await publish.approve(handle.id, Terms(2), by="ben")
        assert await handle.result("10s") == "published at 2"


async def test_every_wait_is_another_question(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(e2e_twice_flow)
        await env.advance("2h")
        with pytest.raises(ApprovalExpired):
            await go.approve(handle.id)
        with pytest.raises(NotFound, match="open: e2e_go#2"):
            await go.approve(handle.id, nth=3)
        await go.approve(handle.id, nth=2)
        assert await handle.result("10s") == "in the end"


async def test_a_run_with_approvals_replays(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(e2e_publish_flow, 3)
        await publish.approve(handle.id, Terms(5), by="ada")
        await publish.approve(handle.id, Terms(6), by="ben")
        await handle.result("10s")
        replay_one(e2e_publish_flow, ids.parse(handle.id), await handle.history())


async def test_what_can_never_be_decided_is_refused_where_it_is_written() -> None:
    for options, said in (
        ({"assignees": ["ada"], "quorum": 2}, "only 1 may answer"),
        ({"assignees": "ada"}, "write \\['ada'\\]"),
        ({"quorum": 0}, "between 1 and"),
        ({"assignees": ["ada"], "escalate_after": "1d"}, "not say to whom"),
        ({"assignees": ["ada"], "escalate_to": ["x"]}, "after how long"),
        ({"escalate_after": "1d", "escalate_to": ["x"]}, "no assignees"),
        ({"assignees": [""]}, "invalid person name"),
    ):
        with pytest.raises(InvalidInput, match=said):
            Approval("x", **options)  # type: ignore[call-overload]


FLOW = """
flow: e2e_asks
tasks:
  ask:
    approval:
      title: "Publish ${ input.rows } rows?"
      assignees: "${ input.people }"
      quorum: 2
      form: {price: {type: integer}}
      details: {rows: "${ input.rows }"}
      escalate: {after: 1d, to: [lead]}
      timeout: 2d
    then: {approved: yes, rejected: no, timeout: late}
  yes: {value: "${ ask }"}
  no: {value: "${ ask.comment }"}
  late: {value: "late"}
"""


async def test_a_flow_asks_the_same_way(dsn: str) -> None:
    asks = Approval("ask", Terms)
    async with TestEnv(dsn) as env:
        await env.deploy(FLOW)
        handle = await env.start(flow("e2e_asks"), rows=7, people=["ada", "ben"])
        (open_,) = (await env.client._backend.call(approvals.LIST, ListApprovals(run=handle.id))).items
        assert (open_.spec.title, open_.assignees, open_.spec.details) == (
            "Publish 7 rows?",
            ["ada", "ben"],
            {"rows": 7},
        )
        with pytest.raises(InvalidInput, match=r"value.price is missing"):
            await Approval("ask").approve(handle.id, by="ada")
        await env.advance("1d")
        for answer in (
            AnswerApproval(handle.id, "ask", True, b'{"price": 3}', "", "ada"),
            AnswerApproval(handle.id, "ask", True, b'{"price": 4}', "fine", "lead"),
        ):
            await env.client._backend.call(approvals.ANSWER, answer)
        assert await handle.result("10s") == {
            "yes": {"approved": True, "by": ["ada", "lead"], "comment": "fine", "value": {"price": 4}}
        }
        other = await env.start(flow("e2e_asks"), rows=7, people=["ada", "ben"])
        await asks.reject(other.id, by="ben", comment="no money")
        assert await other.result("10s") == {"no": "no money"}
        late = await env.start(flow("e2e_asks"), rows=7, people=["ada", "ben"])
        await env.advance("2d")
        assert await late.result("10s") == {"late": "late"}


async def test_a_flow_that_asks_nobody_at_all_fails_its_node(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        await env.deploy(FLOW)
        handle = await env.start(flow("e2e_asks"), rows=7, people=["ada", 5])
        with pytest.raises(RunFailed, match="assignees: invalid person name '5'"):
            await handle.result("10s")


GRAPH = {
    "flow": "e2e_graph_asks",
    "graph": {
        "start": "ask",
        "nodes": {
            "ask": {
                "kind": "approval",
                "params": {"approval_key": "sign", "title": "Sign?", "assignees": ["ada"]},
                "post": {"output_key": "answer"},
            },
            "done": {"kind": "choice"},
            "stop": {"kind": "choice"},
        },
        "edges": [
            {"from": "ask", "action": "approved", "to": "done"},
            {"from": "ask", "action": "rejected", "to": "stop"},
        ],
    },
}


async def test_a_node_of_kind_approval_takes_votes_and_no_signal_past_its_assignees(dsn: str) -> None:
    sign = Approval("sign")
    async with TestEnv(dsn) as env:
        await env.deploy(GRAPH)
        handle = await env.start(flow("e2e_graph_asks"))
        await Signal("sign", bool).send(handle.id, True)
        await env.settle()
        assert await handle.status() == "running", "a signal is not the answer of an assignee"
        with pytest.raises(NotAssigned):
            await sign.approve(handle.id, by="eve")
        await sign.approve(handle.id, by="ada", comment="done")
        result = await handle.result("10s")
        assert result["answer"] == {"approved": True, "by": ["ada"], "comment": "done", "value": None}


# -- an approval is answered by those it asks, after it was asked ---------------------------------------------------


async def test_what_was_resolved_before_anybody_was_asked_is_nobodys_answer(dsn: str) -> None:
    go_on = Signal("e2e_go_on", bool)

    @workflow(name="e2e_early_flow")
    async def early_flow() -> str:
        await go_on.next()
        await signed.wait()
        return "signed"

    async with TestEnv(dsn) as env:
        await env.deploy(
            "flow: e2e_early_dag\ntasks:\n  hold: {wait: e2e_go_on}\n"
            "  ask: {depends_on: [hold], approval: {name: e2e_signed, assignees: [ada]}, then: {approved: done}}\n  done: {value: signed}\n"
        )
        forged = b'{"approved": true, "by": ["ada"], "value": null, "comment": "", "votes": []}'
        for startable in (early_flow, flow("e2e_early_dag")):
            handle = await env.start(startable)
            operator = Caller(Principal(subject="eve", role=Role.OPERATOR), "default", "rest")
            api = NamespaceApi(env.client.api, env.client.engine.ns, operator)
            forgery = ResolvePromise(handle.id, "e2e_signed", forged)
            await api.call(messages.RESOLVE, forgery)
            await env.settle()
            await go_on.send(handle.id, True)
            await env.settle()
            assert await handle.status() == "running", "it waits for ada"
            with pytest.raises(Forbidden):
                await api.call(messages.RESOLVE, forgery)
            body = encode_message(PromiseMessage("e2e_signed", forged))
            posted = await env.client.store.resolve_promise(
                ids.parse(handle.id), api.ns, "e2e_signed", body, authorized=False
            )
            assert posted == (True, False), "the approval is open by now: an earlier check does not count"
            await env.settle()
            assert await handle.status() == "running"
            assert await signed.approve(handle.id, by="ada") is True
            assert await handle.result("10s") in ("signed", {"done": "signed"})


async def test_a_value_on_its_way_when_people_are_asked_is_dropped(dsn: str) -> None:
    """Sent before the approval existed and read after it: the message itself says what it may do."""
    async with TestEnv(dsn) as env:
        handle = await env.start(e2e_signed_flow)
        run, engine = ids.parse(handle.id), env.client.engine
        async with env.client.store.pool.take() as c:
            body = encode_message(PromiseMessage("e2e_signed", b"true"))
            insert = (
                "insert into perdure.inbox (ns, run_id, body, kind, name) values ($1, $2, $3, 'promise', 'e2e_signed')"
            )
            await c.execute(insert, engine.ns, run, body)
        engine.events.message_sent.publish(run)
        await env.settle()
        assert await handle.status() == "running"
        await env.client._backend.call(messages.RESOLVE, ResolvePromise(handle.id, "e2e_signed", b"true"))
        assert await handle.result("10s") == "signed"


async def test_the_first_of_two_who_decide_at_once_counts(dsn: str) -> None:
    import asyncio

    async with TestEnv(dsn) as env:
        handle = await env.start(e2e_publish_flow, 3)
        await publish.approve(handle.id, Terms(1), by="ada")
        said = await asyncio.gather(
            *(publish.approve(handle.id, Terms(n), by="ben") for n in range(2, 8)), return_exceptions=True
        )
        assert [s for s in said if not isinstance(s, Exception)] == [True]
        assert {type(s).__name__ for s in said if isinstance(s, Exception)} <= {"ApprovalClosed", "RunFinished"}
        events = [type(r.event).__name__ for r in await handle.history()]
        await handle.result("10s")
        assert events.count("PromiseResolved") <= 1
