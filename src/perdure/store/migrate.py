"""Numbered migrations: migrations/NNNN_name.sql, applied in order, each exactly once.

Laws
 - A migration and its record commit in one transaction. A crash leaves it wholly applied or not at all.
 - That transaction holds one advisory lock and looks again under it, so any number of processes may migrate at once.
 - An applied file never changes: its checksum is in the database and is compared every time.
 - A migration says how old code may be that still works on its schema: `-- needs: NNNN`, the last migration that this code knows. Older code
   does not register its engines, and a migration is not applied while engines of older code run. Without that line, `needs` is its own number.
 - A database that is ahead of the code is used if it needs no newer code, and is left alone otherwise.
 - `finish` raises what the database needs to its last migration: from then on no older code runs, and newer formats may be written. A new
   database needs that from the start.
 - Servers may be at work meanwhile. A migration locks the tables it names first, in the order in which servers lock them, and waits for each
   no longer than LOCK_WAIT; then it is undone and tried again.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import cache, partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from asyncpg.exceptions import LockNotAvailableError, PostgresError, TransactionRollbackError

from perdure.core.errors import MigrationError
from perdure.store.connect import connect
from perdure.store.queries import execute, fetch, fetch_row, fetch_value

FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
LOCK_ORDER: Final = ("engine_session", "run_queue", "task_queue", "inbox")
"""As in 0001_initial.sql; other tables come after these, by name."""
LOCK_WAIT: Final = "500ms"
"""How long a migration waits for a lock. Less than PostgreSQL's deadlock_timeout."""
LOCK_TRIES: Final = 100
LOCK_PAUSE_S_MAX: Final = 1.0
NAMED_ENGINES_MAX: Final = 5
"""Engines that an error names."""
_NEEDS = re.compile(r"^-- needs: (\d{4})$", re.MULTILINE)
_NAMED = re.compile(r"\bperdure\.([a-z_0-9]+)")


_T = TypeVar("_T")


class Migration(msgspec.Struct, frozen=True):
    number: int
    name: str
    sql: str
    checksum: str
    needs: int

    @property
    def file(self) -> str:
        return f"{self.number:04}_{self.name}.sql"


class Applied(msgspec.Struct, frozen=True):
    number: int
    name: str
    checksum: str
    needs: int
    applied_at: datetime


def load(directory: Path | None = None) -> list[Migration]:
    """The migrations of this version, or those of a directory, from 1 without a gap."""
    root: Traversable = directory or resources.files("perdure.store").joinpath("migrations")
    files = [entry for entry in root.iterdir() if entry.name.endswith(".sql")]
    found = sorted((_read(entry) for entry in files), key=lambda m: (m.number, m.name))
    for expected, migration in enumerate(found, start=1):
        if migration.number < expected:
            raise MigrationError(
                f"two migrations have number {migration.number:04}: rename {migration.file} or the other one."
            )
        if migration.number > expected:
            raise MigrationError(
                f"migration {expected:04} is missing: the next file is {migration.file}. Numbers have no gaps."
            )
    return found


@cache
def known() -> int:
    """The last migration that this version knows."""
    return len(load())


def _read(entry: Traversable) -> Migration:
    match = FILE_NAME.fullmatch(entry.name)
    if match is None:
        raise MigrationError(f"{entry.name} is not named like a migration. Name it NNNN_lower_case_name.sql.")
    # A checkout that turned line ends into CRLF holds the same migration.
    text = entry.read_bytes().replace(b"\r\n", b"\n")
    sql = text.decode()
    needs = _NEEDS.search(sql)
    return Migration(int(match[1]), match[2], sql, hashlib.sha256(text).hexdigest(), int((needs or match)[1]))


async def migrate(dsn: str, *, directory: Path | None = None) -> list[Applied]:
    """Bring the database up to date. Returns what this call applied; another process may have applied the rest."""
    migrations = load(directory)
    done: list[Applied] = []
    async with connect(dsn) as connection:
        while True:
            is_new = bool(done) and done[0].number == 1
            applied = await _until_locked(partial(_apply_next, connection, migrations, is_new))
            if applied is None:
                return done
            done.append(applied)


async def finish(dsn: str, *, directory: Path | None = None) -> Applied:
    """End an upgrade: no older code can use the database from now on. Returns the last migration."""
    migrations = load(directory)
    async with connect(dsn) as connection:
        return await _until_locked(partial(_finish, connection, migrations))


async def _finish(connection: Any, migrations: Sequence[Migration]) -> Applied:
    async with connection.transaction(isolation="read_committed"):
        await execute(connection, "lock_migrations")
        behind = not_applied(migrations, await _applied(connection))
        if behind:
            raise _behind(behind)
        await fetch_value(connection, "limit_lock_waits", timeout=LOCK_WAIT)
        await _refuse_older_engines(connection, migrations[-1].number)
        return Applied(**await fetch_row(connection, "refuse_older_code"))


async def _refuse_older_engines(connection: Any, needs: int) -> None:
    if not await fetch_value(connection, "has_sessions"):
        return
    await execute(connection, "lock_sessions")
    older = await fetch(connection, "sessions_of_older_code", needs=needs)
    if older:
        names = ", ".join(row["engine"] for row in older[:NAMED_ENGINES_MAX])
        engines = "1 engine runs" if len(older) == 1 else f"{len(older)} engines run"
        raise MigrationError(
            f"{engines} code that ends at migration {older[0]['knows']:04}, and {needs:04} is needed: {names}. "
            "Nothing was changed. Upgrade or stop them first; an engine that was killed counts until its lease has run out."
        )


