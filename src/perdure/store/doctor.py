"""What is wrong with this database, and what to do about it.

Each check reads one fact and turns it into one finding. `fail` means work can be lost or cannot go on, `warn` that it
will be slow or will need attention. A check that breaks says so and does not silence the others.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec
from asyncpg.exceptions import PostgresError

from perdure.core.errors import MigrationError, PerdureError
from perdure.core.ids import lowest_at
from perdure.store import migrate, pooling
from perdure.store.connect import connect, without_password
from perdure.store.connections import SETTINGS
from perdure.store.connections import connect as engine_connect
from perdure.store.queries import fetch, fetch_row, fetch_value, queries

SERVER_VERSION_MIN: Final = 14
CLOCK_SKEW_S_MAX: Final = 1.0
TRANSACTION_S_MAX: Final = 300.0
CONNECTIONS_SHARE_MAX: Final = 0.8
TASK_WAIT_S_MAX: Final = 300.0
PROBES: Final = 5
PROBE_S: Final = 5.0
POOLING_ADVICE: Final = "Connect to PostgreSQL directly, or through PgBouncer in session or transaction mode."
POLLING_ADVICE: Final = (
    "Each statement takes three round trips more, and work of other engines is found by polling, up to about a second later. "
    "A direct connection, or a pooler in session mode with `pooling=session` in the DSN, has neither cost."
)


class Finding(msgspec.Struct, frozen=True):
    name: str
    status: Literal["ok", "warn", "fail"]
    what: str
    advice: str = ""


Check = Callable[[Any], Awaitable[Finding | None]]


async def examine(dsn: str) -> list[Finding]:
    """Every finding, good and bad, in a fixed order. Never raises for what is wrong with the database."""
    try:
        async with connect(dsn) as connection:
            findings = [await _run(name, check, connection) for name, check in CHECKS.items()]
            findings.append(await _run("pooling", lambda c: _pooling(c, dsn), connection))
    except PerdureError as error:
        advice = "Check that the server runs, that the DSN is right, and that pg_hba.conf lets this user in."
        return [Finding("connection", "fail", str(error), advice)]
    reached = Finding("connection", "ok", f"connected to {without_password(dsn)}")
    return [reached, await _migrations(dsn), *(f for f in findings if f)]


async def _run(name: str, check: Check, connection: Any) -> Finding | None:
    try:
        return await check(connection)
    except (PostgresError, PerdureError) as error:
        return Finding(
            name, "warn", f"could not be checked: {error}", "Run doctor as a role that may read pg_stat_activity."
        )


async def _version(connection: Any) -> Finding:
    row = await fetch_row(connection, "settings")
    if row["version_number"] // 10_000 < SERVER_VERSION_MIN:
        what = f"PostgreSQL {row['version']} is older than {SERVER_VERSION_MIN}"
        return Finding("version", "fail", what, f"Upgrade the server to {SERVER_VERSION_MIN} or newer.")
    return Finding("version", "ok", f"PostgreSQL {row['version']}")


async def _migrations(dsn: str) -> Finding:
    try:
        await migrate.check(dsn)
    except MigrationError as error:
        return Finding(
            "migrations", "fail", str(error), "Engines refuse to start on this database until this is settled."
        )
    except PerdureError as error:
        return Finding(
            "migrations", "fail", str(error), "Grant this role usage of schema perdure and select on its tables."
        )
    return Finding("migrations", "ok", f"up to date at {len(migrate.load()):04}")


async def _durability(connection: Any) -> Finding:
    row = await fetch_row(connection, "settings")
    off = [s for s in ("fsync", "synchronous_commit", "full_page_writes") if row[s] == "off"]
    if off:
        what = (
            f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off: what was acknowledged can be lost in a crash"
        )
        return Finding("durability", "fail", what, "Set them to on. Perdure's promises rest on a commit that stays.")
    return Finding("durability", "ok", f"fsync on, full_page_writes on, synchronous_commit {row['synchronous_commit']}")


async def _clock(connection: Any) -> Finding:
    before_s = time.time()
    database_s: float = await fetch_value(connection, "clock")
    after_s = time.time()
    return clock_finding(database_s - (before_s + after_s) / 2, (after_s - before_s) / 2)


def clock_finding(skew_s: float, uncertainty_s: float) -> Finding:
    what = f"the database's clock is {abs(skew_s):.3f} s {'ahead of' if skew_s > 0 else 'behind'} this machine's"
    if abs(skew_s) - uncertainty_s <= CLOCK_SKEW_S_MAX:
        return Finding("clock", "ok", what)
    advice = (
        "Timers and leases stay right, because only the database's clock decides. Times in this machine's logs "
        "will not match those in histories: synchronise both clocks (chrony, systemd-timesyncd)."
    )
    return Finding("clock", "warn", what, advice)


async def _horizon(connection: Any) -> Finding:
    row = await fetch_row(connection, "oldest_horizon")
    if row is None:
        return Finding("vacuum horizon", "ok", "no transaction holds back vacuum")
    age = f"{row['age_s']:.0f} s" if row["age_s"] is not None else "unknown time"
    what = f"{row['holder']}, open for {age}, {row['age_xids']} transactions behind"
    if row["query"]:
        what += f": {row['query']}"
    if row["age_s"] is not None and row["age_s"] < TRANSACTION_S_MAX:
        return Finding("vacuum horizon", "ok", what)
    advice = (
        "While it is open no dead row can be removed, and queues grow slow. End it (pg_terminate_backend, rollback "
        "prepared, pg_drop_replication_slot), and set idle_in_transaction_session_timeout."
    )
    return Finding("vacuum horizon", "warn", what, advice)


async def _dead_rows(connection: Any) -> Finding:
    rows = await fetch(connection, "dead_rows")
    if not rows:
        return Finding("dead rows", "ok", "no table of Perdure's has more dead rows than live ones")
    what = ", ".join(f"{r['table']}: {r['dead']} dead, {r['live']} live" for r in rows)
    advice = "Look at the vacuum horizon first. Otherwise run `vacuum` on these tables and check that autovacuum is on."
    return Finding("dead rows", "warn", what, advice)


async def _indexes(connection: Any) -> Finding:
    names = [row["index"] for row in await fetch(connection, "invalid_indexes")]
    if not names:
        return Finding("indexes", "ok", "every index is valid")
    return Finding(
        "indexes", "fail", f"invalid: {', '.join(names)}", "Run `reindex index concurrently` on each of them."
    )


async def _connections(connection: Any) -> Finding:
    row = await fetch_row(connection, "connections")
    what = f"{row['used']} of {row['usable']} connections in use"
    if row["used"] <= CONNECTIONS_SHARE_MAX * row["usable"]:
        return Finding("connections", "ok", what)
    return Finding("connections", "warn", what, "Raise max_connections, or put a pooler in front of the database.")


async def _retention(connection: Any) -> Finding | None:
    row = await fetch_row(connection, "retention_state")
    if row is None:
        return None
    if row["error"] is not None:
        what = f"ended runs of {row['name']} are not removed: {' '.join(row['error'].split())[:300]}"
        advice = (
            "Nothing is removed before it is exported, so the tables grow until this is mended. An engine tries again "
            "every minute; `perdure retention status` shows its progress."
        )
        return Finding("retention", "fail", what, advice)
    if row["is_forever"]:
        what = "ended runs are kept for ever, as before the upgrade that brought retention policies"
        advice = (
            "Say how long they are kept (`perdure retention set everywhere 90d`), or that this is meant "
            "(`perdure retention set everywhere forever`)."
        )
        return Finding("retention", "warn", what, advice)
    where = f", exported to {row['url']} first" if row["url"] else ""
    last = f"; {row['removed']:,} runs were removed so far" if row["removed"] else ""
    return Finding("retention", "ok", f"{row['policies']} policies; ended runs are removed by age{where}{last}")


async def _stuck(connection: Any) -> Finding | None:
    if not await fetch_value(connection, "has_runs"):
        return None
    rows = await fetch(connection, "stuck_runs")
    if not rows:
        return Finding("stuck runs", "ok", "no run is stuck")
    what = "; ".join(f"{r['workflow']}: {r['runs']} stuck, e.g. {' '.join(r['example'].split())[:200]}" for r in rows)
    advice = "Repair their code and restart its workers, then `perdure resume RUN`. `perdure list --waiting-on stuck` lists them."
    return Finding("stuck runs", "fail", what, advice)


async def _overdue(connection: Any) -> Finding | None:
    if not await fetch_value(connection, "has_runs"):
        return None
    rows = await fetch(connection, "overdue_tasks", seconds=TASK_WAIT_S_MAX)
    if not rows:
        return Finding("waiting tasks", "ok", f"no task has waited longer than {TASK_WAIT_S_MAX:.0f} s for a worker")
    what = "; ".join(f"{r['tasks']} of {r['name']} on queue {r['queue']}, due for {r['age_s']:.0f} s" for r in rows)
    advice = "Start workers that serve these queues and tasks, or more of them: `perdure queue list` and `perdure workers` show who does."
    return Finding("waiting tasks", "warn", what, advice)


async def _blocked(connection: Any) -> Finding | None:
    if not await fetch_value(connection, "has_runs"):
        return None
    rows = await fetch(connection, "blocked_workers")
    if not rows:
        return Finding("workers", "ok", "no worker's event loop is blocked")
    what = "event loop blocked: " + ", ".join(f"{r['name']} ({r['host']}:{r['pid']})" for r in rows)
    advice = "A task blocks it: `perdure show RUN` has its stack. Make it a plain function, or @task(process=True)."
    return Finding("workers", "warn", what, advice)


async def _partitions(connection: Any) -> Finding | None:
    rows = await fetch(connection, "history_partitions")
    return partition_finding([row["bound"] for row in rows], datetime.now(UTC)) if rows else None


def partition_finding(bounds: list[str], now: datetime) -> Finding:
    """Partitions are ranges of ids, and an id opens with its millisecond, so a moment has a place in that order."""
    ranges = [m.groups() for b in bounds if (m := re.search(r"FROM \('([0-9a-f-]{36})'\) TO \('([0-9a-f-]{36})'\)", b))]
    moments = {"now": now, "tomorrow": now + timedelta(days=1)}
    bare = [word for word, at in moments.items() if not any(low <= first_id(at) < high for low, high in ranges)]
    if not bare:
        return Finding("partitions", "ok", f"history has {len(ranges)} partitions, now and tomorrow are covered")
    what = f"history has no partition of its own for {' and '.join(bare)}"
    advice = (
        "Nothing is refused: such rows go to the default partition. But retention can drop whole partitions only, so "
        "they have to be made ahead of time."
    )
    return Finding("partitions", "warn", what, advice)


def first_id(at: datetime) -> str:
    """The lowest id of that millisecond. Lower-case hexadecimal sorts as PostgreSQL sorts uuid."""
    return str(lowest_at(int(at.timestamp() * 1000)))


def leftover_finding(found: list[str]) -> Finding:
    if not found:
        return Finding("leftovers", "ok", "no private server runs without users, and no data is without its project")
    return Finding("leftovers", "warn", "; ".join(found), "`perdure doctor --clean` stops and removes them.")


async def _pooling(connection: Any, dsn: str) -> Finding:
    """Open a connection as an engine does, and see whether its settings hold; then find out what stands between."""
    _, said = pooling.split(dsn)
    try:
        engine = await engine_connect(dsn)
        try:
            held, used = await pooling.hold(engine, SETTINGS), pooling.of(engine)
        finally:
            await engine.close(timeout=PROBE_S)
    except (PostgresError, PerdureError, OSError) as error:
        advice = f"{POOLING_ADVICE} Leave `pooling` out of the DSN to have it found out."
        return Finding("pooling", "fail", f"an engine cannot use this connection: {error}", advice)
    keeps = await _keeps_session(connection, dsn)
    return pooling_finding(said, used, pooling.found(dsn), keeps=keeps, held=held)


def pooling_finding(
    said: pooling.Pooling | None, used: pooling.Pooling, found: pooling.Pooling | None, *, keeps: bool, held: bool
) -> Finding:
    """`said` by the DSN, `used` by engines, `found` by the first connection where the DSN says nothing; `keeps`: a connection keeps
    its session; `held`: the engine's settings are in force."""
    by_transaction = used is pooling.Pooling.TRANSACTION
    if not keeps and not by_transaction:
        what = "a transaction-pooling proxy stands between, and engines would use it as if it kept sessions"
        return Finding("pooling", "fail", what, "Put `pooling=transaction` into the DSN: ...?pooling=transaction")
    if not held:
        what = "the settings that Perdure's statements depend on do not hold on this connection"
        return Finding("pooling", "fail", what, POOLING_ADVICE)
    if not keeps:
        what = "PgBouncer or the like in transaction mode: engines send their settings with each transaction, and poll"
        return Finding("pooling", "ok", what, POLLING_ADVICE)
    if by_transaction and (said or found) is not None:
        what = "a pooler in session mode, which engines use by the transaction, and poll"
        return Finding(
            "pooling", "ok", what, "Put `pooling=session` into the DSN: fewer round trips, and NOTIFY is heard."
        )
    if said is pooling.Pooling.SESSION:
        return Finding("pooling", "ok", "connections keep their session, as the DSN says (pooling=session)")
    return Finding("pooling", "ok", "direct: connections keep their session and take Perdure's settings")


