"""Lines: what waits together because flow control sees no difference in it.

    FlowControlSpec + input --resolve--> FlowControlGroup(id, needs)          rules of operators --FlowControlRules--> further needs, and pauses

Laws:

1. A group's id is a hash of all inputs of flow control, so equal members join the same group on every engine.
2. All members of a group have the same needs: a group moves or waits as a whole, and its wait reason is that of each member.
3. A rule counts under the same key as a limit in code of the same task, queue or workflow: both hold, the stricter one bites.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import msgspec

from perdure.core.expressions import Expr, ExprError, parse
from perdure.core.flow_control.options import FlowControlSpec, LimitOption, RateOption
from perdure.core.limits import NAME_CHARS_MAX
from perdure.core.payloads import MARK, without_stored

TASKS: Final = "task"
RUNS: Final = "run"
BURST_US: Final = 200_000
"""What a rate lets through at once if nothing else is said: as much as comes in this time, and one at least."""
WEIGHT_MIN: Final = 0.001
WEIGHT_MAX: Final = 1_000.0


class LimitNeed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    key: str
    max: int
    policy: str = "queue"


class RateNeed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    key: str
    count: float
    per_us: int
    burst: float
    units: float = 1.0


class Needs(msgspec.Struct, frozen=True, gc=False):
    limits: tuple[LimitNeed, ...] = ()
    rates: tuple[RateNeed, ...] = ()


class FlowControlGroup(msgspec.Struct, frozen=True, gc=False):
    id: bytes
    ns: int
    kind: str
    queue: str
    name: str
    """The task, or the workflow for a group of runs."""
    workflow: str
    fair: str
    weight: float
    priority: int
    needs: Needs

    def row(self) -> tuple[bytes, int, str, str, str, str, str, float, int, str]:
        """Its columns in the database."""
        needs = encode_needs(self.needs)
        return (
            self.id,
            self.ns,
            self.kind,
            self.queue,
            self.name,
            self.workflow,
            self.fair,
            self.weight,
            self.priority,
            needs,
        )


_needs = msgspec.json.Decoder(Needs)


def encode_needs(needs: Needs) -> str:
    return msgspec.json.encode(needs).decode()


def decode_needs(text: str) -> Needs:
    return _needs.decode(text)


class FlowControlRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of operators for a namespace, queue, workflow or task, set at run time."""

    ns: int
    scope: str
    name: str
    concurrency: int | None = None
    rate: float | None = None
    per_us: int | None = None
    burst: float | None = None
    paused_by: str | None = None
    paused_us: int | None = None
    pause_reason: str | None = None

    @property
    def key(self) -> str:
        return f"{self.scope}/{self.name}" if self.name else self.scope


class FlowControlRules:
    """All rules of a database. Which apply to what: a workflow's concurrency and rate are about its runs, its pause about its tasks too."""

    def __init__(self, rules: Mapping[tuple[int, str, str], FlowControlRule] | None = None) -> None:
        self._rules = dict(rules or {})
        self._namespaces = frozenset(ns for ns, _, _ in self._rules)

    def for_task(self, ns: int, queue: str, name: str, workflow: str) -> list[FlowControlRule]:
        if ns not in self._namespaces:
            return []
        found = [self._get(ns, "namespace", ""), self._get(ns, "queue", queue), self._get(ns, "task", name)]
        paused = self._get(ns, "workflow", workflow)
        if paused is not None and paused.paused_by is not None:
            found.append(msgspec.structs.replace(paused, concurrency=None, rate=None))
        return [r for r in found if r is not None]

    def for_run(self, ns: int, workflow: str) -> list[FlowControlRule]:
        if ns not in self._namespaces:
            return []
        found = self._get(ns, "workflow", workflow)
        return [found] if found is not None else []

    def of(self, group: FlowControlGroup) -> list[FlowControlRule]:
        if group.kind == RUNS:
            return self.for_run(group.ns, group.workflow)
        return self.for_task(group.ns, group.queue, group.name, group.workflow)

    def _get(self, ns: int, scope: str, name: str) -> FlowControlRule | None:
        return self._rules.get((ns, scope, name))


