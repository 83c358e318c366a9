"""What a worker makes of the directory of a job that an earlier worker left, at moments that are hard to meet by chance."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.executors.port import Job, JobRunning, JobState
from perdure.executors.process import ProcessExecutor
from perdure.executors.process.executor import ProcessOptions
from perdure.executors.process.state import JobDir
from tests.executors.agents import assignment
from tests.executors.fake_host import FakeHost
from tests.fakes.waiting import until


class Left:
    """A job that a worker recorded before it crashed; its process holds the lock of the job and has written nothing yet."""

    def __init__(self, root: Path) -> None:
        self.mark = root / "mark"
        a = assignment("process", {"command": ["sh", "-c", f"echo begun >> {self.mark}; echo 7"]})
        self.job = Job(name=a.job, assignment=a)
        self.executor = ProcessExecutor(ProcessOptions(state_dir=str(root / "state")))
        agent = root / "state" / "default" / "gone"
        agent.mkdir(parents=True)
        self.place = JobDir(agent / a.job)
        self.place.create(self.job, None)
        for file in (self.place.stdout, self.place.stderr):
            file.touch()
        self._held = self.place.lock()

    def ends(self) -> None:
        """The process of the job, which this stands for, ends."""
        assert self._held is not None
        os.close(self._held)
        self._held = None

    async def state(self) -> JobState:
        (state,) = await self.executor.observe([self.job])
        return state

    async def outcome(self) -> JobState:
        async def over() -> JobState | None:
            state = await self.state()
            return None if isinstance(state, JobRunning) else state

        found = await until(over)
        assert found is not None
        await self.executor.close()
        return found


@pytest.mark.parametrize("before", [0, 1])
async def test_a_process_that_ends_between_two_looks_at_it_is_neither_lost_nor_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    left, look = Left(tmp_path), JobDir.exit_code

    def looked(place: JobDir) -> int | None:
        """No exit code was there, and right after that the process ends."""
        code = look(place)
        looks.append(code)
        if len(looks) == before + 1:
            (place.path / "state").write_text("1 (sh) S\nexit 0\n")
            left.ends()
        return code

    looks: list[int | None] = []
    monkeypatch.setattr(JobDir, "exit_code", looked)
    await left.executor.open(FakeHost())
    assert type(await left.outcome()).__name__ == "JobSucceeded"
    assert not left.mark.exists()


async def test_a_process_that_dies_before_it_begins_is_started_again(tmp_path: Path) -> None:
    left = Left(tmp_path)
    await left.executor.open(FakeHost())
    assert isinstance(await left.state(), JobRunning)
    left.ends()
    assert type(await left.outcome()).__name__ == "JobSucceeded"
    assert left.mark.read_text() == "begun\n"


async def test_a_command_whose_beginning_cannot_be_recorded_does_not_run(tmp_path: Path) -> None:
    """Otherwise the next worker would take it for one that never began, and start it again."""
    left = Left(tmp_path)
    (left.place.path / "state").mkdir()
    await left.executor.open(FakeHost())
    left.ends()
    assert type(await left.outcome()).__name__ == "JobLost"
    assert not left.mark.exists()
