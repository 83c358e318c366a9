"""A supervisor and a load balancer get true answers, soon, whatever the database does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
from starlette.applications import Starlette

from perdure.core.api import runs
from perdure.core.errors import Unavailable
from perdure.core.limits import PAYLOAD_INLINE_BYTES
from perdure.core.work import StartRequest
from perdure.engine.commits.store import NotCommitted
from perdure.engine.engine import Engine
from perdure.localpg.cluster import PrivateCluster
from perdure.server import health
from perdure.server.health import routes
from perdure.store.migrate import migrate
from perdure.store.postgres import PostgresStore
from perdure.store.telemetry import PostgresTelemetry
from tests.fakes.api import api_on, engine_on
from tests.fakes.waiting import forever, turns, until


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[tuple[Engine, PostgresTelemetry]]:
    store = PostgresStore(dsn)
    await store.open()
    notes = PostgresTelemetry(store.pool)
    engine = engine_on(store, telemetry=notes, task_logs=notes)
    await engine.open()
    try:
        yield engine, notes
    finally:
        await engine.close()
        await store.close()


def client_of(engine: Engine, store: Any, **options: Any) -> httpx2.AsyncClient:
    app = Starlette(routes=routes(engine, store, **options))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://server")


class Away:
    """A database that refuses, or that does not answer at all."""

    def __init__(self, hang: bool) -> None:
        self._hang = hang

    async def ping(self) -> None:
        if self._hang:
            await forever()
        raise Unavailable("the database is away: connection refused")

    live_sessions = namespaces = queue_depths = ping


async def test_a_server_that_can_work_is_live_and_ready(dsn: str) -> None:
    async with opened(dsn) as (engine, store), client_of(engine, store) as client:
        live, ready = await client.get("/livez"), await client.get("/readyz")
        assert (live.status_code, live.json()) == (200, {"status": "live"})
        assert (ready.status_code, ready.json()) == (200, {"status": "ready", "reasons": []})


class Full:
    """A store whose commits fail while `full` is set, as on a full disk; everything else works."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.full = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, session: int, number: int, batch: Any) -> Any:
        if self.full.is_set():
            await turns()
            raise NotCommitted("could not extend file: No space left on device")
        return await self._store.commit(session, number, batch)


async def test_a_server_whose_commits_fail_is_not_ready_until_one_succeeds(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "COMMIT_S_MAX", 0.2)
    store = PostgresStore(dsn)
    await store.open()
    full, notes = Full(store), PostgresTelemetry(store.pool)
    engine = engine_on(full, telemetry=notes, task_logs=notes)  # type: ignore[arg-type]
    await engine.open()
    async with client_of(engine, notes) as client:
        full.full.set()
        request = StartRequest(workflow="w", version="v", input=b"null")
        starting = asyncio.ensure_future(api_on(engine, store).call(runs.START, request))
        await until_ready(client, False)
        (reason,) = (await client.get("/readyz")).json()["reasons"]
        assert reason.startswith("commits: none has succeeded for ")
        full.full.clear()
        await starting
        await until_ready(client, True)
    await engine.close()
    await store.close()


async def until_ready(client: httpx2.AsyncClient, ready: bool) -> None:
    async def is_as_wanted() -> bool:
        return (await client.get("/readyz")).is_success is ready

    await until(is_as_wanted)


async def test_a_full_disk_is_not_ready_and_a_freed_one_is(
    small: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one: all of Perdure's tables are on a file system of 64 MiB."""
    monkeypatch.setattr(health, "COMMIT_S_MAX", 0.2)
    dsn, place = small
    await migrate(dsn)
    async with opened(dsn) as (engine, notes), client_of(engine, notes) as client:
        api = api_on(engine, engine._context.store)  # type: ignore[arg-type]
        filler = place / "filler"
        _fill(filler)
        request = StartRequest(workflow="w", version="v", input=os.urandom(PAYLOAD_INLINE_BYTES))
        starting = [asyncio.ensure_future(api.call(runs.START, request)) for _ in range(8)]
        await until_ready(client, False)
        reasons = (await client.get("/readyz")).json()["reasons"]
        assert any(r.startswith("commits: none has succeeded for ") for r in reasons)
        filler.unlink()
        await asyncio.gather(*starting, return_exceptions=True)
        await api.call(
            runs.START, request
        )  # one that was given up while the disk was full is followed by one that finds room
        await until_ready(client, True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass


@pytest.fixture
async def small(cluster: PrivateCluster) -> AsyncIterator[tuple[str, Path]]:
    """A database on a small file system that the server's user may write to. It has to be mounted, which needs root."""
    base = Path(tempfile.mkdtemp(prefix="perdure-small-"))
    base.chmod(0o755)
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", base], capture_output=True, check=False)
    if mount.returncode:
        base.rmdir()
        pytest.skip(f"cannot mount a file system here: {mount.stderr.decode().strip()}")
    place = base / "tables"
    place.mkdir()
    owner = cluster.directory.stat()
    os.chown(place, owner.st_uid, owner.st_gid)
    dsn = cluster.create_database("on_a_small_disk")
    admin = await asyncpg.connect(cluster.dsn())
    await admin.execute(f"create tablespace perdure_small location '{place}'")
    await admin.execute("alter database on_a_small_disk set default_tablespace = perdure_small")
    yield dsn, place
    cluster.drop_database("on_a_small_disk")
    await admin.execute("drop tablespace perdure_small")
    await admin.close()
    subprocess.run(["umount", base], check=False)
    base.rmdir()


async def test_a_server_without_its_database_is_live_but_not_ready(dsn: str) -> None:
    async with opened(dsn) as (engine, _), client_of(engine, Away(hang=False)) as client:
        assert (await client.get("/livez")).status_code == 200
        ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["reasons"] == ["database: the database is away: connection refused"]


async def test_a_database_that_does_not_answer_does_not_hold_up_the_probe(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "DATABASE_S_MAX", 0.1)
    async with opened(dsn) as (engine, _), client_of(engine, Away(hang=True)) as client:
        async with asyncio.timeout(2):
            ready = await client.get("/readyz")
        assert ready.json()["reasons"] == ["database: no answer within 0.1 s"]


async def test_a_draining_server_and_one_without_a_session_are_not_ready(dsn: str) -> None:
    async with opened(dsn) as (engine, store):
        async with client_of(engine, store, draining=lambda: True) as client:
            assert "draining" in (await client.get("/readyz")).json()["reasons"][0]
        async with client_of(engine, store) as client:
            engine.drain()
            assert "draining" in (await client.get("/readyz")).json()["reasons"][0]
            engine.runs.draining = False
            session, engine.session.id = engine.session.id, 0
            assert "no session" in (await client.get("/readyz")).json()["reasons"][0]
            engine.session.id = session
            assert (await client.get("/readyz")).status_code == 200


async def test_metrics_answer_without_the_database_and_say_so(dsn: str) -> None:
    async with opened(dsn) as (engine, _), client_of(engine, Away(hang=False)) as client:
        body = (await client.get("/metrics")).text
        assert "perdure_database_up 0.0" in body
        assert "perdure_queue_depth" not in body
