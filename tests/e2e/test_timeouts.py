"""Every timeout a task or a run may have, and what an error says about when to try again, on a real engine and a real database."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from perdure import Perdure, Retry, Step, TestEnv, attempt, flow, task, wf, workflow
from perdure.core import ids
from perdure.core.api import runs
from perdure.core.events import TasksScheduled
from perdure.core.retry import TaskOptions
from perdure.core.work import StartRequest
from perdure.errors import FinalError, InvalidInput, RetryLater, RunFailed, TaskTimeout
from tests.fakes.waiting import busy, forever, holds, until

LIMIT_S = 60
calls: Counter[str] = Counter()
times: dict[str, list[float]] = {}
stopped: dict[str, float] = {}


@pytest.fixture(autouse=True)
def clean_slate() -> None:
    calls.clear()
    times.clear()
    stopped.clear()


def called(name: str) -> int:
    calls[name] += 1
    times.setdefault(name, []).append(time.monotonic())
    return calls[name]


def nobody() -> Step[str]:
    return wf.call("to_task_that_nobody_has", start_within="500ms")


@task(name="to_slow", retry=1)
async def slow(seconds: float) -> str:
    called("slow")
    await busy(seconds)
    return "slow"


@task(name="to_prompt", start_within="400ms", retry=1)
async def prompt() -> str:
    called("prompt")
    return "prompt"


@task(name="to_endless", finish_within="700ms", retry=5)
async def endless() -> None:
    called("endless")
    try:
        await forever()
    except asyncio.CancelledError:
        stopped["endless"] = time.monotonic()
        raise


@task(name="to_hopeless", finish_within="5s", retry=Retry(5, delay="30s", max_delay="30s"))
async def hopeless() -> None:
    called("hopeless")
    raise ValueError("no such file")


@task(name="to_flaky", start_within="10s", finish_within="30s", retry=Retry(3, delay="50ms"))
async def flaky() -> int:
    if called("flaky") < 3:
        raise ValueError("not yet")
    return attempt().number


@task(name="to_busy", retry=Retry(3, delay="30s", max_delay="30s"))
async def shop(how: str) -> int:
    if called(how) == 1:
        if how == "later":
            raise RetryLater("300ms", "the shop is closed")
        error = ConnectionError("slow down")
        error.retry_after = timedelta(milliseconds=300) if how == "delta" else 0.3  # type: ignore[attr-defined]
        raise error
    return attempt().number


@task(name="to_final", retry=5)
async def final() -> None:
    called("final")
    raise FinalError("the card has expired")


@workflow(name="to_one")
async def one(which: str, argument: str = "") -> int | str | None:
    by_name = {
        "nobody": nobody,
        "prompt": prompt,
        "endless": endless,
        "hopeless": hopeless,
        "flaky": flaky,
        "final": final,
    }
    if which == "busy":
        return await shop(argument)
    return await by_name[which]()  # type: ignore[operator]


@workflow(name="to_caught")
async def caught() -> str:
    try:
        await nobody()
    except TaskTimeout as error:
        return f"caught: {error}"
    return "no"


@workflow(name="to_full_house")
async def full_house() -> list[str]:
    waiting = slow(1.5)
    try:
        return [await prompt()]
    except TaskTimeout as error:
        return [str(error), await waiting]


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[Perdure]:
    async with Perdure(dsn, slots=4) as perdure:
        yield perdure


# -- schedule to start --------------------------------------------------------------------------------------------


async def test_a_task_that_nobody_takes_fails_when_its_time_is_over_and_says_why(client: Perdure, dsn: str) -> None:
    began = time.monotonic()
    said = await asyncio.wait_for(caught.run(), LIMIT_S)
    took = time.monotonic() - began
    assert said == (
        "caught: TimeoutError: the task did not begin within 0.5 s (start_within). "
        "No worker took it from the queue 'default'"
    )
    assert took < 2.0, "the engine that wrote the row looks at its moment"
    connection = await asyncpg.connect(dsn)
    try:
        row = await connection.fetchrow(
            "select status, attempts, started_at, finished_at - scheduled_at as waited from perdure.task"
        )
        assert row["status"] == "failed" and row["attempts"] == 0 and row["started_at"] is None
        assert timedelta(seconds=0.5) <= row["waited"] < timedelta(seconds=2)
        assert await connection.fetchval("select count(*) from perdure.task_queue") == 0
    finally:
        await connection.close()
    assert client.engine.counters.tasks_start_deadline_missed == 1


async def test_a_task_that_finds_every_slot_taken_fails_when_its_time_is_over(dsn: str) -> None:
    async with Perdure(dsn, slots=1):
        text, result = await asyncio.wait_for(full_house.run(), LIMIT_S)
    assert text.startswith("TimeoutError: the task did not begin within 0.4 s (start_within)") and result == "slow"
    assert calls["prompt"] == 0


async def test_a_task_that_begins_in_time_is_none_the_wiser(client: Perdure) -> None:
    assert await asyncio.wait_for(one.run("prompt"), LIMIT_S) == "prompt"
    await holds(lambda: calls["prompt"] == 1 and client.engine.counters.tasks_start_deadline_missed == 0, 0.6)


async def test_every_wait_for_another_attempt_has_its_own_time(client: Perdure) -> None:
    assert await asyncio.wait_for(one.run("flaky"), LIMIT_S) == 3
    assert calls["flaky"] == 3


async def test_another_engine_ends_the_wait_of_an_engine_that_is_gone(dsn: str) -> None:
    async with Perdure(dsn) as first:
        handle = await one.start("nobody")
        await until(lambda: first.engine.runs[ids.parse(handle.id)].queued)
        await first.engine.queue.drained()
    async with Perdure(dsn) as second:
        with pytest.raises(RunFailed, match="start_within"):
            await asyncio.wait_for((await second.get(handle.id, workflow=one)).result(), LIMIT_S)
        assert second.engine.counters.tasks_start_deadline_missed == 1


async def test_skipped_time_runs_out_too(dsn: str) -> None:
    began = time.monotonic()
    async with TestEnv(dsn) as env:
        assert (await env.run(caught)).startswith("caught: TimeoutError: the task did not begin within 0.5 s")
        env.client.engine.start_deadlines.next_us = None  # type: ignore[union-attr]
    assert time.monotonic() - began < 20


# -- schedule to close --------------------------------------------------------------------------------------------


async def test_a_task_that_takes_too_long_over_all_attempts_is_stopped_and_not_tried_again(client: Perdure) -> None:
    began = time.monotonic()
    with pytest.raises(
        RunFailed, match=r"did not end within 0\.7 s of being scheduled \(finish_within\); attempt 1 was stopped"
    ):
        await asyncio.wait_for(one.run("endless"), LIMIT_S)
    assert time.monotonic() - began < 3
    await until(lambda: "endless" in stopped)
    assert 0.2 < stopped["endless"] - times["endless"][0] < 2
    await holds(lambda: calls["endless"] == 1, 0.2)


async def test_a_retry_that_could_not_begin_in_time_is_not_waited_for(client: Perdure) -> None:
    began = time.monotonic()
    with pytest.raises(RunFailed) as failed:
        await asyncio.wait_for(one.run("hopeless"), LIMIT_S)
    assert time.monotonic() - began < 3 and calls["hopeless"] == 1
    text = str(failed.value)
    assert "no such file" in text and "No other attempt: it could begin in" in text and "within 5 s" in text


# -- retry after --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["later", "seconds", "delta"])
async def test_an_error_that_says_when_is_tried_again_then(client: Perdure, how: str) -> None:
    assert await asyncio.wait_for(one.run("busy", how), LIMIT_S) == 2
    first, second = times[how]
    assert 0.3 <= second - first < 5, "not after the 30 s of the policy"


async def test_an_error_that_calls_itself_final_is(client: Perdure) -> None:
    with pytest.raises(RunFailed, match="the card has expired"):
        await asyncio.wait_for(one.run("final"), LIMIT_S)
    assert calls["final"] == 1


# -- the run ------------------------------------------------------------------------------------------------------


@workflow(name="to_long_run")
async def long_run() -> None:
    await forever()


@workflow(name="to_short_run", timeout="300ms")
async def short_run() -> None:
    await forever()


FLOW = {"flow": "to-flow", "timeout": "300ms", "tasks": {"wait": {"sleep": "1h"}}}


async def test_a_run_fails_at_its_deadline_whoever_sets_it(client: Perdure) -> None:
    await client.deploy(FLOW)
    for start in (short_run.start(), long_run.options(timeout="300ms").start(), flow("to-flow").start()):
        handle = await start
        with pytest.raises(RunFailed, match="the run did not end before its deadline"):
            await asyncio.wait_for(handle.result(), LIMIT_S)


async def test_the_deadline_of_a_flow_survives_its_engine_and_gives_way_to_its_starter(dsn: str) -> None:
    async with Perdure(dsn) as first:
        await first.deploy({**FLOW, "timeout": "1s"})
        bounded = await flow("to-flow").start()
        longer = await flow("to-flow").options(timeout="1h").start()
    async with Perdure(dsn) as second:
        with pytest.raises(RunFailed, match="deadline"):
            await asyncio.wait_for((await second.get(bounded.id)).result(), LIMIT_S)
        assert (await (await second.get(longer.id)).describe()).finished_us is None


# -- what may be asked for ----------------------------------------------------------------------------------------


def test_options_carry_the_times() -> None:
    assert (flaky.effective.to_start_us, flaky.effective.to_close_us) == (10_000_000, 30_000_000)
    assert slow.options(start_within=2, finish_within="1m").effective == TaskOptions(
        max_attempts=1, to_start_us=2_000_000, to_close_us=60_000_000
    )
    with pytest.raises(InvalidInput, match=r"start_within=0"):
        slow.options(start_within=0).effective  # noqa: B018


async def test_a_flow_may_ask_for_the_same(client: Perdure) -> None:
    document = {
        "flow": "to-yaml",
        "tasks": {
            "lonely": {"python": "to_task_that_nobody_has", "start_within": "300ms"},
        },
        "defaults": {"finish_within": "1m"},
    }
    await client.deploy(document)
    handle = await flow("to-yaml").start()
    with pytest.raises(RunFailed, match="start_within"):
        await asyncio.wait_for(handle.result(), LIMIT_S)
    (scheduled,) = [r.event for r in await handle.history() if isinstance(r.event, TasksScheduled)]
    assert (scheduled.options.to_start_us, scheduled.options.to_close_us) == (300_000, 60_000_000)


# -- under kills --------------------------------------------------------------------------------------------------

ENGINE = """
import asyncio, sys
from perdure import EngineSettings, Perdure, task, wf, workflow
from tests.fakes.waiting import busy, forever

