"""Services of a flow: a Python task or a call over HTTP, decided when the call is scheduled and recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.flows.compile import compile_value
from perdure.flows.decide.decider import Decider
from tests.flows.pure import START_US

RUN = bytes(16)
NODE = {"kind": "executor", "service": "s"}


def scheduled(document: dict[str, Any], input: Any = None, *, http: bool) -> list[cm.ScheduleTasks]:
    flow = compile_value(document, name="f").flow
    decider = Decider(flow, RUN, is_http=lambda name: http)
    started = ev.RunStarted("f", "flow-1", json.dumps(input or {}).encode())
    made = decider.activate([ev.Recorded(1, START_US, started)], replay=True)
    return [c for c in made if isinstance(c, cm.ScheduleTasks)]


def graph(**fields: Any) -> dict[str, Any]:
    return {"start": "a", "nodes": {"a": {**NODE, **fields}}, "edges": []}


@pytest.mark.parametrize(
    ("fields", "spec", "attempts", "wait_us"),
    [
        ({}, {"max_attempts": 1}, 1, 0),
        ({"max_retries": 3, "wait_ms": 5}, {"max_attempts": 1}, 3, 5_000),
        ({"max_attempts": 4, "attempt_delay_ms": 7}, {"max_attempts": 4, "attempt_delay_ms": 7}, 1, 0),
        ({"max_attempts": 2, "weighted_by_load": True}, {"max_attempts": 2, "weighted_by_load": True}, 1, 0),
        ({"weighted_by_load": False}, {"max_attempts": 1}, 1, 0),
    ],
)
def test_a_node_of_kind_executor_calls_over_http(
    fields: dict[str, Any], spec: dict[str, Any], attempts: int, wait_us: int
) -> None:
    (task,) = scheduled(graph(**fields), {"x": 1}, http=True)
    assert task.name == "perdure.job.service" and task.options.executor == "service"
    assert json.loads(task.inputs[0]) == {"service": "s", "input": {"x": 1}, "params": {"x": 1}, **spec}
    assert (task.options.max_attempts, task.options.initial_us) == (attempts, wait_us)


def test_a_python_task_of_that_name_is_called_as_it_is() -> None:
    (task,) = scheduled(graph(max_retries=2, max_attempts=3, weighted_by_load=True), {"x": 1}, http=False)
    assert (task.name, task.options.executor, task.options.max_attempts) == ("s", "", 6)
    assert json.loads(task.inputs[0]) == {"input": {"x": 1}, "params": {"x": 1}}


def test_services_and_spreads_and_the_form_with_fields() -> None:
    tasks = {
        "one": {"service": "s", "with": 5, "retry": 4},
        "many": {"services": ["a", "b"], "with": 6},
        "each": {"service": "s", "foreach": [1, 2]},
        "whole": {"service": {"name": "n", "params": {"p": 1}, "timeout": "2s"}, "with": 7},
        "url": {"service": {"url": "https://h/${ input.x }", "auth": {"bearer_env": "T"}}},
    }
    found = scheduled({"tasks": tasks}, {"x": "y"}, http=True)
    assert {t.name for t in found} == {"perdure.job.service"}
    specs: dict[str, list[Any]] = {}
    for t in found:
        nodes = t.nodes if len(t.nodes) == len(t.inputs) else t.nodes * len(t.inputs)
        for node, data in zip(nodes, t.inputs, strict=True):
            specs.setdefault(node, []).append(json.loads(data))
    assert specs == {
        "one": [{"service": "s", "input": 5}],
        "many": [{"service": "a", "input": 6}, {"service": "b", "input": 6}],
        "each": [{"service": "s", "input": 1}, {"service": "s", "input": 2}],
        "whole": [{"service": "n", "input": 7, "params": {"p": 1}, "timeout": "2s"}],
        "url": [{"url": "https://h/y", "auth": {"bearer_env": "T"}, "input": None}],
    }
    assert [t.options.max_attempts for t in found if t.nodes == ["one"]] == [4]
    by_fields = scheduled({"tasks": {"w": tasks["whole"]}}, http=False)
    assert by_fields[0].name == "perdure.job.service", "the form with fields is never a Python task"


@pytest.mark.parametrize("was_http", [True, False])
def test_a_replay_takes_what_is_recorded(was_http: bool) -> None:
    """A task of that name may have appeared or gone since."""
    flow = compile_value(graph(), name="f").flow
    (task,) = scheduled(graph(), http=was_http)
    history = [
        ev.RunStarted("f", "flow-1", b"{}"),
        ev.TasksScheduled(task.first, task.name, task.queue, task.inputs, task.options, task.nodes, task.index),
        ev.TasksSucceeded([0], [b"1"]),
    ]
    decider = Decider(flow, RUN, is_http=lambda name: not was_http)
    made = decider.activate([ev.Recorded(n + 1, START_US, e) for n, e in enumerate(history)], replay=True)
    assert [type(c) for c in made] == [cm.CompleteRun]


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({}, "needs a name or a url"),
        ({"name": "a", "url": "http://b"}, "needs a name or a url, and not both"),
        ({"name": "a", "nope": 1}, "unknown key 'nope'"),
        ({"name": "a", "max_attempts": 0}, "max_attempts"),
        ({"name": "a", "weighted_by_load": 1}, "true or false"),
        ({"url": "http://b", "auth": {"bearer": "secret"}}, "did you mean 'bearer_env'?"),
    ],
)
def test_what_is_wrong_with_a_service(service: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match="(?s).*") as e:
        compile_value({"tasks": {"n": {"service": service}}}, name="f")
    assert message in str(e.value)


def test_a_call_of_a_service_needs_no_permission_for_commands() -> None:
    for verb in ({"service": "s"}, {"service": {"name": "s"}}, {"service": {"url": "https://example.org/x"}}):
        assert compile_value({"tasks": {"a": verb}}, name="f").flow.command_node() is None
    for verb in ({"run": ["x"]}, {"python": "perdure.job.process"}, {"job": {"executor": "objects", "command": ["x"]}}):
        assert compile_value({"tasks": {"a": verb}}, name="f").flow.command_node() == "a"
