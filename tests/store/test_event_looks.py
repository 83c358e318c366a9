"""Events, waits, looks and matching in every order of their transactions: each event reaches a wait, and none reaches two."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import chain
from typing import Any

import pytest

from perdure.core.events import PromiseKind
from perdure.core.named_events import wait_spec
from perdure.core.questions import question_of
from perdure.engine.services.named_events import OpenEvent, OpenWait
from perdure.store import named_events as store_module
from perdure.store.connections import connect
from perdure.store.event_looks import look_back
from perdure.store.named_events import PostgresNamedEvents
from perdure.store.postgres import PostgresStore
from perdure.store.queries import fetch_row
from tests.store.test_conditions import NS, RUN, add_run

BLOCKED_S = 0.03
"""After which a step counts as one that waits for a lock of another."""
SCHEDULES = 60


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    one = PostgresStore(dsn)
    await one.open()
    yield one
    await one.close()


class Actor:
    """A transaction on a connection of its own, in steps: begin with some work, commit."""

    def __init__(self, connection: Any, work: Callable[[Any], Awaitable[object]], times: int = 1) -> None:
        self.c, self.work = connection, work
        self.steps = ["run", "commit"] * times
        self._last: asyncio.Task[None] | None = None

    async def step(self) -> None:
        """The next step. It doesn't wait for a lock that another actor holds."""
        word = self.steps.pop(0)
        self._last = asyncio.create_task(self._do(word, self._last))
        await asyncio.wait([self._last], timeout=BLOCKED_S)

    async def finish(self) -> None:
        if self._last is not None:
            await self._last

    async def _do(self, word: str, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        if word == "run":
            await self.c.execute("begin")
            await self.work(self.c)
        else:
            await self.c.execute("commit")


class World:
    """One run, and what happens to its waits for the event `e`."""

    def __init__(self, store: PostgresStore, connections: Sequence[Any]) -> None:
        self.named = PostgresNamedEvents(store.pool)
        self.connections = list(connections)
        self.sql = self.connections[0]
        self._since_us = 0

    async def begin(self) -> None:
        for table in ("promise", "event_look", "named_event", "inbox", "run_queue"):
            await self.sql.execute(f"delete from perdure.{table}")
        await add_run(self.sql, RUN)
        self._since_us = await self.sql.fetchval("select (extract(epoch from now()) * 1000000)::bigint") - 1_000_000

    def emit(self, body: bytes) -> Callable[[Any], Awaitable[object]]:
        return lambda c: fetch_row(c, "emit_event", ns=NS, name="e", key=None, body=body, source="test")

    def wait(self, name: str, match: str = "event > 0") -> Callable[[Any], Awaitable[object]]:
        insert = (
            "insert into perdure.promise (run_id, name, ns, created_at, kind, spec, event, question) "
            "values ($1, $2, $3, perdure.clock(), 'event', $4, 'e', $5)"
        )
        spec = wait_spec("e", match, {}, self._since_us)
        question = question_of(PromiseKind.EVENT, spec)
        return lambda c: c.execute(insert, RUN, name, NS, spec.decode(), question)

    async def look(self, c: Any) -> object:
        return await look_back(c, self._find_past)

    async def match(self, c: Any) -> object:
        return await self.named._match(c, self._find)

    async def settle(self) -> None:
        """Looks and matching go on until nothing is left to do."""
        while (await self.named.look_back(self._find_past)).looks or (await self.named.match(self._find)).events:
            pass

    async def got(self) -> dict[str, int]:
        """Waits that have an event, with the number in its body. Each has it once."""
        rows = await self.sql.fetch(
            "select p.name, convert_from(e.body, 'utf8')::int as n from perdure.promise p join perdure.named_event e on e.id = p.event_id"
        )
        assert await self.sql.fetchval("select count(*) from perdure.inbox") == len(rows)
        return {r["name"]: r["n"] for r in rows}

    async def _find(self, event: OpenEvent, waits: Sequence[OpenWait]) -> list[OpenWait]:
        return [w for w in waits if int(event.body) > 0]

    async def _find_past(self, wait: OpenWait, events: Sequence[OpenEvent]) -> OpenEvent | None:
        return next((e for e in events if int(e.body) > 0), None)


@pytest.fixture
async def world(store: PostgresStore, dsn: str) -> AsyncIterator[World]:
    connections = [await connect(dsn) for _ in range(6)]
    made = World(store, connections)
    await made.begin()
    yield made
    for c in connections:
        await c.close()


async def play(order: Sequence[Actor]) -> None:
    for actor in order:
        await actor.step()
    for actor in dict.fromkeys(order):
        await actor.finish()


async def test_look_finds_what_came_since_the_moment_that_the_wait_names(world: World) -> None:
    _, e, w, *_ = world.connections
    for body, age_s in ((b"9", 5.0), (b"1", 0.5), (b"2", 0.4)):
        await play([event := Actor(e, world.emit(body)), event])
        await world.sql.execute(
            "update perdure.named_event set at = now() - make_interval(secs => $2), done_at = now() where body = $1",
            body,
            age_s,
        )
    for name, wanted in (("a", 1), ("b", 2)):
        await play([wait := Actor(w, world.wait(name)), wait])
        await world.settle()
        assert (await world.got()).get(name) == wanted
    await play([third := Actor(w, world.wait("c")), third])
    await world.settle()
    assert set(await world.got()) == {"a", "b"}


async def test_event_that_commits_after_the_look_is_matched(world: World) -> None:
    _, e, w, look, match, _ = world.connections
    event, wait = Actor(e, world.emit(b"1")), Actor(w, world.wait("a"))
    looks, matches = Actor(look, world.look, 3), Actor(match, world.match)
    await play([event, wait, wait, *[looks] * 6, event, matches, matches])
    assert await world.got() == {"a": 1}


async def test_event_matched_during_the_first_look_is_found_by_the_final_one(world: World) -> None:
    _, e, w, look, match, _ = world.connections
    event, wait = Actor(e, world.emit(b"1")), Actor(w, world.wait("a"))
    looks, matches = Actor(look, world.look, 2), Actor(match, world.match)
    # The page was read before the event was there, and the event is matched before the look is committed.
    await play([wait, wait, looks, event, event, matches, matches, looks])
    assert await world.got() == {}
    assert await world.sql.fetchval("select done_at is not null from perdure.named_event")
    await play([looks, looks])
    assert await world.got() == {"a": 1}


async def test_event_behind_the_place_of_the_look_is_found(world: World) -> None:
    _, e, w, look, match, other = world.connections
    event, later = Actor(e, world.emit(b"1")), Actor(other, world.emit(b"0"))
    wait, looks, matches = Actor(w, world.wait("a")), Actor(look, world.look, 3), Actor(match, world.match, 2)
    # The look passes an event that does not fit. The one that does is older, and its transaction ends only now.
    await play([event, later, later, wait, wait, looks, looks, event, matches, matches])
    assert await world.got() == {}
    await play([looks, looks, looks, looks])
    assert await world.got() == {"a": 1}


async def test_event_matched_before_the_wait_was_committed_is_found(world: World) -> None:
    _, e, w, look, match, _ = world.connections
    event, wait = Actor(e, world.emit(b"1")), Actor(w, world.wait("a"))
    looks, matches = Actor(look, world.look), Actor(match, world.match)
    await play([event, event, wait, matches, wait, looks, matches, looks])
    assert await world.got() == {"a": 1}


async def test_late_event_between_two_waits_is_found_by_the_second(world: World) -> None:
    _, e, w, other, match, _ = world.connections
    late, event = Actor(e, world.emit(b"1")), Actor(other, world.emit(b"2"))
    first, second = Actor(w, world.wait("a")), Actor(w, world.wait("b"))
    await play([late, event, event, first, first])
    await world.settle()
    await play([late, matches := Actor(match, world.match), matches])
    await play([second, second])
    await world.settle()
    assert await world.got() == {"a": 2, "b": 1}


async def test_first_look_gives_the_oldest_although_a_newer_one_is_matched(world: World) -> None:
    _, e, w, look, match, other = world.connections
    old, new = Actor(e, world.emit(b"1")), Actor(other, world.emit(b"2"))
    wait, looks, matches = Actor(w, world.wait("a")), Actor(look, world.look), Actor(match, world.match, 2)
    await play([old, old, matches, matches, wait, wait, new, new, matches, matches, looks, looks])
    assert await world.got() == {"a": 1}


@pytest.mark.parametrize("seed", range(4))
async def test_no_order_of_the_transactions_loses_or_repeats_an_event(world: World, seed: int) -> None:
    dice = random.Random(seed)
    _, e, other, w, look, match = world.connections
    for _ in range(SCHEDULES // 4):
        await world.begin()
        actors = [
            Actor(e, world.emit(b"1")),
            Actor(other, world.emit(b"2")),
            Actor(w, world.wait("a")),
            Actor(look, world.look, 3),
            Actor(match, world.match, 3),
        ]
        order = list(chain.from_iterable([a] * len(a.steps) for a in actors))
        dice.shuffle(order)
        await play(order)
        await world.settle()
        assert set(await world.got()) == {"a"}
        for name in ("b", "c"):
            await play([again := Actor(w, world.wait(name)), again])
            await world.settle()
        got = await world.got()
        assert sorted(got) == ["a", "b"], order
        assert sorted(got.values()) == [1, 2]


async def test_matching_under_way_gives_an_event_only_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "EVENT_WAITS_PAGE", 1)
    _, e, w, _, match, _ = world.connections
    await play([first := Actor(w, world.wait("a")), first])
    await world.settle()
    await play([event := Actor(e, world.emit(b"1")), event])
    await play([matches := Actor(match, world.match), matches])
    assert await world.got() == {"a": 1}
    assert await world.sql.fetchval("select done_at is null from perdure.named_event")
    await play([second := Actor(w, world.wait("b")), second])
    await world.settle()
    assert await world.got() == {"a": 1}


async def test_resolved_wait_leaves_no_look_behind(world: World) -> None:
    await world.wait("a")(world.sql)
    await world.sql.execute("delete from perdure.promise")
    await world.settle()
    assert await world.sql.fetchval("select count(*) from perdure.event_look") == 0
