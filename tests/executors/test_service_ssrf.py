"""Which addresses a call of a service reaches: none but the public internet, in whatever way it is named, unless a list allows it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from perdure.core.retry import End
from tests.core.test_egress import CLOSED, Listener, resolver
from tests.executors.service_agent import ServiceAgent, service_agent

__all__ = ["resolver"]

DONE = b'{"result": 7, "error": ""}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (
    len(DONE),
    DONE,
)
SPELLINGS = (
    "127.0.0.1",
    "127.1",
    "2130706433",
    "017700000001",
    "0x7f.1",
    "0x7f000001",
    "0177.0.0.1",
    "0",
    "localhost",
    "LOCALHOST",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
)
"""Of this machine: decimal, octal, hexadecimal, short, mapped."""


class PostListener(Listener):
    """Reads the body as well: a connection that is closed with something unread is reset, and the answer may be lost."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head)
            length = next(x for x in head.decode().lower().split("\r\n") if x.startswith("content-length:"))
            await reader.readexactly(int(length.partition(":")[2]))
            writer.write(self.answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(host: str = "127.0.0.1", port: int = 0, answer: bytes = ANSWER) -> AsyncIterator[PostListener]:
    made = PostListener(answer)
    server = await asyncio.start_server(made.serve, host, port)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


async def _refused(agent: ServiceAgent, name: str, url: str, **spec: object) -> None:
    await agent.register(url, name)
    report = await agent.call(service=name, max_attempts=3, attempt_delay_ms=0, **spec)
    assert report.end is End.FINAL_ERROR and report.failure is not None, (url, report)
    if report.failure.type != "InvalidInput":  # a spelling that is no address of a URL
        assert report.failure.type == "AddressRefused", (url, report.failure)
        assert "--http-allow" in report.failure.message


async def test_no_spelling_of_this_machine_is_called(dsn: str) -> None:
    async with listening() as there, service_agent(dsn) as agent:
        for n, host in enumerate(SPELLINGS):
            await _refused(agent, f"s{n}", f"http://{host}:{there.port}")
            report = await agent.call(url=f"http://{host}:{there.port}/exec/x?token=hush-hush")
            assert report.end is End.FINAL_ERROR and report.failure is not None, host
            assert report.failure.type in ("AddressRefused", "InvalidInput")
            assert "hush-hush" not in report.failure.message
        assert there.requests == []


async def test_no_special_address_is_called(dsn: str) -> None:
    """Private, link-local, metadata, shared, mapped and translated addresses."""
    async with service_agent(dsn) as agent:
        for n, (address, _) in enumerate(CLOSED):
            host = f"[{address}]" if ":" in address else address
            if "%" not in host:
                await _refused(agent, f"s{n}", f"http://{host}:81")


async def test_a_name_that_resolves_to_a_closed_address_is_not_called(dsn: str, resolver: dict[str, list[str]]) -> None:
    async with listening() as there, service_agent(dsn) as agent:
        resolver["metadata.example"] = ["169.254.169.254"]
        resolver["inner.example"] = ["127.0.0.1"]
        await _refused(agent, "meta", "http://metadata.example")
        await _refused(agent, "inner", f"http://inner.example:{there.port}")
        assert there.requests == []


async def test_a_name_that_resolves_differently_the_second_time_gets_nowhere(
    dsn: str, resolver: dict[str, list[str]]
) -> None:
    """DNS rebinding: the address that is connected to is the one that was checked."""
    async with (
        listening() as secret,
        listening("127.0.0.2", secret.port) as public,
        service_agent(dsn, allow="127.0.0.2") as agent,
    ):
        resolver["rebind.example"] = ["127.0.0.2", "127.0.0.1"]
        await agent.register(f"http://rebind.example:{secret.port}", "s")
        assert json.loads((await agent.call(service="s")).value) == 7
        await _refused(agent, "s", f"http://rebind.example:{secret.port}")
        assert secret.requests == [] and len(public.requests) == 1


async def test_a_redirect_leads_nowhere_else(dsn: str, resolver: dict[str, list[str]]) -> None:
    async with listening() as secret:
        away = f"HTTP/1.1 307 Found\r\nlocation: http://127.0.0.1:{secret.port}/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        near = b"HTTP/1.1 307 Found\r\nlocation: /next\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        async with (
            listening("127.0.0.2", answer=away.encode()) as public,
            listening("127.0.0.2", secret.port, answer=near) as hop,
            service_agent(dsn, allow="127.0.0.2") as agent,
        ):
            await agent.register(f"http://127.0.0.2:{public.port}", "away")
            report = await agent.call(service="away")
            assert report.end is End.ERROR and report.failure is not None
            assert report.failure.type == "ServiceFailed"
            resolver["hop.example"] = ["127.0.0.2", "127.0.0.1"]
            await _refused(agent, "hop", f"http://hop.example:{secret.port}")
            assert secret.requests == [] and len(public.requests) == len(hop.requests) == 1


async def test_only_an_explicit_list_opens_an_address(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as open_, listening() as closed:
        async with service_agent(dsn, allow=f"127.0.0.1:{open_.port}") as agent:
            await agent.register(f"http://127.0.0.1:{open_.port}", "open")
            assert json.loads((await agent.call(service="open")).value) == 7
            await _refused(agent, "closed", f"http://127.0.0.1:{closed.port}")
        monkeypatch.setenv("PERDURE_HTTP_ALLOW", f"127.0.0.1:{closed.port}")
        async with service_agent(dsn, allow=None) as agent:
            assert json.loads((await agent.call(service="closed")).value) == 7
            await _refused(agent, "open", f"http://127.0.0.1:{open_.port}")


async def test_a_configured_service_opens_its_address_for_itself_alone(dsn: str) -> None:
    async with listening() as there:
        base = f"http://127.0.0.1:{there.port}"
        async with service_agent(dsn, services=f"own={base}") as agent:
            assert json.loads((await agent.call(service="own")).value) == 7
            await _refused(agent, "other", base)
            assert (await agent.call(url=f"{base}/exec/own")).failure.type == "AddressRefused"
            assert len(there.requests) == 1


async def test_an_instance_that_may_not_be_called_does_not_hide_another(dsn: str) -> None:
    async with listening() as there:
        async with service_agent(dsn, allow=f"127.0.0.1:{there.port}") as agent:
            await agent.register("http://169.254.169.254", "s")
            await agent.register(f"http://127.0.0.1:{there.port}", "s")
            for n in range(4):
                report = await agent.call(n, service="s", attempt_delay_ms=0)
                assert report.end is End.SUCCESS and json.loads(report.value) == 7, (report.failure, agent.lines("log"))
