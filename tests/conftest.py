"""Databases for tests: one server for the whole session, a fresh database for every test. And Hypothesis: other examples each time.

The examples follow from PERDURE_HYPOTHESIS_SEED, which is drawn when it is not given, and printed in either case.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# Tests hold live gRPC servers while the fixtures here start PostgreSQL's programs; see perdure/sdk/client/channel.py.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import core as hypothesis_core

from perdure.engine.settings import EngineSettings
from perdure.localpg.cluster import PrivateCluster
from perdure.sdk import registry
from perdure.sdk.definitions import Task, Workflow
from perdure.store import partitions
from perdure.store.connections import connect
from perdure.store.migrate import migrate
from tests import shared_server, shared_work, starts, supervisor, tiers

TEMPLATE = "perdure_template"
SHARED_CLUSTER = os.environ.get("PERDURE_TEST_CLUSTER")
_numbers = itertools.count(1)

# In the environment, so that pytest-xdist's workers and the second run of a failed test try the same examples.
HYPOTHESIS_SEED = os.environ.setdefault("PERDURE_HYPOTHESIS_SEED", str(random.SystemRandom().getrandbits(32)))
# Nothing here may depend on the machine's speed: no deadline per example, and slow generation is no failure. No database of failures,
# which would depend on what ran before. Never derandomized, as Hypothesis does by itself where the environment says CI.
settings.register_profile(
    "perdure",
    derandomize=False,
    deadline=None,
    max_examples=60,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# `just coverage` needs each line once, not many examples.
settings.register_profile("coverage", settings.get_profile("perdure"), max_examples=5)
settings.load_profile("perdure")


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers.add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and test items live until the session ends: the garbage collector would walk over them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.select_and_order(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return tiers.scope_of(nodeid)

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    starts.install(config)
    shared_work.install()
    if not SHARED_CLUSTER:
        shared_server.share_with_test_env()
    # Jobs of one process of tests are not found by another.
    os.environ["PERDURE_EXECUTOR_PROCESS_STATE_DIR"] = tempfile.mkdtemp(prefix="perdure-jobs-")
    if hypothesis_core.global_force_seed is None:  # else pytest was given --hypothesis-seed
        hypothesis_core.global_force_seed = int(HYPOTHESIS_SEED)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    shared_server.stop_shared()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"Hypothesis tried the examples of PERDURE_HYPOTHESIS_SEED={HYPOTHESIS_SEED}")


@pytest.fixture(scope="module", autouse=True)
def own_definitions(request: pytest.FixtureRequest) -> None:
    """A name that functions of several test files have means that of this file: which files share a process is chance."""
    for definition in vars(request.module).values():
        if isinstance(definition, Task | Workflow):
            kind = registry.tasks if isinstance(definition, Task) else registry.workflows
            if definition.name in kind.conflicts():
                kind.adopt(definition)


@pytest.fixture(scope="session")
def open_directory() -> Iterator[Callable[..., Path]]:
    """Makes directories that the server's unprivileged user can enter; pytest's own tmp_path is closed to it.

    They are removed with all others of the tests' process, also if it is killed.
    """
    made: list[Path] = []

    def make(inside: Path | None = None) -> Path:
        within = supervisor.directory_in(inside) if inside else None
        directory = Path(tempfile.mkdtemp(prefix="test-", dir=within)).resolve()
        directory.chmod(0o755)
        made.append(directory)
        return directory

    yield make
    for directory in made:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[PrivateCluster]:
    """The server of this process. One that is running already, with the template, where PERDURE_TEST_CLUSTER says."""
    if SHARED_CLUSTER:
        with shared_server.join_shared(SHARED_CLUSTER) as shared:
            yield shared
        return
    yield shared_server.start_shared()


@pytest.fixture(scope="session")
def migrated_template(cluster: PrivateCluster) -> str:
    """A migrated database to copy from: a copy costs a fraction of migrating anew."""
    if SHARED_CLUSTER:
        return TEMPLATE
    dsn = cluster.create_database(TEMPLATE)
    # In a thread of its own, because the event loop of the test that asks first may not be disturbed.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, make_template(dsn)).result()
    return TEMPLATE


async def make_template(dsn: str) -> None:
    """With the partitions that an engine makes before its first write: making them takes longer than all else that it does."""
    await migrate(dsn)
    connection = await connect(dsn)
    try:
        await partitions.create_ahead(connection, EngineSettings().partitions_ahead_days)
    finally:
        await connection.close()


@pytest.fixture
def dsn(cluster: PrivateCluster, migrated_template: str) -> Iterator[str]:
    """A fresh database with every migration applied."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    yield cluster.create_database(name, template=migrated_template)
    cluster.drop_database(name)


@pytest.fixture
def bare_dsn(cluster: PrivateCluster) -> Iterator[str]:
    """A fresh empty database."""
    name = f"bare_{os.getpid()}_{next(_numbers)}"
    yield cluster.create_database(name)
    cluster.drop_database(name)


@pytest.fixture
def durable_cluster(open_directory: Callable[[], Path], processes: None) -> Iterator[Callable[..., PrivateCluster]]:
    """Makes servers of their own for crash tests, fsync on, not yet started: `durable_cluster(settings={...})`."""
    made: list[PrivateCluster] = []

    def make(directory: Path | None = None, **options: object) -> PrivateCluster:
        server = PrivateCluster(directory or open_directory() / "pg", **options)  # type: ignore[arg-type]
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop("immediate")
    for server in made:
        shutil.rmtree(server.directory, ignore_errors=True)
