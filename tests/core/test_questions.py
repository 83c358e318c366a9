"""Which values answer which questions."""

from __future__ import annotations

from typing import Any

from perdure.core import events as ev
from perdure.core.approvals import Spec, encode_spec
from perdure.core.questions import BY_NAME, QUESTION_CHARS, Values, asked_by, name_question


def asked(name: str = "deal", **spec: Any) -> ev.PromiseCreated:
    whole = {"title": "pay?", "quorum": 1, "reject_quorum": 1} | spec
    return ev.PromiseCreated(0, name, encode_spec(Spec(**whole)), ev.PromiseKind.APPROVAL)


def test_the_same_question_at_another_time_is_the_same() -> None:
    assert asked_by(asked(deadline_us=1)) == asked_by(asked(deadline_us=2)) == asked_by(asked())
    assert asked_by(asked(details=5)) != asked_by(asked(details=6))
    assert asked_by(ev.PromiseCreated(0, "p")) == BY_NAME


def test_a_question_is_named_for_one_run() -> None:
    five, six = asked_by(asked(details=5)), asked_by(asked(details=6))
    names = {name_question(run, question) for run in (bytes(16), bytes(15) + b"1") for question in (five, six)}
    assert len(names) == 4 and {len(name) for name in names} == {QUESTION_CHARS}


def test_an_answer_is_for_its_question_alone_and_the_first_one_stands() -> None:
    values, five = Values(), asked(details=5)
    assert values.put("deal", asked_by(five), b"1", authorized=True)
    assert not values.put("deal", asked_by(five), b"2", authorized=True)
    assert (values.of(five), values.of(asked(details=6)), values.of(asked("other", details=5))) == (b"1", None, None)


def test_a_value_for_a_name_answers_what_its_sender_may_answer() -> None:
    for authorized in (False, True):
        values = Values()
        values.put("deal", BY_NAME, b"1", authorized=authorized)
        assert values.of(asked()) == b"1"
        assert values.of(asked(assignees=["ada"])) == (b"1" if authorized else None)
        assert values.of(asked(quorum=2)) == (b"1" if authorized else None)
