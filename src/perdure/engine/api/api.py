"""One API for every door.

    door --Caller, request--> NamespaceApi.call(act, request) --permission--> handler --record--> reply

`Api` is made once per process from an engine and the ports of the database. A door asks it for a `NamespaceApi`: one namespace as one
caller may use it. Permission, audit, input checks (also for texts that cannot be stored), the author of a change and following a continued
run happen behind `call` and nowhere else. Handlers are the functions of this package's modules, one per act, grouped by noun.

An act is answered once its effect is durable. Its audit line is written after it, before the reply.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec

from perdure.core import ids
from perdure.core.access import Permission, Principal, Role
from perdure.core.api import ACTS
from perdure.core.api.act import KEY_PREFIX, LAST_RUN, RUN_PREFIX_CHARS_MIN, Act, RunRef
from perdure.core.api.texts import check_text, check_texts
from perdure.core.approvals import Via
from perdure.core.errors import Conflict, Forbidden, NotFound, RunFinished
from perdure.core.ids import no_run
from perdure.core.limits import CALL_TIMEOUT_S, SUCCESSORS_MAX
from perdure.core.work import RunView
from perdure.engine.api.ports import (
    CANDIDATES_MAX,
    ApprovalStore,
    AuditLog,
    BulkJobs,
    DeadLetters,
    Definitions,
    KeyAdmin,
    Reads,
    RetentionAdmin,
    RuleStore,
    SavedViews,
    SecretSealer,
    ServiceStore,
)
from perdure.engine.api.sql_request_port import SqlRequestStore
from perdure.engine.api.sql_starts import SqlStarts
from perdure.engine.engine import Engine
from perdure.engine.ports import Store
from perdure.engine.runs.starts import StartWatch
from perdure.engine.services.outbox import OutboxStore

PAGE_MAX: Final = 1_000
"""Items of one page."""
NAMESPACE_TRUST_US: Final = 5_000_000
"""How long a namespace that was found counts as existing; another server may delete it."""
_HEX: Final = re.compile(r"[0-9a-fA-F]{1,32}")
_ID_DIGITS: Final = 32

Q = TypeVar("Q")
R = TypeVar("R")

EMBEDDED: Final = Principal(subject="embedded", role=Role.ADMIN)
"""A program that holds the database itself, without a credential."""


class Caller(msgspec.Struct, frozen=True):
    """The author of a request and the door it came through."""

    principal: Principal
    namespace: str
    via: Via
    within_s: float = CALL_TIMEOUT_S
    """Seconds in which the call must be answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPorts:
    store: Store
    reads: Reads
    definitions: Definitions
    approvals: ApprovalStore
    rules: RuleStore
    dead_letters: DeadLetters
    services: ServiceStore
    outbox: OutboxStore
    retention: RetentionAdmin
    views: SavedViews
    bulk_jobs: BulkJobs
    sql_requests: SqlRequestStore
    keys: KeyAdmin
    audit: AuditLog
    secrets: SecretSealer
    is_audited: bool = True
    """Whether acts are recorded. Approvals are always: their lines are written in the transaction of the answer."""


