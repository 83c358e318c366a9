"""An engine that exports and removes ended runs is killed again and again: each run is in the database or in exactly one finished export."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.aged import days_ago
from harness.fleet import count
from harness.old_runs import fill
from harness.storm import Storm, Target, Workload, fetch_rows
from perdure import task, workflow
from perdure.core import ids
from perdure.exports.archive import Archive
from perdure.store import partitions
from perdure.store.imports import import_exports
from tests.e2e.test_retention import manifests, policy
from tests.fakes.waiting import until

RUNS, DAYS, LEASE_S = 600, 2, 0.5
KILLS_MIN = 3
CLAIMS = "select coalesce(sum(epoch), 0) from perdure.retention_job"
"""Of jobs, by engines. The first engine of a job creates it with an epoch."""
SCRIPT = Path(__file__).parents[1] / "exporter.py"
SLOWLY = ("--part-runs", "100", "--page-runs", "20", "--share", "0.5")


@task(name="killed.step")
async def step(n: int) -> int:
    return n + 1


@workflow(name="killed.flow")
async def flow(n: int) -> int:
    return await step(n)


class Exporter(Target):
    """Lives for a moment in each strike, until one has done everything."""

    name, every_s, engines = "exporter", (0.0, 0.2), 1

    def __init__(self, load: RetentionLoad, storm: Storm) -> None:
        super().__init__()
        self._load, self._storm = load, storm
        self.kills, self.is_done = 0, False

    async def strike(self, randomness: random.Random) -> None:
        if self.is_done:
            return
        words = ("--dsn", self._storm.dsn, "--url", self._load.url, "--lease", str(LEASE_S), *SLOWLY)
        before = await count(self._storm.dsn, CLAIMS)
        one = self._storm.fleet.client(SCRIPT, *words)

        async def is_at_work() -> bool:
            return await count(self._storm.dsn, CLAIMS) > before or one.process.poll() is not None

        await until(is_at_work, "the exporter is at work")
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(one.process.wait, randomness.uniform(0.05, 1.2))
        assert one.process.poll() in (None, 0), one.err.read_text()
        await asyncio.to_thread(one.kill)
        self.kills += 1
        self._storm.killed(self.name, one.process.pid)
        self.is_done = "done" in one.out.read_text()
        await self._load.check_all_there()

    async def restore(self) -> None:
        self.engines = 0


class RetentionLoad(Workload):
    name = "retention"

    async def prepare(self, storm: Storm) -> Sequence[Target]:
        self._dsn, self._directory = storm.dsn, storm.directory / "exports"
        self._directory.mkdir()
        self.url = f"file://{self._directory}"
        async with days_ago(storm.dsn, 95) as client:
            await asyncio.gather(*(client.run(flow, n) for n in range(3)))
        await fill(storm.dsn, "killed.flow", RUNS, 100, DAYS)
        await policy(storm.dsn, "killed.flow", 90)
        self._before = await _stored(storm.dsn)
        self._rows = await _rows_of(storm.dsn)
        assert len(self._before) == RUNS + 3
        self._exporter = Exporter(self, storm)
        return (self._exporter,)

    async def is_hit(self) -> bool:
        return self._exporter.is_done or self._exporter.kills >= KILLS_MIN

    async def check_all_there(self) -> None:
        """The database first: a run that leaves it meanwhile is in a finished export already."""
        there, out = await _stored(self._dsn), await asyncio.to_thread(_exported, self._directory)
        assert there | out.keys() == self._before, "runs are lost"
        assert set(out.values()) <= {1}, "a run is in two exports"

    async def settle(self, storm: Storm) -> None:
        """What is left is exported without a kill; then all runs come back."""
        if not self._exporter.is_done:
            words = ("--dsn", storm.dsn, "--url", self.url, "--lease", str(LEASE_S))
            await asyncio.to_thread(subprocess.run, [sys.executable, str(SCRIPT), *words], check=True)
        await self.check_all_there()
        assert await _stored(storm.dsn) == set()
        assert (await asyncio.to_thread(_exported, self._directory)).keys() == self._before
        done = await import_exports(storm.dsn, Archive(self.url), None)
        assert (done.runs, done.present) == (RUNS + 3, 0)

    async def check(self, storm: Storm) -> str:
        assert await _rows_of(storm.dsn) == self._rows
        return f"{len(self._before)} runs exported by {self._exporter.kills + 1} engines, and imported"


def _exported(directory: Path) -> Counter[str]:
    """How often each run is in a finished export."""
    found: Counter[str] = Counter()
    for folder, manifest in manifests(directory):
        for part in manifest.parts:
            lines = gzip.decompress((folder / part.object).read_bytes()).splitlines()
            assert len(lines) == part.runs
            found.update(json.loads(line)["run_id"] for line in lines)
    return found


async def _stored(dsn: str) -> set[str]:
    """Runs of the past that the database has; each with its whole history."""
    query = (
        "select r.run_id, r.events = (select max(h.last) from perdure.history h where h.run_id = r.run_id) as whole"
        " from perdure.run r where r.workflow = 'killed.flow'"
    )
    found = await fetch_rows(dsn, query)
    assert all(r["whole"] for r in found)
    return {ids.text(r["run_id"].bytes) for r in found}


async def _rows_of(dsn: str) -> dict[str, list[Any]]:
    """All that is stored of these runs."""
    query = "select * from perdure.{} where run_id = any(select run_id from perdure.run where workflow = 'killed.flow')"
    return {
        table: sorted(map(tuple, await fetch_rows(dsn, query.format(table))), key=repr) for table in partitions.TABLES
    }
