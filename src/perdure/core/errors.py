"""The errors that Perdure can explain. Users import them from `perdure.errors`, whose docstring draws the tree.

Laws:

1. Each class says what every door needs to know about it: a stable `code`, the HTTP and gRPC status of a server's answer, the exit code
   of a command. A class that does not say so inherits it.
2. The first line of a class's docstring is what its code means. /errors of a server and docs/reference/errors.md print it.
3. A message says what happened, why, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from perdure.core.error_excerpts import excerpt, shown_path
from perdure.core.limits import ERROR_CHARS_MAX


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An error as it is recorded in a history: plain text that any process and any language can read."""

    code: str
    message: str
    type: str = ""
    """Name of the exception's class."""
    traceback: str = ""
    retry_after_us: int = 0
    """The delay that the error itself asks for (`Retry-After`); 0: none."""


class PerdureError(Exception):
    """The base of every error that Perdure can explain."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "UNKNOWN"
    """A name of `grpc.StatusCode`."""
    exit_code: int = 1

    @classmethod
    def meaning(cls) -> str:
        """What the code means, in one line."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    def to_failure(self) -> Failure:
        """The record of this error in a history."""
        return Failure(self.code, clip(str(self)), type(self).__name__)


class InvalidInput(PerdureError):
    """The request can never work as it is; the message names what is wrong."""

    code = "invalid_input"
    http_status = 422
    grpc_status = "INVALID_ARGUMENT"
    exit_code = 2


class PayloadMismatch(InvalidInput):
    """A value does not fit the declared type."""

    code = "payload_mismatch"


class PayloadTooLarge(InvalidInput):
    """A value is over the limit for values inside a run."""

    code = "payload_too_large"


class PayloadMissing(PerdureError):
    """Content that a payload refers to is not in its store."""

    code = "payload_missing"
    http_status = 410
    grpc_status = "NOT_FOUND"
    exit_code = 4


class PayloadCorrupt(PerdureError):
    """Stored content does not have the checksum by which a payload refers to it."""

    code = "payload_corrupt"
    grpc_status = "DATA_LOSS"


class NotRegistered(InvalidInput):
    """No workflow or task of that name or version is known here."""

    code = "not_registered"
    http_status = 404
    grpc_status = "NOT_FOUND"
    exit_code = 4


class AddressRefused(InvalidInput):
    """`http:` may not connect to this address."""

    code = "address_refused"


class UpdateRejected(InvalidInput):
    """The run refuses the update; the message says why.

    Workflow code raises it to refuse an update. `Update.ask()` raises it at the caller.
    """

    code = "update_rejected"


