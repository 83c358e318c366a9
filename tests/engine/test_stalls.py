"""A loop that does not turn is measured, and shown while it lasts."""

from __future__ import annotations

import logging
from time import monotonic

import pytest

from perdure.engine.counters import Counters
from perdure.engine.services.stalls import LOG_AFTER_S, LOG_EVERY_S, StallWatch
from tests.fakes.waiting import busy_thread, turns


async def test_a_stall_is_measured_and_its_stack_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    counters = Counters()
    watch = StallWatch(counters)  # driven by hand, by a clock of its own
    now = monotonic()
    with caplog.at_level(logging.WARNING, "perdure.engine"):
        watch.look(now)
        watch.look(now + LOG_AFTER_S / 2)
        assert not caplog.records
        watch.look(now + LOG_AFTER_S)
        watch.look(now + LOG_AFTER_S + 1)
        assert len(caplog.records) == 1
        assert "test_a_stall_is_measured" in caplog.text
        await turns()
        watch.look(now + LOG_AFTER_S + 2)  # asks again, and gets no answer again
        watch.look(now + LOG_AFTER_S + 4)
        assert len(caplog.records) == 1, "not more often than every LOG_EVERY_S"
        watch.look(now + LOG_AFTER_S + LOG_EVERY_S)
        assert len(caplog.records) == 2
    await turns()
    assert counters.measures.loop_stall_us.count == 2


async def test_a_blocked_loop_is_seen_from_beside() -> None:
    counters = Counters()
    watch = StallWatch(counters)
    watch.start()
    deadline = monotonic() + 20
    while counters.loop_stall_us_max < 200_000:
        assert monotonic() < deadline
        busy_thread(0.3)  # blocks the loop
        await turns()
    watch.stop()
    assert counters.measures.loop_stall_us.total >= counters.loop_stall_us_max
