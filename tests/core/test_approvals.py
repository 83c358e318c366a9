"""Approvals: who may answer, what counts, and what can be asked at all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import approvals as ap
from perdure.core.approvals import Spec, Standing, Vote
from perdure.core.errors import ApprovalClosed, ApprovalExpired, Conflict, InvalidInput, NotAssigned, PayloadTooLarge
from perdure.core.limits import (
    APPROVAL_BYTES_MAX,
    APPROVAL_NAMES_MAX,
    APPROVAL_VALUE_BYTES_MAX,
    COMMENT_CHARS_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
)
from perdure.sdk.approvals import answer_of, form_of


def spec(**said: Any) -> Spec:
    return Spec(**({"title": "Go?", "quorum": 1, "reject_quorum": 1} | said))


def standing(now_us: int = 0, votes: list[Vote] | None = None, resolved_us: int | None = None, **said: Any) -> Standing:
    asked = spec(**said)
    return Standing(
        run_id=bytes(16),
        name="go",
        workflow="w",
        key=None,
        spec=asked,
        assignees=asked.assignees,
        escalate_to=asked.escalate_to,
        created_us=0,
        resolved_us=resolved_us,
        now_us=now_us,
        votes=votes or [],
    )


def yes(who: str, value: Any = None) -> Vote:
    return Vote(who=who, approved=True, value=msgspec.json.encode(value))


def no(who: str, comment: str = "") -> Vote:
    return Vote(who=who, approved=False, comment=comment)


# -- who -----------------------------------------------------------------------------------------------------------


def test_without_assignees_anybody_answers_under_the_first_of_their_names() -> None:
    assert ap.answerer(standing(), ("ada", "user:ada")) == "ada"


def test_assignees_answer_under_the_name_they_were_asked_by() -> None:
    assert ap.answerer(standing(assignees=["user:ada"]), ("ada", "user:ada")) == "user:ada"
    with pytest.raises(NotAssigned, match="is for ops, and 'ada' is not among them"):
        ap.answerer(standing(assignees=["ops"]), ("ada", "user:ada"))


@pytest.mark.parametrize(("now_us", "may"), [(0, False), (99, False), (100, True), (101, True)])
def test_those_it_escalates_to_answer_from_the_moment_on(now_us: int, may: bool) -> None:
    asked = standing(now_us, assignees=["ada"], escalate_us=100, escalate_to=["lead"])
    assert asked.is_escalated is may
    assert asked.answerers == (["ada", "lead"] if may else ["ada"])
    if may:
        assert ap.answerer(asked, ["lead"]) == "lead"
    else:
        with pytest.raises(NotAssigned, match="only once it has escalated"):
            ap.answerer(asked, ["lead"])


@pytest.mark.parametrize(
    ("subject", "key_name", "names"),
    [
        ("user:ada", None, ("ada", "user:ada")),
        ("key:abc", "ops", ("ops", "key:abc")),
        ("key:abc", None, ("key:abc",)),
        ("dev", None, ("dev",)),
        ("user:key:abc", None, ("user:key:abc",)),
        ("key:abc", "user:ada", ("key:abc",)),
        ("user:user:ada", None, ("user:user:ada",)),
        ("user:", None, ("user:",)),
    ],
)
def test_a_name_that_looks_like_somebody_elses_subject_is_none(
    subject: str, key_name: str | None, names: tuple[str, ...]
) -> None:
    assert ap.names_of(subject, key_name) == names


# -- when ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("now_us", "late"), [(99, False), (100, True), (101, True)])
def test_from_the_deadline_on_nobody_may_answer(now_us: int, late: bool) -> None:
    asked = standing(now_us, deadline_us=100)
    assert asked.status == ("expired" if late else "open")
    if late:
        with pytest.raises(ApprovalExpired):
            ap.check_open(asked)
    else:
        ap.check_open(asked)


def test_what_is_decided_says_how_and_by_whom() -> None:
    for votes, said in (([yes("ada"), yes("ben")], "approved by ada, ben"), ([no("eve")], "rejected by eve")):
        asked = standing(9, votes, resolved_us=5, quorum=2)
        with pytest.raises(ApprovalClosed, match=said):
            ap.check_open(asked)
    with pytest.raises(ApprovalClosed, match="resolved by hand"):
        ap.check_open(standing(9, resolved_us=5))


# -- counting ------------------------------------------------------------------------------------------------------

ballots = st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=30)


@given(ballots, st.integers(1, 6), st.integers(1, 6))
def test_it_is_decided_by_the_vote_that_makes_the_count_full(
    given_: list[tuple[str, bool]], quorum: int, reject_quorum: int
) -> None:
    asked = spec(quorum=quorum, reject_quorum=reject_quorum)
    votes: list[Vote] = []
    last: dict[str, bool] = {}
    for who, approved in given_:
        votes = ap.with_vote(votes, yes(who) if approved else no(who))
        last[who] = approved
        counts = (sum(last.values()), len(last) - sum(last.values()))
        verdict = ap.verdict_of(asked, votes)
        assert {v.who: v.approved for v in votes} == last, "one name, one vote"
        assert verdict is (True if counts[0] >= quorum else False if counts[1] >= reject_quorum else None)
        if verdict is not None:
            assert votes[-1].approved is verdict, "the last one decided it"
            return


def test_the_value_is_the_deciding_votes_or_the_last_that_was_given() -> None:
    def value(*votes: Vote) -> Any:
        return msgspec.json.decode(ap.envelope(list(votes), True))["value"]

    assert value(yes("a", 1), yes("b", 2)) == 2
    assert value(yes("a", 1), yes("b")) == 1
    assert value(yes("a")) is None
    assert msgspec.json.decode(ap.envelope([yes("a", 1), no("b")], False))["value"] is None


def test_the_envelope_says_who_and_what_everybody_said() -> None:
    found = msgspec.json.decode(ap.envelope([yes("a"), no("b", "why not"), yes("c")], True))
    assert (found["approved"], found["by"], found["comment"]) == (True, ["a", "c"], "")
    assert [(v["who"], v["approved"], v["comment"]) for v in found["votes"]] == [
        ("a", True, ""),
        ("b", False, "why not"),
        ("c", True, ""),
    ]
    assert found["votes"][0]["at"] == "1970-01-01T00:00:00.000000Z"


def test_the_largest_envelope_fits_into_a_history() -> None:
    value = b'"' + b"x" * (APPROVAL_VALUE_BYTES_MAX - 2) + b'"'
    votes = [
        Vote(
            who=f"{n:02d}" + "\x01" * (NAME_CHARS_MAX - 2),
            approved=True,
            value=value,
            comment="\x01" * COMMENT_CHARS_MAX,
        )
        for n in range(APPROVAL_NAMES_MAX)
    ]
    data = ap.envelope(votes, True)
    assert len(data) <= PAYLOAD_BYTES_MAX
    assert "comment" not in msgspec.json.decode(data)["votes"][0]


def test_there_is_an_end_to_votes() -> None:
    votes = [yes(str(n)) for n in range(APPROVAL_NAMES_MAX)]
    with pytest.raises(Conflict, match="APPROVAL_NAMES_MAX"):
        ap.with_vote(votes, yes("one more"))
    assert len(ap.with_vote(votes, no("0"))) == APPROVAL_NAMES_MAX, "changing one's mind is no further vote"


# -- delegation ----------------------------------------------------------------------------------------------------


def test_delegation_replaces_a_name_and_only_where_it_adds_somebody() -> None:
    asked = standing(assignees=["ada", "ben"], escalate_us=5, escalate_to=["lead"])
    ap.check_delegation(asked, "ada", "cleo")
    assert ap.delegated(asked.assignees, "ada", "cleo") == ["cleo", "ben"]
    for known in ("ben", "lead", "ada"):
        with pytest.raises(Conflict):
            ap.check_delegation(asked, "ada", known)
    with pytest.raises(Conflict, match="has answered"):
        ap.check_delegation(standing(votes=[no("ada")], assignees=["ada", "ben"]), "ada", "cleo")
    with pytest.raises(InvalidInput):
        ap.check_delegation(asked, "ada", "")


# -- asking --------------------------------------------------------------------------------------------------------


def test_a_spec_comes_back() -> None:
    asked = spec(details={"event": {"event": 1}}, form={"properties": {"event": {"type": "string"}}}, assignees=["a"])
    data = ap.encode_spec(asked)
    assert ap.decode_spec(data) == asked


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"title": "x" * 501}, "APPROVAL_TITLE_CHARS_MAX"),
        ({"quorum": 0}, "between 1 and"),
        ({"reject_quorum": APPROVAL_NAMES_MAX + 1}, "between 1 and"),
        ({"assignees": ["a"], "quorum": 2}, "only 1 may answer"),
        ({"assignees": ["a", "a"], "quorum": 2}, "only 1 may answer"),
        ({"assignees": [" "]}, "invalid person name"),
        ({"assignees": ["x" * (NAME_CHARS_MAX + 1)]}, "invalid person name"),
        ({"assignees": ["a"] * (APPROVAL_NAMES_MAX + 1)}, "APPROVAL_NAMES_MAX"),
        ({"assignees": ["a"], "escalate_us": 1}, "not say to whom"),
        ({"details": "nul \x00"}, "NUL"),
        ({"details": {"a": object()}}, "not JSON"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_a_reason(said: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        ap.encode_spec(spec(**said))


def test_a_text_that_only_talks_of_nul_is_fine() -> None:
    assert ap.encode_spec(spec(details="\\u0000 is NUL"))


def test_details_have_a_limit_with_a_name() -> None:
    with pytest.raises(PayloadTooLarge, match="APPROVAL_BYTES_MAX"):
        ap.encode_spec(spec(details="x" * APPROVAL_BYTES_MAX))


# -- values and forms ----------------------------------------------------------------------------------------------


def test_a_value_is_held_against_the_form_and_completed_with_its_defaults() -> None:
    form = {
        "type": "object",
        "properties": {"price": {"type": "integer"}, "note": {"type": "string", "default": "-"}},
        "required": ["price"],
    }
    assert msgspec.json.decode(ap.check_value(form, {"price": 3})) == {"price": 3, "note": "-"}
    for value, why in ((None, "value.price is missing"), ({"price": "3"}, "must be integer"), ([1], "must be object")):
        with pytest.raises(InvalidInput, match=why):
            ap.check_value(form, value)
    with pytest.raises(InvalidInput, match="value must be integer, not null"):
        ap.check_value({"type": "integer"}, None)
    assert ap.check_value(None, {"any": "thing"}) == b'{"any":"thing"}'
    with pytest.raises(PayloadTooLarge, match="APPROVAL_VALUE_BYTES_MAX"):
        ap.check_value(None, "x" * APPROVAL_VALUE_BYTES_MAX)


class Inner(msgspec.Struct):
    depth: int


class Outer(msgspec.Struct):
    inner: Inner
    maybe: int | None = None
    many: list[Inner] = []


class Loop(msgspec.Struct):
    next: Loop | None = None


def test_the_form_of_a_type_is_written_out() -> None:
    form = form_of(Outer)
    assert "$ref" not in msgspec.json.encode(form).decode()
    assert form["properties"]["inner"]["properties"] == {"depth": {"type": "integer"}}
    assert form["properties"]["maybe"]["type"] == ["integer", "null"]
    assert form["properties"]["many"]["items"]["required"] == ["depth"]
    with pytest.raises(InvalidInput, match=r"value.inner.depth must be integer"):
        ap.check_value(form, {"inner": {"depth": "x"}})
    assert ap.check_value(form_of(int), 3) == b"3"


def test_a_type_that_holds_itself_ends_somewhere() -> None:
    assert len(msgspec.json.encode(form_of(Loop))) < APPROVAL_BYTES_MAX


# -- what a run makes of it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "approved", "inner"),
    [
        (b"true", True, None),
        (b"false", False, None),
        (b"null", True, None),
        (b'{"approved": false, "comment": "no"}', False, None),
        (b'{"approved": true, "value": 3}', True, 3),
        (b'{"price": 3}', True, {"price": 3}),
        (b"7", True, 7),
    ],
)
def test_a_promise_that_was_resolved_by_hand_is_an_answer_too(value: bytes, approved: bool, inner: Any) -> None:
    answer = answer_of(value)
    assert (answer.approved, answer.value) == (approved, inner)


def test_votes_come_back_as_they_were_counted() -> None:
    answer = answer_of(ap.envelope([yes("a", {"x": 1}), yes("b")], True))
    assert (answer.approved, answer.by, answer.value) == (True, ("a", "b"), {"x": 1})
    assert ap.read_answer({"approved": True}) is None, "without votes it is no decision of people"
