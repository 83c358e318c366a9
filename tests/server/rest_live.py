"""A REST server over an embedded engine and worker, on a port of this machine, and workflows for it to run."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn

from perdure import Perdure, Promise, Retry, Signal, State, task, wf, workflow
from perdure.app.api_ports import api_ports
from perdure.app.secret_box import SecretBox
from perdure.engine.api.api import Api
from perdure.server.auth.authenticator import Authenticator, OpenAccess
from perdure.server.context import Auth, Server
from perdure.server.rest.app import create_app
from perdure.store.api_keys import Keys
from perdure.store.definitions import PostgresDefinitions
from perdure.store.reads import PostgresReads
from tests.fakes.waiting import until

word = Signal("rest_word", str)
paid = Promise("rest_paid", int)
progress = State("rest_progress", 0)


@task(name="rest_double")
async def double(x: int) -> int:
    print(f"doubling {x}")
    return 2 * x


@task(name="rest_break", retry=Retry(1))
async def break_(why: str) -> None:
    raise ValueError(why)


@workflow(name="rest_sum")
async def sum_(x: int, y: int = 0) -> int:
    return await double(x) + await double(y)


@workflow(name="rest_parent")
async def parent() -> int:
    return await sum_(20, 1)


@workflow(name="rest_fail")
async def fail(why: str) -> None:
    await break_(why)


@workflow(name="rest_listen")
async def listen(count: int = 1) -> list[str]:
    heard: list[str] = []
    for n in range(count):
        progress.set(n)
        heard.append(await word.next())
    return heard


@workflow(name="rest_pay")
async def pay() -> int:
    return await paid.wait()


@workflow(name="rest_map")
async def fan(n: int) -> int:
    return sum(await wf.map(double, list(range(n))))


WORKFLOWS = (sum_, fail, listen, pay, fan)


@dataclass
class Live:
    perdure: Perdure
    server: Server
    url: str
    http: httpx2.AsyncClient

    async def get(self, path: str, expected: int = 200, /, **params: Any) -> Any:
        return await self.ask("GET", path, expected, params=params)

    async def post(self, path: str, body: Any = None, status: int = 201, **headers: str) -> Any:
        given = {k.replace("_", "-"): v for k, v in headers.items()}
        return await self.ask("POST", path, status, json=body, headers=given)

    async def ask(self, method: str, path: str, status: int, **options: Any) -> Any:
        answer = await self.http.request(method, path, **options)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    async def start(self, name: str, status: int = 201, **body: Any) -> dict[str, Any]:
        run: dict[str, Any] = await self.post(f"/workflows/{name}/runs", body, status)
        return run

    async def ended(self, name: str, **body: Any) -> dict[str, Any]:
        run = await self.start(name, **body)
        await self.get(f"/runs/{run['id']}/result", wait=60)
        found: dict[str, Any] = await self.get(f"/runs/{run['id']}")
        return found


@contextlib.asynccontextmanager
async def live(dsn: str, *, auth: Auth | None = None, keys: bool = False) -> AsyncGenerator[Live]:
    """`keys`: a credential is asked for."""
    async with Perdure(dsn) as perdure:
        for one in WORKFLOWS:
            perdure._backend.adopt(one)
        await perdure.engine.refresh()
        reads, registry = PostgresReads(dsn), PostgresDefinitions(dsn)
        await reads.open()
        await registry.open()
        auth = auth or (Authenticator(Keys(perdure.store.pool)) if keys else OpenAccess("127.0.0.1"))
        sock = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        ports = api_ports(perdure.store, reads=reads, definitions=registry, secrets=SecretBox([bytes(32)]))
        server = Server(api=Api(perdure.engine, ports, lambda: url), auth=auth)
        app = create_app(server)
        http = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        http.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(http._serve([sock]))
        await until(lambda: http.started or serving.done())
        try:
            async with httpx2.AsyncClient(base_url=f"{url}/api/v1", timeout=120) as client:
                yield Live(perdure, server, url, client)
        finally:
            app.state.streams.close()
            http.should_exit = True
            await serving
            sock.close()
            await reads.close()
            await registry.close()
