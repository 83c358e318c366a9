"""Engines that fire schedules are killed at random: one run per nominal time, none lost, none twice."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import asyncpg
import pytest
from harness.fleet import EngineProcess, Fleet, at_rest, describe_active, violated

from perdure.core import events as ev
from perdure.core.api.schedules import ScheduleRequest
from perdure.core.durations import datetime_of
from perdure.core.schedules import between, parse_spec
from perdure.store.schedules import PostgresSchedules
from perdure.wire.codec import decode_events
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

SEED = int(os.environ.get("PERDURE_CRASH_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
SECONDS = int(os.environ.get("PERDURE_SCHEDULE_SECONDS", "20"))
ENGINES = 4
LEASE_S = 2.0
SCHEDULES = 20
KILL_EVERY_S = (0.3, 1.2)


async def test_four_engines_killed_at_random_start_exactly_one_run_per_nominal_time(dsn: str, tmp_path: Path) -> None:
    print(f"\nPERDURE_CRASH_SEED={SEED}")
    randomness = random.Random(SEED)
    with Fleet(tmp_path, dsn) as fleet:
        alive = [fleet.launch(lease=LEASE_S) for _ in range(ENGINES)]
        await until(lambda: all(e.counters for e in alive), "the engines are up", 60)
        expected = await _schedule(dsn)
        kills, blackouts = await _chaos(fleet, alive, randomness)
        await _all_fired(dsn, fleet)
        await at_rest(dsn, 60)
        found, runs = await _found(dsn)
        assert found == expected, f"{_differences(found, expected)}\n{fleet.errors()}"
        assert Counter(runs.values()) == Counter(at for times in expected.values() for at in times)
        tallies = fleet.verify()
        assert not violated(tallies), f"{violated(tallies)}\n{fleet.errors()}"
        assert tallies[15]["examined"] >= sum(map(len, expected.values()))
        left = await _value(dsn, "select count(*) from perdure.run_queue")
        assert left == 0, await describe_active(dsn)
        late = await _value(
            dsn, "select count(*) from perdure.schedule_fire where at - nominal_at > interval '1 second'"
        )
        print(
            f"{kills} kills, {blackouts} blackouts, {len(runs)} runs of {SCHEDULES} schedules, {late} more than a second late"
        )
        # The kills have to have bitten, or the test has shown nothing.
        assert kills >= SECONDS // 2
        assert blackouts >= 1
        assert late > 0


async def _schedule(dsn: str) -> dict[str, list[int]]:
    """Twenty schedules of a known span: intervals, and cron expressions with seconds. Answers all their nominal times."""
    store = PostgresSchedules(dsn)
    await store.open()
    try:
        first = (await store.clock_us() // 1_000_000 + 2) * 1_000_000
        last = first + SECONDS * 1_000_000
        expected: dict[str, list[int]] = {}
        for i in range(SCHEDULES):
            when: dict[str, object] = {"every": "1s"} if i % 2 else {"cron": f"*/{1 + i // 2 % 3} * * * * *"}
            span = {"start": datetime_of(first).isoformat(), "end": datetime_of(last).isoformat()}
            spec = parse_spec(
                {**when, **span, "overlap": "allow", "missed": "all", "jitter": "500ms" if i % 5 == 4 else None}
            )
            name = f"s{i}"
            await store.put(1, ScheduleRequest(name=name, workflow="chain", input=b'{"length":2}', spec=spec), "test")
            expected[name] = between(spec, {}, first, last, 10 * SECONDS)
        return expected
    finally:
        await store.close()


async def _chaos(fleet: Fleet, alive: list[EngineProcess], randomness: random.Random) -> tuple[int, int]:
    """Kill one at a time, and once in the middle all of them; whoever is killed is replaced."""
    began, kills, blackouts = time.monotonic(), 0, 0
    while (elapsed := time.monotonic() - began) < SECONDS + 2:
        await asyncio.sleep(randomness.uniform(*KILL_EVERY_S))
        victims = [randomness.randrange(ENGINES)]
        if elapsed > SECONDS / 2 and not blackouts:
            victims, blackouts = list(range(ENGINES)), 1
        for i in victims:
            await asyncio.to_thread(alive[i].kill)
            kills += 1
        if len(victims) > 1:
            await asyncio.sleep(2.0)
        for i in victims:
            alive[i] = fleet.launch(lease=LEASE_S)
    await until(lambda: all(e.counters for e in alive), "the last engines are up", 60)
    return kills, blackouts


async def _all_fired(dsn: str, fleet: Fleet) -> None:
    async def all_over() -> bool:
        return not await _value(dsn, "select count(*) from perdure.schedule where next_at is not null")

    try:
        await until(all_over, "every schedule is over")
    except AssertionError as error:
        error.add_note(fleet.errors())
        raise


async def _found(dsn: str) -> tuple[dict[str, list[int]], dict[bytes, int]]:
    """Nominal times with a run by schedule, from what fired; and of every run that exists the time in its own first event."""
    c = await asyncpg.connect(dsn)
    try:
        fires = await c.fetch(
            "select s.name, (extract(epoch from f.nominal_at) * 1000000)::bigint as at, f.run_id, f.outcome "
            "from perdure.schedule_fire f join perdure.schedule s on s.id = f.schedule_id order by f.nominal_at"
        )
        started = await c.fetch("select run_id, body from perdure.history where seq = 1")
        ended = {r["run_id"] for r in await c.fetch("select run_id from perdure.run where status = 'success'")}
    finally:
        await c.close()
    by_name: dict[str, list[int]] = {}
    for f in fires:
        assert f["outcome"] == "started", f
        assert f["run_id"] in ended, f
        by_name.setdefault(f["name"], []).append(f["at"])
    runs: dict[bytes, int] = {}
    for row in started:
        first = decode_events(row["body"])[0]
        assert isinstance(first, ev.RunStarted)
        runs[row["run_id"].bytes] = first.nominal_us
    return by_name, runs


def _differences(found: dict[str, list[int]], expected: dict[str, list[int]]) -> dict[str, object]:
    return {
        name: {
            "lost": sorted(set(times) - set(found.get(name, []))),
            "extra": sorted(set(found.get(name, [])) - set(times)),
        }
        for name, times in expected.items()
        if found.get(name) != times
    }


async def _value(dsn: str, query: str) -> int:
    c = await asyncpg.connect(dsn)
    try:
        return int(await c.fetchval(query))
    finally:
        await c.close()
