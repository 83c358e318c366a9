"""The methods of the clients, blocking. Generated from the async ones by `just generate-sync`: change those, not this file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from perdure.core import events as ev
from perdure.core.api.bulk_jobs import BulkOutcome
from perdure.core.durations import Duration
from perdure.core.work import RunView
from perdure.sdk.client.bulk_jobs import BulkHandle, BulkInfo, BulkRunInfo
from perdure.sdk.client.handles import Event, Handle
from perdure.sdk.client.keys import (
    ApprovalKey,
    PromiseKey,
    QueryKey,
    SignalKey,
    StateKey,
    UpdateKey,
)
from perdure.sdk.client.loop_calls import LoopCalls

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
V = TypeVar("V")
R_co = TypeVar("R_co", covariant=True)


class SyncHandle(Generic[R_co]):
    """`Handle`, blocking."""

    def __init__(self, loop: LoopCalls, client: Handle[R_co]) -> None:
        self._loop, self._client = loop, client
        self.id = client.id
        self.key = client.key

    def __repr__(self) -> str:
        return f"SyncHandle({self.id})"

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the end. Raises RunFailed or RunCancelled.

        Args:
            timeout: how long to wait; without one as long as it takes, through an outage of the server or the database. Then it raises
                TimeoutError (the run goes on), or Unavailable if there was no answer in all that time.
        """
        return self._loop.call(self._client.result(timeout))

    def status(self, *, timeout: Duration | None = None) -> str:
        """`pending`, `running`, `success`, `failed` or `cancelled`."""
        return self._loop.call(self._client.status(timeout=timeout))

    def describe(self, *, timeout: Duration | None = None) -> RunView:
        """The run as it is recorded."""
        return self._loop.call(self._client.describe(timeout=timeout))

    def cancel(self, reason: str = "", *, timeout: Duration | None = None) -> None:
        """Ask the run to stop. It unwinds like any cancelled coroutine and ends `cancelled`."""
        return self._loop.call(self._client.cancel(reason, timeout=timeout))

    def terminate(self, reason: str = "", *, timeout: Duration | None = None) -> None:
        """End the run at once, in any state: none of its code runs and nothing is undone. It ends `cancelled`."""
        return self._loop.call(self._client.terminate(reason, timeout=timeout))

    def pause(self, reason: str = "", *, timeout: Duration | None = None) -> None:
        """Start nothing of the run until it is resumed. Running tasks end as usual; timers and deadlines keep their dates."""
        return self._loop.call(self._client.pause(reason, timeout=timeout))

    def resume(self, *, timeout: Duration | None = None) -> None:
        """Let a paused run go on, or a stuck run try again after its code was repaired. Raises Conflict when the run is neither."""
        return self._loop.call(self._client.resume(timeout=timeout))

    def retry(self, *, timeout: Duration | None = None) -> None:
        """Continue a failed run where it failed: failed tasks and children run again, succeeded ones keep their results.
        Raises Conflict when the run has not failed."""
        return self._loop.call(self._client.retry(timeout=timeout))

    def delete(self, *, timeout: Duration | None = None) -> None:
        """Delete an ended run with its history, tasks, logs and values. Raises Conflict while the run is active."""
        return self._loop.call(self._client.delete(timeout=timeout))

    def rerun(self, edits: Mapping[str, Any] | None = None, *, timeout: Duration | None = None) -> SyncHandle[R_co]:
        """Start a new run with the same input and attributes.

        Args:
            edits: fields of the input that change, by their path: `{"order.amount": 42}`.
            timeout: how long the call may take.
        """
        return SyncHandle(self._loop, self._loop.call(self._client.rerun(edits, timeout=timeout)))

    def fork(
        self,
        at: int,
        results: Mapping[str, Any] | None = None,
        *,
        code: Literal["same", "current"] = "same",
        timeout: Duration | None = None,
    ) -> SyncHandle[R_co]:
        """Start a new run with a copy of this one's first events, which goes on from there.

        Args:
            at: the last event that is copied.
            results: results that are replaced: a task's number or name, a node of a flow, or `child:NUMBER`, and a JSON value.
            code: the version of this run, or the current one.
            timeout: how long the call may take.
        """
        return SyncHandle(self._loop, self._loop.call(self._client.fork(at, results, code=code, timeout=timeout)))

    def override_node(
        self, node: str, how: Literal["rerun", "skip", "set"], value: Any = None, *, timeout: Duration | None = None
    ) -> None:
        """Continue a failed run of a flow with the failure of one node replaced: it runs again from its beginning, is skipped, or has
        the output `value`. Raises Conflict when the node has not failed."""
        return self._loop.call(self._client.override_node(node, how, value, timeout=timeout))

    def signal(self, signal: SignalKey[T], value: T, *, key: str = "", timeout: Duration | None = None) -> bool:
        """Send a message to the run; see `Signal.send`."""
        return self._loop.call(self._client.signal(signal, value, key=key, timeout=timeout))

    @overload
    def query(self, key: StateKey[T], *, timeout: Duration | None = None) -> T: ...

    @overload
    def query(self, key: QueryKey[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    def query(self, key: Any, *args: Any, **kwargs: Any) -> Any:
        """Read a state of the run, or ask a query about it; see `State.read` and `Query.read`."""
        return self._loop.call(self._client.query(key, *args, **kwargs))

    def update(
        self, update: UpdateKey[T, V], value: T, *, key: str | None = None, timeout: Duration | None = None
    ) -> V:
        """Ask the run and wait for its answer; see `Update.ask`."""
        return self._loop.call(self._client.update(update, value, key=key, timeout=timeout))

    def resolve(self, promise: PromiseKey[T], value: T, *, timeout: Duration | None = None) -> None:
        """Resolve a promise of the run; see `Promise.resolve`."""
        return self._loop.call(self._client.resolve(promise, value, timeout=timeout))

    def approve(
        self,
        approval: ApprovalKey[T],
        value: T | None = None,
        *,
        by: str = "",
        comment: str = "",
        nth: int = 1,
        question: str = "",
        timeout: Duration | None = None,
    ) -> bool:
        """Approve a question of the run; see `Approval.approve`."""
        return self._loop.call(
            self._client.approve(approval, value, by=by, comment=comment, nth=nth, question=question, timeout=timeout)
        )

    def reject(
        self,
        approval: ApprovalKey[Any],
        *,
        by: str = "",
        comment: str = "",
        nth: int = 1,
        question: str = "",
        timeout: Duration | None = None,
    ) -> bool:
        """Reject a question of the run; see `Approval.reject`."""
        return self._loop.call(
            self._client.reject(approval, by=by, comment=comment, nth=nth, question=question, timeout=timeout)
        )

    def events(self, after: int = 0, *, timeout: Duration | None = None) -> Iterator[Event]:
        """The run's history as it grows, until the run ends. A failure that was retried is not the end. `timeout`: of each call."""
        return self._loop.iterate(self._client.events(after, timeout=timeout))

    def history(self, *, timeout: Duration | None = None) -> list[ev.Recorded]:
        """The history so far. `timeout`: of each call, which gets HISTORY_EVENTS_DEFAULT events."""
        return self._loop.call(self._client.history(timeout=timeout))


class SyncBulkHandle:
    """`BulkHandle`, blocking."""

    def __init__(self, loop: LoopCalls, client: BulkHandle) -> None:
        self._loop, self._client = loop, client
        self.id = client.id

    def __repr__(self) -> str:
        return f"SyncBulkHandle({self.id})"

    def info(self, *, timeout: Duration | None = None) -> BulkInfo:
        """How far it is."""
        return self._loop.call(self._client.info(timeout=timeout))

    def wait(self, timeout: Duration | None = None) -> BulkInfo:
        """Wait until it has ended.

        Raises:
            TimeoutError: It has not ended within `timeout`; it goes on.
            Unavailable: The server or its database did not answer.
        """
        return self._loop.call(self._client.wait(timeout))

    def cancel(self, *, timeout: Duration | None = None) -> BulkInfo:
        """Stop it. What was done stays done; the runs that are left are not touched."""
        return self._loop.call(self._client.cancel(timeout=timeout))

    def runs(self, outcome: BulkOutcome | None = None, *, timeout: Duration | None = None) -> Iterator[BulkRunInfo]:
        """Its runs, all or those with an outcome: `failed` for the errors. `timeout`: of each call, which gets PAGE_RUNS runs."""
        return self._loop.iterate(self._client.runs(outcome, timeout=timeout))
