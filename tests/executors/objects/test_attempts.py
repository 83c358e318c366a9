"""The executor's side of the protocol, with jobs that are played by the test."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from perdure.core.limits import JOB_RESULT_BYTES_MAX
from perdure.core.payloads import decode_tree
from perdure.executors.objects import attempts as attempts_
from perdure.executors.objects import layout
from perdure.executors.objects.attempts import ObjectAttempts
from perdure.executors.objects.job import _run
from perdure.executors.objects.layout import path_of
from perdure.executors.objects.spec import read_work
from perdure.executors.objects.store import ObjectStore
from perdure.executors.port import Job, JobFailed, JobLost, JobRunning, JobSucceeded
from perdure.payloads.content import UnsentPayload
from tests.executors.agents import assignment
from tests.executors.fake_host import FakeHost
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("interpreter")


class Bench:
    """A store, and the executor's side of it."""

    def __init__(self, folder: Path, **options: float) -> None:
        self.host = FakeHost()
        self.store = ObjectStore(str(folder))
        self.attempts = ObjectAttempts(self.store, self.host, **{"start_s": 300.0, "stale_s": 60.0, **options})

    async def start(self, **spec: Any) -> Job:
        a = assignment("objects", spec or {"command": ["true"]})
        job = Job(name=a.job, assignment=a)
        assert await self.attempts.write_spec(job, read_work(job.spec, "objects"))
        return job

    async def put(self, job: Job, name: str, value: Any) -> None:
        await self.store.put(f"{path_of(job)}/{name}", json.dumps(value).encode())

    async def state(self, job: Job) -> Any:
        return (await self.attempts.observe([job]))[0]


async def test_a_job_that_never_starts_is_lost_and_can_never_start_afterwards(tmp_path: Path) -> None:
    bench = Bench(tmp_path, start_s=300)
    job = await bench.start(command=["touch", str(tmp_path / "ran")])
    assert await bench.state(job) == JobRunning()
    bench.host.later_us = 299_000_000
    assert await bench.state(job) == JobRunning()
    bench.host.later_us = 301_000_000
    assert isinstance(await bench.state(job), JobLost)
    assert await _run(bench.attempts.spec_url(job)) == 0  # the batch system starts it at last
    assert not (tmp_path / "ran").exists()
    assert "never started" in (await bench.state(job)).why


async def test_a_job_that_begins_at_the_last_moment_wins_over_giving_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, start_s=0)
    job = await bench.start()
    bench.host.later_us = 1_000_000
    listed = bench.store.list

    async def list_then_claimed(prefix: str) -> Any:
        found = await listed(prefix)
        await bench.put(job, layout.CLAIM, {"by": "job"})  # after the listing that shows no claim
        return found

    bench.store.list = list_then_claimed  # type: ignore[method-assign]
    assert isinstance(await bench.state(job), JobRunning)


async def test_a_heartbeat_that_does_not_change_means_lost_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(attempts_, "_now", lambda: clock[0])
    bench = Bench(tmp_path, stale_s=60)
    job = await bench.start()
    await bench.put(job, layout.CLAIM, {})
    await bench.put(job, layout.STATUS, {"status": "running"})
    for n in range(5):
        await bench.put(job, layout.HEARTBEAT, {"at": n})
        assert isinstance(await bench.state(job), JobRunning)
        clock[0] += 59
    assert isinstance(await bench.state(job), JobRunning)
    clock[0] += 2
    assert isinstance(await bench.state(job), JobLost)
    await bench.put(job, layout.OUTPUT, 5)
    await bench.put(job, layout.STATUS, {"status": "success"})
    assert isinstance(await bench.state(job), JobLost)
    assert await bench.store.get(f"{path_of(job)}/{layout.CANCEL}", 1000) is not None


