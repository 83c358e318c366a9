"""Transactions that met another one: the database undid them, and they are written again.

A deadlock, a failed serialization or a plan that a migration has outdated says nothing about the request. Nothing of the transaction was
written, so the store repeats the call instead of handing the error to the client. A lock that was waited for in vain is not repeated: the
caller has waited long enough.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar

from asyncpg import exceptions as pg

from perdure.core.errors import Unavailable

CLASH: Final = (pg.TransactionRollbackError, pg.LockNotAvailableError, pg.InvalidCachedStatementError)
"""What the driver raises when a transaction was undone because of others."""
TRIES: Final = 5
PAUSE_S: Final = 0.02

C = TypeVar("C", bound=type)


class Clashed(Unavailable):
    """Nothing was written."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            f"the database undid this because of other transactions, nothing was written: {error}. Try again"
        )
        self.again = not isinstance(error, pg.LockNotAvailableError)


def retried(*but: str) -> Callable[[C], C]:
    """Repeat the public calls of a store that clash. `but`: calls that see to it themselves."""

    def decorate(cls: C) -> C:
        for name, call in list(vars(cls).items()):
            if iscoroutinefunction(call) and not name.startswith("_") and name not in but:
                setattr(cls, name, _retrying(call))
        return cls

    return decorate


def _retrying(call: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(call)
    async def repeated(*args: Any, **kwargs: Any) -> Any:
        for n in range(1, TRIES):
            try:
                return await call(*args, **kwargs)
            except Clashed as e:
                if not e.again:
                    raise
                await asyncio.sleep(PAUSE_S * n * random.uniform(0.5, 1.5))
        return await call(*args, **kwargs)

    return repeated
