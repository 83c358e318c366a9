"""Which directories of other workers a worker takes over when it starts."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from perdure.executors import job_dirs
from perdure.executors.job_dirs import AgentDirs, lock_file


def left_by(root: Path, pid: int) -> tuple[Path, int]:
    """The directory of a worker's only job, and the worker's lock, which is held."""
    agent = root / f"{pid}-abcd"
    job = agent / "job-1"
    job.mkdir(parents=True)
    lock = lock_file(agent / "agent.lock")
    assert lock is not None
    return job, lock


@pytest.fixture
def ended_pid() -> int:
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def test_a_worker_waits_for_a_process_that_its_killed_worker_was_about_to_start(tmp_path: Path, ended_pid: int) -> None:
    job, lock = left_by(tmp_path, ended_pid)
    program_runs = threading.Timer(0.2, os.close, [lock])
    program_runs.start()
    dirs = AgentDirs(tmp_path, "new")
    assert dirs.open() == [job]
    program_runs.join()
    dirs.close()


def test_a_worker_that_lives_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_dirs, "EXEC_S_MAX", 1e9)
    _, lock = left_by(tmp_path, os.getpid())
    dirs = AgentDirs(tmp_path, "new")
    assert dirs.open() == []
    dirs.close()
    os.close(lock)


def test_a_worker_that_looks_gone_and_keeps_its_lock_keeps_its_jobs(
    tmp_path: Path, ended_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives in another container."""
    monkeypatch.setattr(job_dirs, "EXEC_S_MAX", 0.05)
    _, lock = left_by(tmp_path, ended_pid)
    dirs = AgentDirs(tmp_path, "new")
    assert dirs.open() == []
    dirs.close()
    os.close(lock)
