"""A web page cannot use a server through the browser that shows it: foreign hosts, foreign origins, and requests without the token of `perdure dev`."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from perdure.app.discovery import announced, dev_token, server_token
from perdure.server.rest.browsers import BrowserGuard, UnknownHost, host_of
from tests.server.rest_live import live
from tests.server.test_connections import served

TOKEN = "a-token-of-perdure-dev"


@pytest.fixture
async def http(dsn: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with served(dsn) as process, httpx2.AsyncClient(base_url=process.url, trust_env=False, timeout=120) as client:
        yield client


@pytest.fixture
async def dev(dsn: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        served(dsn, dev_token=TOKEN) as process,
        httpx2.AsyncClient(base_url=process.url, trust_env=False, timeout=120) as one,
    ):
        yield one


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


# -- hosts ---------------------------------------------------------------------------------------------------------


async def test_a_page_that_rebinds_its_name_is_not_answered(http: httpx2.AsyncClient) -> None:
    for host in (
        "evil.example",
        "evil.example:8600",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "x@localhost",
        "",
    ):
        for path in ("/api/v1/whoami", "/", "/metrics", "/errors", "/api/v1/openapi.json"):
            answer = await http.get(path, headers={"Host": host})
            assert code(answer) == (421, "unknown_host"), (host, path, answer.text)
    post = await http.post("/api/v1/workflows", json={}, headers={"Host": "evil.example"})
    assert code(post) == (421, "unknown_host")


async def test_the_server_s_own_names_are_answered(dsn: str) -> None:
    settings = {"public_url": "https://flows.example", "allowed_hosts": ("flows.internal",)}
    async with served(dsn, **settings) as process:
        url = f"http://127.0.0.1:{process.http.port}"
        async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=120) as http:
            for host in (
                "127.0.0.1",
                "127.0.0.1:8600",
                "localhost:1",
                "LOCALHOST",
                "[::1]:8600",
                "10.0.0.7",
                "flows.example",
                "flows.internal:8600",
            ):
                assert (await http.get("/api/v1/whoami", headers={"Host": host})).status_code == 200, host
            assert (await http.get("/api/v1/whoami", headers={"Host": "other.internal"})).status_code == 421


async def test_probes_are_answered_under_any_name(http: httpx2.AsyncClient) -> None:
    for path in ("/livez", "/readyz"):
        assert (await http.get(path, headers={"Host": "pod.cluster.local"})).status_code == 200


def test_hosts_are_read_strictly() -> None:
    assert [host_of(h) for h in ("A.example:80", "[::1]:8600", "a.example.")] == ["a.example", "::1", "a.example"]
    assert [host_of(h) for h in ("", "a/b", "a?b", "u@a", "a:x", "[::1")] == [""] * 6


# -- origins -------------------------------------------------------------------------------------------------------

FOREIGN: list[dict[str, str]] = [
    {"Origin": "https://evil.example"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.example"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=lambda h: " ".join(h.values()))
async def test_a_page_of_another_site_changes_nothing(dsn: str, headers: dict[str, str]) -> None:
    async with live(dsn) as world:
        for body in ({}, {"json": {"input": {"x": 1}}}, {"content": b"{}", "headers": {"Content-Type": "text/plain"}}):
            given: dict[str, Any] = {**body, "headers": {**body.get("headers", {}), **headers}}  # type: ignore[dict-item]
            answer = await world.http.post("/workflows/rest_sum/runs", **given)
            assert code(answer) == (403, "cross_site")
        assert (await world.http.delete("/workflows/rest_sum", headers=headers)).status_code == 403
        assert (await world.get("/runs"))["items"] == []


async def test_own_pages_and_programs_may(dsn: str) -> None:
    async with live(dsn) as world:
        own: list[dict[str, str]] = [
            {},
            {"Origin": world.url},
            {"Origin": world.url, "Sec-Fetch-Site": "same-origin"},
            {"Origin": "null", "Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "none"},
        ]
        for headers in own:
            answer = await world.http.post("/workflows/rest_sum/runs", json={"input": {"x": 1}}, headers=headers)
            assert answer.status_code == 201, (headers, answer.text)
        assert (await world.http.get("/runs", headers={"Sec-Fetch-Site": "cross-site"})).status_code == 200


async def test_a_body_says_what_it_is(dsn: str) -> None:
    async with live(dsn) as world:
        for kind in (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            headers = {"Content-Type": kind} if kind else {}
            answer = await world.http.post("/workflows/rest_sum/runs", content=b'{"input": {"x": 1}}', headers=headers)
            assert code(answer) == (415, "unsupported_media_type"), kind
        for kind in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"):
            answer = await world.http.post(
                "/workflows/rest_sum/runs", content=b'{"input": {"x": 1}}', headers={"Content-Type": kind}
            )
            assert answer.status_code == 201, kind


# -- the token of `perdure dev` ------------------------------------------------------------------------------------


async def test_without_the_token_nothing_of_a_dev_server_is_reached(dev: httpx2.AsyncClient) -> None:
    port = dev.base_url.port
    wrong: list[dict[str, str]] = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Cookie": f"perdure_dev_{port}=wrong"},
        {"Cookie": f"other={TOKEN}"},
    ]
    for headers in wrong:
        assert code(await dev.get("/api/v1/whoami", headers=headers)) == (401, "unauthenticated")
        session = (await dev.get("/api/v1/session", headers=headers)).json()
        assert not session["signed_in"] and session["sign_in"]["dev"], "the page says that the printed link signs in"
        post = await dev.post("/api/v1/workflows", json={}, headers=headers)
        assert post.status_code == 401
    assert (await dev.get("/livez")).status_code == 200


async def test_a_program_sends_the_token_as_its_key(dev: httpx2.AsyncClient) -> None:
    answer = await dev.get("/api/v1/whoami", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200 and answer.json()["subject"] == "dev"


async def test_the_link_signs_a_browser_in(dev: httpx2.AsyncClient) -> None:
    first = await dev.get("/runs/01?token=" + TOKEN + "&q=x")
    assert (first.status_code, first.headers["location"]) == (303, "/runs/01?q=x")
    cookie = first.headers["set-cookie"]
    assert cookie.startswith(f"perdure_dev_{dev.base_url.port}={TOKEN}")
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert (await dev.get("/")).status_code == 200, "the client keeps the cookie"
    assert (await dev.post("/api/v1/events", headers={"Sec-Fetch-Site": "cross-site"})).status_code == 403


async def test_a_wrong_link_gives_no_cookie_and_leads_nowhere_else(dev: httpx2.AsyncClient) -> None:
    for path in ("/?token=wrong", f"/?token={TOKEN}&token=x", "//evil.example/?token=wrong"):
        answer = await dev.get(str(dev.base_url).rstrip("/") + path)
        assert answer.status_code == 303 and "set-cookie" not in answer.headers
        assert answer.headers["location"].startswith("/") and not answer.headers["location"].startswith("//")


def test_the_token_is_the_owner_s_alone_and_found_by_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    token = dev_token(project)
    assert len(token) >= 32 and dev_token(project) == token
    with announced(project, "http://127.0.0.1:9123", "127.0.0.1:9124", token):
        for place in (project, elsewhere):
            for url in ("http://127.0.0.1:9123", "http://localhost:9123/", "127.0.0.1:9123"):
                assert server_token(url, place) == token
            for url in ("http://127.0.0.1:9124", "https://127.0.0.1:9123", "http://flows.example:9123"):
                assert server_token(url, place) is None
        for file in tmp_path.rglob("*"):
            if file.is_file():
                assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert server_token("http://127.0.0.1:9123", project) is None
    (project / ".perdure" / "dev-token").chmod(0o644)
    assert dev_token(project) != token, "others may have read it"


@pytest.mark.parametrize(
    ("hosts", "taken"), [(["localhost"], True), (["localhost", "evil.example"], False), ([], False)]
)
def test_a_request_names_one_host(hosts: list[str], taken: bool) -> None:
    guard = BrowserGuard(None)  # type: ignore[arg-type]
    request = Request({"type": "http", "method": "GET", "headers": [(b"host", h.encode()) for h in hosts]})
    if taken:
        guard._check_host(request)
    else:
        with pytest.raises(UnknownHost):
            guard._check_host(request)
