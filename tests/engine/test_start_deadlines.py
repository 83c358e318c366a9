"""Tasks that did not start in time are ended, and their runs have a message of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from perdure.engine.services.start_deadlines import StartDeadlines
from tests.fakes.engine_parts import RUN, EngineParts


class Waits:
    """Tasks that have to begin in time, as the database sees them."""

    def __init__(self, *upcoming: tuple[int, int | None]) -> None:
        self.upcoming_, self.gone = list(upcoming), [SimpleNamespace(run_id=RUN), SimpleNamespace(run_id=RUN)]

    async def upcoming(self) -> Any:
        clock_us, at_us = self.upcoming_.pop(0)
        return SimpleNamespace(clock_us=clock_us, at_us=at_us)

    async def expire(self, *_: Any) -> list[Any]:
        return self.gone


def deadlines_on(store: Waits) -> tuple[StartDeadlines, EngineParts]:
    made = EngineParts()
    return StartDeadlines(made.context, store), made  # type: ignore[arg-type]


async def test_a_moment_of_a_row_that_is_not_committed_yet_is_kept() -> None:
    deadlines, _ = deadlines_on(Waits((50, None), (150, None)))
    deadlines.wake_at(100)
    await deadlines.poll_once()
    assert deadlines.next_us == 100
    await deadlines.poll_once()
    assert deadlines.next_us is None
    deadlines.stop_timer()


async def test_the_run_of_an_expired_task_has_a_message_at_once() -> None:
    deadlines, made = deadlines_on(Waits((50, 40), (50, None)))
    posted = made.published("message_sent")
    await deadlines.poll_once()
    assert posted == [(RUN,)]
