"""Patroni fails over under load: nothing that was acknowledged is lost, nothing happens twice, and work goes on by itself.

Debian's Patroni, etcd and three PostgreSQL servers, of which one follows synchronously; two `perdure server`, two workers, and clients that
note each acknowledged start and signal. PERDURE_FAILOVERS=N repeats all faults N times, with the TTL that Patroni has by default (30 s);
without it the primary is halted once, with a short one. docs/how-to/run-with-patroni.md quotes what the long form prints.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import patroni
from harness.audited_load import MODULE, NAME, Load
from harness.fleet import at_rest, count, describe_active, violated
from harness.patroni import Node, Patroni, Timing
from harness.servers import Servers

from perdure.store.migrate import migrate
from tests.fakes.waiting import until

pytestmark = [
    pytest.mark.skipif(bool(patroni.missing), reason=f"not installed: {', '.join(patroni.missing)}"),
    pytest.mark.usefixtures("processes"),
]

ROUNDS = int(os.environ.get("PERDURE_FAILOVERS", "0"))
TIMING = Timing(30, 10, 10) if ROUNDS else Timing()
FAULTS = ("primary killed", "standby killed", "switchover", "primary halted") if ROUNDS else ("primary halted",)
LEASE_S = 6.0
STEADY = 10
"""Acknowledged starts before a fault, and after it."""
SLACK_S = 20.0
"""Above the TTL, for elections and a machine that does other things as well."""
WHOLE_S = 150.0


@dataclass(frozen=True)
class Hit:
    fault: str
    acknowledged: int
    gap_s: float


async def _strike(cluster: Patroni, fault: str) -> Node | None:
    """Returns the node that has to be brought back."""
    match fault:
        case "primary killed":
            victim = cluster.leader
            await asyncio.to_thread(cluster.kill, victim)
        case "primary halted":
            victim = cluster.leader
            cluster.halt(victim)
        case "switchover":
            await asyncio.to_thread(cluster.switch_over)
            return None
        case _:
            victim = cluster.synchronous_standby
            await asyncio.to_thread(cluster.kill, victim)
    return victim


async def _hit(cluster: Patroni, load: Load, fault: str) -> Hit:
    before = len(load.acknowledged)
    await until(lambda: len(load.acknowledged) >= before + STEADY, "starts are acknowledged before the fault")
    struck = time.monotonic()
    victim = await _strike(cluster, fault)
    others = [node for node in cluster.nodes if node is not victim]
    await until(lambda: any(node.ask("primary") == 200 for node in others), "a node leads", WHOLE_S)
    led = time.monotonic()
    await until(lambda: load.acknowledged_since(led) >= STEADY, "starts are acknowledged after the fault", WHOLE_S)
    ended = time.monotonic()
    if victim is not None and victim.halted:
        cluster.go_on(victim)
    elif victim is not None:
        cluster.start(victim)
    await until(lambda: asyncio.to_thread(cluster.is_whole), "the cluster is whole again", WHOLE_S)
    hit = Hit(fault, load.acknowledged_since(struck), load.longest_gap_s(struck, ended))
    print(
        f"{fault}: no start was acknowledged for {hit.gap_s:.1f} s; a node led after {led - struck:.1f} s", flush=True
    )
    return hit


async def test_failovers_under_load_lose_nothing(
    open_directory: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Patroni(open_directory(), 3, TIMING) as cluster,
        Servers(tmp_path, cluster.dsn(target_session_attrs="read-write"), 2, lease_s=LEASE_S) as fleet,
    ):
        monkeypatch.setenv("PERDURE_TEST_LEDGER", str(fleet.ledger))
        await migrate(fleet.dsn)
        servers = [fleet.server(n) for n in range(2)]
        await until(lambda: all(fleet.is_up(s, "ready") for s in servers), "the servers are up", 60)
        workers = [fleet.worker(fleet.addresses, module=MODULE) for _ in range(2)]
        await until(lambda: all(fleet.is_up(w, "connected") for w in workers), "the workers are up", 60)
        load = Load(fleet.addresses, tmp_path)
        async with load.running():
            hits = [await _hit(cluster, load, fault) for _ in range(max(ROUNDS, 1)) for fault in FAULTS]
        await at_rest(fleet.dsn, 90)
        tallies = fleet.verify()
        runs = await count(fleet.dsn, f"select count(*) from perdure.run where workflow = '{NAME}'")
        acknowledged = len(load.acknowledged)
        print(
            f"{acknowledged} starts and {load.signalled} signals acknowledged, {max(acknowledged - runs, 0)} lost, "
            f"{max(runs - acknowledged, 0)} duplicates, {load.refused} requests repeated; ttl {TIMING.ttl} s; "
            + ", ".join(f"{hit.fault} {hit.gap_s:.1f} s" for hit in hits)
        )
        assert not violated(tallies), f"{violated(tallies)}\n{fleet.errors()}"
        assert runs == acknowledged
        assert await count(fleet.dsn, "select count(*) from perdure.run_queue") == 0, await describe_active(fleet.dsn)
        assert all(s.process.poll() is None for s in (*servers, *workers)), fleet.errors()
        late = [hit for hit in hits if hit.gap_s > TIMING.ttl + SLACK_S]
        assert not late, late
