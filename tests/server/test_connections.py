"""The connections of a server: small answers leave at once, and connections that say nothing cannot take the server away from others."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from perdure import Client
from perdure.core.limits import DESCRIPTORS_RESERVED
from perdure.errors import NotFound
from perdure.programs.connections import ConnectionBounds, Seats
from perdure.programs.server_process import ServerProcess
from perdure.programs.settings import Address, ServerSettings, TlsFiles
from perdure.server.auth.addresses import client_of
from perdure.server.grpc import server as grpc_server
from tests.cli.live import PROGRAM
from tests.cli.processes import Running, free_port, started
from tests.fakes.waiting import turns
from tests.server.test_auth_tls import Authority

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
        # Only of a socket: a copy of another descriptor would stay open, since socket() refuses to take it over.
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
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
        httpx2.AsyncClient(trust_env=False, timeout=120) as http,
        Client(str(process.grpc)) as client,
    ):
        assert (await http.get(f"{process.url}/livez")).status_code == 200
        with suppress(NotFound):
            await client.get("00000000-0000-7000-8000-000000000000")
        for port in (httpx2.URL(process.url).port or 0, process.grpc.port):
            found = delays(port)
            assert found["accepted"] and found["made"], f"no connection with port {port}"
            assert not any(found["accepted"] + found["made"]), f"port {port}: {found}"
        database = delays(urlsplit(dsn).port or 0)["made"]
        assert database and not any(database), f"PostgreSQL: {database}"


# -- connections that say nothing ----------------------------------------------------------------------------------

HALF = b"GET /api/v1/whoami HTTP/1.1\r\nHost: 127.0.0.1\r\n"
"""Half of a request: its headers have no end."""


@contextmanager
def limited_server(dsn: str, cwd: Path, files_max: int) -> Iterator[Running]:
    http, grpc = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    program = ["prlimit", f"--nofile={files_max}:{files_max}", sys.executable, "-c", PROGRAM]
    words = ("server", "--dsn", dsn, "--http", http, "--grpc", grpc, "--auth", "open")
    with started(*words, cwd=cwd, program=program) as one:
        one.until("Perdure is ready")
        yield Running(one, f"http://{http}", grpc)


def half_open(address: str, count: int, sent: bytes) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    made: list[socket.socket] = []
    for _ in range(count):
        sock = socket.create_connection((host, int(port)), timeout=10)
        with suppress(OSError):  # closed already
            sock.sendall(sent)
        made.append(sock)
    return made


def answers(url: str, own_address: str) -> None:
    transport = httpx2.HTTPTransport(local_address=own_address)
    with httpx2.Client(transport=transport, base_url=url, timeout=20) as http:
        assert http.get("/livez").status_code == 200
        assert http.get("/api/v1/whoami").status_code == 200
        assert http.get("/readyz").json() == {"status": "ready", "reasons": []}


@pytest.mark.usefixtures("processes")
def test_half_open_connections_cannot_take_a_server_away(dsn: str, tmp_path: Path) -> None:
    """With 300 descriptors, 400 half requests and 400 silent gRPC connections: others are answered, and so is the address they come from."""
    with limited_server(dsn, tmp_path, 300) as running:
        made = half_open(running.http.removeprefix("http://"), 400, HALF)
        made += half_open(running.grpc, 400, b"")
        try:
            answers(running.http, "127.0.0.2")
            answers(running.http, "127.0.0.1")
        finally:
            for sock in made:
                sock.close()
        assert running.program.stop() == 0
        said = running.program.rest().splitlines()
        assert len(said) < 60, f"{len(said)} lines: {said[:5]}"


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What arrives until the server closes."""
    with suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), 20)
    return b""


WHOAMI = HALF + b"\r\n"


