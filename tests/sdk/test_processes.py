"""Tasks in processes of their own: their ends, their deaths, and what becomes of them when they are not wanted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from perdure import attempt, task
from perdure.core.retry import End, TaskOptions
from perdure.core.work import Assignment, Beat, LogChunk, Report
from perdure.errors import InvalidInput, NotRegistered
from perdure.sdk.worker import execution as execution_module
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.execution import TaskExecutor
from perdure.sdk.worker.processes import find
from tests.fakes.upstreams import upstream_to
from tests.fakes.waiting import busy_thread, forever_thread, until, until_sync


@task(process=True)
def p_pid(n: int) -> tuple[int, int]:
    return os.getpid(), n


@task(process=True)
def p_dies(how: str) -> None:
    print("about to die")
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGABRT)


@task(process=True)
def p_exits(code: int) -> None:
    sys.exit(code)


@task(process=True)
def p_waits(stubborn: bool) -> None:
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("pid", os.getpid())
    forever_thread()


@task(process=True)
def p_talks(lines: int, gate: str) -> int:
    for i in range(lines):
        print(f"line {i}")
        attempt().heartbeat({"line": i})
    until_sync(Path(gate).exists)
    return lines


@task(process=True)
def p_forks_and_dies() -> None:
    """Its own child keeps every descriptor open."""
    if os.fork() == 0:
        busy_thread(3)
    os._exit(9)


@task(process=True)
def p_uses_multiprocessing() -> int:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(os.getpid)


DEFINITIONS: dict[str, Any] = {
    t.name: t for t in (p_pid, p_dies, p_exits, p_waits, p_talks, p_forks_and_dies, p_uses_multiprocessing)
}


class Bench:
    def __init__(self, processes: int = 1) -> None:
        self.reports: list[Report] = []
        self.chunks: list[LogChunk] = []
        self.beats: list[Beat] = []
        self.execution = TaskExecutor(
            DEFINITIONS.__getitem__,
            upstream_to(
                clock_us=lambda: time.monotonic_ns() // 1000 + 5_000_000_000,
                reported=self.reports.extend,
                beats=self.beats.extend,
                logged=self.chunks.extend,
            ),
            Capacity(slots=20, threads=2, processes=processes),
        )
        self._seq = 0

    def assign(self, name: str, *args: Any, **options: Any) -> int:
        self._seq += 1
        data = DEFINITIONS[name].signature.encode_call(args, {})
        self.execution.assign([Assignment(bytes(16), self._seq, 1, 1, name, data, TaskOptions(**options))])
        return self._seq

    async def report(self, seq: int) -> Report:
        found = await until(lambda: [r for r in self.reports if r.seq == seq])
        return found[0]

    async def run(self, name: str, *args: Any, **options: Any) -> Report:
        return await self.report(self.assign(name, *args, **options))

    def lines(self) -> list[str]:
        return [line.text for c in self.chunks for line in c.lines]


def value(report: Report) -> Any:
    assert report.end is End.SUCCESS, report
    return DEFINITIONS["p_pid"].signature.decode_result(report.value)


@pytest.fixture
async def bench(interpreter: None) -> AsyncIterator[Bench]:
    one = Bench()
    yield one
    await one.execution.close()
    assert not multiprocessing.active_children()


async def test_one_child_serves_one_task_after_the_other(bench: Bench) -> None:
    assert not multiprocessing.active_children(), "nothing is started before it is needed"
    first, second = value(await bench.run("p_pid", 1)), value(await bench.run("p_pid", 2))
    assert first[0] == second[0] != os.getpid()
    assert (first[1], second[1]) == (1, 2)


async def test_a_child_that_dies_is_an_error_that_says_how_and_is_replaced(bench: Bench) -> None:
    report = await bench.run("p_dies", "exit")
    assert report.end is End.ERROR
    assert report.failure is not None
    assert report.failure.message == "the process that ran p_dies died: it exited with code 7"
    assert bench.lines() == ["about to die"], "what it said before is kept"
    report = await bench.run("p_dies", "signal")
    assert report.failure is not None and report.failure.message.endswith("it was ended by SIGABRT")
    assert value(await bench.run("p_pid", 3))[1] == 3


async def test_a_child_that_died_while_idle_is_replaced_and_nobody_suffers(bench: Bench) -> None:
    pid, _ = value(await bench.run("p_pid", 1))
    os.kill(pid, signal.SIGKILL)
    await until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    other, _ = value(await bench.run("p_pid", 2))
    assert other != pid


async def test_a_death_is_noticed_though_a_grandchild_holds_the_pipe(bench: Bench) -> None:
    report = await bench.run("p_forks_and_dies")
    assert report.failure is not None and "exited with code 9" in report.failure.message


async def test_the_exceptions_of_a_task_are_reported_like_those_of_any_other(bench: Bench) -> None:
    report = await bench.run("p_exits", 3, max_attempts=1)
    assert report.end is End.ERROR
    assert report.failure is not None
    assert (report.failure.type, report.failure.message) == ("SystemExit", "3")
    assert "in p_exits" in report.failure.traceback
    report = await bench.run("p_exits", 3, never=("builtins.SystemExit",))
    assert report.end is End.FINAL_ERROR


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_cancelled_attempt_ends_its_process(
    bench: Bench, stubborn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_module, "KILL_GRACE_S", 0.5)
    seq = bench.assign("p_waits", stubborn)
    await until(bench.lines)
    pid = int(bench.lines()[0].split()[1])
    began = time.monotonic()
    bench.execution.cancel(bytes(16), seq, 1)
    assert (await bench.report(seq)).end is End.CANCELLED
    assert (time.monotonic() - began >= 0.4) == stubborn
    assert not psutil.pid_exists(pid)
    assert bench.execution.in_use == 0
    assert value(await bench.run("p_pid", 1))[0] != pid


async def test_one_that_waits_for_a_process_is_cancelled_without_ever_running(bench: Bench) -> None:
    first = bench.assign("p_waits", False)
    second = bench.assign("p_dies", "exit")
    await until(bench.lines)
    bench.execution.cancel(bytes(16), second, 1)
    assert bench.execution.in_use == 1
    bench.execution.cancel(bytes(16), first, 1)
    await bench.report(first)
    assert value(await bench.run("p_pid", 1))[1] == 1
    assert "about to die" not in bench.lines()
    assert bench.execution.in_use == 0


async def test_lines_and_heartbeats_of_a_child_arrive_while_it_runs_and_in_order(bench: Bench, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    seq = bench.assign("p_talks", 300, str(gate))
    await until(lambda: bench.beats and bench.beats[-1].details == b'{"line":299}')
    await until(lambda: len(bench.lines()) == 300)
    assert not bench.reports
    assert bench.lines() == [f"line {i}" for i in range(300)]
    assert 1 < len(bench.beats) < 20, "a few a second"
    gate.touch()
    assert (await bench.report(seq)).end is End.SUCCESS
    now = time.monotonic_ns() // 1000 + 5_000_000_000
    assert all(now - 60_000_000 < line.at_us < now for c in bench.chunks for line in c.lines), "by the parent's clock"


async def test_a_task_may_start_processes_of_its_own(bench: Bench) -> None:
    assert (await bench.run("p_uses_multiprocessing")).end is End.SUCCESS


@pytest.mark.usefixtures("interpreter")
async def test_several_children_work_side_by_side_but_no_more_than_allowed() -> None:
    bench = Bench(processes=2)
    for _ in range(3):
        bench.assign("p_waits", False)
    await until(lambda: len(bench.lines()) == 2)
    assert len(multiprocessing.active_children()) == 2
    began = time.monotonic()
    await bench.execution.close()
    assert time.monotonic() - began < 5
    assert not multiprocessing.active_children()


def test_an_async_function_cannot_run_in_a_process() -> None:
    with pytest.raises(InvalidInput, match="plain `def`"):

        @task(process=True)
        async def wrong() -> None: ...


def test_a_task_that_a_child_cannot_import_is_refused_with_the_way_out() -> None:
    with pytest.raises(NotRegistered, match="top level of a module"):
        find(__name__, "somewhere.<locals>.inner", "inner")


# -- whole programs -------------------------------------------------------------------------------------------------------

SCRIPT = """
import asyncio, os, sys, threading
from perdure import task
from perdure.core.retry import TaskOptions
from perdure.core.work import Assignment, Upstream
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.worker import Worker