@task(name="kill_work", start_within="1500ms", retry=1)
async def work(n: int) -> int:
    with open(sys.argv[2], "a") as ledger:
        ledger.write(f"{n}\\n")
    await busy(0.05)
    return n

@workflow(name="kill_many")
async def many(first: int, count: int) -> dict[str, list[int]]:
    ends = await wf.map(work, list(range(first, first + count)), on_error="collect")
    done = [e for e in ends if isinstance(e, int)]
    late = [first + i for i, e in enumerate(ends) if not isinstance(e, int) and "the task did not begin" in str(e)]
    again = [first + i for i, e in enumerate(ends) if not isinstance(e, int) and "the task did not begin" not in str(e)]
    return {"done": done, "late": late, "again": again}

async def main():
    async with Perdure(sys.argv[1], slots=4, settings=EngineSettings(lease_s=1.5, heartbeat_s=0.3)):
        print("ready", flush=True)
        await forever()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.usefixtures("processes")
async def test_under_kills_a_task_is_claimed_or_expired_and_never_both(dsn: str, tmp_path: Path) -> None:
    """The ledger of executions against what the runs say: what did not begin in time was never executed."""
    script, ledger = tmp_path / "engine.py", tmp_path / "ledger"
    script.write_text(ENGINE)
    ledger.touch()

    def begin() -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), dsn, str(ledger)]
        path = str(Path(__file__).resolve().parents[2])  # for `tests`
        return subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})

    engines = [begin() for _ in range(2)]
    chance = random.Random(7)
    try:
        for one_engine in engines:
            assert one_engine.stdout is not None and one_engine.stdout.readline() == b"ready\n"
        async with Perdure(dsn, worker=False) as client:
            asked = [await client._backend.call(runs.START, _request(first)) for first in range(0, 400, 100)]
            for _ in range(3):
                await asyncio.sleep(chance.uniform(0.3, 0.9))
                victim = chance.randrange(2)
                engines[victim].send_signal(signal.SIGKILL)
                _gone(engines[victim])
                engines[victim] = begin()
            handles = [await client.get(ids.text(one.run_id)) for one in asked]
            ends = await asyncio.wait_for(asyncio.gather(*(h.result() for h in handles)), LIMIT_S)
    finally:
        for one_engine in engines:
            one_engine.kill()
            _gone(one_engine)
    done = [n for e in ends for n in e["done"]]
    late = [n for e in ends for n in e["late"]]
    again = [n for e in ends for n in e["again"]]
    executed = {int(line) for line in ledger.read_text().split()}
    assert sorted(done + late + again) == list(range(400)), "every task ended, once"
    assert not executed & set(late), "what never began was never executed"
    assert executed >= set(done)
    assert done and late, (
        f"both happened: {len(done)} done, {len(late)} late, {len(again)} lost and late: {os.getloadavg()}"
    )


def _gone(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _request(first: int) -> StartRequest:
    return StartRequest(workflow="kill_many", version="", input=json.dumps({"first": first, "count": 100}).encode())
