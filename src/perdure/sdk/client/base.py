"""What every client offers, whether it embeds an engine or talks to a server.

`SyncPerdure` and `SyncClient` have the same methods in a blocking form, which is generated from these: sync_surface.py.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from time import monotonic  # bound here, before workflow guards wrap it
from typing import Any, Final, ParamSpec, Protocol, TypeVar, Unpack, overload
from uuid import uuid4

import msgspec

from perdure.core import ids
from perdure.core.api import bulk_jobs, definitions, runs
from perdure.core.api.act import KEY_PREFIX
from perdure.core.api.bulk_jobs import BulkAction, StartBulkJob
from perdure.core.api.definitions import DeployFlow
from perdure.core.api.runs import GetRun, ListRuns, RunFilter, RunItem
from perdure.core.attributes import decode_attributes
from perdure.core.calls import encode_json
from perdure.core.durations import Duration, datetime_of, to_us, us_of
from perdure.core.errors import InvalidInput
from perdure.core.lifecycle import RunStatus
from perdure.sdk.client.approvals import ApprovalClient
from perdure.sdk.client.backend import Backend, backend
from perdure.sdk.client.bulk_jobs import BulkHandle, BulkOptions
from perdure.sdk.client.flow_text import flow_text
from perdure.sdk.client.handles import Handle
from perdure.sdk.client.html import run_html
from perdure.sdk.client.keys import (
    ApprovalDecision,
    ApprovalKey,
    EventKey,
    PromiseKey,
    QueryKey,
    SignalKey,
    StateKey,
    UpdateKey,
    read,
    within,
)
from perdure.sdk.client.schedules import ScheduleClient
from perdure.sdk.client.versions import VersionClient
from perdure.sdk.options import checked
from perdure.sdk.payloads import Converter

PAGE_RUNS: Final = 500
"""Runs of one page of `runs()`."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class StartableWorkflow(Protocol[P, R_co]):
    """A workflow object, or a flow by name."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes: ...
    def decode_result(self, data: bytes) -> Any: ...
    async def start_on(self, target: Backend, data: bytes, within_s: float | None = None) -> Handle[R_co]: ...
    async def run_on(self, target: Backend, data: bytes, within_s: float | None = None) -> R_co: ...


class BoundWorkflow(Protocol[R_co]):
    """A workflow with its arguments: `workflow.bind(...)`."""

    async def start_bound(self, target: Backend, within_s: float | None = None) -> Handle[R_co]: ...
    async def run_bound(self, target: Backend) -> R_co: ...


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list."""

    id: str
    key: str
    workflow: str
    version: str
    status: str
    created_at: datetime
    finished_at: datetime | None
    error: str | None
    error_code: str | None = None
    parent: str | None = None
    attributes: dict[str, str | bool | int | float | None] = {}
    """Its search attributes."""
    stuck: str | None = None
    """Why an active run cannot go on."""

    def _repr_html_(self) -> str:
        return run_html(self)


