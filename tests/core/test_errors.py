"""The error tree: stable unique codes, and texts that always fit."""

from __future__ import annotations

import re
from http import HTTPStatus

import grpc
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors as public
from perdure.core import errors
from perdure.core.errors import (
    TASK_ERRORS,
    Failure,
    NondeterminismError,
    NotRegistered,
    PerdureError,
    RecordedError,
    TaskFailed,
    clip,
    task_error,
)
from perdure.programs.http_client import EXIT_CODES

# Once published, a code never changes its meaning: people match on it, docs link to it. Add lines, never edit them.
CODES = {
    "PerdureError": "error",
    "InvalidInput": "invalid_input",
    "PayloadMismatch": "payload_mismatch",
    "PayloadTooLarge": "payload_too_large",
    "PayloadMissing": "payload_missing",
    "PayloadCorrupt": "payload_corrupt",
    "PayloadKeyMissing": "payload_key_missing",
    "NotRegistered": "not_registered",
    "NotFound": "not_found",
    "Conflict": "conflict",
    "RunAlreadyExists": "run_already_exists",
    "VersionTaken": "version_taken",
    "PromiseAlreadyResolved": "promise_already_resolved",
    "RunFinished": "run_finished",
    "ApprovalClosed": "approval_closed",
    "ApprovalExpired": "approval_expired",
    "LinkUsed": "link_used",
    "LinkExpired": "link_expired",
    "LimitReached": "limit_reached",
    "AddressRefused": "address_refused",
    "UpdateRejected": "update_rejected",
    "UpdateFailed": "update_failed",
    "QueryFailed": "query_failed",
    "SecretUnavailable": "secret_unavailable",
    "SecretMissing": "secret_missing",
    "SecretExposed": "secret_exposed",
    "Unauthenticated": "unauthenticated",
    "Forbidden": "forbidden",
    "NotAssigned": "not_assigned",
    "RateLimited": "rate_limited",
    "Unavailable": "unavailable",
    "Fenced": "fenced",
    "RunError": "run_error",
    "RunFailed": "run_failed",
    "RunExpired": "run_expired",
    "RunCancelled": "run_cancelled",
    "TaskError": "task_error",
    "TaskFailed": "task_failed",
    "TaskTimeout": "task_timeout",
    "TaskLost": "task_lost",
    "TaskCancelled": "task_cancelled",
    "ChildFailed": "child_failed",
    "ApprovalRejected": "approval_rejected",
    "WorkflowRuleBroken": "workflow_rule_broken",
    "NondeterminismError": "nondeterminism",
    "HistoryTooLarge": "history_too_large",
    "IllegalTransition": "illegal_transition",
    "MigrationError": "migration",
    "Stuck": "stuck",
    "FlowError": "invalid_flow",
    "ExprError": "expression_error",
    "CannotOpenSecret": "cannot_open_secret",
    "IdempotencyConflict": "idempotency_conflict",
    "NoSecretKey": "no_secret_key",
    "WorkflowDeleted": "workflow_deleted",
}


def _all_errors() -> list[type[PerdureError]]:
    return [c for c in errors.error_classes() if c.__module__ == public.__name__]


def test_every_error_has_the_code_it_always_had() -> None:
    assert {c.__name__: c.code for c in _all_errors() if c is not RecordedError} == CODES


def test_no_two_errors_share_a_code() -> None:
    assert len(set(CODES.values())) == len(CODES)


def test_every_error_has_a_status_at_each_door_and_a_meaning() -> None:
    for kind in _all_errors():
        assert HTTPStatus(kind.http_status) >= 400
        assert kind.grpc_status in grpc.StatusCode.__members__
        assert kind.exit_code in EXIT_CODES
        assert kind.meaning().endswith("."), f"{kind.__name__} has no docstring"


def test_an_unknown_workflow_is_not_found_at_every_door() -> None:
    assert (NotRegistered.http_status, NotRegistered.grpc_status, NotRegistered.exit_code) == (404, "NOT_FOUND", 4)


def test_the_tree_in_the_docstring_names_every_error_with_its_code() -> None:
    drawn = dict(re.findall(r"^[ |]*(?:\+-- )?(\w+) +([a-z_]+)$", public.__doc__ or "", re.MULTILINE))
    assert drawn == CODES


def test_every_error_is_drawn_below_its_class() -> None:
    lines = re.findall(r"^    ((?:\|   |    )*)\+-- (\w+)", public.__doc__ or "", re.MULTILINE)
    above = ["PerdureError"]
    for indent, name in lines:
        above[len(indent) // 4 + 1 :] = [name]
        parent = getattr(public, name).__base__.__name__
        assert above[-2] == parent, f"{name} is drawn below {above[-2]}; its class is below {parent}"


def test_an_error_becomes_a_record_with_its_code_message_and_type() -> None:
    failure = errors.NotFound("no run 7").to_failure()
    assert failure == Failure("not_found", "no run 7", "NotFound")


def test_a_recorded_task_failure_comes_back_as_the_exception_of_its_code() -> None:
    for code, kind in TASK_ERRORS.items():
        error = task_error(Failure(code, "why", "ValueError", "trace"))
        assert type(error) is kind
        assert str(error) == "ValueError: why"
        assert error.to_failure() == Failure(code, "why", "ValueError", "trace")
    assert type(task_error(Failure("some_day", "why"))) is TaskFailed


def test_nondeterminism_names_the_place_the_expected_and_the_actual() -> None:
    error = NondeterminismError("task 3", "task 'a'", "task 'b'")
    assert "at task 3" in str(error)
    assert "expected (history): task 'a'" in str(error)
    assert "actual   (code):    task 'b'" in str(error)
    assert "wf.patched" in str(error)


@given(st.text(), st.integers(100, 1_000))
def test_a_short_text_is_kept_whole(text: str, limit: int) -> None:
    if len(text) <= limit and "\x00" not in text:
        assert clip(text, limit) == text


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=200, max_size=400), st.integers(60, 150))
def test_a_long_text_keeps_both_ends_within_the_limit(text: str, limit: int) -> None:
    kept = clip(text, limit)
    half = (limit - 40) // 2
    clean = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    assert len(kept) <= limit
    assert kept.startswith(clean[:half])
    assert kept.endswith(clean[-half:])
    assert "characters cut" in kept


def test_a_nul_never_reaches_the_database() -> None:
    assert "\x00" not in clip("a\x00b")