@task(process=True)
def double(n: int) -> int:
    print("child", os.getpid(), flush=True)
    if n > 100:
        threading.Event().wait()
    return 2 * n

async def main(n):
    reports, reported = [], asyncio.Event()
    def report(batch):
        reports.extend(batch)
        reported.set()
    worker = Worker(Capacity(processes=1))
    nothing = lambda _: None
    worker.open(Upstream(clock_us=lambda: 0, reported=report, decided=nothing, beats=nothing, logged=nothing, deferred=nothing))
    data = double.signature.encode_call((n,), {})
    worker.assign([Assignment(bytes(16), 0, 1, 1, "double", data, TaskOptions())])
    await reported.wait()
    await worker.close()
    r = reports[0]
    print("report", r.end.value, r.value, r.failure.message if r.failure else "", flush=True)
"""


def script(tmp_path: Path, end: str) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(SCRIPT) + end)
    return [sys.executable, "-W", "error", str(path)]


@pytest.mark.usefixtures("interpreter")
def test_a_task_of_the_script_that_was_started_runs_in_a_child(tmp_path: Path) -> None:
    command = script(tmp_path, 'if __name__ == "__main__":\n    asyncio.run(main(21))\n')
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "report success b'42'" in done.stdout, done.stderr
    assert "child" in done.stdout
    assert done.stderr == ""


@pytest.mark.usefixtures("interpreter")
def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    done = subprocess.run(script(tmp_path, "asyncio.run(main(21))\n"), capture_output=True, text=True, timeout=60)
    assert "report error" in done.stdout, done.stderr
    assert 'if __name__ == "__main__":' in done.stdout


@pytest.mark.usefixtures("interpreter")
def test_children_die_with_their_parent(tmp_path: Path) -> None:
    command = script(tmp_path, 'if __name__ == "__main__":\n    asyncio.run(main(200))\n')
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[1])
        assert psutil.pid_exists(child)
        parent.kill()
    until_sync(
        lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE,
        "the child lives on",
        within_s=10,
    )
