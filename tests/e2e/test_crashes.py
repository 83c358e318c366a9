"""Everything is killed at random, again and again; in the end every run has ended and the verifier finds nothing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.fleet import EngineProcess, Fleet, at_rest, count, describe_active, violated

from perdure.localpg.cluster import PrivateCluster
from perdure.localpg.postmaster import free_port
from perdure.store.migrate import migrate
from tests.fakes.waiting import until
from tests.store.counted import differences

RUNS = int(os.environ.get("PERDURE_CRASH_RUNS", "2000"))
SEED = int(os.environ.get("PERDURE_CRASH_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
LEASE_S = 2.5
ENGINES = 3
CHAOS_S_MIN = float(os.environ.get("PERDURE_CRASH_S", "60"))
"""Chaos lasts at least this long, and until every run was started."""
CHAOS_S_MAX = CHAOS_S_MIN + RUNS * 0.06
DATABASE_KILLS = 2
PAUSE_SHARE = 0.25
"""Of the engines that are hit, how many are only paused, for one to two and a half leases."""


@pytest.mark.keep
async def test_killing_engines_and_the_database_at_random_loses_and_doubles_nothing(
    durable_cluster: Callable[..., PrivateCluster], tmp_path: Path
) -> None:
    print(f"\nPERDURE_CRASH_SEED={SEED} PERDURE_CRASH_RUNS={RUNS}")
    cluster = durable_cluster(port=free_port())
    dsn = await asyncio.to_thread(cluster.start)
    await migrate(dsn)
    with Fleet(tmp_path, dsn) as fleet:
        faults = await _chaos(fleet, cluster, random.Random(SEED))
        await at_rest(dsn, 60)
        tallies = fleet.verify()
        counters = [e.counters for e in fleet.engines]
        print(f"{faults}, {fleet.acknowledged} starts acknowledged")
        print(
            {
                n: sum(c.get(n, 0) for c in counters)
                for n in ("sessions_fenced", "commits_unconfirmed", "tasks_lost", "sessions_reaped")
            }
        )
        print({t["number"]: t["examined"] for t in tallies.values()})
        assert not violated(tallies), f"{violated(tallies)}\n{fleet.errors()}"
        left = await count(dsn, "select count(*) from perdure.run_queue")
        assert left == 0, f"{await describe_active(dsn)}\n{fleet.errors()}"
        assert await differences(dsn) == [], "counters of ended runs are not those of the runs"
        # Each kind of fault has to have bitten, or the test has shown nothing.
        assert await count(dsn, "select count(*) from perdure.task where lost > 0") > 0
        assert await count(dsn, "select count(*) from perdure.run where epoch > 1") > 0
        assert sum(c.get("sessions_reaped", 0) for c in counters) > 0
        assert all(t["examined"] for n, t in tallies.items() if n not in (2, 13, 15, 17, 20, 23, 24, 26, 27)), tallies


async def _all_awake(engines: list[EngineProcess]) -> None:
    """A paused engine prints nothing. Six lines take a second, which is more than a heartbeat."""
    lines = [len(e.lines) for e in engines]
    await until(lambda: all(len(e.lines) > n + 5 for e, n in zip(engines, lines, strict=True)))


async def _chaos(fleet: Fleet, cluster: PrivateCluster, randomness: random.Random) -> dict[str, int]:
    """Kill and pause until everything was started and everybody was hit; then leave engines that live. Answers how often it did what."""

    def launch() -> EngineProcess:
        return fleet.launch(
            target=RUNS, lease=LEASE_S, seed=randomness.randrange(1 << 30), pause=CHAOS_S_MIN * 20 / RUNS
        )

    alive = [launch() for _ in range(ENGINES)]
    await until(lambda: all(e.counters for e in alive), "the engines are up", 30)
    began = time.monotonic()
    done = {"engine killed": 0, "engine paused": 0, "database killed": 0}
    while True:
        elapsed = time.monotonic() - began
        assert elapsed < CHAOS_S_MAX, f"{fleet.acknowledged} of {RUNS} starts in {elapsed:.0f} s\n{fleet.errors()}"
        # An engine that starts while the database is away says so and exits; that is for its supervisor to repeat.
        for n, engine in enumerate(alive):
            if engine.process.poll() is not None:
                assert "errors.Unavailable" in engine.err.read_text(), fleet.errors()
                alive[n] = launch()
        if elapsed > CHAOS_S_MIN and fleet.acknowledged >= RUNS and done["database killed"] >= DATABASE_KILLS:
            await _all_awake(alive)
            return done
        await asyncio.sleep(randomness.uniform(1.0, 3.0))
        victim = randomness.randrange(ENGINES)
        if done["database killed"] < DATABASE_KILLS and elapsed > CHAOS_S_MIN * (done["database killed"] + 1) / (
            DATABASE_KILLS + 1
        ):
            done["database killed"] += 1
            await asyncio.to_thread(cluster.kill)
            await asyncio.sleep(randomness.uniform(0.0, 1.5 * LEASE_S))
            await asyncio.to_thread(cluster.start)
        elif randomness.random() < PAUSE_SHARE:
            done["engine paused"] += 1
            alive[victim].send(signal.SIGSTOP)
            asyncio.get_running_loop().call_later(
                randomness.uniform(1.0, 2.5) * LEASE_S, alive[victim].send, signal.SIGCONT
            )
        else:
            done["engine killed"] += 1
            alive[victim].kill()
            alive[victim] = launch()
