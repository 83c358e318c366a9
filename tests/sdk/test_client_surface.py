"""The surface of the clients, checked from the table of acts: what each method asks, that each takes a timeout, and that all clients have the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

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


@pytest.fixture
def backend() -> Backend:
    return Backend(Recording())


def _asks(make: Callable[[Backend], Any], table: dict[str, tuple[str, Call]]) -> list[Any]:
    return [pytest.param(make, act, call, id=name) for name, (act, call) in table.items()]


def _client(backend: Backend) -> ClientBase:
    made = ClientBase()
    made._backend = backend
    return made


METHODS = [
    *_asks(_client, CLIENT),
    *_asks(lambda b: Handle(b, bytes(16), bytes), HANDLE),
    *_asks(lambda b: BulkHandle(b, "x"), BULK),
    *_asks(ScheduleClient, SCHEDULES),
    *_asks(VersionClient, VERSIONS),
    *_asks(ApprovalClient, APPROVALS),
]


@pytest.mark.parametrize(("make", "act", "call"), METHODS)
async def test_a_method_asks_its_act_in_its_time(make: Any, act: str, call: Any, backend: Backend) -> None:
    with pytest.raises(Asked) as asked:
        await call(make(backend), 3)
    assert (asked.value.act, asked.value.within_s) == (act, 3.0)


@pytest.mark.parametrize(
    ("cls", "table"),
    [
        (ClientBase, CLIENT),
        (Handle, HANDLE),
        (BulkHandle, BULK),
        (ScheduleClient, SCHEDULES),
        (VersionClient, VERSIONS),
        (ApprovalClient, APPROVALS),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_every_method_is_in_the_tables_above(cls: type, table: dict[str, Any]) -> None:
    assert public(cls) - (WITHOUT_TIMEOUT - {"bulk"}) - set(WAITING) == set(table)


def test_every_act_has_a_method_or_a_reason() -> None:
    methods = {act for table in (CLIENT, HANDLE, BULK, SCHEDULES, VERSIONS, APPROVALS) for act, _ in table.values()}
    methods |= set(WAITING.values()) | set(SECOND)
    elsewhere = tuple(prefix for prefixes in OTHER_DOORS.values() for prefix in prefixes)
    missing = [act.name for act in ACTS.values() if act.name not in methods and not act.name.startswith(elsewhere)]
    assert missing == []
    assert methods <= {act.name for act in ACTS.values()}


@pytest.mark.parametrize(("cls", "sync"), PAIRS, ids=lambda c: c.__name__)
def test_a_client_and_its_blocking_form_have_the_same_methods(cls: type, sync: type) -> None:
    kept = {"id", "key"} & set(vars(sync))
    assert public(cls) - {"loop"} == public(sync) - kept
    for name in public(sync) - {"schedules", "versions", "approvals"}:
        mine, theirs = inspect.signature(getattr(sync, name)), inspect.signature(getattr(cls, name))
        assert list(mine.parameters) == list(theirs.parameters), name
        assert [p.default for p in mine.parameters.values()] == [p.default for p in theirs.parameters.values()], name


@pytest.mark.parametrize("cls", [cls for pair in PAIRS for cls in pair], ids=lambda c: c.__name__)
def test_every_method_takes_a_timeout(cls: type) -> None:
    without = {n for n in public(cls) if "timeout" not in _parameters(getattr(cls, n))}
    assert without <= WITHOUT_TIMEOUT, without
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
