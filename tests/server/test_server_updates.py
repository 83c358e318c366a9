"""Updates and queries through the doors of a server: REST, gRPC and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import Client, Signal, State, Update, workflow
from perdure.core import ids
from perdure.errors import RunFinished, UpdateFailed, UpdateRejected
from tests.fakes.waiting import holds, until
from tests.server.remote import server, worker
from tests.server.rest_live import Live, live

fill = Update("rest_fill", int, int)
unheard = Update("rest_unheard", int, int)
"""Declared, and answered by no workflow."""
stop = Signal("rest_stop", bool)
level = State("rest_level", 0)
unit = State("rest_unit", "l")


@workflow(name="rest_tank")
async def tank() -> int:
    def add(n: int) -> int:
        if n == 13:
            raise RuntimeError("a leak")
        level.set(level.get() + n)
        unit.set("l")
        return level.get()

    def fits(n: int) -> None:
        if n > 100:
            raise UpdateRejected("it would overflow")

    fill.handle(add, validate=fits)
    await stop.next()
    return level.get()


async def started(api: Live) -> str:
    handle = await api.perdure.start(tank)
    return handle.id


async def test_an_update_over_rest(dsn: str) -> None:
    async with live(dsn) as api:
        run = await started(api)
        path = f"/runs/{run}/updates"
        assert await api.post(f"{path}/rest_fill", {"value": 5, "key": "one"}, 200) == {
            "key": "one",
            "status": "done",
            "value": 5,
        }
        assert (await api.post(f"{path}/rest_fill", {"value": 7, "key": "one"}, 200))["value"] == 5
        assert await api.get(f"{path}/one") == {"key": "one", "status": "done", "value": 5}
        refused = await api.post(f"{path}/rest_fill", {"value": 500, "key": "big"}, 422)
        assert (refused["code"], refused["detail"]) == ("update_rejected", "it would overflow")
        assert (await api.get(f"{path}/big", 422))["code"] == "update_rejected"
        assert (await api.post(f"{path}/rest_fill", {"value": "much"}, 422))["code"] == "update_rejected"
        failed = await api.post(f"{path}/rest_fill", {"value": 13}, 409)
        assert failed["code"] == "update_failed"
        assert "a leak" in failed["detail"]
        later = await api.post(f"{path}/{unheard.name}", {"value": 1, "key": "later", "wait": 0}, 202)
        assert later == {"key": "later", "status": "pending", "value": None}
        assert await api.get(f"{path}/later", 202) == later
        assert (await api.get(f"{path}/never", 404))["code"] == "not_found"
        assert (await api.post(f"{path}/rest_fill", {"value": 1, "wait": 31}, 422))["code"] == "invalid_input"
        await api.post(f"/runs/{run}/signals/rest_stop", True, 202)
        await api.get(f"/runs/{run}/result", wait=60)
        assert (await api.get(f"{path}/later", 409))["code"] == "run_finished"
        assert (await api.post(f"{path}/rest_fill", {"value": 1}, 409))["code"] == "run_finished"
        actions = {entry["action"] for entry in (await api.get("/audit"))["items"]}
        assert "run.update" in actions


@pytest.mark.usefixtures("interpreter")
async def test_states_are_read_without_disturbing_the_run(dsn: str) -> None:
    async with live(dsn) as api:
        run = await started(api)
        await api.post(f"/runs/{run}/updates/rest_fill", {"value": 5}, 200)
        run_id, handle = ids.parse(run), await api.perdure.get(run)
        api.perdure.engine.exits.release(api.perdure.engine.runs[run_id])  # it sleeps

        async def has_no_owner() -> bool:
            return (await handle.describe()).owner is None

        await until(has_no_owner)
        before = await handle.describe()
        events = len(await handle.history())
        first = await api.get(f"/runs/{run}/state", limit=1)
        assert first["items"] == [{"name": "rest_level", "value": 5}]
        rest = await api.get(f"/runs/{run}/state", limit=1, cursor=first["next"])
        assert rest == {"items": [{"name": "rest_unit", "value": "l"}], "next": None}
        assert (await api.get(f"/runs/{run}/state/rest_level"))["value"] == 5
        code, out = await perdure("state", run, url=api.url)
        assert (code, out.splitlines()) == (0, ["rest_level\t5", "rest_unit\tl"])
        code, out = await perdure("state", run, "rest_level", url=api.url)
        assert (code, out.strip()) == (0, "5")

        async def is_undisturbed() -> bool:
            assert await handle.describe() == before
            return True

        await holds(is_undisturbed, 0.3)
        assert (before.owner, before.epoch) == (None, 1)
        assert len(await handle.history()) == events
        assert run_id not in api.perdure.engine.runs
        assert (await api.get(f"/runs/{ids.text(bytes(16))}/state", 404))["code"] == "not_found"


async def perdure(*words: str, url: str) -> tuple[int, str]:
    program = Path(sys.executable).parent / "perdure"
    made = await asyncio.create_subprocess_exec(
        str(program),
        *words,
        env={**os.environ, "PERDURE_URL": url, "NO_COLOR": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await made.communicate()
    return made.returncode or 0, out.decode() or err.decode()


@pytest.mark.usefixtures("interpreter")
async def test_an_update_from_the_command_line(dsn: str) -> None:
    async with live(dsn) as api:
        run = await started(api)
        assert await perdure("update", run, "rest_fill", "5", url=api.url) == (0, "5\n")
        code, out = await perdure("update", run, "rest_fill", "5", "-o", "json", "--key", "x", url=api.url)
        assert (code, json.loads(out)) == (0, {"key": "x", "status": "done", "value": 10})
        code, out = await perdure("update", run, "rest_fill", "500", url=api.url)
        assert code == 2
        assert "it would overflow" in out
        code, out = await perdure("update", run, "rest_fill", "13", url=api.url)
        assert code == 1
        assert "a leak" in out
        code, out = await perdure("update", run, unheard.name, "1", "--wait", "0", "--key", "p", url=api.url)
        assert (code, out) == (0, "p\tpending\n")


async def test_a_remote_client_asks_a_run_on_a_remote_worker(dsn: str) -> None:
    async with server(dsn) as served, worker(served.address), Client(served.address) as client:
        handle = await client.start(tank)
        assert await fill.ask(handle.id, 4) == 4
        assert await fill.ask(handle.id, 4, key="twice") == 8
        assert await fill.ask(handle.id, 4, key="twice") == 8
        with pytest.raises(UpdateRejected, match="overflow"):
            await fill.ask(handle.id, 101)
        with pytest.raises(UpdateFailed, match="a leak") as caught:
            await fill.ask(handle.id, 13)
        assert caught.value.failure.type == "RuntimeError"
        with pytest.raises(TimeoutError):
            await unheard.ask(handle.id, 1, timeout=1.5)
        run = served.engine.runs[ids.parse(handle.id)]
        assert run.waiting == ["signal:rest_stop"]
        await stop.send(handle.id, True)
        assert await handle.result("3m") == 8
        with pytest.raises(RunFinished):
            await fill.ask(handle.id, 1)


async def test_namespaces_do_not_see_each_other(dsn: str) -> None:
    async with live(dsn) as api:
        run = await started(api)
        await api.post("/namespaces", {"name": "other"}, 201)
        elsewhere: dict[str, Any] = {"headers": {"Perdure-Namespace": "other"}}
        for method, path, body in (
            ("POST", f"/runs/{run}/updates/rest_fill", {"value": 1}),
            ("GET", f"/runs/{run}/updates/one", None),
            ("GET", f"/runs/{run}/state", None),
        ):
            assert (await api.ask(method, path, 404, json=body, **elsewhere))["code"] == "not_found"
