"""A live server with HTTP services in processes of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.core.egress import LOOPBACK
from tests.fakes.waiting import until
from tests.server.rest_live import Live, live

FOLDER = Path(__file__).parent / "service_workers"
SEED_WORKER = FOLDER / "seed_worker.py"
EXAMPLES = Path(__file__).parents[2] / "examples" / "services"


@contextlib.asynccontextmanager
async def serving(dsn: str, monkeypatch: pytest.MonkeyPatch, **env: str) -> AsyncGenerator[Live]:
    """A server whose worker may call services on this machine."""
    for name, value in {"PERDURE_HTTP_ALLOW": ",".join(LOOPBACK), **env}.items():
        monkeypatch.setenv(name, value)
    async with live(dsn) as server:
        server.perdure.api._public_url = lambda: server.url  # what its own worker gives to services as callback
        yield server


@contextlib.contextmanager
def instance(server: Live, program: Path = SEED_WORKER, **env: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A service in a process of its own, killed in the end."""
    command = ["node", str(program)] if program.suffix == ".mjs" else [sys.executable, str(program)]
    given = {"PATH": os.environ["PATH"], "REGISTRY_URL": server.url, **{k: str(v) for k, v in env.items()}}
    process = subprocess.Popen(command, env=given, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def online(server: Live, service: str, count: int = 1) -> list[dict[str, Any]]:
    """The instances of a service, once there are so many."""

    async def found() -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = await server.get("/workers/list", service=service)
        return listed if len(listed) >= count else []

    return await until(found, f"{count} instances of {service}")


async def deployed(server: Live, document: str | dict[str, Any], name: str) -> None:
    await server.perdure.deploy(document, name=name)


async def result_of(server: Live, flow: str, input: Any = None) -> dict[str, Any]:
    """How a run of a flow ended."""
    run = await server.post(f"/workflows/{flow}/runs", {"input": input} if input is not None else {})
    return await ended(server, run["id"])


async def ended(server: Live, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def is_over() -> bool:
        await server.http.get(f"/runs/{run_id}/result", params={"wait": 30})
        found.update(await server.get(f"/runs/{run_id}"))
        return found["status"] in ("success", "failed", "cancelled")

    for _ in range(10):
        if await is_over():
            return found
    raise AssertionError(f"the run has not ended: {found}")
