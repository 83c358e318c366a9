"""The executor `container` against real containers of a real Podman."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.core.errors import InvalidInput
from perdure.executors.container.executor import ContainerExecutor
from perdure.executors.container.spec import ContainerOptions
from perdure.executors.port import Job, JobFailed, JobLost, JobRefused, JobRunning, JobState, JobSucceeded
from tests.executors.container.podman import IMAGE, NOWHERE, Podman
from tests.executors.job_host import KeptOutput, ended, make_job

_numbers = itertools.count(1)


def container(command: Any = None, /, **spec: Any) -> Job:
    given = {} if command is None else {"command": command}
    return make_job("container", next(_numbers), {"image": IMAGE, "pull": "never", **given, **spec})


class Bench:
    def __init__(self, podman: Podman, tmp_path: Path, **options: Any) -> None:
        self.podman, self.host = podman, KeptOutput()
        self.options = ContainerOptions(
            socket=str(podman.socket), state_dir=str(tmp_path / "state"), **{"grace_s": 1.0, **options}
        )
        self.executor = ContainerExecutor(self.options)

    async def end(self, job: Job) -> JobState:
        await self.executor.start(job)
        return await ended(self.executor, self.host, job)

    async def value(self, job: Job) -> Any:
        state = await self.end(job)
        assert isinstance(state, JobSucceeded), state
        return msgspec.json.decode(state.value)

    async def failure(self, job: Job) -> JobFailed:
        state = await self.end(job)
        assert isinstance(state, JobFailed), state
        return state

    async def running(self, job: Job) -> None:
        """Its container runs, and has written `ready`."""
        await self.executor.start(job)
        await self.host.until(lambda: "ready" in self.host.written[job.name, "stdout"])


@asynccontextmanager
async def bench(podman: Podman, tmp_path: Path, **options: Any) -> AsyncIterator[Bench]:
    made = Bench(podman, tmp_path, **options)
    await made.executor.open(made.host)
    try:
        yield made
    finally:
        await made.executor.close()


async def test_output_result_and_variables(podman: Podman, tmp_path: Path) -> None:
    async with bench(podman, tmp_path) as b:
        job = container(
            "echo out; echo err >&2; env; cat $PERDURE_INPUT_FILE; echo; echo '{\"n\":1}'", input={"a": "ä"}
        )
        got = await b.value(job)
        assert got["json"] == {"n": 1}
        assert got["exit_code"] == 0
        assert b.host.written[job.name, "stderr"] == "err\n"
        assert b.host.written[job.name, "stdout"] == got["stdout"]
        variables = dict(line.split("=", 1) for line in got["stdout"].splitlines() if line.startswith("PERDURE_"))
        assert json.loads(variables["PERDURE_INPUT"]) == {"a": "ä"}
        assert variables["PERDURE_JOB"] == job.name
        assert variables["PERDURE_ATTEMPT"] == "1"
        assert '{"a":"ä"}' in got["stdout"].splitlines()[-2]
        await b.executor.forget(job)
        assert podman.containers() == []
        assert podman.run("volume", "ls", "--quiet") == ""
        assert not list((tmp_path / "state").rglob("job"))


async def test_a_result_file_of_any_user_on_a_read_only_root(podman: Podman, tmp_path: Path) -> None:
    async with bench(podman, tmp_path) as b:
        text = "id -u; touch /x || touch /tmp/x; f=$PERDURE_RESULT_FILE; echo '[1]' > $f.new; mv $f.new $f"
        got = await b.value(container(text, user="1234:1234", read_only=True))
        assert (got["json"], got["stdout"]) == ([1], "1234\n")


async def test_stdin_and_an_image_with_a_command_of_its_own(podman: Podman, tmp_path: Path) -> None:
    podman.run("import", "--change", 'CMD ["echo","own"]', "--quiet", str(podman.root / "busybox.tar"), "own")
    async with bench(podman, tmp_path) as b:
        assert (await b.value(container(["cat"], stdin="text")))["stdout"] == "text"
        assert (await b.value(container(["cat"], stdin={"a": 1})))["json"] == {"a": 1}
        assert (await b.value(container(image="own")))["stdout"] == "own\n"
        with pytest.raises(JobRefused, match="stdin needs a command"):
            await b.executor.start(container(image="own", stdin="x"))


async def test_exit_codes_and_a_missing_program(podman: Podman, tmp_path: Path) -> None:
    async with bench(podman, tmp_path) as b:
        failed = await b.failure(container("echo why >&2; exit 3", exit_codes={"3": "fail"}))
        assert failed.is_final
        assert "exited with code 3\nwhy" in failed.failure.message
        assert not (await b.failure(container("exit 4"))).is_final
        assert (await b.value(container("exit 5", exit_codes={"5": "success"})))["exit_code"] == 5
        missing = await b.failure(container(["nosuch"]))
        assert missing.failure.type == "ContainerRefused"
        assert "nosuch" in missing.failure.message


async def test_garbage_and_more_output_than_podman_follows(podman: Podman, tmp_path: Path) -> None:
    """Podman 4 stops following with the exit of the container, before all of its output was given."""
    async with bench(podman, tmp_path) as b:
        job = container("seq 1 200000; printf '\\377\\376\\000x'")
        got = await b.value(job)
        lines = b.host.written[job.name, "stdout"].splitlines()
        assert lines[:200000] == [str(n) for n in range(1, 200001)]
        assert "json" not in got
        assert len(got["stdout"].encode()) < 70_000
        assert got["stdout"].endswith("200000\n\ufffd\ufffd\0x")


async def test_too_large_a_result_file_fails_for_good(podman: Podman, tmp_path: Path) -> None:
    async with bench(podman, tmp_path) as b:
        failed = await b.failure(container("yes | head -c 17000000 > $PERDURE_RESULT_FILE"))
        assert failed.failure.code == "payload_too_large"
        assert failed.is_final
        link = container('ln() { busybox ln "$@"; }; echo 1 > /tmp/r; ln -s /tmp/r $PERDURE_RESULT_FILE; echo 2')
        assert (await b.value(link))["json"] in (1, 2)  # within the container either way
        broken = await b.failure(container("echo nonsense > $PERDURE_RESULT_FILE"))
        assert broken.failure.type == "InvalidResult"


async def test_cancel_with_grace_then_kill(podman: Podman, tmp_path: Path) -> None:
    async with bench(podman, tmp_path) as b:
        polite = container("trap 'echo bye; exit 7' TERM; echo ready; while true; do sleep 0.1; done")
        await b.running(polite)
        await b.executor.cancel(polite)
        assert isinstance(await ended(b.executor, b.host, polite), JobFailed)
        assert "bye" in b.host.written[polite.name, "stdout"]
        deaf = container("trap '' TERM; echo ready; while true; do sleep 0.1; done")
        await b.running(deaf)
        await b.executor.cancel(deaf)
        state = await ended(b.executor, b.host, deaf)
        assert isinstance(state, JobFailed)
        assert "SIGKILL" in state.failure.message


async def test_cancel_while_its_image_is_pulled(podman: Podman, tmp_path: Path) -> None:
    """The registry accepts the connection and never answers."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    connected = asyncio.Event()
    registry = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = registry.sockets[0].getsockname()[1]
    async with registry, bench(podman, tmp_path) as b:
        job = container("true", image=f"127.0.0.1:{port}/slow", pull="missing")
        await b.executor.start(job)
        async with asyncio.timeout(120):
            await connected.wait()
        assert isinstance((await b.executor.observe([job]))[0], JobRunning)
        await b.executor.cancel(job)
        state = await ended(b.executor, b.host, job)
        assert isinstance(state, JobFailed)
        assert state.failure.code == "task_cancelled"
        assert podman.containers() == []


