"""A supervisor and a load balancer get true answers, soon, whatever the database does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from perdure.core.errors import Unavailable
from perdure.engine.engine import Engine, EngineSettings
from perdure.engine.notes import Notes
from perdure.server import health
from perdure.server.health import routes
from perdure.store.notes import PostgresNotes
from perdure.store.postgres import PostgresStore


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[tuple[Engine, PostgresNotes]]:
    store = PostgresStore(dsn)
    await store.open()
    notes = PostgresNotes(store.pool)
    engine = Engine(store, None, EngineSettings(), Notes(notes))
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
            await asyncio.sleep(60)
        raise Unavailable("the database is away: connection refused")

    live_sessions = namespaces = queue_depths = ping


async def test_a_server_that_can_work_is_live_and_ready(dsn: str) -> None:
    async with opened(dsn) as (engine, store), client_of(engine, store) as client:
        live, ready = await client.get("/livez"), await client.get("/readyz")
        assert (live.status_code, live.json()) == (200, {"status": "live"})
        assert (ready.status_code, ready.json()) == (200, {"status": "ready", "reasons": []})


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
            engine.claimer.may_claim = False
            assert "draining" in (await client.get("/readyz")).json()["reasons"][0]
            engine.claimer.may_claim = True
            session, engine.session = engine.session, 0
            assert "no session" in (await client.get("/readyz")).json()["reasons"][0]
            engine.session = session
            assert (await client.get("/readyz")).status_code == 200


async def test_metrics_answer_without_the_database_and_say_so(dsn: str) -> None:
    async with opened(dsn) as (engine, _), client_of(engine, Away(hang=False)) as client:
        body = (await client.get("/metrics")).text
        assert "perdure_database_up 0.0" in body
        assert "perdure_queue_depth" not in body
