"""`limit:`, `rate:`, `priority:`, `fair:` and `weight:`, at a task or at the top of a flow for its runs. core/flow_control/options.py has what they become.

Expressions see `input`: at a task the arguments of its call, at the top the input of the run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from perdure.core.errors import InvalidInput
from perdure.core.flow_control.groups import WEIGHT_MAX, WEIGHT_MIN
from perdure.core.flow_control.options import (
    POLICIES,
    PRIORITY_MAX,
    PRIORITY_MIN,
    FlowControlSpec,
    LimitOption,
    RateOption,
)
from perdure.core.limits import CONCURRENCY_MAX, LIMITS_PER_TASK_MAX, RATE_COUNT_MAX, RATES_PER_TASK_MAX
from perdure.flows.compile.reading import Reader
from perdure.flows.flow_control import canonical, number_or_expression
from perdure.flows.problems import Path

CONTROL_KEYS: Final = ("limit", "rate", "priority", "fair", "weight")
LIMIT_KEYS: Final = ("max", "by", "key", "policy")
RATE_KEYS: Final = ("count", "per", "by", "key", "units", "burst")
FAIR_KEYS: Final = ("by", "weight")


def read_control(
    r: Reader, fields: Mapping[str, Any], path: Path, *, runs: bool = False, schema: Mapping[str, Any] | None = None
) -> FlowControlSpec | None:
    """`runs`: it is about runs of the flow, whose input looks like `schema`. None where nothing is said."""
    if not any(fields.get(key) is not None for key in CONTROL_KEYS):
        return None
    names = _names(schema) if runs and r.typed else None
    limits = [_limit(r, item, at, runs, names) for item, at in _several(r, fields, path, "limit", LIMITS_PER_TASK_MAX)]
    rates = [_rate(r, item, at, names) for item, at in _several(r, fields, path, "rate", RATES_PER_TASK_MAX)]
    fair, weight = _fair(r, fields, path, names)
    priority = None
    if fields.get("priority") is not None:
        at = (*path, "priority")
        priority = r.integer(fields["priority"], at, "priority (higher goes first)", PRIORITY_MIN, PRIORITY_MAX)
    made = FlowControlSpec(
        limits=tuple(x for x in limits if x is not None),
        rates=tuple(x for x in rates if x is not None),
        priority=priority or 0,
        fair=fair,
        weight=weight,
    )
    return made if made != FlowControlSpec() else None


def _names(schema: Mapping[str, Any] | None) -> Collection[str] | None:
    """What the input has, if nothing else can be in it."""
    if schema is None or schema.get("additionalProperties") is not False:
        return None
    properties: Any = schema.get("properties")
    return list(cast(dict[str, Any], properties)) if isinstance(properties, dict) else None


def _several(r: Reader, fields: Mapping[str, Any], path: Path, key: str, most: int) -> list[tuple[Any, Path]]:
    value, at = fields.get(key), (*path, key)
    if value is None:
        return []
    if not isinstance(value, list):
        return [(value, at)]
    items: list[Any] = value
    if len(items) > most:
        r.error(at, f"{key} has {len(items)} entries; {most} is the most")
        return []
    return [(item, (*at, i)) for i, item in enumerate(items)]


def _limit(r: Reader, value: Any, path: Path, runs: bool, names: Collection[str] | None) -> LimitOption | None:
    if isinstance(value, int) and not isinstance(value, bool):
        value, where = {"max": value}, path
    else:
        where = (*path, "max")
    fields = _mapping(r, value, path, "limit", "a number of how many at a time", LIMIT_KEYS)
    if fields is None:
        return None
    most = r.integer(fields.get("max"), where if "max" in fields else path, "max of a limit", 1, CONCURRENCY_MAX)
    policy = "queue"
    if fields.get("policy") is not None:
        policy = r.word(fields["policy"], (*path, "policy"), "policy", POLICIES) or "queue"
        if policy != "queue" and not runs:
            r.error(
                (*path, "policy"),
                f"the policy {policy} is for runs; a task that finds its limit reached waits",
                "leave it out, or put the limit at the top of the flow",
                key=True,
            )
    by = _expression(r, fields, path, "by", names)
    return None if most is None else LimitOption(max=most, by=by, key=_key(r, fields, path), policy=policy)


def _rate(r: Reader, value: Any, path: Path, names: Collection[str] | None) -> RateOption | None:
    fields = _mapping(r, value, path, "rate", "a mapping such as {count: 100, per: 1s}", RATE_KEYS)
    if fields is None:
        return None
    count = _positive(r, fields.get("count"), (*path, "count") if "count" in fields else path, "count of a rate", 0)
    per_us = r.duration(fields["per"], (*path, "per"), "per") if fields.get("per") is not None else 1_000_000
    if per_us == 0:
        r.error((*path, "per"), "per is no time at all", 'write what the count is for, such as "1s" or "1m"')
    burst = None
    if fields.get("burst") is not None:
        burst = _positive(r, fields["burst"], (*path, "burst"), "burst", 1)
    units = _number(r, fields, path, "units", names, 0, RATE_COUNT_MAX)
    by = _expression(r, fields, path, "by", names)
    if count is None or not per_us:
        return None
    return RateOption(count=count, per_us=per_us, by=by, key=_key(r, fields, path), units=units, burst=burst or 0.0)


def _fair(r: Reader, fields: Mapping[str, Any], path: Path, names: Collection[str] | None) -> tuple[str, str]:
    value: Any = fields.get("fair")
    if value is None:
        if fields.get("weight") is not None:
            r.error((*path, "weight"), "weight is that of a value of fair, which is not here", "add fair:", key=True)
        return "", "1"
    if not isinstance(value, dict):
        by = _expression(r, fields, path, "fair", names)
        return by, _number(r, fields, path, "weight", names, WEIGHT_MIN, WEIGHT_MAX)
    at = (*path, "fair")
    inner = cast(dict[str, Any], value)
    r.keys(inner, at, "fair", FAIR_KEYS)
    if inner.get("by") is None:
        r.error(at, "fair does not say what takes turns", "add by: with an argument, such as by: customer")
    if fields.get("weight") is not None:
        r.error((*path, "weight"), "weight is said beside fair, which has its own", "keep one of them", key=True)
    by = _expression(r, inner, at, "by", names)
    return by, _number(r, inner, at, "weight", names, WEIGHT_MIN, WEIGHT_MAX)


def _mapping(r: Reader, value: Any, path: Path, what: str, else_: str, known: Collection[str]) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        r.wanted(path, what, f"{else_}, or a mapping of {', '.join(known)}" if what == "limit" else else_, value)
        return None
    fields = cast(dict[str, Any], value)
    r.keys(fields, path, what, known)
    return fields


def _key(r: Reader, fields: Mapping[str, Any], path: Path) -> str:
    return r.name_of(fields["key"], (*path, "key"), "key") or "" if fields.get("key") is not None else ""


def _expression(r: Reader, fields: Mapping[str, Any], path: Path, key: str, names: Collection[str] | None) -> str:
    value: Any = fields.get(key)
    if value is None:
        return ""
    text = r.text(value, (*path, key), key)
    if text is None:
        return ""
    try:
        return canonical(text, key, names)
    except InvalidInput as e:
        r.error((*path, key), str(e))
        return ""


def _number(
    r: Reader, fields: Mapping[str, Any], path: Path, key: str, names: Collection[str] | None, least: float, most: float
) -> str:
    value: Any = fields.get(key)
    if value is None:
        return "1"
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        r.wanted((*path, key), key, "a number, or an expression over input", value)
        return "1"
    try:
        return number_or_expression(value, key, names, least, most)
    except InvalidInput as e:
        r.error((*path, key), str(e))
        return "1"


def _positive(r: Reader, value: Any, path: Path, what: str, least: float) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= RATE_COUNT_MAX and value:
        return float(value)
    r.wanted(path, what, f"a number from {least:g} to {RATE_COUNT_MAX}" if least else "a number above 0", value)
    return None
