"""`perdure login` against a real server and a real identity provider, and the credential that other commands find."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.core.access import Role
from perdure.core.errors import InvalidInput, Unauthenticated, Unavailable
from perdure.localpg.cluster import PrivateCluster
from perdure.programs import device_flow
from perdure.programs.credentials import SERVERS_MAX, Credential, Credentials, server_key
from tests.cli.live import ROOT, Cli
from tests.cli.processes import server
from tests.server.oidc_provider import AUDIENCE, CLI_CLIENT, CLIENT, OidcProvider
from tests.server.signing_in import make_key

DATABASE = "cli_login"


@pytest.fixture(scope="module")
def database(cluster: PrivateCluster, migrated_template: str) -> Iterator[str]:
    yield cluster.create_database(DATABASE, template=migrated_template)
    cluster.drop_database(DATABASE)


@pytest.fixture(scope="module")
def issuing() -> Iterator[OidcProvider]:
    with OidcProvider() as one:
        yield one


@pytest.fixture(scope="module")
def url(processes: None, database: str, issuing: OidcProvider) -> Iterator[str]:
    variables = {
        "PERDURE_OIDC_ISSUER": issuing.issuer,
        "PERDURE_OIDC_AUDIENCE": AUDIENCE,
        "PERDURE_OIDC_CLIENT_ID": CLIENT,
        "PERDURE_OIDC_CLIENT_SECRET": "s3cret",
        "PERDURE_OIDC_DEVICE_CLIENT_ID": CLI_CLIENT,
        "PERDURE_OIDC_SCOPES": "openid profile offline_access",
    }
    with server(database, ROOT, **variables) as one:
        yield one.http


@pytest.fixture
def provider(issuing: OidcProvider) -> OidcProvider:
    """As it was at first."""
    fresh = OidcProvider()
    for name in ("user", "lies", "opaque", "token_s", "approves_after", "slow_downs"):
        setattr(issuing, name, getattr(fresh, name))
    issuing.seen.clear()
    issuing.refresh_tokens.clear()
    return issuing


@pytest.fixture
def cli(url: str, tmp_path: Path) -> Cli:
    return Home(url, tmp_path)


class Home(Cli):
    """The command line with a configuration directory of its own."""

    def __call__(self, *words: str, **options: Any) -> Any:
        return super().__call__(*words, **{"XDG_CONFIG_HOME": str(self.state / "config")} | options)


def kept(cli: Cli) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cli.state / "config/perdure/credentials.json").read_text())["servers"]
    return found


def age(cli: Cli) -> None:
    """Let the stored token expire."""
    file = cli.state / "config/perdure/credentials.json"
    text = json.loads(file.read_text())
    for one in text["servers"].values():
        one["expires_s"] = time.time() - 1
    file.write_text(json.dumps(text))


# -- API keys ------------------------------------------------------------------------------------------------------


def test_a_key_from_stdin_is_kept_and_used_until_logout(cli: Cli, database: str) -> None:
    refused = cli("list")
    assert refused.code == 5
    assert "perdure login" in refused.err
    key = asyncio.run(make_key(database, Role.VIEWER))
    out = cli.ok("login", "--api-key", stdin=key + "\n")
    assert out == f"Signed in to {cli.url} as key:{key[3:15]} (viewer).\n"
    assert cli("list").code == 0
    assert cli("api-key", "list").code == 5, "as a viewer"
    file = cli.state / "config/perdure/credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    other = asyncio.run(make_key(database, Role.ADMIN))
    assert cli("api-key", "list", PERDURE_API_KEY=other).code == 0, "the environment comes first"
    assert cli.ok("logout") == f"Signed out of {cli.url}.\n"
    assert key not in file.read_text()
    assert cli("list").code == 5
    assert cli.ok("logout") == f"There is no sign-in to {cli.url}.\n"


def test_a_wrong_key_is_not_kept(cli: Cli) -> None:
    for text, code in (("pd_wrong", 5), ("", 2)):
        done = cli("login", "--api-key", stdin=text)
        assert (done.code, done.out) == (code, "")
    assert not (cli.state / "config/perdure/credentials.json").exists()


def test_a_credential_is_for_its_server_alone(cli: Cli, database: str) -> None:
    cli.ok("login", "--api-key", stdin=asyncio.run(make_key(database)))
    other = Cli("http://127.0.0.1:1", cli.state)
    assert set(kept(cli)) == {cli.url}
    assert Credentials(cli.state / "config/perdure").get(other.url) is None
    assert cli("list", PERDURE_URL=cli.url.upper() + "/").code == 0, "however its address is written"


# -- the device flow -----------------------------------------------------------------------------------------------


def test_a_person_signs_in_with_a_browser_elsewhere(cli: Cli, provider: OidcProvider) -> None:
    done = cli("login")
    assert done.code == 0, done.err
    assert done.out == f"Signed in to {cli.url} as user:ada (operator).\n"
    assert f"{provider.issuer}/activate?user_code=WDJB-MJHT" in done.err
    assert "WDJB-MJHT" in done.err
    asked = next(given for path, given in provider.seen if path == "/device")
    assert (asked["client_id"], asked["scope"]) == (CLI_CLIENT, "openid profile offline_access")
    assert len([1 for path, _ in provider.seen if path == "/token"]) == 3, "it waited"
    (found,) = kept(cli).values()
    assert found["uses"] == "access_token"
    assert "s3cret" not in json.dumps(found), "the server's secret stays with the server"
    assert cli("list").code == 0


def test_an_expired_token_is_renewed_once_also_by_several_commands(cli: Cli, provider: OidcProvider) -> None:
    cli.ok("login")
    before = next(iter(kept(cli).values()))
    age(cli)
    store = Credentials(cli.state / "config/perdure")
    found: list[str | None] = []
    threads = [
        threading.Thread(target=lambda: found.append(store.secret(cli.url, device_flow.renew))) for _ in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert len(found) == 4
    assert len(set(found)) == 1
    after = next(iter(kept(cli).values()))
    assert after["refresh_token"] != before["refresh_token"], "a refresh token works once"
    assert cli("list").code == 0


def test_a_sign_in_that_the_provider_ended_asks_for_a_new_one(cli: Cli, provider: OidcProvider) -> None:
    cli.ok("login")
    age(cli)
    provider.refresh_tokens.clear()
    done = cli("list")
    assert done.code == 5
    assert f"perdure login --url {cli.url}" in done.err
    assert "invalid_grant" in done.err


@pytest.mark.usefixtures("processes")
def test_an_id_token_serves_where_the_access_token_is_none_of_ours(
    database: str, issuing: OidcProvider, provider: OidcProvider, tmp_path: Path
) -> None:
    provider.opaque = True
    variables = {"AUDIENCE": CLI_CLIENT, "CLIENT_ID": CLI_CLIENT, "ISSUER": issuing.issuer}
    with server(database, ROOT, **{f"PERDURE_OIDC_{k}": v for k, v in variables.items()}) as one:
        cli = Home(one.http, tmp_path)
        assert cli.ok("login") == f"Signed in to {one.http} as user:ada (operator).\n"
        assert next(iter(kept(cli).values()))["uses"] == "id_token"
        age(cli)
        assert cli("list").code == 0, "renewed"


def test_a_token_that_the_server_refuses_is_not_kept(cli: Cli, provider: OidcProvider) -> None:
    provider.user = {"sub": "eve", "perdure_namespace": "default"}
    done = cli("login")
    assert done.code == 5
    assert "gives no role" in done.err
    assert not (cli.state / "config/perdure/credentials.json").exists()


@pytest.mark.usefixtures("processes")
def test_a_server_without_a_provider_says_what_to_do(database: str, tmp_path: Path) -> None:
    with server(database, ROOT) as one:
        done = Home(one.http, tmp_path)("login")
        assert done.code == 4
        assert "API key" in done.err


# -- waiting -------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def pause(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def wait(provider: OidcProvider, clock: Clock, state: str = "pending") -> dict[str, Any]:
    client = {
        "client_id": CLI_CLIENT,
        "scope": "openid",
        "audience": AUDIENCE,
        "device_authorization_endpoint": f"{provider.issuer}/device",
        "token_endpoint": f"{provider.issuer}/token",
    }
    code = device_flow.begin(client)._replace(interval=5.0)
    provider.devices[code.device_code].state = state
    return device_flow.wait(client, code, sleep=clock.pause, clock=lambda: clock.now)


def test_a_provider_that_is_asked_too_often_is_asked_less(provider: OidcProvider) -> None:
    provider.slow_downs, provider.approves_after = 2, 3
    clock = Clock()
    assert wait(provider, clock)["access_token"]
    assert clock.slept == [5.0, 10.0, 15.0, 15.0]


def test_waiting_ends(provider: OidcProvider) -> None:
    provider.approves_after = -1
    clock = Clock()
    with pytest.raises(Unauthenticated, match="expired"):
        wait(provider, clock)
    assert clock.now <= 300
    for state, words in (("denied", "denied in the browser"), ("expired", "expired")):
        with pytest.raises(Unauthenticated, match=words):
            wait(provider, Clock(), state)


def test_nothing_is_sent_to_a_provider_without_tls() -> None:
    names = ("device_authorization_endpoint", "token_endpoint")
    for bad in names:
        client = dict.fromkeys(names, "https://127.0.0.1:1/x") | {bad: "http://idp.example/x"}
        with pytest.raises(Unavailable, match="not https"):
            device_flow.begin(client | {"client_id": "x", "scope": "openid", "audience": "x"})
    with pytest.raises(Unavailable, match="not https"):
        device_flow.renew("https://x", Credential("t", 1.0, "r", "http://idp.example/token", "x"))


# -- the file ------------------------------------------------------------------------------------------------------


def test_a_file_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    store = Credentials(tmp_path)
    store.put("http://a", Credential("one"))
    store.file.chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        store.get("http://a")
    store.file.chmod(0o600)
    store.file.write_text("{")
    with pytest.raises(InvalidInput, match="damaged"):
        store.get("http://a")


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    store = Credentials(tmp_path)
    for n in range(SERVERS_MAX + 2):
        store.put(f"http://server-{n}", Credential(f"key-{n}"))
    assert store.get("http://server-1") is None
    assert store.get("http://server-2") == Credential("key-2")
    assert len(json.loads(store.file.read_text())["servers"]) == SERVERS_MAX


@pytest.mark.parametrize("text", ["http://Host:8600", "host:8600", "HTTP://host:8600/", "http://host:8600"])
def test_one_server_has_one_name(text: str) -> None:
    assert server_key(text) == "http://host:8600"
