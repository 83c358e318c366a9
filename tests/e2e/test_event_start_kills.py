"""Servers that start runs by events are killed at random: every event that was accepted starts its runs once.

Four workflows subscribe to one event (harness/event_started.py). Two clients emit each event under the same key, to different servers, and
repeat it until it is accepted, so most events are emitted several times. PERDURE_KILLS asks for more kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import msgspec
import pytest
from harness.event_started import over, told
from harness.fleet import at_rest, describe_active
from harness.servers import Servers

from perdure import Client
from perdure.core.errors import PerdureError
from perdure.core.events import RunStarted
from perdure.store.verify import verify
from perdure.wire.codec import decode_events
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

SEED = int(os.environ.get("PERDURE_CRASH_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
KILLS = int(os.environ.get("PERDURE_KILLS", "6"))
SERVERS = 2
LEASE_S = 2.0
BURST = 30
"""Events at once. A server that is killed soon after has not decided all of their starts."""
KILL_AFTER_S = (0.0, 0.5)
ORDERS, GROUPS = 4, 7
WORKFLOWS = ("each_event", "each_third", "each_order", "each_group")


@dataclass(frozen=True)
class Decided:
    """A workflow that subscribed to an event, and what came of it."""

    n: int
    workflow: str
    outcome: str
    run: str
    tries: int


async def test_servers_killed_while_they_start_runs_start_each_once(dsn: str, tmp_path: Path) -> None:
    print(f"\nPERDURE_CRASH_SEED={SEED}")
    randomness = random.Random(SEED)
    numbers = itertools.count()
    with Servers(tmp_path, dsn, SERVERS, lease_s=LEASE_S) as fleet:
        servers = [fleet.server(n) for n in range(SERVERS)]
        await until(lambda: all(fleet.is_up(s, "ready") for s in servers), "the servers are up", 60)
        worker = fleet.worker(fleet.addresses, module="harness.event_started")
        await until(lambda: _subscribed(dsn), "the workflows subscribe", 60)
        async with (
            Client(fleet.addresses[0], call_timeout="5s") as one,
            Client(",".join(reversed(fleet.addresses)), call_timeout="5s") as other,
        ):
            sending: list[asyncio.Task[None]] = []
            for _ in range(KILLS):
                up = await until(
                    lambda: [n for n, s in enumerate(servers) if fleet.is_up(s, "ready")], "a server is up"
                )
                number = randomness.choice(up)
                burst = list(itertools.islice(numbers, BURST))
                sending += [asyncio.create_task(_told(client, n)) for n in burst for client in (one, other)]
                await _passes(randomness.uniform(*KILL_AFTER_S))
                await asyncio.to_thread(servers[number].kill)
                servers[number] = fleet.server(number)
            async with asyncio.timeout(120):
                await asyncio.gather(*sending)
            await until(lambda: _all_decided(dsn), "every start is decided", 120)
            # Orders are active until here: which event has started which run can be told.
            await _emitted(one, over, True, "over")
        await at_rest(dsn, 60)
        assert not await _count(dsn, "select count(*) from perdure.run_queue"), await describe_active(dsn)
        assert worker.process.poll() is None
    found = await _decided(dsn)
    accepted = list(range(BURST * KILLS))
    assert await _events(dsn) == Counter(accepted)
    await _check(dsn, accepted, found)
    assert not [t for t in await verify(dsn) if t.violations]
    again = sum(d.tries > 1 for d in found)
    print(f"{KILLS} kills, {len(accepted)} events, {len(found)} starts decided, {again} of them by a second engine")
    assert again > 0, "no kill has hit a start: the test has shown nothing"


async def _check(dsn: str, accepted: list[int], found: list[Decided]) -> None:
    by_workflow: dict[str, list[Decided]] = defaultdict(list)
    for decided in found:
        by_workflow[decided.workflow].append(decided)
    assert set(by_workflow) == set(WORKFLOWS)
    for workflow in WORKFLOWS:
        wanted = [n for n in accepted if n % 3 == 0] if workflow == "each_third" else accepted
        assert Counter(d.n for d in by_workflow[workflow]) == Counter(wanted), workflow
        started = {d.run: d.n for d in by_workflow[workflow] if d.outcome == "started"}
        assert len(started) == sum(d.outcome == "started" for d in by_workflow[workflow]), "one run of two events"
        assert await _runs(dsn, workflow) == started, workflow

    assert {d.outcome for d in found} == {"started", "attached"}
    assert {d.outcome for w in ("each_event", "each_third") for d in by_workflow[w]} == {"started"}
    for workflow, parts in (("each_order", ORDERS), ("each_group", GROUPS)):
        assert sum(d.outcome == "started" for d in by_workflow[workflow]) == parts
        assert len({(d.n % parts, d.run) for d in by_workflow[workflow]}) == parts, "one run for each value"


async def _told(client: Client, n: int) -> None:
    await _emitted(client, told, {"n": n, "order": f"order-{n % ORDERS}", "group": f"group-{n % GROUPS}"}, f"n-{n}")


async def _emitted(client: Client, event: object, value: object, key: str) -> None:
    """Repeated under its key until it is accepted."""
    while True:
        try:
            await client.emit(event, value, key=key)  # type: ignore[arg-type]
            return
        except (PerdureError, OSError):
            await _passes(0.2)


async def _passes(seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), seconds)


@contextlib.asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    c = await asyncpg.connect(dsn)
    try:
        yield c
    finally:
        await c.close()


async def _count(dsn: str, query: str) -> int:
    async with _connected(dsn) as c:
        return int(await c.fetchval(query))


async def _subscribed(dsn: str) -> bool:
    return await _count(dsn, "select count(*) from perdure.workflow_version where subscriptions is not null") == len(
        WORKFLOWS
    )


async def _all_decided(dsn: str) -> bool:
    undecided = "select count(*) from perdure.event_start where outcome is null"
    return not await _count(dsn, undecided)


async def _events(dsn: str) -> Counter[int]:
    async with _connected(dsn) as c:
        rows = await c.fetch("select body from perdure.named_event where name = $1", told.name)
    return Counter(msgspec.json.decode(r["body"])["n"] for r in rows)


async def _decided(dsn: str) -> list[Decided]:
    query = (
        "select e.body, s.workflow, s.outcome, s.run_id::text as run, s.tries "
        "from perdure.event_start s join perdure.named_event e on e.id = s.event_id where e.name = $1"
    )
    async with _connected(dsn) as c:
        rows = await c.fetch(query, told.name)
    return [
        Decided(msgspec.json.decode(r["body"])["n"], r["workflow"], r["outcome"], r["run"], r["tries"]) for r in rows
    ]


async def _runs(dsn: str, workflow: str) -> dict[str, int]:
    """Runs that succeeded, with the number of the event in their input."""
    query = (
        "select r.run_id::text as run, r.status, h.body from perdure.run r join perdure.history h on h.run_id = r.run_id and h.seq = 1 "
        "where r.workflow = $1"
    )
    async with _connected(dsn) as c:
        rows = await c.fetch(query, workflow)
    assert {r["status"] for r in rows} == {"success"}
    return {r["run"]: _number(r["body"]) for r in rows}


def _number(body: bytes) -> int:
    first = decode_events(body)[0]
    assert isinstance(first, RunStarted)
    return next(int(payload["n"]) for payload in _payloads(msgspec.json.decode(first.input)))


def _payloads(call: object) -> Iterator[dict[str, int]]:
    """The payload of the event, wherever the call has it."""
    if isinstance(call, dict):
        if "n" in call:
            yield call
        for part in call.values():
            yield from _payloads(part)
    elif isinstance(call, list):
        for part in call:
            yield from _payloads(part)
