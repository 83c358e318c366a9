"""What a user may say about how a task is executed, and the effective options that are recorded for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.core.durations import Duration, to_us
from perdure.core.errors import InvalidInput
from perdure.core.flow_control.options import Control
from perdure.core.limits import ATTEMPTS_DEFAULT, ATTEMPTS_MAX
from perdure.core.retry import TaskOptions
from perdure.sdk.flow_control import Fair, Limit, RateLimit, Said
from perdure.sdk.workflow import undo


@dataclass(frozen=True, slots=True)
class _RetryFields:
    attempts: int
    delay: Duration
    factor: float
    max_delay: Duration
    jitter: bool
    on: tuple[type[Exception], ...]
    never: tuple[type[Exception], ...]


class Retry(_RetryFields):
    """How often a task is tried, and how long it waits in between.

    `attempts` counts executions in all: Retry(3) is one execution and at most two retries. The first retry comes after `delay`; each
    further delay is `factor` times longer, up to `max_delay`. `jitter` spreads delays over 50% to 100% of their length. Exceptions in
    `never`, or outside `on`, are not retried. Raises InvalidInput for values out of range.
    """

    __slots__ = ()

    def __init__(
        self,
        attempts: int = ATTEMPTS_DEFAULT,
        *,
        delay: Duration = "1s",
        factor: float = 2.0,
        max_delay: Duration = "1m",
        jitter: bool = True,
        on: tuple[type[Exception], ...] = (Exception,),
        never: tuple[type[Exception], ...] = (),
    ) -> None:
        if not 1 <= attempts <= ATTEMPTS_MAX:
            raise InvalidInput(
                f"Retry(attempts={attempts}): attempts counts executions and must lie between 1 and ATTEMPTS_MAX={ATTEMPTS_MAX}"
            )
        if factor < 1:
            raise InvalidInput(f"Retry(factor={factor}): delays cannot shrink; use a factor of 1 or more")
        super().__init__(attempts, delay, factor, max_delay, jitter, on, never)


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Options as given; None is 'not said'."""

    retry: Retry | int | None = None
    timeout: Duration | None = None
    queue: str | None = None
    heartbeat: Duration | None = None
    at_most_once: bool = False
    process: bool = False
    start_within: Duration | None = None
    finish_within: Duration | None = None
    undo: Any = None
    """The task that takes it back, or its name."""
    limit: Limit | Sequence[Limit] | None = None
    rate: RateLimit | Sequence[RateLimit] | None = None
    priority: int | None = None
    fair: Fair | str | None = None
    weight: float | str | None = None

    @property
    def said(self) -> Said:
        """About flow control."""
        return Said(self.limit, self.rate, self.priority, self.fair, self.weight)

    def effective(self, control: Control | None = None) -> TaskOptions:
        retry = (
            self.retry
            if isinstance(self.retry, Retry)
            else Retry(ATTEMPTS_DEFAULT if self.retry is None else self.retry)
        )
        if self.at_most_once and self.retry is not None and retry.attempts > 1:
            raise InvalidInput("a task cannot be both at_most_once and retried; drop one of the two")
        start_us, close_us = _within("start_within", self.start_within), _within("finish_within", self.finish_within)
        return TaskOptions(
            max_attempts=1 if self.at_most_once else retry.attempts,
            initial_us=to_us(retry.delay),
            factor=retry.factor,
            cap_us=to_us(retry.max_delay),
            jitter=retry.jitter,
            timeout_us=to_us(self.timeout) if self.timeout is not None else 0,
            heartbeat_us=to_us(self.heartbeat) if self.heartbeat is not None else 0,
            at_most_once=self.at_most_once,
            never=tuple(qualified(t) for t in retry.never),
            on=() if retry.on == (Exception,) else tuple(qualified(t) for t in retry.on),
            to_start_us=start_us,
            to_close_us=close_us,
            undo="" if self.undo is None else undo.name_of(self.undo),
            control=control,
        )

    def given(self, control: Control | None) -> tuple[str, ...]:
        """Fields of the effective options that do not come from defaults."""
        fields: list[str] = []
        if self.retry is not None or self.at_most_once:
            fields.append("max_attempts")
        if isinstance(self.retry, Retry):
            fields += ["initial_us", "factor", "cap_us", "jitter", "never", "on"]
        durations = (
            (self.timeout, "timeout_us"), (self.heartbeat, "heartbeat_us"), (self.start_within, "to_start_us"),
            (self.finish_within, "to_close_us"),
        )  # fmt: skip
        fields += [field for value, field in durations if value is not None]
        if self.at_most_once:
            fields.append("at_most_once")
        if control is not None:
            fields.append("control")
        return tuple(fields)


def _within(name: str, given: Duration | None) -> int:
    if given is None:
        return 0
    us = to_us(given)
    if us <= 0:
        raise InvalidInput(f"{name}={given!r}: nothing can happen in no time; give a longer one, or leave it out")
    return us


def qualified(t: type) -> str:
    return f"{t.__module__}.{t.__qualname__}"
