"""A throw-away PostgreSQL for tests: one private server per process, one database per environment."""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.engine.settings import EngineSettings
from perdure.localpg import private_cluster
from perdure.store.connections import connect
from perdure.store.migrate import migrate
from perdure.store.partitions import create_ahead

if TYPE_CHECKING:
    from perdure.localpg.cluster import PrivateCluster

_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""A test database need not survive the machine; everything else about it is real."""
_TEMPLATE = "perdure_template"
_MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 6 << 30
"""Free bytes of memory from which on databases of tests are in memory."""


class Scratch:
    """The server of this process. Started at first use, removed when the process ends."""

    def __init__(self) -> None:
        self._cluster: PrivateCluster | None = None
        self._lock = asyncio.Lock()

    async def create(self) -> tuple[str, str]:
        """A fresh, migrated database: its DSN and name."""
        async with self._lock:
            if self._cluster is None:
                self._cluster = await asyncio.to_thread(_start)
                await _prepared(self._cluster.create_database(_TEMPLATE))
        name = f"test_{secrets.token_hex(6)}"
        return await asyncio.to_thread(self._cluster.create_database, name, template=_TEMPLATE), name

    async def drop(self, name: str) -> None:
        assert self._cluster is not None
        await asyncio.to_thread(self._cluster.drop_database, name)


async def _prepared(dsn: str) -> None:
    """With the partitions that an engine makes before its first write, which takes longer than all else that it does then."""
    await migrate(dsn)
    connection = await connect(dsn)
    try:
        await create_ahead(connection, EngineSettings().partitions_ahead_days)
    finally:
        await connection.close()


def _in_memory() -> Path | None:
    """Where files are memory, if there is room: a database has hundreds of files, and each test makes and drops one."""
    try:
        return _MEMORY if shutil.disk_usage(_MEMORY).free >= MEMORY_BYTES_MIN else None
    except OSError:
        return None


def _start() -> PrivateCluster:
    directory = Path(tempfile.mkdtemp(prefix="perdure-test-", dir=_in_memory()))
    directory.chmod(0o755)  # the server may run as another user than this process
    cluster = private_cluster(directory / "pg", settings=_FAST)
    cluster.start()
    atexit.register(_remove, cluster, directory, os.getpid())
    return cluster


def _remove(cluster: PrivateCluster, directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the hook but not the server
        cluster.stop("immediate")
        shutil.rmtree(directory, ignore_errors=True)


_scratch: dict[int, Scratch] = {}


def scratch() -> Scratch:
    """Locks belong to a loop and servers to a process, so a new event loop gets a new front to the same server."""
    loop = id(asyncio.get_running_loop())
    known = _scratch.get(loop)
    if known is None:
        known = Scratch()
        known._cluster = next((s._cluster for s in _scratch.values() if s._cluster is not None), None)
        _scratch.clear()
        _scratch[loop] = known
    return known