async def test_images_that_cannot_be_had(podman: Podman, tmp_path: Path) -> None:
    async with bench(podman, tmp_path) as b:
        never = await b.failure(container("true", image="absent"))
        assert never.failure.type == "ImageUnavailable"
        assert "absent" in never.failure.message
        pulled = await b.failure(container("true", image=NOWHERE, pull="missing"))
        assert pulled.failure.type == "ImageUnavailable"
        assert "connection refused" in pulled.failure.message


async def test_limits(podman: Podman, tmp_path: Path) -> None:
    async with bench(podman, tmp_path, memory_bytes=64 << 20, processes=20) as b:
        hungry = container("x=aaaaaaaaaaaaaaaa; while true; do x=$x$x; done", limits={"memory_bytes": 16 << 20})
        failed = await b.failure(hungry)
        assert failed.failure.type == "OutOfMemory"
        assert "out of memory" in failed.failure.message
        assert str(16 << 20) in failed.failure.message
        forks = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22; do sleep 5 & done; echo all"
        got = await b.end(container(forks))
        assert isinstance(got, JobFailed)
        assert "fork" in got.failure.message
        with pytest.raises(JobRefused, match=r"container\.memory_bytes"):
            await b.executor.start(container("true", limits={"memory_bytes": 65 << 20}))


