"""A server with keys, a browser's HTTP client, and the keys to sign in with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from perdure.core.access import NewKey, Role
from perdure.programs.server_process import ServerProcess
from perdure.programs.settings import Address, ServerSettings
from perdure.store import api_keys

LOOPBACK = Address("127.0.0.1", 0)
SESSION = "/api/v1/session"


@asynccontextmanager
async def keyed(dsn: str, **options: Any) -> AsyncIterator[ServerProcess]:
    """A server that asks for credentials."""
    given = {"http": LOOPBACK, "grpc": LOOPBACK, "not_ready_s": 0, "drain_s": 5, **options}
    process = ServerProcess(ServerSettings(dsn=dsn, **given))
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


async def make_key(dsn: str, role: Role = Role.ADMIN, **more: Any) -> str:
    new = NewKey(**{"name": "browser", "role": role, "created_by": "test", **more})
    return (await api_keys.create_key(dsn, new))[1]


@dataclass
class Browser:
    """Keeps cookies, as a browser does, and says where its pages are from."""

    http: httpx2.AsyncClient
    csrf: str = ""

    async def sign_in(self, key: str) -> dict[str, Any]:
        answer = await self.http.post(SESSION, json={"api_key": key})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        self.csrf = body["csrf"]
        return body

    async def session(self) -> dict[str, Any]:
        answer = await self.http.get(SESSION)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def get(self, path: str) -> httpx2.Response:
        return await self.http.get(f"/api/v1{path}")

    async def post(self, path: str, body: Any, csrf: str | None = None, **headers: str) -> httpx2.Response:
        given = {"Perdure-Csrf": self.csrf if csrf is None else csrf, **headers}
        return await self.http.post(f"/api/v1{path}", json=body, headers={k: v for k, v in given.items() if v})

    @property
    def cookie(self) -> str:
        return self.http.cookies.get("perdure_session") or ""


@asynccontextmanager
async def browsing(url: str, **options: Any) -> AsyncIterator[Browser]:
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=120, **options) as http:
        yield Browser(http)


def run(awaited: Any) -> Any:
    return asyncio.run(awaited)
