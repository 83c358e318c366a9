"""Depths of queues include what a server holds in its memory: a full single server does not report 0."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import task, wf, workflow
from perdure.store.telemetry import PostgresTelemetry
from tests.fakes.waiting import until
from tests.server.rest_live import WORKFLOWS, Live, live

TASKS = 400
gate = asyncio.Event()


@task(name="memory_hold")
async def hold(n: int) -> int:
    await gate.wait()
    return n


@workflow(name="memory_fan")
async def fan(n: int) -> int:
    return len(await wf.map(hold, range(n)))


@pytest.fixture
async def api(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    gate.clear()
    monkeypatch.setattr("tests.server.rest_live.WORKFLOWS", (*WORKFLOWS, fan))
    async with live(dsn) as one:
        yield one
        gate.set()


async def test_a_full_server_shows_what_waits_in_its_memory(api: Live) -> None:
    run = await api.start("memory_fan", input=TASKS)
    slots = api.perdure.worker.slots
    assert slots < TASKS
    found: dict[str, Any] = {}

    async def counted() -> bool:
        items = (await api.get("/queues"))["items"]
        found.update(next((q for q in items if q["task"] == "memory_hold"), {}))
        # An attempt that just got its row is counted twice until the engine has reported again.
        return found.get("pending") == TASKS - slots and found["running"] == slots

    await until(counted)
    assert 0 < found["oldest_age_s"] < 60
    notes = PostgresTelemetry(api.perdure.store.pool)
    ((_, queue, due, oldest_s),) = await notes.queue_depths()
    assert (queue, due) == ("default", TASKS - slots) and oldest_s > 0
    gate.set()
    assert (await api.get(f"/runs/{run['id']}/result", wait=60))["result"] == TASKS

    async def is_empty() -> bool:
        return (await api.get("/queues"))["items"] == [] and await notes.queue_depths() == []

    await until(is_empty)
