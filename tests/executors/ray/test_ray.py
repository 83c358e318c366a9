"""Tasks of a workflow on a real Ray cluster, through a real engine."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Perdure, task, wf, workflow
from perdure.core.payloads import Placed, Reference, encode_tree
from perdure.errors import InvalidInput, TaskFailed
from perdure.executors.port import JobRefused
from perdure.executors.ray import RayExecutor
from perdure.executors.ray.executor import RayOptions, check_options, function_code, spec_by_reference
from tests.executors.ray import works
from tests.executors.ray.cluster import RayCluster


@workflow(name="ray_values")
async def values() -> dict[str, Any]:
    doubled = [works.double(n) for n in range(4)]
    return {
        "doubled": [await one for one in doubled],
        "async": await works.divide(1, 4),
        "third": await works.third_time(),
        "function": await wf.call("perdure.job.ray", {"function": "tests.executors.ray.works:echo", "input": {"a": 1}}),
    }


@workflow(name="ray_failures")
async def failures() -> list[str]:
    try:
        await works.divide(1, 0)
    except TaskFailed as e:
        return [str(e), e.failure.type, e.failure.traceback]
    return []


@workflow(name="ray_model")
async def model() -> list[list[int]]:
    return [await works.predict(1), await works.predict(2)]


async def test_tasks_of_a_workflow_run_on_the_cluster(ray_cluster: RayCluster, dsn: str) -> None:
    executor = RayExecutor(RayOptions(address=ray_cluster.address, call_s=60.0))
    async with Perdure(dsn, executors=[executor]):
        assert await values.run() == {"doubled": [0, 2, 4, 6], "async": 0.25, "third": 3, "function": {"a": 1}}
        divided = await failures.run()
        assert divided[1] == "ZeroDivisionError"
        assert "division by zero" in divided[0]
        assert "works.py" in divided[2]
        (first, calls, got), (second, calls_later, got_later) = await model.run()
        assert first == second, "both used one actor"
        assert (calls, got, calls_later, got_later) == (1, 2, 2, 3)


@pytest.mark.usefixtures("processes")
async def test_no_cluster_is_said_so() -> None:
    pytest.importorskip("ray")
    executor = RayExecutor(RayOptions(address="127.0.0.1:1", connect_s=10.0))
    with pytest.raises(Exception, match=r"Ray cluster"):
        await executor.open(None)  # type: ignore[arg-type]
    await executor.close()


def test_options_need_an_executor() -> None:
    with pytest.raises(InvalidInput, match="num_gpus: these are options of an executor"):
        task(num_gpus=1)(lambda: None)
    made = task(name="gpu", executor="ray", num_gpus=0.5, executor_options={"memory": 1024})(lambda: None)
    assert made.executor_options == {"num_gpus": 0.5, "memory": 1024}
    assert made.options(timeout="1m").executor_options == made.executor_options


def test_what_cannot_be_run_is_refused() -> None:
    for spec in ({}, {"function": "nothing"}, {"function": "a:b", "input": 3}, {"function": "a:b", "lifetime": "x"}):
        with pytest.raises(JobRefused):
            function_code(spec)
    with pytest.raises(JobRefused, match="no option 'name'"):
        check_options({"name": "x"})


def test_a_spec_is_read_without_its_input() -> None:
    stored = Placed(Reference(bytes(32), 1_000_000))
    spec = {"function": "a:b", "num_gpus": 1}
    for given in (stored, {"text": stored, "n": 1}):
        assert spec_by_reference(encode_tree({**spec, "input": given})) == {**spec, "input": {}}
        assert spec_by_reference(encode_tree({"**": {**spec, "input": given}})) == {**spec, "input": {}}
    for whole in (stored, {"**": stored}, {**spec, "runtime_env": stored, "input": {}}):
        assert spec_by_reference(encode_tree(whole)) is None
