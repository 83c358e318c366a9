"""Commands under a real server and real agents (`perdure worker --executor process`) that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from perdure import Client, wf, workflow
from perdure.errors import RunCancelled
from tests.cli.processes import Program, server, started
from tests.fakes.waiting import until
from tests.server.remote import worker


@workflow(name="process_one")
async def one(script: str, retry: int = 1) -> Any:
    return (await wf.call("perdure.run", {"command": script}, retry=retry))["json"]


@workflow(name="process_many")
async def many(script: str, n: int) -> list[Any]:
    steps = [wf.call("perdure.run", {"command": script, "env": {"N": i}}, retry=1) for i in range(n)]
    return [(await step)["json"] for step in steps]


class Fleet:
    def __init__(self, stack: ExitStack, grpc: str, cwd: Path) -> None:
        self._stack, self._grpc, self._cwd = stack, grpc, cwd

    def agent(self, *words: str) -> Program:
        made = self._stack.enter_context(
            started(
                "worker",
                "--executor",
                "process",
                "--server",
                self._grpc,
                *words,
                cwd=self._cwd,
                PERDURE_EXECUTOR_PROCESS_STATE_DIR=str(self._cwd / "state"),
                PERDURE_WORKER_DRAIN="1s",
            )
        )
        made.until("connected")
        return made


@pytest.fixture
def fleet(processes: None, dsn: str, tmp_path: Path) -> Iterator[Callable[[], tuple[Fleet, str]]]:
    with server(dsn, tmp_path, "--auth", "open") as running, ExitStack() as stack:
        yield lambda: (Fleet(stack, running.grpc, tmp_path), running.grpc)


async def test_a_command_survives_the_death_of_its_agent(fleet: Any, tmp_path: Path) -> None:
    agents, grpc = fleet()
    mark, go = tmp_path / "mark", tmp_path / "go"
    script = f"echo $PERDURE_ATTEMPT >> {mark}; while [ ! -e {go} ]; do sleep 0.1; done; echo 42"
    async with Client(grpc), worker(grpc):
        first = await asyncio.to_thread(agents.agent)
        handle = await one.start(script)
        await until(mark.exists, "the command began")
        os.kill(first.process.pid, signal.SIGKILL)
        await asyncio.to_thread(agents.agent)
        go.touch()
        assert await handle.result("3m") == 42
        assert mark.read_text().split() == ["1"]


async def test_a_command_that_ended_while_no_agent_lived_is_not_run_again(fleet: Any, tmp_path: Path) -> None:
    agents, grpc = fleet()
    mark, go = tmp_path / "mark", tmp_path / "go"
    script = f"echo $PERDURE_ATTEMPT >> {mark}; while [ ! -e {go} ]; do sleep 0.1; done; echo 43; touch {tmp_path}/over"
    async with Client(grpc), worker(grpc):
        first = await asyncio.to_thread(agents.agent)
        handle = await one.start(script)
        await until(mark.exists, "the command began")
        os.kill(first.process.pid, signal.SIGKILL)
        go.touch()
        await until((tmp_path / "over").exists, "the command ended")
        await asyncio.to_thread(agents.agent)
        assert await handle.result("3m") == 43
        assert mark.read_text().split() == ["1"]


async def test_an_agent_that_is_stopped_leaves_its_commands_to_the_next(fleet: Any, tmp_path: Path) -> None:
    agents, grpc = fleet()
    mark, go = tmp_path / "mark", tmp_path / "go"
    script = f"echo $N:$PERDURE_ATTEMPT >> {mark}; while [ ! -e {go} ]; do sleep 0.1; done; echo $N"
    async with Client(grpc), worker(grpc):
        first = await asyncio.to_thread(agents.agent)
        handle = await many.start(script, 5)
        await until(lambda: mark.exists() and len(mark.read_text().split()) == 5, "all commands began")
        assert await asyncio.to_thread(first.stop, signal.SIGTERM) == 0
        await asyncio.to_thread(agents.agent)
        go.touch()
        assert await handle.result("3m") == list(range(5))
        assert sorted(mark.read_text().split()) == [f"{n}:1" for n in range(5)]


async def test_cancelling_the_run_ends_a_command_that_was_taken_over(fleet: Any, tmp_path: Path) -> None:
    agents, grpc = fleet()
    pid = tmp_path / "pid"
    async with Client(grpc), worker(grpc):
        first = await asyncio.to_thread(agents.agent)
        handle = await one.start(f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000")
        await until(pid.exists, "the command began")
        os.kill(first.process.pid, signal.SIGKILL)
        await asyncio.to_thread(agents.agent)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result("3m")
        await until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists(), "the command ended")


async def test_a_command_whose_machine_is_lost_runs_again_as_another_attempt(fleet: Any, tmp_path: Path) -> None:
    agents, grpc = fleet()
    mark = tmp_path / "mark"
    script = f'echo $PERDURE_ATTEMPT $$ >> {mark}; [ "$PERDURE_ATTEMPT" = 2 ] && echo 44 && exit; exec sleep 1000'
    async with Client(grpc), worker(grpc):
        await asyncio.to_thread(agents.agent)
        handle = await one.start(script)
        await until(lambda: mark.exists() and mark.read_text().endswith("\n"), "the command began")
        os.killpg(
            os.getpgid(int(mark.read_text().split()[1])), signal.SIGKILL
        )  # the command and its shim, as a reset machine
        assert await handle.result("3m") == 44
        assert [line.split()[0] for line in mark.read_text().splitlines()] == ["1", "2"]


async def test_agents_that_die_at_random_run_every_command_once(fleet: Any, tmp_path: Path) -> None:
    agents, grpc = fleet()
    folder = tmp_path / "marks"
    folder.mkdir()
    script = f"echo $PERDURE_ATTEMPT >> {folder}/$N; sleep 0.$((N % 7)); echo $N"
    n, kills = 150, 4
    async with Client(grpc), worker(grpc):
        living = await asyncio.to_thread(agents.agent, "--slots", "10")
        handle = await many.start(script, n)
        for kill in range(1, kills + 1):
            await until(lambda: len(list(folder.iterdir())) >= n * kill // (kills + 2), "commands go on")  # noqa: B023
            os.kill(living.process.pid, signal.SIGKILL)
            living = await asyncio.to_thread(agents.agent, "--slots", "10")
        assert await handle.result("3m") == list(range(n))
    # An attempt may be lost in the moment between its assignment and its directory; then it never began.
    ran = {file.name: file.read_text().split() for file in folder.iterdir()}
    assert json.dumps({name: attempts for name, attempts in ran.items() if len(attempts) != 1}) == "{}"
