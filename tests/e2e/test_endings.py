"""Runs whose code cannot run: the engine ends them when they are cancelled or at their deadline, and gives their slots back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg
import pytest

from perdure import Handle, Limit, Perdure, Signal, flow, task, wf, workflow
from perdure.core import ids
from perdure.core.api import flow_control
from perdure.core.api.flow_control import PauseScope
from perdure.core.lifecycle import RunStatus
from perdure.engine.commits.rows import unsealed
from perdure.engine.services import endings
from perdure.errors import RunCancelled, RunFailed
from perdure.sdk.client.backend import backend
from perdure.store.endings import PostgresEndings
from perdure.store.postgres import PostgresStore
from perdure.store.verify import verify
from tests.fakes.waiting import turns, until

WITHIN_S = 2.0
"""As docs/how-to/operate.md says."""
HOUR_S = 3600.0
go = Signal("end_go", bool)
undone: list[str] = []
ended_histories: dict[str, list[Any]] = {}
"""Of runs that a test deletes."""


@task(name="end_one")
async def one() -> int:
    return 1


@task(name="end_two")
async def two() -> int:
    return 2


@task(name="end_refund")
async def refund() -> None:
    undone.append("charge")


@task(name="end_charge", undo=refund)
async def charge() -> int:
    return 1


@workflow(name="end_changed")
async def changed_before() -> None:
    await one()
    await go.next()
    await wf.call("end_task_that_nobody_has")


@workflow(name="end_changed")
async def changed_after() -> None:
    await two()
    await go.next()


@workflow(name="end_waiting")
async def waiting() -> None:
    await one()
    await go.next()


@workflow(name="end_charged")
async def charged() -> None:
    await charge()
    await go.next()


@workflow(name="end_parent")
async def parent() -> None:
    await changed_before()


@workflow(name="end_limited", limit=Limit(1))
async def limited() -> str:
    await one()
    await go.next()
    return "done"


@workflow(name="end_limited", limit=Limit(1))
async def limited_after() -> str:
    await two()
    await go.next()
    return "done"


FLOW = {"flow": "end-flow", "tasks": {"a": {"wait": "10h"}}}


def serving(dsn: str, *definitions: Any) -> Perdure:
    """A client whose worker has these definitions under their names."""
    client = Perdure(dsn)
    assert client.worker is not None
    for definition in definitions:
        client.worker.adopt(definition)
    return client


def watching(dsn: str) -> Perdure:
    """A client without a worker: no code runs here."""
    return Perdure(dsn, worker=False)


async def query(dsn: str, sql: str, *args: object) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetch(sql, *args)  # type: ignore[no-any-return]
    finally:
        await connection.close()


async def has(handle: Handle[Any], event: str) -> bool:
    return any(type(r.event).__name__ == event for r in await handle.history())


async def is_stuck(handle: Handle[Any]) -> bool:
    return (await handle.describe()).stuck is not None


async def is_over(handle: Handle[Any]) -> bool:
    return (await handle.describe()).finished_us is not None


async def let_time_pass(client: Perdure) -> None:
    """An hour and a second, by the database's clock as this client sees it."""
    client.store.shift_clock(HOUR_S + 1)
    client.engine.clock.sync((await client.store.next_due([], [], flows=True)).clock_us)
    client.engine.timers.fire()


async def clean(dsn: str) -> None:
    """Nothing is left over, and everything fits together."""
    left = "select (select count(*) from perdure.inbox) + (select count(*) from perdure.task_queue) + (select count(*) from perdure.flow_control_slot) as n"
    await until(lambda: _none(dsn, left))
    assert not [(t.number, t.examples) for t in await verify(dsn, at_rest=True) if t.violations]


async def _none(dsn: str, sql: str) -> bool:
    return (await query(dsn, sql))[0]["n"] == 0


# -- six ways not to end -----------------------------------------------------------------------------------------------

Made = tuple[Perdure, Handle[Any], Handle[Any]]
"""A client that goes on, the run that is cancelled or has a deadline, and the run that nothing could end."""
Way = Callable[[str], Any]


