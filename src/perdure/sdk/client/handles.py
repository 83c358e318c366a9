"""Handles of runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import repairs, runs
from perdure.core.api.repairs import ForkRun, OverrideNode, RerunRun
from perdure.core.api.runs import (
    RESULT_WAIT_S_MAX,
    AwaitRun,
    CancelRun,
    ChangeRun,
    GetRun,
    ListHistory,
    PauseRun,
    TerminateRun,
)
from perdure.core.calls import encode_json
from perdure.core.durations import Duration, to_us
from perdure.core.errors import (
    Failure,
    NondeterminismError,
    PerdureError,
    RunCancelled,
    RunExpired,
    RunFailed,
    Stuck,
)
from perdure.core.lifecycle import RunStatus
from perdure.core.work import Outcome, RunView
from perdure.sdk.client.backend import Backend
from perdure.sdk.client.html import handle_html
from perdure.sdk.client.keys import (
    ApprovalDecision,
    ApprovalKey,
    PromiseKey,
    QueryKey,
    SignalKey,
    StateKey,
    UpdateKey,
    read,
    within,
)
from perdure.sdk.client.payloads import decoded
from perdure.sdk.client.waiting import in_time

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
V = TypeVar("V")
P = ParamSpec("P")

EVENTS_POLL_S = 0.05
"""Seconds before `Handle.events` asks again."""


class Handle(Generic[R_co]):
    """A run that was started. Results are typed by the workflow."""

    def __init__(self, backend: Backend, run_id: bytes, decode: Any, key: str = "") -> None:
        self._backend, self._run_id, self._decode = backend, run_id, decode
        self.id = ids.text(run_id)
        """The run's UUID."""
        self.key = key
        """The key that you gave it; empty for none."""

    def __repr__(self) -> str:
        return f"Handle({self.id})"

    def _repr_html_(self) -> str:
        return handle_html(self.id, self.key)

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the end. Raises RunFailed or RunCancelled.

        Args:
            timeout: how long to wait; without one as long as it takes, through an outage of the server or the database. Then it raises
                TimeoutError (the run goes on), or Unavailable if there was no answer in all that time.
        """
        limit_s = None if timeout is None else to_us(timeout) / 1e6
        outcome = await outcome_of(self._backend, self.id, limit_s)
        result: R_co = await value_of(self._backend, outcome, self._run_id, self._decode)
        return result

    async def status(self, *, timeout: Duration | None = None) -> str:
        """`pending`, `running`, `success`, `failed` or `cancelled`."""
        return RunStatus((await self.describe(timeout=timeout)).status).word

    async def describe(self, *, timeout: Duration | None = None) -> RunView:
        """The run as it is recorded."""
        return await self._backend.call(runs.STATUS, GetRun(self.id), within(timeout))

    async def cancel(self, reason: str = "", *, timeout: Duration | None = None) -> None:
        """Ask the run to stop. It unwinds like any cancelled coroutine and ends `cancelled`."""
        await self._backend.call(runs.CANCEL, CancelRun(self.id, reason), within(timeout))

    async def terminate(self, reason: str = "", *, timeout: Duration | None = None) -> None:
        """End the run at once, in any state: none of its code runs and nothing is undone. It ends `cancelled`."""
        await self._backend.call(runs.TERMINATE, TerminateRun(self.id, reason), within(timeout))

    async def pause(self, reason: str = "", *, timeout: Duration | None = None) -> None:
        """Start nothing of the run until it is resumed. Running tasks end as usual; timers and deadlines keep their dates."""
        await self._backend.call(runs.PAUSE, PauseRun(self.id, reason), within(timeout))

    async def resume(self, *, timeout: Duration | None = None) -> None:
        """Let a paused run go on, or a stuck run try again after its code was repaired. Raises Conflict when the run is neither."""
        await self._backend.call(runs.RESUME, ChangeRun(self.id), within(timeout))

    async def retry(self, *, timeout: Duration | None = None) -> None:
        """Continue a failed run where it failed: failed tasks and children run again, succeeded ones keep their results.
        Raises Conflict when the run has not failed."""
        await self._backend.call(runs.RETRY, ChangeRun(self.id), within(timeout))

    async def delete(self, *, timeout: Duration | None = None) -> None:
        """Delete an ended run with its history, tasks, logs and values. Raises Conflict while the run is active."""
        await self._backend.call(runs.DELETE, ChangeRun(self.id), within(timeout))

    async def rerun(self, edits: Mapping[str, Any] | None = None, *, timeout: Duration | None = None) -> Handle[R_co]:
        """Start a new run with the same input and attributes.

        Args:
            edits: fields of the input that change, by their path: `{"order.amount": 42}`.
            timeout: how long the call may take.
        """
        values = {path: encode_json(value) for path, value in (edits or {}).items()}
        begun = await self._backend.call(repairs.RERUN, RerunRun(run=self.id, edits=values), within(timeout))
        return Handle(self._backend, begun.run_id, self._decode)

    async def fork(
        self,
        at: int,
        results: Mapping[str, Any] | None = None,
        *,
        code: Literal["same", "current"] = "same",
        timeout: Duration | None = None,
    ) -> Handle[R_co]:
        """Start a new run with a copy of this one's first events, which goes on from there.

        Args:
            at: the last event that is copied.
            results: results that are replaced: a task's number or name, a node of a flow, or `child:NUMBER`, and a JSON value.
            code: the version of this run, or the current one.
            timeout: how long the call may take.
        """
        values = {str(step): encode_json(value) for step, value in (results or {}).items()}
        wanted = ForkRun(run=self.id, at=at, edits=values, code=code)
        begun = await self._backend.call(repairs.FORK, wanted, within(timeout))
        return Handle(self._backend, begun.run_id, self._decode)

    async def override_node(
        self, node: str, how: Literal["rerun", "skip", "set"], value: Any = None, *, timeout: Duration | None = None
    ) -> None:
        """Continue a failed run of a flow with the failure of one node replaced: it runs again from its beginning, is skipped, or has
        the output `value`. Raises Conflict when the node has not failed."""
        data = encode_json(value) if how == "set" else b""
        await self._backend.call(repairs.OVERRIDE, OverrideNode(self.id, node, how, data), within(timeout))

    async def signal(self, signal: SignalKey[T], value: T, *, key: str = "", timeout: Duration | None = None) -> bool:
        """Send a message to the run; see `Signal.send`."""
        return await signal.send_on(self._backend, self.id, value, key=key, within_s=within(timeout))

    @overload
    async def query(self, key: StateKey[T], *, timeout: Duration | None = None) -> T: ...
    @overload
    async def query(self, key: QueryKey[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def query(self, key: Any, *args: Any, **kwargs: Any) -> Any:
        """Read a state of the run, or ask a query about it; see `State.read` and `Query.read`."""
        return await read(key, args, kwargs, self._backend, self.id)

    async def update(
        self, update: UpdateKey[T, V], value: T, *, key: str | None = None, timeout: Duration | None = None
    ) -> V:
        """Ask the run and wait for its answer; see `Update.ask`."""
        return await update.ask_on(self._backend, self.id, value, key=key, within_s=within(timeout))

    async def resolve(self, promise: PromiseKey[T], value: T, *, timeout: Duration | None = None) -> None:
        """Resolve a promise of the run; see `Promise.resolve`."""
        await promise.resolve_on(self._backend, self.id, value, within_s=within(timeout))

    async def approve(
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
        decision = ApprovalDecision(by=by, comment=comment, nth=nth, question=question)
        form: Any = value  # None: it has none
        return await approval.approve_on(self._backend, self.id, form, decision, within_s=within(timeout))

    async def reject(
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
        decision = ApprovalDecision(by=by, comment=comment, nth=nth, question=question)
        return await approval.reject_on(self._backend, self.id, decision, within_s=within(timeout))

    async def events(self, after: int = 0, *, timeout: Duration | None = None) -> AsyncIterator[Event]:
        """The run's history as it grows, until the run ends. A failure that was retried is not the end. `timeout`: of each call."""
        ended, within_s = False, within(timeout)
        while True:
            records = (await self._backend.call(runs.HISTORY, ListHistory(self.id, after), within_s)).items
            for r in records:
                after, ended = r.seq, isinstance(r.event, ev.TERMINAL)
                yield Event(r)
            if ended and not (records and isinstance(records[-1].event, ev.RunFailed)):
                return
            if not records:
                await asyncio.sleep(EVENTS_POLL_S)

    async def history(self, *, timeout: Duration | None = None) -> list[ev.Recorded]:
        """The history so far. `timeout`: of each call, which gets HISTORY_EVENTS_DEFAULT events."""
        out: list[ev.Recorded] = []
        within_s = within(timeout)
        while True:
            wanted = ListHistory(self.id, out[-1].seq if out else 0)
            page = await self._backend.call(runs.HISTORY, wanted, within_s)
            out.extend(page.items)
            if not page.has_more:
                return out


