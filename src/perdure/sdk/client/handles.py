"""How code outside a workflow reaches runs: the backend port, the ambient client, and handles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.durations import Duration, to_us
from perdure.core.errors import Failure, NondeterminismError, PerdureError, RunCancelled, RunFailed, Stuck
from perdure.core.lifecycle import RunStatus
from perdure.core.links import Kind
from perdure.core.messages import CancelAsked, Mail, SignalSent, UpdateAsked
from perdure.core.work import Answer, Outcome, RunView, StartRequest

if TYPE_CHECKING:
    from perdure.flows.scheduled import BackfillTime, FireView, ScheduleRequest, ScheduleView

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Schedules(Protocol):
    """Schedules of the namespace that a client works in. Moments are Unix microseconds."""

    async def put(self, r: ScheduleRequest) -> tuple[ScheduleView, bool]: ...
    async def get(self, name: str) -> ScheduleView: ...
    async def pause(self, name: str, reason: str = "") -> ScheduleView: ...
    async def resume(self, name: str) -> ScheduleView: ...
    async def trigger(self, name: str) -> bytes: ...
    async def delete(self, name: str) -> None: ...
    async def times(self, name: str, count: int) -> list[int]: ...
    async def fires(self, name: str, before_us: int | None, limit: int) -> list[FireView]: ...
    async def backfill(
        self, name: str, since_us: int, until_us: int, *, dry_run: bool = False
    ) -> list[BackfillTime]: ...


class Backend(Protocol):
    """What a client talks to: the engine in this process, or a server."""

    async def start(self, request: StartRequest) -> bytes: ...
    async def run(self, request: StartRequest) -> tuple[bytes, Outcome]: ...
    async def outcome(self, run_id: bytes) -> Outcome: ...
    async def post(self, run_id: bytes, mail: Mail, key: str = "") -> bool: ...
    async def signal_with_start(self, request: StartRequest, signal: SignalSent, key: str) -> tuple[bytes, bool]: ...
    async def emit(self, name: str, value: bytes, key: str) -> bool: ...
    async def find_run(self, key: str) -> bytes: ...
    async def resolve(self, run_id: bytes, name: str, value: bytes) -> None: ...
    async def update(self, run_id: bytes, asked: UpdateAsked, seconds: float) -> Answer | None: ...
    async def vote(self, run_id: bytes, name: str, approved: bool, value: bytes, comment: str, by: str) -> bool: ...
    async def delegate(self, run_id: bytes, name: str, to: str, by: str) -> None: ...
    async def link(self, run_id: bytes, kind: Kind, name: str, who: str, lasts_us: int) -> str: ...
    async def read_state(self, run_id: bytes, name: str) -> bytes | None: ...
    async def history(self, run_id: bytes, after: int) -> list[ev.Recorded]: ...
    async def describe(self, run_id: bytes) -> RunView: ...
    async def resume(self, run_id: bytes) -> None: ...
    async def retry(self, run_id: bytes) -> None: ...
    def adopt(self, definition: Any) -> None: ...
    async def schedules(self) -> Schedules: ...


ambient: ContextVar[Backend] = ContextVar("perdure_client")
_opened: list[tuple[asyncio.AbstractEventLoop, Backend]] = []
"""Clients that are open in this process, each with the loop it belongs to."""


def opened(client: Backend) -> None:
    """From now on code of this loop finds the client, also where the context of its `async with` does not reach."""
    _opened.append((asyncio.get_running_loop(), client))


def closed(client: Backend) -> None:
    _opened[:] = [entry for entry in _opened if entry[1] is not client]


def backend() -> Backend:
    """The client of the surrounding `async with Perdure(...)`; else the only one that is open on this loop.

    A web framework opens its lifespan in one task and runs each request in another, so the context variable is not set there.
    """
    found = ambient.get(None)
    if found is not None:
        return found
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    here = [client for owner, client in _opened if owner is loop]
    if len(here) == 1:
        return here[0]
    if here:
        raise PerdureError(
            f"{len(here)} Perdure clients are open on this event loop and this code runs inside the `async with` of none: "
            "use the methods of the client you mean, or open it around this code"
        )
    raise PerdureError(
        "no Perdure client here: wrap the code in `async with Perdure():` (or TestEnv), or use the methods of a client you hold"
    )


class Handle(Generic[R_co]):
    """A run that was started. `id` is its text id; results are typed by the workflow."""

    def __init__(self, backend: Backend, run_id: bytes, decode: Any) -> None:
        self._backend, self._run_id, self._decode = backend, run_id, decode
        self.id = ids.text(run_id)

    def __repr__(self) -> str:
        return f"Handle({self.id})"

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the end. Raises RunFailed, RunCancelled, or TimeoutError (the run goes on)."""
        if timeout is None:
            outcome = await self._backend.outcome(self._run_id)
        else:
            async with asyncio.timeout(to_us(timeout) / 1e6):
                outcome = await self._backend.outcome(self._run_id)
        result: R_co = value_of(outcome, self._run_id, self._decode)
        return result

    async def cancel(self, reason: str = "") -> None:
        """Ask the run to stop. It unwinds like any cancelled coroutine and ends `cancelled`."""
        await self._backend.post(self._run_id, CancelAsked(reason))

    async def status(self) -> str:
        return RunStatus((await self._backend.describe(self._run_id)).status).word

    async def describe(self) -> RunView:
        return await self._backend.describe(self._run_id)

    async def resume(self) -> None:
        """Let a stuck run try again, after its code was repaired. Raises Conflict when the run is not stuck."""
        await self._backend.resume(self._run_id)

    async def retry(self) -> None:
        """Let a failed run go on where it failed: failed tasks and children run again, what succeeded keeps its result.
        Raises Conflict when the run has not failed."""
        await self._backend.retry(self._run_id)

    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """The run's history as it grows, until the run ends. A failure that was retried is not the end."""
        ended = False
        while True:
            records = await self._backend.history(self._run_id, after)
            for r in records:
                after, ended = r.seq, isinstance(r.event, ev.TERMINAL)
                yield Event(r)
            if ended and not (records and isinstance(records[-1].event, ev.RunFailed)):
                return
            if not records:
                await asyncio.sleep(0.05)

    async def history(self) -> list[ev.Recorded]:
        """The history so far."""
        out: list[ev.Recorded] = []
        while records := await self._backend.history(self._run_id, out[-1].seq if out else 0):
            out.extend(records)
        return out


class StartableDefinition(Protocol[P, R_co]):
    """What a client can start: a workflow of this program, or one that is only known by its name."""

    @property
    def signature(self) -> Any: ...
    async def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]: ...
    async def start_on(self, target: Backend, data: bytes) -> Handle[R_co]: ...


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


def value_of(outcome: Outcome, run_id: bytes, decode: Any) -> Any:
    """The result of a run that ended well; what ended it otherwise is raised."""
    match outcome.status:
        case RunStatus.SUCCESS:
            return decode(outcome.value)
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