def with_rules(needs: Needs, rules: list[FlowControlRule]) -> Needs:
    if not rules:
        return needs
    limits = [LimitNeed(r.key, r.concurrency) for r in rules if r.concurrency is not None]
    rates = [
        RateNeed(r.key, r.rate, r.per_us, r.burst or burst_of(r.rate, r.per_us))
        for r in rules
        if r.rate is not None and r.per_us is not None
    ]
    return Needs((*needs.limits, *limits), (*needs.rates, *rates))


NOTHING: Final = FlowControlSpec()


def task_group(
    control: FlowControlSpec | None, ns: int, queue: str, name: str, workflow: str, data: bytes
) -> FlowControlGroup:
    return _resolve(control or NOTHING, ns, TASKS, queue, name, workflow, data)


def run_group(control: FlowControlSpec | None, ns: int, workflow: str, data: bytes) -> FlowControlGroup:
    return _resolve(control or NOTHING, ns, RUNS, "", workflow, workflow, data)


def _resolve(
    c: FlowControlSpec, ns: int, kind: str, queue: str, name: str, workflow: str, data: bytes
) -> FlowControlGroup:
    given = _Input(data)
    base = f"task/{name}" if kind == TASKS else f"workflow/{name}"
    limits = tuple(LimitNeed(_key(x, base, given), x.max, x.policy) for x in c.limits)
    rates = tuple(
        RateNeed(_key(x, base, given), x.count, x.per_us, x.burst or burst_of(x.count, x.per_us), given.number(x.units))
        for x in c.rates
    )
    fair = given.text(c.fair) if c.fair else ""
    weight = min(max(given.number(c.weight), WEIGHT_MIN), WEIGHT_MAX)
    needs = Needs(limits, rates)
    what = (ns, kind, queue, name, workflow, fair, weight, c.priority, needs)
    line_id = blake2b(msgspec.msgpack.encode(what), digest_size=16).digest()
    return FlowControlGroup(line_id, ns, kind, queue, name, workflow, fair, weight, c.priority, needs)


def burst_of(count: float, per_us: int) -> float:
    return max(1.0, count * BURST_US / per_us)


def _key(x: LimitOption | RateOption, base: str, given: _Input) -> str:
    own = f"key/{x.key}" if x.key else base
    return f"{own}:{given.text(x.by)}" if x.by else own


class _Input:
    """The arguments of a call, by name, as far as they are known by name."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._read = False
        self._value: Any = None

    def value(self, expression: str) -> Any:
        if not self._read:
            self._read, self._value = True, _arguments(self._data)
        try:
            return _parsed(expression).evaluate(self._root)
        except ExprError:
            return None

    def _root(self, name: str) -> Any:
        return self._value if name == "input" else None

    def text(self, expression: str) -> str:
        """Short enough for a key; a longer text is replaced by a hash."""
        found = self.value(expression)
        text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
        if len(text) <= NAME_CHARS_MAX:
            return text.replace("\x00", "")
        return f"{text[:100]}…{blake2b(text.encode(), digest_size=8).hexdigest()}".replace("\x00", "")

    def number(self, expression: str) -> float:
        try:
            return max(float(expression), 0.0)
        except ValueError:
            found = self.value(expression)
            return max(float(found), 0.0) if isinstance(found, int | float) else 1.0


def _arguments(data: bytes) -> Any:
    try:
        value: Any = msgspec.json.decode(data) if not data.startswith(MARK) else without_stored(data)
    except msgspec.DecodeError:
        return None
    if isinstance(value, dict) and len(value) == 1 and "**" in value:  # an offer; see calls.py
        return value["**"]
    return value


@lru_cache(maxsize=1_000)
def _parsed(expression: str) -> Expr:
    return parse(expression)
