"""Faults that the crash tests found in the engine, each narrowed down to its race."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from harness.fleet import count

import perdure
from perdure import EngineSettings, Perdure, Signal, task, wf, workflow
from perdure.core.errors import Fenced
from perdure.core.lifecycle import TaskStatus
from perdure.core.messages import TaskEndedMessage
from perdure.core.placement import Placement
from perdure.engine.commits.committer import Committer
from perdure.engine.commits.policy import CommitPolicy
from perdure.engine.commits.rows import unsealed
from perdure.engine.commits.store import Poison
from perdure.engine.commits.write_queue import WriteQueue
from perdure.engine.counters import Counters
from perdure.engine.session import EngineSession
from perdure.wire.codec import encode_message
from tests.fakes.waiting import busy, holds, until

executed: list[tuple[str, int]] = []


def settings(**more: Any) -> EngineSettings:
    return EngineSettings(
        **{"lease_s": 5.0, "heartbeat_s": 1.0, "placement": Placement(idle_s=0.1, near_s=0.0), **more}
    )


@task(queue="elsewhere", name="regression_far")
async def far(seconds: float) -> int:
    executed.append((perdure.attempt().run_id, perdure.attempt().number))
    await busy(seconds)
    return perdure.attempt().number


@task(name="regression_near")
async def near() -> int:
    return 1


@workflow(name="regression_far_flow")
async def far_flow(seconds: float) -> int:
    return await far(seconds)


word = Signal("regression_word", int)


@workflow(name="regression_hears")
async def hears(words: int) -> list[int]:
    return [await word.next() for _ in range(words)]


@workflow(name="regression_child")
async def child(seconds: float) -> int:
    await wf.sleep(seconds)
    return await near()


@workflow(name="regression_parent")
async def parent(seconds: float) -> int:
    return await child(seconds)


@task(queue="elsewhere", name="regression_far_once", at_most_once=True)
async def far_once() -> int:
    return 1


@workflow(name="regression_far_once_flow")
async def far_once_flow() -> int:
    return await far_once()


async def test_an_end_that_lies_in_the_inbox_while_its_run_is_loaded_is_not_taken_for_lost(dsn: str) -> None:
    """A task that may run only once has left the queue, because it has ended: not because its worker is gone."""
    async with Perdure(dsn, queues=["none"], settings=settings()) as owner:
        handle = await owner.start(far_once_flow)
        c = await asyncpg.connect(dsn)
        await until(lambda: c.fetchval("select count(*) from perdure.task_queue"))
    row = await c.fetchrow("delete from perdure.task_queue returning run_id, ns, seq, attempt")
    end = encode_message(TaskEndedMessage(row["seq"], TaskStatus.SUCCESS, b"7", None, row["attempt"], 0, 1, 2, 3))
    insert = "insert into perdure.inbox (ns, run_id, body, kind) values ($1, $2, $3, 'task')"
    await c.execute(insert, row["ns"], row["run_id"], end)
    await c.close()
    async with Perdure(dsn, queues=["none"], settings=settings()) as heir:
        assert await (await heir.get(handle.id)).result(timeout="30s") == 7


async def test_a_result_that_waits_in_the_inbox_of_a_sleeping_run_is_not_taken_for_lost(dsn: str) -> None:
    """Seen as: invariant 10, attempt 2 of a task that had succeeded in attempt 1."""
    executed.clear()
    async with (
        Perdure(dsn, queues=["none"], settings=settings()) as owner,
        Perdure(dsn, queues=["elsewhere"], settings=settings()),
    ):
        handle = await owner.start(far_flow, 1.5)
        await until(lambda: owner.engine.counters.runs_evicted, within_s=5)
        assert await handle.result(timeout="10s") == 1
        assert executed == [(handle.id, 1)]
        assert await count(dsn, "select count(*) from perdure.task_queue") == 0


async def test_a_parent_does_not_leave_memory_while_its_child_is_about_to_end_there(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen as: a parent that slept for ever, because its child told nobody. The parent was let go between the child's last decision
    and the commit of it."""
    async with Perdure(dsn, settings=settings()) as client:
        handle = await client.start(parent, 0.3)
        engine = client.engine
        close = engine.exits.close

        def close_and_evict(run: Any, *args: Any) -> None:
            close(run, *args)
            if run.state.parent_id:
                engine.eviction.placement = Placement(idle_s=-1.0, near_s=-1.0)
                engine.eviction.evict_idle()

        monkeypatch.setattr(engine.exits, "close", close_and_evict)
        assert await handle.result(timeout="5s") == 1