class Event:
    """One event of a history as users see it: number, type name, and the fields of the event."""

    __slots__ = ("_record",)

    def __init__(self, record: ev.Recorded) -> None:
        self._record = record

    @property
    def seq(self) -> int:
        return self._record.seq

    @property
    def type(self) -> str:
        return type(self._record.event).__name__

    @property
    def data(self) -> ev.Event:
        return self._record.event

    def __repr__(self) -> str:
        return f"Event({self.seq}, {self.type})"


async def outcome_of(backend: Backend, run_id: str, limit_s: float | None = None) -> Outcome:
    """One call waits RESULT_WAIT_S_MAX at most. Without a limit: however long it takes."""

    async def ended(wait_s: float = RESULT_WAIT_S_MAX) -> Outcome | None:
        return (await backend.call(runs.RESULT, AwaitRun(run_id, min(wait_s, RESULT_WAIT_S_MAX)))).outcome

    if limit_s is not None:
        outcome = await in_time(limit_s, ended, effect=False)
        if outcome is None:
            raise TimeoutError(f"run {run_id} has not ended within {limit_s:g} s; it goes on")
        return outcome
    while True:
        outcome = await ended()
        if outcome is not None:
            return outcome


async def value_of(backend: Backend, outcome: Outcome, run_id: bytes, decode: Any) -> Any:
    """The result of a run that succeeded; any other end is raised."""
    match outcome.status:
        case RunStatus.SUCCESS:
            return await decoded(backend, decode, outcome.value)
        case RunStatus.CANCELLED:
            raise RunCancelled(outcome.failure or Failure("run_cancelled", "the run was cancelled"))
        case RunStatus.FAILED:
            failure = outcome.failure or Failure("run_failed", "the run failed")
            raise (RunExpired if failure.code == RunExpired.code else RunFailed)(failure)
        case _:
            assert outcome.failure is not None
            raise _stuck_error(ids.text(run_id), outcome.failure)


def _stuck_error(run_id: str, failure: Failure) -> PerdureError:
    if failure.code == NondeterminismError.code:
        error = NondeterminismError("", "", "")
        error.args = (f"run {run_id} is stopped: {failure.message}",)
        return error
    return Stuck(f"run {run_id} is stuck: {failure.message}")
