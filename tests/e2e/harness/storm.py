"""One fleet under random kills. Workloads run on it side by side; each says what must hold when everything is at rest.

    prepare -> start all targets -> load, while each target is struck again and again -> restore -> settle -> rest -> verify -> check

Every target draws its moments from a generator of its own, seeded by the seed and its name. So its sequence does not depend on how fast the
others are.
"""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from harness.fleet import EngineProcess, at_rest, count, describe_active, violated
from harness.servers import Servers
from perdure import Client
from tests.fakes.waiting import until

SERVERS, WORKERS, SLOTS = 2, 2, 60
LEASE_S = 4.0
DARK_S = 2.0
"""No engine lives for so long, once in each storm."""
UP_S = STRIKE_S = LOAD_S = SETTLE_S = 180.0
"""Nothing takes so long, but for a machine that is far too busy."""
REST_S = 60.0
BLACKOUT = "blackout"
CRASH_LOOPS = ("crash_loop:", "quarantined:")
"""How the reason of a run begins that is stuck because its workers, or its engines, died."""
EXTENSION = 5
"""A storm lasts at most so many times as long, until every workload was hit."""


class Target:
    """Processes of one kind, which are killed and replaced."""

    name = ""
    every_s = (1.0, 3.0)
    """From one strike to the next."""
    engines = 0
    """Engines that live in these processes; a target with engines takes part in the blackout."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    async def start(self) -> None: ...

    async def aim(self, randomness: random.Random) -> None:
        """Wait for the moment at which to strike. The blackout does not wait for it."""

    async def strike(self, randomness: random.Random) -> None:
        """Kill one process and start another in its place."""

    async def kill(self) -> None:
        """Kill all processes."""

    async def restore(self) -> None:
        """After the last strike: from now on all processes live."""

    async def stop(self) -> None:
        """At rest: end the processes, and check how they end."""


class Workload:
    """What is done while processes are killed, and what must hold afterwards."""

    name = ""
    serves: Sequence[str] = ()
    """Modules that the workers of the fleet import."""
    loops: Sequence[str] = ()
    """Workflows whose engines are killed so often that their runs may look like the cause of it."""

    async def prepare(self, storm: Storm) -> Sequence[Target]:
        """Before the first server starts. Returns the processes that only this workload has."""
        return ()

    async def load(self, storm: Storm) -> None:
        """Until `storm.calm` is set."""
        await storm.calm.wait()

    async def is_hit(self) -> bool:
        """Whether a kill has hit this workload at work. Until then the storm goes on."""
        return True

    async def settle(self, storm: Storm) -> None:
        """No process is killed any more: wait for what was accepted, and end what waits."""

    async def check(self, storm: Storm) -> str:
        """At rest. Raises AssertionError, or returns what was seen."""
        raise NotImplementedError


@dataclass
class Storm:
    fleet: Servers
    seed: int
    seconds: float
    stack: AsyncExitStack
    """Closes what workloads have opened, when the storm is over."""
    client: Client = field(init=False)
    targets: list[Target] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    died: dict[int, float] = field(default_factory=dict)
    """Process -> when it was killed, by the monotonic clock."""
    blackouts: int = 0
    failures: dict[str, list[str]] = field(default_factory=dict)
    tallies: dict[int, dict[str, Any]] = field(default_factory=dict)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """No further strike begins."""
    calm: asyncio.Event = field(default_factory=asyncio.Event)
    """The last strike has ended: loads end."""
    threatened: asyncio.Event = field(default_factory=asyncio.Event)
    """A server is about to be killed."""

    @property
    def dsn(self) -> str:
        return self.fleet.dsn

    @property
    def directory(self) -> Path:
        return self.fleet.directory

    def killed(self, name: str, pid: int) -> None:
        self.kills[name] += 1
        self.died[pid] = time.monotonic()

    async def passes(self, seconds: float) -> None:
        """For loads: wait so long, or until the storm is calm."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.calm.wait(), seconds)

    async def threatens(self) -> None:
        """For loads: wait until a server is about to be killed, or until the storm is calm."""
        self.threatened.clear()
        await self.threatened.wait()

    @property
    def engines(self) -> int:
        return sum(target.engines for target in self.targets)

    @property
    def is_broken(self) -> bool:
        """Processes do not live again, so their workloads would not come to an end."""
        return not self.failures.keys().isdisjoint({BLACKOUT, *(target.name for target in self.targets)})

    async def guarded(self, name: str, work: Awaitable[Any], within_s: float) -> Any:
        """An error of one workload is noted under its name, and the others go on."""
        try:
            async with asyncio.timeout(within_s):
                return await work
        except Exception:
            self.note(name, traceback.format_exc())

    def note(self, name: str, failure: str) -> None:
        print(f"--- {name}\n{failure}", flush=True)  # at once: the rest of a storm that has failed may take minutes
        self.failures.setdefault(name, []).append(failure)