class ClientBase:
    """What can be asked of Perdure: the same for `Perdure` and `Client`, and blocking for `SyncPerdure` and `SyncClient`.

    Each call takes a `timeout`, that of the client (30 seconds) unless given, and raises Unavailable when it is over without an answer.
    """

    _backend: Backend

    @property
    def schedules(self) -> ScheduleClient:
        """ScheduleClient, by name."""
        return ScheduleClient(self._backend)

    @property
    def versions(self) -> VersionClient:
        """Versions of workflows."""
        return VersionClient(self._backend)

    @property
    def approvals(self) -> ApprovalClient:
        """Open approvals."""
        return ApprovalClient(self._backend)

    @overload
    async def start(self, workflow: BoundWorkflow[R], *, timeout: Duration | None = None) -> Handle[R]: ...
    @overload
    async def start(self, workflow: StartableWorkflow[P, R], *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    async def start(self, workflow: Any, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Start a run; returns when the run is durable.

            await client.start(order, 42)
            await client.start(order.bind(42), timeout="5s")

        A start that raised Unavailable does not run later; under a key it can be repeated safely with `on_conflict="attach"`.
        """
        handle: Handle[Any]
        if _is_bound(workflow, args, kwargs):
            handle = await workflow.start_bound(self._backend, within(kwargs.get("timeout")))
        else:
            handle = await workflow.start_on(self._backend, workflow.encode_call(args, kwargs))
        return handle

    @overload
    async def run(self, workflow: BoundWorkflow[R], *, timeout: Duration | None = None) -> R: ...
    @overload
    async def run(self, workflow: StartableWorkflow[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def run(self, workflow: Any, *args: Any, **kwargs: Any) -> Any:
        """Start a run and wait for its result. Raises what `start()` and `Handle.result()` raise.

        The start ends within the timeout of the client. Waiting has no limit, unless the workflow is bound and a `timeout` given: then it
        limits both.
        """
        if not _is_bound(workflow, args, kwargs):
            return await workflow.run_on(self._backend, workflow.encode_call(args, kwargs))
        timeout = kwargs.get("timeout")
        if timeout is None:
            return await workflow.run_bound(self._backend)
        began_s, limit_s = monotonic(), to_us(timeout) / 1e6
        handle = await workflow.start_bound(self._backend, min(limit_s, self._backend.acts.timeout_s))
        return await handle.result(max(began_s + limit_s - monotonic(), 0.0))

    async def get(
        self,
        id: str | None = None,
        *,
        key: str | None = None,
        workflow: StartableWorkflow[Any, R] | None = None,
        timeout: Duration | None = None,
    ) -> Handle[R]:
        """A handle of an existing run, by its id or by the key that it was started under.

        Args:
            id: The run's id, at least six of its first characters, or `@last`.
            key: The key that was given with `options(key=...)`.
            workflow: The run's workflow, for a typed result.
            timeout: How long the call may take.

        Raises:
            NotFound: There is no such run. A debounced or batched start becomes a run when it begins; until then only the handle
                that its start returned can wait for it.
        """
        if (id is None) == (key is None):
            raise InvalidInput("get() takes the id of a run, or key= and the key it was started under")
        wanted = GetRun(id if id is not None else f"{KEY_PREFIX}{key}")
        view = await self._backend.call(runs.STATUS, wanted, within(timeout))
        decode = workflow.decode_result if workflow is not None else Converter.of(Any).decode
        return Handle(self._backend, view.run_id, decode, view.key or "")

    async def signal(
        self, signal: SignalKey[T], run: str, value: T, *, key: str = "", timeout: Duration | None = None
    ) -> bool:
        """Send a message to a run, which is named by its id or `key:` and its key; see `Signal.send`."""
        return await signal.send_on(self._backend, run, value, key=key, within_s=within(timeout))

    @overload
    async def query(self, key: StateKey[T], run: str, *, timeout: Duration | None = None) -> T: ...
    @overload
    async def query(self, key: QueryKey[P, T], run: str, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def query(self, key: Any, run: str, *args: Any, **kwargs: Any) -> Any:
        """Read a state of a run, or ask a query about it, as of its last commit; see `State.read` and `Query.read`.

        A query takes its arguments here; bound to them it takes a `timeout`: `client.query(percent.bind(1), run, timeout="2s")`.
        """
        return await read(key, args, kwargs, self._backend, run)

    async def update(
        self, update: UpdateKey[T, R], run: str, value: T, *, key: str | None = None, timeout: Duration | None = None
    ) -> R:
        """Ask a run and wait for its answer; see `Update.ask`."""
        return await update.ask_on(self._backend, run, value, key=key, within_s=within(timeout))

    async def resolve(self, promise: PromiseKey[T], run: str, value: T, *, timeout: Duration | None = None) -> None:
        """Resolve a promise of a run; see `Promise.resolve`."""
        await promise.resolve_on(self._backend, run, value, within_s=within(timeout))

    async def approve(
        self,
        approval: ApprovalKey[T],
        run: str,
        value: T | None = None,
        *,
        by: str = "",
        comment: str = "",
        nth: int = 1,
        timeout: Duration | None = None,
    ) -> bool:
        """Approve a question of a run; see `Approval.approve`. Returns True when this decides it."""
        decision = ApprovalDecision(by=by, comment=comment, nth=nth)
        form: Any = value  # None: it has none
        return await approval.approve_on(self._backend, run, form, decision, within_s=within(timeout))

    async def reject(
        self,
        approval: ApprovalKey[Any],
        run: str,
        *,
        by: str = "",
        comment: str = "",
        nth: int = 1,
        timeout: Duration | None = None,
    ) -> bool:
        """Reject a question of a run; see `Approval.reject`. Returns True when this decides it."""
        decision = ApprovalDecision(by=by, comment=comment, nth=nth)
        return await approval.reject_on(self._backend, run, decision, within_s=within(timeout))

    async def emit(self, event: EventKey[T], value: T, *, key: str = "", timeout: Duration | None = None) -> bool:
        """Send a named event; see `NamedEvent.emit`. Returns False if it was dropped, because its key was used before."""
        return await event.emit_on(self._backend, value, key=key, within_s=within(timeout))

    async def list(
        self,
        *,
        workflow: str = "",
        status: str | Sequence[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        timeout: Duration | None = None,
    ) -> list[RunInfo]:
        """Runs, newest first: at most `limit` of those that match every filter."""
        words = [status] if isinstance(status, str) else status
        wanted = RunFilter(
            workflow=workflow,
            statuses=frozenset(int(_status(word)) for word in words),
            since_us=None if since is None else us_of(since),
            until_us=None if until is None else us_of(until),
        )
        return [run async for run in self._pages(wanted, limit, within(timeout))]

    def runs(
        self, query: str = "", *, view: str = "", limit: int | None = None, timeout: Duration | None = None
    ) -> AsyncIterator[RunInfo]:
        """Runs that match a query, newest first. Further pages are fetched as they are needed.

            async for run in client.runs("status = failed and attr.total > 100"):
                print(run.id, run.error)

        Args:
            query: A query text; empty for all runs.
            view: A saved view, whose query must match too.
            limit: At most so many.
            timeout: Of each call, which gets PAGE_RUNS runs.

        Raises:
            InvalidInput: The query has a mistake. The message shows its place.
            NotFound: There is no such view.
        """
        return self._pages(RunFilter(query=query, view=view), limit, within(timeout))

    async def bulk(self, action: BulkAction, query: str = "", **options: Unpack[BulkOptions]) -> BulkHandle:
        """Cancel, terminate, pause, resume, retry, delete or signal every run that matches. Returns when the job is durable.

            job = await client.bulk("cancel", "workflow = import and status = running", reason="wrong input")
            print(await job.wait())

        Args:
            action: `cancel`, `terminate`, `pause`, `resume`, `retry`, `delete` or `signal`.
            query: A query text. Runs that are started later are not part of the job.
            options: see BulkOptions.

        Raises:
            InvalidInput: There is no query, or it has a mistake.
            NotFound: There is no such view.
        """
        given = checked("bulk()", BulkOptions, options)
        payload = given.get("payload")
        # A key, so that a request that is repeated after a broken connection is one job.
        request = StartBulkJob(
            action=action,
            query=query,
            view=given.get("view", ""),
            reason=given.get("reason", ""),
            is_dry_run=given.get("dry_run", False),
            key=uuid4().hex,
            signal=given.get("signal", ""),
            payload=encode_json(payload) if action == "signal" or payload is not None else b"",
        )
        job = await self._backend.call(bulk_jobs.START, request, within(given.get("timeout")))
        return BulkHandle(self._backend, ids.text(job.id))

    async def deploy(
        self,
        flow: str | Path | Mapping[str, Any],
        *,
        name: str | None = None,
        activate: bool = True,
        timeout: Duration | None = None,
    ) -> str:
        """Deploy a declarative flow, and with `activate` make it current; returns its version. FlowError lists its problems.

        `flow` is a file, the text of one, or the document itself. `name` is for a document that has none; a file's own unless given.
        """
        request = DeployFlow(flow_text(flow, name), activate)
        return (await self._backend.call(definitions.DEPLOY, request, within(timeout))).version

    @property
    def loop(self) -> AbstractEventLoop | None:
        """The event loop that the client was opened on."""
        return self._backend.loop

    async def _pages(self, wanted: RunFilter, limit: int | None, within_s: float | None) -> AsyncIterator[RunInfo]:
        below: bytes | None = None
        left = limit
        while left is None or left > 0:
            asked = PAGE_RUNS if left is None else min(left, PAGE_RUNS)
            page = await self._backend.call(runs.LIST, ListRuns(wanted, below, asked), within_s)
            for item in page.items:
                yield _summary(item)
            if page.next is None:
                return
            below, left = page.next, left if left is None else left - len(page.items)


class ContextClient(ClientBase):
    """The client found by context: that of the surrounding `async with`, or the only one that is open."""

    def __init__(self) -> None:
        self._backend = backend()


def client() -> ClientBase:
    """The client found by context: that of the surrounding `async with`, or the only one that is open on this loop or in this process.

    Raises PerdureError if there is none, or several.
    """
    return ContextClient()


def _is_bound(workflow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it has its arguments already, so that `timeout` is one of the call."""
    if not hasattr(workflow, "start_bound"):
        return False
    if args or kwargs.keys() - {"timeout"}:
        raise InvalidInput(f"{workflow!r} has its arguments already; give no others beside timeout=")
    return True


def _status(word: str) -> RunStatus:
    try:
        return RunStatus[word.upper()]
    except KeyError:
        raise InvalidInput(f"there is no run status {word!r}: {', '.join(s.word for s in RunStatus)}") from None


def _summary(item: RunItem) -> RunInfo:
    return RunInfo(
        id=ids.text(item.run_id),
        key=item.key or "",
        workflow=item.workflow,
        version=item.version,
        status=RunStatus(item.status).word,
        created_at=datetime_of(item.created_us),
        finished_at=None if item.finished_us is None else datetime_of(item.finished_us),
        error=item.error,
        error_code=item.error_code,
        parent=ids.text(item.parent_id) if item.parent_id is not None else None,
        attributes=decode_attributes(item.attributes),
        stuck=item.stuck,
    )
