"""Acts on flow-control rules that operators set at run time: limits, rates and pauses of a namespace, a queue, a workflow or a task.

Laws:

1. A change is durable before it is answered, and every engine acts on it within a second, at once where notifications arrive.
2. Tasks that were waiting already are held to a new rule as well: they get their groups in the transaction that makes it.
3. Limits and pauses are set apart: clearing the one leaves the other.
"""

from __future__ import annotations

import math
from typing import Final

from perdure.core.api import flow_control as acts
from perdure.core.api.flow_control import (
    LimitUsagePage,
    ListLimitUse,
    ListRules,
    PauseScope,
    RateRule,
    RulePage,
    RuleRef,
    RuleView,
    SetRule,
)
from perdure.core.errors import InvalidInput, NotFound
from perdure.core.limits import CONCURRENCY_MAX, RATE_COUNT_MAX
from perdure.core.names import checked_name
from perdure.core.suggestions import did_you_mean
from perdure.engine.api.api import NamespaceApi, handles, page_limit
from perdure.engine.api.starts import workflow_of

SCOPES: Final = ("namespace", "queue", "workflow", "task")
NAMESPACE: Final = "namespace"
UNNAMED: Final = "-"
"""In place of a name, where a rule is of the namespace itself."""
PAUSABLE: Final = ("queue", "workflow")
REASON_CHARS_MAX: Final = 1_000


@handles(acts.LIST)
async def list_rules(api: NamespaceApi, r: ListRules) -> RulePage:
    limit = page_limit(r.limit)
    found = await api.ports.rules.page(api.ns, r.after, limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    return RulePage(found[:limit], None if last is None else (last.scope, last.name))


@handles(acts.USE)
async def list_use(api: NamespaceApi, r: ListLimitUse) -> LimitUsagePage:
    """Limits and rates, set here or declared in code, that something holds or waits for."""
    return LimitUsagePage(await api.ports.rules.in_use(api.ns))


@handles(acts.SET)
async def set_rule(api: NamespaceApi, r: SetRule) -> RuleView:
    """Work that waits already is held to it as well; work that runs continues."""
    name = checked_scope(r.scope, r.name)
    if r.concurrency is None and r.rate is None:
        raise InvalidInput("a rule sets a concurrency, a rate, or both; to remove it, clear it")
    if r.concurrency is not None and not 1 <= r.concurrency <= CONCURRENCY_MAX:
        raise InvalidInput(
            f"concurrency is {r.concurrency}; it must lie between 1 and CONCURRENCY_MAX={CONCURRENCY_MAX}. To stop new work, pause it"
        )
    if r.rate is not None:
        _check_rate(r.rate)
    await api.ports.rules.set(api.ns, r.scope, name, r.concurrency, r.rate, api.by)
    rule = await _changed(api, r.scope, name)
    rate = rule.rate
    await api.record(
        "rule.set",
        f"{r.scope}/{name or UNNAMED}",
        concurrency=rule.concurrency,
        rate=rate.count if rate else None,
        per_s=rate.per_us / 1e6 if rate else None,
    )
    return rule


@handles(acts.CLEAR)
async def clear_rule(api: NamespaceApi, r: RuleRef) -> None:
    """Remove the limits. A pause stays: resume ends it."""
    name = checked_scope(r.scope, r.name)
    if not await api.ports.rules.clear(api.ns, r.scope, name, api.by):
        raise NotFound(f"no limit is set for {shown(r.scope, name)}; `perdure limit list` shows the existing ones")
    await api.engine.rules_changed()
    await api.record("rule.clear", f"{r.scope}/{name or UNNAMED}")


@handles(acts.PAUSE)
async def pause(api: NamespaceApi, r: PauseScope) -> RuleView:
    """No new task of a queue, or run of a workflow, begins until it is resumed; work that runs continues."""
    name = _pausable(r.scope, r.name)
    if len(r.reason) > REASON_CHARS_MAX:
        raise InvalidInput(f"the reason has more than REASON_CHARS_MAX={REASON_CHARS_MAX} characters")
    if r.scope == "workflow":
        await workflow_of(api, name)
    await api.ports.rules.pause(api.ns, r.scope, name, r.reason or None, api.by)
    rule = await _changed(api, r.scope, name)
    await api.record(f"{r.scope}.pause", name, reason=r.reason)
    return rule


@handles(acts.RESUME)
async def resume(api: NamespaceApi, r: RuleRef) -> None:
    name = _pausable(r.scope, r.name)
    if not await api.ports.rules.unpause(api.ns, r.scope, name, api.by):
        raise NotFound(f"the {r.scope} {name!r} is not paused")
    await api.engine.rules_changed()
    await api.record(f"{r.scope}.resume", name)


async def _changed(api: NamespaceApi, scope: str, name: str) -> RuleView:
    await api.engine.rules_changed()
    found = await api.ports.rules.get(api.ns, scope, name)
    if found is None:
        raise NotFound(f"the rule of {shown(scope, name)} was cleared at the same moment")
    return found


def checked_scope(scope: str, name: str) -> str:
    """The name as it is stored; empty for the namespace."""
    if scope not in SCOPES:
        raise InvalidInput(
            f"{scope[:50]!r} cannot have rules; these can: {', '.join(SCOPES)}. {did_you_mean(scope, SCOPES)}".strip()
        )
    if scope == NAMESPACE:
        if name not in ("", UNNAMED):
            raise InvalidInput(f"a rule of the namespace has no name; write namespace/- and not {name[:50]!r}")
        return ""
    return checked_name(scope, name)


def _pausable(scope: str, name: str) -> str:
    if scope not in PAUSABLE:
        raise InvalidInput(f"only a queue or a workflow can be paused, not {scope[:50]!r}")
    return checked_scope(scope, name)


def shown(scope: str, name: str) -> str:
    return f"{scope}/{name}" if name else scope


def _check_rate(rate: RateRule) -> None:
    if not math.isfinite(rate.count) or not 0 < rate.count <= RATE_COUNT_MAX:
        raise InvalidInput(
            f"the rate is {rate.count:g}; it must lie between 0 and RATE_COUNT_MAX={RATE_COUNT_MAX}. To stop new work, pause it"
        )
    if rate.per_us <= 0:
        raise InvalidInput('the rate needs a period, such as "1s" or "1m"')
    if rate.burst is not None and not 1 <= rate.burst <= RATE_COUNT_MAX:
        raise InvalidInput(f"burst is {rate.burst:g}; at least 1 must be able to begin at once")
