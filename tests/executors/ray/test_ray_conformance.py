"""The executor `ray` against a real Ray cluster of one node.

A job on Ray takes ten seconds of two processors, so CI runs the tests that go through code of this executor alone; with PERDURE_RAY=all the
others run too.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from perdure.executors.port import Executor, Job
from perdure.executors.ray import RayExecutor
from perdure.executors.ray.executor import RayOptions
from perdure.sdk.worker import job_watcher
from tests.executors import conformance
from tests.executors.conformance import SHORT, Conformance, Counterpart, shell_works
from tests.executors.ray.cluster import RayCluster

WORKS = "tests.executors.ray.works"
ALL = os.environ.get("PERDURE_RAY") == "all"


class Ray(Counterpart):
    name = "ray"
    hard_kill_s = 90.0
    connect_s = 90.0

    def __init__(self, cluster: RayCluster) -> None:
        self.cluster = cluster

    def executor(self) -> Executor:
        return RayExecutor(RayOptions(address=self.cluster.address, call_s=20.0, connect_s=self.connect_s))

    def work(self, kind: str, **values: Any) -> dict[str, Any]:
        match kind:
            case "echo":
                return {"function": f"{WORKS}:echo", "num_cpus": 0.1}
            case "nested":
                values = {"value": {"a": [1, None, {"ä": "日本"}], "b": 1.5}}
                return {"function": f"{WORKS}:value", "input": values, "num_cpus": 0.1}
            case "lines" | "garbage" | "huge":
                values, kind = {"command": shell_works(kind, **values)}, "shell"
        values = {k: str(v) if k == "file" else v for k, v in values.items()}
        return {"function": f"{WORKS}:{kind}", "input": values, "num_cpus": 0.1}

    async def lose(self, job: Job) -> None:
        """Its process is killed, as with its node. No other attempt runs at the time."""
        actors = [p for p in self.cluster.processes() if any("ray::AttemptActor" in word for word in p.cmdline())]
        assert actors
        for process in actors:
            process.kill()

    def unreachable(self) -> AbstractAsyncContextManager[None]:
        return self._halted()

    @asynccontextmanager
    async def _halted(self) -> AsyncIterator[None]:
        gcs = self.cluster.process("gcs_server")
        gcs.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            gcs.send_signal(signal.SIGCONT)

    async def remains(self, job: Job) -> bool:
        return any(job.name in key for key in await asyncio.to_thread(self.cluster.records))


@pytest.fixture(autouse=True)
def short(request: pytest.FixtureRequest) -> None:
    if not ALL and request.node.originalname not in SHORT:
        pytest.skip("PERDURE_RAY=all runs it")


@pytest.fixture
def counterpart(ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Ray:
    # Each crash costs two connections to the cluster, of several seconds each.
    monkeypatch.setattr(conformance, "CRASHES", int(os.environ.get("PERDURE_RAY_CRASHES", "1")))
    # An executor that connects anew takes up to connect_s on a busy machine, more than any other does.
    monkeypatch.setattr(job_watcher, "CALL_S_MAX", 120.0)
    return Ray(ray_cluster)


class TestRay(Conformance):
    async def test_an_executor_that_stays_away_gives_the_attempt_back(
        self, counterpart: Counterpart, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert isinstance(counterpart, Ray)
        counterpart.connect_s = 15.0
        await super().test_an_executor_that_stays_away_gives_the_attempt_back(counterpart, monkeypatch)
