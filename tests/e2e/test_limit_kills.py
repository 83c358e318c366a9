"""50 keys with a limit of 3 each, under load, while servers and workers are killed: no key ever has more than 3 at work, and no slot outlives its holder."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import asyncpg
from harness import limited
from harness.fleet import EngineProcess, count, describe_active
from harness.servers import Servers

from perdure import Client
from perdure.core.errors import PerdureError
from perdure.localpg.cluster import PrivateCluster
from perdure.store.migrate import migrate
from tests.fakes.waiting import until

CHAOS_S = float(os.environ.get("PERDURE_LIMIT_CHAOS_S", "15"))
SEED = int(os.environ.get("PERDURE_CRASH_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
LEASE_S = 3.0
SERVERS, WORKERS, SLOTS = 2, 3, 60
TASKS_PER_RUN = 200


class LimitedServers(Servers):
    def worker(self, addresses: Sequence[str], slots: int = SLOTS) -> EngineProcess:
        arguments = ["harness.limited", "--server", ",".join(addresses), "--slots", str(slots)]
        return self._start("worker", ["worker", *arguments], {"PERDURE_TEST_INTERVALS": str(self.intervals)})

    @property
    def intervals(self) -> Path:
        return self.directory / "intervals.jsonl"


async def test_no_limit_is_exceeded_and_no_slot_is_leaked(
    durable_cluster: Callable[..., PrivateCluster], tmp_path: Path
) -> None:
    print(f"\nPERDURE_CRASH_SEED={SEED} PERDURE_LIMIT_CHAOS_S={CHAOS_S:g}")
    dsn = await asyncio.to_thread(durable_cluster().start)
    await migrate(dsn)
    randomness = random.Random(SEED)
    died: dict[int, float] = {}
    with LimitedServers(tmp_path, dsn, SERVERS, lease_s=LEASE_S) as fleet:
        servers = [fleet.server(n) for n in range(SERVERS)]
        await until(lambda: all(fleet.is_up(s, "ready") for s in servers), "the servers are up", 40)
        workers = [fleet.worker(fleet.addresses) for _ in range(WORKERS)]
        await until(lambda: all(fleet.is_up(w, "connected") for w in workers), "the workers are up", 30)
        over = time.monotonic() + CHAOS_S
        starting = asyncio.create_task(_load(fleet, over))
        kills = await _kill(fleet, servers, workers, randomness, over, died)
        started = await starting
        await until(lambda: _only_living_sessions(dsn), "the sessions of killed servers are gone")
        await until(lambda: _no_slot_without_a_living_holder(dsn), within_s=1.5)
        try:
            await _all_done(dsn, 90)
        except AssertionError as e:
            e.add_note(f"{await describe_active(dsn)}\n{fleet.errors()}")
            raise
        peaks, executions = _sweep(fleet.intervals, died)
        print(
            f"{started} runs, {executions} executions, {kills} kills, {len(peaks)} keys, highest {max(peaks.values())}"
        )
        assert max(peaks.values()) == limited.LIMIT, {k: v for k, v in peaks.items() if v > limited.LIMIT}
        assert len(peaks) == limited.KEYS
        assert kills["server"] and kills["worker"]
        assert executions >= started * TASKS_PER_RUN


async def _load(fleet: Servers, until_s: float) -> int:
    """As much as keeps every key's line from running dry."""
    started = 0
    async with Client(",".join(fleet.addresses)):
        waiting: set[asyncio.Task[object]] = set()
        while time.monotonic() < until_s:
            try:
                async with asyncio.timeout(20):
                    handle = await limited.limited_load.start(started * TASKS_PER_RUN, TASKS_PER_RUN)
                started += 1
                waiting.add(asyncio.create_task(_ended(handle)))
            except (PerdureError, TimeoutError):
                await asyncio.sleep(0.2)
            waiting = {t for t in waiting if not t.done()}
            while len(waiting) > 10 and (left_s := until_s - time.monotonic()) > 0:
                _, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for t in waiting:
            t.cancel()
    return started


async def _ended(handle: object) -> None:
    try:
        await handle.result()  # type: ignore[attr-defined]
    except PerdureError:
        pass


async def _kill(
    fleet: LimitedServers,
    servers: list[EngineProcess],
    workers: list[EngineProcess],
    randomness: random.Random,
    until_s: float,
    died: dict[int, float],
) -> dict[str, int]:
    """Now a server, now a worker; never both servers at a time."""
    kills: dict[str, int] = defaultdict(int)
    while time.monotonic() < until_s:
        await asyncio.sleep(randomness.uniform(0.8, 2.0))
        who = "server" if kills["worker"] > kills["server"] else "worker"
        group = servers if who == "server" else workers
        n = randomness.randrange(len(group))
        await asyncio.to_thread(group[n].kill)
        died[group[n].process.pid] = time.monotonic()
        kills[who] += 1
        if who == "server":
            group[n] = fleet.server(n)
            await until(lambda s=group[n]: fleet.is_up(s, "ready"), "the server is up again", 40)  # type: ignore[misc]
        else:
            group[n] = fleet.worker(fleet.addresses)
    return dict(kills)


async def _only_living_sessions(dsn: str) -> bool:
    return await count(dsn, "select count(*) from perdure.engine_session") == SERVERS


async def _no_slot_without_a_living_holder(dsn: str) -> bool:
    """Every slot belongs to an attempt of an engine that is alive."""
    left = await count(
        dsn,
        """select count(*) from perdure.flow_control_slot s where not exists (
             select from perdure.task_queue t join perdure.engine_session e on e.id = t.owner where t.id = s.holder and e.expires_at > now())""",
    )
    return left == 0


async def _all_done(dsn: str, seconds: float) -> None:
    c = await asyncpg.connect(dsn)
    try:

        async def no_run_left() -> bool:
            return not await c.fetchval("select count(*) from perdure.run_queue")

        await until(no_run_left, within_s=seconds)
        assert await c.fetchval("select count(*) from perdure.flow_control_slot") == 0
        assert await c.fetchval("select count(*) from perdure.run where status <> 'success'") == 0
    finally:
        await c.close()


def _sweep(path: Path, died: dict[int, float]) -> tuple[dict[int, int], int]:
    """The most that was at work at once, per key. An execution without an end ended with its process."""
    begun: dict[str, dict[str, float]] = {}
    moments: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        e = json.loads(line)
        if e["phase"] == "begin":
            begun[e["me"]] = e
        else:
            b = begun.pop(e["me"])
            moments[int(b["key"])] += [(b["at"], 1), (e["at"], -1)]
    for b in begun.values():
        moments[int(b["key"])] += [(b["at"], 1), (died[int(b["pid"])], -1)]
    peaks: dict[int, int] = {}
    for key, changes in moments.items():
        at_work = highest = 0
        for _, change in sorted(changes):  # an end and a begin of one moment: the end first
            at_work += change
            highest = max(highest, at_work)
        peaks[key] = highest
    return peaks, sum(len(m) for m in moments.values()) // 2
