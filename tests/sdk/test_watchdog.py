"""A blocked event loop is noticed from outside: everybody's attempts stay alive and the culprit's stack is shown."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.core.limits import BLOCKED_STACK_CHARS_MAX
from perdure.core.retry import TaskOptions
from perdure.core.work import Assignment, Beat, Report
from perdure.sdk.worker.attempts import Attempt
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.execution import TaskExecutor
from perdure.sdk.worker.watchdog import BLOCKED_MAX_S, Watchdog, stack_of
from perdure.sdk.workflow import guards
from tests.fakes.upstreams import upstream_to
from tests.fakes.waiting import until


class Loop:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.closed = False

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        self.calls.append(call)

    def answer(self) -> None:
        while self.calls:
            self.calls.pop()()


class Host:
    sink = None

    def beat(self, attempt: Attempt, details: bytes) -> None: ...


def attempt(seq: int, heartbeat_us: int = 0, runner: Any = "a thread") -> Attempt:
    return Attempt(
        Assignment(bytes(16), seq, 1, 1, f"t{seq}", b"", TaskOptions(heartbeat_us=heartbeat_us)), Host(), runner
    )


class World:
    def __init__(self, *attempts: Attempt) -> None:
        self.loop, self.attempts = Loop(), list(attempts)
        self.sent: list[Beat] = []
        self.answers = 0
        self.dog = Watchdog(self.loop, lambda: self.attempts, self.sent.extend, self._answered)  # type: ignore[arg-type]

    def _answered(self) -> None:
        self.answers += 1

    def take(self) -> list[tuple[int, bool]]:
        sent, self.sent[:] = [(b.seq, bool(b.blocked)) for b in self.sent], []
        return sent


def test_a_loop_that_answers_is_left_alone() -> None:
    world = World(attempt(0, 500_000))
    for i in range(20):
        world.dog.look(i * 0.1)
        world.loop.answer()
    assert world.answers == 20
    assert world.take() == []


async def test_while_the_loop_is_silent_everybody_beats_and_the_culprit_is_marked_and_unmarked() -> None:
    me = asyncio.current_task()
    world = World(attempt(0, runner=me), attempt(1))
    world.dog.look(0.0)
    world.dog.look(0.9)
    assert world.take() == []
    world.dog.look(1.1)
    assert world.take() == [(0, True), (1, False)]
    world.dog.look(1.2)
    assert world.take() == [], "not at every look"
    world.dog.look(2.2)
    assert world.take() == [(0, True), (1, False)], "again while it lasts"
    world.loop.answer()
    world.dog.look(2.3)
    assert world.take() == [(0, False)]
    world.loop.answer()
    world.dog.look(2.4)
    assert world.take() == []


def test_short_heartbeats_are_kept_up_before_the_loop_counts_as_blocked() -> None:
    world = World(attempt(0, 300_000))
    assert world.dog.step_s() <= 0.05
    world.dog.look(0.0)
    world.dog.look(0.05)
    assert world.take() == []
    world.dog.look(0.11)
    assert world.take() == [(0, False)]
    world.dog.look(0.22)
    assert world.take() == [(0, False)]


def test_nobody_is_kept_alive_for_ever() -> None:
    world = World(attempt(0))
    world.dog.look(0.0)
    world.dog.look(BLOCKED_MAX_S - 1)
    assert len(world.take()) == 1
    world.dog.look(BLOCKED_MAX_S + 10)
    assert world.take() == []


def test_a_sender_that_fails_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    world = World(attempt(0))

    def fails(beats: list[Beat]) -> None:
        raise ConnectionError("planted")

    world.dog._beats = fails
    world.dog.look(0.0)
    world.dog.look(1.5)
    world.dog.look(3.5)
    assert sum("could not be sent" in r.message for r in caplog.records) == 2


def test_the_watch_ends_with_the_loop() -> None:
    world = World(attempt(0))
    world.loop.closed = True
    world.dog.start()
    thread = world.dog._thread
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()


def test_a_deep_stack_is_bounded_and_keeps_its_innermost_frames() -> None:
    inside, leave = threading.Event(), threading.Event()

    def dive(depth: int) -> None:
        if depth:
            dive_again(depth - 1)
        else:
            inside.set()
            leave.wait(10)

    def dive_again(depth: int) -> None:
        dive(depth)

    thread = threading.Thread(target=dive, args=(200,))
    thread.start()
    inside.wait(10)
    text = stack_of(thread.ident or 0)
    leave.set()
    thread.join()
    assert len(text) <= BLOCKED_STACK_CHARS_MAX
    assert text.startswith("…")
    assert "leave.wait(10)" in text


class Plain:
    def decode_call(self, data: bytes) -> tuple[tuple[int], dict[str, Any]]:
        return (int(data),), {}

    def encode_result(self, value: int) -> bytes:
        return str(value).encode()


async def test_on_a_real_loop_the_guilty_task_is_found_and_its_stack_shows_its_own_line_only() -> None:
    guards.install()
    waiting = asyncio.Event()

    async def task(n: int) -> int:
        if n == 0:
            await waiting.wait()
        else:
            time.sleep(1.5)
            await until(lambda: any(b.seq == n and not b.blocked for b in urgent))
            waiting.set()
        return n

    definition = SimpleNamespace(fn=task, is_async=True, signature=Plain())
    reports: list[Report] = []
    urgent: list[Beat] = []
    upstream = upstream_to(reported=reports.extend, urgent_beats=urgent.extend)
    execution = TaskExecutor(lambda _: definition, upstream, Capacity(slots=5, threads=1), "ignore")
    execution.assign([Assignment(bytes(16), n, 1, 1, "task", b"%d" % n, TaskOptions()) for n in range(2)])
    await until(lambda: len(reports) == 2)
    await execution.close()
    stacks = [b.blocked for b in urgent if b.blocked]
    assert stacks and all("time.sleep(1.5)" in s and "perdure/sdk" not in s and "asyncio" not in s for s in stacks)
    assert {b.seq for b in urgent if b.blocked} == {1}
    assert {b.seq for b in urgent if not b.blocked} == {0, 1}, (
        "the neighbour lives, and the mark is taken off in the end"
    )
    assert urgent[-1] == Beat(bytes(16), 1, 1)


async def test_a_loop_that_stays_silent_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World(attempt(0, runner=asyncio.current_task()))
    world.dog.loop_thread = threading.get_ident()
    for second in range(0, 60, 5):
        world.dog.look(float(second))
    assert sum("event loop has been blocked" in r.message for r in caplog.records) == 1
