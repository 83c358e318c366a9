"""Two servers and three workers are killed, drained, paused and restarted at random under load; in the end nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.fleet import EngineProcess, at_rest, count, describe_active, violated
from harness.servers import Servers, drained

from perdure import Client
from perdure.core.errors import PerdureError
from perdure.localpg.cluster import PrivateCluster
from perdure.store.migrate import migrate
from perdure.testing.ledger import Starts
from tests.fakes.waiting import until

CHAOS_S = float(os.environ.get("PERDURE_SERVER_CHAOS_S", "180"))
SEED = int(os.environ.get("PERDURE_CRASH_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
SERVERS, WORKERS = 2, 3
LEASE_S = 3.0
WAVE = 5
KINDS = {f"{who} {what}" for who in ("server", "worker") for what in ("killed", "drained", "paused")}
ALL_S = 120.0
"""In so much time a worker is hit while it runs a task."""
KINDS_S_MAX = 120.0
"""For every kind of fault to happen on a slow machine, where a short test would end before."""
PAUSE_S = 0.25
"""Between two waves of starts."""


async def test_servers_and_workers_hit_at_random_lose_nothing(
    durable_cluster: Callable[..., PrivateCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"\nPERDURE_CRASH_SEED={SEED} PERDURE_SERVER_CHAOS_S={CHAOS_S:g}")
    dsn = await asyncio.to_thread(durable_cluster().start)
    await migrate(dsn)
    with Servers(tmp_path, dsn, SERVERS, lease_s=LEASE_S) as fleet:
        monkeypatch.setenv("PERDURE_TEST_LEDGER", str(fleet.ledger))
        servers = [fleet.server(n) for n in range(SERVERS)]
        await until(lambda: all(fleet.is_up(s, "ready") for s in servers), "the servers are up", 40)
        workers = [fleet.worker(fleet.addresses) for _ in range(WORKERS)]
        await until(lambda: all(fleet.is_up(w, "connected") for w in workers), "the workers are up", 30)
        randomness = random.Random(SEED)
        over = asyncio.Event()
        starting = asyncio.create_task(_load(fleet, randomness.randrange(1 << 30), over))
        faults = await _chaos(fleet, servers, workers, randomness)
        over.set()
        refused = await starting
        print(f"{dict(faults)}, {fleet.acknowledged} starts acknowledged, {refused} refused")
        await until(lambda: all(fleet.is_up(s, "ready") for s in servers), "the last servers are up")
        await until(lambda: all(fleet.is_up(w, "connected") for w in workers), "the last workers are up")
        await until(lambda: _only_living_sessions(dsn), "the sessions of killed servers are gone")
        await at_rest(dsn, 90)
        tallies = fleet.verify()
        print({t["number"]: t["examined"] for t in tallies.values()})
        assert not violated(tallies), f"{violated(tallies)}\n{fleet.errors()}"
        left = await count(dsn, "select count(*) from perdure.run_queue")
        assert left == 0, f"{await describe_active(dsn)}\n{fleet.errors()}"
        # Each kind of fault has to have bitten, or the test has shown nothing.
        assert faults.keys() == KINDS, faults
        if CHAOS_S >= ALL_S:
            assert await count(dsn, "select count(*) from perdure.task where lost > 0") > 0
        assert await count(dsn, "select count(*) from perdure.run where epoch > 1") > 0
        for last in [*workers, *servers]:
            last.send(signal.SIGCONT)
            assert await asyncio.to_thread(drained, last) == 0, last.err.read_text()[-3000:]


async def _only_living_sessions(dsn: str) -> bool:
    return await count(dsn, "select count(*) from perdure.engine_session") == SERVERS


async def _load(fleet: Servers, seed: int, over: asyncio.Event) -> int:
    """Start runs of all shapes through whichever server answers. Returns how many starts came to nothing."""
    sys.modules.pop("harness.flows", None)
    from harness import flows

    starts, randomness, refused = Starts(str(fleet.starts)), random.Random(seed), 0

    async def one() -> None:
        nonlocal refused
        try:
            async with asyncio.timeout(20):
                run_id = await flows.start_one(randomness.randrange(flows.SHAPES), randomness.randrange(1000))
        except (PerdureError, TimeoutError):
            refused += 1  # it may exist or not: its start was not acknowledged
            return
        starts.acknowledged(run_id)
        if randomness.random() < 0.2:
            try:
                async with asyncio.timeout(20):
                    await flows.go.send(run_id, "go")
            except (PerdureError, TimeoutError):
                pass

    async with Client(",".join(fleet.addresses)), asyncio.TaskGroup() as group:
        while not over.is_set():
            for _ in range(WAVE):
                group.create_task(one())
            await asyncio.sleep(PAUSE_S)
    return refused


async def _chaos(
    fleet: Servers,
    servers: list[EngineProcess],
    workers: list[EngineProcess],
    randomness: random.Random,
) -> Counter[str]:
    """One fault every second or two, never on both servers at once; a process that fell is replaced."""
    done: Counter[str] = Counter()
    busy: set[asyncio.Task[None]] = set()
    decks: dict[str, list[str]] = {"server": [], "worker": []}

    def deal(who: str) -> str:
        """A kind of fault from a shuffled deck: whatever the seed, four hits hold every kind."""
        if not decks[who]:
            decks[who] = randomness.sample(("killed", "killed", "drained", "paused"), 4)
        return decks[who].pop()

    async def hit(who: str, group: list[EngineProcess], n: int, restart: Callable[[], EngineProcess]) -> None:
        what = deal(who)
        done[f"{who} {what}"] += 1
        victim = group[n]
        match what:
            case "killed":
                await asyncio.to_thread(victim.kill)
                await asyncio.sleep(randomness.uniform(0, LEASE_S))
                group[n] = restart()
            case "drained":
                was_up = fleet.is_up(victim, "ready" if who == "server" else "connected")
                code = await asyncio.to_thread(drained, victim, 60.0)
                text = victim.err.read_text()
                # One that is only just starting may have no ear for the signal yet, and nothing to hand back.
                well = code == 0 or (not was_up and code == -signal.SIGTERM)
                assert well and "Traceback" not in text, f"{who} drained with {code}:\n{text[-3000:]}"
                group[n] = restart()
            case _:
                victim.send(signal.SIGSTOP)
                await asyncio.sleep(randomness.uniform(1.0, 2.5) * LEASE_S)
                victim.send(signal.SIGCONT)

    async def hit_one(who: str, n: int) -> None:
        if who == "server":
            await hit(who, servers, n, lambda: fleet.server(n))
        else:
            await hit(who, workers, n, lambda: fleet.worker(fleet.addresses))

    hurt: dict[tuple[str, int], asyncio.Task[None]] = {}
    began = time.monotonic()
    while (took := time.monotonic() - began) < CHAOS_S or (done.keys() != KINDS and took < KINDS_S_MAX):
        await asyncio.sleep(randomness.uniform(0.5, 2.0))
        who, n = randomness.choice([("server", 0), ("server", 1), ("worker", 0), ("worker", 1), ("worker", 2)])
        key = (who, 0 if who == "server" else n)
        if key in hurt and not hurt[key].done():
            continue
        task = hurt[key] = asyncio.create_task(hit_one(who, n))
        busy.add(task)
    await asyncio.gather(*busy)
    return done
