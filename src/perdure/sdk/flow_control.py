"""Flow control as users write it: how many at a time, how many per time, in which order, and starts that begin later or only once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypedDict

from perdure.core import deferred_starts
from perdure.core.durations import Duration, to_us
from perdure.core.errors import InvalidInput
from perdure.core.flow_control import options as recorded
from perdure.core.limits import (
    CONCURRENCY_MAX,
    LIMITS_PER_TASK_MAX,
    RATE_COUNT_MAX,
    RATES_PER_TASK_MAX,
)
from perdure.core.names import checked_name

Policy = Literal["queue", "cancel_oldest", "cancel_newest", "skip"]


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `max` at a time; what is over the limit waits.

        @task(limit=Limit(3, by="customer"))

    Raises InvalidInput for values out of range.
    """

    max: int
    _: KW_ONLY
    by: str = ""
    """Count for each value of this separately: an argument of the call, or an expression over `input`."""
    key: str = ""
    """Limits with the same key share their slots."""
    policy: Policy = "queue"
    """Of a workflow's limit: what happens to a run that finds it reached."""

    def __post_init__(self) -> None:
        if isinstance(self.max, bool) or not isinstance(self.max, int) or not 1 <= self.max <= CONCURRENCY_MAX:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(
                f"Limit({self.max!r}): max must be a whole number from 1 to CONCURRENCY_MAX={CONCURRENCY_MAX}; to let nothing begin, pause it"
            )
        if self.policy not in recorded.POLICIES:
            raise InvalidInput(f"Limit(policy={self.policy!r}): choose one of {', '.join(recorded.POLICIES)}")
        _check_key("Limit", self.key)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `count` within `per`, on average.

        @task(rate=RateLimit(100_000, per="1m", key="api", units="size"))

    Raises InvalidInput for values out of range.
    """

    count: float
    _: KW_ONLY
    per: Duration = "1s"
    by: str = ""
    """Count for each value of this separately: an argument of the call, or an expression over `input`."""
    key: str = ""
    """Rates with the same key share their units."""
    units: float | str = 1
    """What one call counts: a number, an argument of the call, or an expression over `input`."""
    burst: float | None = None
    """How many may begin at once; `count` unless given."""

    def __post_init__(self) -> None:
        if not 0 < self.count <= RATE_COUNT_MAX:
            raise InvalidInput(
                f"RateLimit({self.count!r}): count must lie between 0 and RATE_COUNT_MAX={RATE_COUNT_MAX}; to let nothing begin, pause it"
            )
        if to_us(self.per) == 0:
            raise InvalidInput(
                f'RateLimit(per={self.per!r}): give the time that the count is for, such as "1s" or "1m"'
            )
        if self.burst is not None and not 1 <= self.burst <= RATE_COUNT_MAX:
            raise InvalidInput(f"RateLimit(burst={self.burst!r}): at least 1 must be able to begin at once")
        _check_key("RateLimit", self.key)


@dataclass(frozen=True, slots=True)
class Fair:
    """The values of `by` take turns, however many calls wait for each."""

    by: str
    """An argument of the call, or an expression over `input`."""
    weight: float | str = 1
    """A value with twice the weight gets twice the turns."""


class FlowControlOptions(TypedDict, total=False):
    """How many calls of a task, or runs of a workflow, go on at a time, and in which order they begin."""

    limit: Limit | Sequence[Limit] | None
    """How many at a time."""
    rate: RateLimit | Sequence[RateLimit] | None
    """How many per time."""
    priority: int | None
    """-100 to 100; higher begins first."""
    fair: Fair | str | None
    """Whose values take turns: a `Fair`, an argument of the call, or an expression over `input`."""
    weight: float | str | None
    """Of a value of `fair`; 1 unless given."""


def control_of(
    options: FlowControlOptions, what: str, kind: Literal["task", "workflow"], fn: Callable[..., Any] | None = None
) -> recorded.FlowControlSpec | None:
    """What is recorded with a task or registered with a workflow; None without flow control.

    `what` names the definition in errors. Names in expressions are checked against the parameters of `fn`, where it is given.
    """
    if FlowControlOptions.__optional_keys__.isdisjoint(options):
        return None
    parameters = _parameters(fn) if fn is not None else None
    limits = _several(options.get("limit"), Limit, f"{what}: limit", LIMITS_PER_TASK_MAX, "LIMITS_PER_TASK_MAX")
    rates = _several(options.get("rate"), RateLimit, f"{what}: rate", RATES_PER_TASK_MAX, "RATES_PER_TASK_MAX")
    fair, weight = _fair(options, what, parameters)
    made = recorded.FlowControlSpec(
        limits=tuple(_limit(x, what, parameters, kind) for x in limits),
        rates=tuple(_rate(x, what, parameters) for x in rates),
        priority=_priority(options.get("priority"), what),
        fair=fair,
        weight=weight,
    )
    return made if made != recorded.FlowControlSpec() else None


def _limit(x: Limit, what: str, parameters: Collection[str] | None, kind: str) -> recorded.LimitOption:
    from perdure.flows.flow_control import canonical  # loads the expression language: only where flow control is used

    if kind == "task" and x.policy != "queue":
        raise InvalidInput(
            f"{what}: Limit(policy={x.policy!r}) is for the limits of a workflow; a task that finds its limit reached waits. "
            "Leave the policy out, or put the limit at the workflow"
        )
    by = canonical(x.by, f"{what}: by of a limit", parameters) if x.by else ""
    return recorded.LimitOption(max=x.max, by=by, key=x.key, policy=x.policy)


def _rate(x: RateLimit, what: str, parameters: Collection[str] | None) -> recorded.RateOption:
    from perdure.flows.flow_control import canonical, number_or_expression

    by = canonical(x.by, f"{what}: by of a rate", parameters) if x.by else ""
    units = number_or_expression(x.units, f"{what}: units of a rate", parameters, 0, RATE_COUNT_MAX)
    return recorded.RateOption(
        count=float(x.count), per_us=to_us(x.per), by=by, key=x.key, units=units, burst=float(x.burst or 0)
    )


def _fair(options: FlowControlOptions, what: str, parameters: Collection[str] | None) -> tuple[str, str]:
    from perdure.core.flow_control.groups import WEIGHT_MAX, WEIGHT_MIN
    from perdure.flows.flow_control import canonical, number_or_expression

    given, weight = options.get("fair"), options.get("weight")
    if given is None:
        if weight is not None:
            raise InvalidInput(
                f'{what}: weight is that of a value of fair; say what takes turns as well: fair="customer"'
            )
        return "", "1"
    if isinstance(given, Fair):
        if weight is not None:
            raise InvalidInput(f"{what}: the weight is said twice; keep the one of Fair()")
        by, weight = given.by, given.weight
    else:
        by = given
    return canonical(by, f"{what}: fair", parameters), number_or_expression(
        1 if weight is None else weight, f"{what}: weight", parameters, WEIGHT_MIN, WEIGHT_MAX
    )


def _priority(priority: int | None, what: str) -> int:
    if priority is None:
        return 0
    least, most = recorded.PRIORITY_MIN, recorded.PRIORITY_MAX
    if isinstance(priority, bool) or not isinstance(priority, int) or not least <= priority <= most:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(
            f"{what}: priority is {priority!r}; it must be a whole number from {least} to {most}, higher goes first"
        )
    return priority


def _several(given: Any, kind: type, what: str, most: int, name: str) -> list[Any]:
    if given is None:
        return []
    several = list(given) if isinstance(given, Iterable) else [given]
    for one in several:
        if not isinstance(one, kind):
            raise InvalidInput(f"{what} is {one!r}; write {kind.__name__}({one!r})")
    if len(several) > most:
        raise InvalidInput(f"{what}: there are {len(several)}, over the limit {name}={most}")
    return several


def _parameters(fn: Callable[..., Any]) -> Collection[str] | None:
    """The names of the parameters; None where every name is accepted."""
    found = inspect.signature(fn).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in found):
        return None
    return [p.name for p in found]


def _check_key(what: str, key: str) -> None:
    if key:
        checked_name(f"{what} key", key)


class Debounce:
    """Of several starts under a `key` the last one counts.

    The run begins when no start has come for `quiet`, and at the latest `max_delay` after the first one. Every start returns the id of
    the run that will begin.
    """

    __slots__ = ("recorded",)

    def __init__(self, quiet: Duration, *, key: str, max_delay: Duration | None = None) -> None:
        self.recorded = deferred_starts.DebounceSpec(
            key, to_us(quiet), to_us(max_delay) if max_delay is not None else 0
        )
        deferred_starts.check_later(self.recorded, None, "")


class Dedup:
    """A second start under a `key` returns the run of the first one, even with other arguments.

    The key is released `within` after the first start, or without `within` when that run ends.
    """

    __slots__ = ("recorded",)

    def __init__(self, key: str, *, within: Duration | None = None) -> None:
        if within is not None and to_us(within) == 0:
            raise InvalidInput(
                f'Dedup(within={within!r}): give a time such as "10m", or leave it out to release the key when the run ends'
            )
        self.recorded = deferred_starts.DedupSpec(key, to_us(within) if within is not None else 0)
        deferred_starts.check_later(None, self.recorded, "")
