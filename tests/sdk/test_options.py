"""Options of tasks, workflows, approvals and schedules: declared once, checked where they are written."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Approval, Limit, Retry, Schedule, task, workflow
from perdure.errors import InvalidInput
from perdure.sdk.options import CallOptions, TaskDefinitionOptions, checked


@task(name="opt_add")
def add(a: int, b: int = 0) -> int:
    return a + b


@workflow(name="opt_flow")
async def flow() -> None:
    await add(1)


UNKNOWN: dict[str, Any] = {
    "@task": lambda **given: task(**given),
    "@workflow": lambda **given: workflow(**given),
    "opt_add.options()": lambda **given: add.options(**given),
    "Approval()": lambda **given: Approval("a", **given),
    "Schedule()": lambda **given: Schedule("s", flow.bind(), every="1h", **given),
}


@pytest.mark.parametrize("where", UNKNOWN)
def test_an_unknown_option_is_refused_where_it_is_written(where: str) -> None:
    with pytest.raises(TypeError) as caught:
        UNKNOWN[where](retires=3)
    assert str(caught.value) == f"{where} got an unexpected keyword argument 'retires'"


def test_an_option_that_is_none_was_not_given() -> None:
    assert checked("x", CallOptions, {"retry": None, "queue": "q", "at_most_once": False}) == {
        "queue": "q",
        "at_most_once": False,
    }
    slow = add.options(retry=7, queue="slow")
    assert slow.options(retry=None, queue=None).effective == slow.effective
    assert slow.options(retry=None).queue == "slow"


def test_a_call_takes_every_option_of_a_task_but_its_name_its_process_and_its_transaction() -> None:
    of_executors = {"executor", "executor_options", "num_cpus", "num_gpus", "resources"}
    own = TaskDefinitionOptions.__optional_keys__ - CallOptions.__optional_keys__
    assert own == {"name", "process", "transactional", *of_executors}


def test_options_of_a_call_replace_those_of_the_task_and_leave_the_task_alone() -> None:
    once = task(name="opt_once", at_most_once=True, timeout="5s")(lambda: None)
    again = once.options(at_most_once=False, retry=Retry(4, delay="2s", max_delay="8s"))
    assert (once.effective.at_most_once, once.effective.max_attempts) == (True, 1)
    assert (again.effective.at_most_once, again.effective.max_attempts) == (False, 4)
    assert (again.effective.initial_us, again.effective.cap_us) == (2_000_000, 8_000_000)
    assert again.name == once.name
    assert again.effective.timeout_us == once.effective.timeout_us == 5_000_000


@pytest.mark.parametrize("bad", [lambda: Retry(0), lambda: Retry(1001), lambda: Retry(factor=0.5), lambda: Limit(0)])
def test_values_out_of_range_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput):
        bad()
