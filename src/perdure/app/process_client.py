"""A blocking client of a process that may be forked, as servers of web applications do.

Laws:

1. It is opened at its first use, never at import: servers import the application and fork afterwards, and neither connections nor threads survive a
   fork. A process that is forked while it is open opens one of its own.
2. A process has one, which all of its threads use. It is closed when the process ends.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from perdure.app.sync import OpenedHere

C = TypeVar("C", bound=OpenedHere)


class ProcessClient(Generic[C]):
    """Opened by its first use, closed when the process ends."""

    def __init__(self, opener: Callable[[], C]) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self._opened: C | None = None
        _all.add(self)

    def get(self) -> C:
        """Raises what opening it raises."""
        if (opened := self._opened) is not None:
            return opened
        with self._lock:
            if self._opened is None:
                self._opened = self._opener().__enter__()
                atexit.register(self.close)
            return self._opened

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    def close(self) -> None:
        """The next use opens another one."""
        with self._lock:
            opened, self._opened = self._opened, None
        atexit.unregister(self.close)
        if opened is not None:
            opened.__exit__(None, None, None)

    def forget(self) -> None:
        """In a process that was forked: the thread and the connections are those of its parent, and the lock may be taken for good."""
        opened, self._opened, self._lock = self._opened, None, threading.Lock()
        if opened is not None:
            opened._client._backend.close()  # it is not found any more; nothing is sent
            _of_parents.append(opened)


_all: WeakSet[ProcessClient[Any]] = WeakSet()
_of_parents: list[Any] = []
"""Kept for good: collected, they would close what they share with the parent, such as the selector of an event loop."""


def _forget_all() -> None:
    for one in list(_all):
        one.forget()


os.register_at_fork(after_in_child=_forget_all)
