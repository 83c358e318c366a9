"""A server and a worker with the base, as processes, and a run at every wait of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.localpg.cluster import PrivateCluster
from perdure.sdk import registry
from perdure.sdk.registry import Registry
from tests.cli.live import Cli
from tests.cli.processes import Running, server, started
from tests.fakes.waiting import until_sync

BASE = Path(__file__).parent / "base"
DATABASE = "check_live"


class Runs:
    """Runs of the base, each at a wait."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli

    def start(self, workflow: str, *words: str) -> str:
        return str(json.loads(self.cli.ok("run", workflow, *words, "--json"))["id"])

    def child_of(self, run: str) -> str:
        return next(e["data"]["run_id"] for e in self.history(run) if e["type"] == "ChildStarted")

    def history(self, run: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.cli.ok("history", run, "--json"))
        return found

    def waits(self, run: str, on: str) -> None:
        """Until the run waits for this."""

        def reached() -> bool:
            shown = json.loads(self.cli.ok("list", "--waiting-on", on, "--json"))
            return any(item["id"] == run for item in shown)

        until_sync(reached)

    def ends(self, run: str) -> None:
        until_sync(lambda: json.loads(self.cli.ok("show", run, "--json"))["status"] == "cancelled")

    def order(self, name: str, amount: int, on: str) -> str:
        run = self.start("order", f"order={name}", f"amount={amount}")
        self.waits(run, on)
        return run


def _all(runs: Runs) -> None:
    cli = runs.cli
    runs.order("small", 50, "signal")
    runs.order("declined", 0, "timer")
    runs.order("large", 200, "promise")
    agreed = runs.order("agreed", 500, "promise")
    cli.ok("resolve", agreed, "approved", "true")
    runs.waits(agreed, "signal")
    for arrives in (False, True):
        run = runs.order("delivered" if arrives else "sent", 70, "signal")
        cli.ok("signal", run, "paid", "true")
        runs.waits(run, "child")
        child = runs.child_of(run)
        runs.waits(child, "signal")
        if arrives:
            cli.ok("signal", child, "arrived", '"home"')
            runs.waits(child, "timer")
    for site in ("slow", "fast"):
        runs.waits(runs.start("monitor", f"site={site}"), "signal")
    asked = runs.start("monitor", "site=asked")
    runs.waits(asked, "signal")
    cli.ok("update", asked, "set_limit", "7")
    stopped = runs.start("monitor", "site=stopped")
    runs.waits(stopped, "signal")
    cli.ok("signal", stopped, "stop", "true")
    runs.waits(stopped, "timer")
    for answered in (False, True):
        run = runs.start("nightly", "day=monday", "amount=3")
        runs.waits(run, "approval")
        if answered:
            cli.ok("resolve", run, "review", "true")
            runs.waits(run, "signal")
    for stop in (False, True):
        run = runs.start("haggle", "site=x")
        runs.waits(run, "signal")
        if stop:
            cli.ok("signal", run, "stop", "true")
            runs.waits(run, "timer")


@pytest.fixture(scope="package")
def place(processes: None, cluster: PrivateCluster, migrated_template: str) -> Iterator[Running]:
    dsn = cluster.create_database(DATABASE, template=migrated_template)
    with server(dsn, BASE, "--auth", "open") as one:
        yield one
    cluster.drop_database(DATABASE)


@pytest.fixture(scope="package")
def runs(processes: None, place: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with started("worker", "orders.py", "--server", place.grpc, cwd=BASE) as worker:
        worker.until("connected")
        cli = Cli(place.http, tmp_path_factory.mktemp("check"))
        cli.ok("deploy", str(BASE / "nightly.yaml"), str(BASE / "haggle.yaml"))
        made = Runs(cli)
        _all(made)
        yield made


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: nothing is defined yet."""
    monkeypatch.setattr(registry, "tasks", Registry("task"))
    monkeypatch.setattr(registry, "workflows", Registry("workflow"))
    monkeypatch.setattr(sys, "path", list(sys.path))
