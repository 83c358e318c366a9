"""The private PostgreSQL: starts by itself, survives what it must, and is shared without quarrel."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

from perdure.core.errors import Unavailable
from perdure.localpg import binaries, leftovers, postmaster, sharing, unprivileged, watcher
from perdure.localpg import cluster as cluster_module
from perdure.localpg.cluster import PrivateCluster, default_directory, find_binaries
from tests.fakes.waiting import until_sync

MakeCluster = Callable[..., PrivateCluster]
MakeDirectory = Callable[[], Path]

START_AND_PRINT_PID = """
import sys
from perdure.localpg.cluster import PrivateCluster
cluster = PrivateCluster(sys.argv[1])
cluster.start()
print(cluster.pid, flush=True)
sys.stdin.read()
"""


def ask(dsn: str, statement: str) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(run())


def starter(directory: Path) -> subprocess.Popen[str]:
    """Another process that starts the server and then waits for its standard input to close."""
    return subprocess.Popen(
        [sys.executable, "-c", START_AND_PRINT_PID, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def killed(directory: Path) -> int:
    """The pid of a server whose only user was killed with SIGKILL."""
    with starter(directory) as user:
        assert user.stdout is not None
        pid = int(user.stdout.readline())
        user.kill()
    return pid


def test_it_starts_with_a_database_on_loopback_only(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    dsn = cluster.start()

    assert ask(dsn, "select current_database()") == "perdure"
    assert ask(dsn, "select current_setting('listen_addresses')") == "127.0.0.1"
    assert ask(dsn, "select current_setting('unix_socket_directories')") == ""
    assert ask(dsn, "select current_setting('fsync')") == "on"
    assert ask(dsn, "select pg_encoding_to_char(encoding) from pg_database where datname = 'perdure'") == "UTF8"


def test_nobody_gets_in_without_the_password_and_nobody_else_can_read_it(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    port = cluster.start().rsplit(":", 1)[1].split("/")[0]

    with pytest.raises(asyncpg.InvalidPasswordError):
        ask(f"postgresql://perdure:guess@127.0.0.1:{port}/perdure", "select 1")
    assert stat.S_IMODE((cluster.directory / "password").stat().st_mode) == 0o600
    assert stat.S_IMODE(cluster.directory.stat().st_mode) == 0o700


def test_data_survives_kill_and_no_process_of_the_server_does(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    dsn = cluster.start()
    ask(dsn, "create table kept as select 42 as n")
    family = psutil.Process(cluster.pid).children(recursive=True)

    cluster.kill()

    assert not cluster.is_running
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert cluster.start() == dsn
    assert ask(dsn, "select n from kept") == 42


def test_a_postmaster_pid_that_names_a_stranger_does_not_prevent_starting(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    cluster.start()
    cluster.kill()
    file = cluster.data / "postmaster.pid"
    lines = file.read_text().splitlines()
    # A process of the same user, which PostgreSQL itself would take for a live server.
    sleeper = ["sleep", "60"]
    with subprocess.Popen(sleeper, **cluster._account.popen_options()) as stranger:
        file.write_text("\n".join([str(stranger.pid), *lines[1:], ""]))
        assert not cluster.is_running
        cluster.start()
        assert cluster.is_running
        stranger.kill()


def test_a_second_start_finds_the_running_server(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    dsn = cluster.start()
    again = durable_cluster(cluster.requested)

    assert again.start() == dsn
    assert again.pid == cluster.pid


def test_ten_processes_that_start_it_at_once_share_one_server(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    processes = [starter(cluster.requested) for _ in range(10)]
    pids = {process.stdout.readline().strip() for process in processes if process.stdout}
    for process in processes:
        process.communicate()

    assert pids == {str(cluster.pid)}
    assert all(process.returncode == 0 for process in processes)


def test_the_server_outlives_the_kill_of_the_process_that_started_it(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    with starter(cluster.requested) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        process.kill()

    assert cluster.pid == pid
    assert ask(cluster.start(), "select 1") == 1
    assert cluster.pid == pid


def test_a_server_that_cannot_be_seen_keeps_a_second_one_off_its_data(
    durable_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = durable_cluster()
    cluster.start()
    # As from another container: its pid means nothing here, and its processes cannot be found.
    monkeypatch.setattr(sharing, "HELD_S_MAX", 0.1)
    monkeypatch.setattr(postmaster, "serves", lambda pid, data: False)
    monkeypatch.setattr(postmaster, "_working_in", lambda data: [])
    with pytest.raises(Unavailable, match="cannot be seen from here"):
        durable_cluster(cluster.requested).start()
    monkeypatch.undo()
    assert cluster.is_running
    assert ask(cluster.dsn(), "select 1") == 1


def test_a_server_that_was_started_by_hand_is_found(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    cluster.start()
    cluster.stop()
    by_hand = [cluster.binaries / "pg_ctl", "-D", "data", "-w", "-l", "/dev/null", "start"]
    options = cluster._account.popen_options() | {"cwd": cluster.directory}
    subprocess.run(by_hand, check=True, stdout=subprocess.DEVNULL, **options)

    pid = cluster.pid
    assert pid is not None
    cluster.start()
    assert cluster.pid == pid


def test_stop_leaves_no_process_and_keeps_port_and_data(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    dsn = cluster.start()
    ask(dsn, "create table kept as select 42 as n")
    pid = cluster.pid
    cluster.stop()

    assert not cluster.is_running
    assert not (cluster.data / "postmaster.pid").exists()
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    with pytest.raises(Unavailable, match="not running"):
        cluster.dsn()
    cluster.stop()
    assert cluster.start() == dsn
    assert ask(dsn, "select n from kept") == 42


def test_the_last_to_leave_stops_it(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    with starter(cluster.requested) as other:
        assert other.stdout
        other.stdout.readline()
        with cluster:
            assert cluster.is_running
        assert cluster.is_running, "another process was still using it"
        other.communicate()
    with cluster:
        assert cluster.is_running
    assert not cluster.is_running


def test_a_port_that_was_taken_meanwhile_is_given_up_for_another(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    cluster.start()
    cluster.stop()
    port = int((cluster.directory / "port").read_text())
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", port))
        thief.listen()
        dsn = cluster.start()

    assert f":{port}/" not in dsn
    assert ask(dsn, "select 1") == 1


def test_a_port_that_is_taken_between_look_and_bind_is_given_up_too(
    durable_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = durable_cluster()
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", 0))
        thief.listen()
        taken = thief.getsockname()[1]
        ports = iter([taken, taken])
        real = cluster._ports
        monkeypatch.setattr(cluster, "_ports", lambda: [*ports, *real()])
        assert ask(cluster.start(), "select 1") == 1


def test_a_server_that_cannot_start_shows_the_end_of_its_log(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster(settings={"shared_buffers": "a great deal"})
    with pytest.raises(Unavailable, match="invalid value for parameter"):
        cluster.start()
    assert not cluster.is_running

    mended = durable_cluster(cluster.requested)
    assert ask(mended.start(), "select 1") == 1


def test_settings_may_hold_any_character_and_change_between_starts(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster(settings={"application_name": 'it\'s "here"'})
    assert ask(cluster.start(), "select current_setting('application_name')") == 'it\'s "here"'
    cluster.stop()

    changed = durable_cluster(cluster.requested, settings={"work_mem": "7MB"})
    assert ask(changed.start(), "select current_setting('work_mem')") == "7MB"


def test_an_initialisation_that_was_cut_off_is_begun_anew(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    half = cluster.directory / "data.new"
    half.mkdir()
    (half / "PG_VERSION").write_text("15\n")

    assert ask(cluster.start(), "select 1") == 1


def test_databases_are_made_from_templates_and_dropped_under_their_users(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    ask(cluster.start(), "create table kept as select 42 as n")
    copy = cluster.create_database("a 'strange' name", template="perdure")
    assert ask(copy, "select n from kept") == 42
    with pytest.raises(Unavailable, match="already exists"):
        cluster.create_database("a 'strange' name")

    cluster.drop_database("a 'strange' name")
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        ask(copy, "select 1")


@pytest.mark.usefixtures("processes")
def test_a_directory_with_a_very_long_path_works(open_directory: MakeDirectory) -> None:
    with PrivateCluster(open_directory() / ("long" * 40), settings={"fsync": "off"}) as cluster:
        assert ask(cluster.dsn(), "select 1") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to give up its privileges")
def test_a_server_whose_users_were_killed_is_stopped(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    pid = killed(cluster.directory)
    until_sync(lambda: not postmaster.alive(pid))
    assert "database system is shut down" in cluster.log.read_text(), "stopped, not crashed"
    dsn = cluster.start()
    assert ask(dsn, "select 1") == 1


def test_a_server_that_is_joined_after_its_users_were_killed_goes_on(
    durable_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "UNUSED_S_MAX", 2.0)
    cluster = durable_cluster()
    with starter(cluster.directory) as user:
        assert user.stdout is not None
        pid = int(user.stdout.readline())
        cluster.start()
        user.kill()
    watcher = watchers(cluster.directory)
    assert len(watcher) == 1
    looks = watcher[0].num_ctx_switches().voluntary
    until_sync(lambda: watcher[0].num_ctx_switches().voluntary > looks + 2 or not postmaster.alive(pid), within_s=20)
    assert cluster.pid == pid and ask(cluster.dsn(), "select 1") == 1
    cluster.leave()
    assert not postmaster.alive(pid)
    until_sync(lambda: not watchers(cluster.directory))


def test_a_watcher_that_was_killed_is_replaced_at_the_next_start(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    cluster.start()
    until_sync(lambda: bool(watchers(cluster.directory)))
    (first,) = watchers(cluster.directory)
    cluster.start()
    assert watchers(cluster.directory) == [first], "one is enough"
    first.kill()
    until_sync(lambda: not watchers(cluster.directory))
    cluster.start()
    until_sync(lambda: len(watchers(cluster.directory)) == 1)


def test_a_server_without_users_and_without_watcher_is_a_leftover(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    with starter(cluster.directory) as user:
        assert user.stdout is not None
        pid = int(user.stdout.readline())
        until_sync(lambda: bool(watchers(cluster.directory)))
        assert str(cluster.directory) not in {one.directory for one in leftovers.find()}, "it has a user"
        for watcher in watchers(cluster.directory):
            watcher.kill()
        user.kill()
    (found,) = [one for one in leftovers.find() if one.directory == str(cluster.directory)]
    assert found.kind == "unused server" and str(pid) in found.what
    cluster.start()
    assert not leftovers.remove(found), "it is in use again"
    assert postmaster.alive(pid)
    cluster._sharing.leave()
    assert leftovers.remove(found)
    assert not postmaster.alive(pid) and cluster.data.exists()


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps data elsewhere")
def test_data_whose_project_is_gone_is_a_leftover(
    open_directory: MakeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unprivileged, "ROOT_STATE", open_directory())
    closed = open_directory()
    closed.chmod(0o700)
    with PrivateCluster(closed / "pg", settings={"fsync": "off"}) as cluster:
        kept = cluster.directory
        assert leftovers.find() == [one for one in leftovers.find() if one.directory != str(kept)]
        shutil.rmtree(closed)
        assert str(kept) not in {one.directory for one in leftovers.find()}, "never one in use"
    (found,) = [one for one in leftovers.find() if one.directory == str(kept)]
    assert found.kind == "data without project" and str(closed) in found.what
    assert leftovers.remove(found) and not kept.exists()
    assert str(kept) not in {one.directory for one in leftovers.find()}


def watchers(directory: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and line[-4:-2] == [watcher.__file__, str(directory)]:
            found.append(process)
    return found


def test_as_root_the_server_runs_as_somebody_else(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    cluster.start()

    assert psutil.Process(cluster.pid).uids().effective != 0


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory that the server's user cannot reach")
def test_as_root_a_directory_out_of_reach_is_replaced_and_remembered(
    open_directory: MakeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unprivileged, "ROOT_STATE", open_directory())
    closed = open_directory()
    closed.chmod(0o700)
    with PrivateCluster(closed / "pg", settings={"fsync": "off"}) as cluster:
        assert cluster.directory.parent == unprivileged.ROOT_STATE
        ask(cluster.dsn(), "create table kept as select 42 as n")

    closed.chmod(0o755)
    with PrivateCluster(closed / "pg") as cluster:
        assert ask(cluster.dsn(), "select n from kept") == 42


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_as_root_a_cluster_of_somebody_else_stays_theirs(open_directory: MakeDirectory) -> None:
    theirs = open_directory() / "pg"
    theirs.mkdir(mode=0o700)
    owner = pwd.getpwnam("nobody")
    os.chown(theirs, owner.pw_uid, owner.pw_gid)
    with PrivateCluster(theirs, settings={"fsync": "off"}) as cluster:
        assert psutil.Process(cluster.pid).uids().effective == owner.pw_uid
    assert {p.stat().st_uid for p in [theirs, *theirs.iterdir()]} == {owner.pw_uid}


def test_an_explicit_directory_of_programs_must_hold_them(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="initdb and postgres are not both there"):
        find_binaries(str(tmp_path))


def test_a_machine_without_postgresql_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "_candidates", lambda: iter(()))
    with pytest.raises(Unavailable) as caught:
        find_binaries()
    for advice in ("install PostgreSQL", "pip install 'perdure[postgres]'", "DSN", "PERDURE_PG_BIN"):
        assert advice in str(caught.value)


def test_data_of_another_major_version_asks_for_that_version() -> None:
    with pytest.raises(Unavailable, match="made by PostgreSQL 9"):
        find_binaries(major=9)


def test_programs_beside_the_resolved_pg_ctl_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real"
    linked = tmp_path / "linked"
    for directory in (real, linked):
        directory.mkdir()
    for name in ("pg_ctl", "initdb", "postgres"):
        (real / name).write_text("#!/bin/sh\n")
        (real / name).chmod(0o755)
    (linked / "pg_ctl").symlink_to(real / "pg_ctl")
    monkeypatch.setenv("PATH", str(linked))
    monkeypatch.delenv("PERDURE_PG_BIN", raising=False)

    assert find_binaries() == real


@pytest.mark.parametrize("number", range(2))
def test_the_programs_of_the_wheel_work_too(durable_cluster: MakeCluster, number: int) -> None:
    bundled = list(binaries.bundled_binaries())
    if number >= len(bundled):
        pytest.skip("the extra `postgres` is not installed, or holds fewer versions")
    cluster = durable_cluster(binaries=bundled[number])
    dsn = cluster.start()

    assert ask(dsn, "select current_setting('server_version_num')::int / 10000") == binaries.major_version(
        bundled[number]
    )
    cluster.kill()
    assert cluster.start() == dsn
    # Without being told, it takes the programs of the version that made the data.
    cluster.stop()
    assert ask(durable_cluster(cluster.requested).start(), "select 1") == 1


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has programs that the server's user cannot reach")
def test_as_root_programs_out_of_reach_are_copied(
    open_directory: MakeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = next(binaries.bundled_binaries(), None)
    if bundled is None:
        pytest.skip("the extra `postgres` is not installed")
    monkeypatch.setattr(unprivileged, "ROOT_STATE", open_directory())
    site = open_directory()
    package = bundled.parent.parent
    shutil.copytree(bundled.parent, site / package.name / bundled.parent.name, symlinks=True)
    shutil.copytree(package.with_name(f"{package.name}.libs"), site / f"{package.name}.libs")
    site.chmod(0o700)
    programs = site / package.name / bundled.parent.name / "bin"
    with PrivateCluster(open_directory() / "pg", binaries=programs, settings={"fsync": "off"}) as cluster:
        assert unprivileged.ROOT_STATE in cluster.binaries.parents
        assert ask(cluster.dsn(), "select 1") == 1


def test_the_default_directory_follows_perdure_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "pg"
    monkeypatch.delenv("PERDURE_HOME")
    assert default_directory() == Path.cwd() / ".perdure" / "pg"


def test_it_starts_in_a_few_seconds(durable_cluster: MakeCluster) -> None:
    cluster = durable_cluster()
    began = time.monotonic()
    cluster.start()
    assert time.monotonic() - began < 15
