"""What the executor makes of watches that lag, break and are too old, and of a server that is busy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.core.retry import End
from perdure.executors.kubernetes import mirror
from perdure.executors.kubernetes.mirror import Mirror
from perdure.executors.kubernetes.states import JobView, PodView
from tests.executors.agents import Agent, assignment
from tests.executors.cluster import Cluster
from tests.executors.gate import Gate
from tests.executors.kubernetes_jobs import KubernetesJobs
from tests.fakes.waiting import until


@pytest.fixture
def emulated_jobs(emulated: Cluster, tmp_path: Path) -> Iterator[KubernetesJobs]:
    """The emulator can be made busy, and to forget its history."""
    gate = Gate(emulated.port)
    yield KubernetesJobs(emulated, tmp_path, gate, store=False)
    gate.close()


def spec(command: str) -> dict[str, Any]:
    return {"image": "any", "command": command}


@pytest.fixture
def without_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch of pods says nothing: it lags behind that of Jobs."""
    apply = Mirror._apply

    def lagging(self: Mirror, view: Any, is_deleted: bool) -> None:
        if not isinstance(view, PodView):
            apply(self, view, is_deleted)

    monkeypatch.setattr(Mirror, "_apply", lagging)


@pytest.mark.usefixtures("without_pods")
async def test_the_end_of_a_job_before_that_of_its_pod_gives_its_value(jobs: KubernetesJobs) -> None:
    async with Agent(jobs.executor()) as agent:
        assert jobs.value(await agent.report(assignment("kubernetes", spec("echo 7")))) == 7


@pytest.mark.usefixtures("without_pods")
async def test_the_end_of_a_job_before_that_of_its_pod_is_no_loss(jobs: KubernetesJobs) -> None:
    async with Agent(jobs.executor()) as agent:
        report = await agent.report(assignment("kubernetes", spec("echo broken; exit 3")))
        assert report.end is End.ERROR
        assert "code 3" in agent.failure(report) and "broken" in agent.failure(report)


async def test_a_history_that_the_server_forgot_is_listed_again(
    emulated_jobs: KubernetesJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[type[Any]] = []
    list_all = Mirror._list

    async def counted(self: Mirror, kind: type[Any]) -> str:
        listed.append(kind)
        return await list_all(self, kind)

    monkeypatch.setattr(Mirror, "_list", counted)
    monkeypatch.setattr(mirror, "WATCH_S", 1)
    executor = emulated_jobs.executor()
    async with Agent(executor) as agent:
        await executor.observe([])  # waits for the first lists
        assert len(listed) == 2
        (emulated_jobs.cluster.folder / "compact").touch()
        await until(lambda: len(listed) == 4)
        assert emulated_jobs.value(await agent.report(assignment("kubernetes", spec("echo 7")))) == 7


async def test_a_list_of_several_pages_is_read_whole(
    emulated_jobs: KubernetesJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Agent(emulated_jobs.executor()) as agent:
        started = [agent.begin(assignment("kubernetes", spec("echo 7"), seq=n)) for n in range(5)]
        for a in started:
            assert emulated_jobs.value(await agent.end(a)) == 7
    monkeypatch.setattr(mirror, "PAGE_MAX", 2)
    executor = emulated_jobs.executor()
    async with Agent(executor):
        await executor.observe([])
        assert {a.job for a in started} <= set(executor._mirror.jobs)  # type: ignore[attr-defined]
        assert {a.job for a in started} <= set(executor._mirror.pods)  # type: ignore[attr-defined]


async def test_a_server_that_is_busy_is_asked_again(emulated_jobs: KubernetesJobs) -> None:
    busy = emulated_jobs.cluster.folder / "busy"
    async with Agent(emulated_jobs.executor()) as agent:
        busy.touch()
        try:
            a = agent.begin(assignment("kubernetes", spec("echo 7")))
            await until(lambda: agent.worker._tasks is not None and agent.worker._tasks.jobs.named(a.job) is not None)
        finally:
            busy.unlink()
        assert emulated_jobs.value(await agent.end(a)) == 7


def test_an_answer_does_not_replace_what_the_watch_has_delivered_since() -> None:
    """A job that ends at once is complete in the watch before the answer to its creation is read."""
    copy = Mirror.__new__(Mirror)
    copy.jobs = {}
    done = {"metadata": {"name": "j"}, "status": {"succeeded": 1}}
    copy.put_job(done)
    copy.put_job({"metadata": {"name": "j"}})
    assert copy.jobs["j"] == msgspec.convert(done, JobView)
