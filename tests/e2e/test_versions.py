"""Versions of code side by side: real worker processes, a server that is restarted, ramps, rollback, draining."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Client, Signal
from perdure.core import ids
from perdure.core.api import runs, versions
from perdure.core.api.definitions import WorkflowRef
from perdure.core.api.versions import MoveRuns, SetCurrent, VersionUse, WorkflowVersions
from perdure.core.errors import PerdureError, RunCancelled
from perdure.core.versions import is_ramped
from perdure.core.work import StartRequest
from perdure.store.verify import verify
from tests.fakes.waiting import until
from tests.server.remote import Served, server

pytestmark = pytest.mark.usefixtures("processes")

NAME = "released"
GO = Signal("go", str)
CODE = """
from perdure import Signal, task, wf, workflow

CODE = {version!r}
go = Signal("go", str)
pause = wf.sleep


@task(name="released_step")
async def step(n: int) -> int:
    return n


@workflow(name="released", version=CODE)
async def released(n: int, waits: bool) -> list[str]:
    seen = [CODE]
    if waits:
        await step(n)
        await go.next()
    for _ in range(3):
        await pause("200ms")
        seen.append(CODE)
        await step(n)
    seen.append(CODE)
    return seen


@workflow(name="released_parent", version=CODE)
async def parent(n: int) -> list[str]:
    return [CODE, *await released(n, False)]


@workflow(name="released_chain", version=CODE)
async def chain(seen: list[str], waits: bool) -> list[str]:
    if waits:
        await go.next()
        wf.continue_as_new([*seen, CODE], False)
    return [*seen, CODE]
