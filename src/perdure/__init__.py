"""Perdure: durable workflows in plain Python on PostgreSQL.

What this module exports is the public API; everything else may change. Names load on first use, so `import perdure` is light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.core.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from perdure.app.embedded import Perdure
    from perdure.app.sync import SyncHandle, SyncPerdure
    from perdure.core.errors import (
        ApprovalClosed,
        ApprovalExpired,
        ApprovalRejected,
        ChildFailed,
        Conflict,
        Failure,
        Forbidden,
        HistoryTooLarge,
        InvalidInput,
        LimitReached,
        NondeterminismError,
        NotFound,
        NotRegistered,
        PayloadMismatch,
        PayloadTooLarge,
        PerdureError,
        PromiseAlreadyResolved,
        RunAlreadyExists,
        RunCancelled,
        RunError,
        RunFailed,
        RunFinished,
        TaskCancelled,
        TaskError,
        TaskFailed,
        TaskLost,
        TaskTimeout,
        Unauthenticated,
        Unavailable,
        UpdateFailed,
        UpdateRejected,
        WorkflowRuleBroken,
    )
    from perdure.engine.engine import EngineSettings
    from perdure.flows.problems import FlowError
    from perdure.sdk import wf
    from perdure.sdk.approvals import Approval
    from perdure.sdk.client.channel import Tls
    from perdure.sdk.client.client import Client
    from perdure.sdk.client.handles import Event, Handle, Stuck
    from perdure.sdk.definitions import Bound, Task, Workflow, task, workflow
    from perdure.sdk.flow_control import Debounce, Dedup, Fair, Limit, RateLimit
    from perdure.sdk.flows import FlowRef, flow
    from perdure.sdk.messages import NamedEvent, Promise, Signal, State
    from perdure.sdk.options import Retry
    from perdure.sdk.schedules import Schedule
    from perdure.sdk.updates import Update
    from perdure.sdk.worker.attempts import Attempt, AttemptCancelled, FinalError, RetryLater, attempt
    from perdure.sdk.workflow.step import Step
    from perdure.testing.env import TestEnv
    from perdure.testing.replayer import export_history, replay

_HOME = {
    "perdure.app.embedded": ("Perdure",),
    "perdure.app.sync": ("SyncHandle", "SyncPerdure"),
    "perdure.core.errors": (
        "ApprovalClosed", "ApprovalExpired", "ApprovalRejected", "ChildFailed", "Conflict", "Failure", "Forbidden", "HistoryTooLarge", "InvalidInput", "LimitReached", "NondeterminismError", "NotFound", "NotRegistered",
        "PayloadMismatch", "PayloadTooLarge", "PerdureError", "PromiseAlreadyResolved", "RunAlreadyExists", "RunCancelled", "RunError",
        "RunFailed", "RunFinished", "TaskCancelled", "TaskError", "TaskFailed", "TaskLost", "TaskTimeout", "Unauthenticated", "Unavailable",
        "UpdateFailed", "UpdateRejected", "WorkflowRuleBroken",
    ),
    "perdure.flows.problems": ("FlowError",),
    "perdure.engine.engine": ("EngineSettings",),
    "perdure.sdk.approvals": ("Approval",),
    "perdure.sdk.worker.attempts": ("Attempt", "AttemptCancelled", "FinalError", "RetryLater", "attempt"),
    "perdure.sdk.client.channel": ("Tls",),
    "perdure.sdk.client.handles": ("Event", "Handle", "Stuck"),
    "perdure.sdk.flow_control": ("Debounce", "Dedup", "Fair", "Limit", "RateLimit"),
    "perdure.sdk.definitions": ("Bound", "Task", "Workflow", "task", "workflow"),
    "perdure.sdk.flows": ("FlowRef", "flow"),
    "perdure.sdk.messages": ("NamedEvent", "Promise", "Signal", "State"),
    "perdure.sdk.options": ("Retry",),
    "perdure.sdk.client.client": ("Client",),
    "perdure.sdk.schedules": ("Schedule",),
    "perdure.sdk.workflow.step": ("Step",),
    "perdure.sdk.updates": ("Update",),
    "perdure.testing.env": ("TestEnv",),
    "perdure.testing.replayer": ("export_history", "replay"),
}  # fmt: skip
_WHERE = {name: module for module, names in _HOME.items() for name in names} | {"wf": "perdure.sdk"}

__all__ = [
    "Approval", "ApprovalClosed", "ApprovalExpired", "ApprovalRejected", "Attempt", "AttemptCancelled", "Bound", "ChildFailed", "Client", "Conflict", "Debounce", "Dedup", "EngineSettings", "Event", "Failure", "Fair",
    "FinalError", "FlowError", "FlowRef", "Forbidden", "Handle", "HistoryTooLarge", "InvalidInput", "Limit", "LimitReached", "NamedEvent", "NondeterminismError", "NotFound",
    "NotRegistered", "PayloadMismatch", "PayloadTooLarge", "Perdure", "PerdureError", "Promise", "PromiseAlreadyResolved", "RateLimit", "Retry",
    "RetryLater", "RunAlreadyExists", "RunCancelled", "RunError", "RunFailed", "RunFinished", "Schedule", "Signal", "State", "Step", "Stuck", "SyncHandle",
    "SyncPerdure", "Task", "TaskCancelled", "TaskError", "TaskFailed", "TaskLost", "TaskTimeout", "TestEnv", "Tls", "Unauthenticated", "Unavailable",
    "Update", "UpdateFailed", "UpdateRejected", "Workflow", "WorkflowRuleBroken", "attempt", "export_history", "flow", "replay", "task", "wf",
    "workflow",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    from importlib import import_module

    found = import_module("perdure.sdk.wf") if name == "wf" else getattr(import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
