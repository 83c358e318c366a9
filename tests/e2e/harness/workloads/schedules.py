"""Twenty schedules whose engines are killed: one run per nominal time, none lost, none twice."""

from __future__ import annotations

import asyncio
from collections import Counter

from harness.fleet import count
from harness.storm import Storm, Workload, fetch_rows
from perdure.core import events as ev
from perdure.core.api.schedules import ScheduleRequest
from perdure.core.durations import datetime_of
from perdure.core.schedules import between, parse_spec
from perdure.store.schedules import PostgresSchedules
from perdure.wire.codec import decode_events
from tests.fakes.waiting import until

SCHEDULES, SECONDS_MIN = 20, 10
SPAN = 3
"""Schedules go on for so many times as long as the storm is to last: the blackout waits for strikes that are under way."""
FIRES = (
    "select s.name, (extract(epoch from f.nominal_at) * 1000000)::bigint as at, f.run_id, f.outcome "
    "from perdure.schedule_fire f join perdure.schedule s on s.id = f.schedule_id order by f.nominal_at"
)
CHAINS = "select run_id from perdure.run where workflow = 'chain'"


class Schedules(Workload):
    name = "schedules"
    serves = ("harness.flows",)

    async def load(self, storm: Storm) -> None:
        """Intervals, and cron expressions with seconds, of a known span."""
        self._dsn = storm.dsn
        self._expected: dict[str, list[int]] = {}
        """All nominal times of each schedule: those after it was put."""
        seconds = SPAN * max(int(storm.seconds), SECONDS_MIN)
        store = PostgresSchedules(storm.dsn)
        await store.open()
        try:
            first = await store.clock_us() // 1_000_000 * 1_000_000
            last = first + seconds * 1_000_000
            new = []
            for i in range(SCHEDULES):
                when: dict[str, object] = {"every": "1s"} if i % 2 else {"cron": f"*/{1 + i // 2 % 3} * * * * *"}
                span = {"start": datetime_of(first).isoformat(), "end": datetime_of(last).isoformat()}
                spec = parse_spec(
                    {**when, **span, "overlap": "allow", "missed": "all", "jitter": "500ms" if i % 5 == 4 else None}
                )
                new.append(ScheduleRequest(name=f"s{i}", workflow="chain", input=b'{"length":2}', spec=spec))
            for one, (put, _) in zip(
                new, await asyncio.gather(*(store.put(1, one, "test") for one in new)), strict=True
            ):
                self._expected[one.name] = between(one.spec, {}, put.created_us + 1, last, seconds)
        finally:
            await store.close()

    async def _late(self) -> int:
        """Fires whose moment came while no engine lived."""
        return await count(
            self._dsn, "select count(*) from perdure.schedule_fire where at - nominal_at > interval '1 second'"
        )

    async def is_hit(self) -> bool:
        return await self._late() > 0

    async def settle(self, storm: Storm) -> None:
        async def all_over() -> bool:
            return not await count(storm.dsn, "select count(*) from perdure.schedule where next_at is not null")

        await until(all_over, "every schedule is over")

    async def check(self, storm: Storm) -> str:
        found, runs = await self._found()
        assert found == self._expected, _differences(found, self._expected)
        assert Counter(runs) == Counter(at for times in self._expected.values() for at in times)
        assert storm.tallies[15]["examined"] >= len(runs)
        assert storm.kills.total() >= storm.seconds // 2 and storm.blackouts >= 1
        return f"{len(runs)} runs of {SCHEDULES} schedules, {await self._late()} more than a second late"

    async def _found(self) -> tuple[dict[str, list[int]], list[int]]:
        """Nominal times with a run by schedule, from what fired; and of every run that exists the time in its own first event."""
        ended = {r["run_id"] for r in await fetch_rows(self._dsn, f"{CHAINS} and status = 'success'")}
        by_name: dict[str, list[int]] = {}
        for f in await fetch_rows(self._dsn, FIRES):
            assert f["outcome"] == "started", f
            assert f["run_id"] in ended, f
            by_name.setdefault(f["name"], []).append(f["at"])
        runs = []
        for row in await fetch_rows(
            self._dsn, f"select body from perdure.history where seq = 1 and run_id in ({CHAINS})"
        ):
            first = decode_events(row["body"])[0]
            assert isinstance(first, ev.RunStarted)
            runs.append(first.nominal_us)
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
