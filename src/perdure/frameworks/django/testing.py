"""For tests of an application with `PERDURE = {"START": "record"}`: no run is started, and `started()` says which would be.

Django's TestCase runs each test in a transaction that it rolls back, so what waits for a commit never happens there. What was recorded waits as a
callback of `transaction.on_commit`: a rollback to a savepoint takes it back, and the end of the test as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from django.db import connections, transaction

_committed: list[RecordedStart] = []


class RecordedStart(msgspec.Struct, frozen=True, kw_only=True):
    """A start, a signal or an event that was asked for."""

    name: str
    """Of the workflow, the signal or the event."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: str

    def __call__(self) -> None:
        """The commit."""
        _committed.append(self)


def record(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: str, database: str) -> None:
    transaction.on_commit(RecordedStart(name=name, args=args, kwargs=kwargs, key=key), using=database)


def started(name: str | None = None) -> list[RecordedStart]:
    """What was asked for, in its order: what has been committed, and what open transactions will commit. `name`: of this workflow only."""
    waiting = [
        callback
        for connection in connections.all(initialized_only=True)
        for _, callback, *_ in connection.run_on_commit
        if isinstance(callback, RecordedStart)
    ]
    return [one for one in (*_committed, *waiting) if name is None or one.name == name]


def forget_started() -> None:
    """Forget what has been committed: for tests that commit, such as those of TransactionTestCase."""
    _committed.clear()
