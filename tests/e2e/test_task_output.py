"""What running tasks say: lines, heartbeats with details, and a blocked event loop; and tasks in processes of their own."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from perdure import Perdure, Retry, attempt, task, wf, workflow
from perdure.core.work import Beat, LogChunk
from perdure.errors import TaskFailed, TaskTimeout
from perdure.sdk.definitions import Task, Workflow
from tests.fakes.waiting import busy, busy_thread, forever_thread, until

LIMIT = "60s"
calls: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def clean_slate() -> None:
    calls.clear()


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[Perdure]:
    one = Perdure(dsn, processes=2)
    assert one.worker is not None
    for definition in DEFINITIONS:
        one.worker.adopt(definition)
    async with one:
        yield one


def watch_output(client: Perdure) -> list[LogChunk]:
    """Every chunk that the worker hands over."""
    chunks: list[LogChunk] = []
    assert client.worker is not None and client.worker._tasks is not None
    sink = client.worker._tasks.sink
    assert sink is not None
    passed_on = sink._logged

    def logged(new: list[LogChunk]) -> None:
        chunks.extend(new)
        passed_on(new)

    sink._logged = logged
    return chunks


# -- a blocked event loop ---------------------------------------------------------------------------------------------


@task(heartbeat="500ms", retry=1)
async def hogs(seconds: float) -> str:
    calls["hogs"] += 1
    attempt().heartbeat()
    busy_thread(seconds)
    return "hogged"


@task(heartbeat="500ms", retry=1)
async def lively(seconds: float) -> str:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        await busy(0.1)
        attempt().heartbeat()
    return "lively"


@workflow
async def neighbours() -> list[str]:
    return list(await asyncio.gather(lively(5.0), hogs(4.0)))


async def test_a_task_that_blocks_the_loop_times_out_neither_itself_nor_its_neighbour(
    client: Perdure, caplog: pytest.LogCaptureFixture
) -> None:
    assert client.worker is not None and client.worker._tasks is not None
    watchdog = client.worker._tasks._watchdog
    passed_on, beats = watchdog._beats, list[tuple[int, str]]()

    def urgent(new: list[Beat]) -> None:
        passed_on(new)
        flights = client.engine.attempts.flights
        beats.extend((b.seq, flights[b.run_id, b.seq].blocked) for b in new if (b.run_id, b.seq) in flights)

    watchdog._beats = urgent
    assert await (await neighbours.start()).result(LIMIT) == ["lively", "hogged"]
    assert any(seq == 1 and "busy_thread(seconds)" in blocked for seq, blocked in beats)
    assert (0, "") in beats and not any(seq == 0 and blocked for seq, blocked in beats), "the neighbour is innocent"
    assert sum("event loop has been blocked" in r.getMessage() for r in caplog.records) == 1


# -- lines ------------------------------------------------------------------------------------------------------------

speaker = logging.getLogger("tests.speaker")


@task
async def speaks(n: int) -> int:
    print("printed", n)
    await busy(0.01)
    print("complained", n, file=sys.stderr)
    speaker.info("logged %d", n)
    print("unfinished", end="")
    return n


@task
def speaks_in_a_thread(n: int) -> int:
    print("printed in a thread", n)
    try:
        raise KeyError(n)
    except KeyError:
        speaker.exception("went wrong")
    return n


@workflow
async def conversation() -> int:
    print("the workflow begins")
    await asyncio.gather(*(speaks(n) for n in range(3)))
    await speaks_in_a_thread(7)
    speaker.warning("the workflow ends")
    return 1


async def test_lines_are_attributed_to_the_attempt_that_wrote_them(
    client: Perdure, capsys: pytest.CaptureFixture[str]
) -> None:
    chunks = watch_output(client)
    handle = await conversation.start()
    assert await handle.result(LIMIT) == 1
    await until(lambda: any(line.text == "the workflow ends" for c in chunks for line in c.lines))
    by_seq: dict[int, list[tuple[str, str, str]]] = {}
    for c in chunks:
        by_seq.setdefault(c.seq, []).extend((line.stream, line.level, line.text) for line in c.lines)
    for n in range(3):
        assert by_seq[n] == [
            ("stdout", "info", f"printed {n}"),
            ("stderr", "info", f"complained {n}"),
            ("log", "info", f"logged {n}"),
            ("stdout", "info", "unfinished"),
        ]
    printed, logged = by_seq[3]
    assert printed == ("stdout", "info", "printed in a thread 7")
    assert logged[:2] == ("log", "error") and "went wrong" in logged[2] and "KeyError: 7" in logged[2]
    assert by_seq[-1] == [("stdout", "info", "the workflow begins"), ("log", "warning", "the workflow ends")]
    numbers: dict[int, list[int]] = {}
    for c in chunks:
        numbers.setdefault(c.seq, []).append(c.n)
    assert all(n == list(range(len(n))) for seq, n in numbers.items() if seq >= 0)
    assert len(set(numbers[-1])) == len(numbers[-1])
    out, err = capsys.readouterr()
    assert "printed 2" in out and "complained 2" in err, "the real streams get everything as well"


# -- heartbeats -------------------------------------------------------------------------------------------------------


seen_by_the_engine = asyncio.Event()


@task(heartbeat="2s")
async def counts(n: int) -> int:
    for i in range(n):
        attempt().heartbeat({"done": i})
        await busy(0.01)
    await seen_by_the_engine.wait()
    return n


@workflow
async def counting(n: int) -> int:
    return await counts(n)


async def test_the_details_of_a_heartbeat_reach_the_engine_and_the_latest_win(client: Perdure) -> None:
    handle = await counting.start(40)
    seen: list[bytes] = []

    def latest() -> bool:
        seen.extend(f.details for f in client.engine.attempts.flights.values() if f.details)
        return bool(seen) and seen[-1] == b'{"done":39}'

    await until(latest)
    seen_by_the_engine.set()
    assert len(set(seen)) < 10, "a few beats per second are forwarded, not forty"
    assert await handle.result(LIMIT) == 40


# -- processes --------------------------------------------------------------------------------------------------------


@task(process=True)
def in_a_process(n: int) -> tuple[int, int]:
    print("printed in a process", n)
    speaker.warning("logged in a process")
    attempt().heartbeat({"at": n})
    return os.getpid(), n * 2


@task(process=True, retry=Retry(2, delay="10ms"))
def dies_at_first(how: str) -> str:
    if attempt().number == 1:
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), 11)
    return "survived"


@task(process=True, retry=1)
def always_dies() -> None:
    os.kill(os.getpid(), 11)


@task(process=True, retry=1)
def raises_in_a_process() -> None:
    raise LookupError("not here")


@task(process=True, timeout="2500ms", retry=1)
def runs_forever() -> None:
    forever_thread()


@workflow
async def uses_processes() -> list[tuple[int, int]]:
    return list(await wf.map(in_a_process, [1, 2, 3, 4]))


@workflow
async def survives() -> list[str]:
    out = [await dies_at_first("exit"), await dies_at_first("signal")]
    for step in (always_dies, raises_in_a_process):
        try:
            await step()
        except TaskFailed as e:
            out.append(str(e))
    return out


@workflow
async def times_out() -> str:
    try:
        await runs_forever()
    except TaskTimeout as e:
        return str(e)
    return "ended"


async def test_tasks_in_processes_return_their_results_and_are_heard(client: Perdure) -> None:
    chunks = watch_output(client)
    results = await (await uses_processes.start()).result(LIMIT)
    assert [r[1] for r in results] == [2, 4, 6, 8]
    pids = {r[0] for r in results}
    assert os.getpid() not in pids and len(pids) <= 2
    lines = {(c.seq, line.stream, line.level, line.text) for c in chunks for line in c.lines}
    for seq in range(4):
        assert (seq, "stdout", "info", f"printed in a process {seq + 1}") in lines
        assert (seq, "log", "warning", "logged in a process") in lines


async def test_a_child_that_dies_is_an_error_that_says_how_and_the_next_attempt_gets_a_new_one(client: Perdure) -> None:
    a, b, segfault, error = await (await survives.start()).result(LIMIT)
    assert (a, b) == ("survived", "survived")
    assert "the process that ran always_dies died: it was ended by SIGSEGV" in segfault
    assert error == "LookupError: not here"


async def test_a_process_that_takes_too_long_is_ended_and_its_slot_is_free_again(client: Perdure) -> None:
    assert "did not end within its timeout" in await (await times_out.start()).result(LIMIT)
    assert client.worker is not None
    worker = client.worker
    await until(lambda: worker.slots_free == worker.slots)
    assert len(await (await uses_processes.start()).result(LIMIT)) == 4


DEFINITIONS = [d for d in globals().values() if isinstance(d, Task | Workflow)]
