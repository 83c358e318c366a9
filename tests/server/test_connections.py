"""The connections of a server: small answers leave at once, and connections that say nothing cannot take the server away from others."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx2

from perdure import Client, NotFound
from perdure.app.server import ServerProcess
from perdure.app.settings import Address, ServerSettings

LOOPBACK = Address("127.0.0.1", 0)


@asynccontextmanager
async def served(dsn: str, **options: Any) -> AsyncIterator[ServerProcess]:
    process = ServerProcess(
        ServerSettings(dsn=dsn, http=LOOPBACK, grpc=LOOPBACK, auth="open", not_ready_s=0, drain_s=5, **options)
    )
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


def delays(port: int) -> dict[str, list[bool]]:
    """Of this process's connections with a TCP port at either end: whether the system holds small packets back (Nagle)."""
    found: dict[str, list[bool]] = {"accepted": [], "made": []}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            side = {sock.getsockname()[1]: "accepted", sock.getpeername()[1]: "made"}.get(port)
            if side:
                found[side].append(not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    return found


async def test_no_connection_holds_small_packets_back(dsn: str) -> None:
    async with (
        served(dsn) as process,
        httpx2.AsyncClient(trust_env=False) as http,
        Client(str(process.grpc)) as client,
    ):
        assert (await http.get(f"{process.url}/livez")).status_code == 200
        with suppress(NotFound):
            await client.handle("00000000-0000-7000-8000-000000000000").status()
        for port in (httpx2.URL(process.url).port or 0, process.grpc.port):
            found = delays(port)
            assert found["accepted"] and found["made"], f"no connection with port {port}"
            assert not any(found["accepted"] + found["made"]), f"port {port}: {found}"
        database = delays(urlsplit(dsn).port or 0)["made"]
        assert database and not any(database), f"PostgreSQL: {database}"
