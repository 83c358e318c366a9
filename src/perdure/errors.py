"""The exceptions of Perdure.

Every error below `PerdureError` has a stable `code`, the `http_status`, `grpc_status` and `exit_code` that servers and commands answer
with, and a message that says what happened, why, and what to do next. docs/reference/errors.md says what to do about each of them.

    PerdureError                     error
    +-- InvalidInput                 invalid_input
    |   +-- PayloadMismatch          payload_mismatch
    |   +-- PayloadTooLarge          payload_too_large
    |   +-- NotRegistered            not_registered
    |   +-- AddressRefused           address_refused
    |   +-- UpdateRejected           update_rejected
    |   +-- ExprError                expression_error
    |   +-- FlowError                invalid_flow
    +-- PayloadMissing               payload_missing
    +-- PayloadCorrupt               payload_corrupt
    +-- PayloadKeyMissing            payload_key_missing
    +-- NotFound                     not_found
    +-- Conflict                     conflict
    |   +-- RunAlreadyExists         run_already_exists
    |   +-- VersionTaken             version_taken
    |   +-- PromiseAlreadyResolved   promise_already_resolved
    |   +-- RunFinished              run_finished
    |   +-- ApprovalClosed           approval_closed
    |   +-- ApprovalExpired          approval_expired
    |   +-- LinkUsed                 link_used
    |   +-- LimitReached             limit_reached
    |   +-- WorkflowDeleted          workflow_deleted
    |   +-- IdempotencyConflict      idempotency_conflict
    |   +-- NoSecretKey              no_secret_key
    +-- LinkExpired                  link_expired
    +-- Unauthenticated              unauthenticated
    +-- Forbidden                    forbidden
    |   +-- NotAssigned              not_assigned
    +-- RateLimited                  rate_limited
    +-- Unavailable                  unavailable
    |   +-- Fenced                   fenced
    |   +-- SecretUnavailable        secret_unavailable
    +-- SecretMissing                secret_missing
    +-- SecretExposed                secret_exposed
    +-- RecordedError
    |   +-- RunError                 run_error
    |   |   +-- RunFailed            run_failed
    |   |   |   +-- RunExpired       run_expired
    |   |   +-- RunCancelled         run_cancelled
    |   +-- TaskError                task_error
    |   |   +-- TaskFailed           task_failed
    |   |   +-- TaskTimeout          task_timeout
    |   |   +-- TaskLost             task_lost
    |   |   +-- TaskCancelled        task_cancelled
    |   +-- ChildFailed              child_failed
    |   +-- ApprovalRejected         approval_rejected
    |   +-- UpdateFailed             update_failed
    |   +-- QueryFailed              query_failed
    +-- WorkflowRuleBroken           workflow_rule_broken
    |   +-- NondeterminismError      nondeterminism
    +-- HistoryTooLarge              history_too_large
    +-- Stuck                        stuck
    +-- IllegalTransition            illegal_transition
    +-- MigrationError               migration
    +-- CannotOpenSecret             cannot_open_secret

Three more are not below it, because they belong to the code of tasks: `FinalError` and `RetryLater` are raised by it, `AttemptCancelled`
is raised inside it. `Failure` is the record of an error: `error.failure` of a `RecordedError`.
"""

from __future__ import annotations

from perdure.core.errors import (
    AddressRefused,
    ApprovalClosed,
    ApprovalExpired,
    ApprovalRejected,
    CannotOpenSecret,
    ChildFailed,
    Conflict,
    ExprError,
    Failure,
    Fenced,
    Forbidden,
    HistoryTooLarge,
    IdempotencyConflict,
    IllegalTransition,
    InvalidInput,
    LimitReached,
    LinkExpired,
    LinkUsed,
    MigrationError,
    NondeterminismError,
    NoSecretKey,
    NotAssigned,
    NotFound,
    NotRegistered,
    PayloadCorrupt,
    PayloadKeyMissing,
    PayloadMismatch,
    PayloadMissing,
    PayloadTooLarge,
    PerdureError,
    PromiseAlreadyResolved,
    QueryFailed,
    RateLimited,
    RecordedError,
    RunAlreadyExists,
    RunCancelled,
    RunError,
    RunExpired,
    RunFailed,
    RunFinished,
    SecretExposed,
    SecretMissing,
    SecretUnavailable,
    Stuck,
    TaskCancelled,
    TaskError,
    TaskFailed,
    TaskLost,
    TaskTimeout,
    Unauthenticated,
    Unavailable,
    UpdateFailed,
    UpdateRejected,
    VersionTaken,
    WorkflowDeleted,
    WorkflowRuleBroken,
)
from perdure.flows.problems import FlowError
from perdure.sdk.worker.attempts import AttemptCancelled, FinalError, RetryLater

__all__ = [
    "AddressRefused",
    "ApprovalClosed",
    "ApprovalExpired",
    "ApprovalRejected",
    "AttemptCancelled",
    "CannotOpenSecret",
    "ChildFailed",
    "Conflict",
    "ExprError",
    "Failure",
    "Fenced",
    "FinalError",
    "FlowError",
    "Forbidden",
    "HistoryTooLarge",
    "IdempotencyConflict",
    "IllegalTransition",
    "InvalidInput",
    "LimitReached",
    "LinkExpired",
    "LinkUsed",
    "MigrationError",
    "NoSecretKey",
    "NondeterminismError",
    "NotAssigned",
    "NotFound",
    "NotRegistered",
    "PayloadCorrupt",
    "PayloadKeyMissing",
    "PayloadMismatch",
    "PayloadMissing",
    "PayloadTooLarge",
    "PerdureError",
    "PromiseAlreadyResolved",
    "QueryFailed",
    "RateLimited",
    "RecordedError",
    "RetryLater",
    "RunAlreadyExists",
    "RunCancelled",
    "RunError",
    "RunExpired",
    "RunFailed",
    "RunFinished",
    "SecretExposed",
    "SecretMissing",
    "SecretUnavailable",
    "Stuck",
    "TaskCancelled",
    "TaskError",
    "TaskFailed",
    "TaskLost",
    "TaskTimeout",
    "Unauthenticated",
    "Unavailable",
    "UpdateFailed",
    "UpdateRejected",
    "VersionTaken",
    "WorkflowDeleted",
    "WorkflowRuleBroken",
]
