"""The examples of docs/how-to/run-on-cloud-run.md, and what the quotas of the API do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.executors.cloud_run import CloudRunExecutor
from perdure.executors.cloud_run.api import TokenBucket
from tests.executors.cloud_run_jobs import CloudRunJobs, cloud_run
from tests.executors.flows_of_jobs import block, run_flow
from tests.executors.gate import Gate

PAGE = "run-on-cloud-run.md"


@pytest.fixture
def jobs(processes: None, tmp_path: Path) -> Iterator[CloudRunJobs]:
    with cloud_run(tmp_path / "server") as server:
        gate = Gate(server.port)
        yield CloudRunJobs(server, tmp_path, gate)
        gate.close()


async def test_the_flow(dsn: str, jobs: CloudRunJobs) -> None:
    done = await run_flow(dsn, CloudRunExecutor(jobs.options()), block(PAGE, "yaml"), files=["a", "b"])
    assert done == {"convert": [{"pages": 3}, {"pages": 3}]} or done == [{"pages": 3}, {"pages": 3}]


async def test_the_code(dsn: str, jobs: CloudRunJobs) -> None:
    names: dict[str, object] = {"__name__": "cloud_run_page"}
    exec(compile(block(PAGE, "python"), PAGE, "exec"), names)
    async with Perdure(dsn, executors=[CloudRunExecutor(jobs.options())]):
        assert await names["convert"].run("a.pdf") == {"pages": 3}  # type: ignore[attr-defined]


async def test_requests_wait_for_their_turn() -> None:
    bucket = TokenBucket(600)  # 10 a second, 60 at once
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*(bucket.take() for _ in range(75)))
    assert loop.time() - began > 1.2
