"""Dockerfile, compose.yaml and the health check of the image, by what needs no container: linters, schemas, and the check against a real port."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.programs import probe

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent
OURS = ("setup", "server-1", "server-2", "worker-1", "worker-2", "first-run", "cli")


def run(program: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAMS / program, *map(str, words)], capture_output=True, text=True, timeout=60, cwd=ROOT)


@pytest.mark.usefixtures("interpreter")
def test_hadolint_finds_nothing_in_the_dockerfile(tmp_path: Path) -> None:
    done = run("hadolint", "Dockerfile")
    assert done.returncode == 0, done.stdout
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN cd /tmp\n")
    assert run("hadolint", bad).returncode != 0


@pytest.mark.usefixtures("interpreter")
def test_the_compose_file_fits_the_schema_of_the_compose_specification(tmp_path: Path) -> None:
    done = run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml")
    assert done.returncode == 0, done.stdout
    bad = tmp_path / "compose.yaml"
    bad.write_text((ROOT / "compose.yaml").read_text().replace("stop_grace_period:", "stop_grace:"))
    assert run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", bad).returncode != 0


@pytest.fixture(scope="module")
def services(interpreter: None) -> dict[str, Any]:
    shown = run("podman-compose", "--profile", "tools", "config")
    assert shown.returncode == 0, shown.stderr
    found = yaml.safe_load(shown.stdout)["services"]
    assert found.keys() == {*OURS, "postgres", "prometheus", "grafana"}
    return dict(found)


def test_containers_of_the_image_have_no_rights_to_lose(services: dict[str, Any]) -> None:
    for name in OURS:
        one = services[name]
        assert one["read_only"] is True and one["cap_drop"] == ["ALL"], name
        assert one["security_opt"] == ["no-new-privileges:true"], name


def test_only_setup_has_the_owners_login_and_every_port_is_on_loopback(services: dict[str, Any]) -> None:
    for name, one in services.items():
        text = yaml.safe_dump(one.get("environment") or {})
        assert ("perdure_owner" in text) == (name == "setup"), name
        assert all(str(port).startswith("127.0.0.1:") for port in one.get("ports", [])), name
        mounted = yaml.safe_dump(one.get("volumes") or [])
        assert ("admin-key" in mounted) == (name in ("setup", "first-run", "cli")), name


def test_files_that_containers_mount_are_there(services: dict[str, Any]) -> None:
    sources = [
        str(v["source"] if isinstance(v, dict) else v.partition(":")[0])
        for one in services.values()
        for v in one.get("volumes", [])
    ]
    files = [Path(s) for s in sources if s.startswith((".", "/"))]
    assert len(files) >= 7
    assert [f for f in files if not (ROOT / f).exists()] == []


class Answers(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/readyz" else 404)
        self.end_headers()
        self.wfile.write(b"database: no answer within 1 s")

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def probed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str) -> int:
    (tmp_path / "cmdline").write_bytes(b"\0".join(w.encode() for w in words) + b"\0")
    monkeypatch.setattr(probe, "COMMAND", tmp_path / "cmdline")
    return probe.main()


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_says_what_readyz_says(
    status: int,
    code: int,
    port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Answers, "status", status)
    for words in (("--http", f"0.0.0.0:{port}"), (f"--http=0.0.0.0:{port}",)):
        assert probed(monkeypatch, tmp_path, "python", "/opt/perdure/bin/perdure", "server", *words) == code
    monkeypatch.setenv("PERDURE_HTTP_BIND", f"[::]:{port}")
    assert probed(monkeypatch, tmp_path, "perdure", "server", "--no-migrate") == code
    assert ("no answer within 1 s" in capsys.readouterr().err) == bool(code)


def test_the_health_check_of_a_worker_asks_no_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert probed(monkeypatch, tmp_path, "perdure", "worker", "shop.py", "--server", "server:8601") == 0


def test_the_health_check_fails_where_nothing_listens(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "HTTP_DEFAULT", "127.0.0.1:1")
    assert probed(monkeypatch, tmp_path, "perdure", "server") == 1
    assert "does not answer on port 1" in capsys.readouterr().err