async def test_no_network_and_no_privileges_unless_allowed(podman: Podman, tmp_path: Path) -> None:
    async with bench(podman, tmp_path) as b:
        got = await b.value(container("ls /sys/class/net; cat /proc/self/status"))
        assert got["stdout"].startswith("lo\n")
        status = dict(line.split(":\t", 1) for line in got["stdout"].splitlines() if ":\t" in line)
        assert int(status["CapEff"], 16) == 0
        assert int(status["CapBnd"], 16) == 0
        assert status["NoNewPrivs"] == "1"
        for network in ("bridge", "host", "container:x", "ns:/proc/1/ns/net"):
            with pytest.raises(JobRefused):
                await b.executor.start(container("true", network=network))
        for key in ("privileged", "devices", "pid", "volumes", "cap_add"):
            with pytest.raises(JobRefused, match=f"takes no '{key}'"):
                await b.executor.start(container("true", **{key: True}))


async def test_mounts_only_below_what_the_worker_allows(podman: Podman, tmp_path: Path) -> None:
    shared, secret = tmp_path / "shared", tmp_path / "secret"
    shared.mkdir()
    secret.mkdir()
    (shared / "file").write_text("content")
    (shared / "link").symlink_to(secret)
    async with bench(podman, tmp_path, mounts=str(shared)) as b:
        mounts = [{"source": str(shared), "target": "/data"}]
        got = await b.value(container("cat /data/file; touch /data/x || echo read-only", mounts=mounts))
        assert got["stdout"] == "contentread-only\n"
        await b.value(container("touch /data/x", mounts=[{**mounts[0], "read_only": False}]))
        assert (shared / "x").exists()
        for source in (secret, shared / "link", shared / ".." / "secret", "/", "shared", f"{shared}2"):
            with pytest.raises(JobRefused):
                await b.executor.start(container("true", mounts=[{"source": str(source), "target": "/data"}]))
        for target in ("/", "/perdure/io", "/data/../perdure", "data"):
            with pytest.raises(JobRefused, match="no place for a mount"):
                await b.executor.start(container("true", mounts=[{"source": str(shared), "target": target}]))


