"""Memory of a server and a worker, in processes of their own, while large values pass through them.

The test is the short form. The full measurement:

    uv run python -m tests.e2e.test_payload_memory
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from perdure import Client, flow
from perdure.core.api import definitions
from perdure.core.api.definitions import DeployFlow
from perdure.errors import PerdureError
from perdure.localpg.cluster import PrivateCluster
from perdure.sdk.client.flow_text import flow_text
from perdure.store.migrate import migrate
from tests.e2e.harness import payload_load
from tests.fakes.waiting import until
from tests.object_stores import free_port, s3_server

pytestmark = pytest.mark.usefixtures("processes")

SAMPLE_S = 0.05
MIB = 2**20


class Memory:
    """The most that a process held, above what it had at first."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.first = self.peak = self._process.memory_info().rss

    def look(self) -> None:
        self.peak = max(self.peak, self._process.memory_info().rss)

    @property
    def grown_mib(self) -> float:
        return (self.peak - self.first) / MIB

    @property
    def peak_mib(self) -> float:
        return self.peak / MIB


@contextmanager
def watched(*pids: int) -> Iterator[list[Memory]]:
    found, over = [Memory(pid) for pid in pids], threading.Event()

    def watch() -> None:
        while not over.wait(SAMPLE_S):
            for one in found:
                one.look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


@contextmanager
def processes(dsn: str, environment: dict[str, str]) -> Iterator[tuple[str, int, int]]:
    """A server and a worker: the server's gRPC address, and both pids."""
    http, grpc = free_port(), free_port()
    env = {**os.environ, **environment, "PERDURE_DSN": dsn, "PERDURE_GRPC": f"127.0.0.1:{grpc}"}
    command = [str(Path(sys.executable).with_name("perdure"))]
    log = Path(tempfile.mkdtemp(prefix="perdure-load-")) / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*command, "server", "--auth", "open", "--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}"],
            env=env,
            stdout=out,
            stderr=out,
        )
        worker = subprocess.Popen(
            [*command, "worker", "tests.e2e.harness.payload_load"], env=env, stdout=out, stderr=out
        )
        try:
            yield f"127.0.0.1:{grpc}", server.pid, worker.pid
        except BaseException:
            print(log.read_text(errors="replace")[-3000:])
            raise
        finally:
            for one in (worker, server):
                one.terminate()
            for one in (worker, server):
                try:
                    one.wait(120)
                except subprocess.TimeoutExpired:
                    one.kill()
                    one.wait()


@contextmanager
def database() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="perdure-load-") as directory:
        Path(directory).chmod(0o755)
        cluster = PrivateCluster(Path(directory) / "pg")
        dsn = cluster.start()
        try:
            asyncio.run(migrate(dsn))
            yield dsn
        finally:
            cluster.leave()


async def connected(address: str) -> Client:
    client = Client(address)
    await client.__aenter__()

    async def is_served() -> bool:
        try:
            return bool(await client.run(payload_load.fans_out, 1))
        except PerdureError:
            return False

    await until(is_served, "a worker serves the workflows", 300)
    return client


async def big_result(address: str, pids: tuple[int, int], mib: int) -> dict[str, Any]:
    client = await connected(address)
    try:
        await client.run(payload_load.passes_big, 1)  # everything that is loaded on first use is loaded
        with watched(*pids) as (server, worker):
            async with asyncio.timeout(900):
                blob = await client.run(payload_load.passes_big, mib)
        assert blob.size == mib * MIB
        return {"mib": mib, "server_grown_mib": server.grown_mib, "worker_grown_mib": worker.grown_mib}
    finally:
        await client.__aexit__(None, None, None)


async def fan_out(address: str, pids: tuple[int, int], count: int, *, declarative: bool) -> dict[str, Any]:
    client = await connected(address)
    try:
        if declarative:
            await client._backend.call(*_deployed())
        with watched(*pids) as (server, worker):
            async with asyncio.timeout(1800):
                if declarative:
                    handle = await client.start(flow("load.fans_out_flow"), count=count)

                    async def is_over() -> bool:
                        seen = await handle.describe()
                        assert seen.stuck is None, seen.stuck
                        return seen.finished_us is not None

                    await until(is_over, "the flow ends", 1800)
                    assert await handle.status() == "success"
                else:
                    assert await client.run(payload_load.fans_out, count) == count * 100_006
        return {"results": count, "server_peak_mib": server.peak_mib, "worker_peak_mib": worker.peak_mib}
    finally:
        await client.__aexit__(None, None, None)


def _deployed() -> tuple[Any, Any]:
    return definitions.DEPLOY, DeployFlow(flow_text(payload_load.FLOW, None), True)


@pytest.mark.parametrize("declarative", [False, True])
def test_a_fan_out_of_large_results_does_not_fill_the_engine(dsn: str, declarative: bool) -> None:
    with processes(dsn, {}) as (address, *pids):
        found = asyncio.run(fan_out(address, (pids[0], pids[1]), 500, declarative=declarative))
    assert found["server_peak_mib"] < 300, found


def test_a_large_blob_passes_through_a_run_in_pieces(dsn: str, tmp_path: Path) -> None:
    with processes(dsn, {"PERDURE_PAYLOADS": f"file://{tmp_path}/payloads"}) as (address, *pids):
        os.environ["PERDURE_PAYLOADS"] = f"file://{tmp_path}/payloads"
        try:
            found = asyncio.run(big_result(address, (pids[0], pids[1]), 200))
        finally:
            del os.environ["PERDURE_PAYLOADS"]
    assert found["server_grown_mib"] < 64 and found["worker_grown_mib"] < 64, found


def main() -> None:
    """Both measurements in full, against a real S3 server and a PostgreSQL of their own."""
    mib, results = (int(word) for word in (sys.argv[1:3] or ("1024", "10000")))
    with database() as dsn, tempfile.TemporaryDirectory() as folder, s3_server(Path(folder)) as s3:
        os.environ.update(s3.env, PERDURE_PAYLOADS=s3.url)
        with processes(dsn, {}) as (address, *pids):
            print("one result, S3:", asyncio.run(big_result(address, (pids[0], pids[1]), mib)), flush=True)
        del os.environ["PERDURE_PAYLOADS"]
        for declarative in (True, False):
            with processes(dsn, {}) as (address, *pids):
                kind = "flow" if declarative else "Python"
                found = asyncio.run(fan_out(address, (pids[0], pids[1]), results, declarative=declarative))
                print(f"fan-out of 100 KiB results, database, {kind}:", found, flush=True)


if __name__ == "__main__":
    main()
