"""Failed runs are retried while engines are killed: every one ends well, nothing that had succeeded is executed again."""

from __future__ import annotations

import random
from pathlib import Path

import asyncpg
import pytest
from harness.fleet import Fleet, at_rest, count, describe_active, violated

from perdure import Perdure
from perdure.errors import Conflict
from tests.fakes.waiting import until
from tests.store.counted import differences

pytestmark = pytest.mark.usefixtures("processes")

LEASE_S = 1.5
RUNS = 60
DOOMED = 9


async def test_retries_survive_kills(dsn: str, tmp_path: Path) -> None:
    with Fleet(tmp_path, dsn) as fleet:
        victim = fleet.launch(target=RUNS, lease=LEASE_S, shapes=DOOMED)
        fleet.launch(target=RUNS, lease=LEASE_S, shapes=DOOMED)
        await until(lambda: fleet.acknowledged >= RUNS, "every run was started", 60)
        await at_rest(dsn, 60)
        failed = await _failed(dsn)
        assert len(failed) >= RUNS
        assert await count(dsn, "select count(*) from perdure.run where status <> 'failed'") == 0
        # While the gate is closed a retry comes to nothing, again and again.
        async with Perdure(dsn, worker=False) as client:
            for run_id in failed[::3]:
                await _retry(client, run_id)
            await at_rest(dsn, 60)
            (fleet.ledger.parent / f"{fleet.ledger.name}.open").touch()
            randomness = random.Random(1)
            failed = await _failed(dsn)
            randomness.shuffle(failed)
            for n, run_id in enumerate(failed):
                await _retry(client, run_id)
                if n in (len(failed) // 3, 2 * len(failed) // 3):
                    victim.kill()
                    victim = fleet.launch(lease=LEASE_S)
            # Whichever failed only after its parent was retried, or with a child that was being stopped.
            for _ in range(5):
                await at_rest(dsn, 60)
                for run_id in await _failed(dsn):
                    await _retry(client, run_id)
            await at_rest(dsn, 60)
        tallies = fleet.verify()
        assert not violated(tallies), f"{violated(tallies)}\n{fleet.errors()}"
        assert tallies[10]["examined"] and tallies[11]["examined"]
        left = await count(dsn, "select count(*) from perdure.run_queue")
        assert left == 0, f"{await describe_active(dsn)}\n{fleet.errors()}"
        assert await count(dsn, "select count(*) from perdure.run where status <> 'success'") == 0
        # Each of them failed before, some several times: the counters took that back, in spite of the kills.
        assert await differences(dsn) == []
        assert await count(dsn, "select sum(success)::bigint from perdure.run_count where workflow = ''") >= RUNS
        assert await count(dsn, "select sum(failed)::bigint from perdure.run_count") == 0


async def _failed(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return [
            str(r["run_id"]) for r in await connection.fetch("select run_id from perdure.run where status = 'failed'")
        ]
    finally:
        await connection.close()


async def _retry(client: Perdure, run_id: str) -> None:
    try:
        await (await client.get(run_id)).retry()
    except Conflict:
        pass  # with its parent, which was first
