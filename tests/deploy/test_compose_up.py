"""compose.yaml, started by podman-compose on one machine: the first run in the pages, a server that is killed, rights, and what `down` leaves.

Podman here is older than 4.6, for which podman-compose ignores conditions on health, and which cannot start what depends on a container that
has ended: the services are started in two steps, `--no-deps`. Grafana is left out, because no image of it can be made here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser

from tests.cli.processes import free_port
from tests.deploy.conftest import IMAGE
from tests.deploy.images import ROOT, Podman
from tests.fakes.waiting import until_sync
from tests.ui.conftest import browser  # noqa: F401

PROJECT = "perdure-test"
FIRST = ("postgres", "prometheus", "setup")
THEN = ("server-1", "server-2", "worker-1", "worker-2", "first-run")
FIRST_RUN_S_MAX = 60.0


class Compose:
    def __init__(self, podman: Podman) -> None:
        self.podman = podman
        self.http, self.prometheus = free_port(), free_port()
        self.env = podman.env | {
            "PERDURE_IMAGE": IMAGE,
            "POSTGRES_IMAGE": "localhost/postgres",
            "PROMETHEUS_IMAGE": "localhost/prometheus",
            "PERDURE_PORT": str(self.http),
            "PERDURE_GRPC_PORT": str(free_port()),
            "PROMETHEUS_PORT": str(self.prometheus),
            "PERDURE_PUBLIC_URL": f"http://localhost:{self.http}",
        }
        self.began_at = 0.0

    def call(self, *words: str) -> str:
        program = Path(sys.executable).parent / "podman-compose"
        done = subprocess.run(
            [program, "-p", PROJECT, *words], env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def up(self) -> None:
        self.began_at = time.monotonic()
        self.call("up", "--detach", "--no-deps", *FIRST)
        self.podman.run("wait", self.name("setup"))
        self.call("up", "--detach", "--no-deps", *THEN)

    def name(self, service: str) -> str:
        return f"{PROJECT}_{service}_1"

    def inside(self, service: str, *words: str) -> str:
        return self.podman.run("exec", self.name(service), *words)

    def logs(self, service: str) -> str:
        done = subprocess.run(["podman", "logs", self.name(service)], env=self.env, capture_output=True, text=True)
        return done.stdout + done.stderr

    @property
    def key(self) -> str:
        found = re.search(r"Sign in on .* with the API key (pd_\S+)", self.logs("setup"))
        assert found is not None, self.logs("setup")
        return found[1]

    def perdure(self, server: str, *words: str) -> Any:
        """On a server that has no port outside: its own command line."""
        given = ("--env", "PERDURE_URL=http://127.0.0.1:8600", "--env", f"PERDURE_API_KEY={self.key}")
        return json.loads(self.podman.run("exec", *given, self.name(server), "perdure", *words, "--json"))


@pytest.fixture(scope="module")
def compose(podman: Podman) -> Iterator[Compose]:
    one = Compose(podman)
    try:
        one.up()
        yield one
    finally:
        one.call("down", "--volumes", "--timeout", "5")
        assert podman.run("ps", "--all", "--quiet", "--filter", f"label=io.podman.compose.project={PROJECT}") == ""
        assert [v for v in podman.run("volume", "ls", "--quiet").split() if v.startswith(PROJECT)] == []


def test_the_first_run_is_in_the_pages_within_a_minute_of_up(
    compose: Compose,
    browser: Browser,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"http://localhost:{compose.http}"
    until_sync(lambda: is_ready(url))
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    assert context.request.post(f"{url}/api/v1/session", data={"api_key": compose.key}).ok
    page = context.new_page()
    page.goto(f"{url}/runs")
    # A page that was open before the run began announces it.
    announced, run = page.get_by_text("new run"), page.get_by_text("checkout").first
    announced.or_(run).first.wait_for(timeout=FIRST_RUN_S_MAX * 1000)
    if announced.is_visible():
        announced.click()
    run.wait_for(timeout=FIRST_RUN_S_MAX * 1000)
    took_s = time.monotonic() - compose.began_at
    page.get_by_text("success").first.wait_for(timeout=FIRST_RUN_S_MAX * 1000)
    page.screenshot(path=Path(os.environ.get("PERDURE_UI_ARTIFACTS", tmp_path)) / "compose-first-run.png")
    context.close()
    with capsys.disabled():
        print(f"\nthe first run was in the pages {took_s:.1f} s after `up`")
    assert took_s < FIRST_RUN_S_MAX


def is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


def test_the_health_check_of_a_server_makes_it_healthy(compose: Compose) -> None:
    """Podman leaves the clock of health checks to systemd, which is not there: the check is run by hand."""
    for service in ("server-1", "server-2"):
        compose.podman.run("healthcheck", "run", compose.name(service))
        state = compose.podman.run("inspect", compose.name(service), "--format", "{{.State.Health.Status}}")
        assert state.strip() == "healthy"


def test_containers_have_no_rights_to_lose(compose: Compose) -> None:
    for service in ("server-1", "worker-1"):
        assert compose.inside(service, "id", "-u").strip() == "10001"
        assert "Read-only file system" in compose.podman.fails("exec", compose.name(service), "touch", "/app/new")
        status = compose.inside(service, "cat", "/proc/1/status")
        assert "CapBnd:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
    assert compose.inside("worker-1", "ls", "/keys").split() == ["worker"]


def test_servers_do_not_own_the_schema(compose: Compose) -> None:
    query = (
        "select distinct usename from pg_stat_activity where datname = 'perdure' and usename <> 'postgres';"
        "select count(*) from pg_tables where schemaname = 'perdure' and tableowner <> 'perdure_owner';"
        "select rolsuper or rolcreaterole or rolcreatedb from pg_roles where rolname in ('perdure_server', 'perdure_owner')"
    )
    found = compose.inside("postgres", "psql", "-U", "postgres", "-d", "perdure", "-At", "-c", query).split()
    assert found == ["perdure_server", "0", "f", "f"]
    assert "permission denied" not in compose.logs("postgres") + compose.logs("server-1") + compose.logs("server-2")


def test_prometheus_reads_both_servers(compose: Compose) -> None:
    def both() -> bool:
        asked = httpx2.get(
            f"http://127.0.0.1:{compose.prometheus}/api/v1/query", params={"query": "sum(perdure_session_held)"}
        )
        values = asked.json()["data"]["result"]
        return bool(values) and values[0]["value"][1] == "2"

    until_sync(both)
    rules = httpx2.get(f"http://127.0.0.1:{compose.prometheus}/api/v1/rules").json()["data"]["groups"]
    assert len(rules[0]["rules"]) > 5


def test_runs_carry_on_when_their_server_is_killed(compose: Compose) -> None:
    headers = {"Authorization": f"Bearer {compose.key}"}
    with httpx2.Client(base_url=f"http://localhost:{compose.http}/api/v1", headers=headers, timeout=60) as http:
        runs = [
            http.post("/workflows/checkout/runs", json={"input": {"order": n}}).raise_for_status().json()["id"]
            for n in range(100, 120)
        ]
    compose.podman.run("kill", compose.name("server-1"))

    def ended() -> bool:
        found = {r["id"]: r["status"] for r in compose.perdure("server-2", "list", "--limit", "100")}
        return {found[run] for run in runs} == {"success"}

    until_sync(ended)
