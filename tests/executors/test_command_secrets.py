"""Secrets of commands and containers: in the environment, in no file of the worker, and in nothing that is shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from perdure.core.jobs import executor_of, job_name
from perdure.core.retry import End, TaskOptions
from perdure.core.secrets import SecretPlace
from perdure.core.work import Assignment, Report
from perdure.errors import SecretMissing
from perdure.executors.container.spec import ContainerOptions, command_rules, read_spec
from perdure.executors.job_dirs import write_job
from perdure.executors.port import Job, JobFailed, JobSecrets
from perdure.executors.process import ProcessExecutor
from perdure.executors.process.executor import ProcessOptions
from perdure.executors.process.state import JobDir
from tests.executors.fake_host import FakeHost
from tests.fakes.waiting import until
from tests.sdk.test_builtin_tasks import RUN, Bench

VALUE = "c0mmand/secret+x"
PLACE = SecretPlace(("env", "TOKEN"), ("TOKEN",))
REFERENCE = {"$secret": ["Bearer ", "TOKEN", ""]}


def assignment(name: str, **call: Any) -> Assignment:
    options = TaskOptions(executor=executor_of(name), secrets=(PLACE,))
    return Assignment(RUN, 1, 1, 1, name, json.dumps(call).encode(), options, job=job_name(RUN, 1, 1))


async def ended(b: Bench, **call: Any) -> Report:
    b.worker.assign([assignment("perdure.run", **call)])
    return await b.end(1)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("PERDURE_SECRET_TOKEN", VALUE)
    return Bench(ProcessExecutor(ProcessOptions(state_dir=str(tmp_path / "state"))))


async def test_a_command_has_the_secret_in_its_environment_and_its_output_is_masked(bench: Bench) -> None:
    script = 'echo "$TOKEN"; printf %s "$TOKEN" | base64 -w0 >&2; test "$TOKEN" = "Bearer c0mmand/secret+x"'
    async with bench as b:
        report = await ended(b, command=script, env={"TOKEN": REFERENCE})
    assert report.end is End.SUCCESS, report.failure
    assert json.loads(report.value)["stdout"] == "Bearer ***\n"
    assert b.lines("stdout") == ["Bearer ***"]
    assert "***" in b.lines("stderr")[0] and "secret" not in b.lines("stderr")[0]


async def test_the_error_of_a_command_does_not_show_the_secret(bench: Bench) -> None:
    async with bench as b:
        report = await ended(b, command='echo "no $TOKEN" >&2; exit 3', env={"TOKEN": REFERENCE})
    assert report.failure is not None
    assert "no Bearer ***" in report.failure.message and VALUE not in report.failure.message


async def test_nothing_of_a_running_command_holds_the_secret_on_disk(bench: Bench, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    async with bench as b:
        b.worker.assign([assignment("perdure.run", command=f"cat {gate}", env={"TOKEN": REFERENCE})])
        found = await until(lambda: [p for p in (tmp_path / "state").rglob("state") if p.read_bytes()])
        files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
        assert found and files
        assert not [path for path in files if VALUE.encode() in path.read_bytes()]
        assert b"$secret" in (found[0].parent / "job").read_bytes()
        gate.write_text("")
        assert (await b.end(1)).end is End.SUCCESS


async def test_a_missing_secret_of_a_command_is_final(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_SECRET_TOKEN")
    async with bench as b:
        report = await ended(b, command="true", env={"TOKEN": REFERENCE})
    assert report.end is End.FINAL_ERROR
    assert report.failure is not None and report.failure.code == "secret_missing"


NEVER_TICKS = 2**62
"""When no process started: process 1 itself may have started 7 ticks after the boot."""


class NoSecrets(FakeHost):
    async def secrets(self, job: Job) -> JobSecrets | None:
        raise SecretMissing("it is gone")


async def test_a_command_whose_secrets_are_gone_is_not_shown_by_the_next_worker(tmp_path: Path) -> None:
    """It was left by a worker that had the secret, and has ended since."""
    left = JobDir(tmp_path / "default" / "1-gone" / "job-1")
    left.path.mkdir(parents=True)
    a = assignment("perdure.run", command="true", env={"TOKEN": REFERENCE})
    write_job(left.path, Job(name="job-1", assignment=a))
    left.stdout.write_text(VALUE)
    (left.path / "state").write_text(f"{'1 (x) ' + 'S ' * 19}{NEVER_TICKS} 0\nexit 0\n")
    executor, host = ProcessExecutor(ProcessOptions(state_dir=str(tmp_path))), NoSecrets()
    await executor.open(host)  # type: ignore[arg-type]
    (state,) = await executor.observe(await executor.recover())
    await executor.close()
    assert isinstance(state, JobFailed)
    assert state.failure.code == "secret_missing"
    assert "what it wrote is not shown" in state.failure.message
    assert host.written == []


def test_a_container_has_the_secret_in_its_environment_alone() -> None:
    options = ContainerOptions()
    a = assignment("perdure.job.container", image="a:1", command=["x"], env={"TOKEN": REFERENCE})
    given = JobSecrets(
        spec={"image": "a:1", "command": ["x"], "env": {"TOKEN": f"Bearer {VALUE}"}},
        names={VALUE: "TOKEN"},
        masked=(VALUE.encode(),),
    )
    made = read_spec(Job(name="job-1", assignment=a), command_rules(options), options, {}, given)
    assert f"TOKEN=Bearer {VALUE}" in made.body.pop("Env")
    assert VALUE not in json.dumps(made.body)
    assert made.command.secrets == (VALUE.encode(),)
