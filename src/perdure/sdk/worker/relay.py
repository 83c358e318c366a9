"""Awaiting a user's coroutine inside a runner, which has to know when the coroutine first gives up control, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import monotonic_ns, thread_time_ns  # bound here, before workflow guards wrap them
from typing import Any


class Relay:
    """Await a coroutine, and call `suspended` when it first gives up control.

    `cpu_ns` is the CPU time of its steps; None for one that has not given up control, which had the thread to itself all the time. The
    first step is measured by the clock that is cheap to read: most tasks consist of it, and reading the other one twice would be a
    measurable part of a short one.
    """

    __slots__ = ("coro", "cpu_ns", "suspended")

    def __init__(self, coro: Any, suspended: Callable[[], None]) -> None:
        self.coro, self.suspended = coro, suspended
        self.cpu_ns: int | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        coro = self.coro
        began_ns = monotonic_ns()
        try:
            waited = coro.send(None)
        except StopIteration as e:
            return e.value
        self.cpu_ns = monotonic_ns() - began_ns
        self.suspended()
        while True:
            try:
                sent = yield waited
            except GeneratorExit:
                coro.close()
                raise
            except BaseException as e:
                step, argument = coro.throw, e
            else:
                step, argument = coro.send, sent
            began_ns = thread_time_ns()
            try:
                waited = step(argument)
            except StopIteration as e:
                return e.value
            finally:
                self.cpu_ns += thread_time_ns() - began_ns
