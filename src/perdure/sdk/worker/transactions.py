"""Transactional tasks: the effect of a task on tables in Perdure's own database, and the record of its result, in one transaction.

    @task(transactional=True)
    async def transfer(source: int, target: int, cents: int) -> int:
        connection = attempt().connection
        await connection.execute("update account set cents = cents - $2 where id = $1", source, cents)
        return await connection.fetchval("update account set cents = cents + $2 where id = $1 returning cents", target, cents)

    begin --> is there an effect of this task?  yes -> its recorded result
                                                no  -> the task's code --> result --> commit

Laws:

1. The row of the effect is inserted before the code runs, so two attempts of one task wait for one another and never run side by side.
2. Code that raises, a worker that dies and a commit that fails leave nothing: neither effect nor row.
3. An attempt that finds the row returns the result in it and does not run the code. So the effect happens once, no matter how often the task is
   tried and which worker has lost the contact to its engine.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from functools import cache
from typing import Any, Protocol

from perdure.core.errors import PerdureError
from perdure.sdk.worker.attempts import attempt, connection


class TaskEffect(Protocol):
    """One transaction of a task, which is open."""

    connection: Any
    recorded: bytes | None
    """The result of an attempt before; None: the code has to run."""
    result: bytes
    """What is recorded with the commit."""


class TaskTransactions(Protocol):
    """Transactions of tasks in the database of Perdure. Leaving one commits it, unless an exception leaves it."""

    def begin(self, run_id: str, seq: int) -> AbstractAsyncContextManager[TaskEffect]: ...
    def begin_now(self, run_id: str, seq: int) -> AbstractContextManager[TaskEffect]:
        """Blocking, in the thread of a plain function."""
        ...


transactions: ContextVar[TaskTransactions] = ContextVar("perdure_task_transactions")
"""Set in the context in which a worker runs tasks, where the worker has the database."""


class TransactionalTask:
    """A task as a worker executes it: in a transaction, whose commit records its result."""

    def __init__(self, task: Any) -> None:
        self.name, self.is_async, self.signature = task.name, task.is_async, task.signature
        self.executor = self.executor_options = None
        self.process = False
        self._fn = task.fn
        self.fn = self._on_the_loop if task.is_async else self._in_a_thread

    async def _on_the_loop(self, *args: Any, **kwargs: Any) -> Any:
        me = attempt()
        async with _transactions().begin(me.run_id, me.seq) as effect:
            if effect.recorded is not None:
                return self.signature.decode_result(effect.recorded)
            token = connection.set(effect.connection)
            try:
                result = await self._fn(*args, **kwargs)
            finally:
                connection.reset(token)
            effect.result = self.signature.encode_result(result)
        return result

    def _in_a_thread(self, *args: Any, **kwargs: Any) -> Any:
        me = attempt()
        with _transactions().begin_now(me.run_id, me.seq) as effect:
            if effect.recorded is not None:
                return self.signature.decode_result(effect.recorded)
            token = connection.set(effect.connection)
            try:
                result = self._fn(*args, **kwargs)
            finally:
                connection.reset(token)
            effect.result = self.signature.encode_result(result)
        return result


@cache
def in_transaction(task: Any) -> TransactionalTask:
    return TransactionalTask(task)


def _transactions() -> TaskTransactions:
    found = transactions.get(None)
    if found is None:
        raise PerdureError(
            "this worker does not have the database, which a transactional task needs: give `perdure worker` its DSN with PERDURE_DSN, or run the "
            "task in a program with Perdure(dsn)"
        )
    return found