class Api:
    """The API of this process, for all namespaces and callers."""

    def __init__(self, engine: Engine, ports: ApiPorts, public_url: Callable[[], str]) -> None:
        self.engine, self.ports, self._public_url = engine, ports, public_url
        self.start_watch = StartWatch()
        self.sql_starts = SqlStarts(engine, ports.sql_requests)
        self._began_s = monotonic()
        self._started_us: int | None = None
        self._namespaces: dict[str, tuple[int, int]] = {}
        """Name -> (number, when it was looked up)."""

    @property
    def public_url(self) -> str:
        """URL of this server's pages."""
        return self._public_url().rstrip("/")

    @property
    def started_us(self) -> int:
        """When this process began to answer, by the database's clock."""
        if self._started_us is None:  # reckoned once: it is the same at each answer
            self._started_us = self.engine.clock.now_us() - int((monotonic() - self._began_s) * 1_000_000)
        return self._started_us

    async def of(self, caller: Caller) -> NamespaceApi:
        """The caller's namespace. NotFound when there is none of that name."""
        return NamespaceApi(self, await self.number_of(caller.namespace), caller)

    async def number_of(self, namespace: str) -> int:
        now_us = self.engine.clock.now_us()
        known = self._namespaces.get(namespace)
        if known is not None and now_us - known[1] < NAMESPACE_TRUST_US:
            return known[0]
        check_text(namespace)
        ns = await self.ports.store.find_namespace(namespace)
        if ns is None:
            self.forget_namespace(namespace)
            raise NotFound(f"there is no namespace {namespace!r}")
        self._namespaces[namespace] = (ns, now_us)
        return ns

    def forget_namespace(self, namespace: str) -> None:
        """Drop a deleted namespace from the cache."""
        self._namespaces.pop(namespace, None)