async def test_secrets_are_named_allowed_and_masked(
    podman: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOX_TOKEN", "s3cr3t-token")
    monkeypatch.setenv("BOX_OTHER", "other-value")
    async with bench(podman, tmp_path, secrets="BOX_TOKEN") as b:
        job = container(
            'echo $BOX_TOKEN; env >&2; echo "\\"$BOX_TOKEN\\"" > $PERDURE_RESULT_FILE', secrets=["BOX_TOKEN"]
        )
        got = await b.value(job)
        assert got == {"exit_code": 0, "stdout": "***\n", "json": "***"}
        assert "BOX_TOKEN=***" in b.host.written[job.name, "stderr"]
        assert "other-value" not in b.host.written[job.name, "stderr"]
        noted = next((tmp_path / "state").rglob("job")).read_bytes()
        assert b"s3cr3t" not in noted
        with pytest.raises(JobRefused, match=r"container\.secrets=BOX_OTHER"):
            await b.executor.start(container("env", secrets=["BOX_OTHER"]))


async def test_a_job_is_started_once(podman: Podman, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    starts.mkdir()
    mounts = [{"source": str(starts), "target": "/data", "read_only": False}]
    async with bench(podman, tmp_path, mounts=str(starts)) as b:
        job = container("echo x >> /data/log", mounts=mounts)
        await asyncio.gather(*(b.executor.start(job) for _ in range(5)))
        assert isinstance(await b.end(job), JobSucceeded)
        await b.executor.start(job)
        assert (starts / "log").read_text() == "x\n"


async def test_removed_from_outside_is_lost(podman: Podman, tmp_path: Path) -> None:
    async with bench(podman, tmp_path) as b:
        job = container("echo ready; sleep 1000")
        await b.running(job)
        podman.run("rm", "--force", "--time", "0", job.name)
        state = await ended(b.executor, b.host, job)
        assert isinstance(state, JobLost), state
        await b.executor.start(job)
        assert podman.containers() == []


async def test_a_service_that_restarts_is_waited_for(podman: Podman, tmp_path: Path) -> None:
    async with bench(podman, tmp_path) as b:
        job = container("echo ready; sleep 4; echo 5")
        await b.running(job)
        podman.stop()
        await b.host.until(lambda: any("does not answer" in w for w in b.host.warnings))
        assert isinstance((await b.executor.observe([job]))[0], JobRunning)
        with pytest.raises(Exception, match="does not answer"):
            await b.executor.start(container("true"))
        podman.start()
        state = await ended(b.executor, b.host, job)
        assert isinstance(state, JobSucceeded)
        assert b.host.written[job.name, "stdout"] == "ready\n5\n"


async def test_the_next_worker_finds_what_runs_and_what_ended(podman: Podman, tmp_path: Path) -> None:
    runs, ends = container("echo ready; sleep 3; echo 1"), container("echo 2")
    async with bench(podman, tmp_path) as first:
        await first.running(runs)
        await first.end(ends)
    async with bench(podman, tmp_path) as second:
        assert {job.name for job in await second.executor.recover()} == {runs.name, ends.name}
        for job, value in ((runs, 1), (ends, 2)):
            state = await ended(second.executor, second.host, job)
            assert isinstance(state, JobSucceeded)
            assert msgspec.json.decode(state.value)["json"] == value
        async with bench(podman, tmp_path) as beside:  # the second one lives: its jobs are its own
            assert await beside.executor.recover() == []


async def test_what_ran_before_the_machine_was_restarted_is_lost(podman: Podman, tmp_path: Path) -> None:
    """Podman says of such a container that it exited with code 0."""
    job = container("true")
    async with bench(podman, tmp_path) as first:
        await first.end(job)
    (started,) = (tmp_path / "state").rglob("started")
    started.write_text("another boot")
    async with bench(podman, tmp_path) as second:
        assert isinstance(await ended(second.executor, second.host, job), JobLost)


async def test_a_worker_without_a_socket_says_so(podman: Podman, tmp_path: Path) -> None:
    executor = ContainerExecutor(ContainerOptions(socket=str(tmp_path / "none.sock"), state_dir=str(tmp_path)))
    with pytest.raises(InvalidInput, match="cannot reach Docker or Podman"):
        await executor.open(KeptOutput())
