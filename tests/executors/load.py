"""Load on the process executor and on waiting jobs, with a real server and real agents.

python -m tests.executors.load processes    500 commands at once: memory of the agent; then 160 commands a second: latency
python -m tests.executors.load waiting      10,000 jobs that wait outside: slots and processor time
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import psutil

from perdure import Client, wf, workflow
from perdure.executors.port import Executor, Job, JobRunning, JobState
from perdure.localpg.cluster import PrivateCluster
from perdure.sdk.client.channel import Access
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.stream import RemoteWorker
from perdure.sdk.worker.worker import Worker
from tests.cli.processes import Running as Server
from tests.cli.processes import server, started
from tests.fakes.waiting import busy, until

INTERPRETER = (
    "import perdure.cli.worker, perdure.programs.worker_process, sys; print('here', flush=True); sys.stdin.read()"
)
"""What an agent has imported before it does anything."""


class Waits(Executor):
    """Jobs that never end by themselves."""

    name = "waits"
    poll_s = 10.0

    async def start(self, job: Job) -> None: ...

    async def observe(self, jobs: Sequence[Job]) -> list[JobState]:
        return [JobRunning(1) for _ in jobs]

    async def cancel(self, job: Job) -> None: ...


@workflow(name="load_commands")
async def commands(command: list[str], n: int) -> int:
    return len(await asyncio.gather(*(wf.call("perdure.run", {"command": command}) for _ in range(n))))


@workflow(name="load_waiting")
async def waiting(n: int) -> None:
    await asyncio.gather(*(wf.call("perdure.job.waits", {"n": i}) for i in range(n)))


@workflow(name="load_ping")
async def ping() -> int:
    return 1


class Concurrent(msgspec.Struct):
    processes: int
    agent_mb: float
    interpreter_mb: float


class Sustained(msgspec.Struct):
    per_s: float
    p50_ms: float
    p99_ms: float
    tasks: int


class Waited(msgspec.Struct):
    jobs: int
    slots_free: int
    slots: int
    server_percent: float
    worker_percent: float
    """Of a core, beyond what the same processes take without the jobs."""


async def concurrent(agent_pid: int, n: int, folder: Path) -> Concurrent:
    """Memory of an agent with n commands under way."""
    handle = await commands.start(["sleep", "1000"], n)
    agent = psutil.Process(agent_pid)
    await until(lambda: len(agent.children(recursive=False)) >= n, f"{n} commands run", 300)
    found = Concurrent(n, agent.memory_info().rss / 1e6, _interpreter_mb(folder))
    await handle.cancel()
    await until(lambda: not agent.children(recursive=False), "they ended", 300)
    return found


def _interpreter_mb(folder: Path) -> float:
    with started(cwd=folder, program=[sys.executable, "-c", INTERPRETER]) as idle:
        idle.until("here")
        return psutil.Process(idle.process.pid).memory_info().rss / 1e6


async def sustained(dsn: str, rate: float, seconds: float) -> Sustained:
    """Runs of 16 commands each, started at a steady rate; latency is from the record of the task to the record of its end."""
    batch, began = 16, time.monotonic()
    handles: list[Any] = []
    while (now := time.monotonic() - began) < seconds:
        await busy(max(0.0, len(handles) * batch / rate - now))
        handles.append(await commands.start(["/bin/true"], batch))
    for handle in handles:
        await handle.result("3m")
    took = time.monotonic() - began
    ms = await _latencies_ms(dsn, len(handles) * batch)
    return Sustained(len(ms) / took, ms[len(ms) // 2], ms[int(len(ms) * 0.99)], len(ms))


async def _latencies_ms(dsn: str, n: int) -> list[float]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "select extract(epoch from finished_at - scheduled_at) * 1000 as ms from perdure.task "
            "where name = 'perdure.run' and status = 'success' order by finished_at desc limit $1",
            n,
        )
    finally:
        await connection.close()
    return sorted(float(r["ms"]) for r in rows)


async def waited(running: Server, n: int, seconds: float) -> Waited:
    worker = Worker(Capacity(slots=10), executors=[Waits()])
    remote = RemoteWorker(worker, Access(addresses=[running.grpc]), drain_s=1)
    serving = asyncio.create_task(remote.run())
    await remote.connected()
    pids = [running.program.process.pid, os.getpid()]
    before = await _shares(pids, seconds)
    handle = await waiting.start(n)
    await until(lambda: len(worker.deferred()) == n, f"{n} jobs wait", 600)
    assert await ping.run() == 1
    after = await _shares(pids, seconds)
    found = Waited(n, worker.slots_free, worker.slots, after[0] - before[0], after[1] - before[1])
    await handle.cancel()
    remote.drain()
    await serving
    return found


async def _shares(pids: list[int], seconds: float) -> list[float]:
    """Percent of a core that each process takes."""
    await busy(3)
    began, before = time.monotonic(), [_cpu_s(pid) for pid in pids]
    await busy(seconds)
    took = time.monotonic() - began
    return [100 * (_cpu_s(pid) - was) / took for pid, was in zip(pids, before, strict=True)]


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


@asynccontextmanager
async def agent_of(running: Server, folder: Path, slots: int) -> AsyncIterator[int]:
    """An agent in a process of its own, and a worker with the workflows of this module in this one; gives the agent's pid."""
    with started(
        "worker",
        "--executor",
        "process",
        "--slots",
        str(slots),
        "--server",
        running.grpc,
        cwd=folder,
        PERDURE_EXECUTOR_PROCESS_STATE_DIR=str(folder / "jobs"),
    ) as agent:
        agent.until("connected")
        remote = RemoteWorker(Worker(), Access(addresses=[running.grpc]), drain_s=5)
        serving = asyncio.create_task(remote.run())
        await remote.connected()
        yield agent.process.pid
        remote.drain()
        await serving


async def _main(what: str) -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    cluster = PrivateCluster(folder / "pg")
    dsn = cluster.start()
    try:
        with ExitStack() as stack:
            running = stack.enter_context(server(dsn, folder, "--auth", "open"))
            async with Client(running.grpc):
                if what == "waiting":
                    print(await waited(running, 10_000, 30))
                    return
                async with agent_of(running, folder, 600) as pid:
                    print(await sustained(dsn, 160, 30))
                    print(await concurrent(pid, 500, folder))
    finally:
        cluster.stop()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