class NamespaceApi:
    """One namespace, for one caller. Cheap to create.

    `begins_starts`: a run that isn't found, and that a committed transaction asked for in SQL, is started at once."""

    __slots__ = ("api", "begins_starts", "caller", "engine", "ns", "ports")

    def __init__(self, api: Api, ns: int, caller: Caller, *, begins_starts: bool = True) -> None:
        self.api, self.ns, self.caller, self.begins_starts = api, ns, caller, begins_starts
        self.engine, self.ports = api.engine, api.ports

    @property
    def by(self) -> str:
        """The author of what this caller changes."""
        return self.caller.principal.subject

    def within(self, seconds: float) -> NamespaceApi:
        """The same API with another time limit."""
        if seconds == self.caller.within_s:
            return self
        caller = msgspec.structs.replace(self.caller, within_s=seconds)
        return NamespaceApi(self.api, self.ns, caller, begins_starts=self.begins_starts)

    def call(self, act: Act[Q, R], request: Q) -> Coroutine[Any, Any, R]:
        """Checked at once; what it returns is awaited for the reply. Not a coroutine itself: every start passes through here."""
        self.check(act.permission)
        check_texts(request)
        handler = HANDLERS[act.name]
        names_run = self.begins_starts and act.name in NAME_RUNS
        reply: Coroutine[Any, Any, R] = self._on_run(handler, request) if names_run else handler(self, request)
        return reply

    async def _on_run(self, handler: Handler, request: Any) -> Any:
        """Nothing was done for a run that isn't there, so the act can be asked again once it is."""
        try:
            return await handler(self, request)
        except NotFound as e:
            if e.run_id is None or not await self.begin_requested(run_id=e.run_id):
                raise
        return await handler(self, request)

    async def begin_requested(self, *, run_id: bytes | None = None, key: str | None = None) -> bool:
        """For a run that wasn't found: whether it is there now, because a transaction asked for it in SQL."""
        return self.begins_starts and await self.api.sql_starts.begin(self.ns, run_id, key, self.caller.within_s)

    def check(self, permission: Permission | None) -> None:
        principal = self.caller.principal
        if permission is not None and not principal.may(permission):
            raise Forbidden(f"{principal.subject} does not have the permission {permission.value!r}")

    async def record(self, action: str, target: bytes | str, **detail: str | int | float | bool | None) -> None:
        """A line of the audit log. A run is named by its text id."""
        if self.ports.is_audited:
            shown = target if isinstance(target, str) else ids.text(target)
            await self.ports.audit.record(self.caller.principal, action, shown, self.ns, detail)

    async def run_id(self, run: RunRef) -> bytes:
        """A full id is taken as it is; the act that uses it finds out whether there is such a run.
        NotFound for a name without a run in this namespace, Conflict for a prefix of several."""
        if run == LAST_RUN:
            newest = await self.ports.reads.newest(self.ns)
            if newest is None:
                raise NotFound("there is no run in this namespace yet")
            return newest
        if run.startswith(KEY_PREFIX):
            return await self.run_of_key(run.removeprefix(KEY_PREFIX))
        digits = run.replace("-", "")
        if not _HEX.fullmatch(digits) or len(digits) < RUN_PREFIX_CHARS_MIN:
            raise NotFound(
                f"{run[:50]!r} names no run: give an id, at least {RUN_PREFIX_CHARS_MIN} of its first characters, "
                f"{KEY_PREFIX}KEY, or {LAST_RUN}"
            )
        return bytes.fromhex(digits) if len(digits) == _ID_DIGITS else await self._by_prefix(run, digits)

    async def _by_prefix(self, run: str, digits: str) -> bytes:
        low, high = bytes.fromhex(digits.ljust(32, "0")), bytes.fromhex(digits.ljust(32, "f"))
        found = await self.ports.reads.find(self.ns, low, high, CANDIDATES_MAX + 1)
        if not found:
            raise NotFound(f"no run {run} in this namespace")
        if len(found) > 1:
            named = ", ".join(ids.text(run_id) for run_id in found[:CANDIDATES_MAX])
            more = ", and more" if len(found) > CANDIDATES_MAX else ""
            raise Conflict(f"{run} is the beginning of several runs: {named}{more}; give more of it")
        return found[0]

    async def run_of_key(self, key: str) -> bytes:
        """The run that was started under a key."""
        found = await self.ports.store.run_by_key(self.ns, key)
        if found is None and await self.begin_requested(key=key):
            found = await self.ports.store.run_by_key(self.ns, key)
        if found is None:
            raise NotFound(f"no run was started under the key {key!r} in this namespace")
        return found[0]

    async def view(self, run_id: bytes) -> RunView:
        view = await self.ports.store.describe(run_id, self.ns)
        if view is None:
            raise no_run(run_id)
        return view

    async def last_of(self, run: RunRef) -> RunView:
        """The run that a name stands for, or the last run of its chain: what acts on a run that goes on are about."""
        view = await self.view(await self.run_id(run))
        for _ in range(SUCCESSORS_MAX):
            if view.next_run is None:
                return view
            view = await self.view(view.next_run)
        raise RunFinished(f"run {run} was continued too many times to follow")

    async def follow(self, run_id: bytes, attempt: Callable[[bytes], Awaitable[R | None]]) -> R:
        """Try a run, then the runs that it continued as, until `attempt` returns a result."""
        first = run_id
        for _ in range(SUCCESSORS_MAX):
            taken = await attempt(run_id)
            if taken is not None:
                return taken
            view = await self.view(run_id)
            if view.next_run is None:
                raise ids.ended_run(run_id)
            run_id = view.next_run
        raise RunFinished(f"run {ids.text(first)} was continued too many times to follow")


def page_limit(limit: int) -> int:
    return min(max(limit, 1), PAGE_MAX)


Handler = Callable[[NamespaceApi, Any], Coroutine[Any, Any, Any]]
NAME_RUNS: Final = frozenset(act.name for act in ACTS.values() if hasattr(act.request, "run"))
"""Acts on one run."""
HANDLERS: Final[dict[str, Handler]] = {}
"""By the act's name. The modules of this package fill it; `perdure.engine.api` imports them all."""


def handles(
    act: Act[Q, R],
) -> Callable[
    [Callable[[NamespaceApi, Q], Coroutine[Any, Any, R]]], Callable[[NamespaceApi, Q], Coroutine[Any, Any, R]]
]:
    """Make a function the handler of an act."""

    def registered(
        handler: Callable[[NamespaceApi, Q], Coroutine[Any, Any, R]],
    ) -> Callable[[NamespaceApi, Q], Coroutine[Any, Any, R]]:
        assert act.name not in HANDLERS, f"{act.name} has a handler already"
        HANDLERS[act.name] = handler
        return handler

    return registered
