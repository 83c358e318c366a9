"""Schedules of a namespace, through a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol
from zoneinfo import ZoneInfo

from perdure.core import ids
from perdure.core.api import schedules as acts
from perdure.core.api.schedules import (
    BackfillSchedule,
    ListFires,
    ListSchedules,
    ListTimes,
    PauseSchedule,
    ScheduleRef,
    ScheduleView,
)
from perdure.core.durations import Duration, datetime_of, us_of
from perdure.core.lifecycle import RunStatus
from perdure.sdk.client.backend import Backend
from perdure.sdk.client.handles import Handle
from perdure.sdk.client.keys import within
from perdure.sdk.payloads import Converter

PAGE_SCHEDULES: Final = 200
"""Schedules of one page of `list()`."""


@dataclass(frozen=True)
class Fire:
    """One time of a schedule and its outcome."""

    nominal: datetime
    at: datetime
    how: str
    """`fired`, `trigger` or `backfill`."""
    outcome: str
    """`started`, `skipped` or `missed`."""
    run_id: str | None
    status: str | None
    """Of the run."""


@dataclass(frozen=True)
class Backfilled:
    """One nominal time of a backfill."""

    nominal: datetime
    exists: bool
    """It already had a run."""
    run_id: str | None


class ScheduleKey(Protocol):
    """A `Schedule`."""

    async def apply_on(self, target: Backend, *, within_s: float | None = None) -> ScheduleView: ...


class ScheduleClient:
    """`client.schedules`: apply schedules of your code, and control those that are stored, by name."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def apply(self, schedule: ScheduleKey, *, timeout: Duration | None = None) -> ScheduleView:
        """Create a schedule, or update it. A paused schedule stays paused."""
        return await schedule.apply_on(self._backend, within_s=within(timeout))

    async def list(self, workflow: str = "", *, timeout: Duration | None = None) -> AsyncIterator[ScheduleView]:
        """All schedules by name, or those of one workflow. `timeout`: of each call, which gets PAGE_SCHEDULES schedules."""
        after: str | None = ""
        while after is not None:
            page = await self._backend.call(acts.LIST, ListSchedules(workflow, after, PAGE_SCHEDULES), within(timeout))
            for one in page.items:
                yield one
            after = page.next

    async def get(self, name: str, *, timeout: Duration | None = None) -> ScheduleView:
        """A schedule as it is stored. Raises NotFound."""
        return await self._backend.call(acts.GET, ScheduleRef(name), within(timeout))

    async def pause(self, name: str, reason: str = "", *, timeout: Duration | None = None) -> ScheduleView:
        """Stop firing until `resume()`. `reason` is shown with the schedule."""
        return await self._backend.call(acts.PAUSE, PauseSchedule(name, reason), within(timeout))

    async def resume(self, name: str, *, timeout: Duration | None = None) -> ScheduleView:
        """Fire again, from now on. Times that have passed meanwhile are not made up for; `backfill()` does that."""
        return await self._backend.call(acts.RESUME, ScheduleRef(name), within(timeout))

    async def trigger(self, name: str, *, timeout: Duration | None = None) -> Handle[Any]:
        """Start a run now, in addition to the schedule. Returns its handle."""
        run_id = (await self._backend.call(acts.TRIGGER, ScheduleRef(name), within(timeout))).run_id
        return Handle(self._backend, run_id, Converter.of(Any).decode)

    async def delete(self, name: str, *, timeout: Duration | None = None) -> None:
        """Delete a schedule. Its active runs go on."""
        await self._backend.call(acts.DELETE, ScheduleRef(name), within(timeout))

    async def next(self, name: str, limit: int = 5, *, timeout: Duration | None = None) -> tuple[datetime, ...]:
        """The next times of a schedule, in its time zone."""
        zone = ZoneInfo((await self.get(name, timeout=timeout)).spec.tz)
        times = (await self._backend.call(acts.TIMES, ListTimes(name, limit), within(timeout))).times
        return tuple(datetime_of(t).astimezone(zone) for t in times)

    async def fires(self, name: str, limit: int = 50, *, timeout: Duration | None = None) -> tuple[Fire, ...]:
        """Past times and their outcomes, the latest first."""
        zone = ZoneInfo((await self.get(name, timeout=timeout)).spec.tz)
        page = await self._backend.call(acts.FIRES, ListFires(name, None, limit), within(timeout))
        return tuple(
            Fire(
                nominal=datetime_of(f.nominal_us).astimezone(zone),
                at=datetime_of(f.at_us),
                how=f.how,
                outcome=f.outcome,
                run_id=_text(f.run_id),
                status=RunStatus(f.status).word if f.status is not None else None,
            )
            for f in page.items
        )

    async def backfill(
        self, name: str, since: datetime, until: datetime, *, dry_run: bool = False, timeout: Duration | None = None
    ) -> tuple[Backfilled, ...]:
        """Start a run for each time from `since` and before `until` that had none. With `dry_run` nothing is started."""
        zone = ZoneInfo((await self.get(name, timeout=timeout)).spec.tz)
        wanted = BackfillSchedule(name, us_of(since), us_of(until), dry_run)
        times = (await self._backend.call(acts.BACKFILL, wanted, within(timeout))).times
        return tuple(Backfilled(datetime_of(t.nominal_us).astimezone(zone), t.exists, _text(t.run_id)) for t in times)


def _text(run_id: bytes | None) -> str | None:
    return None if run_id is None else ids.text(run_id)
