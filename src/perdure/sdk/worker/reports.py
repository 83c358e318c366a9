"""The end of an attempt as a report."""

from __future__ import annotations

import traceback
from datetime import timedelta
from math import isfinite
from typing import Any, Final

import msgspec

from perdure.core.errors import (
    Failure,
    PerdureError,
    SecretExposed,
    SecretMissing,
    SecretUnavailable,
    Unavailable,
    clip,
)
from perdure.core.limits import RETRY_AFTER_S_MAX
from perdure.core.retry import End, is_final
from perdure.core.work import Assignment, Report
from perdure.sdk.options import qualified
from perdure.sdk.secrets.known import redacted, redacted_error
from perdure.sdk.worker.attempts import FinalError

SECRET_ERRORS: Final = (SecretMissing, SecretUnavailable, SecretExposed)
"""Recorded under codes of their own."""


def redacted_failure(failure: Failure) -> Failure:
    """Without the values of secrets."""
    message, trace = redacted(failure.message), redacted(failure.traceback)
    if message is failure.message and trace is failure.traceback:
        return failure
    return msgspec.structs.replace(failure, message=clip(message), traceback=clip(trace))


def success_report(a: Assignment, value: bytes, started_us: int, finished_us: int, cpu_us: int | None = None) -> Report:
    return Report(a.run_id, a.seq, a.attempt, End.SUCCESS, value, None, started_us, finished_us, a.epoch, cpu_us)


def error_report(
    a: Assignment, error: BaseException, started_us: int, finished_us: int, cpu_us: int | None = None
) -> Report:
    """An exception of the user's code; whether it is final is for the task's policy to say."""
    # Policies of code name classes in full; those of documents may be short.
    names = tuple(name for t in type(error).__mro__ for name in (qualified(t), t.__name__))
    # A store that is away may be back for the next attempt; any other error of ours will come again.
    ours = isinstance(error, PerdureError) and not isinstance(error, Unavailable)
    final = is_final(a.options, names) or ours or isinstance(error, FinalError)
    code = error.code if isinstance(error, SECRET_ERRORS) else "task_failed"
    # Masked before they are cut: half of a secret is not found.
    text, trace = redacted_error(str(error)), redacted_error("".join(traceback.format_exception(error)))
    failure = Failure(code, clip(text), type(error).__name__, clip(trace), retry_after_us(error))
    return ended_report(a, End.FINAL_ERROR if final else End.ERROR, started_us, finished_us, failure, cpu_us)


def retry_after_us(error: BaseException) -> int:
    """How long the error asks to be left alone: its `retry_after`, in seconds or a timedelta. What is no time says nothing."""
    said: Any = getattr(error, "retry_after", None)
    if isinstance(said, timedelta):
        said = said.total_seconds()
    if isinstance(said, bool) or not isinstance(said, (int, float)) or not isfinite(said) or said <= 0:
        return 0
    return max(1, int(min(said, RETRY_AFTER_S_MAX) * 1e6))


def ended_report(
    a: Assignment,
    end: End,
    started_us: int,
    finished_us: int,
    failure: Failure | None = None,
    cpu_us: int | None = None,
) -> Report:
    """An end without a value."""
    return Report(a.run_id, a.seq, a.attempt, end, b"", failure, started_us, finished_us, a.epoch, cpu_us)
