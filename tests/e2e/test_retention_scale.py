"""Retention at size: ended runs of several days are exported and dropped by an engine of its own while another engine executes runs.

    PERDURE_RETENTION_RUNS=5000000 uv run pytest -s tests/e2e/test_retention_scale.py

The exporter works and is held in turns. The rate of the load and the time from start to result are compared between the two, so that a
machine which is slow for other reasons is so for both. The load starts runs at half of the rate that the engine reached by itself.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from harness.aged import fetched
from harness.old_runs import fill

from perdure import EngineSettings, Perdure, task, workflow
from perdure.localpg.cluster import PrivateCluster
from perdure.store.migrate import migrate
from perdure.store.verify import verify
from tests.e2e.test_retention import manifests
from tests.fakes.waiting import busy

RUNS = int(os.environ.get("PERDURE_RETENTION_RUNS", "2000"))
DAYS = int(os.environ.get("PERDURE_RETENTION_PARTITIONS", "2"))
FIRST_DAY = 99 + DAYS
SHARE = float(os.environ.get("PERDURE_RETENTION_SHARE", "1"))
FORMAT = os.environ.get("PERDURE_RETENTION_FORMAT", "jsonl")
IS_LONG = RUNS >= 100_000
GO_S, HOLD_S, SETTLE_S = (25.0, 8.0, 1.0) if IS_LONG else (1.0, 1.0, 0.1)
PEAK_S = 10.0 if IS_LONG else 1.0
LOAD = 0.5
"""Of the peak."""
RATIO_MIN = 0.9
HARNESS = Path(__file__).parent / "harness"


@task(name="scaled.step")
async def step(n: int) -> int:
    return n + 1


@workflow(name="scaled.flow")
async def flow(n: int) -> int:
    return await step(n)


class Load:
    """Runs that are started at a rate, and what became of them."""

    def __init__(self, client: Perdure) -> None:
        self._client, self._tasks, self.ended = client, set[asyncio.Task[None]](), list[tuple[float, float]]()
        self.rate = 0.0
        self.lost = 0
        self._going = asyncio.create_task(self._go())

    async def peak(self, seconds: float) -> float:
        """Runs per second with 16 under way all the time."""
        end = time.monotonic() + seconds
        counts = [0] * 16

        async def one(n: int) -> None:
            while time.monotonic() < end:
                assert await flow.run(n) == n + 1
                counts[n] += 1

        await asyncio.gather(*(one(n) for n in range(16)))
        return sum(counts) / seconds

    async def _go(self) -> None:
        due, last = 0.0, time.monotonic()
        while True:
            await busy(0.01)
            now = time.monotonic()
            due, last = min(due + (now - last) * self.rate, 500), now
            while due >= 1:
                due -= 1
                one = asyncio.create_task(self._one())
                self._tasks.add(one)
                one.add_done_callback(self._tasks.discard)

    async def _one(self) -> None:
        began = time.monotonic()
        try:
            assert await flow.run(1) == 2
        except Exception:
            self.lost += 1
            raise
        self.ended.append((began, time.monotonic()))

    async def stop(self) -> None:
        self.rate = 0.0
        self._going.cancel()
        await asyncio.gather(*self._tasks)

    async def window(self, seconds: float) -> tuple[float, list[float]]:
        """Runs per second, and how long each took."""
        await busy(SETTLE_S)
        began, first = time.monotonic(), len(self.ended)
        await busy(seconds)
        ended = self.ended[first:]
        return len(ended) / (time.monotonic() - began), [end - start for start, end in ended]


class Exporter:
    def __init__(self, dsn: str, url: str) -> None:
        words = ("--dsn", dsn, "--url", url, "--share", str(SHARE), "--format", FORMAT, "--held")
        small = () if IS_LONG else ("--page-runs", "50", "--part-runs", "500")
        self._process = subprocess.Popen(
            [sys.executable, str(HARNESS / "exporter.py"), *words, *small],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def say(self, word: str) -> None:
        if self.is_running:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> int:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            return self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


async def size_of_runs(dsn: str) -> int:
    """Bytes of the partitions of the days that are removed."""
    rows = await fetched(
        dsn,
        "select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint as size from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = 'perdure' and c.relkind = 'r' and c.relname ~ '_p[0-9]{8}$' and right(c.relname, 8)::date < current_date - 90",
    )
    return int(rows[0]["size"])


def on_disk(cluster: PrivateCluster) -> int:
    return sum(p.stat().st_size for p in (Path(cluster.directory) / "data" / "base").rglob("*") if p.is_file())


def percentile(values: list[float], n: int) -> float:
    return quantiles(values, n=100)[n - 1] if len(values) > 1 else 0.0


async def test_millions_of_ended_runs_are_exported_and_dropped_while_runs_are_executed(
    durable_cluster: Callable[..., PrivateCluster], tmp_path: Path
) -> None:
    cluster = durable_cluster(settings={"max_wal_size": "4GB", "shared_buffers": "512MB"})
    cluster.start()
    dsn = cluster.create_database("retained")
    await migrate(dsn)
    async with Perdure(dsn, settings=EngineSettings(retention_export="off")) as client:
        await asyncio.gather(*(client.start(flow, n) for n in range(50)))
        await asyncio.gather(*[(await client.get(r.id)).result("60s") for r in await client.list(limit=50)])
    began = time.monotonic()
    await fill(dsn, "scaled.flow", RUNS, FIRST_DAY, DAYS)
    before = await size_of_runs(dsn)
    print(f"\n{RUNS:,} runs on {DAYS} days in {time.monotonic() - began:.0f} s, {before / 1e9:.2f} GB", flush=True)
    async with Perdure(dsn) as client:
        load = Load(client)
        peak = await load.peak(PEAK_S)
        load.rate = peak * LOAD
        print(f"the engine by itself: {peak:.0f} runs/s; the load: {load.rate:.0f} runs/s", flush=True)
        exporter = await asyncio.to_thread(Exporter, dsn, f"file://{tmp_path}")
        try:
            windows = await in_turns(dsn, load, exporter)
            assert await asyncio.to_thread(exporter.close) == 0
        finally:
            if exporter.is_running:
                await asyncio.to_thread(exporter.close)
        await load.stop()
    ratio = report(windows)
    await check(dsn, cluster, tmp_path, before)
    assert load.lost == 0
    if IS_LONG:
        assert ratio > RATIO_MIN


Window = tuple[bool, float, list[float]]


async def in_turns(dsn: str, load: Load, exporter: Exporter) -> list[Window]:
    windows: list[Window] = [(False, *await load.window(HOLD_S))]
    began = time.monotonic()
    while exporter.is_running:
        exporter.say("go")
        rate, took = await load.window(GO_S)
        if not exporter.is_running:
            break  # it worked for a part of this window only
        windows.append((True, rate, took))
        exporter.say("hold")
        rate_held, took_held = await load.window(HOLD_S)
        windows.append((False, rate_held, took_held))
        [row] = await fetched(
            dsn,
            "select sum(runs)::bigint as runs, sum(removed)::bigint as removed, string_agg(status, ' ') as s from perdure.retention_job",
        )
        print(
            f"{time.monotonic() - began:6.0f} s  exported {row['runs'] or 0:>9,}  removed {row['removed'] or 0:>9,}  "
            f"at work {rate:6.1f} runs/s p95 {percentile(took, 95) * 1000:5.0f} ms  "
            f"held {rate_held:6.1f} runs/s p95 {percentile(took_held, 95) * 1000:5.0f} ms",
            flush=True,
        )
    return windows


def report(windows: list[Window]) -> float:
    """The rate of the load while the exporter works, as a part of that while it is held."""
    working = [rate for is_working, rate, _ in windows if is_working] or [windows[0][1]]
    held = [rate for is_working, rate, _ in windows if not is_working]
    slow = [t for is_working, _, took in windows if is_working for t in took]
    fast = [t for is_working, _, took in windows if not is_working for t in took]
    ratio = (sum(working) / len(working)) / (sum(held) / len(held))
    print(
        f"{len(working)} windows at work: {sum(working) / len(working):.1f} runs/s, median {median(slow or [0]) * 1000:.0f} ms, "
        f"p95 {percentile(slow, 95) * 1000:.0f} ms; {len(held)} held: {sum(held) / len(held):.1f} runs/s, "
        f"median {median(fast) * 1000:.0f} ms, p95 {percentile(fast, 95) * 1000:.0f} ms; ratio of the rates {ratio:.3f}",
        flush=True,
    )
    return ratio


async def check(dsn: str, cluster: PrivateCluster, directory: Path, before: int) -> None:
    assert await size_of_runs(dsn) == 0, "every partition is gone"
    await fetched(dsn, "checkpoint")
    exported = manifests(directory)
    assert sum(m.runs for _, m in exported) == RUNS and len(exported) == DAYS
    jobs = await fetched(dsn, "select * from perdure.retention_job order by created_at")
    assert [(j["action"], j["status"]) for j in jobs] == [("drop", "done")] * DAYS
    assert sum(j["removed"] for j in jobs) == RUNS
    size = sum(m.bytes for _, m in exported)
    took = sum((j["finished_at"] - j["created_at"]) / 1e6 for j in jobs)
    left = on_disk(cluster)
    began = time.monotonic()
    found: list[Any] = await verify(dsn)
    assert {t.number: [e.what for e in t.examples] for t in found if t.violations} == {}
    print(
        f"exported {RUNS:,} runs in {took:.0f} s ({RUNS / took:,.0f} a second): {size / 1e6:,.1f} MB of {FORMAT} in "
        f"{sum(len(m.parts) for _, m in exported)} objects; {before / 1e9:.2f} GB of partitions returned, {left / 1e9:.2f} GB are left in all; "
        f"verify clean in {time.monotonic() - began:.0f} s",
        flush=True,
    )
