"""The one PostgreSQL that all tests of a process share: fast, not durable, started by the first test that needs it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final

import psycopg
from psycopg import sql

from perdure.localpg.cluster import FILE_COPY_SINCE, PrivateCluster, StopMode
from perdure.testing import database
from tests import starts, supervisor

# Nothing here has to survive a power cut, and without fsync a database is made in a fraction of the time.
FAST: Final = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}
MEMORY: Final = Path("/dev/shm")
MEMORY_BYTES_MIN: Final = 6 << 30
_lock = Lock()
_started: list[SharedCluster] = []


class SharedCluster(PrivateCluster):
    """Makes and drops databases over one connection: createdb and dropdb take three times as long, and thousands of tests call them."""

    _connection: psycopg.Connection | None = None

    def create_database(self, name: str, *, template: str | None = None) -> str:
        connection = self._connect()
        statement = sql.SQL("create database {}").format(sql.Identifier(name))
        if template:
            statement += sql.SQL(" template {}").format(sql.Identifier(template))
            if connection.info.server_version // 10_000 >= FILE_COPY_SINCE:
                statement += sql.SQL(" strategy file_copy")
        connection.execute(statement)
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        self._connect().execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def stop(self, mode: StopMode = "fast") -> None:
        self._disconnect()
        super().stop(mode)

    def leave(self) -> None:
        self._disconnect()
        super().leave()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(self.dsn("postgres"), autocommit=True)
        return self._connection


def start_shared() -> SharedCluster:
    with _lock:
        if not _started:
            _started.append(_start())
        return _started[0]


@contextmanager
def join_shared(directory: str) -> Iterator[SharedCluster]:
    """A server that another process has started."""
    server = SharedCluster(directory, settings=FAST)
    with starts.watch.allowed(), _outside_of_tests():
        server.start()
    try:
        yield server
    finally:
        server.leave()


def stop_shared() -> None:
    while _started:
        _started.pop().stop("immediate")


def share_with_test_env() -> None:
    """TestEnv would start a server of its own in each process of tests."""
    database._start = start_shared
    database._TEMPLATE = "perdure_env_template"


def find_memory() -> Path | None:
    """Where files are memory, if there is room for the databases of the tests: each test makes and drops one of 700 files."""
    try:
        return MEMORY if shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN else None
    except OSError:
        return None


def _start() -> SharedCluster:
    memory = find_memory()
    within = supervisor.directory_in(memory) if memory else None
    directory = Path(tempfile.mkdtemp(prefix="test-", dir=within)).resolve()
    directory.chmod(0o755)  # the server runs as another user where the tests run as root
    # Tests connect thousands of times, and a password costs both sides milliseconds of processor time each time.
    trusting = directory / "pg_hba.conf"
    trusting.write_text("host all all 127.0.0.1/32 trust\n")
    server = SharedCluster(directory / "pg", settings=FAST | {"hba_file": str(trusting)})
    with starts.watch.allowed(), _outside_of_tests():
        server.start()
    return server


@contextmanager
def _outside_of_tests() -> Iterator[None]:
    """The server outlives the test that starts it, so it must not carry that test's name."""
    test = os.environ.pop("PYTEST_CURRENT_TEST", None)
    try:
        yield
    finally:
        if test is not None:
            os.environ["PYTEST_CURRENT_TEST"] = test
