"""What every executor must do, tested against the most real counterpart that can be started here.

A test module of an executor subclasses `Conformance` and has a fixture `counterpart`. Executors that run commands take their
works from `shell_works`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.core.jobs import is_host_bound
from perdure.core.retry import End, Fail, Requeue, settle
from perdure.core.work import Assignment, Report
from perdure.executors.port import OBSERVED_MAX, Executor, Job, JobLost, JobRunning, JobSucceeded
from perdure.sdk.worker import job_watcher
from tests.executors.agents import Agent, assignment, crash, same
from tests.fakes.waiting import busy, turns, until

CRASHES = int(os.environ.get("PERDURE_EXECUTOR_CRASHES", "3"))
"""At each point; 200 is the long form."""
SHORT = {
    "test_a_success_gives_its_value",
    "test_a_failure_of_the_work_is_a_failure_and_no_loss",
    "test_a_spec_that_cannot_be_run_is_refused_for_good",
    "test_output_becomes_log_lines_in_order",
    "test_no_secret_of_the_worker_reaches_the_job",
    "test_cancelling_ends_a_running_job",
    "test_a_job_that_ignores_the_request_is_killed",
    "test_a_lost_job_is_told_from_a_failed_one",
    "test_starting_twice_starts_once",
    "test_the_next_worker_attaches_to_a_running_job",
    "test_a_crash_of_the_worker_at_a_point_starts_nothing_twice",
    "test_a_running_job_survives_a_time_without_answers",
    "test_nothing_is_left_of_a_job_that_is_forgotten",
    "test_many_are_observed_in_one_call",
}
"""What CI runs of an executor whose jobs take long, unless it is told to run all."""


class Counterpart(ABC):
    """An executor's other side: the real thing it talks to."""

    name: str
    hard_kill_s: float = 30.0
    """How long a job that ignores the request to stop may take to end."""

    @abstractmethod
    def executor(self) -> Executor:
        """A new one, as a worker has it that was just started."""

    @abstractmethod
    def work(self, kind: str, **values: Any) -> dict[str, Any]:
        """The spec of a job that does this: see shell_works."""

    def value(self, report: Report) -> Any:
        """What the work gave, out of what the executor made of it."""
        assert report.end is End.SUCCESS, report.failure
        return json.loads(report.value)

    @abstractmethod
    async def lose(self, job: Job) -> None:
        """End the job as a failure of its infrastructure does: without a result and without a word of its own."""

    @abstractmethod
    def unreachable(self) -> AbstractAsyncContextManager[None]:
        """The executor's other side does not answer."""

    @abstractmethod
    async def remains(self, job: Job) -> bool:
        """Whether anything of an ended job is still there."""


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    yield


def shell_works(kind: str, **values: Any) -> list[str]:
    """Works as commands for a plain POSIX shell. The last line that is JSON is the value."""
    match kind:
        case "value":
            return ["printf", "%s\n", json.dumps(values["value"], ensure_ascii=False)]
        case "echo":
            return ["cat"]
        case "fail":
            return ["sh", "-c", 'echo "it broke" >&2; exit 3']
        case "lines":
            return [
                "sh",
                "-c",
                f"i=0; while [ $i -lt {values['n']} ]; do echo line $i; echo complaint $i >&2; i=$((i+1)); done; echo 1",
            ]
        case "garbage":
            return ["sh", "-c", "head -c 4000 /dev/urandom; printf '\\377\\376\\000\\001\\n'; echo 7"]
        case "huge":
            return ["sh", "-c", f"head -c {values['n']} /dev/zero | tr '\\000' x; echo; echo 7"]
        case "sleep":
            return ["sleep", str(values["s"])]
        case "stubborn":
            return ["sh", "-c", "trap '' TERM INT; echo ready; while :; do sleep 1; done"]
        case "mark":  # one line in a file for each time that it begins, then it takes a while
            return ["sh", "-c", f"echo begun >> {values['file']}; sleep {values['s']}; echo 7"]
        case "ids":
            text = '{"run":"%s","task":"%s","attempt":"%s","job":"%s"}\\n'
            return ["sh", "-c", f"printf '{text}' $PERDURE_RUN_ID $PERDURE_TASK_ID $PERDURE_ATTEMPT $PERDURE_JOB"]
        case "environment":
            return ["env"]
        case "nested":
            return ["printf", "%s\n", json.dumps({"a": [1, None, {"ä": "日本"}], "b": 1.5}, ensure_ascii=False)]
        case _:
            raise AssertionError(kind)


