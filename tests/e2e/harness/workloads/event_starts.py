"""Events that start runs while engines are killed: every event that was accepted starts its runs once.

Four workflows subscribe to one event (harness/event_started.py). Two clients emit each event under the same key, to different servers, and
repeat it until it is accepted, so most events are emitted several times.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from harness.event_started import over, told
from harness.fleet import count
from harness.storm import Storm, Workload, fetch_rows
from perdure import Client
from perdure.core.errors import PerdureError
from perdure.core.events import RunStarted
from perdure.wire.codec import decode_events
from tests.fakes.waiting import until

BURST = 30
"""Events at once. A server that is killed soon after has not decided all of their starts."""
ORDERS, GROUPS = 4, 7
WORKFLOWS = ("each_event", "each_third", "each_order", "each_group")
UNDECIDED = "select count(*) from perdure.event_start where outcome is null"


@dataclass(frozen=True)
class Decided:
    """A workflow that subscribed to an event, and how its start was decided."""

    n: int
    workflow: str
    outcome: str
    run: str
    tries: int


class EventStarts(Workload):
    name = "event starts"
    serves = ("harness.event_started",)

    async def load(self, storm: Storm) -> None:
        """A burst before each kill of a server."""
        self._dsn, self._accepted = storm.dsn, 0
        await until(self._subscribed, "the workflows subscribe", 60)
        numbers = itertools.count()
        async with Client(",".join(reversed(storm.fleet.addresses)), call_timeout="5s") as other:
            sending: list[asyncio.Task[None]] = []
            while not storm.calm.is_set():
                await storm.threatens()
                burst = list(itertools.islice(numbers, BURST))
                self._accepted += BURST
                sending += [asyncio.create_task(_told(c, n, storm)) for n in burst for c in (storm.client, other)]
            async with asyncio.timeout(120):
                await asyncio.gather(*sending)

    async def _subscribed(self) -> bool:
        subscribed = "select count(*) from perdure.workflow_version where subscriptions is not null"
        return await count(self._dsn, subscribed) == len(WORKFLOWS)

    async def is_hit(self) -> bool:
        return await count(self._dsn, "select count(*) from perdure.event_start where tries > 1") > 0

    async def settle(self, storm: Storm) -> None:
        async def all_decided() -> bool:
            return not await count(storm.dsn, UNDECIDED)

        await until(all_decided, "every start is decided", 120)
        # Orders are active until here: which event has started which run can be told.
        await _emitted(storm.client, over, True, "over", storm)

    async def check(self, storm: Storm) -> str:
        found, accepted = await _decided(storm.dsn), list(range(self._accepted))
        bodies = await fetch_rows(storm.dsn, "select body from perdure.named_event where name = $1", told.name)
        assert Counter(msgspec.json.decode(r["body"])["n"] for r in bodies) == Counter(accepted)
        await _check_starts(storm.dsn, accepted, found)
        again = sum(d.tries > 1 for d in found)
        return f"{len(accepted)} events, {len(found)} starts decided, {again} of them by a second engine"


async def _check_starts(dsn: str, accepted: list[int], found: list[Decided]) -> None:
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


async def _told(client: Client, n: int, storm: Storm) -> None:
    value = {"n": n, "order": f"told-{n % ORDERS}", "group": f"group-{n % GROUPS}"}
    await _emitted(client, told, value, f"n-{n}", storm)


async def _emitted(client: Client, event: object, value: object, key: str, storm: Storm) -> None:
    """Repeated under its key until it is accepted."""
    while True:
        try:
            await client.emit(event, value, key=key)  # type: ignore[arg-type]
            return
        except (PerdureError, OSError):
            await storm.passes(0.2)


async def _decided(dsn: str) -> list[Decided]:
    query = (
        "select e.body, s.workflow, s.outcome, s.run_id::text as run, s.tries "
        "from perdure.event_start s join perdure.named_event e on e.id = s.event_id where e.name = $1"
    )
    return [
        Decided(msgspec.json.decode(r["body"])["n"], r["workflow"], r["outcome"], r["run"], r["tries"])
        for r in await fetch_rows(dsn, query, told.name)
    ]


async def _runs(dsn: str, workflow: str) -> dict[str, int]:
    """Runs that succeeded, with the number of the event in their input."""
    query = (
        "select r.run_id::text as run, r.status, h.body from perdure.run r join perdure.history h on h.run_id = r.run_id and h.seq = 1 "
        "where r.workflow = $1"
    )
    found = await fetch_rows(dsn, query, workflow)
    assert {r["status"] for r in found} == {"success"}
    return {r["run"]: _number(r["body"]) for r in found}


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
