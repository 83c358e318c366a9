"""Every case of the corpus through an engine: live, and, in `just long`, with one that dies in the middle of every commit.

Engines die in every tenth case; with PERDURE_CORPUS=all they die in each. A few cases in which they die are in the last test.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.core.errors import InvalidInput
from perdure.core.invariants import Tally
from perdure.core.invariants.attempts import NUMBERED as ATTEMPTS
from perdure.localpg.cluster import PrivateCluster
from perdure.store.postgres import PostgresStore
from perdure.store.verify import verify
from tests.flows.case import CORPUS, load, name_of, paths
from tests.flows.engine_harness import EngineWorld
from tests.flows.test_corpus import check

REFUSED = CORPUS / "dag/input_that_does_not_fit.yaml"
"""An engine refuses this start; only a decider that is given the input anyway fails the run."""
PATHS = [path for path in paths() if path != REFUSED]
DYING_PATHS = PATHS if os.environ.get("PERDURE_CORPUS") == "all" else PATHS[::10]
DATABASE = "flow_corpus"
PARTITIONS_DAYS = 15
"""Cases let days pass."""


class Bench:
    """One loop and one database for all cases: they are many, and each is short."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._runner = asyncio.Runner()
        self.store = PostgresStore(dsn)
        self._runner.run(self.store.open())
        self._runner.run(self.store.create_partitions(PARTITIONS_DAYS))

    def play(self, path: Path, *, crashing: bool) -> EngineWorld:
        case = load(path)
        world = EngineWorld(self.store, case, path.stem, crashing=crashing)
        check(case, self._runner.run(world.run()))
        return world

    def verify(self) -> list[Tally]:
        return self._runner.run(verify(self._dsn, at_rest=True))

    def close(self) -> None:
        self._runner.run(self.store.close())
        self._runner.close()


@pytest.fixture(scope="module")
def bench(cluster: PrivateCluster, migrated_template: str) -> Iterator[Bench]:
    made = Bench(cluster.create_database(DATABASE, template=migrated_template))
    yield made
    made.close()
    cluster.drop_database(DATABASE)


@pytest.fixture(params=PATHS, ids=name_of)
def path(request: pytest.FixtureRequest) -> Path:
    return checked(request)


@pytest.fixture(params=DYING_PATHS, ids=name_of)
def dying_path(request: pytest.FixtureRequest) -> Path:
    return checked(request)


def checked(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    if reason := load(found).not_yet:
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    return found


def test_an_engine_records_exactly_these_commands(bench: Bench, path: Path) -> None:
    bench.play(path, crashing=False)


@pytest.mark.usefixtures("thorough")
def test_engines_that_die_at_every_commit_record_the_same(bench: Bench, dying_path: Path) -> None:
    world = bench.play(dying_path, crashing=True)
    assert world.crashes > 0


def test_an_input_that_does_not_fit_is_refused_before_anything_is_written(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match=r"input\.n must be integer, not string"):
        bench.play(REFUSED, crashing=False)


@pytest.mark.keep
def test_nothing_is_torn_or_left_in_the_database_after_all_that(bench: Bench) -> None:
    """Whatever cases came before, and these at least."""
    for name in (
        "dag/retry_of_spread_bodies",
        "dag/child_flows_fail_fast",
        "mixed/retry_deep_inside",
        "dag/foreach_in_chunks",
    ):
        bench.play(CORPUS / f"{name}.yaml", crashing=True)
    tallies = bench.verify()
    assert any(t.examined for t in tallies)
    # A message that a script sends ends a task with its last attempt; the attempts before it were none of an engine's.
    found = [t for t in tallies if t.number != ATTEMPTS]
    assert "\n".join(f"{t.name}: run {e.run} {e.what}" for t in found for e in t.examples) == ""
