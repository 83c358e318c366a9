"""Browsers sign in through an identity provider: the authorization code with PKCE, and everything that must not be accepted."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import httpx2
import pytest

from perdure.core.access import Role
from perdure.core.errors import InvalidInput, Unauthenticated
from perdure.server.auth import OidcSettings
from perdure.server.auth.sign_in import FLOW_S, Began, check_next, opened, seal
from tests.cli.processes import free_port
from tests.fakes.waiting import until
from tests.server.oidc_provider import AUDIENCE, CLIENT, OidcProvider, flat
from tests.server.signing_in import SESSION, Browser, browsing, keyed, make_key

CALLBACK = "/auth/oidc/callback"


@pytest.fixture
def provider() -> Iterator[OidcProvider]:
    with OidcProvider() as one:
        yield one


def settings(provider: OidcProvider, **more: Any) -> OidcSettings:
    given = {"issuer": provider.issuer, "audience": AUDIENCE, "client_id": CLIENT, "name": "Example ID", **more}
    return OidcSettings(**given)


@asynccontextmanager
async def visiting(dsn: str, oidc: OidcSettings, **options: Any) -> AsyncIterator[Browser]:
    async with keyed(dsn, oidc=oidc, **options) as process, browsing(process.url) as browser:
        yield browser


async def to_provider(browser: Browser, next: str = "/runs") -> str:
    """Where the server sends a browser that wants to sign in."""
    answer = await browser.http.get("/auth/oidc/start", params={"next": next})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def back_from(browser: Browser, there: str) -> str:
    """Where the provider sends it back to."""
    async with httpx2.AsyncClient(trust_env=False, timeout=120) as elsewhere:
        answer = await elsewhere.get(there)
    assert answer.status_code == 302, answer.text
    back: str = answer.headers["location"]
    assert back.startswith(str(browser.http.base_url).rstrip("/") + CALLBACK)
    return back


async def test_a_person_signs_in_and_works_with_the_role_of_the_token(dsn: str, provider: OidcProvider) -> None:
    async with visiting(dsn, settings(provider)) as browser:
        before = await browser.session()
        assert before["sign_in"] == {"api_key": True, "oidc": True, "oidc_name": "Example ID", "dev": False}
        there = await to_provider(browser, "/runs?status=failed#x")
        asked = flat(urlsplit(there).query)
        assert (asked["response_type"], asked["client_id"], asked["scope"]) == ("code", CLIENT, "openid profile email")
        assert asked["code_challenge_method"] == "S256"
        assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3
        answer = await browser.http.get(await back_from(browser, there))
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs?status=failed#x")
        line = next(c for c in answer.headers.get_list("set-cookie") if c.startswith("perdure_session="))
        assert "HttpOnly" in line
        assert "SameSite=strict" in line
        assert not browser.http.cookies.get("perdure_sign_in"), "used up"
        info = await browser.session()
        assert (info["subject"], info["name"], info["role"]) == ("user:ada", "Ada", "operator")
        assert (info["namespace"], info["namespaces"]) == ("default", ["default"])
        browser.csrf = info["csrf"]
        assert (await browser.get("/runs")).status_code == 200
        refused = await browser.post("/namespaces", {"name": "x"})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert (await browser.post("/namespaces", {"name": "x"}, csrf="wrong")).json()["code"] == "csrf_failed"
        assert (await browser.http.delete(SESSION, headers={"Perdure-Csrf": browser.csrf})).status_code == 204
        assert (await browser.get("/runs")).status_code == 401
    connection = await asyncpg.connect(dsn)
    lines = [tuple(r) for r in await connection.fetch("select actor, action, detail from perdure.audit order by id")]
    await connection.close()
    assert [(a, b) for a, b, _ in lines] == [("user:ada", "session.create"), ("user:ada", "session.delete")]
    assert json.loads(lines[0][2]) == {"with": "oidc"}


async def test_a_client_with_a_secret_proves_itself_with_it(dsn: str, provider: OidcProvider) -> None:
    provider.secret = "s3cret"
    async with visiting(dsn, settings(provider, client_secret="s3cret")) as browser:
        answer = await browser.http.get(await back_from(browser, await to_provider(browser)))
        assert answer.status_code == 303, answer.text
    async with visiting(dsn, settings(provider, client_secret="wrong")) as browser:
        answer = await browser.http.get(await back_from(browser, await to_provider(browser)))
        assert answer.status_code == 401
        assert "invalid_client" in answer.text
        assert "PERDURE_OIDC_CLIENT_ID" in answer.text, "the page says what to do"


@contextmanager
def independent_provider() -> Iterator[str]:
    """oidc-provider-mock, in a process of its own. It does not check PKCE and does not name its key in tokens."""
    port = free_port()
    user = {"sub": "grace", "name": "Grace", "perdure_role": ["viewer", "admin"], "perdure_namespace": "*"}
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port)]
    with subprocess.Popen(
        [*command, "--user-claims", json.dumps(user)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield f"http://localhost:{port}"
        finally:
            process.kill()


@pytest.mark.usefixtures("processes")
async def test_it_works_with_a_provider_that_was_not_written_for_it(dsn: str) -> None:
    with independent_provider() as issuer:
        await until(lambda: is_listening(urlsplit(issuer).port or 0))
        oidc = OidcSettings(issuer=issuer, audience=CLIENT, client_id=CLIENT, client_secret="any")
        async with visiting(dsn, oidc) as browser, httpx2.AsyncClient(trust_env=False, timeout=120) as person:
            form = await person.post(await to_provider(browser), data={"sub": "grace"})
            assert form.status_code == 302, form.text
            answer = await browser.http.get(form.headers["location"])
            assert answer.status_code == 303, answer.text
            info = await browser.session()
            assert (info["subject"], info["name"], info["role"]) == ("user:grace", "Grace", "admin")
            assert info["sign_in"]["oidc_name"] == "localhost"


def is_listening(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


async def test_a_session_outlives_the_token_but_not_itself(dsn: str, provider: OidcProvider) -> None:
    async with visiting(dsn, settings(provider), session_lifetime_s=3600.0) as browser:
        await browser.http.get(await back_from(browser, await to_provider(browser)))
        connection = await asyncpg.connect(dsn)
        await connection.execute("update perdure.web_session set created_at = now() - interval '10 minutes'")
        assert (await browser.get("/runs")).status_code == 200
        await connection.execute("update perdure.web_session set expires_at = now()")
        await connection.close()
        assert (await browser.get("/runs")).status_code == 401


# -- what is not accepted ------------------------------------------------------------------------------------------


async def assert_refused(browser: Browser, path: str, words: str, status: int = 401) -> None:
    answer = await browser.http.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert words in answer.text
    assert "try again" in answer.text.lower()
    assert not [c for c in answer.headers.get_list("set-cookie") if "perdure_session" in c]
    assert (await browser.session())["signed_in"] is False


async def test_an_answer_without_the_browser_s_own_sign_in_is_refused(dsn: str, provider: OidcProvider) -> None:
    """An attacker lets a victim's browser finish the attacker's sign-in."""
    async with visiting(dsn, settings(provider)) as attacker, browsing(str(attacker.http.base_url)) as victim:
        back = await back_from(attacker, await to_provider(attacker))
        await assert_refused(victim, back, "begun no sign-in")
        await to_provider(victim)
        await assert_refused(victim, back, "another sign-in")


async def test_state_cookie_and_code_hold_once_and_unchanged(dsn: str, provider: OidcProvider) -> None:
    async with visiting(dsn, settings(provider)) as browser:
        back = await back_from(browser, await to_provider(browser))
        await assert_refused(browser, back.replace("state=", "state=x"), "another sign-in")
        kept = browser.http.cookies.get("perdure_sign_in") or ""
        browser.http.cookies.set("perdure_sign_in", "x" + kept, domain="127.0.0.1", path="/")
        await assert_refused(browser, back, "was changed")
        browser.http.cookies.clear()
        browser.http.cookies.set("perdure_sign_in", kept, domain="127.0.0.1", path="/")
        assert (await browser.http.get(back)).status_code == 303
        browser.http.cookies.clear()
        browser.http.cookies.set("perdure_sign_in", kept, domain="127.0.0.1", path="/")
        await assert_refused(browser, back, "invalid_grant")


async def test_a_code_that_was_stolen_on_its_way_is_worth_nothing(dsn: str, provider: OidcProvider) -> None:
    """PKCE: the code of one sign-in, put into another one of the same client."""
    async with visiting(dsn, settings(provider)) as victim, browsing(str(victim.http.base_url)) as thief:
        stolen = parse_qs(urlsplit(await back_from(victim, await to_provider(victim))).query)["code"][0]
        own = await back_from(thief, await to_provider(thief))
        code = parse_qs(urlsplit(own).query)["code"][0]
        await assert_refused(thief, own.replace(code, stolen), "invalid_grant")


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"nonce": "another"}, "another sign-in"),
        ({"nonce": None}, "another sign-in"),
        ({"aud": "another-client"}, "another audience"),
        ({"aud": [CLIENT, "other"], "azp": "other"}, "another client"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"exp": 1}, "expired"),
        ({"perdure_role": "king"}, "gives no role"),
        ({"perdure_namespace": None}, "exactly one namespace"),
    ],
)
async def test_a_token_that_is_not_for_this_sign_in_is_refused(
    dsn: str, provider: OidcProvider, lie: dict[str, Any], words: str
) -> None:
    provider.lies = lie
    async with visiting(dsn, settings(provider)) as browser:
        await assert_refused(browser, await back_from(browser, await to_provider(browser)), words)


async def test_the_provider_s_refusal_is_shown_as_text(dsn: str, provider: OidcProvider) -> None:
    provider.refuses = "access_denied"
    async with visiting(dsn, settings(provider)) as browser:
        back = await back_from(browser, await to_provider(browser))
        await assert_refused(browser, back, "access_denied (&lt;b&gt;no&lt;/b&gt;)")
        await to_provider(browser)
        state = flat(urlsplit(await to_provider(browser)).query)["state"]
        await assert_refused(browser, f"{CALLBACK}?state={state}&code=x&iss=https://evil.example", "another provider")
        await assert_refused(browser, f"{CALLBACK}?state={state}", "no code")


@pytest.mark.parametrize(
    "next",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "runs",
        "/\t/evil.example",
        "javascript:x",
        "",
        "/" + "x" * 1999 + "yz",
    ],
)
async def test_no_sign_in_leads_to_another_site(dsn: str, provider: OidcProvider, next: str) -> None:
    with pytest.raises(InvalidInput):
        check_next(next)


async def test_a_foreign_next_is_refused_with_a_page(dsn: str, provider: OidcProvider) -> None:
    async with visiting(dsn, settings(provider)) as browser:
        await assert_refused(browser, "/auth/oidc/start?next=//evil.example", "path of this server", 422)
        assert provider.seen == []


async def test_a_provider_that_is_gone_is_said_so(dsn: str, provider: OidcProvider) -> None:
    async with visiting(dsn, settings(provider)) as browser:
        back = await back_from(browser, await to_provider(browser))
        provider.__exit__()
        await assert_refused(browser, back, "cannot be reached", 503)
        key = await make_key(dsn, Role.VIEWER)
        assert (await browser.sign_in(key))["role"] == "viewer", "keys are not affected"


async def test_without_a_client_there_is_no_such_sign_in(dsn: str, provider: OidcProvider) -> None:
    async with visiting(dsn, settings(provider, client_id=None)) as browser:
        assert (await browser.session())["sign_in"]["oidc"] is False
        answer = await browser.http.get("/auth/oidc/start")
        assert answer.status_code == 404
        assert "API key" in answer.text


async def test_no_token_is_logged_or_stored(dsn: str, provider: OidcProvider, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    issued: list[str] = []
    made = provider.tokens
    provider.tokens = lambda *a, **k: issued.append(json.dumps(t := made(*a, **k))) or t  # type: ignore[method-assign, func-returns-value]
    async with visiting(dsn, settings(provider, client_secret=None)) as browser:
        await browser.http.get(await back_from(browser, await to_provider(browser)))
        assert (await browser.session())["signed_in"] is True
    (tokens,) = issued
    connection = await asyncpg.connect(dsn)
    rows = str([dict(r) for r in await connection.fetch("select * from perdure.web_session")])
    await connection.close()
    ours = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("perdure"))
    for secret in json.loads(tokens).values():
        if isinstance(secret, str) and len(secret) > 10:
            assert secret not in rows + ours


def test_a_sign_in_that_took_too_long_is_refused() -> None:
    began = Began("s", "n", "v", "/", 1000.0 + FLOW_S)
    kept = seal(began, b"k" * 32)
    assert opened(kept, b"k" * 32, 1000.0) == began
    with pytest.raises(Unauthenticated, match="longer than 10 minutes"):
        opened(kept, b"k" * 32, 1000.0 + FLOW_S)
    with pytest.raises(Unauthenticated, match="changed"):
        opened(kept, b"x" * 32, 1000.0)


def test_scopes_without_openid_are_refused() -> None:
    with pytest.raises(InvalidInput, match="openid"):
        OidcSettings(issuer="https://id.example", audience="x", client_id="x", scopes="email")
