"""An engine that exports and removes ended runs is killed again and again: each run is in the database or in exactly one finished export.

PERDURE_RETENTION_KILLS=100 uv run pytest -s tests/e2e/test_retention_kills.py
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from harness.aged import days_ago, fetched
from harness.old_runs import fill

from perdure import task, workflow
from perdure.core import ids
from perdure.exports.archive import Archive
from perdure.store.imports import import_exports
from tests.e2e.test_retention import clean, manifests, policy, rows_of_all

pytestmark = pytest.mark.usefixtures("processes")

SEED = int(os.environ.get("PERDURE_CRASH_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
KILLS = int(os.environ.get("PERDURE_RETENTION_KILLS", "5"))
RUNS, DAYS, LEASE_S = 600, 2, 0.5
HARNESS = Path(__file__).parent / "harness"


@task(name="killed.step")
async def step(n: int) -> int:
    return n + 1


@workflow(name="killed.flow")
async def flow(n: int) -> int:
    return await step(n)


def exported(directory: Path) -> Counter[str]:
    """How often each run is in a finished export."""
    found: Counter[str] = Counter()
    for folder, manifest in manifests(directory):
        for part in manifest.parts:
            lines = gzip.decompress((folder / part.object).read_bytes()).splitlines()
            assert len(lines) == part.runs
            found.update(json.loads(line)["run_id"] for line in lines)
    return found


async def stored(dsn: str) -> set[str]:
    """Runs of the past that the database has; each with its whole history."""
    rows = await fetched(
        dsn,
        "select r.run_id, r.events = (select max(h.last) from perdure.history h where h.run_id = r.run_id) as whole from perdure.run r",
    )
    assert all(r["whole"] for r in rows)
    return {ids.text(r["run_id"]) for r in rows}


def killed_exporter(dsn: str, url: str, randomness: random.Random) -> bool:
    """Whether it had done everything before it was killed."""
    words = (
        "--dsn",
        dsn,
        "--url",
        url,
        "--lease",
        str(LEASE_S),
        "--part-runs",
        "100",
        "--page-runs",
        "20",
        "--share",
        "0.5",
    )
    process = subprocess.Popen(
        [sys.executable, str(HARNESS / "exporter.py"), *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        process.wait(randomness.uniform(0.05, 1.2))
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()
        rest = process.stdout.read()
        process.stdout.close()
    return "done" in rest


async def test_each_run_is_in_the_database_or_in_exactly_one_export(dsn: str, tmp_path: Path) -> None:
    print(f"\nPERDURE_CRASH_SEED={SEED}")
    randomness = random.Random(SEED)
    async with days_ago(dsn, 95) as client:
        await asyncio.gather(*(client.run(flow, n) for n in range(3)))
    await fill(dsn, "killed.flow", RUNS, 100, DAYS)
    await policy(dsn, "killed.flow", 90)
    before, all_rows = await stored(dsn), await rows_of_all(dsn)
    assert len(before) == RUNS + 3
    is_done, kills = False, 0
    while not is_done:
        url = f"file://{tmp_path}"
        if kills < KILLS:
            is_done = await asyncio.to_thread(killed_exporter, dsn, url, randomness)
            kills += 1
        else:
            words = ("--dsn", dsn, "--url", url, "--lease", str(LEASE_S))
            await asyncio.to_thread(subprocess.run, [sys.executable, str(HARNESS / "exporter.py"), *words], check=True)
            is_done = True
        there, out = await stored(dsn), await asyncio.to_thread(exported, tmp_path)
        assert there | out.keys() == before, "nothing is lost"
        assert set(out.values()) <= {1}, "no run is in two exports"
        print(
            f"{kills} kills: {len(there)} runs in the database, {len(out)} in exports, {len(there & out.keys())} in both"
        )
    assert there == set() and out.keys() == before
    done = await import_exports(dsn, Archive(f"file://{tmp_path}"), None)
    assert (done.runs, done.present) == (RUNS + 3, 0)
    assert await rows_of_all(dsn) == all_rows
    await clean(dsn)