class Group(Target):
    """Processes of the fleet that are all alike. `word`: what each writes to its log when it is up."""

    def __init__(self, storm: Storm, name: str, launch: Callable[[int], EngineProcess], size: int, word: str) -> None:
        super().__init__()
        self.name, self._storm, self._launch, self._size, self._word = name, storm, launch, size, word
        self.processes: list[EngineProcess] = []
        self._deck: list[int] = []
        """Processes that are struck before one is struck again."""

    async def start(self) -> None:
        self.processes = [self._launch(n) for n in range(self._size)]
        await self._all_up()

    async def _all_up(self) -> None:
        def is_up() -> bool:
            return all(self._word in one.err.read_text() + one.out.read_text() for one in self.processes)

        await until(is_up, f"{self.name} is up", UP_S)

    async def strike(self, randomness: random.Random) -> None:
        self._deck = self._deck or randomness.sample(range(self._size), self._size)
        n = self._deck.pop()
        await self._kill_one(self.processes[n])
        self.processes[n] = self._launch(n)
        await self._all_up()

    async def kill(self) -> None:
        for one in self.processes:
            await self._kill_one(one)

    async def stop(self) -> None:
        for one in self.processes:
            self._check_alive(one)

    def _check_alive(self, one: EngineProcess) -> None:
        code = one.process.poll()
        assert code is None, f"{self.name} ended by itself with {code}:\n{one.err.read_text()[-3000:]}"

    async def _kill_one(self, one: EngineProcess) -> None:
        self._check_alive(one)
        await asyncio.to_thread(one.kill)
        self._storm.killed(self.name, one.process.pid)


class ServerGroup(Group):
    engines = SERVERS

    async def aim(self, randomness: random.Random) -> None:
        self._storm.threatened.set()
        await self._storm.passes(randomness.uniform(0.0, 0.5))


async def run_storm(storm: Storm, workloads: Sequence[Workload]) -> dict[str, str]:
    """The whole storm. Returns what each workload has seen; `storm.failures` has what went wrong."""
    for one in workloads:
        storm.targets += await one.prepare(storm)
    servers = ServerGroup(storm, "server", storm.fleet.server, SERVERS, "ready")
    modules = sorted({module for one in workloads for module in one.serves})
    workers = Group(
        storm, "worker", lambda _: storm.fleet.worker(storm.fleet.addresses, SLOTS, modules), WORKERS, "connected"
    )
    await servers.start()
    await asyncio.gather(*(target.start() for target in [workers, *storm.targets]))
    storm.targets += [servers, workers]
    async with Client(",".join(storm.fleet.addresses), call_timeout="5s") as storm.client:
        loads = [asyncio.create_task(storm.guarded(one.name, one.load(storm), _load_s(storm))) for one in workloads]
        try:
            await _strike(storm, workloads)
            if storm.is_broken:
                return {}
            await _settle(storm, workloads, loads)
        finally:
            for load in loads:
                load.cancel()
    storm.tallies = await asyncio.to_thread(storm.fleet.verify)
    if violated(storm.tallies):
        storm.note("verifier", f"{violated(storm.tallies)}")
    return {one.name: str(await storm.guarded(one.name, one.check(storm), SETTLE_S)) for one in workloads}


