"""Transactional tasks: their effect on tables of the application happens exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure import Perdure, Retry, attempt, task, workflow
from perdure.errors import InvalidInput, PerdureError, TaskFailed

faults: list[str] = []
"""What goes wrong in the next attempts."""
SCHEMA = """
create table account (id int primary key, cents int not null check (cents >= 0));
insert into account values (1, 1000), (2, 0);
"""


@task(name="txt_move", transactional=True, retry=Retry(4, delay="10ms"))
async def move(cents: int) -> int:
    connection = attempt().connection
    await connection.execute("update account set cents = cents - $1 where id = 1", cents)
    if faults and faults[-1] == "in the middle":
        faults.pop()
        raise RuntimeError("in the middle")
    left = await connection.fetchval("update account set cents = cents + $1 where id = 2 returning cents", cents)
    return int(left)


@task(name="txt_move_sync", transactional=True, retry=Retry(4, delay="10ms"))
def move_sync(cents: int) -> int:
    connection = attempt().connection
    connection.execute("update account set cents = cents - %s where id = 1", (cents,))
    if faults and faults[-1] == "in the middle":
        faults.pop()
        raise RuntimeError("in the middle")
    row = connection.execute("update account set cents = cents + %s where id = 2 returning cents", (cents,)).fetchone()
    return int(row[0])


@workflow(name="txt_transfer")
async def transfer(cents: int) -> int:
    return await move(cents)


@workflow(name="txt_transfer_sync")
async def transfer_sync(cents: int) -> int:
    return await move_sync(cents)


@pytest.fixture
async def accounts(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    await connection.execute(SCHEMA)
    yield connection
    await connection.close()
    faults.clear()


async def _balances(accounts: Any) -> list[int]:
    return [r["cents"] for r in await accounts.fetch("select cents from account order by id")]


FORMS = pytest.mark.parametrize("form", [transfer, transfer_sync], ids=["async", "sync"])


@FORMS
async def test_the_effect_and_the_result_are_recorded_together(form: Any, dsn: str, accounts: Any) -> None:
    async with Perdure(dsn, tune_gc=False) as client:
        assert await client.run(form, 100) == 100
        assert await _balances(accounts) == [900, 100]
        assert await accounts.fetchval("select count(*) from perdure.task_effect where result is not null") == 1


@FORMS
async def test_an_attempt_that_fails_leaves_nothing(form: Any, dsn: str, accounts: Any) -> None:
    faults.extend(["in the middle", "in the middle"])
    async with Perdure(dsn, tune_gc=False) as client:
        assert await client.run(form, 100) == 100
    assert await _balances(accounts) == [900, 100]


@FORMS
async def test_a_commit_whose_report_is_lost_is_not_repeated(
    form: Any, dsn: str, accounts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt commits and then fails, as a worker that dies does: the second one returns what was recorded."""
    from perdure.sdk.worker import transactions

    lost = []
    for name in ("_on_the_loop", "_in_a_thread"):
        original = getattr(transactions.TransactionalTask, name)
        if asyncio.iscoroutinefunction(original):

            async def loses(self: Any, *args: Any, original: Any = original) -> Any:
                found = await original(self, *args)
                if not lost:
                    lost.append(found)
                    raise RuntimeError("the report is lost")
                return found
        else:

            def loses(self: Any, *args: Any, original: Any = original) -> Any:  # type: ignore[misc]
                found = original(self, *args)
                if not lost:
                    lost.append(found)
                    raise RuntimeError("the report is lost")
                return found

        monkeypatch.setattr(transactions.TransactionalTask, name, loses)
    transactions.in_transaction.cache_clear()
    try:
        async with Perdure(dsn, tune_gc=False) as client:
            assert await client.run(form, 100) == 100
    finally:
        transactions.in_transaction.cache_clear()
    assert lost == [100]
    assert await _balances(accounts) == [900, 100]


async def test_two_attempts_of_one_task_do_not_run_side_by_side(dsn: str, accounts: Any) -> None:
    run = "0197f000-0000-7000-8000-000000000001"
    other = await asyncpg.connect(dsn)
    try:
        async with accounts.transaction():
            assert await accounts.fetchval("select perdure.begin_effect($1::text::uuid, 3)", run) is None
            second = asyncio.create_task(other.fetchval("select perdure.begin_effect($1::text::uuid, 3)", run))
            done, _ = await asyncio.wait({second}, timeout=0.3)
            assert not done
            await accounts.execute("select perdure.end_effect($1::text::uuid, 3, 'x')", run)
        assert await second == b"x"
    finally:
        await other.close()


async def test_what_breaks_a_rule_of_the_tables_fails_the_task(dsn: str, accounts: Any) -> None:
    async with Perdure(dsn, tune_gc=False) as client:
        with pytest.raises(Exception, match="account_cents_check"):
            await client.run(transfer, 5_000)
    assert await _balances(accounts) == [1000, 0]


async def test_effects_go_when_their_run_is_gone(dsn: str, accounts: Any) -> None:
    async with Perdure(dsn, tune_gc=False) as client:
        assert await client.run(transfer, 100) == 100
        await accounts.execute(
            "insert into perdure.task_effect (run_id, seq, result) values (gen_random_uuid(), 1, 'x')"
        )
        await accounts.execute("update perdure.task_effect set at = now() - interval '2 days'")
        await client.api.ports.sql_requests.trim(60.0, 1_000)
        (run,) = await client.list()
    assert [str(r["run_id"]) for r in await accounts.fetch("select run_id from perdure.task_effect")] == [run.id]


def test_mistakes_are_found_where_the_task_is_defined() -> None:
    with pytest.raises(InvalidInput, match="drop process"):

        @task(name="txt_wrong", transactional=True, process=True)
        def wrong() -> None: ...


async def test_the_connection_is_there_in_transactional_tasks_only(dsn: str) -> None:
    @task(name="txt_plain", retry=1)
    async def plain() -> None:
        print(attempt().connection)

    @workflow(name="txt_plainly")
    async def plainly() -> str:
        try:
            await plain()
        except TaskFailed as e:
            return str(e)
        return ""

    async with Perdure(dsn, tune_gc=False) as client:
        assert "transactional=True" in await client.run(plainly)
    assert issubclass(InvalidInput, PerdureError)
