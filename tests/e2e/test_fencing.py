"""An engine that is silent for too long is taken for dead. When it wakes up its writes are refused; it forgets everything and rejoins."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from harness.fleet import Fleet, at_rest, count, describe_active, violated

from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

LEASE_S = 2.0
RUNS = 500
PAUSES = 2


@pytest.mark.keep
async def test_a_paused_engine_cannot_overwrite_what_others_did_meanwhile(dsn: str, tmp_path: Path) -> None:
    with Fleet(tmp_path, dsn) as fleet:
        sleeper = fleet.launch(target=RUNS, lease=LEASE_S, pause=1.2)
        other = fleet.launch(target=RUNS, lease=LEASE_S, pause=1.2)
        await until(lambda: sleeper.counters and other.counters, "both are up", 20)
        for _ in range(PAUSES):
            await until(lambda: sleeper.counters.get("runs", 0) > 5, "the engine to be paused holds runs", 20)
            sleeper.send(signal.SIGSTOP)
            commits, fenced = sleeper.counters["commits"], sleeper.counters["sessions_fenced"]
            reaped = other.counters["sessions_reaped"]
            # A pause amid a transaction holds the fence until PostgreSQL ends that transaction (10 s): only then it can be reaped.
            await until(lambda r=reaped: other.counters["sessions_reaped"] > r, "the other one has taken over", 80)
            sleeper.send(signal.SIGCONT)
            await until(lambda f=fenced: sleeper.counters["sessions_fenced"] > f, "its late write was refused", 20)
            await until(lambda c=commits: sleeper.counters["commits"] > c + 3, "it has rejoined and works", 30)
        await until(lambda: fleet.acknowledged >= RUNS, "every run was started", 60)
        await at_rest(dsn, 60)
        tallies = fleet.verify()
        assert not violated(tallies), f"{violated(tallies)}\n{fleet.errors()}"
        left = await count(dsn, "select count(*) from perdure.run_queue")
        assert left == 0, f"{await describe_active(dsn)}\n{fleet.errors()}"
        assert other.counters["sessions_reaped"] >= PAUSES
        assert sleeper.counters["sessions_fenced"] >= PAUSES
        assert sleeper.counters["records_refused"] == other.counters["records_refused"] == 0, fleet.errors()
        assert sleeper.stop() == other.stop() == 0
