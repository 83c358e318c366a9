"""A spread of 100,000: never more in flight than allowed, each item once, in bounded memory; and a smaller one whose engines are killed.

Engines and workers are processes of their own (this file, run as a program), so that their memory is theirs alone and a kill is a kill.
Tasks write what they did to a ledger; `perdure verify` compares it with the database, and the sweeps here count what was in flight.
In continuous integration there are 20,000 items; PERDURE_BIG_FOREACH says how many instead.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from perdure import EngineSettings, Perdure, flow, task
from perdure.core import events as ev
from perdure.core.limits import HISTORY_EVENTS_MAX
from perdure.programs.verify_ledger import read_ledger, sorted_ledger
from perdure.store.verify import verify
from perdure.testing.ledger import Ledger
from perdure.wire.codec import decode_events
from tests.fakes.waiting import busy, until

pytestmark = pytest.mark.usefixtures("processes")

ITEMS = int(os.environ.get("PERDURE_BIG_FOREACH", "20000"))
AT_A_TIME = 200
SLOTS = 400
"""More than may be in flight: it must be the flow that holds tasks back, not the worker."""
PEAK_MB_MAX = 200
"""Peak resident memory of the process that holds engine and worker; 70 MB were measured for 100,000 items, 49 of them before the start."""
SECONDS_MAX = 600.0
LEASE_S = 1.5
ROOT = Path(__file__).parents[2]
LEDGER = "PERDURE_TEST_LEDGER"

DOCUMENT = """
flow: bigforeach
input: {items: {type: integer}, at_a_time: {type: integer}, busy_ms: {type: number}}
tasks:
  work:
    python: bigforeach_work
    foreach: range(input.items)
    concurrency: input.at_a_time
    retry: 1
    with: {item: "${ item }", busy_ms: "${ input.busy_ms }"}