async def test_a_job_that_is_cancelled_before_it_begins_never_begins(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    job = await bench.start(command=["touch", str(tmp_path / "ran")])
    await bench.attempts.cancel(job)
    assert isinstance(await bench.state(job), JobFailed)
    assert await _run(bench.attempts.spec_url(job)) == 0
    assert not (tmp_path / "ran").exists()


async def test_two_processes_of_one_job_run_its_work_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    mark = tmp_path / "mark"
    job = await bench.start(command=f"echo x >> {mark}; echo 7")
    codes = await asyncio.gather(*(_run(bench.attempts.spec_url(job)) for _ in range(4)))
    assert codes == [0, 0, 0, 0]
    assert mark.read_text() == "x\n"
    assert await bench.state(job) == JobSucceeded(b"7")


async def test_a_claim_whose_answer_was_lost_is_known_as_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    job = await bench.start(command=["echo", "7"])
    create = ObjectStore.create

    async def answer_lost(self: ObjectStore, path: str, data: bytes) -> bool:
        await create(self, path, data)
        return await create(self, path, data)  # the client repeats the request

    monkeypatch.setattr(ObjectStore, "create", answer_lost)
    assert await _run(bench.attempts.spec_url(job)) == 0
    assert await bench.state(job) == JobSucceeded(b"7")


async def test_output_that_is_large_waits_in_a_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    job = await bench.start()
    await bench.put(job, layout.OUTPUT, {"loss": 0.5, "rows": "x" * 300_000})
    await bench.put(job, layout.STATUS, {"status": "success"})
    state = await bench.state(job)
    assert isinstance(state, JobSucceeded) and isinstance(state.value, UnsentPayload)
    assert decode_tree(state.value)["loss"] == 0.5
    assert [content.size for content in state.value.contents] == [300_002]


@pytest.mark.parametrize("data", [b'"\xff"', b"{oops", b"1e999"])
async def test_output_that_is_no_json_is_a_failure_and_no_trouble_of_the_store(tmp_path: Path, data: bytes) -> None:
    bench = Bench(tmp_path)
    job = await bench.start()
    await bench.store.put(f"{path_of(job)}/{layout.OUTPUT}", data)
    await bench.put(job, layout.STATUS, {"status": "success"})
    state = await bench.state(job)
    assert isinstance(state, JobFailed) and "output.json is not JSON" in state.failure.message


async def test_output_that_is_too_large_is_refused_by_name(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    job = await bench.start()
    await bench.put(job, layout.OUTPUT, "x" * JOB_RESULT_BYTES_MAX)
    await bench.put(job, layout.STATUS, {"status": "success"})
    state = await bench.state(job)
    assert isinstance(state, JobFailed) and state.is_final
    assert "JOB_RESULT_BYTES_MAX" in state.failure.message


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"status": "odd"}', b'{"status": 5}'])
async def test_a_status_that_makes_no_sense_is_a_failure(tmp_path: Path, text: bytes) -> None:
    bench = Bench(tmp_path)
    job = await bench.start()
    await bench.store.put(f"{path_of(job)}/{layout.STATUS}", text)
    assert isinstance(await bench.state(job), JobFailed)


async def test_jobs_of_one_run_are_listed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    one = await bench.start()
    a = one.assignment
    jobs = [one]
    for n in range(2, 41):
        other = assignment("objects", {"command": ["true"]}, seq=n)
        other.run_id = a.run_id
        jobs.append(Job(name=other.job, assignment=other))
        await bench.attempts.write_spec(jobs[-1], read_work(jobs[-1].spec, "objects"))
    listed: list[str] = []
    list_ = ObjectStore.list

    async def counted(self: ObjectStore, prefix: str) -> Any:
        listed.append(prefix)
        return await list_(self, prefix)

    monkeypatch.setattr(ObjectStore, "list", counted)
    assert await bench.attempts.observe(jobs) == [JobRunning()] * 40
    assert len(listed) == 1


async def test_a_job_that_was_ended_from_outside_is_lost_and_no_failure(tmp_path: Path) -> None:
    """The platform sends SIGTERM to make room for others."""
    bench = Bench(tmp_path)
    job = await bench.start()
    await bench.put(job, layout.STATUS, {"status": "cancelled", "error": "it got SIGTERM"})
    assert isinstance(await bench.state(job), JobLost)


async def test_work_ends_when_its_heartbeat_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, stale_s=1.2)
    job = await bench.start(command=["sleep", "300"])
    put = ObjectStore.put

    async def no_heartbeat(self: ObjectStore, path: str, data: bytes) -> None:
        if path == layout.HEARTBEAT:
            raise ConnectionError("cut off")
        await put(self, path, data)

    monkeypatch.setattr(ObjectStore, "put", no_heartbeat)
    assert await asyncio.wait_for(_run(bench.attempts.spec_url(job)), 60) == 1
    status = json.loads(await bench.store.get(f"{path_of(job)}/{layout.STATUS}", 10_000) or b"")
    assert status["status"] == "cancelled" and "heartbeat" in status["error"]


async def test_what_a_running_job_prints_arrives(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    job = await bench.start(command="echo one; echo two >&2; sleep 300")
    running = asyncio.create_task(_run(bench.attempts.spec_url(job)))

    async def printed() -> bool:
        await bench.attempts.follow(job)
        return sorted(bench.host.written) == [("stderr", "two\n"), ("stdout", "one\n")]

    await until(printed)
    await bench.attempts.cancel(job)
    assert await asyncio.wait_for(running, 60) == 1
    await bench.attempts.forget(job)
    assert await bench.store.list(path_of(job)) == []
