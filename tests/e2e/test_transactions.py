"""Starts, signals and events in transactions of the application: they happen if and only if the transaction commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import psycopg
import pytest

from perdure import NamedEvent, Perdure, Signal, in_sync_transaction, in_transaction, workflow
from perdure.engine.api.sql_request_port import SqlRequest
from perdure.engine.api.sql_requests import SqlRequests
from perdure.errors import InvalidInput, NotFound
from tests.fakes.waiting import until

more = Signal("tx_more", int)
paid = NamedEvent("tx_paid", int)


@workflow(name="tx_order")
async def order(n: int, note: str = "") -> str:
    return f"{n}{note}"


@workflow(name="tx_sums")
async def sums() -> int:
    return await more.next() + await more.next()


@workflow(name="tx_waits")
async def waits() -> int:
    return await paid.wait()


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[Perdure]:
    async with Perdure(dsn, tune_gc=False) as client:
        for one in (order, sums, waits):
            client.serve(one)
        await client.engine.refresh()
        yield client


class Boom(Exception):
    pass


async def _asyncpg(dsn: str, fails: bool) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            run = await in_transaction(connection).start(
                order.options(key="k-1", attributes={"team": "a"}), 7, note="!"
            )
            if fails:
                raise Boom
            return run
    finally:
        await connection.close()


async def _psycopg_async(dsn: str, fails: bool) -> str:
    async with await psycopg.AsyncConnection.connect(dsn) as connection, connection.transaction():
        run = await in_transaction(connection).start(order.options(key="k-1", attributes={"team": "a"}), 7, note="!")
        if fails:
            raise Boom
        return run


async def _sqlalchemy_async(dsn: str, fails: bool) -> str:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with engine.begin() as connection:
            run = await in_transaction(connection).start(
                order.options(key="k-1", attributes={"team": "a"}), 7, note="!"
            )
            if fails:
                raise Boom
            return run
    finally:
        await engine.dispose()


async def _psycopg(dsn: str, fails: bool) -> str:
    def work() -> str:
        with psycopg.connect(dsn) as connection:
            run = in_sync_transaction(connection).start(order.options(key="k-1", attributes={"team": "a"}), 7, note="!")
            if fails:
                raise Boom
            return run

    return await asyncio.to_thread(work)


async def _sqlalchemy(dsn: str, fails: bool) -> str:
    import sqlalchemy.orm

    def work() -> str:
        engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
        try:
            with sqlalchemy.orm.Session(engine) as session, session.begin():
                run = in_sync_transaction(session).start(
                    order.options(key="k-1", attributes={"team": "a"}), 7, note="!"
                )
                if fails:
                    raise Boom
                return run
        finally:
            engine.dispose()

    return await asyncio.to_thread(work)


DRIVERS = [_asyncpg, _psycopg_async, _sqlalchemy_async, _psycopg, _sqlalchemy]


async def _settled(connection: Any) -> None:
    """Every request was carried out."""

    async def is_empty() -> bool:
        return await connection.fetchval("select count(*) from perdure.sql_request where error is null") == 0

    await until(is_empty)


@pytest.fixture
async def connection(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.mark.parametrize("start", DRIVERS, ids=lambda f: f.__name__.strip("_"))
async def test_a_run_exists_if_and_only_if_its_transaction_commits(
    start: Callable[[str, bool], Any], dsn: str, client: Perdure, connection: Any
) -> None:
    with pytest.raises(Boom):
        await start(dsn, True)
    await _settled(connection)
    assert await client.list() == []
    run_id = await start(dsn, False)

    async def has_run() -> bool:
        return bool(await client.list())

    await until(has_run)
    handle = await client.get(run_id, workflow=order)
    assert await handle.result("3m") == "7!"
    (run,) = await client.list()
    assert (run.key, run.attributes) == ("k-1", {"team": "a"})
    assert await start(dsn, False) == run_id, "a key belongs to one run"
    await _settled(connection)
    assert len(await client.list()) == 1


async def test_two_transactions_under_one_key_make_one_run(dsn: str, client: Perdure, connection: Any) -> None:
    other = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            first = await in_transaction(connection).start(order.options(key="k"), 1)
            second = asyncio.create_task(in_transaction(other).start(order.options(key="k"), 2))
            done, _ = await asyncio.wait({second}, timeout=0.3)
            assert not done, "it waits for the first"
            # An open transaction with a key holds up no engine.
            assert await client.run(order.options(key="k2").bind(3), timeout="10s") == "3"
        assert await second == first
    finally:
        await other.close()
    await _settled(connection)
    assert await (await client.get(first, workflow=order)).result("3m") == "1"


async def test_a_signal_that_overtakes_its_start_reaches_the_run(
    client: Perdure, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another engine carries out the start after this one has not found the run, and before it looks for the start."""
    store, other = client.api.ports.sql_requests, SqlRequests(client.api)
    take, has_start = store.take, store.has_start
    starts: list[SqlRequest] = []

    async def take_signals(limit: int) -> list[SqlRequest]:
        taken = await take(limit)
        starts.extend(one for one in taken if one.act == "start")
        return [one for one in taken if one.act == "signal"]

    async def start_first(ns: int, run_id: bytes | None, key: str | None) -> bool:
        while starts:
            await other._carry_out(starts.pop())
        return await has_start(ns, run_id, key)

    monkeypatch.setattr(store, "take", take_signals)
    monkeypatch.setattr(store, "has_start", start_first)
    async with connection.transaction():
        tx = in_transaction(connection)
        run = await tx.start(sums.options(key="late"))
        await tx.signal(more, "key:late", 3)
        await tx.signal(more, run, 4)
    await _settled(connection)
    assert await (await client.get(run, workflow=sums)).result("60s") == 7