@asynccontextmanager
async def changed_code(dsn: str) -> AsyncIterator[Made]:
    async with serving(dsn, changed_before):
        handle = await changed_before.options(timeout="1h").start()
        await until(lambda: has(handle, "TasksSucceeded"))
        await go.send(handle.id, True)
        await until(lambda: _queued(dsn))
    async with serving(dsn, changed_after) as client:
        found = await client.get(handle.id)
        await go.send(handle.id, True)
        await until(lambda: is_stuck(found))
        yield client, found, found


async def _queued(dsn: str) -> bool:
    """The task that no worker takes has its row: it goes with the run."""
    return bool(await query(dsn, "select from perdure.task_queue"))


@asynccontextmanager
async def stuck_child(dsn: str) -> AsyncIterator[Made]:
    async with serving(dsn, changed_before):
        top = await parent.options(timeout="1h").start()
        await until(lambda: has(top, "ChildStarted"))
        (row,) = await query(dsn, "select run_id from perdure.run_queue where workflow = 'end_changed'")
        await until(lambda: _has_task(dsn, row["run_id"].bytes))
    async with serving(dsn, changed_after) as client:
        child = await client.get(ids.text(row["run_id"].bytes))
        await go.send(child.id, True)
        await until(lambda: is_stuck(child))
        yield client, await client.get(top.id), child


async def _has_task(dsn: str, run_id: bytes) -> bool:
    return bool(await query(dsn, "select from perdure.task where run_id = $1", ids.text(run_id)))


@asynccontextmanager
async def never_begun(dsn: str) -> AsyncIterator[Made]:
    async with watching(dsn) as client:
        handle = await waiting.options(timeout="1h").start()
        yield client, handle, handle


@asynccontextmanager
async def workers_gone(dsn: str) -> AsyncIterator[Made]:
    async with serving(dsn, waiting):
        handle = await waiting.options(timeout="1h").start()
        await until(lambda: has(handle, "TasksSucceeded"))
    async with watching(dsn) as client:
        found = await client.get(handle.id)
        yield client, found, found


@asynccontextmanager
async def in_line(dsn: str) -> AsyncIterator[Made]:
    async with serving(dsn, limited) as client:
        first = await limited.start()
        handle = await limited.options(timeout="1h").start()
        await until(lambda: _blocked(dsn))
        yield client, handle, handle
        history = [type(e).__name__ for e in ended_histories.pop(handle.id)]
        assert "RunBegan" not in history, "its code never ran"
        await go.send(first.id, True)
        assert await first.result("3m") == "done"


async def _blocked(dsn: str) -> bool:
    return bool(await query(dsn, "select from perdure.flow_control_group where blocked is not null"))


@asynccontextmanager
async def unreadable_history(dsn: str) -> AsyncIterator[Made]:
    async with serving(dsn, waiting):
        handle = await waiting.options(timeout="1h").start()
        await until(lambda: has(handle, "TasksSucceeded"))
    await query(dsn, "update perdure.history set body = 'no such thing' where seq > 1")
    async with serving(dsn, waiting) as client:
        found = await client.get(handle.id)
        await go.send(found.id, True)
        await until(lambda: is_stuck(found))
        yield client, found, found


@asynccontextmanager
async def unreadable_definition(dsn: str) -> AsyncIterator[Made]:
    async with watching(dsn) as client:
        await client.deploy(FLOW)
        await query(dsn, "update perdure.workflow_version set document = '{'")
        handle: Handle[Any] = await flow("end-flow").options(timeout="1h").start()
        await until(lambda: is_stuck(handle))
        yield client, handle, handle


@asynccontextmanager
async def paused_queue(dsn: str) -> AsyncIterator[Made]:
    async with serving(dsn, waiting) as client:
        await backend().call(flow_control.PAUSE, PauseScope("queue", "default", "closed"))
        handle = await waiting.options(timeout="1h").start()
        await until(lambda: _queued(dsn))
        yield client, handle, handle


WAYS: list[Way] = [
    paused_queue,
    changed_code,
    stuck_child,
    never_begun,
    workers_gone,
    in_line,
    unreadable_history,
    unreadable_definition,
]


