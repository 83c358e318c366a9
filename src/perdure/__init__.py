"""Perdure: durable workflows in plain Python on PostgreSQL.

The names of this module and of `perdure.errors` are the public API; everything else may change. They load on first use, so that
`import perdure` is fast. Type checkers read `__init__.pyi`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from perdure.core.version import VERSION

__version__ = VERSION

_MODULES = {
    "Approval": "perdure.sdk.approvals",
    "Attempt": "perdure.sdk.worker.attempts",
    "Blob": "perdure.sdk.payloads.blobs",
    "Bound": "perdure.sdk.startable",
    "Client": "perdure.sdk.client.client",
    "ClientBase": "perdure.sdk.client.base",
    "Debounce": "perdure.sdk.flow_control",
    "Dedup": "perdure.sdk.flow_control",
    "EngineSettings": "perdure.engine.settings",
    "Event": "perdure.sdk.client.handles",
    "Fair": "perdure.sdk.flow_control",
    "FlowRef": "perdure.sdk.flows",
    "Handle": "perdure.sdk.client.handles",
    "Limit": "perdure.sdk.flow_control",
    "NamedEvent": "perdure.sdk.messages",
    "On": "perdure.sdk.event_starts",
    "Perdure": "perdure.app.embedded",
    "Promise": "perdure.sdk.messages",
    "Query": "perdure.sdk.queries",
    "RateLimit": "perdure.sdk.flow_control",
    "Retry": "perdure.sdk.options",
    "Schedule": "perdure.sdk.schedules",
    "Signal": "perdure.sdk.messages",
    "State": "perdure.sdk.messages",
    "Step": "perdure.sdk.workflow.step",
    "SyncClient": "perdure.app.sync",
    "SyncClientBase": "perdure.sdk.client.sync_surface",
    "SyncHandle": "perdure.sdk.client.sync_handles",
    "SyncPerdure": "perdure.app.sync",
    "Task": "perdure.sdk.definitions",
    "TestEnv": "perdure.testing.env",
    "Tls": "perdure.sdk.client.channel",
    "Update": "perdure.sdk.updates",
    "Workflow": "perdure.sdk.definitions",
    "attempt": "perdure.sdk.worker.attempts",
    "client": "perdure.sdk.client.base",
    "close": "perdure.app.notebook",
    "errors": "perdure",
    "export_history": "perdure.testing.replayer",
    "flow": "perdure.sdk.flows",
    "in_sync_transaction": "perdure.sdk.transactions",
    "in_transaction": "perdure.sdk.transactions",
    "job": "perdure.sdk.jobs",
    "open": "perdure.app.notebook",
    "replay": "perdure.testing.replayer",
    "secret": "perdure.sdk.worker.attempt_secrets",
    "sync_client": "perdure.app.sync",
    "task": "perdure.sdk.definitions",
    "wf": "perdure.sdk",
    "workflow": "perdure.sdk.definitions",
}
"""The module, or for `errors` and `wf` the package, that defines each public name."""

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    home = _MODULES[name]
    found = import_module(f"{home}.{name}") if name in ("errors", "wf") else getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
