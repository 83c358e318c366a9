"""Browsers sign in with an API key: the cookie, its end, and what pages of other sites cannot do with it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from hashlib import sha256
from http.cookies import SimpleCookie
from typing import Any

import asyncpg
import httpx2
import pytest

from perdure import Client
from perdure.core.access import Role
from perdure.core.api.texts import check_text
from perdure.core.limits import WEB_SESSIONS_MAX
from perdure.core.web_sessions import csrf_of, hash_of, is_id
from perdure.errors import Unauthenticated
from perdure.programs.server_process import ServerProcess
from perdure.server.auth.web_sessions import FAILURES_BURST
from perdure.store import api_keys
from tests.server.signing_in import SESSION, Browser, browsing, keyed, make_key
from tests.server.test_auth_tls import Authority
from tests.server.test_connections import served


@pytest.fixture
async def process(dsn: str) -> AsyncIterator[ServerProcess]:
    async with keyed(dsn) as one:
        yield one


@pytest.fixture
async def browser(process: ServerProcess) -> AsyncIterator[Browser]:
    async with browsing(process.url) as one:
        yield one


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def cookies_set(answer: httpx2.Response) -> SimpleCookie:
    found: SimpleCookie = SimpleCookie()
    for line in answer.headers.get_list("set-cookie"):
        found.load(line)
    return found


# -- in and out ----------------------------------------------------------------------------------------------------


async def test_a_browser_signs_in_works_and_signs_out(dsn: str, browser: Browser, sql: Any) -> None:
    before = await browser.session()
    assert before["signed_in"] is False
    assert before["sign_in"] == {"api_key": True, "oidc": False, "oidc_name": None, "dev": False}
    assert (before["subject"], before["csrf"], before["permissions"]) == (None, None, [])
    key = await make_key(dsn, name="Ada's laptop")
    info = await browser.sign_in(key)
    assert (info["signed_in"], info["subject"], info["name"]) == (True, f"key:{key[3:15]}", "Ada's laptop")
    assert (info["role"], info["namespace"], info["namespaces"]) == ("admin", "default", ["default"])
    assert "admin" in info["permissions"]
    assert info["expires_at"].endswith("Z")
    assert await browser.session() == info
    assert (await browser.get("/runs")).status_code == 200
    made = await browser.post("/namespaces", {"name": "team"})
    assert made.status_code == 201, made.text
    assert (await browser.session())["namespaces"] == ["default", "team"]
    out = await browser.http.delete(SESSION, headers={"Perdure-Csrf": browser.csrf})
    assert out.status_code == 204
    assert cookies_set(out)["perdure_session"]["max-age"] == "0"
    assert browser.cookie == ""
    assert (await browser.session())["signed_in"] is False
    assert await sql.fetchval("select count(*) from perdure.web_session") == 0
    actions = [
        tuple(r)
        for r in await sql.fetch("select actor, action from perdure.audit where action like 'session.%' order by id")
    ]
    assert actions == [(f"key:{key[3:15]}", "session.create"), (f"key:{key[3:15]}", "session.delete")]


async def test_a_cookie_that_was_signed_out_opens_nothing_anywhere(dsn: str, browser: Browser) -> None:
    await browser.sign_in(await make_key(dsn))
    kept = browser.cookie
    await browser.http.delete(SESSION, headers={"Perdure-Csrf": browser.csrf})
    async with keyed(dsn) as other, browsing(other.url, cookies={"perdure_session": kept}) as thief:
        assert code(await thief.get("/runs")) == (401, "unauthenticated")
        again = await thief.http.delete(SESSION)
        assert again.status_code == 204, "signing out of what has ended is no error"


async def test_the_database_has_neither_the_id_nor_the_key(dsn: str, browser: Browser, sql: Any) -> None:
    key = await make_key(dsn)
    await browser.sign_in(key)
    assert is_id(browser.cookie)
    (row,) = [dict(r) for r in await sql.fetch("select * from perdure.web_session")]
    assert row["hash"] == hash_of(browser.cookie) == sha256(browser.cookie.encode()).digest()
    assert (row["key_id"], row["role"], row["namespace"]) == (key[3:15], None, None)
    shown = str(row) + str([dict(r) for r in await sql.fetch("select * from perdure.audit")])
    assert browser.cookie not in shown
    assert key[16:] not in shown


async def test_a_session_works_on_every_server_of_the_database(dsn: str, browser: Browser) -> None:
    await browser.sign_in(await make_key(dsn))
    async with keyed(dsn) as other, browsing(other.url, cookies={"perdure_session": browser.cookie}) as same:
        same.csrf = browser.csrf
        assert (await same.get("/whoami")).json()["role"] == "admin"
        assert (await same.post("/namespaces", {"name": "there"})).status_code == 201


async def test_wrong_keys_are_refused_and_their_number_is_limited(dsn: str, browser: Browser, sql: Any) -> None:
    key = await make_key(dsn)
    wrong = key[:16] + ("A" * 43)
    seen = [code(await browser.http.post(SESSION, json={"api_key": wrong})) for _ in range(11)]
    assert seen[:10] == [(401, "unauthenticated")] * 10
    assert seen[10] == (429, "rate_limited"), "ten wrong secrets of one key"
    for _ in range(FAILURES_BURST - 10):
        other = f"pd_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"
        assert code(await browser.http.post(SESSION, json={"api_key": other})) == (401, "unauthenticated")
    refused = await browser.http.post(SESSION, json={"api_key": "nonsense"})
    assert code(refused) == (429, "rate_limited"), "twenty of one address"
    assert int(refused.headers["retry-after"]) >= 1
    assert "set-cookie" not in refused.headers
    assert await sql.fetchval("select count(*) from perdure.web_session") == 0


async def test_a_header_comes_before_the_cookie(dsn: str, browser: Browser) -> None:
    await browser.sign_in(await make_key(dsn))
    viewer = {"Authorization": f"Bearer {await make_key(dsn, Role.VIEWER)}"}
    seen = (await browser.http.get("/api/v1/whoami", headers=viewer)).json()
    assert seen["role"] == "viewer"
    wrong = await browser.http.get("/api/v1/whoami", headers={"Authorization": "Bearer pd_wrong"})
    assert code(wrong) == (401, "unauthenticated"), "a wrong header is not made good by a cookie"
    # A program with a key and no cookie needs no CSRF token.
    admin = {"Authorization": f"Bearer {await make_key(dsn)}"}
    assert (await browser.http.post("/api/v1/namespaces", json={"name": "x"}, headers=admin)).status_code == 201


async def test_a_cookie_is_no_credential_of_grpc(dsn: str, process: ServerProcess, browser: Browser) -> None:
    await browser.sign_in(await make_key(dsn))
    with pytest.raises(Unauthenticated):
        async with Client(str(process.grpc), api_key=browser.cookie) as client:
            await client.get("00000000-0000-7000-8000-000000000000")


# -- how a session ends --------------------------------------------------------------------------------------------


async def test_the_end_of_a_key_is_the_end_of_its_sessions(dsn: str, browser: Browser) -> None:
    key = await make_key(dsn)
    await browser.sign_in(key)
    assert (await browser.get("/runs")).status_code == 200
    await api_keys.revoke_key(dsn, key[3:15], by="test")
    refused = await browser.get("/runs")
    assert code(refused) == (401, "unauthenticated")
    assert "revoked" in refused.json()["detail"]
    assert (await browser.session())["signed_in"] is False


async def test_an_expired_key_ends_its_sessions(dsn: str, browser: Browser, sql: Any) -> None:
    key = await make_key(dsn, expires_in_us=3_600_000_000)
    await browser.sign_in(key)
    await sql.execute("update perdure.api_key set expires_at = now()")
    refused = await browser.get("/runs")
    assert code(refused) == (401, "unauthenticated")
    assert "expired" in refused.json()["detail"]


async def test_a_session_of_a_deleted_namespace_ends(dsn: str, browser: Browser) -> None:
    await api_keys.create_namespace(dsn, "team", by="test")
    info = await browser.sign_in(await make_key(dsn, Role.OPERATOR, namespace="team"))
    assert (info["namespace"], info["namespaces"]) == ("team", ["team"])
    elsewhere = await browser.http.get("/api/v1/runs", headers={"Perdure-Namespace": "default"})
    assert code(elsewhere) == (404, "not_found")
    await api_keys.delete_namespace(dsn, "team", by="test")
    assert code(await browser.get("/runs")) == (401, "unauthenticated")


async def test_a_session_expires_though_it_is_used(dsn: str) -> None:
    async with keyed(dsn, session_lifetime_s=1.0) as process, browsing(process.url) as browser:
        await browser.sign_in(await make_key(dsn))
        cookie = browser.cookie
        seen: list[int] = []
        async with asyncio.timeout(20):
            while 401 not in seen:
                answer = await browser.http.get("/api/v1/whoami", headers={"Cookie": f"perdure_session={cookie}"})
                seen.append(answer.status_code)
        assert seen[0] == 200
        assert "ended" in answer.json()["detail"]


async def test_a_session_that_is_not_used_ends_and_one_that_is_goes_on(dsn: str, sql: Any) -> None:
    async with keyed(dsn, session_idle_s=120.0) as process, browsing(process.url) as browser:
        await browser.sign_in(await make_key(dsn))
        for _ in range(3):  # longer than the idle time in all, with a use in between
            await sql.execute("update perdure.web_session set used_at = used_at - interval '100 seconds'")
            assert (await browser.get("/runs")).status_code == 200
        used = await sql.fetchval("select used_at from perdure.web_session")
        assert (await browser.get("/runs")).status_code == 200
        assert await sql.fetchval("select used_at from perdure.web_session") == used, "not written at each request"
        await sql.execute("update perdure.web_session set used_at = used_at - interval '121 seconds'")
        assert code(await browser.get("/runs")) == (401, "unauthenticated")


async def test_one_subject_has_so_many_sessions_and_expired_ones_are_deleted(
    dsn: str, browser: Browser, sql: Any
) -> None:
    first_key, key = await make_key(dsn), await make_key(dsn)
    await browser.sign_in(first_key)
    await sql.execute("update perdure.web_session set expires_at = now() - interval '1 second'")
    ids: list[str] = []
    for _ in range(WEB_SESSIONS_MAX + 2):
        browser.http.cookies.clear()
        await browser.sign_in(key)
        ids.append(browser.cookie)
    assert len(set(ids)) == len(ids)
    kept = {r["hash"] for r in await sql.fetch("select hash from perdure.web_session")}
    assert kept == {hash_of(i) for i in ids[2:]}, "the newest of the subject; the expired one of the other is gone"


async def test_a_stream_ends_with_its_session(dsn: str, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.server.rest.stream.HEARTBEAT_S", 0.05)
    await browser.sign_in(await make_key(dsn))
    kept = browser.cookie
    async with asyncio.timeout(30), browser.http.stream("GET", "/api/v1/stream?runs=1") as stream:
        assert stream.status_code == 200, await stream.aread()
        async with browsing(str(browser.http.base_url), cookies={"perdure_session": kept}) as other:
            out = await other.http.delete(SESSION, headers={"Perdure-Csrf": browser.csrf})
            assert out.status_code == 204
        async for _ in stream.aiter_bytes():
            pass  # until the server ends it


# -- what other sites cannot do ------------------------------------------------------------------------------------


async def test_a_session_that_was_there_before_is_not_adopted(
    dsn: str, process: ServerProcess, browser: Browser, sql: Any
) -> None:
    """Fixation: an attacker plants a cookie, known to them, before the victim signs in."""
    planted = secrets.token_urlsafe(32)
    browser.http.cookies.set("perdure_session", planted, domain="127.0.0.1", path="/")
    answer = await browser.http.post(SESSION, json={"api_key": await make_key(dsn)})
    given = cookies_set(answer)["perdure_session"].value
    assert given != planted
    async with browsing(process.url, cookies={"perdure_session": planted}) as attacker:
        assert (await attacker.session())["signed_in"] is False
    assert await sql.fetchval("select count(*) from perdure.web_session") == 1


async def test_signing_in_again_ends_the_session_before(dsn: str, process: ServerProcess) -> None:
    """Also one of the attacker's own, under which the victim would work unawares."""
    async with browsing(process.url) as browser:
        await browser.sign_in(await make_key(dsn, Role.VIEWER))
        attackers = browser.cookie
        info = await browser.sign_in(await make_key(dsn))
        assert (info["role"], browser.cookie != attackers) == ("admin", True)
    async with browsing(process.url, cookies={"perdure_session": attackers}) as attacker:
        assert (await attacker.session())["signed_in"] is False