async def test_a_claim_whose_session_expired_on_the_way_is_not_loaded(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines never both write one run: what was claimed under a lost session belongs to somebody else."""
    held, go_on = asyncio.Event(), asyncio.Event()
    async with Perdure(dsn, worker=False) as client:
        handle = await client.start(far_flow, 0.0)
    async with Perdure(dsn, queues=["none"], settings=settings(heartbeat_s=0.1)) as slow:
        load = slow.store.load
        loads = 0

        async def late(run_ids: Any) -> Any:
            nonlocal loads
            found = await load(run_ids)
            loads += 1
            if loads == 1:
                held.set()
                await go_on.wait()
            return found

        monkeypatch.setattr(slow.store, "load", late)
        await asyncio.wait_for(held.wait(), 5)
        lost = slow.engine.session.id
        await _expire(dsn, lost)
        async with Perdure(dsn, queues=["none"], settings=settings()):
            await until(lambda: slow.engine.session.id != lost)
            taken = f"select coalesce(max(owner), 0) from perdure.run_queue where owner <> {lost}"
            owner = await until(lambda: count(dsn, taken))
            go_on.set()
            await holds(lambda: not slow.engine.runs, 0.1, f"it does not hold {handle.id}, which another engine owns")
            assert owner != slow.engine.session.id
            assert slow.engine.counters.activations == 0, "it executed code of a run that another engine owns"


async def test_mail_that_was_read_before_its_commit_and_arrives_after_it_is_not_delivered_twice(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen as: a run that received 40 signals when 38 had been sent."""
    read_again, committed = asyncio.Event(), asyncio.Event()
    reads = 0
    async with Perdure(dsn, settings=EngineSettings()) as client:
        owned_messages, commit = client.store.owned_messages, client.store.commit

        async def slow_read(session: int, limit: int) -> Any:
            nonlocal reads
            rows = await owned_messages(session, limit)
            reads += bool(rows)
            client.engine.claims.wake()
            if reads == 2 and not committed.is_set():
                read_again.set()
                await committed.wait()
            return rows

        async def slow_commit(session: int, number: int, batch: Any) -> Any:
            if batch.consumed:
                await asyncio.wait_for(read_again.wait(), 5)
            result = await commit(session, number, batch)
            if batch.consumed:
                committed.set()
            return result

        monkeypatch.setattr(client.store, "owned_messages", slow_read)
        monkeypatch.setattr(client.store, "commit", slow_commit)
        handle = await client.start(hears, 2)
        await word.send(handle.id, 1)
        await asyncio.wait_for(committed.wait(), 5)
        with pytest.raises(TimeoutError):
            await handle.result(timeout="0.5s")
        await word.send(handle.id, 2)
        assert await handle.result(timeout="5s") == [1, 2]


async def test_a_task_claimed_while_claims_are_being_checked_is_not_taken_for_stolen(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was claimed after the question and before its answer was dropped, and its row waited for the session to end."""
    executed.clear()
    asked, go_on = asyncio.Event(), asyncio.Event()
    async with (
        Perdure(dsn, queues=["none"], settings=settings(heartbeat_s=0.1)) as owner,
        Perdure(dsn, queues=["elsewhere"], settings=settings(heartbeat_s=0.1)) as helper,
    ):
        still_mine = helper.store.still_mine

        async def slow(session: int, ids: Any) -> Any:
            mine = await still_mine(session, ids)
            asked.set()
            await go_on.wait()
            return mine

        first = await owner.start(far_flow, 1.0)
        monkeypatch.setattr(helper.store, "still_mine", slow)
        await asyncio.wait_for(asked.wait(), 5)
        second = await owner.start(far_flow, 1.0)
        await until(lambda: (second.id, 1) in executed, within_s=5)
        go_on.set()
        assert await first.result(timeout="5s") == 1
        assert await second.result(timeout="5s") == 1


async def _expire(dsn: str, session: int) -> None:
    """What another engine's reaper does to a session that was silent too long."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("delete from perdure.engine_session where id = $1", session)
            await connection.execute(
                "update perdure.run_queue set owner = null, wake_at = now() where owner = $1", session
            )
    finally:
        await connection.close()


async def test_mail_that_cannot_be_read_sets_its_run_aside_and_harms_nobody_else(dsn: str) -> None:
    """A poison row is quarantined, never a crash loop."""
    async with Perdure(dsn, settings=EngineSettings()) as client:
        bad, good = await client.start(hears, 1), await client.start(hears, 1)
        connection = await asyncpg.connect(dsn)
        try:
            for run in (bad.id, bad.id):
                insert = "insert into perdure.inbox (ns, run_id, body, kind) values (1, $1, '\\x01ff', 'signal')"
                await connection.execute(insert, run)
        finally:
            await connection.close()
        client.engine.claims.wake()
        with pytest.raises(perdure.errors.Stuck):
            await bad.result(timeout="5s")
        await word.send(good.id, 5)
        assert await good.result(timeout="5s") == [5]
        assert client.engine.counters.sessions_fenced == 0, "the engine started over"
    async with Perdure(dsn, settings=EngineSettings()) as client:
        await (await client.get(bad.id)).resume()
        with pytest.raises(perdure.errors.Stuck):
            await (await client.get(bad.id)).result(timeout="5s")
        assert await (await client.start(child, 0.0)).result(timeout="5s") == 1
        assert client.engine.counters.sessions_fenced == 0, "the engine started over"


async def test_an_answer_that_arrives_while_the_engine_registers_anew_is_late(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen as: invariant 4, a history that ends in success and a run that is still active. Between forgetting everything and
    having a new session, the answer to a commit of the old one put its runs back into memory."""
    answered, rejoining, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with Perdure(dsn, queues=["none"], settings=settings(heartbeat_s=0.1)) as client:
        engine, store = client.engine, client.store
        commit, register = store.commit, store.register

        async def slow_commit(session: int, number: int, batch: Any) -> Any:
            result = await commit(session, number, batch)
            if batch.starts:
                answered.set()
                await rejoining.wait()
            return result

        async def slow_register(*args: Any) -> Any:
            rejoining.set()
            await go_on.wait()
            return await register(*args)

        monkeypatch.setattr(store, "commit", slow_commit)
        monkeypatch.setattr(store, "register", slow_register)
        starting = asyncio.create_task(client.start(far_flow, 0.0))
        await asyncio.wait_for(answered.wait(), 5)
        await _expire(dsn, engine.session.id)
        handle = await asyncio.wait_for(starting, 5)
        assert not engine.runs, f"{handle.id} belongs to the engine that claims it next"
        go_on.set()
        await until(lambda: engine.runs, within_s=5)
        assert [run.epoch for run in engine.runs.values()] == [2]


async def test_a_batch_that_is_split_keeps_its_session_and_loses_no_unit_when_that_is_lost() -> None:
    """A start in the second half was forgotten, and `start()` never answered; or a half was written under the next session."""

    class Refusing:
        sessions: list[int] = []
        seal_history = staticmethod(unsealed)

        async def commit(self, session: int, number: int, batch: Any) -> Any:
            self.sessions.append(session)
            if len(self.sessions) == 1:
                raise Poison("one of them")
            current.begin(8)  # registered anew while this was on its way
            raise Fenced("gone")

    class Start:
        outlives_session = True

        def fill(self, batch: Any) -> None:
            pass

    queue, current = WriteQueue(CommitPolicy(), lambda: 0), EngineSession()
    committer = Committer(Refusing(), current, queue, Counters(), None)  # type: ignore[arg-type]
    current.begin(7)
    units = [Start() for _ in range(4)]
    for unit in units:
        queue.add(unit)
    with pytest.raises(Fenced):
        await committer.run()
    assert Refusing.sessions == [7, 7]
    assert list(queue.units()) == units


async def test_a_service_that_fails_costs_the_engine_nothing(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the matching of events, say, let the engine start over, again and again."""
    async with Perdure(dsn, settings=settings()) as client:
        engine = client.engine
        session, failed = engine.session.id, 0

        async def broken() -> None:
            nonlocal failed
            failed += 1
            raise ValueError("on purpose")

        monkeypatch.setattr(engine.named_events, "poll_once", broken)

        def failed_often() -> bool:
            engine.named_events.wake()
            return failed >= 3

        await until(failed_often)
        assert engine.session.id == session
