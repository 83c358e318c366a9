"""The error tree.

Every error has a stable `code` (documented under docs/reference/errors.md) and says what happened, why, and what to do next.

    PerdureError
    +-- InvalidInput                 invalid_input          the caller gave something that can never work
    |   +-- PayloadMismatch          payload_mismatch       a value does not fit the declared type
    |   +-- PayloadTooLarge          payload_too_large      a value is over the inline limit
    |   +-- NotRegistered            not_registered         no workflow or task of that name is known here
    |   +-- AddressRefused           address_refused        `http:` may not connect to this address
    |   +-- UpdateRejected           update_rejected        the run refuses an update
    |   +-- FlowError                invalid_flow           the document of a flow has mistakes (flows/problems.py)
    |   +-- ExprError                expression_error       an expression cannot be read or evaluated (core/expressions)
    +-- NotFound                     not_found              no such run in this namespace
    +-- Conflict                     conflict
    |   +-- RunAlreadyExists         run_already_exists     the run id is taken
    |   +-- PromiseAlreadyResolved   promise_already_resolved
    |   +-- RunFinished              run_finished           the run has ended and takes no more messages
    |   +-- ApprovalClosed           approval_closed        the approval is decided
    |   +-- ApprovalExpired          approval_expired       its deadline has passed
    |   +-- LinkUsed                 link_used              a signed link works once
    |   +-- LimitReached             limit_reached          a limit with the policy skip is reached: nothing was started
    |   +-- WorkflowDeleted          workflow_deleted       the workflow takes no new runs
    |   +-- IdempotencyConflict      idempotency_conflict   the idempotency key was used for a different request
    +-- LinkExpired                  link_expired           a signed link works for a while
    +-- Unauthenticated              unauthenticated        no credential was given, or it does not hold
    +-- Forbidden                    forbidden              the credential holds but does not allow this
    |   +-- NotAssigned              not_assigned           somebody else is asked for this approval
    +-- RateLimited                  rate_limited           too many requests under one credential
    +-- Unavailable                  unavailable            try again later: database away, engine stopping
    |   +-- Fenced                   fenced                 this engine's session has expired; its write was refused
    +-- RunError                                            how a run ended, raised by Handle.result()
    |   +-- RunFailed                run_failed
    |   +-- RunCancelled             run_cancelled
    +-- TaskError                                           how a task ended, raised at its await
    |   +-- TaskFailed               task_failed            user code raised and no attempt is left
    |   +-- TaskTimeout              task_timeout           no attempt ended in time
    |   +-- TaskLost                 task_lost              its worker vanished too often, or once if at most once
    |   +-- TaskCancelled            task_cancelled
    +-- ApprovalRejected             approval_rejected      people said no, raised at the await of an approval
    +-- ChildFailed                  child_failed           a child run ended without success
    +-- UpdateFailed                 update_failed          the code that handled an update raised
    +-- WorkflowRuleBroken           workflow_rule_broken   workflow code did what only a task may do
    |   +-- NondeterminismError      nondeterminism         code and history disagree
    +-- HistoryTooLarge              history_too_large
    +-- IllegalTransition            illegal_transition     a bug in Perdure: no such edge in the lifecycle table
    +-- MigrationError               migration              the schema is not what this version expects
    +-- NoSecretKey                  no_secret_key          the server has no key to seal a secret with
    +-- CannotOpenSecret             cannot_open_secret     a secret was sealed with another key, or was changed
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from perdure.core.limits import ERROR_CHARS_MAX


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An error as it is recorded in a history: plain text that survives any process and any language."""

    code: str
    message: str
    type: str = ""
    traceback: str = ""
    retry_after_us: int = 0
    """How long the error itself asks to be left alone (`Retry-After`); 0: it does not say."""


class PerdureError(Exception):
    """Something Perdure knows how to explain."""

    code: ClassVar[str] = "error"

    def to_failure(self) -> Failure:
        return Failure(self.code, clip(str(self)), type(self).__name__)


class InvalidInput(PerdureError):
    code = "invalid_input"


class PayloadMismatch(InvalidInput):
    code = "payload_mismatch"


class PayloadTooLarge(InvalidInput):
    code = "payload_too_large"


class NotRegistered(InvalidInput):
    code = "not_registered"


class AddressRefused(InvalidInput):
    code = "address_refused"


class UpdateRejected(InvalidInput):
    """Raised by workflow code to refuse an update, and at the one who asked for it."""

    code = "update_rejected"


class NotFound(PerdureError):
    code = "not_found"


class Conflict(PerdureError):
    code = "conflict"


class RunAlreadyExists(Conflict):
    code = "run_already_exists"


