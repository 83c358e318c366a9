"""The examples of docs/how-to/run-on-kubernetes.md, and results without an object store."""

from __future__ import annotations

from perdure import Perdure
from perdure.core.retry import End
from perdure.executors.kubernetes import KubernetesExecutor
from tests.executors.agents import Agent, assignment
from tests.executors.flows_of_jobs import block, run_flow
from tests.executors.kubernetes_jobs import KubernetesJobs

PAGE = "run-on-kubernetes.md"


async def test_the_flow(dsn: str, jobs: KubernetesJobs) -> None:
    done = await run_flow(dsn, KubernetesExecutor(jobs.options()), block(PAGE, "yaml"), day="mo")
    assert done in ({"train": {"loss": 0.25}}, {"loss": 0.25})


async def test_the_code(dsn: str, jobs: KubernetesJobs) -> None:
    names: dict[str, object] = {"__name__": "kubernetes_page"}
    exec(compile(block(PAGE, "python"), PAGE, "exec"), names)
    async with Perdure(dsn, executors=[KubernetesExecutor(jobs.options())]):
        assert await names["train"].run("mo") == {"loss": 0.25}  # type: ignore[attr-defined]


async def test_a_log_is_the_result_and_the_output(jobs: KubernetesJobs) -> None:
    async with Agent(jobs.executor()) as agent:
        spec = {"image": "any", "command": 'echo hello; echo "[$PERDURE_INPUT]"', "input": {"n": 1}}
        report = await agent.report(assignment("kubernetes", spec))
        assert jobs.value(report) == [{"n": 1}]
        assert agent.lines() == ["hello", '[{"n":1}]']
        failed = await agent.report(assignment("kubernetes", {"image": "any", "command": "echo broken; exit 3"}))
        assert failed.end is End.ERROR and "code 3" in agent.failure(failed) and "broken" in agent.failure(failed)


async def test_an_image_that_cannot_be_pulled_is_lost(jobs: KubernetesJobs) -> None:
    async with Agent(KubernetesExecutor(jobs.options(start_s=3.0))) as agent:
        report = await agent.report(assignment("kubernetes", {"image": "missing/one", "command": ["true"]}))
        assert report.end is End.JOB_LOST
        assert "ImagePullBackOff" in agent.failure(report)


async def test_what_the_api_refuses_is_refused_for_good(jobs: KubernetesJobs) -> None:
    async with Agent(jobs.executor()) as agent:
        spec = {"image": "any", "command": ["true"], "labels": {"not a label!": "x"}}
        report = await agent.report(assignment("kubernetes", spec))
        assert report.end is End.FINAL_ERROR
        assert "Kubernetes refuses the Job" in agent.failure(report)
