"""Commits whose answer is lost, and commits that never arrive: neither may lose or double anything."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from harness.fleet import Fleet, at_rest, count, describe_active, violated
from harness.proxy import Proxy, chances

from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

RUNS = 200
SHARE = 0.25
SEED = 20_311


@pytest.mark.keep
async def test_a_commit_whose_answer_is_lost_is_neither_repeated_nor_forgotten(dsn: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, dsn)
    randomness = random.Random(SEED)
    calm = False
    async with Proxy(dsn, chances(randomness, SHARE, lambda: calm)) as proxy:
        with fleet:
            engines = [fleet.launch(dsn=proxy.dsn, target=RUNS, lease=4.0, pause=0.5) for _ in range(2)]
            await until(lambda: fleet.acknowledged >= RUNS, "every run was started", 90)
            await at_rest(dsn, 30)
            calm = True
            await at_rest(dsn, 20)
            tallies = fleet.verify()
            assert not violated(tallies), f"{violated(tallies)}\n{fleet.errors()}"
            left = await count(dsn, "select count(*) from perdure.run_queue")
            assert left == 0, f"{await describe_active(dsn)}\n{fleet.errors()}"
            faults = [line for line in fleet.errors().splitlines() if " ERROR " in line]
            assert not faults, faults
            print(f"\n{proxy.commits} commits, lost {proxy.lost}", [e.counters["commits_unconfirmed"] for e in engines])
            assert min(proxy.lost.values()) > 10, proxy.lost
            assert sum(e.counters["commits_unconfirmed"] for e in engines) > 0
            assert sum(e.counters["records_refused"] for e in engines) == 0, fleet.errors()
            assert not [x for e in engines for x in e.lines if "start_failed" in x]
            # In threads, because they say good-bye through the proxy, which lives on this loop.
            assert await asyncio.gather(*(asyncio.to_thread(e.stop) for e in engines)) == [0, 0]
