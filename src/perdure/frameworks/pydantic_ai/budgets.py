"""Budgets: what the model calls of one key, such as a customer, may cost within a window of time, across all runs.

Theory. Each key has a ledger for each window: a run of the workflow `perdure.budget`, which adds up charges and sleeps until its window
is over. What a call costs is known when its response is recorded, so it is charged then, by a task with an id that the run draws from its
seed. A crash repeats the task with the same id, and a ledger counts an id once. So a recorded call is charged exactly once.

Laws:

1. A call begins only if less than the limit is spent in its window. Calls that are under way are not counted: with n of them at a time,
   a key may exceed its limit by the cost of n calls.
2. A call that fails, and a run that is terminated between a response and its charge, are not charged.
3. A ledger holds LEDGER_CHARGES charges, more or less: its history is bounded like that of any run.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelResponse
from pydantic_ai.tools import RunContext

from perdure.core.durations import Duration, datetime_of, to_us, us_of
from perdure.core.errors import InvalidInput, RunFinished
from perdure.core.limits import HISTORY_EVENTS_MAX
from perdure.core.names import checked_name
from perdure.sdk import wf
from perdure.sdk.client.handles import Handle
from perdure.sdk.definitions import DEFAULT_QUEUE, task, workflow
from perdure.sdk.messages import State
from perdure.sdk.options import Retry
from perdure.sdk.updates import Update

LEDGER_CHARGES: Final = HISTORY_EVENTS_MAX // 3
"""Charges of one key within one window; each takes three events of the ledger's history."""
LATE: Final = timedelta(hours=1)
"""A ledger lives this much longer than its window, for charges that an outage holds up. Later ones are dropped: their window is over."""
_PERSISTENT: Final = Retry(1_000, delay="200ms", max_delay="30s")

_spent = State("spent", 0.0)
_charge = Update("perdure.budget.charge", float, float)


class BudgetSpent(UsageLimitExceeded):
    """Raised in the workflow by a model call whose key has spent its budget, if the budget says `when_spent="fail"`."""


@workflow(name="perdure.budget")
async def ledger(budget: str, key: str, ends: datetime) -> float:
    """What one key has spent in one window."""

    def add(cost: float) -> float:
        _spent.set(_spent.get() + cost)
        return _spent.get()

    _charge.handle(add)
    await wf.sleep(ends + LATE)
    return _spent.get()


async def _ledger(budget: str, key: str, ends: datetime) -> Handle[float]:
    name = f"budget {budget} {key} {ends.isoformat()}"
    return await ledger.options(key=name, on_conflict="attach").start(budget, key, ends)


@task(name="perdure.budget.spent", retry=_PERSISTENT)
async def read_spent(budget: str, key: str, ends: datetime) -> float:
    """What the key has spent in the window that ends then."""
    return await _spent.read((await _ledger(budget, key, ends)).id)


@task(name="perdure.budget.charge", retry=_PERSISTENT)
async def add_charge(budget: str, key: str, ends: datetime, cost: float, id: str) -> None:
    """Charge the key once for this id."""
    try:
        await _charge.ask((await _ledger(budget, key, ends)).id, cost, key=id)
    except RunFinished:
        pass  # the window has been over for LATE


def total_tokens(response: ModelResponse) -> float:
    return response.usage.total_tokens


class Budget:
    """What the model calls of one key may cost within a window, across all runs.

        Budget("tokens", 1_000_000, per="1d", by=lambda ctx: ctx.deps.customer)

    Args:
        name: of the budget. Agents with budgets of one name share them.
        limit: what a key may spend in a window.
        per: the length of a window. Windows begin at multiples of it since 1970, in UTC.
        by: the key of a call. It runs in the workflow.
        when_spent: `"wait"` until the next window, or `"fail"` with BudgetSpent.
        cost: of a response; its tokens unless given. It runs in the workflow.
        queue: of the tasks that read and charge the budget.
    """

    def __init__(
        self,
        name: str,
        limit: float,
        *,
        per: Duration,
        by: Callable[[RunContext[Any]], str],
        when_spent: Literal["wait", "fail"] = "wait",
        cost: Callable[[ModelResponse], float] = total_tokens,
        queue: str = DEFAULT_QUEUE,
    ) -> None:
        self.name, self.limit, self._per_us = checked_name("budget", name), limit, to_us(per)
        if self._per_us <= 0 or limit <= 0:
            raise InvalidInput(f"Budget({name!r}, {limit!r}, per={per!r}): give a limit and a time above zero")
        if when_spent not in ("wait", "fail"):
            raise InvalidInput(f'Budget({name!r}, when_spent={when_spent!r}): say "wait" or "fail"')
        self._by, self._fails, self._cost = by, when_spent == "fail", cost
        self._read, self._add = read_spent.options(queue=queue), add_charge.options(queue=queue)

    def key_of(self, ctx: RunContext[Any]) -> str:
        return checked_name("budget key", str(self._by(ctx)))

    async def admit(self, key: str) -> None:
        """Wait until the key may spend; raises BudgetSpent if the budget does not wait."""
        while True:
            ends = self._window_end()
            spent = await self._read(self.name, key, ends)
            if spent < self.limit:
                return
            if self._fails:
                raise BudgetSpent(
                    f"{key!r} has spent {spent:g} of {self.limit:g} of the budget {self.name!r}; the next window begins at {ends.isoformat()}"
                )
            await wf.sleep(ends)

    async def charge(self, key: str, response: ModelResponse) -> None:
        await self._add(self.name, key, self._window_end(), float(self._cost(response)), str(wf.uuid()))

    async def spent(self, key: str, at: datetime | None = None) -> float:
        """What a key has spent in the current window, or in the one of that moment. For code outside of workflows."""
        return await read_spent(self.name, key, self._end_after(us_of(at or datetime.now().astimezone())))

    def _window_end(self) -> datetime:
        return self._end_after(us_of(wf.now()))

    def _end_after(self, us: int) -> datetime:
        return datetime_of((us // self._per_us + 1) * self._per_us)
