"""Awaiting a user's coroutine inside a runner, which has to know when the coroutine first gives up control."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any


class Relay:
    """Await a coroutine, and call `suspended` when it first gives up control."""

    __slots__ = ("coro", "suspended")

    def __init__(self, coro: Any, suspended: Callable[[], None]) -> None:
        self.coro, self.suspended = coro, suspended

    def __await__(self) -> Generator[Any, Any, Any]:
        coro = self.coro
        try:
            waited = coro.send(None)
        except StopIteration as e:
            return e.value
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
            try:
                waited = step(argument)
            except StopIteration as e:
                return e.value
