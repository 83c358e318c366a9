"""Rules of flow control that people set while everything runs: limits, rates and pauses of a namespace, a queue, a workflow or a task.

Laws:

1. A change is durable before it is answered, and every engine acts on it within a second, at once where notifications arrive.
2. Tasks that were waiting already are held to a new rule as well: they get their lines in the transaction that makes it.
3. Limits and pauses are set apart: taking back the one leaves the other.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec

from perdure.core.errors import InvalidInput, NotFound
from perdure.core.limits import CONCURRENCY_MAX, RATE_COUNT_MAX
from perdure.core.names import checked_name
from perdure.core.suggestions import did_you_mean

SCOPES: Final = ("namespace", "queue", "workflow", "task")
NAMESPACE: Final = "namespace"
PAUSABLE: Final = ("queue", "workflow")
REASON_CHARS_MAX: Final = 1_000


class RateRule(msgspec.Struct, frozen=True):
    count: float
    per_us: int
    burst: float | None = None


class RuleView(msgspec.Struct, frozen=True, kw_only=True):
    """A rule as people see it."""

    scope: str
    name: str
    """Empty for the namespace itself."""
    concurrency: int | None
    rate: RateRule | None
    paused_us: int | None
    paused_by: str | None
    pause_reason: str | None
    updated_us: int
    updated_by: str


class RuleStore(Protocol):
    async def set(
        self, ns: int, scope: str, name: str, concurrency: int | None, rate: RateRule | None, by: str
    ) -> None: ...
    async def clear(self, ns: int, scope: str, name: str, by: str) -> bool: ...
    async def pause(self, ns: int, scope: str, name: str, reason: str | None, by: str) -> None: ...
    async def unpause(self, ns: int, scope: str, name: str, by: str) -> bool: ...
    async def page(self, ns: int, after: tuple[str, str], limit: int) -> list[RuleView]: ...
    async def get(self, ns: int, scope: str, name: str) -> RuleView | None: ...


class Rulebook:
    """`changed`: engines are to look."""

    def __init__(self, store: RuleStore, changed: Callable[[], Awaitable[None]]) -> None:
        self._store, self._changed = store, changed

    async def set(
        self, ns: int, scope: str, name: str, concurrency: int | None, rate: RateRule | None, by: str
    ) -> RuleView:
        """All limits of a scope at once: what is not given is no limit."""
        name = checked_scope(scope, name)
        if concurrency is None and rate is None:
            raise InvalidInput("a rule says how many at a time, how many per time, or both; to take it back, clear it")
        if concurrency is not None and not 1 <= concurrency <= CONCURRENCY_MAX:
            raise InvalidInput(
                f"concurrency is {concurrency}; it must lie between 1 and CONCURRENCY_MAX={CONCURRENCY_MAX}. To let nothing begin, pause it"
            )
        if rate is not None:
            _check_rate(rate)
        await self._store.set(ns, scope, name, concurrency, rate, by)
        await self._changed()
        return await self._known(ns, scope, name)

    async def clear(self, ns: int, scope: str, name: str, by: str) -> bool:
        """Take limits back. False: there were none."""
        done = await self._store.clear(ns, scope, checked_scope(scope, name), by)
        if done:
            await self._changed()
        return done

    async def pause(self, ns: int, scope: str, name: str, reason: str, by: str) -> RuleView:
        """Nothing of it begins until it is unpaused; what runs goes on."""
        name = checked_scope(scope, name)
        if len(reason) > REASON_CHARS_MAX:
            raise InvalidInput(f"the reason has more than REASON_CHARS_MAX={REASON_CHARS_MAX} characters")
        await self._store.pause(ns, scope, name, reason or None, by)
        await self._changed()
        return await self._known(ns, scope, name)

    async def unpause(self, ns: int, scope: str, name: str, by: str) -> bool:
        """False: it was not paused."""
        done = await self._store.unpause(ns, scope, checked_scope(scope, name), by)
        if done:
            await self._changed()
        return done

    async def page(self, ns: int, after: tuple[str, str], limit: int) -> list[RuleView]:
        return await self._store.page(ns, after, limit)

    async def _known(self, ns: int, scope: str, name: str) -> RuleView:
        found = await self._store.get(ns, scope, name)
        if found is None:
            raise NotFound(f"the rule of {shown(scope, name)} was taken back this very moment")
        return found


def checked_scope(scope: str, name: str) -> str:
    """The name as it is stored; empty for the namespace."""
    if scope not in SCOPES:
        raise InvalidInput(
            f"{scope[:50]!r} is nothing that a rule can be about: {', '.join(SCOPES)}. {did_you_mean(scope, SCOPES)}".strip()
        )
    if scope == NAMESPACE:
        if name not in ("", "-"):
            raise InvalidInput(f"a rule of the namespace has no name; write namespace/- and not {name[:50]!r}")
        return ""
    return checked_name(scope, name)


def shown(scope: str, name: str) -> str:
    return f"{scope}/{name}" if name else scope


def _check_rate(rate: RateRule) -> None:
    if not math.isfinite(rate.count) or not 0 < rate.count <= RATE_COUNT_MAX:
        raise InvalidInput(
            f"the rate is {rate.count:g}; it must lie between 0 and RATE_COUNT_MAX={RATE_COUNT_MAX}. To let nothing begin, pause it"
        )
    if rate.per_us <= 0:
        raise InvalidInput('the rate needs the time that it is for, such as "1s" or "1m"')
    if rate.burst is not None and not 1 <= rate.burst <= RATE_COUNT_MAX:
        raise InvalidInput(f"burst is {rate.burst:g}; at least 1 must be able to begin at once")
