"""Flow-control rules that operators set at run time: limits, rates and pauses of a namespace, a queue, a workflow or a task."""

from __future__ import annotations

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act


class RateRule(msgspec.Struct, frozen=True):
    count: float
    per_us: int
    burst: float | None = None


class RuleView(msgspec.Struct, frozen=True, kw_only=True):
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


RulePosition = tuple[str, str]
"""(scope, name) of the last rule of the page before."""


class ListRules(msgspec.Struct, frozen=True):
    after: RulePosition = ("", "")
    limit: int = 50


class RulePage(msgspec.Struct, frozen=True):
    items: list[RuleView]
    next: RulePosition | None


class SetRule(msgspec.Struct, frozen=True):
    """All limits of a scope at once: what is not given is no limit."""

    scope: str
    name: str
    concurrency: int | None = None
    rate: RateRule | None = None


class RuleRef(msgspec.Struct, frozen=True):
    scope: str
    name: str


class PauseScope(msgspec.Struct, frozen=True):
    scope: str
    """`queue` or `workflow`."""
    name: str
    reason: str = ""


LIST: Act[ListRules, RulePage] = Act("rule.list", ListRules, RulePage, Permission.READ)
SET: Act[SetRule, RuleView] = Act("rule.set", SetRule, RuleView, Permission.OPERATE, ("rule.set",), True)
CLEAR: Act[RuleRef, None] = Act("rule.clear", RuleRef, None, Permission.OPERATE, ("rule.clear",))
PAUSE: Act[PauseScope, RuleView] = Act(
    "rule.pause", PauseScope, RuleView, Permission.OPERATE, ("queue.pause", "workflow.pause"), True
)
RESUME: Act[RuleRef, None] = Act("rule.resume", RuleRef, None, Permission.OPERATE, ("queue.resume", "workflow.resume"))

ACTS = (LIST, SET, CLEAR, PAUSE, RESUME)