async def test_signals_reach_a_run_that_the_same_transaction_starts_in_their_order(
    client: Perdure, connection: Any
) -> None:
    async with connection.transaction():
        tx = in_transaction(connection)
        run = await tx.start(sums.options(key="s"))
        await tx.signal(more, run, 3)
        await tx.signal(more, "key:s", 4)
    await _settled(connection)
    assert await (await client.get(run, workflow=sums)).result("3m") == 7


async def test_an_event_is_emitted_by_the_commit(client: Perdure, connection: Any) -> None:
    handle = await client.start(waits)

    async def is_waiting() -> bool:
        return await connection.fetchval("select count(*) from perdure.promise where event = 'tx_paid'") == 1

    await until(is_waiting)
    async with connection.transaction():
        await in_transaction(connection).emit(paid, 9, key="p-1")
    assert await handle.result("3m") == 9


async def test_sql_alone_can_start_runs_also_in_a_trigger(client: Perdure, connection: Any) -> None:
    await connection.execute(
        """
        create table shop_order (id int primary key);
        create function shop_started() returns trigger language plpgsql as $$
        begin
          perform perdure.start('tx_order', jsonb_build_object('n', new.id), 'shop-' || new.id, '{"timeout": "5 minutes"}');
          return new;
        end $$;
        create trigger shop_started after insert on shop_order for each row execute function shop_started();
        """
    )
    await connection.execute("insert into shop_order select generate_series(1, 5)")
    await _settled(connection)
    for n in range(1, 6):
        assert await (await client.get(key=f"shop-{n}", workflow=order)).result("3m") == str(n)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("perdure.start('tx_unknown')", 'no workflow "tx_unknown" is registered'),
        ("perdure.start('tx_order', '[1]')", "must be a JSON object"),
        ("perdure.start('tx_order', options => '{\"wait\": 1}')", 'unknown option "wait"'),
        ("perdure.start('tx_order', options => '{\"namespace\": \"moon\"}')", 'no namespace "moon"'),
        ("perdure.start('tx_order', jsonb_build_object('n', repeat('x', 300000)))", "over 262144 bytes"),
        ("perdure.signal('not a run', 'x')", "invalid input syntax"),
    ],
)
async def test_mistakes_are_refused_in_the_transaction(call: str, text: str, client: Perdure, connection: Any) -> None:
    with pytest.raises(asyncpg.PostgresError, match=text):
        await connection.execute(f"select {call}")


async def test_what_cannot_be_carried_out_stays_with_its_error_and_holds_up_nothing(
    client: Perdure, connection: Any
) -> None:
    await connection.execute("select perdure.start('tx_order', '{\"wrong\": 1}')")
    await connection.execute("select perdure.signal(gen_random_uuid(), 'tx_more', '1')")
    run = await in_transaction(connection).start(order, 5)
    await _settled(connection)
    assert await (await client.get(run, workflow=order)).result("3m") == "5"
    errors = await connection.fetch("select act, error from perdure.sql_request order by id")
    assert [r["act"] for r in errors] == ["start", "signal"]
    assert "wrong" in errors[0]["error"]
    assert "no run" in errors[1]["error"] or "no such" in errors[1]["error"]


async def test_options_that_a_transaction_cannot_have_are_refused(connection: Any) -> None:
    with pytest.raises(InvalidInput, match="takes no start_within"):
        await in_transaction(connection).start(order.options(start_within="1h"), 1)
    with pytest.raises(InvalidInput, match=r"does not know connections such as builtins\.int"):
        in_transaction(3)
    with pytest.raises(InvalidInput, match="in_sync_transaction"):
        in_sync_transaction(connection)


async def test_a_delayed_start_becomes_a_run_when_it_is_due(client: Perdure, connection: Any) -> None:
    run = await in_transaction(connection).start(order.options(delay="1s"), 1)
    with pytest.raises(NotFound):
        await client.get(run)

    async def is_there() -> bool:
        return bool(await client.list())

    await until(is_there)
    assert await (await client.get(run, workflow=order)).result("3m") == "1"
