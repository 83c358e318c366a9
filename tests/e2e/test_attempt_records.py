"""A thousand runs with retries on three worker processes, one of which is killed: the records of attempts equal the ledger's."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from harness.fleet import at_rest, count, violated
from harness.servers import Servers, drained

from perdure import Client
from perdure.localpg.cluster import PrivateCluster
from perdure.programs.verify_ledger import read_ledger
from perdure.store.migrate import migrate
from perdure.testing.ledger import Starts
from tests.fakes.waiting import until

RUNS, WORKERS, SLOTS = 1_000, 3, 10


async def test_records_of_attempts_equal_the_ledger(
    durable_cluster: Callable[..., PrivateCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = await asyncio.to_thread(durable_cluster().start)
    await migrate(dsn)
    with Servers(tmp_path, dsn, 1, lease_s=5.0) as fleet:
        monkeypatch.setenv("PERDURE_TEST_LEDGER", str(fleet.ledger))
        server = fleet.server(0)
        await until(lambda: fleet.is_up(server, "ready"), "the server is up", 40)
        workers = [fleet.worker(fleet.addresses, SLOTS, "harness.retried") for _ in range(WORKERS)]
        await until(lambda: all(fleet.is_up(w, "connected") for w in workers), "the workers are up", 40)
        starting = asyncio.create_task(_start(fleet))
        await until(lambda: _ended(dsn, RUNS // 4), "some runs have ended", 120)
        await until(lambda: _halted_at_work(fleet, workers[0]), "the worker is halted in the middle of a task", 60)
        workers[0].kill()
        await starting
        await at_rest(dsn, 120)
        tallies = fleet.verify()
        assert not violated(tallies), f"{violated(tallies)}\n{fleet.errors()}"
        assert tallies[25]["examined"] >= 2 * RUNS
        records = await _records(dsn)
        _compare(records, fleet, workers[0].process.pid)
        for last in [*workers[1:], server]:
            last.send(signal.SIGCONT)
            assert await asyncio.to_thread(drained, last) == 0, last.err.read_text()[-3000:]


def _halted_at_work(fleet: Servers, worker: Any) -> bool:
    """The process is stopped; if it has no task at hand, it goes on."""
    worker.send(signal.SIGSTOP)
    lines = [x for x in read_ledger(fleet.ledger) if x.worker.endswith(f":{worker.process.pid}")]
    begun, ended = ({(x.task, x.attempt) for x in lines if x.phase == phase} for phase in ("begin", "end"))
    if begun - ended:
        return True
    worker.send(signal.SIGCONT)
    return False


async def _start(fleet: Servers) -> None:
    sys.modules.pop("harness.retried", None)
    from harness.retried import retried

    starts = Starts(str(fleet.starts))
    async with Client(fleet.addresses[0]):
        for first in range(0, RUNS, 50):
            handles = await asyncio.gather(*(retried.start(n) for n in range(first, first + 50)))
            for handle in handles:
                starts.acknowledged(handle.id)


async def _ended(dsn: str, runs: int) -> bool:
    return await count(dsn, "select count(*) from perdure.run") >= runs


async def _records(dsn: str) -> dict[tuple[str, int], Any]:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        rows = await connection.fetch("select * from perdure.attempt")
    finally:
        await connection.close()
    found = {(str(r["id"]), r["attempt"]): r for r in rows}
    assert len(found) == len(rows), "an attempt has two records"
    return found


def _compare(records: dict[tuple[str, int], Any], fleet: Servers, killed: int) -> None:
    lines = list(read_ledger(fleet.ledger))
    begun = {(x.task, x.attempt): x for x in lines if x.phase == "begin"}
    ended = {(x.task, x.attempt): x for x in lines if x.phase == "end"}
    assert len(begun) == sum(x.phase == "begin" for x in lines)
    assert begun.keys() <= records.keys()
    # The killed worker may have had attempts that it had not begun; on a machine that is very busy the others lose their stream as well.
    unbegun = [records[key] for key in records.keys() - begun.keys()]
    assert all(r["outcome"] == "lost" for r in unbegun) and len(unbegun) <= WORKERS * SLOTS
    lost = 0
    for key, line in begun.items():
        record, end = records[key], ended.get(key)
        pid = int(line.worker.rpartition(":")[2])
        assert record["worker"] is not None and str(pid) in record["worker"]
        if record["outcome"] == "lost":
            lost += 1
            assert pid == killed and record["error_code"] == "task_lost" and record["cpu_us"] is None
            continue
        assert end is not None
        assert record["outcome"] == ("error" if end.failed else "success")
        assert record["wall"].total_seconds() >= (end.mono_us - line.mono_us) / 1e6 - 0.05
        assert record["cpu_us"] is not None and record["cpu_us"] >= 0
        if end.failed:
            kind = "ConnectionError" if line.name.endswith("later") else "LookupError"
            assert record["error_type"] == kind and "retried.py" in record["traceback"]
    assert lost, "the worker had nothing when it was killed"
    # What each run asked for: attempts that failed, and one that succeeded.
    failed = sum(r["outcome"] == "error" for r in records.values())
    assert failed + lost + len(unbegun) >= sum(n % 3 + n % 2 for n in range(RUNS))
    assert sum(r["outcome"] == "success" for r in records.values()) == 2 * RUNS
