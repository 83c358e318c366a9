"""Turns of decisions that do not fit into a slice: in order, by namespace, with a rest after each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any

from perdure.core.limits import FLOW_DECISION_S_MAX, FLOW_SHARE_PERCENT
from perdure.engine.counters import Counters
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.turns import Turns


class Burning:
    """A decider that computes for as long as it may."""

    at = 1

    def advance(self, is_up: Callable[[], bool]) -> bool:
        while not is_up():
            pass
        return False


def run_of(ns: int, name: str) -> ActiveRun:
    run = ActiveRun(name.encode().ljust(16), ns, name, "flow-0", 1)
    burning: Any = Burning()
    run.decider = burning
    return run


async def taken(runs: list[ActiveRun], count: int) -> tuple[Counters, list[str], list[tuple[float, float, float]]]:
    """Names in the order of their turns, and of each turn: when it began, when it ended, its CPU time."""
    order: list[str] = []
    times: list[tuple[float, float, float]] = []
    enough = asyncio.Event()

    def take(run: ActiveRun) -> None:
        began, cpu = perf_counter(), thread_time()
        assert not turns.advance(run, run.decider)
        times.append((began, perf_counter(), thread_time() - cpu))
        order.append(run.workflow)
        if len(order) < count:
            turns.add(run)
        else:
            enough.set()

    counters = Counters()
    turns = Turns(counters, take)
    for run in runs:
        turns.add(run)
    await asyncio.wait_for(enough.wait(), 30)
    turns.forget_all()
    return counters, order, times


async def test_namespaces_take_turns_and_within_one_its_runs_do() -> None:
    runs = [run_of(1, "a"), run_of(1, "b"), run_of(1, "c"), run_of(2, "z")]
    _, order, _ = await taken(runs, 12)
    assert "".join(order) == "azbzczazbzcz"


async def test_after_a_slice_the_loop_is_left_alone_for_its_share() -> None:
    counters, _, times = await taken([run_of(1, "a"), run_of(1, "b")], 10)
    rest = (100 - FLOW_SHARE_PERCENT) / FLOW_SHARE_PERCENT
    for (_, ended, cpu), (began, _, _) in zip(times, times[1:], strict=False):
        assert began - ended > 0.8 * rest * cpu
    assert counters.measures.flow_slice_us.count == 10
    assert counters.flow_slice_us_max <= max(cpu for _, _, cpu in times) * 1e6


def test_a_decision_has_its_time() -> None:
    run = run_of(1, "a")
    turns = Turns(Counters(), lambda _: None)
    turns.advance(run, run.decider)
    assert turns.overspent(run) is None
    run.computed_s = FLOW_DECISION_S_MAX + 1.0
    failure = turns.overspent(run)
    assert failure is not None and failure.code == "decision_budget"
    assert f"FLOW_DECISION_S_MAX={FLOW_DECISION_S_MAX}" in failure.message and "into a task" in failure.message
    decider: Any = run.decider
    decider.advance = lambda is_up: setattr(decider, "at", 2)  # the next record: a decision of its own
    turns.advance(run, run.decider)
    assert turns.overspent(run) is None