class Conformance:
    """At least the behaviours that the port's laws name."""

    # -- results ---------------------------------------------------------------------------------------------------------

    async def test_a_success_gives_its_value(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            report = await agent.report(assignment(counterpart.name, counterpart.work("value", value={"n": 7})))
            assert counterpart.value(report) == {"n": 7}
            assert 0 < report.started_us <= report.finished_us

    async def test_input_reaches_the_job(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            spec = {**counterpart.work("echo"), "input": {"names": ["a", "ü"], "n": 3}}
            assert counterpart.value(await agent.report(assignment(counterpart.name, spec))) == spec["input"]

    async def test_nested_and_foreign_text_survives(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            report = await agent.report(assignment(counterpart.name, counterpart.work("nested")))
            assert counterpart.value(report) == {"a": [1, None, {"ä": "日本"}], "b": 1.5}

    async def test_a_failure_of_the_work_is_a_failure_and_no_loss(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            report = await agent.report(assignment(counterpart.name, counterpart.work("fail")))
            assert report.end is End.ERROR
            assert "it broke" in agent.failure(report)

    async def test_a_failure_that_the_policy_names_is_final(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            first = await agent.report(assignment(counterpart.name, counterpart.work("fail")))
            assert first.failure is not None
            report = await agent.report(
                assignment(counterpart.name, counterpart.work("fail"), seq=2, never=(first.failure.type,))
            )
            assert report.end is End.FINAL_ERROR

    async def test_a_spec_that_cannot_be_run_is_refused_for_good(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            report = await agent.report(assignment(counterpart.name, {"no such key": 1}))
            assert report.end is End.FINAL_ERROR
            assert agent.failure(report)

    async def test_many_jobs_at_once_keep_their_values_apart(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            jobs = [
                agent.begin(assignment(counterpart.name, counterpart.work("value", value=n), seq=n))
                for n in range(1, 13)
            ]
            got = [counterpart.value(await agent.end(a)) for a in jobs]
            assert got == list(range(1, 13))

    async def test_a_job_knows_its_run_its_task_and_its_attempt(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            a = assignment(counterpart.name, counterpart.work("ids"), attempt=3)
            got = counterpart.value(await agent.report(a))
            assert got["attempt"] == "3" and got["job"] == a.job
            assert len(got["run"]) == len(got["task"]) == 36 and got["run"] != got["task"]

    # -- output ----------------------------------------------------------------------------------------------------------

    async def test_output_becomes_log_lines_in_order(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            await agent.report(assignment(counterpart.name, counterpart.work("lines", n=50)))
            assert agent.lines()[:50] == [f"line {n}" for n in range(50)]
            assert [x for x in (*agent.lines("stderr"), *agent.lines()) if x.startswith("complaint")] == [
                f"complaint {n}" for n in range(50)
            ]

    async def test_output_is_seen_while_the_job_runs(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            a = agent.begin(assignment(counterpart.name, counterpart.work("stubborn")))

            async def seen() -> bool:
                return "ready" in agent.lines()

            await until(seen)
            assert not agent.reports
            agent.cancel(a)
            await agent.end(a)

    async def test_binary_garbage_breaks_nothing(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            report = await agent.report(assignment(counterpart.name, counterpart.work("garbage")))
            assert counterpart.value(report) == 7

    async def test_huge_output_is_bounded(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            report = await agent.report(assignment(counterpart.name, counterpart.work("huge", n=20_000_000)))
            assert counterpart.value(report) == 7
            assert len(report.value) < 256 * 1024
            assert sum(len(line) for line in agent.lines()) < 16 * 1024 * 1024

    async def test_no_secret_of_the_worker_reaches_the_job(
        self, counterpart: Counterpart, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("PERDURE_API_KEY", "PERDURE_DSN", "DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "ANOTHER"):
            monkeypatch.setenv(name, "hush-hush-secret")
        async with Agent(counterpart.executor()) as agent:
            report = await agent.report(assignment(counterpart.name, counterpart.work("environment")))
            assert "hush-hush-secret" not in report.value.decode()
            assert not any("hush-hush-secret" in line for line in agent.lines())

    # -- stopping --------------------------------------------------------------------------------------------------------

    async def test_cancelling_ends_a_running_job(self, counterpart: Counterpart, tmp_path: Path) -> None:
        async with Agent(counterpart.executor()) as agent:
            a = agent.begin(assignment(counterpart.name, counterpart.work("sleep", s=300)))
            await agent.running(a)
            agent.cancel(a)
            report = await agent.end(a)
            assert report.end is End.CANCELLED
            assert agent.worker.slots_free == agent.worker.slots

    async def test_a_job_that_is_cancelled_as_it_begins_leaves_nothing_running(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            jobs = [
                agent.begin(assignment(counterpart.name, counterpart.work("sleep", s=300), seq=n)) for n in range(1, 7)
            ]
            for n, a in enumerate(jobs):
                await turns(n)
                agent.cancel(a)
            for a in jobs:
                assert (await agent.end(a)).end is End.CANCELLED
            assert agent.worker.slots_free == agent.worker.slots

    async def test_a_job_that_ignores_the_request_is_killed(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            a = agent.begin(assignment(counterpart.name, counterpart.work("stubborn")))

            async def ready() -> bool:
                return "ready" in agent.lines()

            await until(ready)
            agent.cancel(a)
            assert (await agent.end(a, counterpart.hard_kill_s)).end is End.CANCELLED

    async def test_cancelling_what_has_ended_changes_nothing(self, counterpart: Counterpart) -> None:
        executor = counterpart.executor()
        async with Agent(executor) as agent:
            a = assignment(counterpart.name, counterpart.work("value", value=1))
            await agent.report(a)
            job = Job(name=a.job, assignment=a)
            await executor.cancel(job)
            assert isinstance((await executor.observe([job]))[0], JobSucceeded)

    async def test_a_job_that_was_taken_over_has_only_the_rest_of_its_time(self, counterpart: Counterpart) -> None:
        """The engine counts from the moment its worker got the attempt; the job began earlier."""
        async with Agent(counterpart.executor()) as agent:
            a = agent.begin(assignment(counterpart.name, counterpart.work("sleep", s=300), timeout_us=1_500_000))
            report = await agent.end(a)
            assert report.end is End.ERROR
            assert report.failure is not None and report.failure.code == "task_timeout"

    # -- loss ------------------------------------------------------------------------------------------------------------

    async def test_a_lost_job_is_told_from_a_failed_one(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            a = agent.begin(assignment(counterpart.name, counterpart.work("sleep", s=300)))
            await agent.running(a)
            await counterpart.lose(Job(name=a.job, assignment=a))
            report = await agent.end(a)
            assert report.end is End.JOB_LOST
            assert agent.failure(report)

    async def test_a_lost_job_stays_lost(self, counterpart: Counterpart) -> None:
        executor = counterpart.executor()
        async with Agent(executor) as agent:
            a = agent.begin(assignment(counterpart.name, counterpart.work("sleep", s=300)))
            await agent.running(a)
            job = Job(name=a.job, assignment=a)
            await counterpart.lose(job)
            await agent.end(a)
            await executor.start(job)
            assert isinstance((await executor.observe([job]))[0], JobLost)

    async def test_another_attempt_follows_a_loss_and_uses_up_none_of_the_policy(
        self, counterpart: Counterpart
    ) -> None:
        async with Agent(counterpart.executor()) as agent:
            a = agent.begin(assignment(counterpart.name, counterpart.work("sleep", s=300), max_attempts=1))
            await agent.running(a)
            await counterpart.lose(Job(name=a.job, assignment=a))
            lost = await agent.end(a)
            verdict = settle(a.options, bytes(16), a.attempt, 0, lost.end, lost.failure)
            assert isinstance(verdict, Requeue) and verdict.attempt == 2
            again = assignment(counterpart.name, counterpart.work("value", value=2), attempt=2, max_attempts=1)
            assert again.job != a.job
            assert counterpart.value(await agent.report(again)) == 2
            at_most_once = assignment(counterpart.name, {}, at_most_once=True).options
            assert isinstance(settle(at_most_once, bytes(16), 1, 0, lost.end, lost.failure), Fail)

    # -- who watches -----------------------------------------------------------------------------------------------------

    async def test_starting_twice_starts_once(self, counterpart: Counterpart, tmp_path: Path) -> None:
        mark = self._mark(tmp_path)
        executor = counterpart.executor()
        async with Agent(executor) as agent:
            a = agent.begin(assignment(counterpart.name, counterpart.work("mark", file=mark, s=1)))
            job = Job(name=a.job, assignment=a)
            await asyncio.gather(*(executor.start(job) for _ in range(3)))
            assert counterpart.value(await agent.end(a)) == 7
            await executor.start(job)
            assert isinstance((await executor.observe([job]))[0], JobSucceeded)
        assert self._begun(mark) == 1

    async def test_the_next_worker_attaches_to_a_running_job(self, counterpart: Counterpart, tmp_path: Path) -> None:
        mark = self._mark(tmp_path)
        a = assignment(counterpart.name, counterpart.work("mark", file=mark, s=2))
        async with Agent(counterpart.executor()) as first:
            first.begin(a)
            await first.running(a)
        async with Agent(counterpart.executor()) as second:
            assert counterpart.value(await self._taken_over(second, a)) == 7
        assert self._begun(mark) == 1

    async def test_the_next_worker_reports_an_end_that_no_one_saw(
        self, counterpart: Counterpart, tmp_path: Path
    ) -> None:
        mark = self._mark(tmp_path)
        a = assignment(counterpart.name, counterpart.work("mark", file=mark, s=0))
        async with Agent(counterpart.executor()) as first:
            first.begin(a)
            await first.end(a)  # not acknowledged: the server never got it
        async with Agent(counterpart.executor()) as second:
            assert counterpart.value(await self._taken_over(second, a)) == 7
        assert self._begun(mark) == 1

    async def _taken_over(self, agent: Agent, a: Assignment) -> Report:
        """By a worker of the same machine that finds it, or by any worker that gets the attempt again."""
        if is_host_bound(a.options.executor):
            assert agent.found == [(a.run_id, a.seq, a.attempt)]
            return await agent.end(a)
        return await agent.report(same(a, epoch=2))

    async def test_two_workers_may_watch_one_job(self, counterpart: Counterpart, tmp_path: Path) -> None:
        """As after a network that was split: both get the same attempt."""
        if is_host_bound(counterpart.name):
            pytest.skip("jobs of one machine belong to one worker")
        mark = self._mark(tmp_path)
        a = assignment(counterpart.name, counterpart.work("mark", file=mark, s=2))
        async with Agent(counterpart.executor()) as one, Agent(counterpart.executor()) as two:
            one.begin(a)
            two.begin(same(a))
            assert counterpart.value(await one.end(a)) == counterpart.value(await two.end(a)) == 7
        assert self._begun(mark) == 1

    @pytest.mark.parametrize("point", ["opened", "started", "running", "ended"])
    async def test_a_crash_of_the_worker_at_a_point_starts_nothing_twice(
        self, counterpart: Counterpart, tmp_path: Path, point: str
    ) -> None:
        for n in range(CRASHES):
            mark = self._mark(tmp_path, n)
            a = assignment(counterpart.name, counterpart.work("mark", file=mark, s=0))
            assert await asyncio.to_thread(crash, counterpart.executor, a, after_s=None, point=point)
            await self._ends_once(counterpart, a, mark)

    async def test_a_crash_of_the_worker_at_any_moment_starts_nothing_twice(
        self, counterpart: Counterpart, tmp_path: Path
    ) -> None:
        chance = random.Random(7)
        for n in range(2 * CRASHES):
            mark = self._mark(tmp_path, n)
            a = assignment(counterpart.name, counterpart.work("mark", file=mark, s=0))
            for _ in range(chance.randint(1, 2)):
                await asyncio.to_thread(crash, counterpart.executor, a, after_s=chance.uniform(0, 0.15))
            await self._ends_once(counterpart, a, mark)

    async def _ends_once(self, counterpart: Counterpart, a: Assignment, mark: Path) -> None:
        async with Agent(counterpart.executor()) as agent:
            # A host-bound job that never reached the disk is not found: the engine gives it out again as the next attempt.
            found = (a.run_id, a.seq, a.attempt) in agent.found
            report = await agent.end(a) if found else await agent.report(same(a, epoch=2))
            assert counterpart.value(report) == 7
            agent.worker.acknowledged([report])
            await agent.executor.forget(Job(name=a.job, assignment=a))  # now, for 200 of them would be over a quota
        assert self._begun(mark) == 1

    # -- the other side is away ------------------------------------------------------------------------------------------

    async def test_a_job_waits_for_an_executor_that_does_not_answer(
        self, counterpart: Counterpart, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with Agent(counterpart.executor()) as agent:
            async with counterpart.unreachable():
                a = agent.begin(assignment(counterpart.name, counterpart.work("value", value=5)))
                await busy(0.3)
            assert counterpart.value(await agent.end(a)) == 5

    async def test_an_executor_that_stays_away_gives_the_attempt_back(
        self, counterpart: Counterpart, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(job_watcher, "START_PAUSES_S", (0.01, 0.01))
        async with Agent(counterpart.executor()) as agent, counterpart.unreachable():
            a = agent.begin(assignment(counterpart.name, counterpart.work("value", value=5)))
            report = await agent.end(a)
            if report.end is End.SUCCESS:
                pytest.skip("this executor has no other side that could be away")
            assert report.end is End.RETURNED
            assert report.failure is not None and report.failure.code == "executor_unavailable"
            verdict = settle(a.options, bytes(16), 1, 0, report.end, report.failure)
            assert isinstance(verdict, Requeue) and verdict.attempt == 1 and verdict.delay_us > 0

    async def test_a_running_job_survives_a_time_without_answers(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            a = agent.begin(assignment(counterpart.name, counterpart.work("sleep", s=2)))
            await agent.running(a)
            async with counterpart.unreachable():
                await busy(0.5)
            assert (await agent.end(a)).end is End.SUCCESS

    # -- slots, leaving, remains -----------------------------------------------------------------------------------------

    async def test_a_waiting_job_holds_a_slot_only_where_it_uses_this_machine(self, counterpart: Counterpart) -> None:
        executor = counterpart.executor()
        async with Agent(executor, slots=2) as agent:
            a = agent.begin(assignment(counterpart.name, counterpart.work("sleep", s=300)))
            await agent.running(a)
            assert agent.worker.slots_free == (1 if executor.holds_slot else 2)
            assert agent.deferred == ([] if executor.holds_slot else [(a.run_id, a.seq, a.attempt)])
            agent.cancel(a)
            await agent.end(a)
            assert agent.worker.slots_free == 2

    async def test_a_worker_that_leaves_does_not_end_its_jobs(self, counterpart: Counterpart, tmp_path: Path) -> None:
        mark = self._mark(tmp_path)
        a = assignment(counterpart.name, counterpart.work("mark", file=mark, s=3))
        async with Agent(counterpart.executor()) as first:
            first.begin(a)
            await first.running(a)
            await first.worker.drain(0.1)
            assert [r.end for r in first.reports] == ([] if first.executor.holds_slot else [End.RETURNED])
        async with Agent(counterpart.executor()) as second:
            assert counterpart.value(await self._taken_over(second, a)) == 7
        assert self._begun(mark) == 1

    async def test_nothing_is_left_of_a_job_that_is_forgotten(
        self, counterpart: Counterpart, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        executor = counterpart.executor()
        monkeypatch.setattr(type(executor), "keep_s", 0.0)
        async with Agent(executor) as agent:
            a = assignment(counterpart.name, counterpart.work("value", value=1))
            report = await agent.report(a)
            job = Job(name=a.job, assignment=a)
            assert isinstance((await executor.observe([job]))[0], JobSucceeded)
            agent.worker.acknowledged([report])

            async def gone() -> bool:
                return not await counterpart.remains(job)

            await until(gone)

    async def test_many_are_observed_in_one_call(self, counterpart: Counterpart) -> None:
        executor = counterpart.executor()
        async with Agent(executor) as agent:
            a = agent.begin(assignment(counterpart.name, counterpart.work("sleep", s=300)))
            await agent.running(a)
            states = await executor.observe([Job(name=a.job, assignment=a)] * OBSERVED_MAX)
            assert len(states) == OBSERVED_MAX and all(isinstance(s, JobRunning) for s in states)
            agent.cancel(a)
            await agent.end(a)

    @staticmethod
    def _mark(folder: Path, n: int = 0) -> Path:
        folder.chmod(0o777)
        return folder / f"mark-{n}"

    @staticmethod
    def _begun(mark: Path) -> int:
        return len(mark.read_text().splitlines())
