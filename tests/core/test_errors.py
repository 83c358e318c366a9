"""The error tree: stable unique codes, and texts that always fit."""

from __future__ import annotations

import inspect
import re

from hypothesis import given
from hypothesis import strategies as st

import perdure.sdk.client.handles
from perdure.core import errors
from perdure.core.errors import (
    TASK_ERRORS,
    Failure,
    NondeterminismError,
    PerdureError,
    RecordedError,
    TaskFailed,
    clip,
    task_error,
)
from perdure.core.expressions import ExprError
from perdure.flows.problems import FlowError

# Once published, a code never changes its meaning: people match on it, docs link to it. Add lines, never edit them.
CODES = {
    "PerdureError": "error",
    "InvalidInput": "invalid_input",
    "PayloadMismatch": "payload_mismatch",
    "PayloadTooLarge": "payload_too_large",
    "NotRegistered": "not_registered",
    "NotFound": "not_found",
    "Conflict": "conflict",
    "RunAlreadyExists": "run_already_exists",
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
    "Unauthenticated": "unauthenticated",
    "Forbidden": "forbidden",
    "NotAssigned": "not_assigned",
    "RateLimited": "rate_limited",
    "Unavailable": "unavailable",
    "Fenced": "fenced",
    "RunError": "run_error",
    "RunFailed": "run_failed",
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
    "CannotOpenSecret": "cannot_open_secret",
    "IdempotencyConflict": "idempotency_conflict",
    "NoSecretKey": "no_secret_key",
    "WorkflowDeleted": "workflow_deleted",
}


def _all_errors() -> list[type[PerdureError]]:
    found = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, PerdureError)]
    return [*found, perdure.sdk.client.handles.Stuck]


def test_every_error_has_the_code_it_always_had() -> None:
    assert {c.__name__: c.code for c in _all_errors() if c is not RecordedError} == CODES


def test_no_two_errors_share_a_code() -> None:
    assert len(set(CODES.values())) == len(CODES)


def test_the_tree_in_the_docstring_names_every_error_with_its_code() -> None:
    tree = errors.__doc__ or ""
    for name, code in CODES.items():
        if name in ("Stuck", "PerdureError", "RunError", "TaskError"):
            continue
        line = next((line for line in tree.splitlines() if f" {name} " in f"{line} "), "")
        assert code in line, f"{name} is missing from the tree, or its code is"


def test_every_error_is_drawn_below_its_class() -> None:
    """docs/generate.py reads the drawing."""
    lines = re.findall(r"^    ((?:\|   |    )*)\+-- (\w+)", errors.__doc__ or "", re.MULTILINE)
    drawn = {"PerdureError", *(name for _, name in lines)}
    above = ["PerdureError"]
    for indent, name in lines:
        above[len(indent) // 4 + 1 :] = [name]
        kind: type = {"FlowError": FlowError, "ExprError": ExprError}.get(name) or vars(errors)[name]
        parent = next(c.__name__ for c in kind.__mro__[1:] if c.__name__ in drawn)
        assert above[-2] == parent, f"{name} is drawn below {above[-2]}; its class is below {parent}"
    assert {name for name in CODES if name != "Stuck"} <= drawn


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