@pytest.mark.parametrize("is_paused", [False, True], ids=["", "paused"])
@pytest.mark.parametrize("why", ["cancel", "terminate", "deadline"])
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
async def test_a_run_that_no_code_can_end_is_ended_by_the_engine(dsn: str, way: Way, why: str, is_paused: bool) -> None:
    async with way(dsn) as (client, asked, last):
        if is_paused:
            await asked.pause("look at it first")
            assert (await asked.describe()).paused_by == "embedded"
        if why == "cancel":
            await asked.cancel("enough")
        elif why == "terminate":
            await asked.terminate("enough")
            assert await is_over(asked), "it is answered when the run has ended"
        else:
            await let_time_pass(client)
        for handle in dict.fromkeys((asked, last)):  # the last one ends after the one that was asked
            await until(lambda h=handle: is_over(h), within_s=WITHIN_S)  # type: ignore[misc]
        if why != "deadline":
            with pytest.raises(RunCancelled, match="enough") as cancelled:
                await asked.result("5s")
            assert cancelled.value.failure.code == ("run_terminated" if why == "terminate" else "run_cancelled")
        else:
            with pytest.raises(RunFailed, match="did not end before its deadline") as error:
                await asked.result("5s")
            assert error.value.failure.code == "run_timeout"
        if last is not asked:
            assert (await last.describe()).status == RunStatus.CANCELLED
        client.store.shift_clock(0.0)
        if way is in_line:
            ended_histories[asked.id] = [r.event for r in await asked.history()]
        if is_paused:  # the parent first: while it is active it may not know how its child ended
            for handle in dict.fromkeys((asked, last)):
                await handle.delete()
            assert not await query(dsn, "select from perdure.history h where h.run_id = $1", asked.id)
    if way is unreadable_history and not is_paused:
        tallies = [t for t in await verify(dsn, at_rest=True) if t.violations]
        assert [(t.number, t.violations) for t in tallies] == [(3, 1), (4, 1)], (
            "only that it was changed and cannot be read"
        )
    else:
        await clean(dsn)


async def test_the_end_says_why_the_engine_made_it(dsn: str) -> None:
    async with changed_code(dsn) as (_, handle, _last):
        await handle.cancel("enough")
        await until(lambda: is_over(handle))
        with pytest.raises(RunCancelled, match=r"enough; the engine ended it, because it was stuck \(nondeterminism: "):
            await handle.result("5s")
    async with workers_gone(dsn) as (_, handle, _last):
        await handle.cancel()
        await until(lambda: is_over(handle))
        with pytest.raises(RunCancelled, match="because no worker has the workflow 'end_waiting'"):
            await handle.result("5s")


# -- what is left to code ----------------------------------------------------------------------------------------------


@workflow(name="end_stubborn")
async def stubborn() -> None:
    try:
        await go.next()
    except asyncio.CancelledError:
        await one()
        await go.next()


async def test_a_cancel_request_that_was_read_is_not_forgotten_when_the_workers_go(dsn: str) -> None:
    """It is in the history by then and not in the inbox any more."""
    async with serving(dsn, stubborn) as client:
        handle = await stubborn.start()
        await handle.cancel("enough")
        await until(lambda: has(handle, "TasksSucceeded"))
        assert not await query(dsn, "select from perdure.inbox")
        await turns()
        assert client.engine.counters.runs_ended_without_code == 0, "its code is here"
    async with watching(dsn) as client:
        found = await client.get(handle.id)
        await until(lambda: is_over(found), within_s=WITHIN_S)
        with pytest.raises(RunCancelled, match="enough"):
            await found.result("5s")
    await clean(dsn)


async def test_a_run_with_something_to_undo_waits_for_a_worker(dsn: str) -> None:
    undone.clear()
    async with serving(dsn, charged):
        handle = await charged.start()
        await until(lambda: has(handle, "TasksSucceeded"))
    async with watching(dsn) as client:
        found = await client.get(handle.id)
        await found.cancel("enough")
        await until(lambda: _patient(dsn))
        assert not await is_over(found)
    async with serving(dsn, charged) as client:
        with pytest.raises(RunCancelled, match="enough"):
            await (await client.get(handle.id)).result("3m")
    assert undone == ["charge"]
    await clean(dsn)


async def _patient(dsn: str) -> bool:
    return bool(await query(dsn, "select from perdure.run_queue where undo_wait_until > now()"))


async def test_and_not_for_ever(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "UNDO_WORKER_GRACE_US", 300_000)
    undone.clear()
    async with serving(dsn, charged):
        handle = await charged.start()
        await until(lambda: has(handle, "TasksSucceeded"))
    async with watching(dsn) as client:
        found = await client.get(handle.id)
        await found.cancel("enough")
        await until(lambda: is_over(found))
        with pytest.raises(RunCancelled, match="not undone: end_charge"):
            await found.result("5s")
    assert undone == []
    await clean(dsn)