class ExprError(InvalidInput):
    """An expression cannot be parsed or evaluated.

    `offset` counts characters of `text` from 0.
    """

    code = "expression_error"

    def __init__(self, message: str, offset: int = 0, text: str = "", path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.message, self.offset, self.text = message, offset, text
        self.path = path
        """Where in a template's value the text stands."""

    def __str__(self) -> str:
        place = [f"in {shown_path(self.path)}"] if self.path else []
        if self.text:
            place.append(f"at character {self.offset + 1} of `{excerpt(self.text, self.offset)}`")
        return f"{self.message} ({', '.join(place)})" if place else self.message


class NotFound(PerdureError):
    """There is no such run, or other resource, in this namespace."""

    code = "not_found"
    http_status = 404
    grpc_status = "NOT_FOUND"
    exit_code = 4
    run_id: bytes | None = None  # of a missing run; it stays inside the engine


class Conflict(PerdureError):
    """The request conflicts with the current state, or names several resources."""

    code = "conflict"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"


class RunAlreadyExists(Conflict):
    """The key belongs to another run; choose another key, or `attach`, or `replace`."""

    code = "run_already_exists"


class VersionTaken(Conflict):
    """The version of a workflow is registered with other code; give this code another label."""

    code = "version_taken"


class PromiseAlreadyResolved(Conflict):
    """The promise has its value; the first one stands."""

    code = "promise_already_resolved"


class RunFinished(Conflict):
    """The run has ended and takes no more messages."""

    code = "run_finished"


class ApprovalClosed(Conflict):
    """The approval is decided; the message says how and by whom."""

    code = "approval_closed"


class ApprovalExpired(Conflict):
    """The deadline of the approval has passed."""

    code = "approval_expired"


class LinkUsed(Conflict):
    """The signed link was used; it works once."""

    code = "link_used"


class LimitReached(Conflict):
    """A limit is reached: nothing was started or sent."""

    code = "limit_reached"


class LinkExpired(PerdureError):
    """The signed link has expired; ask for a new one."""

    code = "link_expired"
    http_status = 410
    grpc_status = "FAILED_PRECONDITION"


class Unauthenticated(PerdureError):
    """The credential is missing or not valid."""

    code = "unauthenticated"
    http_status = 401
    grpc_status = "UNAUTHENTICATED"
    exit_code = 5


class Forbidden(PerdureError):
    """The credential is valid but does not allow this."""

    code = "forbidden"
    http_status = 403
    grpc_status = "PERMISSION_DENIED"
    exit_code = 5


class NotAssigned(Forbidden):
    """The approval is assigned to others; the message names them."""

    code = "not_assigned"


class RateLimited(PerdureError):
    """Too many requests under one credential; wait as long as `Retry-After` says."""

    code = "rate_limited"
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(PerdureError):
    """Try again later: the database cannot be reached, or the server is stopping."""

    code = "unavailable"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    exit_code = 5


class Fenced(Unavailable):
    """The session of this engine has expired and its write was refused; it is registering again."""

    code = "fenced"


class SecretUnavailable(Unavailable):
    """A provider of secrets does not answer; the attempt is tried again."""

    code = "secret_unavailable"


class SecretMissing(PerdureError):
    """A worker has no such secret, or cannot use its value."""

    code = "secret_missing"


class SecretExposed(PerdureError):
    """The result of a task contains a secret, and is not recorded."""

    code = "secret_exposed"


class RecordedError(PerdureError):
    """An error rebuilt from its record; `failure` holds the original type name and traceback as text."""

    event = 0
    """Number of the event, in the history of its run, that reported the error to the code."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    def __str__(self) -> str:
        kind = self.failure.type
        return f"{kind}: {self.failure.message}" if kind and kind != type(self).__name__ else self.failure.message

    def to_failure(self) -> Failure:
        return self.failure


class RunError(RecordedError):
    """The run ended without success; `Handle.result()` raises it."""

    code = "run_error"


class RunFailed(RunError):
    """The code of the run raised, or the engine ended the run."""

    code = "run_failed"


class RunExpired(RunFailed):
    """The run did not begin within the time that its start allowed."""

    code = "run_expired"


class RunCancelled(RunError):
    """The run was cancelled and has unwound."""

    code = "run_cancelled"
    exit_code = 3


class TaskError(RecordedError):
    """The task ended without success; raised where the workflow awaits it."""

    code = "task_error"


class TaskFailed(TaskError):
    """The code of the task raised and no attempt is left."""

    code = "task_failed"


class TaskTimeout(TaskError):
    """No attempt of the task ended in time."""

    code = "task_timeout"


class TaskLost(TaskError):
    """The workers of the task were lost too often, or once if it runs at most once."""

    code = "task_lost"


class TaskCancelled(TaskError):
    """The task was cancelled before it ended."""

    code = "task_cancelled"


class ChildFailed(RecordedError):
    """A child run ended without success."""

    code = "child_failed"


class ApprovalRejected(RecordedError):
    """The approval was rejected; raised where the workflow awaits it.

    `by` names the people who rejected it, `comment` says why.
    """

    code = "approval_rejected"

    def __init__(self, failure: Failure, by: tuple[str, ...] = (), comment: str = "") -> None:
        super().__init__(failure)
        self.by, self.comment = by, comment


class UpdateFailed(RecordedError):
    """The code that handled the update raised; the message says what."""

    code = "update_failed"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"


class QueryFailed(RecordedError):
    """The code of the query raised, or took too long; the message says what."""

    code = "query_failed"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"


class WorkflowRuleBroken(PerdureError):
    """Workflow code did something that only a task may do."""

    code = "workflow_rule_broken"


class NondeterminismError(WorkflowRuleBroken):
    """The code of the workflow and the history of the run disagree."""

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
    """The history of the run reached `HISTORY_EVENTS_MAX`."""

    code = "history_too_large"


class Stuck(PerdureError):
    """The run cannot go on until its code or data is repaired; `Handle.resume()` lets it try again."""

    code = "stuck"


class IllegalTransition(PerdureError):
    """A bug in Perdure: the lifecycle table has no such transition."""

    code = "illegal_transition"


class MigrationError(PerdureError):
    """The schema of the database is not the one this version expects."""

    code = "migration"


class WorkflowDeleted(Conflict):
    """The workflow was deleted and takes no new runs; registering it again restores it."""

    code = "workflow_deleted"


class IdempotencyConflict(Conflict):
    """The idempotency key was used for a different request; use a new key."""

    code = "idempotency_conflict"


class NoSecretKey(Conflict):
    """The server has no key to seal a secret with; see `PERDURE_SECRET_KEY_FILE`."""

    code = "no_secret_key"


class CannotOpenSecret(PerdureError):
    """A secret was sealed with a key that this server does not have, or was changed."""

    code = "cannot_open_secret"


class PayloadKeyMissing(PerdureError):
    """Data is encrypted with a key that this process cannot use; see `PERDURE_PAYLOAD_KEYS`."""

    code = "payload_key_missing"
    http_status = 503
    grpc_status = "UNAVAILABLE"


def error_classes(kind: type[PerdureError] = PerdureError) -> Iterator[type[PerdureError]]:
    """The class and every loaded class below it, in the order of their definition."""
    yield kind
    for below in kind.__subclasses__():
        yield from error_classes(below)


# Tracebacks show the name that users import.
for _kind in error_classes():
    _kind.__module__ = "perdure.errors"


TASK_ERRORS: dict[str, type[TaskError]] = {c.code: c for c in (TaskFailed, TaskTimeout, TaskLost, TaskCancelled)}


def task_error(failure: Failure) -> TaskError:
    """The exception a workflow sees for a recorded task failure."""
    return TASK_ERRORS.get(failure.code, TaskFailed)(failure)


_ANSWERS: dict[str, type[PerdureError]] = {c.code: c for c in (UpdateRejected, RunFinished, Conflict)}


def update_error(failure: Failure) -> PerdureError:
    """The exception that `Update.ask()` raises for a recorded refusal."""
    known = _ANSWERS.get(failure.code)
    return known(failure.message) if known is not None else UpdateFailed(failure)


def clip(text: str, limit: int = ERROR_CHARS_MAX) -> str:
    """Keep both ends of a long text: the head says what, the tail says where. NUL and lone surrogates cannot be stored."""
    text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    if len(text) <= limit:
        return text
    half = (limit - 40) // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters cut …\n{text[-half:]}"
