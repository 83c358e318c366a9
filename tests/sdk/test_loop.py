"""The deterministic event loop by itself, with a stand-in for the run."""

from __future__ import annotations

import asyncio
import contextvars
import socket
from collections.abc import Callable
from typing import Any

import pytest

from perdure.core.errors import WorkflowRuleBroken
from perdure.sdk.workflow.loop import InlineExecutor, WorkflowLoop, WorkflowTask
from tests.fakes.waiting import turns


class Timers:
    """What a loop needs from a run."""

    def __init__(self) -> None:
        self.now_us = 1_000_000
        self.open: dict[int, tuple[int, Callable[[], None]]] = {}
        self.closed: list[int] = []
        self._next = 0

    def open_timer(self, fire_at_us: int, fired: Callable[[], None]) -> int:
        self._next += 1
        self.open[self._next] = (fire_at_us, fired)
        return self._next

    def close_timer(self, seq: int) -> None:
        self.open.pop(seq)
        self.closed.append(seq)

    def fire(self, seq: int) -> None:
        self.now_us, fired = self.open.pop(seq)
        fired()


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def loop(timers: Timers) -> WorkflowLoop:
    return WorkflowLoop(timers)


def test_callbacks_run_in_the_order_they_were_scheduled_including_those_scheduled_on_the_way(
    loop: WorkflowLoop,
) -> None:
    log: list[int] = []
    loop.call_soon(lambda: (log.append(1), loop.call_soon(log.append, 3)))
    loop.call_soon(log.append, 2)
    loop.run_until_idle()
    assert log == [1, 2, 3]


def test_a_callback_that_was_cancelled_does_not_run(loop: WorkflowLoop) -> None:
    log: list[int] = []
    handle = loop.call_soon(log.append, 1)
    loop.call_soon(log.append, 2)
    assert not handle.cancelled()
    handle.cancel()
    assert handle.cancelled()
    loop.run_until_idle()
    assert log == [2]


def test_a_callback_runs_in_the_context_it_was_given(loop: WorkflowLoop) -> None:
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="outside")
    context = contextvars.copy_context()
    context.run(var.set, "inside")
    seen: list[str] = []
    loop.call_soon(lambda: seen.append(var.get()), context=context)
    loop.call_soon(lambda: seen.append(var.get()))
    loop.run_until_idle()
    assert seen == ["inside", "outside"]


def test_time_is_the_time_of_the_run(loop: WorkflowLoop, timers: Timers) -> None:
    assert loop.time() == 1.0
    timers.now_us = 2_500_000
    assert loop.time() == 2.5


def test_a_timer_is_opened_at_its_moment_and_calls_back_when_it_fires(loop: WorkflowLoop, timers: Timers) -> None:
    log: list[str] = []
    handle = loop.call_later(2.5, log.append, "late")
    assert handle.when() == 3.5
    assert timers.open[1][0] == 3_500_000
    loop.run_until_idle()
    assert log == []
    timers.fire(1)
    loop.run_until_idle()
    assert log == ["late"]
    handle.cancel()
    assert timers.closed == [], "there is nothing left to cancel"


def test_a_cancelled_timer_is_closed_once(loop: WorkflowLoop, timers: Timers) -> None:
    handle = loop.call_at(9.0, print)
    handle.cancel()
    handle.cancel()
    assert handle.cancelled()
    assert timers.closed == [1]


def test_the_loop_is_the_running_one_only_while_it_runs(loop: WorkflowLoop) -> None:
    seen: list[Any] = []
    loop.call_soon(lambda: seen.append(asyncio.get_running_loop()))
    loop.run_until_idle()
    assert seen == [loop]
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


async def test_it_runs_inside_a_callback_of_another_loop_and_leaves_that_one_as_it_was(loop: WorkflowLoop) -> None:
    outer = asyncio.get_running_loop()
    seen: list[Any] = []

    def drive() -> None:
        loop.call_soon(lambda: seen.append(asyncio.get_running_loop()))
        loop.run_until_idle()
        seen.append(asyncio.get_running_loop())

    outer.call_soon(drive)
    await turns()
    assert seen == [loop, outer]


