"""Migrations: once each, in order, whoever runs them and however many do."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

import perdure
from perdure.core.errors import InvalidInput, MigrationError, Unavailable
from perdure.localpg.cluster import PrivateCluster
from perdure.store.migrate import check, finish, load, migrate, pending, reached
from perdure.store.queries import execute

MIGRATE = """
import asyncio, sys
from pathlib import Path
from perdure.store.migrate import migrate
sys.stdin.readline()
applied = asyncio.run(migrate(sys.argv[1], directory=Path(sys.argv[2])))
print(",".join(str(a.number) for a in applied))
"""


OLD_ENGINE = (
    "insert into perdure.engine_session (engine, expires_at, knows) values ('shop-1', now() + interval '1 hour', 0)"
)


def write(directory: Path, *texts: str) -> Path:
    """Migrations 0001, 0002, … of these texts."""
    for number, text in enumerate(texts, start=1):
        (directory / f"{number:04}_step{number}.sql").write_text(text)
    return directory


async def ask(dsn: str, statement: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_migrations_are_applied_in_order_and_once(bare_dsn: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        "create table perdure.a (n int);",
        "alter table perdure.a add m int; insert into perdure.a values (1, 2);",
    )

    applied = await migrate(bare_dsn, directory=tmp_path)

    assert [(a.number, a.name) for a in applied] == [(1, "step1"), (2, "step2")]
    assert await migrate(bare_dsn, directory=tmp_path) == []
    assert await ask(bare_dsn, "select count(*) from perdure.a") == 1


@pytest.mark.usefixtures("processes")
async def test_ten_processes_that_migrate_at_once_apply_each_migration_once(bare_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, *(f"create table perdure.t{n} (n int); select pg_sleep(0.02);" for n in range(1, 6)))
    command = [sys.executable, "-c", MIGRATE, bare_dsn, str(tmp_path)]
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    processes = [await asyncio.create_subprocess_exec(*command, **pipes) for _ in range(10)]
    # All have been started; the line lets them go together.
    results = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))

    assert [process.returncode for process in processes] == [0] * 10, results
    numbers = [int(n) for out, _ in results for n in out.decode().strip().split(",") if n]
    assert sorted(numbers) == [1, 2, 3, 4, 5]


async def test_a_migration_that_fails_leaves_no_trace_and_names_its_line(bare_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "create table perdure.a (n int);", "create table perdure.b (n int);\n\nselect no_such_column;\n")

    with pytest.raises(MigrationError, match=r"0002_step2\.sql failed at line 3.*no_such_column"):
        await migrate(bare_dsn, directory=tmp_path)

    assert await ask(bare_dsn, "select to_regclass('perdure.b')") is None
    assert [m.number for m in await pending(bare_dsn, directory=tmp_path)] == [2]
    write(tmp_path, "create table perdure.a (n int);", "create table perdure.b (n int);")
    assert [a.number for a in await migrate(bare_dsn, directory=tmp_path)] == [2]


async def test_an_applied_migration_that_changed_is_refused(bare_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "create table perdure.a (n int);")
    [applied] = await migrate(bare_dsn, directory=tmp_path)
    write(tmp_path, "create table perdure.a (n bigint);", "create table perdure.b (n int);")

    for act in (migrate, pending, check):
        with pytest.raises(MigrationError) as caught:
            await act(bare_dsn, directory=tmp_path)
        assert "0001_step1.sql has changed" in str(caught.value)
        assert applied.checksum in str(caught.value)
        assert load(tmp_path)[0].checksum in str(caught.value)
    assert await ask(bare_dsn, "select to_regclass('perdure.b')") is None


async def test_line_ends_do_not_change_a_migration(bare_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "create table perdure.a (\n  n int\n);\n")
    await migrate(bare_dsn, directory=tmp_path)
    (tmp_path / "0001_step1.sql").write_bytes(b"create table perdure.a (\r\n  n int\r\n);\r\n")

    await check(bare_dsn, directory=tmp_path)


async def test_a_database_that_is_ahead_of_the_code_is_left_alone(bare_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "create table perdure.a (n int);", "create table perdure.b (n int);")
    await migrate(bare_dsn, directory=tmp_path)
    (tmp_path / "0002_step2.sql").unlink()

    for act in (migrate, check):
        with pytest.raises(MigrationError, match=r"0002_step2.*upgrade perdure"):
            await act(bare_dsn, directory=tmp_path)


async def test_older_code_works_on_a_schema_that_needs_no_newer_one(bare_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "create table perdure.a (n int);")
    await migrate(bare_dsn, directory=tmp_path)
    newer = write(tmp_path, "create table perdure.a (n int);", "-- needs: 0001\ncreate table perdure.b (n int);")
    await migrate(bare_dsn, directory=newer)
    assert await reached(bare_dsn) == (2, 1)
    (tmp_path / "0002_step2.sql").unlink()

    await check(bare_dsn, directory=tmp_path)
    assert await migrate(bare_dsn, directory=tmp_path) == []


async def test_after_the_finish_of_an_upgrade_older_code_is_refused(bare_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "create table perdure.a (n int);")
    await migrate(bare_dsn, directory=tmp_path)
    write(tmp_path, "create table perdure.a (n int);", "-- needs: 0001\ncreate table perdure.b (n int);")
    with pytest.raises(MigrationError, match="run `perdure migrate`"):
        await finish(bare_dsn, directory=tmp_path)
    await migrate(bare_dsn, directory=tmp_path)

    assert (await finish(bare_dsn, directory=tmp_path)).needs == 2
    assert (await finish(bare_dsn, directory=tmp_path)).needs == 2
    (tmp_path / "0002_step2.sql").unlink()

    for act in (migrate, check, finish):
        with pytest.raises(MigrationError, match=r"needs code that knows migration 0002.*upgrade perdure"):
            await act(bare_dsn, directory=tmp_path)


async def test_a_new_database_needs_the_code_that_made_it(bare_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "create table perdure.a (n int);", "-- needs: 0001\ncreate table perdure.b (n int);")
    await migrate(bare_dsn, directory=tmp_path)

    assert await reached(bare_dsn) == (2, 2)


async def test_a_migration_waits_for_the_upgrade_of_engines_that_it_would_break(dsn: str, tmp_path: Path) -> None:
    last = len(load())
    newer = copy_of_first(last, tmp_path / "newer")
    (newer / f"{last + 1:04}_breaking.sql").write_text("create table perdure.b (n int);")
    await ask(dsn, OLD_ENGINE)

    for act in (migrate, finish):
        with pytest.raises(MigrationError, match=r"1 engine runs code that ends at migration 0000.*: shop-1\. Nothing"):
            await act(dsn, directory=newer if act is migrate else None)
    assert await ask(dsn, "select to_regclass('perdure.b')") is None

    await ask(dsn, "update perdure.engine_session set expires_at = now()")
    assert [a.number for a in await migrate(dsn, directory=newer)] == [last + 1]


async def test_an_engine_of_older_code_does_not_register(dsn: str) -> None:
    await ask(dsn, "update perdure.migration set needs = needs + 1")
    with pytest.raises(MigrationError, match="upgrade perdure"):
        async with perdure.Perdure(dsn, auto_migrate=False):
            raise AssertionError


async def test_an_engine_registers_before_or_after_a_migration_and_not_beside_it(dsn: str) -> None:
    """One that registers while a migration looks for older engines would be missed."""
    migrating = await asyncpg.connect(dsn)
    try:
        async with migrating.transaction():
            await execute(migrating, "lock_migrations")
            await execute(migrating, "lock_sessions")
            await migrating.execute("update perdure.migration set needs = needs + 1")
            starting = asyncio.create_task(_start(dsn))
            while not await ask(dsn, "select exists(select from pg_stat_activity where wait_event = 'relation')"):
                assert not starting.done()
        with pytest.raises(MigrationError, match="upgrade perdure"):
            await starting
    finally:
        await migrating.close()


async def _start(dsn: str) -> None:
    async with perdure.Perdure(dsn, auto_migrate=False):
        pass


def test_each_migration_says_which_code_it_needs() -> None:
    for migration in load()[1:]:
        assert "\n-- needs: " in "\n" + migration.sql, migration.file


async def test_a_database_that_is_behind_is_told_to_migrate(bare_dsn: str) -> None:
    with pytest.raises(MigrationError, match=r"at migration 0000.*run `perdure migrate`"):
        await check(bare_dsn)
    assert await pending(bare_dsn) == load()


async def test_a_migrated_database_passes_the_check(dsn: str) -> None:
    await check(dsn)
    assert await pending(dsn) == []


async def test_rows_missing_from_the_record_are_noticed(bare_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "create table perdure.a (n int);", "create table perdure.b (n int);")
    await migrate(bare_dsn, directory=tmp_path)
    await ask(bare_dsn, "delete from perdure.migration where number = 1")

    with pytest.raises(MigrationError, match="restore its rows"):
        await migrate(bare_dsn, directory=tmp_path)


async def test_a_strict_default_isolation_does_not_break_the_look_under_the_lock(bare_dsn: str, tmp_path: Path) -> None:
    await ask(
        bare_dsn,
        "do $$ begin execute format('alter database %I set default_transaction_isolation = "
        "serializable', current_database()); end $$",
    )
    write(tmp_path, *(f"create table perdure.t{n} (n int);" for n in range(1, 4)))

    lists = await asyncio.gather(*(migrate(bare_dsn, directory=tmp_path) for _ in range(5)))

    assert sorted(a.number for applied in lists for a in applied) == [1, 2, 3]


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["0001_a.sql", "0003_c.sql"], "migration 0002 is missing"),
        (["0002_b.sql"], "migration 0001 is missing"),
        (["0001_a.sql", "0001_b.sql"], "two migrations have number 0001"),
        (["0001_a.sql", "2_b.sql"], "2_b.sql is not named like a migration"),
    ],
)
def test_files_with_gaps_doubles_or_odd_names_are_refused(tmp_path: Path, names: list[str], complaint: str) -> None:
    for name in names:
        (tmp_path / name).write_text("select 1;")
    with pytest.raises(MigrationError, match=complaint):
        load(tmp_path)


async def test_a_server_that_is_away_is_said_to_be_without_showing_the_password() -> None:
    with pytest.raises(Unavailable) as caught:
        await migrate("postgresql://me:secret@127.0.0.1:1/x")
    assert "me@127.0.0.1:1/x" in str(caught.value)
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidInput, match="not a usable DSN"):
        await migrate("mysql://me@host/x")


# -- the schema itself -------------------------------------------------------------------------------------------------


def schema_of(cluster: PrivateCluster, dsn: str) -> str:
    """What pg_dump says of schema perdure, without the record of migrations and the random tokens of newer versions."""
    options = ["--schema-only", "--schema=perdure", "--exclude-table=perdure.migration", f"--dbname={dsn}"]
    dump = subprocess.run([cluster.binaries / "pg_dump", *options], capture_output=True, text=True, check=True).stdout
    return "\n".join(line for line in dump.splitlines() if not line.startswith(("\\restrict", "\\unrestrict")))


def copy_of_first(count: int, directory: Path) -> Path:
    """The first migrations of this version as files of their own."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for migration in load()[:count]:
        (directory / migration.file).write_text(migration.sql)
    return directory


@pytest.mark.parametrize("reached", range(1, len(load()) + 1))
async def test_a_schema_migrated_from_any_earlier_version_equals_a_fresh_one(
    cluster: PrivateCluster, bare_dsn: str, tmp_path: Path, reached: int
) -> None:
    fresh_dsn = cluster.create_database(f"fresh_{reached}")
    try:
        # The reference knows nothing of the machinery under test: all files as one script.
        await _execute(fresh_dsn, "\n".join(migration.sql for migration in load()))
        await migrate(bare_dsn, directory=copy_of_first(reached, tmp_path / "old"))
        for count in range(reached, len(load()) + 1):
            await migrate(bare_dsn, directory=copy_of_first(count, tmp_path / "old"))
        await migrate(bare_dsn)

        assert schema_of(cluster, bare_dsn) == schema_of(cluster, fresh_dsn)
        assert "CREATE TABLE perdure.history" in schema_of(cluster, bare_dsn)
    finally:
        cluster.drop_database(f"fresh_{reached}")


async def _execute(dsn: str, script: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(script)
    finally:
        await connection.close()
