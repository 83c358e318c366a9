"""Doctor: finds what is wrong, says what to do, and stays quiet about what is right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
import typer
from typer.testing import CliRunner

from perdure.cli import database
from perdure.localpg import leftovers
from perdure.store import doctor
from perdure.store.doctor import Finding, clock_finding, examine, partition_finding
from perdure.store.queries import SqlQuery, queries
from tests.fakes.waiting import until

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


async def finding(dsn: str, name: str) -> Finding | None:
    return next((f for f in await examine(dsn) if f.name == name), None)


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def test_a_sound_database_has_no_failure_but_the_tests_own_settings(dsn: str) -> None:
    findings = await examine(dsn)
    assert [f.name for f in findings if f.status == "fail"] == ["durability"]
    assert all(f.advice for f in findings if f.status != "ok")
    assert {"connection", "version", "migrations", "clock", "indexes", "connections", "pooling"} <= {
        f.name for f in findings
    }


async def test_settings_that_lose_commits_are_a_failure(dsn: str) -> None:
    found = await finding(dsn, "durability")
    assert found
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert setting in found.what


async def test_a_database_that_was_never_migrated_is_a_failure(bare_dsn: str) -> None:
    found = await finding(bare_dsn, "migrations")
    assert found
    assert found.status == "fail"
    assert "perdure migrate" in found.what
    assert await finding(bare_dsn, "partitions") is None, "there is no history to have partitions"


async def test_a_server_that_is_away_is_one_finding_without_the_password() -> None:
    [found] = await examine("postgresql://me:secret@127.0.0.1:1/x")
    assert (found.name, found.status) == ("connection", "fail")
    assert "secret" not in found.what


async def test_an_old_server_is_a_failure(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SERVER_VERSION_MIN", 99)
    found = await finding(dsn, "version")
    assert found
    assert found.status == "fail"


async def test_a_transaction_left_open_is_named_with_its_statement(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TRANSACTION_S_MAX", 0.0)
    async with connected(dsn) as holder, holder.transaction(isolation="repeatable_read"):
        pid = await holder.fetchval("select pg_backend_pid() /* the culprit */")
        found = await finding(dsn, "vacuum horizon")
    assert found
    assert found.status == "warn"
    assert f"pid {pid}" in found.what
    assert "the culprit" in found.what


async def test_an_invalid_index_is_a_failure(dsn: str) -> None:
    async with connected(dsn) as connection:
        await connection.execute("create table perdure.doubled as select 1 as n from generate_series(1, 2)")
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.execute("create unique index concurrently doubled_n on perdure.doubled (n)")
    found = await finding(dsn, "indexes")
    assert found
    assert found.status == "fail"
    assert "doubled_n" in found.what


def test_leftovers_are_removed_after_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [leftovers.Leftover("/x/pg", "unused server", "PostgreSQL (pid 7) runs in /x/pg without users")]
    removed: list[str] = []

    def remove(one: leftovers.Leftover) -> bool:
        removed.append(one.directory)
        return True

    monkeypatch.setattr(leftovers, "find", lambda: found)
    monkeypatch.setattr(leftovers, "remove", remove)
    app = typer.Typer()
    database.register(app)
    refused = CliRunner().invoke(app, ["doctor", "--clean"], input="n\n")
    assert refused.exit_code == 1 and "pid 7" in refused.output and removed == []
    assert CliRunner().invoke(app, ["doctor", "--clean"], input="y\n").exit_code == 0 and removed == ["/x/pg"]
    assert "removed: /x/pg" in CliRunner().invoke(app, ["doctor", "--clean", "--yes"]).output
    finding = doctor.leftover_finding([one.what for one in found])
    assert finding.status == "warn" and "perdure doctor --clean" in finding.advice


RUN = "0198c7a2-0000-7000-8000-000000000001"
INSERT_RUN = "insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at, stuck) values ($1, 1, 'order', 'v', 'running', now(), now(), $2)"


async def test_stuck_runs_are_a_failure(dsn: str) -> None:
    found = await finding(dsn, "stuck runs")
    assert found and found.status == "ok"
    async with connected(dsn) as connection:
        await connection.execute(INSERT_RUN, RUN, "expected pay,\nfound ship")
    found = await finding(dsn, "stuck runs")
    assert found and found.status == "fail"
    assert "order: 1 stuck, e.g. expected pay, found ship" in found.what and "perdure resume" in found.advice


async def test_tasks_that_nothing_begins_are_noticed(dsn: str) -> None:
    found = await finding(dsn, "waiting tasks")
    assert found and found.status == "ok"
    async with connected(dsn) as connection:
        await connection.execute(INSERT_RUN, RUN, None)
        await connection.execute(
            "insert into perdure.task_queue (id, run_id, ns, seq, name, queue, status, attempt, lost, options, input, run_at, scheduled_at)"
            " values ($1, $1, 1, 0, 'ship', 'docks', 'pending', 1, 0, '', '', now() - interval '1 hour', now())",
            RUN,
        )
    found = await finding(dsn, "waiting tasks")
    assert found and found.status == "warn"
    assert "1 of ship on queue docks, due for 36" in found.what


async def test_a_worker_whose_event_loop_is_blocked_is_noticed(dsn: str) -> None:
    async with connected(dsn) as connection:
        await connection.execute(
            "insert into perdure.engine_session (engine, slots, slots_free, expires_at) values ('e', 1, 1, now() + interval '1 hour')"
        )
        await connection.execute(
            "insert into perdure.worker (id, ns, name, host, pid, sdk, queues, tasks, workflows, slots, slots_used, runs_held, draining, connected_at, seen_at, session_id, blocked) select $1, 1, 'w1', 'h', 7, 's', '{}', '{}', '{}', 1, 0, 0, false, now(), now(), id, 'stack' from perdure.engine_session",
            RUN,
        )
    found = await finding(dsn, "workers")
    assert found and found.status == "warn" and "w1 (h:7)" in found.what


async def test_dead_rows_are_noticed(dsn: str) -> None:
    async with connected(dsn) as connection:
        await connection.execute("create table perdure.worn (n int) with (autovacuum_enabled = off)")
        await connection.execute("insert into perdure.worn select generate_series(1, 20000)")
        await connection.execute("delete from perdure.worn")
    # A session's counts reach the statistics at the latest when it ends, and that comes after close() returns.
    async with connected(dsn) as connection:
        dead = "select n_dead_tup from pg_stat_user_tables where relname = 'worn'"
        await until(lambda: connection.fetchval(dead))
    found = await finding(dsn, "dead rows")
    assert found
    assert found.status == "warn"
    assert "worn: 20000 dead" in found.what


async def test_few_free_connections_are_noticed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CONNECTIONS_SHARE_MAX", 0.0)
    found = await finding(dsn, "connections")
    assert found
    assert found.status == "warn"


async def test_a_session_of_our_own_is_not_taken_for_a_pooler(dsn: str) -> None:
    found = await finding(dsn, "pooling")
    assert found
    assert (found.status, found.what) == ("ok", "direct: connections keep their session and take Perdure's settings")


async def test_a_check_that_breaks_does_not_silence_the_others(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(queries(), "dead_rows", SqlQuery("dead_rows", "select no_such_column"))
    findings = {f.name: f for f in await examine(dsn)}
    assert "could not be checked" in findings["dead rows"].what
    assert findings["indexes"].status == "ok"


def test_clocks_may_differ_by_what_the_round_trip_hides() -> None:
    assert clock_finding(0.9, 0.0).status == "ok"
    assert clock_finding(-1.4, 0.5).status == "ok"
    assert clock_finding(1.5, 0.1).status == "warn"
    assert "behind" in clock_finding(-3.0, 0.0).what
    assert "only the database's clock decides" in clock_finding(3.0, 0.0).advice


def bound(start: datetime, end: datetime) -> str:
    low, high = doctor.first_id(start), doctor.first_id(end)
    return f"FOR VALUES FROM ('{low}') TO ('{high}')"


def test_partitions_must_cover_now_and_tomorrow() -> None:
    day = timedelta(days=1)
    assert partition_finding(["DEFAULT"], NOW).status == "warn"
    assert "tomorrow" in partition_finding(["DEFAULT", bound(NOW - day, NOW + day / 2)], NOW).what
    assert partition_finding([bound(NOW - day, NOW + day / 2), bound(NOW + day / 2, NOW + 2 * day)], NOW).status == "ok"


async def test_partitions_of_the_real_history_are_read(dsn: str) -> None:
    found = await finding(dsn, "partitions")
    assert found
    assert found.status == "ok"


# -- the command line --------------------------------------------------------------------------------------------------


def run_cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("PERDURE_DSN",)}
    program = [sys.executable, "-c", "from perdure.cli.main import main; main()", *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False, env=clean | environment)


@pytest.mark.usefixtures("interpreter")
def test_migrate_says_what_it_did_and_doctor_agrees(bare_dsn: str) -> None:
    first = run_cli("migrate", "--dsn", bare_dsn)
    assert (first.returncode, first.stderr) == (0, "")
    assert "applied 0001 initial" in first.stdout
    second = run_cli("migrate", PERDURE_DSN=bare_dsn)
    assert "up to date" in second.stdout

    report = run_cli("doctor", "--json", PERDURE_DSN=bare_dsn)
    findings = msgspec.json.decode(report.stdout, type=list[Finding])
    assert report.returncode == 1, "this server has fsync off"
    assert {f.name: f.status for f in findings}["migrations"] == "ok"


@pytest.mark.usefixtures("interpreter")
def test_piped_output_is_plain(dsn: str) -> None:
    lines = run_cli("doctor", "--dsn", dsn, FORCE_COLOR="").stdout.splitlines()
    assert all(line.split("\t")[0] in ("ok", "warn", "fail") for line in lines)
    assert not any("\x1b" in line for line in lines)


@pytest.mark.usefixtures("interpreter")
def test_an_error_is_one_message_without_a_traceback() -> None:
    result = run_cli("migrate", "--dsn", "postgresql://me:secret@127.0.0.1:1/x")
    assert result.returncode == 5
    assert result.stdout == ""
    assert result.stderr.startswith("perdure: PostgreSQL at postgresql://me@127.0.0.1:1/x")
    assert "Traceback" not in result.stderr


@pytest.mark.usefixtures("interpreter")
def test_wrong_usage_exits_with_2() -> None:
    assert run_cli("no-such-command").returncode == 2
    assert run_cli("doctor", "--no-such-option").returncode == 2


@pytest.mark.usefixtures("processes")
def test_without_a_dsn_a_private_server_is_started_and_stopped_again(open_directory: Any) -> None:
    home: Path = open_directory()
    assert run_cli("migrate", PERDURE_HOME=str(home)).returncode == 0
    report = run_cli("doctor", PERDURE_HOME=str(home))
    assert report.returncode == 0, report.stdout + report.stderr
    assert not (home / "pg" / "data" / "postmaster.pid").exists()
