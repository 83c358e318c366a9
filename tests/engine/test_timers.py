"""Timers fire in their time, once, and only for runs that still have them."""

from __future__ import annotations

import heapq

from perdure.core import events as ev
from tests.engine.test_segments import world
from tests.fakes.engine_parts import RUN


async def test_a_timer_that_is_due_is_recorded_once() -> None:
    made, run, _ = world()
    run.state.apply(ev.TimerStarted(3, 70))
    made.timers.push(run, 70, 3)
    made.timers.fire()
    made.now = 70
    made.timers.fire()
    made.timers.fire()
    made.timers.close()
    assert [e for s in run.pending for e in s.events] == [ev.TimerFired(3)]


async def test_a_timer_that_was_cancelled_does_not_fire() -> None:
    made, run, _ = world()
    run.state.apply(ev.TimerStarted(3, 70))
    made.timers.push(run, 70, 3)
    run.state.apply(ev.TimerCancelled(3))
    made.now = 70
    made.timers.fire()
    assert not [e for s in run.pending for e in s.events]


def test_deadlines_stay_among_the_timers_when_cancelled_ones_are_thrown_out() -> None:
    made, run, _ = world()
    run.state.apply(ev.TimerStarted(3, 70))
    made.timers._heap = [(50, RUN, -1), (60, RUN, 2), (70, RUN, 3), (80, b"gone", 1)]
    heapq.heapify(made.timers._heap)
    made.timers._compact()
    assert sorted(made.timers._heap) == [(50, RUN, -1), (70, RUN, 3)]
