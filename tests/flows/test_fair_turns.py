"""Flows that compute, in an engine: others have their turn, what is decided happens meanwhile, and there is an end to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Perdure, flow, task
from perdure.engine.counters import Counters
from perdure.engine.runs.transitions import DECIDING
from perdure.errors import Stuck
from perdure.flows.decide import decider

SLICE_BITS_MAX = 16
"""Of the microseconds of a slice: up to 65 ms."""
HEAVY = "${ sum(range(48000)) }"
RING: dict[str, Any] = {
    "max_steps": 50000,
    "start": "a",
    "nodes": {"a": {"value": HEAVY}, "b": {"value": HEAVY}},
    "edges": [{"from": "a", "to": "b"}, {"from": "b", "to": "a"}],
}

begun: list[int] = []
first_began = asyncio.Event()


def assert_slices_are_short(counters: Counters) -> None:
    """Nearly all of them: a virtual machine that is itself halted for a moment counts that as time of its processor."""
    slices = counters.measures.flow_slice_us
    assert sum(slices.counts[: SLICE_BITS_MAX + 1]) >= 0.9 * slices.count
    assert counters.flow_slice_us_max < 1_000_000


@task(name="fair_begin")
async def begin(n: int, x: int) -> int:
    begun.append(n)
    first_began.set()
    return n


async def test_a_flow_without_end_is_stuck_with_its_reason_and_holds_up_nobody(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decider, "FLOW_DECISION_STEPS_MAX", 10_000_000)
    async with Perdure(dsn) as p:
        await p.deploy({"flow": "fair-ring", **RING})
        await p.deploy(
            {"flow": "fair-quick", "tasks": {"a": {"value": 1}, "b": {"value": "${ a + 1 }", "depends_on": "a"}}}
        )
        poisoned = await p.start(flow("fair-ring"))
        others = 0
        while (await poisoned.describe()).stuck is None:
            assert await (await p.start(flow("fair-quick"))).result("3m") == {"b": 2}
            others += 1
        assert others >= 5
        with pytest.raises(Stuck, match="FLOW_DECISION_STEPS_MAX=10000000"):
            await poisoned.result("3m")
        assert p.engine.counters.measures.flow_slice_us.count > 50
        assert_slices_are_short(p.engine.counters)


async def test_tasks_begin_while_later_ones_are_still_computed(dsn: str) -> None:
    begun.clear()
    first_began.clear()
    count = 60
    tasks = {f"t{n}": {"python": "fair_begin", "with": {"n": n, "x": HEAVY}} for n in range(count)}
    async with Perdure(dsn) as p:
        await p.deploy({"flow": "fair-many", "tasks": tasks})
        handle = await p.start(flow("fair-many"))
        await first_began.wait()
        run = next(iter(p.engine.runs.values()))
        assert run.phase is DECIDING, "the first task began only when all of them had been computed"
        assert len(run.state.tasks) < count
        assert len(await handle.result("3m")) == count
        assert sorted(begun) == list(range(count))
        assert_slices_are_short(p.engine.counters)
