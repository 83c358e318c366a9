"""How workflow code ends: the exception that continues it as a new run, and failures made of other exceptions."""

from __future__ import annotations

import traceback

from perdure.core.errors import Failure, RecordedError, WorkflowRuleBroken, clip


class ContinueAsNewRequest(BaseException):
    """Raised through workflow code by wf.continue_as_new(); not an Exception, so that `except Exception` lets it pass."""

    def __init__(self, data: bytes) -> None:
        super().__init__("continue as new")
        self.data = data


def failure_of(error: BaseException, code: str) -> Failure:
    """An exception as text: message, type, and the traceback with the user's frames."""
    if isinstance(error, RecordedError):
        inner = error.to_failure()
        return Failure(code, clip(str(error)), type(error).__name__, clip(trace_of(error) + "\n" + inner.traceback))
    if isinstance(error, WorkflowRuleBroken):
        return Failure(error.code, clip(str(error)), type(error).__name__, clip(trace_of(error)))
    return Failure(code, clip(str(error)), type(error).__name__, clip(trace_of(error)))


def cause_of(error: BaseException, timer_fired: int) -> int:
    """The first event that `error` goes back to, by its causes, contexts and, for groups, members; 0: none.
    A TimeoutError goes back to the timer that fired last."""
    found: list[int] = []
    met: set[int] = set()
    ahead: list[BaseException | None] = [error]
    while ahead:
        one = ahead.pop()
        if one is None or id(one) in met:
            continue
        met.add(id(one))
        if isinstance(one, RecordedError):
            found.append(one.event)
        elif isinstance(one, TimeoutError):
            found.append(timer_fired)
        elif isinstance(one, BaseExceptionGroup):
            ahead.extend(one.exceptions)
        ahead.append(one.__cause__)
        ahead.append(None if one.__suppress_context__ else one.__context__)
    return min((n for n in found if n), default=0)


def trace_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