async def _keeps_session(connection: Any, dsn: str) -> bool:
    """Leave a mark in the session, let a second connection take a server of the pool, and look for the mark again.

    One look proves a pooler by transaction, not its absence: under load the second connection may get another server connection
    by chance. So it is done several times."""
    async with connect(dsn) as other:
        for _ in range(PROBES):
            mark = secrets.token_hex(8)
            marked = await fetch_row(connection, "set_probe", mark=mark)
            async with other.transaction():
                taken = await fetch_row(other, "read_probe")
                try:
                    found = await connection.fetchrow(queries()["read_probe"].sql, timeout=PROBE_S)
                except TimeoutError:
                    return False  # one server connection for all, and `other` has it
            if found["value"] != mark or found["pid"] != marked["pid"] or taken["pid"] == marked["pid"]:
                return False
        await fetch_row(connection, "set_probe", mark="")
    return True


CHECKS: Final[dict[str, Check]] = {
    "version": _version,
    "durability": _durability,
    "clock": _clock,
    "vacuum horizon": _horizon,
    "dead rows": _dead_rows,
    "indexes": _indexes,
    "connections": _connections,
    "partitions": _partitions,
    "retention": _retention,
    "stuck runs": _stuck,
    "waiting tasks": _overdue,
    "workers": _blocked,
}
