"""Operators terminate, pause, resume and cancel runs at random moments while engines are killed: every run ends, nothing is doubled."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest
from harness.fleet import EngineProcess, Fleet, at_rest, count, describe_active, violated

from perdure import Perdure
from perdure.errors import Conflict, NotFound, Unavailable
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

LEASE_S = 1.5
RUNS = 400
KILLS = 4
OPERATE_S_MAX = 240
ACTS = ("terminate", "terminate", "pause", "resume", "cancel")


async def test_acts_of_operators_survive_kills(dsn: str, tmp_path: Path) -> None:
    with Fleet(tmp_path, dsn) as fleet:
        enough = tmp_path / "enough"

        def launch(seed: int) -> EngineProcess:
            return fleet.launch(until=enough, lease=LEASE_S, pause=1.0, seed=seed)

        engines = [launch(n + 1) for n in range(2)]
        await until(lambda: fleet.acknowledged >= 20, "runs were started", 60)
        async with Perdure(dsn, worker=False) as client:
            async with asyncio.timeout(OPERATE_S_MAX):
                done = await _operate(client, dsn, fleet, engines, launch, random.Random(7))
            enough.touch()
            await until(
                lambda: all(not e.counters.get("starting", True) for e in engines), "no more runs are started", 60
            )
            await _resume_until_at_rest(client, dsn)
        await at_rest(dsn, 60)
        tallies = fleet.verify()
        assert not violated(tallies), f"{violated(tallies)}\n{fleet.errors()}"
        assert await count(dsn, "select count(*) from perdure.run where error_code = 'run_terminated'") >= 20, done
        assert done["terminate"] >= 20 and done["pause"] >= 10 and done["resume"] >= 5, done


async def _operate(
    client: Perdure,
    dsn: str,
    fleet: Fleet,
    engines: list[EngineProcess],
    launch: Callable[[int], EngineProcess],
    randomness: random.Random,
) -> Counter[str]:
    """Acts at random, while engines start runs, until enough was done; an acknowledged one has had its effect."""
    done: Counter[str] = Counter()
    kills = 0
    while fleet.acknowledged < RUNS or done["terminate"] < 20 or done["pause"] < 10 or done["resume"] < 5:
        targets = await _active(dsn)
        randomness.shuffle(targets)
        acts = [(randomness.choice(ACTS), run_id) for run_id in targets[:8]]
        outcomes = await asyncio.gather(*(_act(client, act, run_id) for act, run_id in acts))
        done.update(act for (act, _), outcome in zip(acts, outcomes, strict=True) if outcome)
        if kills < KILLS and fleet.acknowledged > RUNS * (kills + 1) / (KILLS + 1):
            victim = kills % len(engines)
            engines[victim].kill()
            engines[victim] = launch(100 + kills)
            kills += 1
    assert kills == KILLS
    return done


async def _act(client: Perdure, act: str, run_id: str) -> bool:
    handle = await client.get(run_id)
    try:
        await getattr(handle, act)()
    except (Conflict, NotFound, Unavailable):
        return False  # it has ended, is not paused, or its engine was killed; the request stands
    if act == "terminate":
        assert (await handle.describe()).finished_us is not None
    return True


async def _active(dsn: str, which: str = "") -> list[str]:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return [str(r["run_id"]) for r in await connection.fetch(f"select run_id from perdure.run_queue {which}")]
    finally:
        await connection.close()


async def _resume_until_at_rest(client: Perdure, dsn: str) -> None:
    """Requests to pause may still be on their way to the engines that own the runs."""

    async def nothing_is_active() -> bool:
        for run_id in await _active(dsn, "where halted"):
            await _act(client, "resume", run_id)
        return not await _active(dsn)

    with contextlib.suppress(AssertionError):
        await until(nothing_is_active, within_s=120)
    left = await _active(dsn)
    assert not left, await describe_active(dsn)
