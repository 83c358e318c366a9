"""The process that does the work of a job."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from perdure.executors.objects.child import WorkProcess
from perdure.executors.objects.layout import VERSION, JobSpec
from tests.fakes.waiting import turns

pytestmark = pytest.mark.usefixtures("interpreter")

WAIT_S = 60


def spec(**more: Any) -> JobSpec:
    return JobSpec(version=VERSION, name="n", run_id="r", task_id="t", task_name="x", attempt=1, created_us=0, **more)


def child(tmp_path: Path, printed: list[tuple[str, bytes]] | None = None, **more: Any) -> WorkProcess:
    into = printed if printed is not None else []
    return WorkProcess(spec(**more), tmp_path, lambda stream, data: into.append((stream, data)))


async def test_work_that_is_stopped_as_it_is_spawned_ends(tmp_path: Path) -> None:
    one = child(tmp_path, command=["sleep", "300"])
    running = asyncio.create_task(one.run())
    await turns()  # it has begun to spawn, and has no process yet
    await asyncio.wait_for(one.stop(), WAIT_S)
    assert await asyncio.wait_for(running, WAIT_S) != 0


async def test_work_that_cannot_be_spawned_can_be_stopped(tmp_path: Path) -> None:
    one = child(tmp_path, command=["true"], cwd=str(tmp_path / "none"))
    running = asyncio.create_task(one.run())
    await asyncio.wait_for(one.stop(), WAIT_S)
    with pytest.raises(FileNotFoundError):
        await running


async def test_processes_that_the_work_leaves_behind_end_with_it(tmp_path: Path) -> None:
    one = child(tmp_path, command="sleep 300 & echo 5")
    assert await asyncio.wait_for(one.run(), WAIT_S) == 0
    assert one.value() == b"5"


async def test_a_program_that_does_not_exist_says_so(tmp_path: Path) -> None:
    one = child(tmp_path, command=["no-such-program"])
    assert await one.run() == 1
    assert "no-such-program was not started" in one.complaint()


async def test_a_function_gets_its_input_and_its_context(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "async def add(a, b, ctx):\n    return [a + b, ctx.run_id, ctx.attempt, ctx.parallel_index, ctx.parallel_count]\n"
    )
    more = {"input": {"a": 1}, "upstream": {"b": 2}, "parallel_index": 0, "parallel_count": 4}
    one = child(tmp_path, python="mine:add", cwd=str(tmp_path), **more)
    assert await one.run() == 0, one.complaint()
    assert json.loads(one.value()) == [3, "r", 1, 0, 4]


async def test_an_exception_of_a_function_is_known_by_its_type(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def fail():\n    raise KeyError('k')\n")
    one = child(tmp_path, python="bad:fail", cwd=str(tmp_path))
    assert await one.run() == 1
    assert one.error() == {"error": "'k'", "type": "KeyError"}


async def test_the_result_file_wins_over_what_is_printed(tmp_path: Path) -> None:
    one = child(tmp_path, command='echo 1; echo "[2]" > "$PERDURE_RESULT_FILE"')
    assert await one.run() == 0
    assert json.loads(one.value()) == [2]


async def test_no_key_of_perdure_reaches_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_API_KEY", "hush-hush")
    monkeypatch.setenv("TASK_SPEC_PATH", "hush-hush")
    printed: list[tuple[str, bytes]] = []
    await child(tmp_path, printed, command=["env"]).run()
    assert b"hush-hush" not in b"".join(data for _, data in printed)
