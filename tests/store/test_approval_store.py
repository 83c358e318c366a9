"""The store of approvals: what the columns hold, what goes with a run, locks, the secret, and used links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure import Approval, Perdure, workflow
from perdure.core import ids
from perdure.core.api import approvals, messages, runs
from perdure.core.api.approvals import GetApproval, ListApprovals
from perdure.core.api.messages import ResolvePromise
from perdure.core.api.runs import TerminateRun
from perdure.core.approvals import Vote
from perdure.core.errors import InvalidInput
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
    assert await (await perdure.get(ids.text(run))).result("3m") == "done"
    c = await asyncpg.connect(dsn)
    try:
        for table in ("promise", "vote", "inbox"):
            assert await c.fetchval(f"select count(*) from perdure.{table}") == 0, table
        assert await c.fetchval("select count(*) from perdure.audit where action = 'approval.approve'") == 2
    finally:
        await c.close()


async def test_decided_and_expired_approvals_stay_for_a_while(perdure: Perdure, sql: Any) -> None:
    async def decided(**wanted: Any) -> list[tuple[str, str, list[str]]]:
        found = await listed(perdure, ListApprovals(state="decided", **wanted))
        return [(ids.text(s.run_id), s.status, [v.who for v in s.votes]) for s in found]

    assert await decided() == []
    yes, no, late, late_and_over = [ids.text(await ask(perdure)) for _ in range(4)]
    for who in ("ada", "ben"):
        await ok.approve(yes, by=who, comment="fine")
    assert await (await perdure.get(yes)).result("3m") == "done"
    await ok.reject(no, by="ben")
    await sql.execute(
        "update perdure.promise set deadline_at = now() - interval '1 day',"
        " spec = jsonb_set(spec::jsonb, '{deadline_us}', to_jsonb((extract(epoch from now() - interval '1 day') * 1000000)::bigint))::text"
        " where run_id = any($1::uuid[])",
        [late, late_and_over],
    )
    await perdure._backend.call(runs.TERMINATE, TerminateRun(late_and_over, "over"))
    await until(lambda: is_over(perdure, late_and_over))
    assert await decided() == [
        (no, "rejected", ["ben"]),
        (yes, "approved", ["ada", "ben"]),
        *((run, "expired", []) for run in sorted((late, late_and_over), reverse=True)),
    ]
    (first,) = await listed(perdure, ListApprovals(state="decided", decided_by="ada"))
    assert (first.workflow, first.spec.title, first.votes[0].comment) == ("store_ok_flow", "Ok?", "fine")
    assert first.decided_us == first.resolved_us and first.resolved_us >= first.votes[-1].at_us
    assert [run for run, *_ in await decided(workflow="other")] == []
    paged, after = [], None
    while True:
        page = await perdure._backend.call(approvals.LIST, ListApprovals(state="decided", after=after, limit=1))
        paged += [ids.text(s.run_id) for s in page.items]
        after = page.next
        if after is None:
            break
    assert paged == [run for run, *_ in await decided()]
    await sql.execute(
        "update perdure.decided_approval set decided_at = decided_at - interval '31 days' where run_id = $1", no
    )
    await perdure.store.sweep()
    assert no not in [run for run, *_ in await decided()]


async def test_an_approval_that_is_resolved_by_hand_was_decided_by_no_vote(perdure: Perdure) -> None:
    run = ids.text(await ask(perdure, store_anybody_flow))
    await perdure._backend.call(messages.RESOLVE, ResolvePromise(run, "store_anybody", b"1"))
    (found,) = await listed(perdure, ListApprovals(state="decided"))
    assert (found.status, found.votes, found.decided_us is not None) == ("resolved", [], True)


async def test_open_and_decided_approvals_have_filters_of_their_own(perdure: Perdure) -> None:
    for wanted in (
        ListApprovals(decided_by="ada"),
        ListApprovals(state="decided", assignee="ada"),
        ListApprovals(state="decided", run="key:x"),
    ):
        with pytest.raises(InvalidInput):
            await listed(perdure, wanted)


async def is_over(perdure: Perdure, run: str) -> bool:
    return (await (await perdure.get(run)).status()) == "cancelled"


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
