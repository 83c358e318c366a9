"""What a server is told, and what it refuses to be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.app.settings import VARIABLES, Address, ServerSettings, settings_from
from perdure.core.errors import InvalidInput

DSN = {"DATABASE_URL": "postgresql://db/x"}


def test_nothing_but_a_database_is_needed() -> None:
    s = settings_from(DSN)
    assert (s.dsn, str(s.http), str(s.grpc), s.auth) == (
        "postgresql://db/x",
        "127.0.0.1:8600",
        "127.0.0.1:8601",
        "keys",
    )
    assert s.url_of(s.http) == "http://127.0.0.1:8600"


def test_the_environment_sets_everything(tmp_path: Path) -> None:
    cert = tmp_path / "cert.pem"
    cert.write_text("x")
    s = settings_from(
        {
            "PERDURE_DSN": "postgresql://db/y",
            **DSN,
            "PERDURE_HTTP_BIND": "0.0.0.0:80",
            "PERDURE_GRPC_BIND": "[::]:81",
            "PERDURE_PUBLIC_URL": "https://flows.example/",
            "PERDURE_OIDC_ISSUER": "https://id.example",
            "PERDURE_OIDC_AUDIENCE": "perdure",
            "PERDURE_OIDC_ROLES": '{"team": "admin"}',
            "PERDURE_TLS_CERT": str(cert),
            "PERDURE_TLS_KEY": str(cert),
            "PERDURE_HTTP_TLS": "off",
            "PERDURE_METRICS_BIND": "127.0.0.1:9000",
            "PERDURE_LOG_FORMAT": "json",
            "PERDURE_DRAIN": "1m",
            "PERDURE_LEASE": "30",
            "PERDURE_RUNS_MAX": "100",
            "PERDURE_NOTIFY": "off",
        }
    )
    assert s.dsn == "postgresql://db/y"
    assert (s.http, s.grpc) == (Address("0.0.0.0", 80), Address("::", 81))
    assert s.url_of(s.http) == "https://flows.example"
    assert s.oidc is not None and s.oidc.roles == {"team": "admin"}
    assert s.http_tls is None and s.grpc_tls is not None and s.grpc_tls.cert == cert
    assert s.metrics == Address("127.0.0.1", 9000)
    assert (s.log_format, s.drain_s) == ("json", 60.0)
    engine = s.engine_settings
    assert (engine.lease_s, engine.runs_max, engine.notify, engine.namespace) == (30.0, 100, False, "default")
    assert engine.close_grace_s <= s.drain_s


def test_flags_win() -> None:
    assert settings_from({**DSN, "PERDURE_AUTH": "keys"}, auth="open", dsn="postgresql://other").auth == "open"
    assert settings_from(DSN, dsn="postgresql://other").dsn == "postgresql://other"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "flows.example"])
def test_a_server_that_asks_nobody_stays_on_this_machine(host: str) -> None:
    with pytest.raises(InvalidInput, match="perdure key create"):
        ServerSettings(dsn="x", auth="open", http=Address(host, 1))
    with pytest.raises(InvalidInput, match="refused"):
        ServerSettings(dsn="x", auth="open", grpc=Address(host, 1))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_loopback_may_be_open(host: str) -> None:
    assert ServerSettings(dsn="x", auth="open", http=Address(host, 1)).http.is_loopback


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "--db"),
        ({**DSN, "PERDURE_HTTP_BIND": "nonsense:port"}, "PERDURE_HTTP_BIND: .*host:port"),
        ({**DSN, "PERDURE_HTTP_BIND": "host:70000"}, "PERDURE_HTTP_BIND"),
        ({**DSN, "PERDURE_AUTH": "none"}, "PERDURE_AUTH: 'none' is not one of keys, open"),
        ({**DSN, "PERDURE_TLS_CERT": "/no/such"}, "PERDURE_TLS_CERT: /no/such is not a file"),
        ({**DSN, "PERDURE_TLS_CLIENT_CA": __file__}, "PERDURE_TLS_CERT is not set"),
        ({**DSN, "PERDURE_TLS_CERT": __file__}, "PERDURE_TLS_KEY is not set"),
        ({**DSN, "PERDURE_OIDC_ISSUER": "https://id"}, "PERDURE_OIDC_AUDIENCE"),
        ({**DSN, "PERDURE_OIDC_ISSUER": "id"}, "http://"),
        ({**DSN, "PERDURE_OIDC_ISSUER": "https://id", "PERDURE_OIDC_AUDIENCE": "a", "PERDURE_OIDC_ROLES": "x"}, "JSON"),
        ({**DSN, "PERDURE_DRAIN": "soon"}, "PERDURE_DRAIN: .*duration"),
        ({**DSN, "PERDURE_DRAIN": "0"}, "above 0"),
        ({**DSN, "PERDURE_NOTIFY": "maybe"}, "neither on nor off"),
        ({**DSN, "PERDURE_RUNS_MAX": "many"}, "PERDURE_RUNS_MAX"),
        ({**DSN, "PERDURE_LEASE": "5", "PERDURE_HEARTBEAT": "4"}, "PERDURE_HEARTBEAT .*half"),
    ],
)
def test_mistakes_name_their_variable(variables: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        settings_from(variables)


def test_every_variable_that_is_read_is_documented() -> None:
    class Recorder(dict[str, str]):
        asked: set[str] = set()

        def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
            self.asked.add(key)
            return {"PERDURE_OIDC_ISSUER": "https://id", "PERDURE_OIDC_AUDIENCE": "a"}.get(key, default)

    settings_from(Recorder(), dsn="x")
    assert Recorder.asked - {"DATABASE_URL"} == set(VARIABLES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.2.3.4:5", "1.2.3.4:5"),
        ("host", "host:7"),
        ("[::1]:5", "[::1]:5"),
        ("[::1]", "[::1]:7"),
        ("localhost:0", "localhost:0"),
    ],
)
def test_addresses(text: str, expected: str) -> None:
    assert str(Address.parse(text, default_port=7)) == expected