def test_an_error_in_a_callback_leaves_the_process_as_it_was(loop: WorkflowLoop) -> None:
    loop.call_soon(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loop.run_until_idle()
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_tasks_hash_in_the_order_they_were_made(loop: WorkflowLoop) -> None:
    async def nothing() -> None:
        pass

    made: list[Any] = []
    loop.call_soon(lambda: made.extend(asyncio.ensure_future(nothing()) for _ in range(50)))
    loop.run_until_idle()
    assert all(isinstance(t, WorkflowTask) for t in made)
    assert [hash(t) for t in made] == list(range(1, 51))
    assert list(set(made)) == made


def test_a_loop_that_was_thrown_away_runs_nothing_and_starts_nothing(loop: WorkflowLoop) -> None:
    log: list[str] = []

    async def waits() -> None:
        try:
            await loop.create_future()
        finally:
            log.append("unwound")
            asyncio.create_task(waits())  # noqa: RUF006
            log.append("never reached")

    loop.call_soon(lambda: asyncio.ensure_future(waits()))
    loop.run_until_idle()
    loop.call_soon(log.append, "dropped")
    loop.throw_away()
    loop.run_until_idle()
    assert log == ["unwound"]
    assert loop.is_closed()


def test_a_coroutine_that_will_not_go_is_given_up(loop: WorkflowLoop) -> None:
    async def stubborn() -> None:
        for _ in range(10_000):
            try:
                await loop.create_future()
            except GeneratorExit:
                continue
            finally:
                await loop.create_future()

    loop.call_soon(lambda: asyncio.ensure_future(stubborn()))
    loop.run_until_idle()
    loop.throw_away()


def test_a_task_that_only_a_cycle_refers_to_stays_alive(loop: WorkflowLoop) -> None:
    import gc

    log: list[str] = []

    async def waits_for_itself() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ended")

    loop.call_soon(lambda: asyncio.ensure_future(waits_for_itself()) and None)
    loop.run_until_idle()
    gc.collect()
    assert log == []
    loop.throw_away()
    assert log == ["ended"]


def test_an_exception_nobody_retrieves_is_kept_for_the_run(loop: WorkflowLoop) -> None:
    async def fails() -> None:
        raise ValueError("nobody looks")

    loop.call_soon(lambda: asyncio.ensure_future(fails()) and None)
    loop.run_until_idle()
    import gc

    gc.collect()
    assert isinstance(loop.unhandled, ValueError)


@pytest.mark.parametrize(
    "act",
    [
        lambda: asyncio.to_thread(print),
        lambda: asyncio.open_connection("localhost", 1),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
        lambda: asyncio.get_running_loop().run_in_executor(None, print),
        lambda: asyncio.get_running_loop().sock_recv(socket.socket(), 1),
    ],
    ids=["to_thread", "open_connection", "subprocess", "getaddrinfo", "run_in_executor", "sock_recv"],
)
def test_what_needs_the_outside_world_is_refused_with_the_way_out(
    loop: WorkflowLoop, act: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", lambda: None)

    async def use() -> None:
        await act()

    made: list[Any] = []
    loop.call_soon(lambda: made.append(asyncio.ensure_future(use())))
    loop.run_until_idle()
    error = made[0].exception()
    assert isinstance(error, WorkflowRuleBroken)
    assert "@task" in str(error)


def test_a_library_may_run_plain_functions_in_place_of_a_thread(loop: WorkflowLoop) -> None:
    def fails() -> None:
        raise ValueError("as in a thread")

    async def use() -> list[Any]:
        run = asyncio.get_running_loop().run_in_executor
        return [
            await run(InlineExecutor(), max, 1, 2),
            await asyncio.gather(run(InlineExecutor(), fails), return_exceptions=True),
        ]

    made: list[Any] = []
    loop.call_soon(lambda: made.append(asyncio.ensure_future(use())))
    loop.run_until_idle()
    largest, (error,) = made[0].result()
    assert largest == 2 and isinstance(error, ValueError)


def test_a_callback_that_comes_after_the_end_is_dropped(loop: WorkflowLoop) -> None:
    called: list[int] = []
    loop.throw_away()
    loop.call_soon(called.append, 1)
    loop.run_until_idle()
    assert called == []
