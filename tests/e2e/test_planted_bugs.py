"""The verifier has teeth: with a law of the engine taken out in the harness, the same kind of test must fail, and say where."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from harness.fleet import Fleet, at_rest, violated

from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

LEASE_S = 2.0
RUNS = 60


async def test_without_the_fence_a_paused_engine_writes_over_its_successor_and_the_verifier_says_so(
    dsn: str, tmp_path: Path
) -> None:
    """Where exactly the pause hits is chance: one that falls between two commits harms nobody. So there are a few."""
    found: dict[int, Any] = {}
    for number in range(4):
        found = await _pause_without_fence(dsn, tmp_path / str(number))
        if {4, 9, 10, 17} & found.keys():
            return
    pytest.fail(f"the verifier has noticed nothing: {found}")


async def _pause_without_fence(dsn: str, directory: Path) -> dict[int, Any]:
    """A stale epoch behind a newer one, an end that the run row knows nothing of, or a task executed after it was recorded; 17 as well:
    a commit number of a session that is gone is a write that the fence would have refused."""
    with Fleet(directory, dsn) as fleet:
        sleeper = fleet.launch(target=RUNS, lease=LEASE_S, shapes="0,1,6", bug="no_fence")
        await until(lambda: sleeper.counters.get("runs", 0) > 10, "it holds runs", 20)
        sleeper.send(signal.SIGSTOP)
        other = fleet.launch(lease=LEASE_S)
        await until(lambda: other.counters.get("runs_claimed", 0) > 0, "the other one has taken over", 20)
        sleeper.send(signal.SIGCONT)
        await at_rest(dsn, 20)
        found = violated(fleet.verify())
        print({number: examples[0] for number, examples in found.items()})
        return found


async def test_results_applied_before_they_are_durable_are_noticed(dsn: str, tmp_path: Path) -> None:
    with Fleet(tmp_path, dsn) as fleet:
        for seed in range(4):
            hasty = fleet.launch(
                target=RUNS * (seed + 1), lease=LEASE_S, shapes="0,1", seed=seed, bug="applied_before_commit", pause=0.2
            )
            await until(lambda e=hasty: e.counters.get("commits", 0) > 10, "it works", 20)
            hasty.kill()
        fleet.launch(lease=LEASE_S)
        await at_rest(dsn, 30)
        found = violated(fleet.verify())
        print({number: examples[0] for number, examples in found.items()})
        # Tasks ran on results that were lost with the engine and came into being again later.
        assert 11 in found, found