def _load_s(storm: Storm) -> float:
    return EXTENSION * storm.seconds + STRIKE_S + LOAD_S


async def _strike(storm: Storm, workloads: Sequence[Workload]) -> None:
    """Kill until the time is over and every workload was hit, or until something has failed."""
    began = time.monotonic()
    strikes = [asyncio.create_task(_strike_one(storm, target)) for target in storm.targets]

    async def is_enough() -> bool:
        elapsed = time.monotonic() - began
        if elapsed > storm.seconds / 2 and not storm.blackouts:
            await storm.guarded(BLACKOUT, _black_out(storm), LOAD_S)
        if elapsed < storm.seconds or storm.failures:
            return bool(storm.failures)
        missed = [one.name for one in workloads if not await one.is_hit()]
        if missed and elapsed > EXTENSION * storm.seconds:
            storm.note("storm", f"no kill has hit {missed} in {elapsed:.0f} s: the test has shown nothing")
        return not missed

    await until(is_enough, within_s=_load_s(storm))
    storm.over.set()
    if storm.is_broken:
        for one in strikes:
            one.cancel()
    await asyncio.gather(*strikes, return_exceptions=storm.is_broken)


async def _strike_one(storm: Storm, target: Target) -> None:
    randomness = random.Random(f"{storm.seed}:{target.name}")
    while not storm.over.is_set() and target.name not in storm.failures:
        with suppress(TimeoutError):
            await asyncio.wait_for(storm.over.wait(), randomness.uniform(*target.every_s))
        if not storm.over.is_set():
            await storm.guarded(target.name, target.aim(randomness), STRIKE_S)
        async with target.lock:
            if not storm.over.is_set():
                await storm.guarded(target.name, target.strike(randomness), STRIKE_S)


async def _black_out(storm: Storm) -> None:
    """For a while no engine lives."""
    storm.blackouts += 1
    engines = [target for target in storm.targets if target.engines]
    engines.sort(
        key=lambda target: target.every_s, reverse=True
    )  # who is struck most often waits for the others the shortest
    for target in engines:
        await target.lock.acquire()
    await asyncio.gather(*(target.kill() for target in engines))
    await storm.passes(DARK_S)
    await asyncio.gather(*(_start_again(target) for target in engines))


async def _start_again(target: Target) -> None:
    await target.start()
    target.lock.release()


async def _settle(storm: Storm, workloads: Sequence[Workload], loads: Sequence[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*(storm.guarded(one.name, one.restore(), STRIKE_S) for one in storm.targets))
    storm.calm.set()
    storm.threatened.set()
    await asyncio.gather(*loads)
    await _resume_looped(storm, workloads)
    await asyncio.gather(*(storm.guarded(one.name, one.settle(storm), SETTLE_S) for one in workloads))
    await at_rest(storm.dsn, REST_S)
    if await count(storm.dsn, "select count(*) from perdure.run_queue"):
        storm.note("rest", f"{await describe_active(storm.dsn)}\n{storm.fleet.errors()}")
    for target in storm.targets:
        await storm.guarded(target.name, target.stop(), SETTLE_S)


async def _resume_looped(storm: Storm, workloads: Sequence[Workload]) -> None:
    """Runs that were in too many killed processes in a row are stuck, as they should be: an operator resumes them."""
    loops = {workflow for one in workloads for workflow in one.loops}
    halted = "select run_id::text as run, workflow, stuck from perdure.run_queue where halted"
    for row in await fetch_rows(storm.dsn, halted):
        if row["workflow"] in loops and (row["stuck"] or "").startswith(CRASH_LOOPS):
            await (await storm.client.get(row["run"])).resume()
        else:
            storm.note("stuck", f"{dict(row)}")


async def fetch_rows(dsn: str, query: str, *arguments: Any) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        return list(await connection.fetch(query, *arguments))
    finally:
        await connection.close()
