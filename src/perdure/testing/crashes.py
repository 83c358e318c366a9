"""Crash a run after each of its events, and compare how it ends.

    run to the end: result, N events
    for n in 1..N: run again, crash after event n, resume on the same database: the same result?

A commit is one transaction, so that a crash comes between commits: where one wrote several events, they count as one place.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from perdure.core import events as ev
from perdure.core.errors import PerdureError
from perdure.core.lifecycle import RunStatus
from perdure.core.work import Outcome
from perdure.engine.api.starts import IDEMPOTENT_KEY
from perdure.sdk.client.backend import Backend, ambient
from perdure.sdk.client.handles import Handle, outcome_of, value_of
from perdure.sdk.startable import Bound
from perdure.testing.lives import Begin, DrivenRun, Lives
from perdure.testing.mortal import CrashPoint

R = TypeVar("R")

CRASHES_MAX: Final = 100
"""Crashes of one `crash_everywhere`. Of a run with more events, that many are chosen at even distances, with the first and the last."""
DRIVE_S: Final = 30.0
"""Seconds that `drive` may take."""
LINE_CHARS_MAX: Final = 160
DIFF_LINES_MAX: Final = 60
MOMENT_US: Final = 10**15
"""Numbers above it are times, which differ from run to run."""

Drive = Callable[[DrivenRun[Any]], Awaitable[None]]
"""Sends a run what it needs from outside. Called once for each run."""


class Played(msgspec.Struct, frozen=True):
    """How a run ended."""

    point: CrashPoint
    outcome: Outcome
    value: Any
    """None where it did not succeed."""
    error: Exception | None
    history: list[ev.Recorded]


class CrashTest:
    """One workflow with its arguments. `begin` opens a client."""

    def __init__(
        self,
        bound: Bound[Any],
        begin: Begin,
        *,
        drive: Drive | None,
        same: Callable[[Any, Any], bool],
        crashes_max: int,
    ) -> None:
        self._bound, self._begin, self._drive = bound, begin, drive
        self._same, self._crashes_max = same, crashes_max

    async def run(self) -> Any:
        """The result without a crash, or what it raised. AssertionError where a crash made a difference."""
        whole = await self._played(CrashPoint())
        events, reached = whole.point.events, 0
        for n in places(events, self._crashes_max):
            if n <= reached:
                continue
            point = CrashPoint(n)
            try:
                crashed = await self._played(point)
            except (PerdureError, TimeoutError) as error:
                if not point.reached:
                    raise
                raise AssertionError(f"{self._after(point, events)} the run did not end: {error}") from error
            reached = point.reached
            if not reached:  # it had fewer events this time
                self._compare(whole, crashed, f"{self._name}, run again without a crash,")
                break
            self._compare(whole, crashed, self._after(point, events))
        if whole.error is not None:
            raise whole.error
        return whole.value

    @property
    def _name(self) -> str:
        return self._bound.workflow.name

    def _after(self, point: CrashPoint, events: int) -> str:
        return f"{self._name}: after a crash that followed event {point.reached} of {events},"

    def _compare(self, whole: Played, crashed: Played, after: str) -> None:
        if not self._is_same(whole, crashed):
            raise AssertionError(
                f"{after} the run ended differently.\n"
                f"  without a crash: {_end(whole)}\n  with the crash:  {_end(crashed)}\n{difference(whole, crashed)}"
            )
        if crashed.point.repeated:
            tasks = "\n  ".join(crashed.point.repeated)
            raise AssertionError(f"{after} tasks were executed again although their results were recorded:\n  {tasks}")

    def _is_same(self, a: Played, b: Played) -> bool:
        if a.outcome.status != b.outcome.status:
            return False
        if a.outcome.status == RunStatus.SUCCESS:
            return a.outcome.value == b.outcome.value or bool(self._same(a.value, b.value))
        return _failure(a.outcome) == _failure(b.outcome)

    async def _played(self, point: CrashPoint) -> Played:
        lives = Lives(self._begin, point)
        await lives.open()
        waiting: list[asyncio.Future[Any]] = []
        try:
            handle: Handle[Any] = await self._bound.start_bound(Backend(lives))
            result = asyncio.ensure_future(outcome_of(handle._backend, handle.id))
            driving = asyncio.ensure_future(self._driven(lives, handle))
            waiting += [result, driving]

            def may_skip() -> bool:
                return driving.done() and driving.result() is None  # or it raises

            await lives.lasting(lambda life: life.clockwork.skip_until(result, self._name, may_skip))
            await driving
            return await self._ended(lives, handle, result.result(), point)
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await lives.close()

    async def _driven(self, lives: Lives, handle: Handle[Any]) -> None:
        if self._drive is None:
            return
        ambient.set(handle._backend)
        run = DrivenRun(lives, handle)
        try:
            async with asyncio.timeout(DRIVE_S):
                await self._drive(run)
        except TimeoutError as error:
            raise PerdureError(
                f"drive() has not returned within {DRIVE_S:g} s; time passes by run.advance() alone while it runs, so that it must not "
                "wait for the result of the run"
            ) from error

    async def _ended(self, lives: Lives, handle: Handle[Any], outcome: Outcome, point: CrashPoint) -> Played:
        value, failed = None, None
        try:
            value = await value_of(handle._backend, outcome, handle._run_id, handle._decode)
        except PerdureError as error:
            failed = error
        return Played(point, outcome, value, failed, await handle.history())


def places(events: int, crashes_max: int) -> list[int]:
    """The events after which to crash."""
    if events <= crashes_max:
        return list(range(1, events + 1))
    steps = max(crashes_max - 1, 1)
    return sorted({1 + round(i * (events - 1) / steps) for i in range(crashes_max)})


def _failure(outcome: Outcome) -> tuple[str, str | None, str]:
    failure = outcome.failure
    return ("", "", "") if failure is None else (failure.code, failure.type, failure.message)


def _end(played: Played) -> str:
    status = RunStatus(played.outcome.status).word
    return f"{status}, {played.error or played.value!r}"[: 10 * LINE_CHARS_MAX]


def difference(a: Played, b: Played) -> str:
    """Of two histories."""
    lines = difflib.unified_diff(
        [_line(r) for r in a.history], [_line(r) for r in b.history], "without a crash", "with the crash", lineterm=""
    )
    shown = list(lines)
    if not shown:
        return "  Both histories have the same events."
    more = [f"... and {len(shown) - DIFF_LINES_MAX} more lines"] if len(shown) > DIFF_LINES_MAX else []
    return "\n".join(f"  {line}" for line in shown[:DIFF_LINES_MAX] + more)


def _line(record: ev.Recorded) -> str:
    event = record.event
    fields = (f"{name}={_text(value)}" for name, value in msgspec.structs.asdict(event).items() if _is_shown(value))
    return f"{type(event).__name__} {' '.join(fields)}"[:LINE_CHARS_MAX]


def _is_shown(value: Any) -> bool:
    """Ids and times differ from run to run."""
    is_id = isinstance(value, bytes) and len(value) == 16 and not value.isascii()
    is_time = isinstance(value, int) and value > MOMENT_US
    is_made = isinstance(value, str) and value.startswith(IDEMPOTENT_KEY)
    return bool(value) and not is_id and not is_time and not is_made


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
