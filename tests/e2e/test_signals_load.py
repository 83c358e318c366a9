"""Many signals into one run and into many, while engines are killed: ordered per sender, none lost, none twice.

Engines are processes of their own and die by SIGKILL. The senders sit here, each sends one after the other under keys of its own, and repeats
what it got no answer for: their connections are cut now and then, so that there is something to repeat. The run checks what it hears.

PERDURE_SIGNALS_FULL=1 sends for longer and asks for nearly the whole rate; without it this is a few seconds of the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure import EngineSettings, Handle, Perdure, Signal, wf, workflow
from perdure.core.placement import Placement
from perdure.errors import Unavailable
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

FULL = bool(os.environ.get("PERDURE_SIGNALS_FULL"))
LEASE_S = 2.0
CONTINUE_AFTER = 4_000
"""Signals after which the run goes on as a new one, long before its history is full."""
SHARE_OF_RATE = 0.9 if FULL else 0.2
"""Of the rate that is asked for, how much the senders must reach; a machine that does other things as well is slow."""

hits = Signal("load_hit", tuple[int, int])
"""(sender, number)"""


@workflow(name="load_sink")
async def sink(wanted: int, seen: int = 0, last: dict[str, int] | None = None, wrong: int = 0) -> dict[str, int]:
    """Hears `wanted` signals. Each sender's must come as 0, 1, 2, ..."""
    heard = last or {}
    since = 0
    while seen < wanted:
        sender, number = await hits.next()
        wrong += heard.get(str(sender), -1) + 1 != number
        heard[str(sender)] = number
        seen += 1
        since += 1
        if since == CONTINUE_AFTER:
            wf.continue_as_new(wanted, seen, heard, wrong)
    return {"seen": seen, "wrong": wrong, "senders": len(heard)}


# -- an engine, as a process -----------------------------------------------------------------------------------------------


def settings(**more: Any) -> EngineSettings:
    return EngineSettings(lease_s=LEASE_S, heartbeat_s=LEASE_S / 4, placement=Placement(idle_s=5.0), **more)


async def serve(dsn: str) -> None:
    client = Perdure(dsn, settings=settings())
    assert client.worker is not None
    client.worker.adopt(sink)
    async with client:
        print("ready", flush=True)
        await asyncio.Event().wait()


class Engines:
    """Some engines; a killed one is replaced."""

    def __init__(self, dsn: str, directory: Path, count: int) -> None:
        self._dsn, self._directory = dsn, directory
        self.number = 0
        self.kills = 0
        self.alive = [self._launch() for _ in range(count)]

    def _launch(self) -> subprocess.Popen[bytes]:
        self.number += 1
        with (self._directory / f"engine-{self.number}.err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__)), self._dsn],
                stdout=subprocess.PIPE,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
            )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", (self._directory / f"engine-{self.number}.err").read_text()
        return process

    async def kill(self, pid: int) -> None:
        for i, process in enumerate(self.alive):
            if process.pid == pid:
                process.send_signal(signal.SIGKILL)
                process.wait(120)
                assert process.stdout is not None
                process.stdout.close()
                self.kills += 1
                self.alive[i] = await asyncio.to_thread(self._launch)
                return
        raise AssertionError(f"no engine {pid}")

    def end(self) -> None:
        for process in self.alive:
            process.kill()
            process.wait(120)
            assert process.stdout is not None
            process.stdout.close()


@contextmanager
def engines(dsn: str, directory: Path, count: int = 2) -> Iterator[Engines]:
    made = Engines(dsn, directory, count)
    try:
        yield made
    finally:
        made.end()


async def owner_of(sql: Any, workflow_name: str) -> int | None:
    """The process of the engine that has most of the runs."""
    name = await sql.fetchval(
        """select s.engine from perdure.run_queue q join perdure.engine_session s on s.id = q.owner
           where q.workflow = $1 group by s.engine order by count(*) desc limit 1""",
        workflow_name,
    )
    return int(name.rpartition(":")[2]) if name else None


async def living_owner_of(made: Engines, sql: Any) -> int:
    pid = await owner_of(sql, sink.name)
    return pid if pid is not None and pid in {p.pid for p in made.alive} else 0


# -- senders ---------------------------------------------------------------------------------------------------------------


