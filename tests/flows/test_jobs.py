"""`job:` of flows."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.flows.compile import compile_value
from perdure.flows.model import TaskCall
from perdure.flows.problems import FlowError


def compiled(job: Any, **more: Any) -> Any:
    return compile_value({"flow": "f", "tasks": {"one": {"job": job, **more}}}).flow


def test_a_job_is_a_task_of_its_executor() -> None:
    flow = compiled({"executor": "kubernetes", "image": "i", "command": ["x", "${ input.n }"], "input": {"a": 1}})
    (node,) = flow.all_nodes()
    assert isinstance(node.verb, TaskCall)
    assert node.verb.task == "perdure.job.kubernetes"
    assert node.verb.options.executor == "kubernetes"


def test_a_job_runs_commands_and_needs_the_permission_for_it() -> None:
    assert compiled({"executor": "objects", "command": ["x"]}).command_node() == "one"


@pytest.mark.parametrize(
    ("job", "more", "why"),
    [
        ({"command": ["x"]}, {}, "executor"),
        ("kubernetes", {}, "job"),
        ({"executor": "${ input.e }"}, {}, "executor"),
        ({"executor": "objects", "command": "echo ${ input.n }"}, {}, "shell text"),
        ({"executor": "objects", "command": ["sh", "-c", "echo ${ input.n }"]}, {}, "shell text"),
        ({"executor": "objects", "command": ["x"]}, {"with": {"a": 1}}, "with does not go with job"),
    ],
)
def test_what_is_wrong_is_said_before_it_is_deployed(job: Any, more: dict[str, Any], why: str) -> None:
    with pytest.raises(FlowError, match=why):
        compiled(job, **more)
