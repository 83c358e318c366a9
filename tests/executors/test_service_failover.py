"""Instances that are killed at random while they are called, and the spread of calls over those that are there.

PERDURE_SERVICE_KILLS_S says for how many seconds they are killed; 120 is the long form.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from typing import Any

import pytest

from tests.executors.services import deployed, ended, instance, online, serving
from tests.fakes.waiting import busy
from tests.server.rest_live import Live

pytestmark = pytest.mark.usefixtures("processes")

KILLS_S = float(os.environ.get("PERDURE_SERVICE_KILLS_S", "8"))
INSTANCES = 3
CALL = {
    "tasks": {
        "all": {
            "foreach": "input.items",
            "concurrency": 8,
            "service": {
                "name": "transform",
                "params": {"op": "mul", "mul": 2},
                "max_attempts": 20,
                "attempt_delay_ms": 100,
            },
            "with": "${ item }",
            "retry": {"max_attempts": 5, "delay": "200ms"},
        }
    },
    "output": "${ all }",
}


async def _killing(server: Live, stack: contextlib.ExitStack, until: float) -> int:
    """Kill an instance and start it again, over and over; how often."""
    chance, kills = random.Random(11), 0
    env = [{"WORKER_ID": f"w{n}", "BEAT_S": 0.5, "DELAY_S": 0.05} for n in range(INSTANCES)]
    processes = [stack.enter_context(instance(server, **e)) for e in env]
    await online(server, "transform", INSTANCES)
    loop = asyncio.get_running_loop()
    while loop.time() < until:
        await busy(chance.uniform(0.3, 1.5))
        n = chance.randrange(INSTANCES)
        processes[n].kill()
        kills += 1
        await busy(chance.uniform(0.1, 1.0))
        processes[n] = stack.enter_context(instance(server, **env[n]))
    return kills


async def test_no_task_fails_that_has_attempts_left_while_instances_are_killed(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(dsn, monkeypatch) as server:
        await deployed(server, CALL, "killed")
        with contextlib.ExitStack() as stack:
            until = asyncio.get_running_loop().time() + KILLS_S
            killing = asyncio.create_task(_killing(server, stack, until))
            runs: list[dict[str, Any]] = []
            while not killing.done():
                run = await server.post("/workflows/killed/runs", {"input": {"items": list(range(20))}})
                runs.append(await ended(server, run["id"]))
            kills = await killing
        print(f"{kills} kills, {len(runs)} runs of 20 calls")
        assert kills >= KILLS_S / 5 and runs
        failed = [r for r in runs if r["status"] != "success"]
        assert not failed, failed[0]
        assert all(r["result"] == [2 * n for n in range(20)] for r in runs)


async def test_calls_follow_the_load_within_20_percent(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of 0, 1 and 3 make weights of 1, 1/2 and 1/4."""
    flow = {
        "tasks": {
            "all": {
                "foreach": "input.items",
                "concurrency": 1,
                "service": {"name": "transform", "params": {"op": "mul"}, "weighted_by_load": True},
                "with": "${ item }",
            }
        }
    }
    calls = 140
    async with serving(dsn, monkeypatch) as server:
        await deployed(server, flow, "spread")
        with contextlib.ExitStack() as stack:
            for name, load in (("idle", 0), ("some", 1), ("much", 3)):
                stack.enter_context(instance(server, WORKER_ID=name, BASE_LOAD=load))
            found = await online(server, "transform", 3)
            run = await server.post("/workflows/spread/runs", {"input": {"items": list(range(calls))}})
            assert (await ended(server, run["id"]))["status"] == "success"
            made = Counter[str]()
            for one in found:
                made[one["id"]] = (await server.http.get(f"{one['url']}/")).json()["calls"]
        ideal = {"idle": calls * 4 / 7, "some": calls * 2 / 7, "much": calls / 7}
        print(dict(made), ideal)
        assert sum(made.values()) == calls
        for name, wanted in ideal.items():
            assert abs(made[name] - wanted) <= 0.2 * wanted, (made, ideal)
