"""Values by reference in and out of jobs, through a real engine: commands of the process executor, and jobs of an object store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure import Perdure, flow
from perdure.core.errors import PayloadMissing
from perdure.core.payloads import Reference, whole
from perdure.core.retry import End
from perdure.executors.port import Executor, Job, JobRunning, JobState
from perdure.executors.process import ProcessExecutor
from perdure.executors.process.executor import ProcessOptions
from tests.executors.agents import WAIT_S, Agent, assignment, same
from tests.executors.object_jobs import InDirectory
from tests.executors.payload_works import check_large_values
from tests.fakes.waiting import until

FLOW = """
tasks:
  made: {run: "head -c 1000000 /dev/zero | tr '\\\\0' x | sed 's/.*/\\"&\\"/' > $PERDURE_RESULT_FILE"}
  counted: {depends_on: made, run: {command: "wc -c", input: "${ made.json }"}}
output: "${ counted.json }"
"""


def processes(tmp_path: Path) -> ProcessExecutor:
    return ProcessExecutor(ProcessOptions(state_dir=str(tmp_path / "state")))


async def test_commands(dsn: str, tmp_path: Path) -> None:
    await check_large_values(dsn, processes(tmp_path), "perdure.run")


async def test_jobs_of_an_object_store(dsn: str, tmp_path: Path) -> None:
    await check_large_values(dsn, InDirectory(tmp_path).executor(), "perdure.job.objects")


async def test_a_flow_passes_a_result_by_reference_from_command_to_command(dsn: str, tmp_path: Path) -> None:
    async with Perdure(dsn, executors=[processes(tmp_path)]) as client:
        await client.deploy(FLOW, name="counted")
        assert await flow("counted").run() == 1_000_002


class Stored:
    """A payload store as far as inputs of jobs need it."""

    inline_bytes = 1_000

    def __init__(self, content: bytes = b"") -> None:
        self.content = content

    async def resolve(self, payload: bytes) -> bytes:
        if not self.content:
            raise PayloadMissing("content 00 is not in the database")
        return self.content


class Endless(Executor):
    name = "endless"

    def __init__(self) -> None:
        super().__init__()
        self.observed: list[dict[str, Any]] = []

    async def start(self, job: Job) -> None: ...

    async def observe(self, jobs: Sequence[Job]) -> list[JobState]:
        self.observed += [job.spec for job in jobs]
        return [JobRunning(1) for _ in jobs]

    async def cancel(self, job: Job) -> None: ...


BY_REFERENCE = whole(Reference(bytes(32), 5_000))


async def test_an_input_that_is_gone_fails_the_task() -> None:
    """It was tried again for ever, as if the executor could not be reached."""
    async with Agent(Endless(), payloads=Stored()) as agent:
        report = await agent.report(same(assignment("endless", {}), input=BY_REFERENCE))
        assert report.end is End.ERROR
        assert report.failure is not None and report.failure.code == "payload_missing"


async def test_a_job_that_is_given_again_keeps_its_loaded_input() -> None:
    """An executor may read the spec of a job that it observes, such as kubernetes; one that could not be read made all jobs unobservable."""
    executor = Endless()
    async with Agent(executor, payloads=Stored(b'{"n": 1}')) as agent:
        a = agent.begin(same(assignment("endless", {}), input=BY_REFERENCE))
        await until(lambda: executor.observed)
        agent.begin(same(a, epoch=2))
        executor.observed.clear()
        await until(lambda: executor.observed, within_s=WAIT_S)
        assert executor.observed[0] == {"n": 1}
