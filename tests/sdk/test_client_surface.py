"""The surface of the clients, checked from the table of acts: what each method asks, that each takes a timeout, and that all clients have the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from perdure import Client, Perdure, SyncClient, SyncPerdure
from perdure.core.api import ACTS
from perdure.core.api.act import Act
from perdure.sdk.client.approvals import ApprovalClient
from perdure.sdk.client.backend import Backend
from perdure.sdk.client.base import ClientBase
from perdure.sdk.client.bulk_jobs import BulkHandle, BulkOptions
from perdure.sdk.client.handles import Handle
from perdure.sdk.client.schedules import ScheduleClient
from perdure.sdk.client.sync_handles import SyncBulkHandle, SyncHandle
from perdure.sdk.client.sync_surface import SyncApprovalClient, SyncClientBase, SyncScheduleClient, SyncVersionClient
from perdure.sdk.client.versions import VersionClient
from tests.fakes.client_calls import APPROVALS, BULK, CLIENT, HANDLE, SCHEDULES, VERSIONS, Call
from tests.fakes.failures import Failures

PAIRS = [
    (ClientBase, SyncClientBase),
    (Handle, SyncHandle),
    (BulkHandle, SyncBulkHandle),
    (ScheduleClient, SyncScheduleClient),
    (VersionClient, SyncVersionClient),
    (ApprovalClient, SyncApprovalClient),
]
WITHOUT_TIMEOUT = {"schedules", "versions", "approvals", "loop", "bulk"}
"""Properties; `bulk` has it among its options."""


class Asked(Exception):
    """An act was asked for."""

    def __init__(self, act: str, within_s: float | None) -> None:
        self.act, self.within_s = act, within_s


class Recording:
    """Acts that answer nothing."""

    timeout_s = 30.0
    payloads: Any = None

    def call(self, act: Act[Any, Any], request: Any, within_s: float | None = None) -> Coroutine[Any, Any, Any]:
        assert isinstance(request, act.request)
        raise Asked(act.name, within_s)

    def adopt(self, definition: Any) -> None:
        pass


WAITING = {"result": "run.result", "wait": "bulk_job.get"}
"""Methods whose timeout is how long they wait, and what they ask."""
SECOND = {
    "run.run": "ClientBase.run without a timeout",
    "run.query": "ClientBase.query of a Query",
    "run.signal_with_start": "Workflow.signal_with_start",
    "approval.delegate": "Approval.delegate",
    "link.create": "Approval.link, Promise.link",
    "schedule.times": "ScheduleClient.next, after schedule.get",
    "schedule.fires": "ScheduleClient.fires, after schedule.get",
    "schedule.backfill": "ScheduleClient.backfill, after schedule.get",
}
"""Acts of a method that asks another one first, or of a key."""
OTHER_DOORS = {
    "administration, REST and CLI": ("whoami", "namespace.", "key.", "audit."),
    "operation, REST, CLI and UI": (
        "worker.",
        "queue.",
        "server.",
        "dead_letter.",
        "rule.",
        "view.",
        "webhook.",
        "notification.",
        "notification_rule.",
        "event.list",
        "retention.",
    ),
    "pages and debugging, REST, CLI and UI": (
        "run.attempts",
        "run.at",
        "run.diff",
        "run.export",
        "run.paths",
        "run.get",
        "run.count",
        "run.children",
        "run.tasks",
        "run.logs",
        "run.histogram",
        "run.timeline",
        "run.graph",
        "run.states",
        "run.update_result",
        "workflow.",
        "namespace.counts",
        "approval.get",
        "bulk_job.list",
        "schedule.preview",
        "calendar.",
    ),
    "used by workers and clients themselves": ("payload.", "service.", "service_call."),
}


def public(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")}


def _client(backend: Backend) -> ClientBase:
    made = ClientBase()
    made._backend = backend
    return made


TABLES: list[tuple[type, Callable[[Backend], Any], dict[str, tuple[str, Call]]]] = [
    (ClientBase, _client, CLIENT),
    (Handle, lambda b: Handle(b, bytes(16), bytes), HANDLE),
    (BulkHandle, lambda b: BulkHandle(b, "x"), BULK),
    (ScheduleClient, ScheduleClient, SCHEDULES),
    (VersionClient, VersionClient, VERSIONS),
    (ApprovalClient, ApprovalClient, APPROVALS),
]


async def test_methods_ask_their_acts_in_their_time() -> None:
    with Failures() as failures:
        for cls, make, table in TABLES:
            for name, (act, call) in table.items():
                with failures.of(f"{cls.__name__}.{name}"):
                    assert await asked_by(call, make(Backend(Recording()))) == (act, 3.0)


async def asked_by(call: Call, client: Any) -> tuple[str, float | None] | None:
    """The act and its time, of a call that has three seconds."""
    try:
        await call(client, 3)
    except Asked as asked:
        return asked.act, asked.within_s
    return None


def test_every_method_is_in_the_tables_above() -> None:
    with Failures() as failures:
        for cls, _, table in TABLES:
            with failures.of(cls.__name__):
                assert public(cls) - (WITHOUT_TIMEOUT - {"bulk"}) - set(WAITING) == set(table)


def test_every_act_has_a_method_or_a_reason() -> None:
    methods = {act for table in (CLIENT, HANDLE, BULK, SCHEDULES, VERSIONS, APPROVALS) for act, _ in table.values()}
    methods |= set(WAITING.values()) | set(SECOND)
    elsewhere = tuple(prefix for prefixes in OTHER_DOORS.values() for prefix in prefixes)
    missing = [act.name for act in ACTS.values() if act.name not in methods and not act.name.startswith(elsewhere)]
    assert missing == []
    assert methods <= {act.name for act in ACTS.values()}


def test_clients_and_their_blocking_forms_have_the_same_methods() -> None:
    with Failures() as failures:
        for cls, sync in PAIRS:
            with failures.of(cls.__name__):
                assert public(cls) - {"loop"} == public(sync) - ({"id", "key"} & set(vars(sync)))
            for name in sorted(public(sync) - {"schedules", "versions", "approvals"}):
                with failures.of(f"{sync.__name__}.{name}"):
                    mine, theirs = parameters_of(sync, name), parameters_of(cls, name)
                    assert [p.name for p in mine] == [p.name for p in theirs]
                    assert [p.default for p in mine] == [p.default for p in theirs]


def parameters_of(cls: type, name: str) -> list[inspect.Parameter]:
    return list(inspect.signature(getattr(cls, name)).parameters.values())


def test_every_method_takes_a_timeout() -> None:
    with Failures() as failures:
        for cls in (cls for pair in PAIRS for cls in pair):
            for name in sorted(public(cls) - WITHOUT_TIMEOUT):
                with failures.of(f"{cls.__name__}.{name}"):
                    assert "timeout" in _parameters(getattr(cls, name)), "takes no timeout"
    assert "timeout" in BulkOptions.__annotations__


def _parameters(method: Any) -> set[str]:
    if isinstance(method, property):
        return set()
    named = set(inspect.signature(method).parameters)
    return named | ({"timeout"} if method.__name__ in ("start", "run", "query") and "kwargs" in named else set())


def test_four_clients_have_one_surface() -> None:
    assert issubclass(Client, ClientBase)
    assert issubclass(Perdure, ClientBase)
    assert issubclass(SyncClient, SyncClientBase)
    assert issubclass(SyncPerdure, SyncClientBase)
