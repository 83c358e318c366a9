"""Servers, workers and clients of this version and of the one before it work together, on a schema that is newer than both.

The version before has made the database: one that a version makes anew needs that version.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from harness import mixed, mixed_client
from harness.fleet import count, violated
from harness.servers import TREE, Release, Servers, drained

from perdure.store.migrate import load
from tests.compatibility import steps
from tests.fakes.waiting import until

CLIENT = Path(mixed_client.__file__)
LEASE_S = 5.0
WAITING = len(mixed_client.RESULTS) - 1 + 2
"""Runs that wait until the clients of the other version come: all but the nap, and two children of the family."""


async def test_what_one_version_begins_the_other_brings_to_its_end(
    bare_dsn: str, tmp_path: Path, old: Release, coming: Release
) -> None:
    """Twice: an old server with a newer worker and client first, then the reverse; and the other way round."""
    dsn = bare_dsn
    steps.migrate(old, dsn)
    steps.migrate(coming, dsn)
    with Servers(tmp_path, dsn, 1, lease_s=LEASE_S) as fleet:
        await _half(fleet, server=old, others=coming, begin="a-", deploy=True)
        await _half(fleet, server=coming, others=old, end="a-", begin="b-")
        await _half(fleet, server=old, others=coming, end="b-")
        tallies = fleet.verify()
        assert not violated(tallies), f"{violated(tallies)}\n{fleet.errors()}"
        assert await count(dsn, "select count(*) from perdure.run_queue") == 0
        assert await count(dsn, "select min(next_weight) from perdure.run") == 7


async def _half(
    fleet: Servers, *, server: Release, others: Release, begin: str = "", end: str = "", deploy: bool = False
) -> None:
    """A server of one version, a worker and clients of the other, from their start to their orderly end."""
    up = fleet.server(0, server)
    worker = fleet.worker(fleet.addresses, module="harness.mixed", release=others)
    await until(lambda: fleet.is_up(up, "ready") and fleet.is_up(worker, "connected"), "they are up")
    url = f"http://127.0.0.1:{fleet.ports[0][0]}"
    if deploy:
        steps.deploy_flows(others, url, fleet.directory, mixed.DAG, mixed.GRAPH)
    if end:
        assert await _client(fleet, others, "end", end) == mixed_client.RESULTS
        assert json.loads(steps.run(others, "show", f"key:{end}chain", "--url", url, "--json"))["result"] == 23
    if begin:
        ids = await _client(fleet, others, "begin", begin)
        shown = json.loads(steps.run(others, "list", "--url", url, "--json"))
        assert {r["id"] for r in shown} >= set(ids.values())
        waiting = "select count(*) from perdure.run_queue where waiting_on is not null and workflow <> 'mixed_nap'"
        await until(lambda: _is(fleet.dsn, waiting, WAITING), "every run waits")
    for one in (worker, up):
        assert await asyncio.to_thread(drained, one, 90.0) == 0, one.err.read_text()[-3000:]
        assert "Traceback" not in one.err.read_text(), one.err.read_text()


async def _is(dsn: str, query: str, expected: int) -> bool:
    return await count(dsn, query) == expected


async def _client(fleet: Servers, release: Release, what: str, prefix: str) -> object:
    one = fleet.client(CLIENT, fleet.addresses[0], what, prefix, release=release)
    assert await asyncio.to_thread(one.process.wait, 240) == 0, one.err.read_text() + fleet.errors()
    return json.loads(one.out.read_text())


async def test_after_the_end_of_an_upgrade_the_version_before_is_refused_with_what_to_do(
    bare_dsn: str, tmp_path: Path, old: Release, coming: Release
) -> None:
    dsn = bare_dsn
    steps.migrate(old, dsn)
    steps.migrate(coming, dsn)
    with Servers(tmp_path, dsn, 1, lease_s=LEASE_S) as fleet:
        server = fleet.server(0, old)
        await until(lambda: fleet.is_up(server, "ready"), "the old server is up")
        early = steps.ended(coming, "migrate", "--finish", "--dsn", dsn)
        assert early.returncode == 1 and "Upgrade or stop them first" in early.stderr, early
        assert await asyncio.to_thread(drained, server, 90.0) == 0

        last = len(load()) + 1
        assert f"does not know migration {last:04} is refused" in steps.run(coming, "migrate", "--finish", "--dsn", dsn)
        refused = fleet.server(0, old)
        assert await asyncio.to_thread(refused.process.wait, 120) != 0
        assert f"needs code that knows migration {last:04}" in refused.err.read_text()
        assert "upgrade perdure" in refused.err.read_text() and "Traceback" not in refused.err.read_text()
        assert "upgrade perdure" in steps.ended(old, "migrate", "--dsn", dsn).stderr


def test_the_released_version_is_the_one_before_this(old: Release) -> None:
    def version(release: Release) -> tuple[int, ...]:
        return tuple(map(int, steps.run(release, "--version").split()[-1].split(".")[:2]))

    assert version(old) < version(TREE)
