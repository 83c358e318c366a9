"""Handles of runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import runs
from perdure.core.api.runs import AwaitRun, CancelRun, ChangeRun, GetRun, ListHistory
from perdure.core.durations import Duration, to_us
from perdure.core.errors import Failure, NondeterminismError, PerdureError, RunCancelled, RunFailed, Stuck
from perdure.core.lifecycle import RunStatus
from perdure.core.work import Outcome, RunView
from perdure.sdk.client.backend import Backend
from perdure.sdk.client.payloads import decoded

R_co = TypeVar("R_co", covariant=True)

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

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the end. Raises RunFailed, RunCancelled, or TimeoutError (the run continues)."""
        async with asyncio.timeout(None if timeout is None else to_us(timeout) / 1e6):
            result: R_co = await value_of(
                self._backend, await outcome_of(self._backend, self.id), self._run_id, self._decode
            )
            return result

    async def cancel(self, reason: str = "") -> None:
        """Ask the run to stop. It unwinds like any cancelled coroutine and ends `cancelled`."""
        await self._backend.call(runs.CANCEL, CancelRun(self.id, reason))

    async def status(self) -> str:
        return RunStatus((await self.describe()).status).word

    async def describe(self) -> RunView:
        return await self._backend.call(runs.STATUS, GetRun(self.id))

    async def resume(self) -> None:
        """Let a stuck run try again, after its code was repaired. Raises Conflict when the run is not stuck."""
        await self._backend.call(runs.RESUME, ChangeRun(self.id))

    async def retry(self) -> None:
        """Continue a failed run where it failed: failed tasks and children run again, succeeded ones keep their results.
        Raises Conflict when the run has not failed."""
        await self._backend.call(runs.RETRY, ChangeRun(self.id))

    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """The run's history as it grows, until the run ends. A failure that was retried is not the end."""
        ended = False
        while True:
            records = (await self._backend.call(runs.HISTORY, ListHistory(self.id, after))).items
            for r in records:
                after, ended = r.seq, isinstance(r.event, ev.TERMINAL)
                yield Event(r)
            if ended and not (records and isinstance(records[-1].event, ev.RunFailed)):
                return
            if not records:
                await asyncio.sleep(EVENTS_POLL_S)

    async def history(self) -> list[ev.Recorded]:
        """The history so far."""
        out: list[ev.Recorded] = []
        while True:
            page = await self._backend.call(runs.HISTORY, ListHistory(self.id, out[-1].seq if out else 0))
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


async def outcome_of(backend: Backend, run_id: str) -> Outcome:
    """However long it takes: one call waits RESULT_WAIT_S_MAX at most."""
    while True:
        outcome = (await backend.call(runs.RESULT, AwaitRun(run_id))).outcome
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
            raise RunFailed(outcome.failure or Failure("run_failed", "the run failed"))
        case _:
            assert outcome.failure is not None
            raise _stuck_error(ids.text(run_id), outcome.failure)


def _stuck_error(run_id: str, failure: Failure) -> PerdureError:
    if failure.code == NondeterminismError.code:
        error = NondeterminismError("", "", "")
        error.args = (f"run {run_id} is stopped: {failure.message}",)
        return error
    return Stuck(f"run {run_id} is stuck: {failure.message}")
