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
        ChildFailed,
        Conflict,
        Failure,
        Forbidden,
        HistoryTooLarge,
        InvalidInput,
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
        WorkflowRuleBroken,
    )
    from perdure.core.flow.problems import FlowError
    from perdure.engine.engine import EngineSettings
    from perdure.sdk import wf
    from perdure.sdk.attempts import Attempt, attempt
    from perdure.sdk.channel import Tls
    from perdure.sdk.client import Event, Handle, Stuck
    from perdure.sdk.definitions import Bound, Task, Workflow, task, workflow
    from perdure.sdk.flows import FlowRef, flow
    from perdure.sdk.messages import Promise, Signal, State
    from perdure.sdk.options import Retry
    from perdure.sdk.remote_client import Client
    from perdure.sdk.step import Step
    from perdure.testing.env import TestEnv
    from perdure.testing.replayer import export_history, replay

_HOME = {
    "perdure.app.embedded": ("Perdure",),
    "perdure.app.sync": ("SyncHandle", "SyncPerdure"),
    "perdure.core.errors": (
        "ChildFailed", "Conflict", "Failure", "Forbidden", "HistoryTooLarge", "InvalidInput", "NondeterminismError", "NotFound", "NotRegistered",
        "PayloadMismatch", "PayloadTooLarge", "PerdureError", "PromiseAlreadyResolved", "RunAlreadyExists", "RunCancelled", "RunError",
        "RunFailed", "RunFinished", "TaskCancelled", "TaskError", "TaskFailed", "TaskLost", "TaskTimeout", "Unauthenticated", "Unavailable",
        "WorkflowRuleBroken",
    ),
    "perdure.core.flow.problems": ("FlowError",),
    "perdure.engine.engine": ("EngineSettings",),
    "perdure.sdk.attempts": ("Attempt", "attempt"),
    "perdure.sdk.channel": ("Tls",),
    "perdure.sdk.client": ("Event", "Handle", "Stuck"),
    "perdure.sdk.definitions": ("Bound", "Task", "Workflow", "task", "workflow"),
    "perdure.sdk.flows": ("FlowRef", "flow"),
    "perdure.sdk.messages": ("Promise", "Signal", "State"),
    "perdure.sdk.options": ("Retry",),
    "perdure.sdk.remote_client": ("Client",),
    "perdure.sdk.step": ("Step",),
    "perdure.testing.env": ("TestEnv",),
    "perdure.testing.replayer": ("export_history", "replay"),
}  # fmt: skip
_WHERE = {name: module for module, names in _HOME.items() for name in names} | {"wf": "perdure.sdk"}

__all__ = [
    "Attempt", "Bound", "ChildFailed", "Client", "Conflict", "EngineSettings", "Event", "Failure", "FlowError", "FlowRef", "Forbidden", "Handle", "HistoryTooLarge", "InvalidInput",
    "NondeterminismError", "NotFound", "NotRegistered", "PayloadMismatch", "PayloadTooLarge", "Perdure", "PerdureError", "Promise",
    "PromiseAlreadyResolved", "Retry", "RunAlreadyExists", "RunCancelled", "RunError", "RunFailed", "RunFinished", "Signal", "State", "Step",
    "Stuck", "SyncHandle", "SyncPerdure", "Task", "TaskCancelled", "TaskError", "TaskFailed", "TaskLost", "TaskTimeout", "TestEnv", "Tls", "Unauthenticated",
    "Unavailable", "Workflow", "WorkflowRuleBroken", "attempt", "export_history", "flow", "replay", "task", "wf", "workflow",
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