class Senders:
    """Send at a rate, in order, until everything is acknowledged.

    The last signal of each waits for the last kill: a busy machine may kill late, and no run may have ended by then.
    """

    def __init__(self, rate: float, seconds: float, runs: list[str], senders_per_run: int) -> None:
        self.runs, self.per_run = runs, senders_per_run
        self.total_each = int(rate * seconds / len(runs) / senders_per_run)
        self.gap_s = len(runs) * senders_per_run / rate
        self.acknowledged = self.repeated = self.known = 0
        self.elapsed_s = 0.0
        """Until all but the last signals were acknowledged."""
        self.killed = asyncio.Event()

    @property
    def per_target(self) -> int:
        return self.total_each * self.per_run

    async def go(self) -> None:
        began = time.monotonic()
        await asyncio.gather(
            *(self._one(run, s, began) for run in self.runs for s in range(self.per_run)),
        )

    async def _one(self, run: str, sender: int, began: float) -> None:
        # Spread over the gap, so that they do not all send at one moment.
        at = began + self.gap_s * ((hash(run) + sender * 7919) % 1_000) / 1_000
        for number in range(self.total_each):
            if (pause := at + number * self.gap_s - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            if number == self.total_each - 1:
                self.elapsed_s = time.monotonic() - began
                await self.killed.wait()
            while True:
                try:
                    self.known += not await hits.send(run, (sender, number), key=f"{sender}-{number}")
                    break
                except Unavailable:
                    self.repeated += 1
                    await asyncio.sleep(0.05)
            self.acknowledged += 1

    @property
    def rate(self) -> float:
        return (self.acknowledged - len(self.runs) * self.per_run) / self.elapsed_s


async def trouble(made: Engines, sql: Any, senders: Senders, kills_at: list[float], cuts_at: list[float]) -> int:
    """Engines die, and the senders' connection is cut. Times are from now. Answers how often it was cut while it was posting."""
    began = time.monotonic()
    cut = 0
    for at, act in sorted([(t, "kill") for t in kills_at] + [(t, "cut") for t in cuts_at]):
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        if act == "kill":
            await made.kill(await until(lambda: living_owner_of(made, sql)))
            if made.kills == len(kills_at):
                senders.killed.set()
        else:
            cut += await cut_off(sql)
    return cut


async def cut_off(sql: Any) -> bool:
    """In the middle of a statement that posts, if one is met: then its answer is lost."""
    for _ in range(300):
        met = await sql.fetch(
            """select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and pid <> pg_backend_pid() and state = 'active' and query like '-- Many at once%'"""
        )
        if met:
            return True
        await asyncio.sleep(0.002)
    return False


async def load(
    dsn: str, directory: Path, *, rate: float, seconds: float, runs: int, senders_per_run: int, kills_at: list[float]
) -> tuple[Senders, float, int]:
    """The senders, the seconds after the last acknowledgement in which everything was heard, and the kills."""
    sql = await asyncpg.connect(dsn)
    try:
        with engines(dsn, directory) as made:
            async with Perdure(dsn, worker=False, settings=settings()) as client:
                wanted = int(rate * seconds / runs / senders_per_run) * senders_per_run
                handles: list[Handle[dict[str, int]]] = await asyncio.gather(*(sink.start(wanted) for _ in range(runs)))
                senders = Senders(rate, seconds, [h.id for h in handles], senders_per_run)
                assert senders.per_target == wanted
                cuts = [seconds * share for share in (0.3, 0.6, 0.8)]
                troubles = asyncio.create_task(trouble(made, sql, senders, kills_at, cuts))
                cut, _ = await asyncio.gather(troubles, senders.go())
                ended = time.monotonic()
                results = await asyncio.gather(*(h.result("3m") for h in handles))
                drained_s = time.monotonic() - ended
                assert client.engine.inbox.is_idle
            assert senders.repeated or cut < 2  # one may have hit a statement that was over
            assert results == [{"seen": wanted, "wrong": 0, "senders": senders_per_run}] * runs
            return senders, drained_s, made.kills
    finally:
        await sql.close()


def report(name: str, senders: Senders, drained_s: float, kills: int) -> None:
    print(
        f"\n{name}: {senders.acknowledged:,} signals acknowledged at {senders.rate:,.0f}/s, all heard {drained_s:.1f} s later; "
        f"{kills} engines killed, {senders.repeated} sends repeated, {senders.known} of them had arrived"
    )


@pytest.mark.parametrize(
    ("name", "rate", "runs", "senders_per_run", "short_s", "full_s"),
    [("one run", 1_000.0, 1, 40, 4.0, 20.0), ("many runs", 5_000.0, 500, 1, 3.0, 12.0)],
    ids=["one", "many"],
)
async def test_signals_are_ordered_per_sender_and_none_is_lost_across_kills(
    dsn: str,
    open_directory: Callable[[], Path],
    name: str,
    rate: float,
    runs: int,
    senders_per_run: int,
    short_s: float,
    full_s: float,
) -> None:
    seconds = full_s if FULL else short_s
    kills = [seconds * share for share in ((0.25, 0.6) if FULL else (0.4,))]
    senders, drained_s, killed = await load(
        dsn, open_directory(), rate=rate, seconds=seconds, runs=runs, senders_per_run=senders_per_run, kills_at=kills
    )
    report(name, senders, drained_s, killed)
    assert senders.acknowledged == runs * senders.per_target
    assert killed == len(kills)
    assert senders.rate >= SHARE_OF_RATE * rate


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("asyncpg").setLevel(logging.ERROR)
    asyncio.run(serve(sys.argv[1]))