output: {count: "${ size(work) }", sum: "${ sum(work) }", last: "${ last(work) }"}
"""


class Unsynced(Ledger):
    """These lines have to survive a process, not the machine."""

    def _append(self, line: bytes) -> None:
        os.write(self._file, line + b"\n")


ledger: Unsynced


@task(name="bigforeach_work")
async def work(item: int, busy_ms: float) -> int:
    with ledger.execution() as line:
        await busy(busy_ms / 1000)
        line.effect()
    return item


# -- the process -------------------------------------------------------------------------------------------------------


async def serve(dsn: str, items: int, at_a_time: int, busy_ms: float) -> None:
    """Start a run if there are items, serve until it has ended or for ever, and tell how it went."""
    global ledger
    ledger = Unsynced(os.environ[LEDGER])
    settings = EngineSettings(lease_s=LEASE_S, heartbeat_s=LEASE_S / 4)
    async with Perdure(dsn, settings=settings, slots=SLOTS) as client:
        if not items:
            await asyncio.Event().wait()
        await client.deploy(DOCUMENT)
        before, began = resident_mb("VmRSS"), time.monotonic()
        handle = await flow("bigforeach").start(items=items, at_a_time=at_a_time, busy_ms=busy_ms)
        say(run=handle.id)
        result = await handle.result()
        say(result=result, seconds=time.monotonic() - began, before_mb=before, peak_mb=resident_mb("VmHWM"))


def say(**told: Any) -> None:
    print(msgspec.json.encode(told).decode(), flush=True)


def resident_mb(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


class Process:
    """One such process. Leaving the `with` ends it."""

    def __init__(self, dsn: str, directory: Path, items: int = 0, at_a_time: int = 0, busy_ms: float = 0.0) -> None:
        number = len(list(directory.glob("*.out")))
        self.out, self.err = directory / f"{number}.out", directory / f"{number}.err"
        command = [sys.executable, "-m", "tests.flows.test_big_foreach", dsn, str(items), str(at_a_time), str(busy_ms)]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env={**os.environ, LEDGER: str(directory / "ledger.jsonl")},
            )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(120)

    async def until(self, what: str, true: Callable[[], Any], seconds: float = SECONDS_MAX) -> None:
        def is_true() -> Any:
            found = true()
            assert found or self.process.poll() in (None, 0), self.err.read_text()[-3000:]
            return found

        await until(is_true, what, seconds)

    @property
    def told(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for line in self.out.read_bytes().split(b"\n")[:-1]:
            out |= msgspec.json.decode(line)
        return out


# -- looking at it -----------------------------------------------------------------------------------------------------


async def history_of(dsn: str) -> list[ev.Event]:
    """The events of the only run there is."""
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch("select body from perdure.history order by run_id, seq")
        return [event for row in rows for event in decode_events(row["body"])]
    finally:
        await connection.close()


def most_scheduled(history: Iterable[ev.Event]) -> int:
    """How many tasks were scheduled and not ended, at most: exact, because the history is all that counts."""
    open_: set[int] = set()
    most = 0
    for event in history:
        match event:
            case ev.TasksScheduled():
                new = range(event.first, event.first + len(event.inputs))
                assert open_.isdisjoint(new)
                open_.update(new)
            case ev.TasksSucceeded() | ev.TasksCancelled():
                open_.difference_update(event.seqs)
            case ev.TaskFailed():
                open_.discard(event.seq)
            case _:
                pass
        most = max(most, len(open_))
    assert not open_
    return most


def most_in_flight(path: Path) -> int:
    """How many executions were between their begin and their end, at most. One process wrote the lines, in order."""
    now = most = before_us = 0
    for line in read_ledger(path):
        assert line.mono_us >= before_us
        before_us = line.mono_us
        now += (line.phase == "begin") - (line.phase == "end")
        most = max(most, now)
    assert now == 0
    return most


def executions(path: Path, phase: str) -> Counter[str]:
    return Counter(line.task for line in read_ledger(path) if line.phase == phase)


async def assert_verified(dsn: str, path: Path) -> None:
    with sorted_ledger(path) as lines:
        tallies = await verify(dsn, ledger=lines, names=frozenset({work.name}), at_rest=True)
    assert not {t.number: t.examples for t in tallies if t.violations}
    assert all(t.examined for t in tallies if t.number in (3, 4, 7, 8, 10))


async def rows_of(dsn: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        rows: list[asyncpg.Record] = await connection.fetch("select node, status, attempts, lost from perdure.task")
        return rows
    finally:
        await connection.close()


# -- the tests ---------------------------------------------------------------------------------------------------------


async def test_a_big_spread_keeps_its_bound_and_runs_every_item_once(dsn: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Process(dsn, tmp_path, ITEMS, AT_A_TIME, busy_ms=2.0) as process:
        await process.until("the run ended", lambda: "result" in process.told or process.process.poll() is not None)
        await process.until("the engine left", lambda: process.process.poll() is not None, 30)
        told = process.told
    assert told["result"] == {"count": ITEMS, "sum": ITEMS * (ITEMS - 1) // 2, "last": ITEMS - 1}
    history = await history_of(dsn)
    scheduled, in_flight = most_scheduled(history), most_in_flight(path)
    print(
        f"{ITEMS:,} items in {told['seconds']:.1f} s, {ITEMS / told['seconds']:,.0f} a second; resident {told['before_mb']:.0f} MB before, "
        f"{told['peak_mb']:.0f} MB at most; {len(history):,} events; {scheduled} scheduled and {in_flight} in flight at most"
    )
    assert in_flight <= scheduled <= AT_A_TIME
    assert in_flight > AT_A_TIME // 2, "too few at once for the bound to mean anything"
    for phase in ("begin", "effect", "end"):
        ran = executions(path, phase)
        assert len(ran) == ITEMS and set(ran.values()) == {1}
    rows = await rows_of(dsn)
    assert {r["node"] for r in rows} == {f"work[{i}]" for i in range(ITEMS)}
    assert {(r["status"], r["attempts"], r["lost"]) for r in rows} == {("success", 1, 0)}
    assert len(history) < HISTORY_EVENTS_MAX
    assert told["peak_mb"] < PEAK_MB_MAX
    await assert_verified(dsn, path)


async def test_a_spread_whose_engines_are_killed_keeps_its_bound_and_completes(dsn: str, tmp_path: Path) -> None:
    items, at_a_time = 2_000, 20
    path = tmp_path / "ledger.jsonl"
    path.touch()

    def done() -> int:
        return path.read_bytes().count(b'"phase":"effect"')

    kills = (items // 3, 2 * items // 3)
    first = Process(dsn, tmp_path, items, at_a_time, busy_ms=5.0)
    with first:
        await first.until("a third was done", lambda: done() >= kills[0])
        first.kill()
    assert "result" not in first.told
    with Process(dsn, tmp_path) as second:
        await second.until("two thirds were done", lambda: done() >= kills[1])
        second.kill()
    with Process(dsn, tmp_path) as third:
        async with Perdure(dsn, worker=False) as client:
            result = await (await client.get(first.told["run"], workflow=flow("bigforeach"))).result("3m")
        third.kill()
    assert result == {"count": items, "sum": items * (items - 1) // 2, "last": items - 1}
    assert most_scheduled(await history_of(dsn)) <= at_a_time
    began = executions(path, "begin")
    assert len(began) == items
    again = sum(began.values()) - items
    print(f"{again} executions more than items")
    assert again <= len(kills) * at_a_time, "only what was in flight when an engine was killed runs again"
    await assert_verified(dsn, path)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
