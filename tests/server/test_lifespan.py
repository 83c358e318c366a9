"""A client that a web application opens in its lifespan is found by its handlers, which run in other tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI

from perdure import Client, Perdure, State, Update, workflow
from perdure.errors import PerdureError
from perdure.localpg.postmaster import free_port
from perdure.sdk.client.backend import backend
from tests.fakes.waiting import until
from tests.server.remote import server, worker

step = State("lifespan_step", "")
advance = Update("lifespan_advance", str, str)


@workflow(name="lifespan_walk")
async def walk() -> str:
    seen = await advance.next()
    step.set(seen.value)
    seen.reply(f"at {seen.value}")
    return seen.value


def application(open_client: Callable[[], Any]) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_client():
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/walks")
    async def begin() -> str:
        return (await walk.start()).id

    @app.post("/walks/{run_id}")
    async def go(run_id: str, to: str) -> str:
        return await advance.ask(run_id, to)

    @app.get("/walks/{run_id}")
    async def where(run_id: str) -> str:
        return await step.read(run_id)

    return app


async def _walk_through(open_client: Callable[[], Any]) -> None:
    port = free_port()
    web = uvicorn.Server(uvicorn.Config(application(open_client), port=port, log_level="warning"))
    web.install_signal_handlers = lambda: None  # type: ignore[method-assign,attr-defined]
    serving = asyncio.create_task(web.serve())
    try:
        await until(lambda: web.started or serving.done())
        assert not serving.done(), serving.result()
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120) as browser:
            run_id = (await browser.post("/walks")).raise_for_status().json()
            assert (await browser.post(f"/walks/{run_id}?to=bakery")).raise_for_status().json() == "at bakery"
            assert (await browser.get(f"/walks/{run_id}")).raise_for_status().json() == "bakery"
    finally:
        web.should_exit = True
        await serving


async def test_handlers_find_a_client_of_the_lifespan(dsn: str) -> None:
    async with server(dsn) as s, worker(s.address):
        await _walk_through(lambda: Client(s.address))


async def test_handlers_find_an_embedded_perdure_of_the_lifespan(dsn: str) -> None:
    await _walk_through(lambda: Perdure(dsn, tune_gc=False))


async def _elsewhere(work: Callable[[], Awaitable[Any]]) -> Any:
    """In a task whose context saw no client open."""
    return await asyncio.create_task(work(), context=Context())  # type: ignore[arg-type]


async def _found() -> Any:
    return backend()


async def test_the_only_open_client_is_found_and_two_are_refused() -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(Client("127.0.0.1:1"))
        assert await _elsewhere(_found) is first._backend
        async with Client("127.0.0.1:1") as second:
            assert backend() is second._backend  # the context wins
            with pytest.raises(PerdureError, match="2 Perdure clients are open"):
                await _elsewhere(_found)
        assert await _elsewhere(_found) is first._backend
    with pytest.raises(PerdureError, match="no Perdure client here"):
        await _elsewhere(_found)


async def test_the_only_open_client_is_found_on_another_loop() -> None:
    async with Client("127.0.0.1:1") as client:
        found = await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(_found()))
        assert found is client._backend
