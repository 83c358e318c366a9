"""After the engine's own event loop was held, nobody is taken for silent before the heartbeats that wait were read."""

from __future__ import annotations

from typing import Any

from perdure.core.retry import TaskOptions
from perdure.core.work import Assignment, Beat
from perdure.engine.tasks.dispatch import LATE_TICKS_MAX
from perdure.engine.tasks.flight import Flight
from tests.fakes.engine_parts import EngineParts

S = 1_000_000
RUN = bytes(16)


class World:
    """One attempt that must beat twice a second, of a run that another engine owns."""

    def __init__(self) -> None:
        self.parts = EngineParts()
        self.parts.now = 1_000 * S
        self.dispatcher, self.attempts = self.parts.dispatcher, self.parts.attempts
        a = Assignment(RUN, 0, 1, 1, "t", b"", TaskOptions(heartbeat_us=S // 2))
        now = self.parts.now
        self.attempts.flights[RUN, 0] = Flight(a, None, "t", "default", 0, now, now, now, True)
        self.tick()

    @property
    def ended(self) -> list[Any]:
        return list(self.parts.queue.units())

    @property
    def flight(self) -> Flight:
        return self.attempts.flights[RUN, 0]

    def tick(self, after_us: int = 100_000) -> bool:
        """Whether the attempt is still in flight."""
        self.parts.now += after_us
        self.dispatcher.tick(0)
        return (RUN, 0) in self.attempts.flights

    def beat(self, details: bytes = b"", blocked: str = "") -> None:
        self.attempts.beats([Beat(RUN, 0, 1, details, blocked)])


def test_a_silent_attempt_is_ended_by_punctual_ticks() -> None:
    world = World()
    assert [world.tick() for _ in range(5)] == [True, True, True, True, False]
    assert len(world.ended) == 1


def test_the_first_tick_after_a_long_pause_spares_an_attempt_whose_beat_waits() -> None:
    world = World()
    assert world.tick(2 * S)
    world.beat()  # it was in the queue of the loop
    assert world.tick()
    assert world.tick()


def test_one_that_was_silent_all_along_is_ended_a_tick_later() -> None:
    world = World()
    assert world.tick(2 * S)
    assert not world.tick()


def test_an_engine_that_is_always_late_still_checks_now_and_then() -> None:
    world = World()
    lived = 0
    while world.tick(S):
        lived += 1
        assert lived <= LATE_TICKS_MAX
    assert lived > 1


def test_beats_keep_details_and_the_stack_and_say_that_something_is_new() -> None:
    world = World()
    world.flight.is_recorded = True
    world.beat()
    assert world.flight.is_recorded
    world.beat(b'{"done":1}')
    assert (world.flight.details, world.flight.is_recorded) == (b'{"done":1}', False)
    world.flight.is_recorded = True
    world.beat(blocked="in work()")
    assert (world.flight.details, world.flight.blocked, world.flight.is_recorded) == (b'{"done":1}', "in work()", False)
    world.flight.is_recorded = True
    world.beat(b'{"done":1}')
    assert (world.flight.details, world.flight.blocked, world.flight.is_recorded) == (b'{"done":1}', "", False)
    world.flight.is_recorded = True
    world.beat(b'{"done":1}')
    assert world.flight.is_recorded
    world.attempts.beats([Beat(RUN, 0, 2, b"of another attempt"), Beat(bytes([1] * 16), 0, 1, b"of nobody")])
    assert world.flight.details == b'{"done":1}'
