"""Retry arithmetic, and the one function through which every end of an attempt goes.

Laws:

1. `max_attempts` counts executions. A lost worker has a budget of its own and does not use up an attempt the user asked for.
2. Exit, exception, timeout, stale heartbeat, never-started and lost worker all pass through `settle`.
3. Backoff is exponential, capped and jittered; the jitter comes from the task's id and attempt, so it is the same wherever
   it is computed and different for neighbours. An error that names a delay of its own (`retry_after_us`) gets that one instead.
4. Nothing begins after its time: a retry that could not begin before the task must have ended (`to_close_us`) is not tried.
5. A job outlives the worker that watches it: the next worker continues the same attempt. Only a lost job is a lost attempt.
"""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b
from typing import Final

import msgspec

from perdure.core.errors import Failure
from perdure.core.flow_control.options import FlowControlSpec
from perdure.core.jobs import SERVICE, outlives_worker
from perdure.core.limits import ATTEMPTS_DEFAULT, LOST_WORKERS_MAX, RETRY_AFTER_S_MAX
from perdure.core.secrets import SecretPlace

REATTACH_US: Final = 1_000_000
"""Pause before another worker takes over a job. A job that crashes its workers does so once a second at most."""


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
    to_start_us: int = 0
    """Schedule to start: a task that has not begun by then fails; 0 is no limit. A retry begins within it anew."""
    to_close_us: int = 0
    """Schedule to close, over all attempts; 0 is no limit."""
    undo: str = ""
    """The task that takes back what this one did, if the run fails or is cancelled later; empty: none."""
    control: FlowControlSpec | None = None
    """Flow control; None where the task asks for none."""
    executor: str = ""
    """What runs it outside of its worker, see core/jobs.py; empty: the worker itself."""
    secrets: tuple[SecretPlace, ...] = ()
    """Where in its input secrets stand; see core/secrets.py."""


class End(Enum):
    """Why an attempt is over."""

    SUCCESS = "success"
    ERROR = "error"
    FINAL_ERROR = "final_error"
    """The user's code or policy says that another attempt is pointless."""
    TIMEOUT = "timeout"
    HEARTBEAT = "heartbeat"
    EXPIRED = "expired"
    """Its time was over before it began, or over all attempts: there is no other attempt."""
    LOST = "lost"
    """The worker or its engine vanished; whether the attempt had an effect is unknown."""
    JOB_LOST = "job_lost"
    """The executor lost the job: its machine is gone, or it never started."""
    CANCELLED = "cancelled"
    RETURNED = "returned"
    """The worker gave it back before it began, or gave back a job that it watched: the same attempt goes on."""


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

_OUTCOMES: Final = {"task_lost": "lost", "task_timeout": "timeout"}


def outcome_of(code: str) -> str:
    """The word for the end of an attempt that failed with this code; perdure.attempt_outcome says the same of a task."""
    return _OUTCOMES.get(code, "error")


def settle(
    options: TaskOptions,
    task_id: bytes,
    attempt: int,
    lost: int,
    end: End,
    failure: Failure | None,
    left_us: int | None = None,
) -> Verdict:
    """Decide what the end of an attempt means. `attempt` counts executions from 1, `lost` the workers lost before. `left_us` is the
    time until the task must have ended, where it has such a limit and the time is known."""
    if end is End.SUCCESS:
        return Succeed()
    if end is End.CANCELLED:
        return Cancel()
    if end is End.LOST and outlives_worker(options.executor) and not _may_repeat(options):
        left = Failure(
            "task_returned", f"the worker that watched attempt {attempt} vanished; another one takes it over"
        )
        return _in_time(options, Requeue(attempt, lost, REATTACH_US, left), left_us)
    if end is End.LOST or end is End.JOB_LOST:
        return _in_time(options, _settle_lost(options, task_id, attempt, lost, failure), left_us)
    if end is End.RETURNED:
        returned = failure or Failure("task_returned", "the worker gave the task back unstarted")
        delay_us = min(returned.retry_after_us, RETRY_AFTER_S_MAX * 1_000_000)
        return _in_time(options, Requeue(attempt, lost, delay_us, returned), left_us)
    assert failure is not None
    final = end is End.FINAL_ERROR or end is End.EXPIRED
    if final or options.at_most_once or attempt - lost >= options.max_attempts:
        return Fail(failure)
    delay_us = min(failure.retry_after_us, RETRY_AFTER_S_MAX * 1_000_000) or backoff_us(
        options, task_id, attempt - lost
    )
    return _in_time(options, Requeue(attempt + 1, lost, delay_us, failure), left_us)


def _in_time(options: TaskOptions, verdict: Verdict, left_us: int | None) -> Verdict:
    """The verdict, or the failure that it comes to because its next attempt would begin too late."""
    if left_us is None or not isinstance(verdict, Requeue) or verdict.delay_us < left_us:
        return verdict
    why = (
        f"No other attempt: it could begin in {verdict.delay_us / 1e6:g} s" if verdict.delay_us else "No other attempt"
    )
    text = f"{why}, and the task must end within {options.to_close_us / 1e6:g} s of being scheduled (finish_within)"
    return Fail(msgspec.structs.replace(verdict.failure, message=f"{verdict.failure.message}\n{text}"))


def left_us(options: TaskOptions, scheduled_us: int, now_us: int) -> int | None:
    """Time until the task must have ended; None: it has no such limit."""
    return scheduled_us + options.to_close_us - now_us if options.to_close_us else None


def waits_until_us(options: TaskOptions, scheduled_us: int, due_us: int) -> int | None:
    """The moment by which a task that may begin at `due_us` must have begun; None: it may wait for ever."""
    moments = [due_us + options.to_start_us] if options.to_start_us else []
    if options.to_close_us:
        moments.append(scheduled_us + options.to_close_us)
    return min(moments, default=None)


def expired(options: TaskOptions, waited_us: int, attempt: int, why: str) -> Failure:
    """The failure of a task whose time was over while it waited for an attempt. `why` says what it waited for, where that is known."""
    what = f"attempt {attempt} did not begin" if attempt > 1 else "the task did not begin"
    if options.to_close_us and waited_us >= options.to_close_us:
        text = (
            f"{what} before the task had to end, {options.to_close_us / 1e6:g} s after it was scheduled (finish_within)"
        )
    else:
        text = f"{what} within {options.to_start_us / 1e6:g} s (start_within)"
    return Failure("task_timeout", f"{text}. {why}" if why else text, "TimeoutError")


def _may_repeat(options: TaskOptions) -> bool:
    """An at-most-once task whose work the next worker might do again: a call of a service lives in the worker that makes it."""
    return options.at_most_once and options.executor == SERVICE


def _settle_lost(options: TaskOptions, task_id: bytes, attempt: int, lost: int, job: Failure | None) -> Verdict:
    """`job`: what the executor reported of a lost job; None for a lost worker."""
    what, why = ("the worker vanished", "") if job is None else ("the job was lost", f": {job.message}")
    if options.at_most_once:
        text = f"{what} during attempt {attempt} of an at-most-once task; whether it had an effect is unknown{why}"
        return Fail(Failure("task_lost", text))
    if lost + 1 > options.lost_max:
        text = f"{what} {lost + 1} times while running this task (limit lost_max={options.lost_max}){why}"
        return Fail(Failure("task_lost", text))
    failure = Failure("task_lost", f"{what} during attempt {attempt}{why}")
    delay_us = 0 if job is None else backoff_us(options, task_id, lost + 1)
    return Requeue(attempt + 1, lost + 1, delay_us, failure)


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