class PromiseAlreadyResolved(Conflict):
    code = "promise_already_resolved"


class RunFinished(Conflict):
    code = "run_finished"


class ApprovalClosed(Conflict):
    code = "approval_closed"


class ApprovalExpired(Conflict):
    code = "approval_expired"


class LinkUsed(Conflict):
    code = "link_used"


class LinkExpired(PerdureError):
    code = "link_expired"


class LimitReached(Conflict):
    code = "limit_reached"


class Unauthenticated(PerdureError):
    code = "unauthenticated"


class Forbidden(PerdureError):
    code = "forbidden"


class NotAssigned(Forbidden):
    code = "not_assigned"


class RateLimited(PerdureError):
    code = "rate_limited"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(PerdureError):
    code = "unavailable"


class Fenced(Unavailable):
    code = "fenced"


class RecordedError(PerdureError):
    """An error rebuilt from its record. `failure` carries the original type's name and traceback as text."""

    event = 0
    """Number of the event that the code learned it from, in the history of its run."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    def __str__(self) -> str:
        kind = self.failure.type
        return f"{kind}: {self.failure.message}" if kind and kind != type(self).__name__ else self.failure.message

    def to_failure(self) -> Failure:
        return self.failure


class RunError(RecordedError):
    code = "run_error"


class RunFailed(RunError):
    code = "run_failed"


class RunCancelled(RunError):
    code = "run_cancelled"


class TaskError(RecordedError):
    code = "task_error"


class TaskFailed(TaskError):
    code = "task_failed"


class TaskTimeout(TaskError):
    code = "task_timeout"


class TaskLost(TaskError):
    code = "task_lost"


class TaskCancelled(TaskError):
    code = "task_cancelled"


class ChildFailed(RecordedError):
    code = "child_failed"


class ApprovalRejected(RecordedError):
    """People said no. Workflow code may catch it and go on."""

    code = "approval_rejected"

    def __init__(self, failure: Failure, by: tuple[str, ...] = (), comment: str = "") -> None:
        super().__init__(failure)
        self.by, self.comment = by, comment


class UpdateFailed(RecordedError):
    code = "update_failed"


class WorkflowRuleBroken(PerdureError):
    code = "workflow_rule_broken"


class NondeterminismError(WorkflowRuleBroken):
    """The code asked for something else than the history says it asked for the last time."""

    code = "nondeterminism"

    def __init__(self, where: str, expected: str, actual: str) -> None:
        super().__init__(
            f"workflow code and history disagree at {where}\n"
            f"  expected (history): {expected}\n"
            f"  actual   (code):    {actual}\n"
            "The run is stopped, nothing was written. Either the code changed while the run was in flight: keep the old "
            "path behind `if wf.patched('name')`, then resume the run. Or the code is not deterministic: move clocks, "
            "randomness and I/O into tasks or wf.run()."
        )
        self.where, self.expected, self.actual = where, expected, actual


class HistoryTooLarge(PerdureError):
    code = "history_too_large"


class IllegalTransition(PerdureError):
    code = "illegal_transition"


class MigrationError(PerdureError):
    code = "migration"


TASK_ERRORS: dict[str, type[TaskError]] = {c.code: c for c in (TaskFailed, TaskTimeout, TaskLost, TaskCancelled)}


def task_error(failure: Failure) -> TaskError:
    """The exception a workflow sees for a recorded task failure."""
    return TASK_ERRORS.get(failure.code, TaskFailed)(failure)


_ANSWERS: dict[str, type[PerdureError]] = {c.code: c for c in (UpdateRejected, RunFinished, Conflict)}


def update_error(failure: Failure) -> PerdureError:
    """The exception that whoever asked for an update sees for a recorded refusal."""
    known = _ANSWERS.get(failure.code)
    return known(failure.message) if known is not None else UpdateFailed(failure)


def clip(text: str, limit: int = ERROR_CHARS_MAX) -> str:
    """Keep both ends of a long text: the head says what, the tail says where. NUL and lone surrogates cannot be stored."""
    text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    if len(text) <= limit:
        return text
    half = (limit - 40) // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters cut …\n{text[-half:]}"


class WorkflowDeleted(Conflict):
    """The workflow was deleted and takes no new runs; registering it again restores it."""

    code = "workflow_deleted"


class IdempotencyConflict(Conflict):
    """The idempotency key was used for a different request; use a new key."""

    code = "idempotency_conflict"


class NoSecretKey(PerdureError):
    """The server has no key to seal a secret with; see `PERDURE_SECRET_KEY_FILE`."""

    code = "no_secret_key"


class CannotOpenSecret(PerdureError):
    """A secret was sealed with a key that this server does not have, or was changed."""

    code = "cannot_open_secret"
