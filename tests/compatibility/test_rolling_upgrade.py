"""Two servers and two workers of the released version are replaced by the next one under load, back again and on, and nothing is lost.

PERDURE_UPGRADE_S sets for how long at least, with servers and workers of both versions in turn.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness import steady_flows
from harness.fleet import EngineProcess, at_rest, count, violated
from harness.servers import Release, Servers, drained

from perdure.localpg.cluster import PrivateCluster
from perdure.store.migrate import load
from tests.compatibility import steps
from tests.fakes.waiting import until

UPGRADE_S = float(os.environ.get("PERDURE_UPGRADE_S", "0"))
PER_SECOND = float(os.environ.get("PERDURE_UPGRADE_PER_SECOND", "5"))
"""Starts of each of the two clients."""
LEASE_S = 3.0
GAP_S_MAX = 15.0
"""Without an acknowledged start, on a machine that is busy with other tests."""
KEYED = "select count(*) from perdure.run_key"


@dataclass
class Upgrade:
    """The processes that serve, each with its release."""

    fleet: Servers
    servers: list[tuple[EngineProcess, Release]] = field(default_factory=list)
    workers: list[tuple[EngineProcess, Release]] = field(default_factory=list)
    replaced: Counter[str] = field(default_factory=Counter)
    """How often, by how: `0.1.0 to next, SIGKILL`."""

    async def begin(self, release: Release) -> None:
        self.servers = [(self.fleet.server(n, release), release) for n in range(2)]
        self.workers = [(self._worker(release), release) for _ in range(2)]
        await until(lambda: all(map(self._is_up, self._all)), "they are up")

    async def to(self, release: Release, *, killed: int = -1, of: int = 2) -> None:
        """Servers one by one, the one of this number by SIGKILL; then workers, when those that follow them are there. `of`: so many of each."""
        for number, (server, before) in enumerate(self.servers[:of]):
            if before is not release:
                await self._end(server, before, release, is_killed=number == killed)
                self.servers[number] = (started := self.fleet.server(number, release)), release
                await until(lambda one=started: self._is_up(one), "the server is up")
        leaving = [one for one in self.workers[:of] if one[1] is not release]
        staying = [one for one in self.workers if one not in leaving]
        self.workers = [*((self._worker(release), release) for _ in leaving), *staying]
        await until(lambda: all(map(self._is_up, self._all)), "the workers are up")
        for number, (worker, before) in enumerate(leaving):
            await self._end(worker, before, release, is_killed=number == killed)

    async def end(self) -> None:
        for one in reversed(self._all):
            assert await asyncio.to_thread(drained, one, 90.0) == 0, one.err.read_text()[-3000:]
        broken = [e.err.name for e in self.fleet.engines if "Traceback" in e.err.read_text()]
        assert not broken, f"{broken}\n{self.fleet.errors()}"

    @property
    def _all(self) -> list[EngineProcess]:
        return [one for one, _ in [*self.servers, *self.workers]]

    def _is_up(self, one: EngineProcess) -> bool:
        return self.fleet.is_up(one, "ready" if "server" in one.err.name else "connected")

    def _worker(self, release: Release) -> EngineProcess:
        return self.fleet.worker(self.fleet.addresses, release=release)

    async def _end(self, one: EngineProcess, before: Release, after: Release, *, is_killed: bool) -> None:
        if is_killed:
            await asyncio.to_thread(one.kill)
        else:
            assert await asyncio.to_thread(drained, one, 90.0) == 0, one.err.read_text()[-3000:]
        self.replaced[f"{before.name} to {after.name}, {'SIGKILL' if is_killed else 'SIGTERM'}"] += 1


async def test_an_upgrade_and_its_way_back_lose_nothing_and_begin_nothing_twice(
    durable_cluster: Callable[..., PrivateCluster], tmp_path: Path, old: Release, coming: Release
) -> None:
    dsn = await asyncio.to_thread(durable_cluster().start)
    steps.migrate(old, dsn)
    with Servers(tmp_path, dsn, 2, lease_s=LEASE_S) as fleet:
        upgrade = Upgrade(fleet)
        await upgrade.begin(old)
        steps.deploy_flows(old, f"http://127.0.0.1:{fleet.ports[0][0]}", tmp_path, steady_flows.DAG, steady_flows.GRAPH)
        clients = [_client(fleet, release) for release in (old, coming)]
        await until(lambda: fleet.acknowledged > 10, "runs are started")
        began = time.monotonic()
        migrated = await asyncio.to_thread(steps.migrate, coming, dsn)
        migration_s = time.monotonic() - began
        assert "so you can go back" in migrated
        rounds = 0
        for rounds in itertools.count(1):
            await upgrade.to(coming, killed=rounds % 2)
            if rounds > 1 and time.monotonic() - began > UPGRADE_S:
                break
            # The way back: the database stays as it is. In the short form one server and one worker go.
            await upgrade.to(old, killed=-1 if rounds % 2 else 0, of=2 if UPGRADE_S else 1)
        finished = await _finish(coming, dsn)
        assert f"does not know migration {len(load()) + 1:04} is refused" in finished
        figures = await _ended(clients, fleet)
        await at_rest(dsn, 90)
        _report(figures, upgrade, rounds, migration_s, time.monotonic() - began)

        tallies = fleet.verify()
        assert not violated(tallies), f"{violated(tallies)}\n{fleet.errors()}"
        assert await count(dsn, "select count(*) from perdure.run_queue") == 0
        # A start that was asked again under its key has made one run, and each acknowledged run is there.
        assert await count(dsn, KEYED) == figures["acknowledged"] == figures["asked"] == fleet.acknowledged
        assert figures["given_up"] == 0
        assert figures["gap_s"] < GAP_S_MAX, figures
        await upgrade.end()


async def _finish(release: Release, dsn: str) -> str:
    """It is refused, and changes nothing, while the lease of a server that was killed has not run out."""

    async def finished() -> str:
        done = await asyncio.to_thread(steps.ended, release, "migrate", "--finish", "--dsn", dsn)
        assert done.returncode == 0 or "an engine that was killed counts until its lease has run out" in done.stderr, (
            done
        )
        return "" if done.returncode else done.stdout

    return await until(finished, "the leases of killed servers have run out", 60)


def _client(fleet: Servers, release: Release) -> EngineProcess:
    program = Path(steady_flows.__file__).with_name("steady.py")
    arguments = (",".join(fleet.addresses), str(fleet.starts), f"{release.name}-", str(PER_SECOND))
    return fleet.client(program, *arguments, release=release)


async def _ended(clients: list[EngineProcess], fleet: Servers) -> dict[str, float]:
    """What the clients saw, over both of them."""
    for one in clients:
        one.send(signal.SIGTERM)
    for one in clients:
        assert await asyncio.to_thread(one.process.wait, 120) == 0, one.err.read_text()[-3000:] + fleet.errors()
    lines = [line for one in clients for line in one.lines]
    starts, totals = [x for x in lines if "at" in x], [x for x in lines if "asked" in x]
    times = sorted(x["at"] for x in starts)
    return {
        **{what: sum(t[what] for t in totals) for what in ("asked", "acknowledged", "asked_again", "given_up")},
        "gap_s": max(b - a for a, b in itertools.pairwise(times)),
        "slowest_s": max(x["took"] for x in starts),
    }


def _report(figures: dict[str, float], upgrade: Upgrade, rounds: int, migration_s: float, load_s: float) -> None:
    shown = {name: round(value, 2) for name, value in figures.items()}
    print(
        f"\n{load_s:.0f} s of load, {rounds} upgrades, migrated in {migration_s:.1f} s; replaced {json.dumps(upgrade.replaced)}\n{shown}"
    )
