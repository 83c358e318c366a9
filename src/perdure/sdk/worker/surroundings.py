"""What frameworks do around tasks that are plain functions: in the thread of the task, before and after its code.

A framework that keeps connections for each thread closes those that have grown old there. Entered in order, for every attempt, also for those of
embedded workers. An error in one is an error of the attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

surroundings: list[Callable[[], AbstractContextManager[None]]] = []


def surrounded(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a task's function."""
    if not surroundings:
        return fn(*args, **kwargs)
    with ExitStack() as stack:
        for enter in surroundings:
            stack.enter_context(enter())
        return fn(*args, **kwargs)
