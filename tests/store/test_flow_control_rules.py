"""Rules that people set: what is kept, and how engines find out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import asyncpg
import pytest

from perdure.core.access import Principal, Role
from perdure.core.api import flow_control as acts
from perdure.core.api.flow_control import ListRules, PauseScope, RateRule, RulePosition, RuleRef, RuleView, SetRule
from perdure.core.errors import InvalidInput, NotFound
from perdure.engine import api as handlers  # noqa: F401  (registers them)
from perdure.engine.api.api import Caller, NamespaceApi
from perdure.store.flow_control_rules import PostgresFlowControlRules
from tests.fakes.waiting import turns

NS = 7


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresFlowControlRules]:
    one = PostgresFlowControlRules(dsn)
    await one.open()
    yield one
    await one.close()


@pytest.fixture
def told() -> list[int]:
    return []


class Book:
    """The acts on rules, over a store and an engine that counts how often rules changed."""

    def __init__(self, store: PostgresFlowControlRules, told: list[int]) -> None:
        async def changed() -> None:
            told.append(1)

        self._parts = SimpleNamespace(
            engine=SimpleNamespace(rules_changed=changed), ports=SimpleNamespace(rules=store, is_audited=False)
        )

    def _api(self, ns: int, by: str) -> NamespaceApi:
        caller = Caller(Principal(subject=by, role=Role.OPERATOR), "default", "sdk")
        return NamespaceApi(self._parts, ns, caller)  # type: ignore[arg-type]

    async def set(
        self, ns: int, scope: str, name: str, concurrency: int | None, rate: RateRule | None, by: str
    ) -> RuleView:
        return await self._api(ns, by).call(acts.SET, SetRule(scope, name, concurrency, rate))

    async def page(self, ns: int, after: RulePosition, limit: int) -> list[RuleView]:
        return (await self._api(ns, "ada").call(acts.LIST, ListRules(after, limit))).items

    async def clear(self, ns: int, scope: str, name: str, by: str) -> None:
        await self._api(ns, by).call(acts.CLEAR, RuleRef(scope, name))

    async def pause(self, ns: int, scope: str, name: str, reason: str, by: str) -> RuleView:
        return await self._api(ns, by).call(acts.PAUSE, PauseScope(scope, name, reason))

    async def resume(self, ns: int, scope: str, name: str, by: str) -> None:
        await self._api(ns, by).call(acts.RESUME, RuleRef(scope, name))


@pytest.fixture
def book(store: PostgresFlowControlRules, told: list[int]) -> Book:
    return Book(store, told)


async def last_change(dsn: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval("select max(updated_at) from perdure.flow_control_rule")
    finally:
        await connection.close()


async def test_limits_of_a_scope_are_set_as_a_whole(book: Book, told: list[int]) -> None:
    made = await book.set(NS, "queue", "io", 10, RateRule(100, 1_000_000, 5), "ada")
    assert (made.concurrency, made.rate, made.updated_by) == (10, RateRule(100, 1_000_000, 5), "ada")
    made = await book.set(NS, "queue", "io", None, RateRule(5, 60_000_000), "grace")
    assert (made.concurrency, made.rate, made.updated_by) == (None, RateRule(5, 60_000_000, None), "grace")
    assert len(told) == 2


async def test_rules_of_one_namespace_are_listed_page_by_page(book: Book) -> None:
    for scope, name in (("workflow", "b"), ("queue", "z"), ("queue", "a"), ("namespace", "-"), ("task", "t")):
        await book.set(NS, scope, name, 1, None, "ada")
    await book.set(NS + 1, "queue", "other", 1, None, "ada")
    await book.set(NS, "task", "gone", 1, None, "ada")
    await book.clear(NS, "task", "gone", "ada")
    found = await book.page(NS, ("", ""), 3)
    assert [(r.scope, r.name) for r in found] == [("namespace", ""), ("queue", "a"), ("queue", "z")]
    rest = await book.page(NS, (found[-1].scope, found[-1].name), 10)
    assert [(r.scope, r.name) for r in rest] == [("task", "t"), ("workflow", "b")]


async def test_limits_and_pauses_are_taken_back_apart(book: Book, told: list[int]) -> None:
    await book.set(NS, "queue", "io", 3, None, "ada")
    paused = await book.pause(NS, "queue", "io", "disk full", "grace")
    assert (paused.concurrency, paused.paused_by, paused.pause_reason) == (3, "grace", "disk full")
    again = await book.pause(NS, "queue", "io", "still full", "ada")
    assert (again.paused_by, again.paused_us, again.pause_reason) == ("grace", paused.paused_us, "still full")
    await book.clear(NS, "queue", "io", "ada")
    [left] = await book.page(NS, ("", ""), 10)
    assert (left.concurrency, left.paused_by) == (None, "grace")
    await book.resume(NS, "queue", "io", "ada")
    assert await book.page(NS, ("", ""), 10) == []
    count = len(told)
    with pytest.raises(NotFound):
        await book.resume(NS, "queue", "io", "ada")
    with pytest.raises(NotFound):
        await book.clear(NS, "queue", "io", "ada")
    assert len(told) == count


async def test_every_change_is_later_than_all_before_it(book: Book, dsn: str) -> None:
    """Engines look at the latest moment only: a change that came in with an earlier one would never be seen."""
    seen: list[object] = []

    async def change(n: int) -> None:
        for _ in range(5):
            await book.set(NS, "queue", f"q{n}", 1 + n, None, "ada")

    async def watch() -> None:
        while len(seen) < 200:
            at = await last_change(dsn)
            if not seen or seen[-1] != at:
                seen.append(at)
            await turns()

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(change(n) for n in range(6)))
    watching.cancel()
    connection = await asyncpg.connect(dsn)
    try:
        moments = [r["updated_at"] for r in await connection.fetch("select updated_at from perdure.flow_control_rule")]
    finally:
        await connection.close()
    assert len(set(moments)) == len(moments)
    known = [s for s in seen if s is not None]
    assert known == sorted(known)  # type: ignore[type-var]
    before = max(moments)
    await book.clear(NS, "queue", "q0", "ada")
    assert await last_change(dsn) > before  # type: ignore[operator]


async def test_a_clock_that_was_set_back_does_not_hide_a_change(book: Book, dsn: str) -> None:
    await book.set(NS, "queue", "io", 1, None, "ada")
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("update perdure.flow_control_rule set updated_at = now() + interval '1 hour'")
    finally:
        await connection.close()
    before = await last_change(dsn)
    await book.set(NS, "queue", "other", 1, None, "ada")
    assert await last_change(dsn) > before  # type: ignore[operator]


@pytest.mark.parametrize(
    ("scope", "name", "concurrency", "rate", "said"),
    [
        ("queu", "io", 1, None, "did you mean 'queue'"),
        ("queue", "", 1, None, "invalid queue name"),
        ("namespace", "x", 1, None, "namespace/-"),
        ("queue", "io", None, None, "to remove it"),
        ("queue", "io", 0, None, "pause it"),
        ("queue", "io", None, RateRule(0, 1), "pause it"),
        ("queue", "io", None, RateRule(1, 0), "a period"),
        ("queue", "io", None, RateRule(1, 1, 0.5), "at once"),
    ],
)
async def test_what_cannot_work_is_refused(
    book: Book, told: list[int], scope: str, name: str, concurrency: int | None, rate: RateRule | None, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        await book.set(NS, scope, name, concurrency, rate, "ada")
    assert told == []