@pytest.mark.parametrize(
    ("bound", "sent"),
    [
        ("header_s", b""),
        ("header_s", HALF),
        ("body_s", b"POST /hooks/default/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n1234"),
        ("idle_s", WHOAMI),
        ("header_s", WHOAMI + HALF),
    ],
    ids=["nothing", "half of the headers", "half of the body", "idle after an answer", "half of a second request"],
)
async def test_a_connection_has_a_deadline_in_each_state(
    dsn: str, bound: str, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the bound in question is short. A client that goes slowly is no error of the server."""
    bounds = ConnectionBounds(**{bound: 0.2})  # type: ignore[arg-type]
    async with served(dsn, connections=bounds) as process:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx2.URL(process.url).port)
        writer.write(sent)
        got = await closed(reader)
        assert (b"200 OK" in got) == (WHOAMI in sent)
        writer.close()
    # A machine that is itself halted for a moment stalls the event loop; that is logged too, and not in question here.
    assert not [r for r in caplog.records if r.levelname in ("WARNING", "ERROR") and r.module != "stalls"]


async def test_bytes_that_trickle_in_do_not_move_the_deadline(dsn: str) -> None:
    async with served(dsn, connections=ConnectionBounds(header_s=0.5)) as process:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx2.URL(process.url).port)
        end = asyncio.create_task(closed(reader))
        with suppress(ConnectionError):
            for _ in range(100):
                writer.write(b"x")
                await asyncio.wait({end}, timeout=0.1)
                if end.done():
                    break
        assert end.done() and await end == b""
        writer.close()


async def test_a_client_that_does_not_read_is_closed(dsn: str) -> None:
    """It asks again and again over one connection and takes no answer; the system's buffers fill up, then the server's."""
    async with served(dsn, connections=ConnectionBounds(write_s=0.2)) as process:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx2.URL(process.url).port, limit=1)
        ask = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        async with asyncio.timeout(30):
            with pytest.raises(ConnectionError):
                while True:
                    writer.write(ask)
                    await turns()
                    await writer.drain()
        writer.close()


async def test_a_tls_handshake_has_a_deadline(dsn: str, tmp_path: Path) -> None:
    cert, key = Authority(tmp_path, "servers").issue("server")
    tls = TlsFiles(cert=cert, key=key)
    async with served(dsn, tls=tls, connections=ConnectionBounds(header_s=0.2)) as process:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx2.URL(process.url).port)
        assert await closed(reader) == b""
        writer.close()


async def test_a_silent_grpc_connection_is_closed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "GRPC_HANDSHAKE_S", 1)
    async with served(dsn) as process:
        reader, writer = await asyncio.open_connection("127.0.0.1", process.grpc.port)
        await closed(reader)
        assert reader.at_eof() or writer.is_closing()
        writer.close()


async def test_a_server_takes_no_more_streams_than_it_may(dsn: str) -> None:
    bounds = ConnectionBounds(streams_max=2)
    async with served(dsn, connections=bounds) as process, httpx2.AsyncClient(trust_env=False, timeout=120) as http:
        url = f"{process.url}/api/v1/stream?runs=1"
        async with http.stream("GET", url) as first, http.stream("GET", url) as second:
            assert (first.status_code, second.status_code) == (200, 200)
            third = await http.get(url)
            assert (third.status_code, third.json()["code"]) == (429, "too_many_streams")


# -- seats ---------------------------------------------------------------------------------------------------------


def stay() -> None: ...


def test_the_connection_that_waited_longest_makes_room() -> None:
    seats, closed = Seats(3, 3), list[str]()
    first, second, third = (
        seats.take("10.0.0.1", lambda name=name: closed.append(name)) for name in ("first", "second", "third")
    )
    assert first and second and third
    seats.works(first)
    assert seats.take("10.0.0.2", stay) is not None and closed == ["second"]
    seats.works(third)
    fourth = seats.take("10.0.0.3", stay)
    assert fourth is not None and len(seats) == 3


def test_with_every_seat_at_work_a_new_connection_is_refused() -> None:
    seats = Seats(2, 2)
    taken = [seats.take(f"10.0.0.{n}", stay) for n in range(2)]
    for seat in taken:
        assert seat is not None
        seats.works(seat)
    assert seats.take("10.0.0.9", stay) is None
    assert taken[0] is not None
    seats.leave(taken[0])
    seats.leave(taken[0])
    assert len(seats) == 1 and seats.take("10.0.0.9", stay) is not None


def test_one_address_gets_its_share_and_closes_its_own() -> None:
    seats, closed = Seats(10, 2), list[str]()
    for n in range(5):
        seat = seats.take("10.0.0.1", stay)
        assert seat is not None
        seat.close = lambda n=n: closed.append(f"10.0.0.1 #{n}")  # type: ignore[misc]
    other = seats.take("10.0.0.2", stay)
    assert other is not None and len(seats) == 3
    assert closed == ["10.0.0.1 #0", "10.0.0.1 #1", "10.0.0.1 #2"]


def test_a_network_of_ipv6_is_one_client() -> None:
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff:1") != client_of("2001:db8:0:1::1")
    assert client_of("::ffff:10.0.0.1") == client_of("10.0.0.1") != client_of("10.0.0.2")


def test_few_descriptors_make_few_connections() -> None:
    bounds = ConnectionBounds().within(300)
    assert bounds.http_max + bounds.grpc_max + DESCRIPTORS_RESERVED <= 300
    assert bounds.per_address_max < bounds.http_max and bounds.streams_max < bounds.http_max
    assert ConnectionBounds().within(65_536) == ConnectionBounds()
