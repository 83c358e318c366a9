"""What users say about flow control: how many at a time, how many per time, who goes first, and starts that begin later or only once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
class _LimitFields:
    max: int
    by: str
    key: str
    policy: Policy


class Limit(_LimitFields):
    """At most `max` at a time; what is over that waits.

    `by` names what the limit is counted by, an argument of the call or an expression over `input`: `Limit(3, by="customer")` lets three
    begin for each customer. Limits with the same `key` share their slots, wherever they stand. `policy` is for runs of a
    workflow: what becomes of a run that finds the limit reached.
    """

    __slots__ = ()

    def __init__(self, max: int, *, by: str = "", key: str = "", policy: Policy = "queue") -> None:
        if isinstance(max, bool) or not isinstance(max, int) or not 1 <= max <= CONCURRENCY_MAX:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(
                f"Limit({max!r}): max must be a whole number from 1 to CONCURRENCY_MAX={CONCURRENCY_MAX}; to let nothing begin, pause it"
            )
        if policy not in recorded.POLICIES:
            raise InvalidInput(f"Limit(policy={policy!r}): choose one of {', '.join(recorded.POLICIES)}")
        _check_key("Limit", key)
        super().__init__(max, by, key, policy)


@dataclass(frozen=True, slots=True)
class _RateFields:
    count: float
    per: Duration
    by: str
    key: str
    units: float | str
    burst: float | None


class RateLimit(_RateFields):
    """At most `count` within `per`, on average; up to `burst` at once.

    `units` says what one call counts, a number or an expression: `RateLimit(100_000, per="1m", key="api", units="size")`.
    """

    __slots__ = ()

    def __init__(
        self,
        count: float,
        *,
        per: Duration = "1s",
        by: str = "",
        key: str = "",
        units: float | str = 1,
        burst: float | None = None,
    ) -> None:
        if not 0 < count <= RATE_COUNT_MAX:
            raise InvalidInput(
                f"RateLimit({count!r}): count must lie between 0 and RATE_COUNT_MAX={RATE_COUNT_MAX}; to let nothing begin, pause it"
            )
        if to_us(per) == 0:
            raise InvalidInput(f'RateLimit(per={per!r}): give the time that the count is for, such as "1s" or "1m"')
        if burst is not None and not 1 <= burst <= RATE_COUNT_MAX:
            raise InvalidInput(f"RateLimit(burst={burst!r}): at least 1 must be able to begin at once")
        _check_key("RateLimit", key)
        super().__init__(count, per, by, key, units, burst)


@dataclass(frozen=True, slots=True)
class Fair:
    """The values of `by` take turns, however many wait for each. One with twice the `weight` has twice the turns."""

    by: str
    weight: float | str = 1


@dataclass(frozen=True, slots=True)
class Said:
    """All that was said about flow control, as it was said; None is 'not said'."""

    limit: Limit | Sequence[Limit] | None = None
    rate: RateLimit | Sequence[RateLimit] | None = None
    priority: int | None = None
    fair: Fair | str | None = None
    weight: float | str | None = None

    @property
    def nothing(self) -> bool:
        return all(v is None for v in (self.limit, self.rate, self.priority, self.fair, self.weight))


def control_of(
    said: Said, fn: Callable[..., Any], what: str, kind: Literal["task", "workflow"]
) -> recorded.Control | None:
    """What is recorded with a task or registered with a workflow. Everything that can be wrong is found here, where it is written."""
    if said.nothing:
        return None
    parameters = _parameters(fn)
    limits = _several(said.limit, Limit, f"{what}: limit", LIMITS_PER_TASK_MAX, "LIMITS_PER_TASK_MAX")
    rates = _several(said.rate, RateLimit, f"{what}: rate", RATES_PER_TASK_MAX, "RATES_PER_TASK_MAX")
    fair, weight = _fair(said, what, parameters)
    made = recorded.Control(
        limits=tuple(_limit(x, what, parameters, kind) for x in limits),
        rates=tuple(_rate(x, what, parameters) for x in rates),
        priority=_priority(said.priority, what),
        fair=fair,
        weight=weight,
    )
    return made if made != recorded.Control() else None


def _limit(x: Limit, what: str, parameters: Collection[str] | None, kind: str) -> recorded.Limit:
    from perdure.flows.flow_control import canonical  # only who uses flow control pays for the expressions

    if kind == "task" and x.policy != "queue":
        raise InvalidInput(
            f"{what}: Limit(policy={x.policy!r}) is for the limits of a workflow; a task that finds its limit reached waits. "
            "Leave the policy out, or put the limit at the workflow"
        )
    by = canonical(x.by, f"{what}: by of a limit", parameters) if x.by else ""
    return recorded.Limit(max=x.max, by=by, key=x.key, policy=x.policy)


def _rate(x: RateLimit, what: str, parameters: Collection[str] | None) -> recorded.Rate:
    from perdure.flows.flow_control import canonical, number_or_expression

    by = canonical(x.by, f"{what}: by of a rate", parameters) if x.by else ""
    units = number_or_expression(x.units, f"{what}: units of a rate", parameters, 0, RATE_COUNT_MAX)
    return recorded.Rate(
        count=float(x.count), per_us=to_us(x.per), by=by, key=x.key, units=units, burst=float(x.burst or 0)
    )


def _fair(said: Said, what: str, parameters: Collection[str] | None) -> tuple[str, str]:
    from perdure.core.flow_control.groups import WEIGHT_MAX, WEIGHT_MIN
    from perdure.flows.flow_control import canonical, number_or_expression

    fair = said.fair if isinstance(said.fair, Fair) or said.fair is None else Fair(said.fair)
    if fair is None:
        if said.weight is not None:
            raise InvalidInput(
                f'{what}: weight is that of a value of fair; say what takes turns as well: fair="customer"'
            )
        return "", "1"
    if isinstance(said.fair, Fair) and said.weight is not None:
        raise InvalidInput(f"{what}: the weight is said twice; keep the one of Fair()")
    by = canonical(fair.by, f"{what}: fair", parameters)
    given = fair.weight if said.weight is None else said.weight
    return by, number_or_expression(given, f"{what}: weight", parameters, WEIGHT_MIN, WEIGHT_MAX)


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
    """The names of the arguments; None where any name will do."""
    found = inspect.signature(fn).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in found):
        return None
    return [p.name for p in found]


def _check_key(what: str, key: str) -> None:
    if key:
        checked_name(f"{what} key", key)


# -- starts --------------------------------------------------------------------------------------------------------


class Debounce:
    """Of several starts under a `key` the last one counts.

    The run begins when no start has come for `quiet`, and at the latest `max_delay` after the first one. Every start returns the id of
    the run that will begin.
    """

    __slots__ = ("recorded",)

    def __init__(self, quiet: Duration, *, key: str, max_delay: Duration | None = None) -> None:
        self.recorded = deferred_starts.Debounce(key, to_us(quiet), to_us(max_delay) if max_delay is not None else 0)
        deferred_starts.check_later(self.recorded, None, "")


class Dedup:
    """A second start under a `key` returns the run of the first one, whatever its arguments.

    The key is released `within` after the first start, or without `within` when that run ends.
    """

    __slots__ = ("recorded",)

    def __init__(self, key: str, *, within: Duration | None = None) -> None:
        if within is not None and to_us(within) == 0:
            raise InvalidInput(
                f'Dedup(within={within!r}): give a time such as "10m", or leave it out to release the key when the run ends'
            )
        self.recorded = deferred_starts.Dedup(key, to_us(within) if within is not None else 0)
        deferred_starts.check_later(None, self.recorded, "")
