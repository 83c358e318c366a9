"""Time for decisions of flows: in slices, in turns, and no more than a share of the event loop.

A decision that fits into a slice is made at once. One that does not is continued here, slice by slice: namespaces take turns, and within one
its runs do. After each slice the loop is left alone for as long as FLOW_SHARE_PERCENT says, so that everything else the server does has its time
however many flows compute.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Final

from perdure.core.errors import Failure
from perdure.core.events import Recorded
from perdure.core.limits import FLOW_DECISION_S_MAX, FLOW_SHARE_PERCENT, FLOW_SLICE_MS
from perdure.engine.counters import Counters
from perdure.engine.runs.run import ActiveRun
from perdure.flows.decide.decider import Decider

SLICE_S: Final = FLOW_SLICE_MS / 1_000
TRIFLE_S: Final = 0.001
"""Slices up to this length are not measured in CPU time, which costs as much as they do."""
_REST: Final = (100 - FLOW_SHARE_PERCENT) / FLOW_SHARE_PERCENT
"""Seconds of rest after a second of computing."""


class Turns:
    def __init__(self, counters: Counters, take: Callable[[ActiveRun], None]) -> None:
        self._counters, self._take = counters, take
        self._waiting: OrderedDict[int, deque[ActiveRun]] = OrderedDict()
        """By namespace, the one whose turn is next first."""
        self._rest_s = 0.0
        """Since the last slice."""
        self._due = False
        self._cpu_s = 0.0
        """CPU time at `begin`."""

    def begin(self) -> None:
        """To be called before the first of several slices."""
        self._cpu_s = thread_time()

    def advance(self, run: ActiveRun, decider: Decider) -> bool:
        """One slice of a run's decision. True: it is finished. Raises what the decider raises."""
        before, began = decider.at, perf_counter()
        until = began + SLICE_S
        try:
            return decider.advance(lambda: perf_counter() >= until)
        finally:
            took_s = perf_counter() - began
            if took_s > TRIFLE_S:  # time on the wall counts only where it does not matter
                took_s = min(took_s, thread_time() - self._cpu_s)
            us = int(took_s * 1e6)
            self._counters.measures.flow_slice_us.add(us)
            if us > self._counters.flow_slice_us_max:
                self._counters.flow_slice_us_max = us
            self._rest_s = took_s * _REST
            run.computed_s = took_s if decider.at != before else run.computed_s + took_s

    def overspent(self, run: ActiveRun) -> Failure | None:
        """The failure of a decision that took too much CPU time, if it did."""
        if run.computed_s <= FLOW_DECISION_S_MAX:
            return None
        return Failure(
            "decision_budget",
            f"one decision of flow {run.workflow!r} has taken {run.computed_s:.0f} s of CPU time, more than "
            f"FLOW_DECISION_S_MAX={FLOW_DECISION_S_MAX}; move the computation into a task, or make less of it follow from one event",
        )

    def add(self, run: ActiveRun) -> None:
        """Queue a run for the next slice of its decision."""
        self._waiting.setdefault(run.ns, deque()).append(run)
        self._arm()

    def forget_all(self) -> None:
        self._waiting.clear()

    def _arm(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(self._rest_s, self._next)

    def _next(self) -> None:
        self._due = False
        if not self._waiting:
            return
        ns, runs = next(iter(self._waiting.items()))
        run = runs.popleft()
        if runs:
            self._waiting.move_to_end(ns)
        else:
            del self._waiting[ns]
        self.begin()
        self._take(run)
        self._arm()


async def replay(decider: Decider, history: list[Recorded]) -> None:
    """Give a decider a whole history, for a reader of it, without holding up the loop."""
    decider.give(history, replay=True)
    while not decider.advance(within(SLICE_S)):  # noqa: ASYNC110 - it is the pause between two slices
        await asyncio.sleep(SLICE_S * _REST)


def within(seconds: float) -> Callable[[], bool]:
    """Answers whether that much time is over."""
    until = perf_counter() + seconds
    return lambda: perf_counter() >= until
