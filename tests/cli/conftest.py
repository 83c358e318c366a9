"""One server with one worker for all tests of the command line, as processes: tests fork, and gRPC does not survive that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.localpg.cluster import PrivateCluster
from tests.cli.live import ROOT, Cli
from tests.cli.processes import server, started

DATABASE = "cli_live"
SECRET_KEY = "A" * 43 + "="
MODULES = ("tests.cli.flows", "perdure.programs.starter.hello")


@pytest.fixture(scope="package")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Touch it, and the task that fails succeeds."""
    return tmp_path_factory.mktemp("cli") / "repaired"


@pytest.fixture(scope="package")
def live(processes: None, cluster: PrivateCluster, migrated_template: str, repaired: Path) -> Iterator[str]:
    """The address of a server with a worker."""
    dsn = cluster.create_database(DATABASE, template=migrated_template)
    with (
        server(
            dsn,
            ROOT,
            "--auth",
            "open",
            PERDURE_ENGINE_LEASE_S="5s",
            PERDURE_ENGINE_HEARTBEAT_S="1s",
            PERDURE_SECRET_KEY=SECRET_KEY,
            PERDURE_NOTIFY_ALLOW="127.0.0.1",
        ) as one,
        started("worker", *MODULES, "--server", one.grpc, cwd=ROOT, CLI_TESTS_REPAIRED=str(repaired)) as worker,
    ):
        worker.until("connected")
        yield one.http
    cluster.drop_database(DATABASE)


@pytest.fixture
def cli(live: str, tmp_path: Path) -> Cli:
    return Cli(live, tmp_path)
