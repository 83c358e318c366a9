"""Waits for named events that look back: an event may come before the wait."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from perdure import EngineSettings, NamedEvent, Perdure, Signal, TestEnv, flow, task, wf, workflow
from perdure.core import events as ev
from perdure.core.placement import Placement
from perdure.engine.services.named_events import FindPast, LookRound
from perdure.errors import RunFailed
from perdure.store import event_looks
from perdure.store.named_events import PostgresNamedEvents
from tests.fakes.waiting import until

LIMIT = "60s"


@dataclass
class Payment:
    customer: str
    n: int


paid = NamedEvent("look.paid", Payment)
go = Signal("look_go", str)
flow_go = Signal("go", str)
lap = Signal("look_lap", str)


@workflow(name="look_one")
async def one(customer: str, since: str | None = None, timeout: str = "30s") -> int:
    """Waits once it is told to."""
    await go.next()
    try:
        return (await paid.wait("event.customer == input.customer", timeout, since)).n
    except TimeoutError:
        return -1


@workflow(name="look_since")
async def since_moment(moment: datetime) -> int:
    await go.next()
    return (await paid.wait(since=moment, timeout="30s")).n


@workflow(name="look_loop")
async def loop(customer: str, times: int) -> list[int]:
    await go.next()
    return [(await paid.wait("event.customer == input.customer")).n for _ in range(times)]


down: list[bool] = []
"""What `check` needs is down while this is not empty."""


@task(name="look_check", retry=1)
async def check() -> None:
    if down:
        raise ValueError("down")


@workflow(name="look_steps")
async def steps(times: int) -> list[int]:
    """Does something between two waits."""
    seen: list[int] = []
    for _ in range(times):
        word = await lap.next()
        if word == "check":
            await check()
        seen.append((await paid.wait()).n)
    return seen


@workflow(name="look_twice")
async def twice() -> list[int]:
    """Two different questions, and two equal ones that are open at the same time."""
    await go.next()
    waits = [paid.wait("event.n > 0"), paid.wait("event.n > 0"), paid.wait("event.n >= 1")]
    return [(await w).n for w in waits]


@workflow(name="look_again")
async def again() -> list[int]:
    """A wait that doesn't look back is given up; the next one looks back."""
    seen: list[int] = []
    for since in ("now", None):
        await go.next()
        try:
            seen.append((await paid.wait(timeout="300ms", since=since)).n)
        except TimeoutError:
            seen.append(-1)
    return seen


@workflow(name="look_continues")
async def continues(round: int = 0) -> int:
    await go.next()
    if round == 0:
        wf.continue_as_new(1)
    return (await paid.wait()).n


DEFINITIONS = [one, since_moment, loop, steps, twice, again, continues]


def embedded(dsn: str) -> Perdure:
    settings = EngineSettings(lease_s=3.0, heartbeat_s=0.2, placement=Placement(idle_s=0.05))
    client = Perdure(dsn, settings=settings)
    assert client.worker is not None
    for definition in DEFINITIONS:
        client.worker.adopt(definition)
    return client


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[Perdure]:
    async with embedded(dsn) as one_client:
        yield one_client


