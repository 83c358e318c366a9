"""Numbered migrations: migrations/NNNN_name.sql, applied in order, each exactly once.

Laws
 - A migration and its record commit in one transaction. A crash leaves it wholly applied or not at all.
 - That transaction holds one advisory lock and looks again under it, so any number of processes may migrate at once.
 - An applied file never changes: its checksum is in the database and is compared every time.
 - A database that is ahead of the code is left alone.
 - Servers may be at work meanwhile. A migration locks the tables it names first, in the order in which servers lock them, and waits for each
   no longer than LOCK_WAIT; then it is undone and tried again.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

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
_NAMED = re.compile(r"\bperdure\.([a-z_0-9]+)")


class Migration(msgspec.Struct, frozen=True):
    number: int
    name: str
    sql: str
    checksum: str

    @property
    def file(self) -> str:
        return f"{self.number:04}_{self.name}.sql"


class Applied(msgspec.Struct, frozen=True):
    number: int
    name: str
    checksum: str
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


def _read(entry: Traversable) -> Migration:
    match = FILE_NAME.fullmatch(entry.name)
    if match is None:
        raise MigrationError(f"{entry.name} is not named like a migration. Name it NNNN_lower_case_name.sql.")
    # A checkout that turned line ends into CRLF holds the same migration.
    text = entry.read_bytes().replace(b"\r\n", b"\n")
    return Migration(int(match[1]), match[2], text.decode(), hashlib.sha256(text).hexdigest())


async def migrate(dsn: str, *, directory: Path | None = None) -> list[Applied]:
    """Bring the database up to date. Returns what this call applied; another process may have applied the rest."""
    migrations = load(directory)
    done: list[Applied] = []
    async with connect(dsn) as connection:
        while True:
            applied = await _until_locked(connection, migrations)
            if applied is None:
                return done
            done.append(applied)


async def _until_locked(connection: Any, migrations: Sequence[Migration]) -> Applied | None:
    """Apply the next one, as soon as servers leave a gap."""
    pause_s = 0.05
    busy: Exception | None = None
    for _ in range(LOCK_TRIES):
        try:
            return await _apply_next(connection, migrations)
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


async def check(dsn: str, *, directory: Path | None = None) -> None:
    """Raise unless the database is exactly what this version expects."""
    behind = await pending(dsn, directory=directory)
    if behind:
        raise MigrationError(
            f"the database is at migration {behind[0].number - 1:04}, this version of Perdure needs "
            f"{behind[-1].number:04}: run `perdure migrate`."
        )


async def _apply_next(connection: Any, migrations: Sequence[Migration]) -> Applied | None:
    """Apply the first migration that the database lacks, in a transaction of its own."""
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
        return await _apply(connection, behind[0])


async def _lock_tables(connection: Any, migration: Migration) -> None:
    await fetch_value(connection, "limit_lock_waits", timeout=LOCK_WAIT)
    found = await fetch(connection, "tables_of", names=sorted(set(_NAMED.findall(migration.sql))))
    for name in sorted((row["name"] for row in found), key=_lock_place):
        await connection.execute(f'lock table perdure."{name}" in access exclusive mode')


def _lock_place(name: str) -> tuple[int, str]:
    return (LOCK_ORDER.index(name) if name in LOCK_ORDER else len(LOCK_ORDER), name)


async def _apply(connection: Any, migration: Migration) -> Applied:
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
        connection, "insert_applied", number=migration.number, name=migration.name, checksum=migration.checksum
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
            raise MigrationError(
                f"the database has migration {record.number:04}_{record.name}, which this version of Perdure does not "
                f"know (it ends at {len(migrations):04}). A newer version has migrated it: upgrade perdure."
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
