"""Small doors: who is believed about the client's address, how many credentials a request may have, redirects, TLS, keys in the process list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from perdure.core.errors import InvalidInput
from perdure.programs.settings import Address, ServerSettings
from perdure.programs.settings_sources import variables
from perdure.server.rest import webhooks
from tests.cli.live import perdure
from tests.server.test_connections import served


async def statuses(url: str, count: int, headers: Any) -> list[int]:
    async with httpx2.AsyncClient(trust_env=False, timeout=120) as http:
        return [(await http.post(f"{url}/hooks/default/h{n}", headers=headers(n))).status_code for n in range(count)]


def forwarded(n: int) -> dict[str, str]:
    return {"X-Forwarded-For": f"198.51.100.{n}"}


@pytest.fixture
def three_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "REFUSALS_PER_S", 0.001)
    monkeypatch.setattr(webhooks, "REFUSALS_BURST", 3.0)


@pytest.mark.usefixtures("three_refusals")
async def test_a_client_cannot_say_that_it_is_another_one(dsn: str) -> None:
    """Not even from this machine."""
    async with served(dsn) as process:
        assert await statuses(process.url, 5, forwarded) == [404] * 3 + [429] * 2


@pytest.mark.usefixtures("three_refusals")
async def test_a_trusted_proxy_says_for_whom_it_asks(dsn: str) -> None:
    async with served(dsn, trusted_proxies=("127.0.0.0/8",)) as process:
        assert await statuses(process.url, 5, forwarded) == [404] * 5
        assert await statuses(process.url, 5, lambda n: forwarded(99)) == [404] * 3 + [429] * 2


async def test_two_credentials_are_refused(dsn: str) -> None:
    async with served(dsn) as process, httpx2.AsyncClient(base_url=process.url, trust_env=False, timeout=120) as http:
        headers = [("Authorization", "Bearer a"), ("Authorization", "Bearer b")]
        answer = await http.get("/api/v1/whoami", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "several_credentials")
        async with grpc.aio.insecure_channel(str(process.grpc)) as channel:
            call = channel.unary_unary("/perdure.v1.Api/Call")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"", metadata=[("authorization", "Bearer a"), ("authorization", "Bearer b")], timeout=20)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "more than one authorization" in (refused.value.details() or "")


async def test_no_answer_repeats_the_host_in_a_location(dsn: str) -> None:
    async with served(dsn, allowed_hosts=("*",)) as process, httpx2.AsyncClient(trust_env=False, timeout=120) as http:
        for path in ("/api/v1/runs/", "/api/v1/runs//", "/errors/", "//evil.example/"):
            answer = await http.get(process.url + path, headers={"Host": "evil.example"})
            assert "evil.example" not in answer.headers.get("location", ""), path


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({}, []),
        ({"http": Address("0.0.0.0", 1)}, ["--http 0.0.0.0:1"]),
        ({"http": Address("0.0.0.0", 1), "grpc": Address("10.0.0.1", 2)}, ["--http 0.0.0.0:1", "--grpc 10.0.0.1:2"]),
        ({"http": Address("0.0.0.0", 1), "public_url": "https://flows.example"}, []),
        ({"http": Address("0.0.0.0", 1), "http_tls": False}, []),
    ],
)
def test_listening_beyond_this_machine_without_tls_is_warned_about(given: dict[str, Any], warned: list[str]) -> None:
    warnings = ServerSettings(dsn="x", **given).warnings()
    assert len(warnings) == len(warned)
    for text, begin in zip(warnings, warned, strict=True):
        assert text.startswith(begin) and "--tls-cert" in text


def test_a_server_logs_its_warnings(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    import asyncio

    async def once() -> None:
        from perdure.programs.server_process import ServerProcess

        anywhere, here = Address("0.0.0.0", 0), Address("127.0.0.1", 0)
        process = ServerProcess(ServerSettings(dsn=dsn, http=here, grpc=anywhere, not_ready_s=0, drain_s=5))
        await process.start()
        await process.stop()

    asyncio.run(once())
    assert any(
        "--grpc 0.0.0.0:0 is reachable from other machines without TLS" in r.getMessage() for r in caplog.records
    )


def settings_of(environment: dict[str, str]) -> ServerSettings:
    return ServerSettings.load([variables(environment, ServerSettings.settings())])


def test_settings_of_the_edge_come_from_the_environment() -> None:
    found = settings_of(
        {
            "PERDURE_DSN": "x",
            "PERDURE_TRUSTED_PROXIES": "10.0.0.0/8, 192.0.2.1",
            "PERDURE_ALLOWED_HOSTS": "perdure, flows.internal",
            "PERDURE_CONNECTIONS_HTTP_MAX": "50",
            "PERDURE_HTTP_TLS": "off",
        }
    )
    assert found.trusted_proxies == ("10.0.0.0/8", "192.0.2.1/32")
    assert found.allowed_hosts == ("perdure", "flows.internal")
    assert found.connections.http_max == 50 and not found.http_tls
    for name, wrong in (
        ("PERDURE_TRUSTED_PROXIES", "proxy"),
        ("PERDURE_ALLOWED_HOSTS", "http://x"),
        ("PERDURE_CONNECTIONS_HTTP_MAX", "0"),
    ):
        with pytest.raises(InvalidInput, match=name):
            settings_of({"PERDURE_DSN": "x", name: wrong})


def test_a_key_on_the_command_line_is_warned_about(tmp_path: Path) -> None:
    nowhere = {"PERDURE_URL": "http://127.0.0.1:1", "XDG_STATE_HOME": str(tmp_path)}
    file = tmp_path / "key"
    file.write_text("pd_x\n")
    for words in (("--api-key", "pd_x"), ("--api-key=pd_x",)):
        assert "process list" in perdure("list", *words, **nowhere).err
    assert "process list" not in perdure("list", "--api-key", f"@{file}", **nowhere).err
    assert "process list" not in perdure("list", PERDURE_API_KEY="pd_x", **nowhere).err
    assert "cannot read" in perdure("list", "--api-key", f"@{tmp_path}/none", **nowhere).err
