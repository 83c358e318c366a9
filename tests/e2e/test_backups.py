"""Backup and restore drills under load, with PostgreSQL's own programs, as docs/how-to/back-up-and-restore.md describes them.

Point-in-time: a base backup and archived WAL bring back exactly the state of a restore point. What was acknowledged before it is there, what
was begun after it is not, `perdure verify` names the difference, and runs go on. And a dump of a live database is one consistent state.
PERDURE_BACKUP_STARTS=N has N starts acknowledged between two steps.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from harness.audited_load import MODULE, NAME, Load, Start
from harness.fleet import Fleet, at_rest, count
from harness.servers import Servers

from perdure.core import ids
from perdure.localpg.cluster import PrivateCluster
from perdure.localpg.unprivileged import Account
from perdure.store.migrate import migrate
from perdure.store.verify import verify
from tests.fakes.waiting import until

STARTS = int(os.environ.get("PERDURE_BACKUP_STARTS", "5"))
POINT = "before_the_mistake"
LEASE_S = 6.0
ACKNOWLEDGED = 1
"""The invariant that every acknowledged start exists."""


class Drill:
    """A cluster that archives its WAL, and the programs that save and restore it."""

    def __init__(self, directory: Path, make: Callable[..., PrivateCluster]) -> None:
        self._directory, self._make = directory, make
        self._account = Account.for_server(directory / "no-such-directory")
        self._archive = self._own(directory / "archive")
        hba = directory / "pg_hba.conf"
        hba.write_text("host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n")
        self._settings = {"hba_file": str(hba), "archive_mode": "on", "shared_buffers": "64MB"}
        copy = f"test ! -f {self._archive}/%f && cp %p {self._archive}/%f"
        self.cluster = make(directory / "first", settings={**self._settings, "archive_command": copy})
        self.took: dict[str, float] = {}

    def _own(self, directory: Path) -> Path:
        directory.mkdir(mode=0o700)
        self._account.own(directory)
        return directory

    def run(self, what: str, program: str, *arguments: str) -> None:
        began = time.monotonic()
        done = subprocess.run(
            [str(self.cluster.binaries / program), *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            **self._account.popen_options(),
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"
        self.took[what] = time.monotonic() - began

    def base_backup(self, dsn: str) -> None:
        base = str(self._directory / "base")
        self._own(Path(base))
        self.run("base backup", "pg_basebackup", "--dbname", dsn, "--pgdata", base, "--checkpoint", "fast")

    def dump(self, dsn: str, into: str) -> None:
        file = str(self._own(self._directory / "dumps") / "perdure.dump")
        self.run("dump", "pg_dump", "--format", "custom", "--schema", "perdure", "--file", file, dsn)
        self.run("restore of the dump", "pg_restore", "--exit-on-error", "--dbname", into, file)

    def destroy(self) -> None:
        self.cluster.kill()
        shutil.rmtree(self.cluster.data)

    async def restore(self) -> str:
        """A new cluster from the base backup, with all WAL up to the restore point. It answers reads long before it has got there."""
        began = time.monotonic()
        dsn = await asyncio.to_thread(self._recovering)

        async def is_promoted() -> bool:
            return not await _execute(dsn, "select pg_is_in_recovery()")

        await until(is_promoted, "the restore point is reached")
        self.took["restore"] = time.monotonic() - began
        return dsn

    def _recovering(self) -> str:
        directory = self._own(self._directory / "second")
        shutil.copy2(self.cluster.directory / "password", directory / "password")
        shutil.move(self._directory / "base", directory / "data")
        (directory / "data" / "recovery.signal").touch()
        point = {"recovery_target_name": POINT, "recovery_target_action": "promote"}
        restored = {"restore_command": f"cp {self._archive}/%f %p", "archive_command": "true", **point}
        dsn: str = self._make(directory, settings={**self._settings, **restored}).start()
        return dsn


async def _execute(dsn: str, statement: str) -> Any:
    connection = await asyncpg.connect(dsn, timeout=30)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def _is_archived(dsn: str, segment: str) -> bool:
    return bool(await _execute(dsn, f"select last_archived_wal >= '{segment}' from pg_stat_archiver"))


async def _up(fleet: Servers) -> None:
    server = fleet.server(0)
    await until(lambda: fleet.is_up(server, "ready"), "the server is up", 60)
    worker = fleet.worker(fleet.addresses, module=MODULE)
    await until(lambda: fleet.is_up(worker, "connected"), "the worker is up", 60)


def _stop_all(fleet: Fleet) -> None:
    for one in fleet.engines:
        one.kill()
    fleet.engines.clear()


async def _more(load: Load) -> None:
    before = len(load.acknowledged)
    await until(lambda: len(load.acknowledged) >= before + STARTS, "more starts are acknowledged")


async def _present(dsn: str) -> set[str]:
    connection = await asyncpg.connect(dsn, timeout=30)
    try:
        rows = await connection.fetch(f"select run_id from perdure.run where workflow = '{NAME}'")
        rows += await connection.fetch(f"select run_id from perdure.run_queue where workflow = '{NAME}'")
        return {ids.text(row["run_id"].bytes) for row in rows}
    finally:
        await connection.close()


async def _damaged(load: Load, drill: Drill, dsn: str) -> tuple[list[Start], float, float]:
    """Load, a base backup, a dump, a restore point, more load. Returns the starts, and the moments around the restore point."""
    async with load.running():
        await _more(load)
        await asyncio.to_thread(drill.base_backup, dsn)
        await _more(load)
        copy = drill.cluster.create_database("copy")
        await asyncio.to_thread(drill.dump, dsn, copy)
        assert not [t for t in await verify(copy) if t.violations], "a dump of a live database is one consistent state"
        assert await count(copy, "select count(*) from perdure.history") > 0
        await _more(load)
        before = time.monotonic()
        await _execute(dsn, f"select pg_create_restore_point('{POINT}')")
        after = time.monotonic()
        await _more(load)
        segment = await _execute(dsn, "select pg_walfile_name(pg_switch_wal())")
        await until(lambda: _is_archived(dsn, segment), "the WAL is archived", 60)
        await _more(load)
    return list(load.acknowledged), before, after


async def test_a_backup_is_restored_to_a_moment_under_load(
    durable_cluster: Callable[..., PrivateCluster],
    open_directory: Callable[[], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drill = Drill(open_directory(), durable_cluster)
    dsn = await asyncio.to_thread(drill.cluster.start)
    await migrate(dsn)
    with Servers(tmp_path, dsn, 1, lease_s=LEASE_S) as fleet:
        monkeypatch.setenv("PERDURE_TEST_LEDGER", str(fleet.ledger))
        await _up(fleet)
        starts, before, after = await _damaged(Load(fleet.addresses, tmp_path, clients=4), drill, dsn)
        _stop_all(fleet)
        await asyncio.to_thread(drill.destroy)
        struck = time.monotonic()

        fleet.dsn = await drill.restore()
        assert not [t for t in await verify(fleet.dsn) if t.violations], "the state of the restore point is whole"
        present = await _present(fleet.dsn)
        lost = [start for start in starts if start.run_id not in present]
        assert {s.run_id for s in starts if s.at < before} <= present, "what was acknowledged before the point is there"
        assert {s.run_id for s in starts if s.began > after} <= {s.run_id for s in lost}, "nothing later is"
        assert lost
        fleet.signals.unlink()
        fleet.ledger.write_text("")  # effects of what was lost are named too; this is about starts
        named = fleet.verify(at_rest=False)[ACKNOWLEDGED]
        assert named["violations"] == len(lost), "verify counts exactly what was lost"

        await _up(fleet)
        load = Load(fleet.addresses, tmp_path, clients=2, name="restored")
        async with load.running():
            await until(lambda: load.acknowledged, "a start is acknowledged again")
            drill.took["outage"] = time.monotonic() - struck
            for start in starts:
                if start.run_id in present:
                    await load.signal(start.run_id, start.key)
        await at_rest(fleet.dsn, 90)
        assert await count(fleet.dsn, "select count(*) from perdure.run_queue") == 0, (
            "what was restored goes on to its end"
        )
        assert not [t for t in await verify(fleet.dsn, at_rest=True) if t.violations]
        assert fleet.verify()[ACKNOWLEDGED]["violations"] == len(lost), "and nothing of what came after the restore"
        assert len(await _present(fleet.dsn)) == len(present) + len(load.acknowledged)
        figures = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in drill.took.items())
        print(f"{len(starts)} starts acknowledged, {len(lost)} of them after the restore point and lost; {figures}")
