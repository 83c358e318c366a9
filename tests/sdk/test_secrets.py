"""Secrets on a worker: where they come from, who may read them, and what is masked."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import task
from perdure.core.limits import LOG_LINE_CHARS_MAX
from perdure.core.retry import End, TaskOptions
from perdure.core.secrets import SecretPlace
from perdure.core.work import Assignment, Beat, LogChunk, Report
from perdure.errors import InvalidInput, PerdureError, SecretMissing, SecretUnavailable, WorkflowRuleBroken
from perdure.executors.port import Executor, Job, JobLost, JobRunning, JobState
from perdure.sdk.captured_output import OutputBuffer
from perdure.sdk.secrets import store as store_module
from perdure.sdk.secrets.known import known, redacted
from perdure.sdk.secrets.providers import FileSecrets, SecretProvider, load, provider_names
from perdure.sdk.secrets.store import SecretStore
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.execution import TaskExecutor
from perdure.sdk.workflow.live_run import current as current_run
from tests.fakes.upstreams import upstream_to
from tests.fakes.waiting import until

VALUE = "t0ken/of+the=tests"
HALF = len(VALUE) // 2


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SECRET_TOKEN", VALUE)


def tell(value: str, then: str) -> Any:
    print("said", value[:HALF], end="")
    print(value[HALF:])
    logging.getLogger("told").warning("logged %s", value)
    perdure.attempt().heartbeat({"at": f"<{value}>"})
    if then == "raise":
        raise ValueError(f"no {value}") from KeyError(base64.b64encode(value.encode()))
    return {"returned": value} if then == "return" else len(value)


@task(name="s_async")
async def on_the_loop(then: str) -> Any:
    assert await asyncio.to_thread(perdure.secret, "TOKEN") == VALUE
    return tell(perdure.secret("TOKEN"), then)


@task(name="s_thread")
def in_a_thread(then: str) -> Any:
    return tell(perdure.secret("TOKEN"), then)


@task(name="s_process", process=True)
def in_a_process(then: str) -> Any:
    return tell(perdure.secret("TOKEN"), then)


@task(name="s_given", process=True)
def given_to_a_process(then: str, token: str, other: Any = None) -> Any:
    assert other == {"$secret": "TOKEN"}
    return tell(token, then)


@task(name="s_missing")
def missing() -> str:
    return perdure.secret("NOT_THERE")


@task(name="s_missing_process", process=True)
def missing_in_a_process() -> str:
    return perdure.secret("NOT_THERE")


class Told:
    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.chunks: list[LogChunk] = []
        self.beats: list[Beat] = []

    @property
    def lines(self) -> list[str]:
        return [line.text for chunk in self.chunks for line in chunk.lines]


@contextlib.asynccontextmanager
async def executing(
    definition: Any, secrets: SecretStore | None = None, executors: dict[str, Executor] | None = None
) -> AsyncGenerator[tuple[TaskExecutor, Told]]:
    told = Told()
    upstream = upstream_to(reported=told.reports.extend, logged=told.chunks.extend, beats=told.beats.extend)
    one = Capacity(slots=1, threads=1, processes=1)
    execution = TaskExecutor(lambda _: definition, upstream, one, "tee", None, executors, secrets)
    try:
        yield execution, told
    finally:
        await execution.close()


async def reported(definition: Any, given: Any, *places: SecretPlace, secrets: SecretStore | None = None) -> Told:
    async with executing(definition, secrets) as (execution, told):
        options = TaskOptions(secrets=places)
        execution.assign([Assignment(bytes(16), 1, 1, 1, definition.name, json.dumps(given).encode(), options)])
        await until(lambda: told.reports, "the attempt has ended", 30)
    return told


KINDS = pytest.mark.parametrize("definition", [on_the_loop, in_a_thread, in_a_process])


@KINDS
async def test_what_a_task_says_and_raises_is_masked(definition: Any, capfd: pytest.CaptureFixture[str]) -> None:
    told = await reported(definition, {"then": "raise"})
    failure = told.reports[0].failure
    assert failure is not None
    assert failure.message == "no ***TOKEN***"
    assert "KeyError: b'***TOKEN***" in failure.traceback
    assert told.lines == ["said ***TOKEN***", "logged ***TOKEN***"]
    assert [json.loads(b.details) for b in told.beats] == [{"at": "<***TOKEN***>"}]
    shown = "".join(capfd.readouterr())
    assert "said ***TOKEN***" in shown
    assert VALUE not in shown
    assert VALUE[HALF:] not in shown


@KINDS
async def test_a_result_that_holds_a_secret_is_not_recorded(definition: Any) -> None:
    told = await reported(definition, {"then": "return"})
    report = told.reports[0]
    assert (report.end, report.value) == (End.FINAL_ERROR, b"")
    assert report.failure is not None
    assert report.failure.code == "secret_exposed"
    assert "contains the secret TOKEN" in report.failure.message
    fine = await reported(definition, {"then": "count"})
    assert (fine.reports[0].end, fine.reports[0].value) == (End.SUCCESS, str(len(VALUE)).encode())


async def test_a_reference_is_resolved_where_the_options_list_it_and_nowhere_else() -> None:
    reference = {"$secret": "TOKEN"}
    given = {"then": "raise", "token": reference, "other": reference}
    told = await reported(given_to_a_process, given, SecretPlace(("token",), ("TOKEN",)))
    assert told.reports[0].failure is not None
    assert told.reports[0].failure.message == "no ***TOKEN***"
    assert told.lines[0] == "said ***TOKEN***"


@pytest.mark.parametrize("definition", [missing, missing_in_a_process])
async def test_a_missing_secret_is_final_and_has_a_code(definition: Any) -> None:
    told = await reported(definition, {})
    report = told.reports[0]
    assert report.end is End.FINAL_ERROR
    assert report.failure is not None
    assert report.failure.code == "secret_missing"
    assert "PERDURE_SECRET_NOT_THERE" in report.failure.message


async def test_a_provider_that_is_away_is_worth_another_attempt() -> None:
    class Away:
        def get(self, name: str) -> str | None:
            raise SecretUnavailable("the vault is sealed")

    place = SecretPlace(("token",), ("OTHER",))
    given = {"then": "", "token": {"$secret": "OTHER"}}
    told = await reported(given_to_a_process, given, place, secrets=store(Away()))
    assert told.reports[0].end is End.ERROR
    assert told.reports[0].failure is not None
    assert told.reports[0].failure.code == "secret_unavailable"


def test_a_secret_is_for_tasks_alone() -> None:
    with pytest.raises(PerdureError, match="inside a running task only"):
        perdure.secret("TOKEN")
    token = current_run.set(object())  # type: ignore[arg-type]
    try:
        with pytest.raises(WorkflowRuleBroken, match="Call it in the task"):
            perdure.secret("TOKEN")
    finally:
        current_run.reset(token)


class Silent(Executor):
    """Takes jobs, and ends them when they are cancelled."""

    name = "silent"

    def __init__(self) -> None:
        super().__init__()
        self.started: list[dict[str, Any]] = []
        self.stopped: list[str] = []

    async def start(self, job: Job) -> None:
        given = await self.host.secrets(job)
        self.started.append(given.spec if given is not None else job.spec)

    async def observe(self, jobs: Sequence[Job]) -> list[JobState]:
        return [JobLost("stopped") if job.name in self.stopped else JobRunning() for job in jobs]

    async def cancel(self, job: Job) -> None:
        self.stopped.append(job.name)


@pytest.mark.parametrize(("keys", "starts"), [((), False), (("env",), True), (("input",), False)])
async def test_a_job_has_secrets_only_where_its_executor_takes_them(keys: tuple[str, ...], starts: bool) -> None:
    executor = Silent()
    executor.secret_keys = keys  # type: ignore[misc]
    definition = type("JobTask", (), {"executor": "silent", "is_async": True})
    async with executing(definition, None, {"silent": executor}) as (execution, told):
        await execution.open(None)  # type: ignore[arg-type]
        options = TaskOptions(executor="silent", secrets=(SecretPlace(("env", "A"), ("TOKEN",)),))
        a = Assignment(
            bytes(16), 1, 1, 1, "perdure.job.silent", b'{"env":{"A":{"$secret":"TOKEN"}}}', options, job="job-1"
        )
        execution.assign([a])
        await until(lambda: executor.started or told.reports, "it was started or refused")
    if starts:
        assert executor.started == [{"env": {"A": VALUE}}]
    else:
        assert told.reports[0].failure is not None
        assert told.reports[0].failure.code == "job_refused"
        assert "stands in env.A; the executor silent takes secrets" in told.reports[0].failure.message


# -- providers ------------------------------------------------------------------------------------------------------


def store(*providers: SecretProvider, **options: float) -> SecretStore:
    return SecretStore(["x"], load=lambda _: [(f"p{n}", p) for n, p in enumerate(providers)], **options)


class Calls:
    """A provider that answers by a function."""

    def __init__(self, answer: Callable[[str], Any]) -> None:
        self._answer = answer
        self.count = 0

    def get(self, name: str) -> Any:
        self.count += 1
        return self._answer(name)


def test_a_file_is_read_without_the_newline_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "db-password").write_text("pass word\n\n")
    assert FileSecrets(tmp_path).get("db-password") == "pass word\n"
    assert FileSecrets(tmp_path).get("other") is None
    assert FileSecrets(tmp_path / "nowhere").get("other") is None
    (tmp_path / "binary").write_bytes(b"\xff" * 20)
    with pytest.raises(SecretMissing, match="UTF-8"):
        FileSecrets(tmp_path).get("binary")


def test_the_variable_of_a_name_with_dots_has_underscores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SECRET_a_b_c", "12345678")
    assert SecretStore().get("a.b-c") == "12345678"


def test_providers_are_asked_in_their_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "TOKEN").write_text("of the file")
    monkeypatch.setenv("PERDURE_SECRETS_DIR", str(tmp_path))
    assert SecretStore().get("TOKEN") == VALUE
    monkeypatch.setenv("PERDURE_SECRETS", "files, env")
    assert SecretStore().get("TOKEN") == "of the file"


def test_unknown_providers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no provider of secrets 'fils'; did you mean 'files'"):
        load(["fils"])
    with pytest.raises(InvalidInput, match="11 providers"):
        provider_names(",".join(map(str, range(11))))


@pytest.mark.parametrize("value", ["1234567", "x" * 65_537, 5, "\ud800" * 8])
def test_values_that_cannot_be_masked_or_are_too_large_are_refused(value: Any) -> None:
    with pytest.raises(SecretMissing):
        store(Calls(lambda _: value)).get("A")


def test_a_value_is_kept_for_a_short_time_so_that_rotation_works() -> None:
    values = iter(["first value", "second value"])
    provider = Calls(lambda _: next(values))
    kept = store(provider)
    assert [kept.get("A"), kept.get("A")] == ["first value", "first value"]
    rotating = store(Calls(lambda _: next(values)), cache_s=0.0)
    assert rotating.get("A") == "second value"
    assert redacted("first value, second value") == "***A***, ***A***", "both were read"


def test_a_provider_that_hangs_costs_a_timeout_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(store_module, "SECRET_CALLS_MAX", 2)
    hanging = store(Calls(lambda _: gate.wait(30)), call_s=0.05)
    try:
        for name in ("A", "B"):
            with pytest.raises(SecretUnavailable, match="did not answer"):
                hanging.get(name)
        with pytest.raises(SecretUnavailable, match="have not been answered"):
            hanging.get("C")
    finally:
        gate.set()


def test_the_text_of_a_providers_error_is_not_told() -> None:
    def fail(name: str) -> str:
        raise RuntimeError(f"found {VALUE}")

    with pytest.raises(SecretUnavailable, match="failed for the secret 'A': RuntimeError$"):
        store(Calls(fail)).get("A")


def test_threads_that_ask_for_the_same_wait_together() -> None:
    gate = threading.Event()
    provider = Calls(lambda _: gate.wait(10) and "the one value")
    shared = store(provider)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(shared.get("A"))) for _ in range(20)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert found == ["the one value"] * 20
    assert provider.count <= 2, "the last ones may have come after the answer"


# -- what is masked -------------------------------------------------------------------------------------------------


class Sink:
    tee = True

    def now_us(self) -> int:
        return 0

    def grown(self, output: OutputBuffer, new: bool) -> None: ...


def test_a_secret_at_the_end_of_a_line_that_is_cut_is_not_half_shown() -> None:
    known.learn("CUT", "0123456789" * 3)
    output = OutputBuffer(Sink(), (b"", 0, 0, 0))
    for part in ("x" * (LOG_LINE_CHARS_MAX - 10), "0123456789", "01234567890123456789"):
        output.write("stdout", part)
    output.write("stdout", "\n")
    assert "0123456" not in output.take()[0].text


def test_what_is_held_back_because_a_secret_may_begin_is_released() -> None:
    known.learn("HELD", "held back value")
    released: list[tuple[str, str]] = []
    output = OutputBuffer(Sink(), (b"", 0, 0, 0), lambda stream, text: released.append((stream, text)))
    passed = [output.teed("stdout", part) for part in ("a held ", "back val", "ue, a held", " b")]
    assert "".join(passed) == "a ***HELD***, a "
    output.close()
    assert released == [("stdout", "held b")]
