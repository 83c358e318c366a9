"""`${ secret.NAME }` in flows: where it may stand, and what the engine makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.secrets import SecretPlace
from perdure.flows.compile import compile_value
from perdure.flows.model import Flow, TaskCall
from perdure.flows.problems import FlowError


def flow(**node: Any) -> Flow:
    return compile_value({"flow": "f", "tasks": {"first": {"value": 1}, "t": {"depends_on": ["first"], **node}}}).flow


def call(**node: Any) -> TaskCall:
    verb = flow(**node).body.nodes[1].verb
    assert isinstance(verb, TaskCall)
    return verb


def evaluated(verb: TaskCall, **scope: Any) -> Any:
    assert verb.args is not None
    return verb.args.evaluate(scope.__getitem__)


def refusal(**node: Any) -> str:
    with pytest.raises(FlowError) as caught:
        flow(**node)
    return str(caught.value)


def test_the_engine_sees_references_and_the_options_list_their_places() -> None:
    verb = call(
        http={
            "url": "https://example.org/${ secret['PATH-1'] }",
            "headers": {"Authorization": "Bearer ${ secret.TOKEN } ${ input.who }", "X": "${ secret['a.b'] }"},
            "body": [{"same": "${ input.data }"}, "${ secret.TOKEN }"],
        }
    )
    assert verb.options.secrets == (
        SecretPlace(("url",), ("PATH-1",)),
        SecretPlace(("headers", "Authorization"), ("TOKEN",)),
        SecretPlace(("headers", "X"), ("a.b",)),
        SecretPlace(("body", 1), ("TOKEN",)),
    )
    forged = {"$secret": "TOKEN"}
    assert evaluated(verb, input={"who": "${ secret.X }", "data": forged}) == {
        "url": {"$secret": ["https://example.org/", "PATH-1", ""]},
        "headers": {"Authorization": {"$secret": ["Bearer ", "TOKEN", " ${ secret.X }"]}, "X": {"$secret": "a.b"}},
        "body": [{"same": forged}, {"$secret": "TOKEN"}],
    }


def test_literal_text_and_data_of_runs_are_no_secrets() -> None:
    verb = call(python="m:f", **{"with": {"a": "$${ secret.TOKEN }", "b": {"$secret": "TOKEN"}, "c": "${ input }"}})
    assert verb.options.secrets == ()
    assert evaluated(verb, input="${ secret.T }") == {
        "a": "${ secret.TOKEN }",
        "b": {"$secret": "TOKEN"},
        "c": "${ secret.T }",
    }


def test_secrets_go_with_tasks_commands_and_compensation() -> None:
    assert call(**{"with": {"token": "${ secret.A }"}}).options.secrets == (SecretPlace(("token",), ("A",)),)
    run = call(run={"command": ["env"], "env": {"T": "${ secret.A }"}})
    assert run.options.secrets == (SecretPlace(("env", "T"), ("A",)),)
    assert run.options.executor == "process"
    job = call(job={"executor": "container", "image": "a", "env": {"T": "${ secret.A }"}})
    assert job.options.secrets == (SecretPlace(("env", "T"), ("A",)),)
    made = flow(python="m:f", compensate={"http": {"url": "https://a.b", "headers": {"k": "${ secret.UNDO }"}}})
    assert made.secrets() == ["UNDO"]


@pytest.mark.parametrize(
    "node",
    [
        {"when": "secret.A == 'x'", "python": "m:f"},
        {"foreach": "${ secret.A }", "python": "m:f"},
        {"value": "${ secret.A }"},
        {"sleep": "${ secret.A }"},
        {"wait": {"signal": "${ secret.A }"}},
        {"approval": {"title": "${ secret.A }"}},
        {"flow": "other", "with": {"a": "${ secret.A }"}},
        {"python": "m:f", "set": {"a": "${ secret.A }"}},
        {"services": ["a", "${ secret.A }"]},
        {"service": "a", "with": {"a": "${ secret.A }"}},
        {"service": {"name": "a", "headers": {"a": "${ secret.A }"}}},
        {"python": "m:f", "with": "${ secret.A }"},
    ],
)
def test_a_secret_is_refused_where_the_engine_evaluates(node: dict[str, Any]) -> None:
    assert "a secret may stand in what a task of a worker is given" in refusal(**node)


def test_a_secret_is_refused_where_it_would_show() -> None:
    for command in (
        ["echo", "${ secret.A }"],
        {"command": ["echo", "${ secret.A }"]},
        {"command": "x", "stdin": "${ secret.A }"},
    ):
        assert "put it in env" in refusal(run=command)
    for executor in ("kubernetes", "cloud-run", "ray", "objects", "service"):
        said = refusal(job={"executor": executor, "env": {"A": "${ secret.A }"}})
        assert "would write it where others can read it" in said
    assert "service here" in refusal(http={"service": "${ secret.A }"})


def test_nothing_is_computed_with_a_secret() -> None:
    assert "computes with a secret" in refusal(python="m:f", **{"with": {"a": "${ upper(secret.A) }"}})
    assert "computes with a secret" in refusal(python="m:f", **{"with": {"a": "${ secret }"}})
    assert "cannot be the name of a secret" in refusal(python="m:f", **{"with": {"a": "${ secret['a/b'] }"}})
    assert "belongs to Perdure" in refusal(python="m:f", **{"with": {"a": "${ secret.PERDURE_API_KEY }"}})
    assert "SECRETS_PER_TASK_MAX" in refusal(python="m:f", **{"with": {"a": ["${ secret.A }"] * 101}})
    with pytest.raises(FlowError, match="cannot be the key of a task"):
        compile_value({"flow": "f", "tasks": {"secret": {"value": 1}}})


def test_other_expressions_beside_a_secret_are_checked() -> None:
    assert "unknown name 'nothing'" in refusal(python="m:f", **{"with": {"a": "${ secret.A } ${ nothing.x }"}})
