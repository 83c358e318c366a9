"""The store of approvals: what the columns hold, what goes with a run, locks, the secret, and used links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure import Approval, Perdure, workflow
from perdure.core import ids
from perdure.core.api import approvals
from perdure.core.api.approvals import GetApproval, ListApprovals
from perdure.core.approvals import Vote
from perdure.store.approvals import PostgresApprovals
from tests.fakes.waiting import until
from tests.store.blocking import until_blocked

ok = Approval(
    "store_ok",
    assignees=["ada", "ben"],
    quorum=2,
    timeout="1h",
    escalate_after="30m",
    escalate_to=["lead"],
    title="Ok?",
)
anybody = Approval("store_anybody")


@workflow
async def store_ok_flow() -> str:
    await ok.wait(details={"event": "x"})
    return "done"


@workflow
async def store_anybody_flow() -> None:
    await anybody.wait()


@pytest.fixture
async def perdure(dsn: str) -> AsyncIterator[Perdure]:
    async with Perdure(dsn) as found:
        yield found


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def ask(perdure: Perdure, flow: Any = store_ok_flow) -> bytes:
    run = ids.parse((await flow.start()).id)
    await until(lambda: listed(perdure, ListApprovals(run=ids.text(run))))
    return run


async def listed(perdure: Perdure, request: ListApprovals) -> list[Any]:
    return list((await perdure._backend.call(approvals.LIST, request)).items)


async def test_the_columns_are_filled_from_what_was_recorded(perdure: Perdure, dsn: str) -> None:
    run = await ask(perdure)
    c = await asyncpg.connect(dsn)
    try:
        row = await c.fetchrow("select * from perdure.promise where run_id = $1", ids.text(run))
    finally:
        await c.close()
    assert (row["kind"], row["assignees"], row["quorum"], row["escalate_to"]) == (
        "approval",
        ["ada", "ben"],
        2,
        ["lead"],
    )
    assert (row["deadline_at"] - row["escalate_at"]).total_seconds() == 1800
    found = await perdure._backend.call(approvals.GET, GetApproval(ids.text(run), "store_ok"))
    assert found.spec.deadline_us == round(row["deadline_at"].timestamp() * 1e6)
    assert (found.workflow, found.spec.details, found.votes) == ("store_ok_flow", {"event": "x"}, [])


async def test_votes_and_the_promise_go_with_the_run_and_the_audit_stays(perdure: Perdure, dsn: str) -> None:
    run = await ask(perdure)
    for who in ("ada", "ben"):
        await ok.approve(ids.text(run), by=who)
    assert await (await perdure.get(ids.text(run))).result("20s") == "done"
    c = await asyncpg.connect(dsn)
    try:
        for table in ("promise", "vote", "inbox"):
            assert await c.fetchval(f"select count(*) from perdure.{table}") == 0, table
        assert await c.fetchval("select count(*) from perdure.audit where action = 'approval.approve'") == 2
    finally:
        await c.close()


async def test_who_holds_an_approval_holds_it_alone_and_undoes_everything_by_failing(
    perdure: Perdure, sql: Any
) -> None:
    run, ns, store = await ask(perdure), perdure.engine.ns, PostgresApprovals(perdure.store.pool)
    order: list[str] = []
    held_now = asyncio.Event()

    async def first() -> None:
        async with store.hold(ns, run, "store_ok") as held:
            await held.cast(Vote(who="ada", approved=True))
            held_now.set()
            await until_blocked(sql)
            order.append("first")
            raise KeyError("changed my mind")

    async def second() -> None:
        await held_now.wait()
        async with store.hold(ns, run, "store_ok") as held:
            order.append("second")
            assert held.standing is not None and held.standing.votes == []

    with pytest.raises(KeyError):
        await asyncio.gather(first(), second())
    await until(lambda: order == ["first", "second"])


async def test_a_run_cannot_end_while_somebody_answers(perdure: Perdure, sql: Any) -> None:
    run, ns, store = await ask(perdure), perdure.engine.ns, PostgresApprovals(perdure.store.pool)
    handle = await perdure.get(ids.text(run))
    async with store.hold(ns, run, "store_ok") as held:
        assert held.is_active
        await handle.cancel("enough")
        await until_blocked(sql)
        assert await handle.status() == "running"

    async def is_cancelled() -> bool:
        return await handle.status() == "cancelled"

    await until(is_cancelled)
    async with store.hold(ns, run, "store_ok") as gone:
        assert (gone.is_active, gone.standing) == (False, None)


async def test_another_namespace_holds_and_finds_nothing(perdure: Perdure) -> None:
    run, store = await ask(perdure), PostgresApprovals(perdure.store.pool)
    other = perdure.engine.ns + 1
    assert await store.find(other, run, "store_ok") is None
    assert await store.of_run(other, run, 10) == []
    assert (await store.page(other, None, None, None, 10)).items == []
    async with store.hold(other, run, "store_ok") as held:
        assert (held.is_active, held.standing) == (False, None)


async def test_the_secret_is_made_once_whoever_asks_first(dsn: str) -> None:
    stores = [PostgresApprovals(dsn) for _ in range(4)]
    try:
        await asyncio.gather(*(s.open() for s in stores))
        found = {await s.secret() for s in stores} | set(await asyncio.gather(*(s.secret() for s in stores)))
        assert len(found) == 1 and len(found.pop()) == 32
    finally:
        await asyncio.gather(*(s.close() for s in stores))


async def test_a_link_is_used_once_and_forgotten_after_it_has_expired(
    perdure: Perdure, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.store.approvals.SWEEP_EVERY", 1)
    run, ns, store = (
        await ask(perdure, store_anybody_flow),
        perdure.engine.ns,
        PostgresApprovals(perdure.store.pool),
    )
    now = await store.now_us()
    day = 86_400_000_000
    for expires, id in ((now - 2 * day, b"old"), (now + day, b"new")):
        async with store.hold(ns, run, "store_anybody") as held:
            assert await held.use_link(id, expires)
    async with store.hold(ns, run, "store_anybody") as held:
        assert not await held.use_link(b"new", now + day)
    assert (await store.was_used(b"old"), await store.was_used(b"new")) == (False, True)


async def test_a_waiting_approval_of_a_run_that_is_gone_is_not_shown(perdure: Perdure, dsn: str) -> None:
    run = await ask(perdure)
    await (await perdure.get(ids.text(run))).cancel()

    async def none_is_listed() -> bool:
        return not await listed(perdure, ListApprovals(limit=10))

    await until(none_is_listed)