async def test_two_cookies_of_the_name_are_none(dsn: str, browser: Browser) -> None:
    await browser.sign_in(await make_key(dsn))
    both = f"perdure_session={browser.cookie}; perdure_session={secrets.token_urlsafe(32)}"
    browser.http.cookies.clear()
    assert (await browser.http.get("/api/v1/whoami", headers={"Cookie": both})).status_code == 401


async def test_what_changes_something_needs_the_token_of_the_session(
    dsn: str, process: ServerProcess, browser: Browser, sql: Any
) -> None:
    await browser.sign_in(await make_key(dsn))
    async with browsing(process.url) as other:
        await other.sign_in(await make_key(dsn))
        for wrong in ("", "x", other.csrf, csrf_of("x"), browser.cookie):
            assert code(await browser.post("/namespaces", {"name": "team"}, csrf=wrong)) == (403, "csrf_failed")
            out = await browser.http.delete(SESSION, headers={"Perdure-Csrf": wrong})
            assert code(out) == (403, "csrf_failed")
    assert await sql.fetchval("select count(*) from perdure.namespace") == 1
    assert (await browser.post("/namespaces", {"name": "team"})).status_code == 201
    assert (await browser.session())["signed_in"] is True


async def test_pages_of_other_sites_neither_sign_in_nor_act_nor_read(dsn: str, browser: Browser) -> None:
    key = await make_key(dsn)
    for headers in (
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        refused = await browser.http.post(SESSION, json={"api_key": key}, headers=headers)
        assert code(refused) == (403, "cross_site")
        assert "set-cookie" not in refused.headers
    await browser.sign_in(key)
    foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert code(await browser.post("/namespaces", {"name": "team"}, **foreign)) == (403, "cross_site")
    form = await browser.http.post(SESSION, content=f"api_key={key}", headers={"Content-Type": "text/plain"})
    assert code(form) == (415, "unsupported_media_type")
    asked = {**foreign, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "perdure-csrf"}
    for answer in (
        await browser.http.options("/api/v1/namespaces", headers=asked),
        await browser.http.get(SESSION, headers=foreign),
        await browser.http.get("/api/v1/runs", headers=foreign),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control-")], answer.request.url


async def test_no_page_can_be_framed_or_kept(dsn: str, browser: Browser) -> None:
    await browser.sign_in(await make_key(dsn))
    for path in (SESSION, "/", "/auth/oidc/start", "/auth/oidc/callback"):
        answer = await browser.http.get(path)
        assert answer.headers["x-frame-options"] == "DENY", path
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"], path
        if path != "/":  # the shell of the pages is the same for everyone
            assert answer.headers["cache-control"] == "no-store", path


async def test_a_viewer_reads_and_does_nothing_else(dsn: str, browser: Browser) -> None:
    info = await browser.sign_in(await make_key(dsn, Role.VIEWER))
    assert info["permissions"] == ["read"]
    assert (await browser.get("/runs")).status_code == 200
    for path, body in (
        ("/workflows/x/runs", {}),
        ("/runs/000000/cancel", {}),
        ("/namespaces", {"name": "x"}),
        ("/bulk-jobs", {}),
    ):
        assert code(await browser.post(path, body)) == (403, "forbidden"), path


# -- the cookie ----------------------------------------------------------------------------------------------------


async def test_the_cookie_over_plain_http(dsn: str, browser: Browser) -> None:
    answer = await browser.http.post(SESSION, json={"api_key": await make_key(dsn)})
    (morsel,) = cookies_set(answer).values()
    assert morsel.key == "perdure_session"
    assert (morsel["httponly"], morsel["samesite"], morsel["path"]) == (True, "strict", "/")
    assert (morsel["secure"], morsel["domain"], morsel["max-age"]) == ("", "", str(12 * 3600))


async def test_the_cookie_behind_a_proxy_that_ends_tls(dsn: str) -> None:
    async with (
        keyed(dsn, public_url="https://flows.example") as process,
        browsing(f"http://127.0.0.1:{process.http.port}") as browser,
    ):
        answer = await browser.http.post(SESSION, json={"api_key": await make_key(dsn)})
        (morsel,) = cookies_set(answer).values()
        assert morsel.key == "__Host-perdure_session"
        assert (morsel["secure"], morsel["httponly"], morsel["path"], morsel["domain"]) == (True, True, "/", "")
        good, plain = ({"Cookie": f"{name}={morsel.value}"} for name in (morsel.key, "perdure_session"))
        assert (await browser.http.get("/api/v1/whoami", headers=good)).status_code == 200
        assert (await browser.http.get("/api/v1/whoami", headers=plain)).status_code == 401, (
            "any sibling host sets that one"
        )


async def test_the_cookie_over_tls(dsn: str, tmp_path: Any) -> None:
    authority = Authority(tmp_path, "test authority")
    from ssl import create_default_context

    from perdure.programs.settings import TlsFiles

    cert, key = authority.issue("server")
    context = create_default_context(cafile=str(authority.ca))
    async with (
        keyed(dsn, tls=TlsFiles(cert=cert, key=key)) as process,
        browsing(f"https://127.0.0.1:{process.http.port}", verify=context) as browser,
    ):
        answer = await browser.http.post(SESSION, json={"api_key": await make_key(dsn)})
        (morsel,) = cookies_set(answer).values()
        assert (morsel.key, morsel["secure"]) == ("__Host-perdure_session", True)
        assert (await browser.session())["signed_in"] is True


async def test_perdure_dev_is_signed_in_by_its_link(dsn: str) -> None:
    async with served(dsn, dev_token="a-token") as process, browsing(process.url) as browser:
        before = await browser.session()
        assert (before["signed_in"], before["sign_in"]["dev"], before["sign_in"]["api_key"]) == (False, True, False)
        assert code(await browser.http.post(SESSION, json={"api_key": "x"})) == (409, "conflict")
        await browser.http.get("/?token=a-token")
        info = await browser.session()
        assert (info["signed_in"], info["subject"], info["csrf"], info["sign_in"]["dev"]) == (True, "dev", None, True)
        assert (await browser.post("/namespaces", {"name": "team"})).status_code == 201
        assert (await browser.http.delete(SESSION)).status_code == 204


def test_texts_of_sessions_fit_headers() -> None:
    for text in (csrf_of("x" * 43), secrets.token_urlsafe(32)):
        check_text(text)
        assert is_id(text)
