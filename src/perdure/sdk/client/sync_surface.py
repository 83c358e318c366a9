"""The methods of the clients, blocking. Generated from the async ones by `just generate-sync`: change those, not this file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from perdure.core.api.bulk_jobs import BulkAction
from perdure.core.api.schedules import (
    ScheduleView,
)
from perdure.core.api.versions import WorkflowVersions
from perdure.core.durations import Duration
from perdure.sdk.client.approvals import ApprovalClient, OpenApproval
from perdure.sdk.client.base import BoundWorkflow, ClientBase, RunInfo, StartableWorkflow
from perdure.sdk.client.bulk_jobs import BulkOptions
from perdure.sdk.client.keys import (
    ApprovalKey,
    EventKey,
    PromiseKey,
    QueryKey,
    SignalKey,
    StateKey,
    UpdateKey,
)
from perdure.sdk.client.loop_calls import LoopCalls
from perdure.sdk.client.schedules import Backfilled, Fire, ScheduleClient, ScheduleKey
from perdure.sdk.client.sync_handles import SyncBulkHandle, SyncHandle
from perdure.sdk.client.versions import VersionClient

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
V = TypeVar("V")
R_co = TypeVar("R_co", covariant=True)


class SyncScheduleClient:
    """`ScheduleClient`, blocking."""

    def __init__(self, loop: LoopCalls, client: ScheduleClient) -> None:
        self._loop, self._client = loop, client

    def apply(self, schedule: ScheduleKey, *, timeout: Duration | None = None) -> ScheduleView:
        """Create a schedule, or update it. A paused schedule stays paused."""
        return self._loop.call(self._client.apply(schedule, timeout=timeout))

    def list(self, workflow: str = "", *, timeout: Duration | None = None) -> Iterator[ScheduleView]:
        """All schedules by name, or those of one workflow. `timeout`: of each call, which gets PAGE_SCHEDULES schedules."""
        return self._loop.iterate(self._client.list(workflow, timeout=timeout))

    def get(self, name: str, *, timeout: Duration | None = None) -> ScheduleView:
        """A schedule as it is stored. Raises NotFound."""
        return self._loop.call(self._client.get(name, timeout=timeout))

    def pause(self, name: str, reason: str = "", *, timeout: Duration | None = None) -> ScheduleView:
        """Stop firing until `resume()`. `reason` is shown with the schedule."""
        return self._loop.call(self._client.pause(name, reason, timeout=timeout))

    def resume(self, name: str, *, timeout: Duration | None = None) -> ScheduleView:
        """Fire again, from now on. Times that have passed meanwhile are not made up for; `backfill()` does that."""
        return self._loop.call(self._client.resume(name, timeout=timeout))

    def trigger(self, name: str, *, timeout: Duration | None = None) -> SyncHandle[Any]:
        """Start a run now, in addition to the schedule. Returns its handle."""
        return SyncHandle(self._loop, self._loop.call(self._client.trigger(name, timeout=timeout)))

    def delete(self, name: str, *, timeout: Duration | None = None) -> None:
        """Delete a schedule. Its active runs go on."""
        return self._loop.call(self._client.delete(name, timeout=timeout))

    def next(self, name: str, limit: int = 5, *, timeout: Duration | None = None) -> tuple[datetime, ...]:
        """The next times of a schedule, in its time zone."""
        return self._loop.call(self._client.next(name, limit, timeout=timeout))

    def fires(self, name: str, limit: int = 50, *, timeout: Duration | None = None) -> tuple[Fire, ...]:
        """Past times and their outcomes, the latest first."""
        return self._loop.call(self._client.fires(name, limit, timeout=timeout))

    def backfill(
        self, name: str, since: datetime, until: datetime, *, dry_run: bool = False, timeout: Duration | None = None
    ) -> tuple[Backfilled, ...]:
        """Start a run for each time from `since` and before `until` that had none. With `dry_run` nothing is started."""
        return self._loop.call(self._client.backfill(name, since, until, dry_run=dry_run, timeout=timeout))


class SyncVersionClient:
    """`VersionClient`, blocking."""

    def __init__(self, loop: LoopCalls, client: VersionClient) -> None:
        self._loop, self._client = loop, client

    def get(self, workflow: str, *, timeout: Duration | None = None) -> WorkflowVersions:
        """The versions of a workflow and what uses them. Raises NotRegistered."""
        return self._loop.call(self._client.get(workflow, timeout=timeout))

    def set_current(
        self, workflow: str, version: str, *, ramp_percent: float = 100.0, timeout: Duration | None = None
    ) -> WorkflowVersions:
        """Which version new runs get; with `ramp_percent` only that part of them.

        Args:
            workflow: the name of the workflow.
            version: a version, or the first characters of one. Empty: the newest one, and so on with each that a worker registers.
            ramp_percent: of new runs; the others get the version that is current.
            timeout: how long the call may take.
        """
        return self._loop.call(self._client.set_current(workflow, version, ramp_percent=ramp_percent, timeout=timeout))

    def rollback(self, workflow: str, *, timeout: Duration | None = None) -> WorkflowVersions:
        """Go back to the version that was current before."""
        return self._loop.call(self._client.rollback(workflow, timeout=timeout))

    def move_runs(self, workflow: str, version: str, to: str, *, timeout: Duration | None = None) -> int:
        """Pin the runs of one version that no worker serves to another one. Returns how many."""
        return self._loop.call(self._client.move_runs(workflow, version, to, timeout=timeout))


class SyncApprovalClient:
    """`ApprovalClient`, blocking."""

    def __init__(self, loop: LoopCalls, client: ApprovalClient) -> None:
        self._loop, self._client = loop, client

    def list(
        self, *, assignee: str = "", workflow: str = "", run: str = "", timeout: Duration | None = None
    ) -> Iterator[OpenApproval]:
        """Open questions, the oldest first.

        Args:
            assignee: those that this name may answer now; `@me` for the caller's own.
            workflow: those of this workflow.
            run: those of this run.
            timeout: of each call, which gets PAGE_APPROVALS questions.
        """
        return self._loop.iterate(self._client.list(assignee=assignee, workflow=workflow, run=run, timeout=timeout))


class SyncClientBase:
    """`ClientBase`, blocking."""

    def __init__(self, loop: LoopCalls, client: ClientBase) -> None:
        self._loop, self._client = loop, client

    @property
    def schedules(self) -> SyncScheduleClient:
        """ScheduleClient, by name."""
        return SyncScheduleClient(self._loop, self._client.schedules)

    @property
    def versions(self) -> SyncVersionClient:
        """Versions of workflows."""
        return SyncVersionClient(self._loop, self._client.versions)

    @property
    def approvals(self) -> SyncApprovalClient:
        """Open approvals."""
        return SyncApprovalClient(self._loop, self._client.approvals)

    @overload
    def start(self, workflow: BoundWorkflow[R], *, timeout: Duration | None = None) -> SyncHandle[R]: ...

    @overload
    def start(self, workflow: StartableWorkflow[P, R], *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]: ...

    def start(self, workflow: Any, *args: Any, **kwargs: Any) -> SyncHandle[Any]:
        """Start a run; returns when the run is durable.

            client.start(order, 42)
            client.start(order.bind(42), timeout="5s")

        A start that raised Unavailable does not run later; under a key it can be repeated safely with `on_conflict="attach"`.
        """
        return SyncHandle(self._loop, self._loop.call(self._client.start(workflow, *args, **kwargs)))

    @overload
    def run(self, workflow: BoundWorkflow[R], *, timeout: Duration | None = None) -> R: ...

    @overload
    def run(self, workflow: StartableWorkflow[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    def run(self, workflow: Any, *args: Any, **kwargs: Any) -> Any:
        """Start a run and wait for its result. Raises what `start()` and `Handle.result()` raise.

        The start ends within the timeout of the client. Waiting has no limit, unless the workflow is bound and a `timeout` given: then it
        limits both.
        """
        return self._loop.call(self._client.run(workflow, *args, **kwargs))

    def get(
        self,
        id: str | None = None,
        *,
        key: str | None = None,
        workflow: StartableWorkflow[Any, R] | None = None,
        timeout: Duration | None = None,
    ) -> SyncHandle[R]:
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
        return SyncHandle(
            self._loop, self._loop.call(self._client.get(id, key=key, workflow=workflow, timeout=timeout))
        )

    def signal(
        self, signal: SignalKey[T], run: str, value: T, *, key: str = "", timeout: Duration | None = None
    ) -> bool:
        """Send a message to a run, which is named by its id or `key:` and its key; see `Signal.send`."""
        return self._loop.call(self._client.signal(signal, run, value, key=key, timeout=timeout))

    @overload
    def query(self, key: StateKey[T], run: str, *, timeout: Duration | None = None) -> T: ...

    @overload
    def query(self, key: QueryKey[P, T], run: str, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def query(self, key: Any, run: str, *args: Any, **kwargs: Any) -> Any:
        """Read a state of a run, or ask a query about it, as of its last commit; see `State.read` and `Query.read`.

        A query takes its arguments here; bound to them it takes a `timeout`: `client.query(percent.bind(1), run, timeout="2s")`.
        """
        return self._loop.call(self._client.query(key, run, *args, **kwargs))

    def update(
        self, update: UpdateKey[T, R], run: str, value: T, *, key: str | None = None, timeout: Duration | None = None
    ) -> R:
        """Ask a run and wait for its answer; see `Update.ask`."""
        return self._loop.call(self._client.update(update, run, value, key=key, timeout=timeout))

    def resolve(self, promise: PromiseKey[T], run: str, value: T, *, timeout: Duration | None = None) -> None:
        """Resolve a promise of a run; see `Promise.resolve`."""
        return self._loop.call(self._client.resolve(promise, run, value, timeout=timeout))

    def approve(
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
        return self._loop.call(
            self._client.approve(approval, run, value, by=by, comment=comment, nth=nth, timeout=timeout)
        )

    def reject(
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
        return self._loop.call(self._client.reject(approval, run, by=by, comment=comment, nth=nth, timeout=timeout))

    def emit(self, event: EventKey[T], value: T, *, key: str = "", timeout: Duration | None = None) -> bool:
        """Send a named event; see `NamedEvent.emit`. Returns False if it was dropped, because its key was used before."""
        return self._loop.call(self._client.emit(event, value, key=key, timeout=timeout))

    def list(
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
        return self._loop.call(
            self._client.list(workflow=workflow, status=status, since=since, until=until, limit=limit, timeout=timeout)
        )

    def runs(
        self, query: str = "", *, view: str = "", limit: int | None = None, timeout: Duration | None = None
    ) -> Iterator[RunInfo]:
        """Runs that match a query, newest first. Further pages are fetched as they are needed.

            for run in client.runs("status = failed and attr.total > 100"):
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
        return self._loop.iterate(self._client.runs(query, view=view, limit=limit, timeout=timeout))

    def bulk(self, action: BulkAction, query: str = "", **options: Unpack[BulkOptions]) -> SyncBulkHandle:
        """Cancel, terminate, pause, resume, retry, delete or signal every run that matches. Returns when the job is durable.

            job = client.bulk("cancel", "workflow = import and status = running", reason="wrong input")
            print(job.wait())

        Args:
            action: `cancel`, `terminate`, `pause`, `resume`, `retry`, `delete` or `signal`.
            query: A query text. Runs that are started later are not part of the job.
            options: see BulkOptions.

        Raises:
            InvalidInput: There is no query, or it has a mistake.
            NotFound: There is no such view.
        """
        return SyncBulkHandle(self._loop, self._loop.call(self._client.bulk(action, query, **options)))

    def deploy(
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
        return self._loop.call(self._client.deploy(flow, name=name, activate=activate, timeout=timeout))