"""


class Workers:
    """Processes of `perdure worker`, by version."""

    def __init__(self, directory: Path, address: str, pinned: bool) -> None:
        self._directory, self._address, self._pinned = directory, address, pinned
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, version: str, code: str = CODE) -> subprocess.Popen[bytes]:
        place = self._directory / f"{version}-{len(self._all)}"
        place.mkdir()
        (place / "released_code.py").write_text(code.format(version=version))
        command = [
            sys.executable,
            "-c",
            "from perdure.cli.main import main; main()",
            "worker",
            "released_code.py",
            "--server",
            self._address,
        ]
        command += ["--drain", "2s", *(["--build-id", f"build-{version}"] if self._pinned else [])]
        with (place / "out").open("wb") as out:
            made = subprocess.Popen(command, cwd=place, stdout=out, stderr=out, env=os.environ)
        self._all.append(made)
        made.args = place / "out"  # type: ignore[assignment]
        return made

    def stop_all(self) -> None:
        for process in self._all:
            process.kill()
            process.wait()


@contextmanager
def workers(directory: Path, port: int, *, pinned: bool = True) -> Iterator[Workers]:
    made = Workers(directory, f"127.0.0.1:{port}", pinned)
    try:
        yield made
    except BaseException:
        for out in sorted(directory.glob("*/out")):
            print(f"-- {out.parent.name}", out.read_text()[-2000:], sep="\n")
        raise
    finally:
        made.stop_all()


@pytest.fixture
def port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


async def start(client: Client, n: int = 0, waits: bool = False) -> str:
    return await start_of(client, NAME, n=n, waits=waits)


async def start_of(client: Client, workflow: str, **arguments: object) -> str:
    request = StartRequest(workflow=workflow, version="", input=msgspec.json.encode(arguments))
    return ids.text((await client._backend.call(runs.START, request)).run_id)


async def listed(client: Client, workflow: str = NAME) -> WorkflowVersions:
    return await client._backend.call(versions.LIST, WorkflowRef(workflow))


async def use_of(client: Client, version: str, workflow: str = NAME) -> VersionUse | None:
    try:
        found = await listed(client, workflow)
    except PerdureError:
        return None
    return next((v for v in found.versions if v.version == version), None)


async def serves(client: Client, version: str, workers: int = 1) -> bool:
    use = await use_of(client, version)
    return use is not None and use.workers == workers


async def result(client: Client, run_id: str) -> Any:
    return await (await client.get(run_id)).result("3m")


async def clean(dsn: str) -> None:
    assert not [(t.number, t.examples) for t in await verify(dsn, at_rest=True) if t.violations]


async def test_no_run_sees_the_code_of_another_version(dsn: str, port: int, tmp_path: Path) -> None:
    """Half of the runs begin while version 1 is current. Workers of both are killed and the server is restarted under way."""
    with workers(tmp_path, port) as fleet:
        first = fleet.start("1")
        expected: dict[str, str] = {}
        async with server(dsn, port=port, grace_s=1.0), Client(f"127.0.0.1:{port}") as client:
            await until(lambda: serves(client, "1"), "version 1 is served", 25)
            expected |= {await start(client, n, False): "1" for n in range(100)}
            second = fleet.start("2")
            await until(lambda: serves(client, "2"), "version 2 is served", 60)
            assert (await listed(client)).current == "2", "the newest code, since none was set by hand"
            expected |= {await start(client, n, False): "2" for n in range(100)}
            first.kill()
            fleet.start("1")
            expected |= {await start(client, n, False): "2" for n in range(50)}
        async with server(dsn, port=port, grace_s=1.0) as again, Client(f"127.0.0.1:{port}") as client:
            await until(lambda: len(again.workers.connections()) >= 2, "the workers are back", 60)
            second.kill()
            fleet.start("2")
            for run_id, version in expected.items():
                assert set(await result(client, run_id)) == {version}
                assert (await (await client.get(run_id)).describe()).version == version
            try:
                await until(lambda: _is_current(client, "2"), "the newest version that is served is current", 150)
            except AssertionError:
                print(await listed(client, "released_parent"), *again.workers.connections(), sep="\n")
                raise
            nested = await start_of(client, "released_parent", n=1)
            assert set(await result(client, nested)) == {"2"}
    await clean(dsn)


async def test_a_ramp_and_a_rollback_decide_by_the_id_of_a_run(dsn: str, port: int, tmp_path: Path) -> None:
    with workers(tmp_path, port) as fleet:
        fleet.start("1")
        async with server(dsn, port=port), Client(f"127.0.0.1:{port}") as client:
            await until(lambda: serves(client, "1"), "version 1 is served", 25)
            await client._backend.call(versions.SET_CURRENT, SetCurrent(NAME, "1"))
            fleet.start("2")
            await until(lambda: serves(client, "2"), "version 2 is served", 60)
            assert (await listed(client)).current == "1", "it was set by hand"
            began: list[tuple[str, str]] = []
            for percent in (10.0, 50.0, 100.0):
                found = await client._backend.call(versions.SET_CURRENT, SetCurrent(NAME, "2", percent))
                assert (found.ramp, found.current) == (("2", "1") if percent < 100 else (None, "2"))
                made = [await start(client, n, False) for n in range(100)]
                ramped = {run_id: "2" if is_ramped(ids.parse(run_id), percent) else "1" for run_id in made}
                assert 0 < Counter(ramped.values())["2"] <= 100 and Counter(ramped.values())["2"] <= percent * 3
                began += ramped.items()
            back = await client._backend.call(versions.ROLLBACK, WorkflowRef(NAME))
            assert (back.current, back.previous) == ("1", None)
            began += [(await start(client, n, False), "1") for n in range(50)]
            for run_id, version in began:
                assert set(await result(client, run_id)) == {version}
            with pytest.raises(PerdureError, match="no version of released to go back to"):
                await client._backend.call(versions.ROLLBACK, WorkflowRef(NAME))
    await clean(dsn)


async def test_a_pinned_run_waits_for_a_worker_of_its_version(dsn: str, port: int, tmp_path: Path) -> None:
    with workers(tmp_path, port) as fleet:
        old = fleet.start("1")
        async with server(dsn, port=port, grace_s=0.5) as s, Client(f"127.0.0.1:{port}") as client:
            await until(lambda: serves(client, "1"), "version 1 is served", 25)
            left, moved, chained = await start(client, 1, True), await start(client, 2, True), ""
            chained = await start_of(client, "released_chain", seen=[], waits=True)
            fleet.start("2")
            await until(lambda: serves(client, "2"), "version 2 is served", 60)
            use = await use_of(client, "1")
            assert use is not None and use.runs_pinned == 2 and not use.can_drain
            await GO.send(chained, "x")
            assert await result(client, chained) == ["1", "2"], (
                "a run that continues as new moves to the current version"
            )
            old.send_signal(signal.SIGTERM)
            await asyncio.to_thread(old.wait, 60)
            for run_id in (left, moved):
                await GO.send(run_id, "x")
            await until(lambda: serves(client, "1", 0), "version 1 is gone", 60)
            await until(lambda: _waits(s, left), "its wait reason is that no worker serves its version", 60)
            use = await use_of(client, "1")
            assert use is not None and use.runs_pinned == 2
            fleet.start("1")
            assert set(await result(client, left)) == {"1"} and set(await result(client, moved)) == {"1"}
            use = await use_of(client, "1")
            assert use is not None and use.can_drain
    await clean(dsn)


async def test_forks_and_reruns_begin_on_the_code_that_was_asked_for(dsn: str, port: int, tmp_path: Path) -> None:
    """And a pinned run without a worker can be cancelled and terminated."""
    with workers(tmp_path, port) as fleet:
        old = fleet.start("1")
        async with server(dsn, port=port, grace_s=0.5), Client(f"127.0.0.1:{port}") as client:
            await until(lambda: serves(client, "1"), "version 1 is served", 25)
            waiting = [await client.get(await start(client, n, True)) for n in range(3)]
            await until(lambda: _has_events(client, waiting[0].id, 3), "its first task has ended", 25)
            fleet.start("2")
            await until(lambda: serves(client, "2"), "version 2 is served", 60)
            same, current = await waiting[0].fork(3), await waiting[0].fork(3, code="current")
            for handle in (same, current):
                await GO.send(handle.id, "x")
            assert set(await result(client, same.id)) == {"1"} and set(await result(client, current.id)) == {"2"}
            again = await waiting[0].rerun({"waits": False})
            assert set(await result(client, again.id)) == {"2"}, "a rerun is a new run"
            old.kill()
            old.wait()
            await until(lambda: serves(client, "1", 0), "version 1 is gone", 60)
            await waiting[0].cancel()
            await waiting[1].terminate()
            for handle in waiting[:2]:
                with pytest.raises(RunCancelled):
                    await handle.result("10s")
            await waiting[2].terminate()
    await clean(dsn)


async def _has_events(client: Client, run_id: str, count: int) -> bool:
    return len(await (await client.get(run_id)).history()) >= count


async def test_runs_of_a_version_that_is_gone_can_be_moved(dsn: str, port: int, tmp_path: Path) -> None:
    with workers(tmp_path, port) as fleet:
        old = fleet.start("1")
        async with server(dsn, port=port, grace_s=0.5), Client(f"127.0.0.1:{port}") as client:
            await until(lambda: serves(client, "1"), "version 1 is served", 25)
            run_id = await start(client, 1, True)
            fleet.start("2")
            await until(lambda: serves(client, "2"), "version 2 is served", 60)
            with pytest.raises(PerdureError, match="Stop its workers first"):
                await client._backend.call(versions.MOVE, MoveRuns(NAME, "1", "2"))
            old.kill()
            old.wait()
            await GO.send(run_id, "x")
            await until(lambda: serves(client, "1", 0), "version 1 is gone", 60)
            await until(lambda: _moves(client), "the run is moved", 60)
            assert set(await result(client, run_id)) == {"2"}
            events = [r.event for r in await (await client.get(run_id)).history()]
            changed = [e for e in events if type(e).__name__ == "VersionChanged"]
            assert [(e.before, e.version) for e in changed] == [("1", "2")]  # type: ignore[union-attr]
    await clean(dsn)


async def test_without_a_build_id_runs_follow_the_code_of_the_only_worker(dsn: str, port: int, tmp_path: Path) -> None:
    with workers(tmp_path, port, pinned=False) as fleet:
        old = fleet.start("1")
        async with server(dsn, port=port, grace_s=0.5), Client(f"127.0.0.1:{port}") as client:
            await until(lambda: serves(client, "1"), "version 1 is served", 25)
            run_id = await start(client, 1, True)
            await until(lambda: _has_events(client, run_id, 3), "it has begun with version 1", 25)
            old.kill()
            old.wait()
            fleet.start("2")
            await until(lambda: serves(client, "2"), "version 2 is served", 60)
            await GO.send(run_id, "x")
            assert set(await result(client, run_id)) == {"2"}
            history = [type(r.event).__name__ for r in await (await client.get(run_id)).history()]
            assert history.count("VersionChanged") == 1
    await clean(dsn)


async def test_other_code_under_the_same_label_is_refused(dsn: str, port: int, tmp_path: Path) -> None:
    with workers(tmp_path, port) as fleet:
        fleet.start("1")
        async with server(dsn, port=port), Client(f"127.0.0.1:{port}") as client:
            await until(lambda: serves(client, "1"), "version 1 is served", 25)
            other = fleet.start("1", CODE + "\n# an edit\n")
            assert await asyncio.to_thread(other.wait, 60) != 0
            assert "is registered with other code" in Path(str(other.args)).read_text()
            assert await serves(client, "1"), "the first one stays"


async def _is_current(client: Client, version: str) -> bool:
    return (await listed(client, "released_parent")).current == version


async def _moves(client: Client) -> bool:
    return (await client._backend.call(versions.MOVE, MoveRuns(NAME, "1", "2"))).runs == 1


async def _waits(s: Served, run_id: str) -> bool:
    detail = await s.api.ports.reads.detail(s.engine.ns, ids.parse(run_id))
    return detail is not None and [w.on for w in detail.waits] == ["no_worker_for_version"]
