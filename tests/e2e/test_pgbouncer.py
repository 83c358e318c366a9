"""Everything works through Debian's PgBouncer, in both of its pooling modes, and `doctor` says what it found."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from harness.fleet import Fleet, at_rest, violated
from harness.pgbouncer import PgBouncer

from perdure import Perdure, Signal, task, wf, workflow
from perdure.core.errors import InvalidInput, Unavailable
from perdure.store import pooling
from perdure.store.connections import SETTINGS, Connections, connect
from perdure.store.doctor import Finding, examine
from perdure.store.migrate import migrate
from perdure.store.pooling import Pooling
from perdure.store.run_lists import READ_SETTINGS
from perdure.store.verify import verify
from tests.fakes.waiting import until

MODES = ("transaction", "session")
KILLS = int(os.environ.get("PERDURE_POOLER_KILLS", "1"))
RUNS_A_KILL = 15
nudge = Signal("pooled_nudge", int)
LIMIT = "60s"


@task
async def pooled_double(n: int) -> int:
    return n * 2


@workflow
async def pooled(n: int) -> int:
    await wf.sleep("50ms")
    doubled = await asyncio.gather(*(pooled_double(i) for i in range(n)))
    return sum(doubled) + await nudge.next()


@pytest.fixture(params=MODES)
def bouncer(
    processes: None, request: pytest.FixtureRequest, dsn: str, open_directory: Callable[[], Path]
) -> Iterator[PgBouncer]:
    # In session mode every client needs a server connection of its own.
    with PgBouncer(open_directory(), dsn, request.param, pool_size=4 if request.param == "transaction" else 60) as one:
        yield one


@pytest.fixture
def by_transaction(processes: None, dsn: str, open_directory: Callable[[], Path]) -> Iterator[PgBouncer]:
    with PgBouncer(open_directory(), dsn, "transaction") as one:
        yield one


@asynccontextmanager
async def closing(dsn: str) -> AsyncIterator[Any]:
    connection = await connect(dsn)
    try:
        yield connection
    finally:
        await connection.close(timeout=10)


async def pooling_found(dsn: str) -> Finding:
    return next(f for f in await examine(dsn) if f.name == "pooling")


@pytest.mark.keep
async def test_runs_tasks_timers_and_signals_work_through_it(bouncer: PgBouncer, dsn: str) -> None:
    through = bouncer.dsn(dsn)
    async with Perdure(through):
        runs = [await pooled.start(5) for _ in range(10)]
        for run in runs:
            await nudge.send(run.id, 1)
        assert [await run.result(LIMIT) for run in runs] == [21] * 10
    assert not any(t.violations for t in await verify(through, at_rest=True))
    assert "unsupported startup parameter" in bouncer.log, (
        "it is a PgBouncer that refuses what a direct connection is given"
    )


async def test_an_engine_that_is_killed_leaves_nothing_broken(bouncer: PgBouncer, dsn: str, tmp_path: Path) -> None:
    with Fleet(tmp_path, bouncer.dsn(dsn)) as fleet:
        first = fleet.launch(target=30, pause=0.05)
        await until(lambda: fleet.acknowledged >= 15, "half of the runs were started", 60)
        first.kill()
        fleet.launch(target=30)
        await until(lambda: fleet.acknowledged >= 30, "all runs were started", 60)
        await at_rest(dsn, 90)
        tallies = fleet.verify()
        assert not violated(tallies), f"{violated(tallies)}\n{fleet.errors()}"
        assert tallies[1]["examined"] >= 30


async def test_a_pooler_that_is_killed_under_load_loses_nothing(bouncer: PgBouncer, dsn: str, tmp_path: Path) -> None:
    with Fleet(tmp_path, bouncer.dsn(dsn)) as fleet:
        for _ in range(2):
            fleet.launch(target=RUNS_A_KILL * (KILLS + 1), pause=0.1)
        for kill in range(KILLS):
            await until(lambda n=kill: fleet.acknowledged >= RUNS_A_KILL * (n + 1), "runs are started", 60)
            bouncer.kill()
            await asyncio.to_thread(bouncer.start)
        await until(lambda: fleet.acknowledged >= RUNS_A_KILL * (KILLS + 1), "all runs were started", 60)
        await at_rest(dsn, 90)
        tallies = fleet.verify()
        assert not violated(tallies), f"{violated(tallies)}\n{fleet.errors()}"
        print(f"{bouncer.mode}: {fleet.acknowledged} starts acknowledged, {KILLS} kills of the pooler")


@pytest.mark.usefixtures("processes")
async def test_migrating_goes_through_it(bare_dsn: str, open_directory: Callable[[], Path]) -> None:
    with PgBouncer(open_directory(), bare_dsn, "transaction") as one:
        applied = await asyncio.gather(*(migrate(one.dsn(bare_dsn)) for _ in range(3)))
        assert sum(map(bool, applied)) >= 1
        numbers = [a.number for some in applied for a in some]
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), "each was applied once"


@pytest.mark.parametrize("parameters", [{}, {"pooling": "transaction"}, {"pgbouncer": "true"}])
async def test_settings_hold_on_every_statement(
    by_transaction: PgBouncer, dsn: str, parameters: dict[str, str]
) -> None:
    """Also when other clients have used the same server connections in between."""
    through = by_transaction.dsn(dsn, **parameters)
    reads = Connections(through, READ_SETTINGS)
    await reads.open()
    try:
        async with closing(through) as one, closing(through) as other:
            for _ in range(5):
                async with other.transaction():
                    assert await pooling.hold(other, SETTINGS)
                    assert await pooling.hold(one, SETTINGS), "outside a transaction"
                    async with one.transaction(isolation="repeatable_read", readonly=True):
                        assert await pooling.hold(one, SETTINGS), "inside one"
                    async with reads.take() as c:
                        assert await pooling.hold(c, SETTINGS | READ_SETTINGS)
            assert pooling.of(one) is Pooling.TRANSACTION
            plain = await asyncpg.connect(by_transaction.dsn(dsn), statement_cache_size=0)
            try:
                assert await plain.fetchval("select current_setting('enable_seqscan')") == "on", "others are left alone"
            finally:
                await plain.close()
    finally:
        await reads.close()


@pytest.mark.usefixtures("processes")
async def test_startup_parameters_that_are_ignored_are_noticed(dsn: str, open_directory: Callable[[], Path]) -> None:
    ignored = ",".join((*SETTINGS, *READ_SETTINGS))
    with PgBouncer(open_directory(), dsn, "transaction", ignore_startup_parameters=ignored) as one:
        async with closing(one.dsn(dsn)) as connection:
            assert pooling.of(connection) is Pooling.TRANSACTION
            assert await pooling.hold(connection, SETTINGS)
        assert (await pooling_found(one.dsn(dsn))).status == "ok"


@pytest.mark.usefixtures("processes")
async def test_a_session_that_the_dsn_promises_is_used_as_one(dsn: str, open_directory: Callable[[], Path]) -> None:
    with PgBouncer(open_directory(), dsn, "session", pool_size=20) as one:
        through = one.dsn(dsn, pooling="session")
        async with closing(through) as connection:
            assert pooling.of(connection) is Pooling.SESSION
            assert await pooling.hold(connection, SETTINGS)
        async with Perdure(through):
            run = await pooled.start(3)
            await nudge.send(run.id, 1)
            assert await run.result(LIMIT) == 7
        found = await pooling_found(through)
        assert (found.status, "pooling=session" in found.what) == ("ok", True)


# -- doctor ------------------------------------------------------------------------------------------------------------


async def test_doctor_says_which_mode_it_found(bouncer: PgBouncer, dsn: str) -> None:
    found = await pooling_found(bouncer.dsn(dsn))
    assert found.status == "ok"
    assert f"in {bouncer.mode} mode" in found.what
    assert found.advice


async def test_doctor_fails_a_dsn_that_promises_what_the_pooler_does_not_do(
    by_transaction: PgBouncer, dsn: str
) -> None:
    session = await pooling_found(by_transaction.dsn(dsn, pooling="session"))
    assert session.status == "fail"
    assert "pooling=transaction" in session.advice
    direct = await pooling_found(by_transaction.dsn(dsn, pooling="direct"))
    assert direct.status == "fail"
    assert "unsupported startup parameter" in direct.what


@pytest.mark.usefixtures("processes")
async def test_doctor_sees_a_pooler_with_one_server_connection(
    dsn: str, open_directory: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.store.doctor.PROBE_S", 0.5)
    with PgBouncer(open_directory(), dsn, "transaction", pool_size=1) as one:
        assert "in transaction mode" in (await pooling_found(one.dsn(dsn))).what


# -- the DSN -----------------------------------------------------------------------------------------------------------


def test_the_switch_is_taken_out_of_the_dsn() -> None:
    base = "postgresql://me:p%40ss@db/x"
    assert pooling.split(base) == (base, None)
    assert pooling.split(f"{base}?sslmode=require") == (f"{base}?sslmode=require", None)
    assert pooling.split(f"{base}?pooling=session&sslmode=require") == (f"{base}?sslmode=require", Pooling.SESSION)
    assert pooling.split(f"{base}?pgbouncer=true") == (base, Pooling.TRANSACTION)
    assert pooling.split(f"{base}?pgbouncer=false") == (base, None)
    with pytest.raises(InvalidInput, match="direct, session, transaction"):
        pooling.split(f"{base}?pooling=statement")


async def test_a_dsn_that_insists_on_direct_is_refused_by_a_pooler(by_transaction: PgBouncer, dsn: str) -> None:
    with pytest.raises(Unavailable, match="unsupported startup parameter"):
        await connect(by_transaction.dsn(dsn, pooling="direct"))