async def _until_locked(act: Callable[[], Awaitable[_T]]) -> _T:
    """Do it as soon as servers leave a gap."""
    pause_s = 0.05
    busy: Exception | None = None
    for _ in range(LOCK_TRIES):
        try:
            return await act()
        except (LockNotAvailableError, TransactionRollbackError) as error:
            busy = error
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s = min(pause_s * 2, LOCK_PAUSE_S_MAX)
    raise MigrationError(
        f"the tables to migrate were in use for {LOCK_TRIES} tries ({busy}). Nothing was changed. "
        "Try again, or stop the servers first; `select * from pg_stat_activity` shows long transactions."
    ) from busy


async def pending(dsn: str, *, directory: Path | None = None) -> list[Migration]:
    """What `migrate` would apply. Raises where the database and the files contradict each other."""
    migrations = load(directory)
    async with connect(dsn) as connection:
        return not_applied(migrations, await _applied(connection))


async def reached(dsn: str) -> tuple[int, int]:
    """The last migration of the database, and the one that code must know."""
    async with connect(dsn) as connection:
        applied = await _applied(connection)
    return max((a.number for a in applied), default=0), max((a.needs for a in applied), default=0)


async def check(dsn: str, *, directory: Path | None = None) -> None:
    """Raise unless this version works on the database."""
    behind = await pending(dsn, directory=directory)
    if behind:
        raise _behind(behind)


def _behind(behind: Sequence[Migration]) -> MigrationError:
    return MigrationError(
        f"the database is at migration {behind[0].number - 1:04}, this version of Perdure needs "
        f"{behind[-1].number:04}: run `perdure migrate`."
    )


def too_old() -> MigrationError:
    """For an engine that may not register."""
    return MigrationError(
        f"this version of Perdure knows migrations up to {known():04}, and the database needs code that knows a later one: upgrade perdure."
    )


async def _apply_next(connection: Any, migrations: Sequence[Migration], is_new: bool) -> Applied | None:
    """Apply the first migration that the database lacks, in a transaction of its own. `is_new`: the database was created by this process."""
    # Read committed by name: under a stricter default the look below would see the database as it was before the lock.
    async with connection.transaction(isolation="read_committed"):
        await execute(connection, "lock_migrations")
        behind = not_applied(migrations, await _applied(connection))
        if not behind:
            return None
        # Only where needed: these ask for privileges that a role in an up-to-date database need not have.
        if behind[0].number == 1:
            await execute(connection, "create_schema")
            await execute(connection, "create_migration_table")
        await _lock_tables(connection, behind[0])
        await _refuse_older_engines(connection, behind[0].needs)
        return await _apply(connection, behind[0], behind[0].number if is_new else behind[0].needs)


async def _lock_tables(connection: Any, migration: Migration) -> None:
    await fetch_value(connection, "limit_lock_waits", timeout=LOCK_WAIT)
    found = await fetch(connection, "tables_of", names=sorted(set(_NAMED.findall(migration.sql))))
    for name in sorted((row["name"] for row in found), key=_lock_place):
        await connection.execute(f'lock table perdure."{name}" in access exclusive mode')


def _lock_place(name: str) -> tuple[int, str]:
    return (LOCK_ORDER.index(name) if name in LOCK_ORDER else len(LOCK_ORDER), name)


async def _apply(connection: Any, migration: Migration, needs: int) -> Applied:
    try:
        await connection.execute(migration.sql)
    except (LockNotAvailableError, TransactionRollbackError):
        raise
    except PostgresError as error:
        raise MigrationError(
            f"migration {migration.file} failed{_line(migration.sql, error)}: {error}. "
            "It was rolled back; the database is as it was before it."
        ) from error
    row = await fetch_row(
        connection,
        "insert_applied",
        number=migration.number,
        name=migration.name,
        checksum=migration.checksum,
        needs=needs,
    )
    return Applied(**row)


async def _applied(connection: Any) -> list[Applied]:
    if not await fetch_value(connection, "has_migration_table"):
        return []
    return [Applied(**row) for row in await fetch(connection, "select_applied")]


def not_applied(migrations: Sequence[Migration], applied: Sequence[Applied]) -> list[Migration]:
    """The migrations that are left, once the applied ones are known to be the same as the files."""
    known = {m.number: m for m in migrations}
    for record in applied:
        migration = known.get(record.number)
        if migration is None:
            if record.needs <= len(migrations):
                continue
            raise MigrationError(
                f"the database has migration {record.number:04}_{record.name}, which needs code that knows migration {record.needs:04}; this "
                f"version of Perdure ends at {len(migrations):04}. A newer version has migrated it: upgrade perdure."
            )
        if migration.checksum != record.checksum:
            raise MigrationError(
                f"{migration.file} has changed since it was applied on {record.applied_at:%Y-%m-%d %H:%M:%S %Z}\n"
                f"  expected (database): sha256 {record.checksum}\n"
                f"  actual   (file):     sha256 {migration.checksum}\n"
                "An applied migration never changes: restore the file and put the change into a new migration."
            )
    reached = max((record.number for record in applied), default=0)
    if reached != len(applied):
        raise MigrationError(
            f"the database says it is at migration {reached:04} but records only {len(applied)} of them. "
            "The table perdure.migration was edited: restore its rows."
        )
    return [m for m in migrations if m.number > reached]


def _line(sql: str, error: PostgresError) -> str:
    position = getattr(error, "position", None)
    return f" at line {sql.count(chr(10), 0, int(position)) + 1}" if position else ""
