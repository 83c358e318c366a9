"""What a server is told, and what it refuses to be told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perdure.core.errors import InvalidInput
from perdure.programs import settings_sources
from perdure.programs.server_process import ServerProcess
from perdure.programs.settings import Address, ServerSettings
from perdure.programs.settings_sources import Layer
from perdure.programs.worker_settings import WorkerSettings
from tests.cli.live import perdure

DSN = {"PERDURE_DSN": "postgresql://db/x"}


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def layers_of(environment: dict[str, str], *sets: str, **flags: object) -> list[Layer]:
    known = ServerSettings.settings()
    given = {key: (f"--{key}", value) for key, value in flags.items()}
    return [
        settings_sources.flags(given),
        settings_sources.assignments(sets, known),
        *settings_sources.read("server", known, environment=environment),
    ]


def settings_from(environment: dict[str, str], *sets: str, **flags: object) -> ServerSettings:
    return ServerSettings.load(layers_of(environment, *sets, **flags))


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
            "PERDURE_ENGINE_LEASE_S": "30",
            "PERDURE_ENGINE_RUNS_MAX": "100",
            "PERDURE_ENGINE_NOTIFY": "off",
        }
    )
    assert s.dsn == "postgresql://db/y"
    assert (s.http, s.grpc) == (Address("0.0.0.0", 80), Address("::", 81))
    assert s.url_of(s.http) == "https://flows.example"
    assert s.oidc is not None and s.oidc.roles == {"team": "admin"}
    assert s.tls_of_http is None and s.tls is not None and s.tls.cert == cert
    assert s.metrics == Address("127.0.0.1", 9000)
    assert (s.log_format, s.drain_s) == ("json", 60.0)
    engine = s.engine_settings
    assert (engine.lease_s, engine.runs_max, engine.notify, engine.namespace) == (30.0, 100, False, "default")
    assert engine.close_grace_s <= s.drain_s


def test_flags_win() -> None:
    assert settings_from({**DSN, "PERDURE_AUTH": "keys"}, auth="open", dsn="postgresql://other").auth == "open"
    assert settings_from(DSN, dsn="postgresql://other").dsn == "postgresql://other"


async def test_a_server_needs_a_database() -> None:
    with pytest.raises(InvalidInput, match="--dsn"):
        await ServerProcess(ServerSettings()).start()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "flows.example"])
def test_a_server_that_asks_nobody_stays_on_this_machine(host: str) -> None:
    with pytest.raises(InvalidInput, match="perdure api-key create"):
        ServerSettings(dsn="x", auth="open", http=Address(host, 1))
    with pytest.raises(InvalidInput, match="refused"):
        ServerSettings(dsn="x", auth="open", grpc=Address(host, 1))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_loopback_may_be_open(host: str) -> None:
    assert ServerSettings(dsn="x", auth="open", http=Address(host, 1)).http.is_loopback


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({**DSN, "PERDURE_HTTP_BIND": "nonsense:port"}, "PERDURE_HTTP_BIND: .*host:port"),
        ({**DSN, "PERDURE_HTTP_BIND": "host:70000"}, "PERDURE_HTTP_BIND"),
        ({**DSN, "PERDURE_AUTH": "none"}, "PERDURE_AUTH: 'none' is not one of keys, open"),
        ({**DSN, "PERDURE_TLS_CERT": "/no/such"}, "PERDURE_TLS_CERT: /no/such is not a file"),
        ({**DSN, "PERDURE_TLS_CLIENT_CA": __file__}, "PERDURE_TLS_CERT is not set"),
        ({**DSN, "PERDURE_TLS_CERT": __file__}, "PERDURE_TLS_KEY is not set"),
        ({**DSN, "PERDURE_OIDC_ISSUER": "https://id"}, "PERDURE_OIDC_AUDIENCE"),
        ({**DSN, "PERDURE_OIDC_ISSUER": "id", "PERDURE_OIDC_AUDIENCE": "a"}, "https"),
        ({**DSN, "PERDURE_OIDC_ISSUER": "https://id", "PERDURE_OIDC_AUDIENCE": "a", "PERDURE_OIDC_ROLES": "x"}, "JSON"),
        ({**DSN, "PERDURE_DRAIN": "soon"}, "PERDURE_DRAIN: .*duration"),
        ({**DSN, "PERDURE_DRAIN": "0"}, "above 0"),
        ({**DSN, "PERDURE_ENGINE_NOTIFY": "maybe"}, "neither on nor off"),
        ({**DSN, "PERDURE_ENGINE_RUNS_MAX": "many"}, "PERDURE_ENGINE_RUNS_MAX: 'many' is not a whole number"),
        ({**DSN, "PERDURE_ENGINE_LEASE_S": "5", "PERDURE_ENGINE_HEARTBEAT_S": "4"}, "heartbeat_s .*half"),
    ],
)
def test_mistakes_name_their_variable(variables: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        settings_from(variables)


def test_each_source_wins_over_the_next(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (tmp_path / "perdure.toml").write_text(
        "[server]\npublic_url = 'http://file'\nengine.lease_s = 60\n[server.engine.commit]\nrows_max = 7\n"
    )
    where = {"PERDURE_SECRETS_DIR": str(secrets)}
    assert settings_from(where).public_url == "http://file"
    (secrets / "perdure_public_url").write_text("http://secrets\n")
    assert settings_from(where).public_url == "http://secrets"
    (tmp_path / ".env").write_text("PERDURE_PUBLIC_URL=http://dotenv\nOTHER=x\n")
    assert settings_from(where).public_url == "http://dotenv"
    where["PERDURE_PUBLIC_URL"] = "http://environment"
    assert settings_from(where).public_url == "http://environment"
    assert settings_from(where, "public_url=http://set").public_url == "http://set"
    found = settings_from(where, "public_url=http://set", "engine.heartbeat_s=1s", public_url="http://flag")
    assert found.public_url == "http://flag"
    assert (found.engine.lease_s, found.engine.heartbeat_s, found.engine.commit.rows_max) == (60, 1, 7), (
        "groups are merged"
    )


OTHER_VALUES = {
    "engine.notify": "off",
    "engine.retention_export": "file:///exports",
    "engine.retention_format": "parquet",
}


def test_every_setting_of_the_engine_can_be_set_from_every_source(tmp_path: Path) -> None:
    keys = [one for one in ServerSettings.settings() if one.key.startswith("engine.")]
    assert {"engine.lease_s", "engine.commit.bytes_max", "engine.placement.idle_s"} <= {one.key for one in keys}
    for one in keys:
        text = OTHER_VALUES.get(one.key, "30")
        by_variable, by_flag = settings_from({one.variable: text}, "engine.lease_s=60"), None
        if one.key != "engine.lease_s":
            by_flag = settings_from({}, "engine.lease_s=60", f"{one.key}={text}")
            assert by_variable == by_flag
        expected = {"30": 30, "off": False}.get(text, text)
        assert by_variable._value(one.key) == expected or one.key == "engine.lease_s"


def test_secrets_come_from_files(tmp_path: Path) -> None:
    file = tmp_path / "dsn"
    file.write_text("postgresql://u:p@db/z\n")
    assert settings_from({"PERDURE_DSN_FILE": str(file)}).dsn == "postgresql://u:p@db/z"
    with pytest.raises(InvalidInput, match="both set"):
        settings_from({**DSN, "PERDURE_DSN_FILE": str(file)})
    with pytest.raises(InvalidInput, match="PERDURE_DSN_FILE: .*none is not a file"):
        settings_from({"PERDURE_DSN_FILE": str(tmp_path / "none")})
    with pytest.raises(InvalidInput, match="is not a directory"):
        settings_from({"PERDURE_SECRETS_DIR": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\nengine.lease = 3\n", r"perdure.toml \[server\]: .*'engine.lease'; did you mean 'engine.lease_s'"),
        ("[server]\nrunsmax = 3\n", "did you mean 'engine.runs_max'|there is no setting 'runsmax'"),
        ("[sever]\n", r"no table 'sever'; write one of \[server\]"),
        ("[server]\nengine.lease_s = 'soon'\n", "engine.lease_s in perdure.toml: "),
        ("[server]\nhttp = 'nonsense:port'\n", "http in perdure.toml: .*host:port"),
        ("[server\n", "perdure.toml is not TOML"),
    ],
)
def test_mistakes_in_a_file_name_it(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "perdure.toml").write_text(text)
    with pytest.raises(InvalidInput, match=said):
        settings_from(DSN)


def test_a_file_may_be_named_or_be_part_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.perdure.server]\nnamespace = 'project'\n[tool.perdure.server.oidc]\nissuer='https://id'\naudience='a'\nroles={team='admin'}"
    )
    found = settings_from(DSN)
    assert found.namespace == "project" and found.oidc is not None and found.oidc.roles == {"team": "admin"}
    (tmp_path / "other.toml").write_text("[server]\nnamespace = 'other'\nallowed_hosts = ['a', 'b']\n")
    found = settings_from({**DSN, "PERDURE_CONFIG": "other.toml"})
    assert (found.namespace, found.allowed_hosts) == ("other", ("a", "b"))
    with pytest.raises(InvalidInput, match="none.toml cannot be read"):
        settings_from({"PERDURE_CONFIG": "none.toml"})


def test_an_assignment_needs_a_key_that_exists() -> None:
    with pytest.raises(InvalidInput, match="KEY=VALUE"):
        settings_from(DSN, "engine.lease_s")
    with pytest.raises(InvalidInput, match="--set: .*did you mean 'engine.lease_s'"):
        settings_from(DSN, "engine.leases=3")


def test_variables_and_keys_are_unique() -> None:
    for cls in (ServerSettings, WorkerSettings):
        found = cls.settings()
        assert len({one.key for one in found}) == len({one.variable for one in found}) == len(found)


def test_the_effective_settings_can_be_used_as_a_file(tmp_path: Path) -> None:
    key = "x" * 43 + "="
    layers = layers_of({"PERDURE_DSN": "postgresql://u:hidden@db/x", "PERDURE_SECRET_KEY": key}, "engine.lease_s=1m")
    text = "\n".join(ServerSettings.load(layers).effective(layers))
    assert "hidden" not in text and key not in text
    assert 'dsn = "postgresql://u@db/x"  # PERDURE_DSN' in text
    assert "engine.lease_s = 60  # --set engine.lease_s" in text
    assert 'http = "127.0.0.1:8600"  # default' in text
    (tmp_path / "perdure.toml").write_text("\n".join(line for line in text.splitlines() if "secret_keys" not in line))
    assert settings_from({}).engine.lease_s == 60


def test_a_worker_has_settings_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "perdure.toml").write_text("[server]\nnamespace='x'\n[worker]\nslots = 7\nqueues = ['a', 'b']\n")
    environment = {
        "PERDURE_WORKER_THREADS": "3",
        "PERDURE_SERVICES": "shop=http://shop:80",
        "PERDURE_WORKER_DRAIN": "2m",
    }
    found = WorkerSettings.load(settings_sources.read("worker", WorkerSettings.settings(), environment=environment))
    assert (found.slots, found.threads, found.queues, found.drain_s) == (7, 3, ("a", "b"), 120)
    assert found.services == {"shop": "http://shop:80"} and found.namespace is None
    with pytest.raises(InvalidInput, match="PERDURE_WORKER_SLOTS"):
        WorkerSettings.load([settings_sources.variables({"PERDURE_WORKER_SLOTS": "x"}, WorkerSettings.settings())])


def test_print_config_shows_the_sources(tmp_path: Path) -> None:
    (tmp_path / "perdure.toml").write_text("[server]\nlog_level = 'info'\n")
    done = perdure("server", "--http", "127.0.0.1:7", "--print-config", PERDURE_DSN="postgresql://u:hidden@db/x")
    assert done.code == 0, done.err
    assert (
        'http = "127.0.0.1:7"  # --http' in done.out and 'log_level = "info"  # log_level in perdure.toml' in done.out
    )
    assert "hidden" not in done.out
    done = perdure("worker", "nothing", "--slots", "3", "--print-config")
    assert done.code == 0 and "slots = 3  # --slots" in done.out


def test_commands_find_the_database_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "perdure.toml").write_text("[server]\ndsn = 'postgresql://x:y@127.0.0.1:1/z'\n")
    done = perdure("migrate")
    assert done.code == 5 and "postgresql://x@127.0.0.1" in done.err


@pytest.mark.usefixtures("interpreter")
def test_other_commands_do_not_load_the_libraries_of_settings() -> None:
    code = "import sys; from perdure.cli.commands import COMMANDS, load; [load(c.module) for c in COMMANDS.values()]; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pydantic", "pydantic_settings", "dotenv"} & set(loaded)


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