@pytest.fixture
async def db(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def test_wait_gets_the_event_that_came_before_it(client: Perdure, db: Any) -> None:
    run = await one.start("ada")
    await paid.emit(Payment("bob", 1))
    await paid.emit(Payment("ada", 2))
    await paid.emit(Payment("ada", 3))
    await go.send(run.id, "")
    assert await run.result(LIMIT) == 2
    resolved = [r.event for r in await run.history() if isinstance(r.event, ev.PromiseResolved)]
    reached = await db.fetchrow("select id, matched from perdure.named_event where matched > 0")
    assert [(e.event_id, 1) for e in resolved] == [tuple(reached)]
    await until(lambda: db.fetchval("select not exists(select from perdure.event_look)"))


async def test_event_before_the_start_of_the_run_is_not_taken(client: Perdure) -> None:
    await paid.emit(Payment("ada", 1))
    run = await one.start("ada", timeout="300ms")
    await go.send(run.id, "")
    assert await run.result(LIMIT) == -1


async def test_since_now_takes_only_later_events(client: Perdure, db: Any) -> None:
    run = await one.start("ada", "now")
    await paid.emit(Payment("ada", 1))
    await go.send(run.id, "")
    await until(lambda: db.fetchval("select exists(select from perdure.promise)"))
    assert await db.fetchval("select created_at = since from perdure.promise")
    await paid.emit(Payment("ada", 2))
    assert await run.result(LIMIT) == 2


async def test_since_reaches_further_back_than_the_run(client: Perdure, db: Any) -> None:
    await paid.emit(Payment("ada", 1))
    await paid.emit(Payment("ada", 2))
    await paid.emit(Payment("ada", 3))
    await db.execute("update perdure.named_event set at = at - interval '1 hour' where id = 1")
    by_duration = await one.start("ada", "10m")
    by_text = await one.start("ada", (datetime.now(UTC) - timedelta(hours=2)).isoformat())
    by_moment = await since_moment.start(await db.fetchval("select at from perdure.named_event where id = 3"))
    for run in (by_duration, by_text, by_moment):
        await go.send(run.id, "")
    assert await by_duration.result(LIMIT) == 2
    assert await by_text.result(LIMIT) == 1
    assert await by_moment.result(LIMIT) == 3


async def test_loop_gets_each_event_once_and_in_order(client: Perdure, db: Any) -> None:
    run = await loop.start("ada", 40)
    for n in range(20):
        await paid.emit(Payment("ada", n))
        await paid.emit(Payment("bob", n))
    await go.send(run.id, "")
    for n in range(20, 40):
        await paid.emit(Payment("ada", n))
    assert await run.result(LIMIT) == list(range(40))


async def test_events_between_two_waits_are_kept(client: Perdure, db: Any) -> None:
    run = await steps.start(3)
    await lap.send(run.id, "")
    await until(lambda: db.fetchval("select count(*) = 1 from perdure.promise"))
    for n in range(3):
        await paid.emit(Payment("ada", n))
    await until(lambda: db.fetchval("select bool_and(done_at is not null) from perdure.named_event"))
    await lap.send(run.id, "")
    await lap.send(run.id, "")
    assert await run.result(LIMIT) == [0, 1, 2]


async def test_open_waits_and_other_questions_have_their_own_events(client: Perdure) -> None:
    run = await twice.start()
    await paid.emit(Payment("ada", 1))
    await paid.emit(Payment("ada", 2))
    await go.send(run.id, "")
    assert await run.result(LIMIT) == [1, 1, 1]


async def test_wait_that_looks_back_does_not_take_up_one_that_did_not(client: Perdure) -> None:
    run = await again.start()
    await paid.emit(Payment("ada", 1))
    await go.send(run.id, "")
    await go.send(run.id, "")
    assert await run.result(LIMIT) == [-1, 1]


async def test_continued_run_looks_back_to_its_own_start(client: Perdure, db: Any) -> None:
    run = await continues.start()
    await paid.emit(Payment("ada", 1))
    await go.send(run.id, "")
    await until(lambda: db.fetchval("select exists(select from perdure.run where successor is not null)"))
    await paid.emit(Payment("ada", 2))
    await go.send(run.id, "")
    assert await run.result(LIMIT) == 2


async def test_look_goes_on_page_by_page(client: Perdure, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_looks, "EVENT_LOOK_PAGE", 7)
    monkeypatch.setattr(event_looks, "EVENT_LOOK_BYTES", 100)
    monkeypatch.setattr(event_looks, "EVENT_LOOKS_PER_ROUND", 2)
    runs = [await one.start(f"c{n}") for n in range(5)]
    for n in range(60):
        await paid.emit(Payment(f"c{n // 12}", n))
    for run in runs:
        await go.send(run.id, "")
    assert [await run.result(LIMIT) for run in runs] == [0, 12, 24, 36, 48]


async def test_look_of_a_dead_engine_is_done_by_another(dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dead(self: PostgresNamedEvents, find: FindPast) -> LookRound:
        return LookRound(0, [], 0)

    with monkeypatch.context() as patch:
        patch.setattr(PostgresNamedEvents, "look_back", dead)
        async with embedded(dsn):
            run = await one.start("ada", timeout="1h")
            await paid.emit(Payment("ada", 5))
            await go.send(run.id, "")
            await until(lambda: db.fetchval("select exists(select from perdure.event_look)"))
            await until(lambda: db.fetchval("select bool_and(done_at is not null) from perdure.named_event"))
    assert await db.fetchval("select count(*) from perdure.promise where resolved_at is null") == 1
    async with embedded(dsn) as other:
        assert await (await other.get(run.id)).result(LIMIT) == 5


async def test_encrypted_waits_look_back(dsn: str, db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "master.keys"
    keys.touch(mode=0o600)
    keys.write_text(base64.b64encode(os.urandom(32)).decode() + "\n")
    monkeypatch.setenv("PERDURE_PAYLOAD_KEYS", f"file:{keys}")
    async with embedded(dsn) as client:
        run = await loop.start("ada", 3)
        for n in range(2):
            await paid.emit(Payment("bob", n))
            await paid.emit(Payment("ada", n))
        await go.send(run.id, "")
        await until(lambda: db.fetchval("select count(*) = 3 from perdure.promise"))
        assert not await db.fetchval("select bool_or(spec like '%customer%') from perdure.promise")
        assert not await db.fetchval("select bool_or(position('bob'::bytea in body) > 0) from perdure.named_event")
        await paid.emit(Payment("ada", 2))
        assert await (await client.get(run.id)).result(LIMIT) == [0, 1, 2]


async def test_two_engines_look_back_side_by_side(dsn: str) -> None:
    async with embedded(dsn) as a, embedded(dsn):
        runs = [await loop.start(f"c{n}", 4) for n in range(10)]
        for k in range(4):
            await asyncio.gather(*(paid.emit(Payment(f"c{n}", k)) for n in range(10)))
            if k == 1:
                await asyncio.gather(*(go.send(run.id, "") for run in runs))
        assert [await run.result(LIMIT) for run in runs] == [[0, 1, 2, 3]] * 10
        histories = [await (await a.get(run.id)).history() for run in runs]
    assert all(sum(isinstance(r.event, ev.PromiseResolved) for r in h) == 4 for h in histories)


async def test_retried_run_does_not_get_events_again(client: Perdure) -> None:
    run = await steps.start(3)
    for n in range(3):
        await paid.emit(Payment("ada", n))
    down.append(True)
    for word in ("", "", "check"):
        await lap.send(run.id, word)
    with pytest.raises(RunFailed, match="down"):
        await run.result(LIMIT)
    down.clear()
    await run.retry()
    assert await run.result(LIMIT) == [0, 1, 2]


async def test_fork_does_not_get_events_again(client: Perdure) -> None:
    run = await steps.start(2)
    for n in range(2):
        await paid.emit(Payment("ada", n))
    await lap.send(run.id, "")
    await until(lambda: _resolved(run, 1))
    at = (await run.history())[-1].seq
    await lap.send(run.id, "")
    assert await run.result(LIMIT) == [0, 1]
    fork = await run.fork(at)
    await lap.send(fork.id, "")
    assert await fork.result(LIMIT) == [0, 1]


async def _resolved(run: Any, count: int) -> bool:
    return sum(isinstance(r.event, ev.PromiseResolved) for r in await run.history()) == count


async def test_time_skipping_waits_look_back() -> None:
    async with TestEnv() as env:
        await paid.emit(Payment("ada", 1))
        await env.advance("1m")
        run = await env.start(one, "ada", timeout="1h")
        await env.advance("1h")
        await paid.emit(Payment("ada", 2))
        await env.advance("30m")
        late = await env.start(one, "ada", "10m", "1h")
        await go.send(run.id, "")
        await go.send(late.id, "")
        assert await run.result(LIMIT) == 2
        await env.advance("2h")
        assert await late.result(LIMIT) == -1


ORDER: dict[str, Any] = {
    "flow": "look-order",
    "tasks": {
        "begin": {"wait": {"signal": "go"}},
        "paid": {
            "wait": {"event": paid.name, "match": "event.customer == input.customer", "timeout": "1s"},
            "depends_on": ["begin"],
        },
    },
    "output": {"n": "${ paid.n }"},
}


def with_since(since: Any, name: str) -> dict[str, Any]:
    body = msgspec.json.decode(msgspec.json.encode(ORDER))
    body["flow"] = name
    body["tasks"]["paid"]["wait"]["since"] = since
    return body


async def test_flow_wait_looks_back_as_far_as_since_says(client: Perdure, db: Any) -> None:
    await client.deploy(ORDER)
    await client.deploy(with_since("${ input.since }", "look-since"))
    await paid.emit(Payment("ada", 1))
    await db.execute("update perdure.named_event set at = at - interval '1 minute'")
    plain = await flow("look-order", dict[str, int]).start(customer="ada")
    wide = await flow("look-since", dict[str, int]).start(customer="ada", since="10m")
    narrow = await flow("look-since", dict[str, int]).start(customer="ada", since="now")
    await paid.emit(Payment("ada", 2))
    for run in (plain, wide, narrow):
        await flow_go.send(run.id, "")
    assert await plain.result(LIMIT) == {"n": 2}
    assert await wide.result(LIMIT) == {"n": 1}
    with pytest.raises(RunFailed, match="no answer came within"):
        await narrow.result(LIMIT)
