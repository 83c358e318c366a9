"""Flow-control rules that operators set at run time: limits, rates and pauses of a namespace, a queue, a workflow or a task."""

from __future__ import annotations

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act


class RateRule(msgspec.Struct, frozen=True):
    count: float
    per_us: int
    burst: float | None = None


class LimitHolder(msgspec.Struct, frozen=True):
    """A run that holds slots of a limit, itself or through its tasks."""

    run_id: bytes
    workflow: str
    held: int


class LimitUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a limit, and how much waits for it."""

    key: str
    """`scope/name`, or the key that code gave it."""
    limit: int | None = None
    """None: it is a rate, or nothing that waits says how many it allows."""
    held: int = 0
    waiting: int = 0
    """Tasks and runs, counted up to 10,000."""
    holders: list[LimitHolder] = []
    """Those that hold most first, at most 20."""


class ListLimitUse(msgspec.Struct, frozen=True):
    pass


class LimitUsagePage(msgspec.Struct, frozen=True):
    items: list[LimitUsage]


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
    use: LimitUsage | None = None


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
USE: Act[ListLimitUse, LimitUsagePage] = Act("rule.use", ListLimitUse, LimitUsagePage, Permission.READ)
SET: Act[SetRule, RuleView] = Act("rule.set", SetRule, RuleView, Permission.OPERATE, ("rule.set",), True)
CLEAR: Act[RuleRef, None] = Act("rule.clear", RuleRef, None, Permission.OPERATE, ("rule.clear",))
PAUSE: Act[PauseScope, RuleView] = Act(
    "rule.pause", PauseScope, RuleView, Permission.OPERATE, ("queue.pause", "workflow.pause"), True
)
RESUME: Act[RuleRef, None] = Act("rule.resume", RuleRef, None, Permission.OPERATE, ("queue.resume", "workflow.resume"))

ACTS = (LIST, USE, SET, CLEAR, PAUSE, RESUME)
