"""Retry arithmetic, and the one function through which every end of an attempt goes.

Laws:

1. `max_attempts` counts executions. A lost worker has a budget of its own and does not use up an attempt the user asked for.
2. Exit, exception, timeout, stale heartbeat, never-started and lost worker all pass through `settle`.
3. Backoff is exponential, capped and jittered; the jitter comes from the task's id and attempt, so it is the same wherever
   it is computed and different for neighbours.
"""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b

import msgspec

from perdure.core.errors import Failure
from perdure.core.limits import ATTEMPTS_DEFAULT, LOST_WORKERS_MAX


class TaskOptions(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a run recorded about how its task is to be executed: the effective values, never 'use the default'."""

    max_attempts: int = ATTEMPTS_DEFAULT
    initial_us: int = 1_000_000
    factor: float = 2.0
    cap_us: int = 60_000_000
    jitter: bool = True
    timeout_us: int = 0
    """Start to close of one attempt; 0 is no limit."""
    heartbeat_us: int = 0
    """An attempt that stays silent longer is ended; 0 asks for no heartbeats."""
    at_most_once: bool = False
    lost_max: int = LOST_WORKERS_MAX
    never: tuple[str, ...] = ()
    """Names of exception types that are final at once."""
    on: tuple[str, ...] = ()
    """Names of exception types worth another attempt; empty means every one."""


class End(Enum):
    """Why an attempt is over."""

    SUCCESS = "success"
    ERROR = "error"
    FINAL_ERROR = "final_error"
    """The user's code or policy says that another attempt is pointless."""
    TIMEOUT = "timeout"
    HEARTBEAT = "heartbeat"
    LOST = "lost"
    """The worker or its engine vanished; whether the attempt had an effect is unknown."""
    CANCELLED = "cancelled"
    RETURNED = "returned"
    """The worker gave it back before it began; this was no attempt."""


class Succeed(msgspec.Struct, frozen=True):
    pass


class Fail(msgspec.Struct, frozen=True):
    failure: Failure


class Cancel(msgspec.Struct, frozen=True):
    pass


class Requeue(msgspec.Struct, frozen=True):
    """Another attempt, not before `delay_us` from now."""

    attempt: int
    lost: int
    delay_us: int
    failure: Failure


Verdict = Succeed | Fail | Cancel | Requeue


def settle(options: TaskOptions, task_id: bytes, attempt: int, lost: int, end: End, failure: Failure | None) -> Verdict:
    """Decide what the end of an attempt means. `attempt` counts executions from 1, `lost` the workers lost before."""
    if end is End.SUCCESS:
        return Succeed()
    if end is End.CANCELLED:
        return Cancel()
    if end is End.LOST:
        return _settle_lost(options, attempt, lost)
    if end is End.RETURNED:
        return Requeue(attempt, lost, 0, failure or Failure("task_returned", "the worker gave the task back unstarted"))
    assert failure is not None
    if end is End.FINAL_ERROR or options.at_most_once or attempt - lost >= options.max_attempts:
        return Fail(failure)
    return Requeue(attempt + 1, lost, backoff_us(options, task_id, attempt - lost), failure)


def _settle_lost(options: TaskOptions, attempt: int, lost: int) -> Verdict:
    if options.at_most_once:
        return Fail(
            Failure(
                "task_lost",
                f"the worker vanished during attempt {attempt} of an at-most-once task; whether it had an effect is unknown",
            )
        )
    if lost + 1 > options.lost_max:
        return Fail(
            Failure(
                "task_lost",
                f"the worker vanished {lost + 1} times while running this task (limit lost_max={options.lost_max})",
            )
        )
    return Requeue(attempt + 1, lost + 1, 0, Failure("task_lost", f"the worker vanished during attempt {attempt}"))


def backoff_us(options: TaskOptions, task_id: bytes, failures: int) -> int:
    """Delay after the n-th failed execution: initial * factor^(n-1), capped, then spread over [50%, 100%]."""
    exponent = min(failures - 1, 64)
    delay = min(options.initial_us * options.factor**exponent, options.cap_us)
    if not options.jitter:
        return int(delay)
    digest = blake2b(task_id + failures.to_bytes(8, "big"), digest_size=2).digest()
    return int(delay * (0.5 + 0.5 * int.from_bytes(digest, "big") / 0xFFFF))


def is_final(options: TaskOptions, type_names: tuple[str, ...]) -> bool:
    """Whether an exception, given by the names of its class and bases, is final under the policy."""
    if any(n in options.never for n in type_names):
        return True
    return bool(options.on) and not any(n in options.on for n in type_names)
