"""A server with data, workers and a month of history, on a private PostgreSQL.

    python -m tests.ui.seed [--port 8700] [--open]

Prints its address and the API keys of an administrator and a viewer, and serves until it is interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from perdure.localpg.cluster import PrivateCluster
from perdure.store.migrate import migrate
from tests.shared_server import FAST
from tests.ui.seed import history, present

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
WORKERS = (("io", 24), ("io", 16), ("default,payments,mail", 40), ("media", 2))
"""Queues and slots of each worker."""


def command(*parts: str) -> list[str]:
    return [str(Path(sys.executable).with_name("perdure")), *parts]


async def serve(arguments: argparse.Namespace) -> None:
    directory = Path(arguments.directory or tempfile.mkdtemp(prefix="perdure-seed-"))
    cluster = PrivateCluster(directory / "pg", settings=FAST)
    cluster.start()
    started: list[subprocess.Popen[bytes]] = []
    try:
        if not (directory / "made").exists():
            past = cluster.create_database("past")
            await migrate(past)
            await history.make(past, days=arguments.days, per_hour=arguments.per_hour)
            (directory / "made").touch()
        if (directory / "used").exists():
            cluster.drop_database("seed")
        dsn = cluster.create_database("seed", template="past")
        (directory / "used").touch()
        url, grpc = f"http://127.0.0.1:{arguments.port}", f"127.0.0.1:{arguments.port + 1}"
        secret = directory / "secret-key"
        secret.write_bytes(base64.b64encode(os.urandom(32)))
        secret.chmod(0o600)
        environment = {
            **os.environ,
            "PERDURE_DSN": dsn,
            "PERDURE_SECRET_KEY_FILE": str(secret),
            "PYTHONPATH": str(ROOT),
        }
        admin = key(environment, "Lena Koch", "admin")
        viewer = key(environment, "viewer", "viewer")
        started.append(
            subprocess.Popen(
                command("server", "--http", url.removeprefix("http://"), "--grpc", grpc, "--log-level", "warning"),
                env=environment,
            )
        )
        await ready(url)
        for queues, slots in WORKERS:
            arguments_ = (
                "worker",
                "tests.ui.seed.workflows",
                "--server",
                grpc,
                "--queue",
                queues,
                "--slots",
                str(slots),
            )
            started.append(
                subprocess.Popen(command(*arguments_), env={**environment, "PERDURE_API_KEY": admin}, cwd=ROOT)
            )
        rest = present.Rest(url, admin)
        runs = await present.make(rest, parts=arguments.parts)
        await rest.close()
        print(
            json.dumps({"url": url, "admin": admin, "viewer": viewer, "runs": runs, "dsn": dsn}, indent=2), flush=True
        )
        stop = asyncio.Event()
        for kind in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(kind, stop.set)
        await stop.wait()
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:  # its tasks take longer than that
                process.kill()
        cluster.stop("immediate")


def key(environment: dict[str, str], name: str, role: str) -> str:
    made = subprocess.run(
        command("api-key", "create", "--name", name, "--role", role, "--json"),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return str(json.loads(made.stdout)["secret"])


async def ready(url: str) -> None:
    import httpx2

    async with httpx2.AsyncClient(timeout=120) as http:
        for _ in range(300):
            try:
                if (await http.get(f"{url}/readyz")).status_code == 200:
                    return
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(0.1)
    raise RuntimeError(f"{url} is not ready after 30 s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument("--directory", help="Keep the database here; the past is made once.")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--per-hour", type=int, default=40)
    parser.add_argument("--parts", type=int, default=1272)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