# -- slots -------------------------------------------------------------------------------------------------------------


async def test_a_stuck_run_gives_its_slot_back_and_waits_for_it_when_it_is_resumed(dsn: str) -> None:
    async with serving(dsn, limited):
        first = await limited.start()
        await until(lambda: has(first, "TasksSucceeded"))
        second = await limited.start()
        await until(lambda: _blocked(dsn))
    async with serving(dsn, limited_after) as client:
        await go.send(first.id, True)
        stuck, waiting = await client.get(first.id), await client.get(second.id)
        await until(lambda: is_stuck(stuck))
        await until(lambda: has(waiting, "TasksSucceeded"))
        (holder,) = await query(dsn, "select run_id from perdure.flow_control_slot")
        assert str(holder["run_id"]) == second.id
        assert client.worker is not None
        client.worker.adopt(limited)
        await (await client.get(first.id)).resume()
        await until(lambda: _waits(dsn, first.id))
        await go.send(second.id, True)
        assert await (await client.get(second.id, workflow=limited)).result("3m") == "done"
        assert await (await client.get(first.id, workflow=limited)).result("3m") == "done"
    await clean(dsn)


async def _waits(dsn: str, run_id: str) -> bool:
    sql = "select from perdure.run_queue where run_id = $1 and group_id is not null and admitted_at is null and stuck is null"
    return bool(await query(dsn, sql, run_id))


# -- several engines ---------------------------------------------------------------------------------------------------


async def test_two_engines_never_both_end_a_run(dsn: str) -> None:
    async with watching(dsn) as a, watching(dsn) as b, watching(dsn) as c:
        handles = await asyncio.gather(*(waiting.start() for _ in range(200)))
        await asyncio.gather(*(h.cancel("enough") for h in handles))
        for handle in handles:
            await until(lambda h=handle: is_over(h))  # type: ignore[misc]
        ends = [r for h in handles for r in await h.history() if type(r.event).__name__ == "RunCancelled"]
        assert len(ends) == len(handles)
        assert sum(x.engine.counters.runs_ended_without_code for x in (a, b, c)) == len(handles)
    await clean(dsn)


async def test_an_end_that_breaks_off_in_the_middle_has_done_nothing(dsn: str) -> None:
    """The database refuses the row of the ended run: by then the run was taken over and its events were written."""
    everything = "select owner, epoch, status, stuck, wake_at from perdure.run_queue"
    async with watching(dsn) as client:
        handle = await waiting.start()
    before = await query(dsn, everything)
    await query(dsn, "update perdure.run_queue set deadline_at = now() - interval '1 second'")

    def breaks(found: Any) -> endings.Decision:
        decision = endings.decide(unsealed, found)
        closes = decision.batch.closes
        closes[0] = closes[0]._replace(status="no status")
        return decision

    store = PostgresStore(dsn)
    await store.open()
    session = await store.register("test", 60.0, 0)
    with pytest.raises(endings.Refused) as refused:
        await PostgresEndings(store.pool).end(session.id, -1, [], 10, [], breaks)
    assert refused.value.runs == [ids.parse(handle.id)]
    assert await query(dsn, everything) == before
    found, decision = await PostgresEndings(store.pool).end(
        session.id, -2, [], 10, [], partial(endings.decide, unsealed)
    )
    assert found == [r.id for r in decision.ends] == [ids.parse(handle.id)]
    await store.close()
    assert client.engine.counters.runs_ended_without_code == 0


# -- flows -------------------------------------------------------------------------------------------------------------


async def test_the_timeout_of_a_flow_holds_although_its_document_cannot_be_read(dsn: str) -> None:
    async with watching(dsn) as client:
        await client.deploy({**FLOW, "timeout": "1h"})
        await query(dsn, "update perdure.workflow_version set document = '{'")
        handle: Handle[Any] = await flow("end-flow").start()
        await until(lambda: is_stuck(handle))
        await let_time_pass(client)
        await until(lambda: is_over(handle), within_s=WITHIN_S)
        with pytest.raises(RunFailed, match="did not end before its deadline"):
            await handle.result("5s")
        client.store.shift_clock(0.0)
    await clean(dsn)
