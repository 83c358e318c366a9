"""`Schedule("nightly", crawl.bind(urls), cron="0 8 * * *", tz="Europe/Paris")`: when a workflow starts by itself.

A schedule has no effect until it is applied: `await nightly.apply()`, or `Perdure(schedules=[nightly])`. Applied again it is updated, and
keeps its next time unless the times changed. From then on any engine of the database fires it, whether this program runs or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, TypedDict, TypeVar, Unpack
from zoneinfo import ZoneInfo

from perdure.core import ids
from perdure.core.api import schedules as acts
from perdure.core.api.schedules import (
    ORIGIN_CODE,
    BackfillSchedule,
    FireView,
    ListFires,
    ListTimes,
    PauseSchedule,
    PutSchedule,
    ScheduleRef,
    ScheduleRequest,
    ScheduleView,
)
from perdure.core.calls import encode_json
from perdure.core.durations import Duration, datetime_of, to_us, us_of
from perdure.core.errors import InvalidInput
from perdure.core.lifecycle import RunStatus
from perdure.core.schedules import parse_spec
from perdure.flows.scheduled import check_name, checked
from perdure.sdk.client.backend import Backend, backend
from perdure.sdk.client.handles import Handle
from perdure.sdk.options import checked as checked_options
from perdure.sdk.startable import Bound

R = TypeVar("R")

Moment = datetime | str
Overlap = Literal["skip", "queue", "cancel", "allow"]
Missed = Literal["none", "last", "all"]


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


class ScheduleOptions(TypedDict, total=False):
    """When a schedule fires. `cron`, `every` and `at` add up; the rest narrows them down. See docs/reference/schedules.md."""

    cron: str | Sequence[str] | None
    every: Duration | None
    anchor: Moment | None
    """The moment that `every` is counted from."""
    at: Moment | Sequence[Moment] | None
    tz: str
    """The time zone of `cron` and of moments without one; UTC unless given."""
    calendars: Sequence[str]
    """Fire on days of these calendars only."""
    exclude: Sequence[str]
    """Do not fire on days of these calendars."""
    start: Moment | None
    end: Moment | None
    jitter: Duration | None
    """Delay each start by a random time up to this."""
    overlap: Overlap
    """What happens while the run before is still active; `skip` unless given."""
    missed: Missed
    """Which times are made up for after an outage; `last` unless given."""
    window: Duration | None
    """How late a missed time may still be made up for."""
    attributes: Mapping[str, str | bool | int | float] | None
    """Search attributes of its runs."""


class Schedule(Generic[R]):
    """When a workflow starts by itself.

    Args:
        name: the name of the schedule, unique in the namespace.
        target: the workflow and its arguments: `crawl.bind(urls)`.
        options: see ScheduleOptions.

    Raises InvalidInput for times that can never work, and for a workflow with a key, debounce or dedup.
    """

    def __init__(self, name: str, target: Bound[R], **options: Unpack[ScheduleOptions]) -> None:
        given = dict(checked_options("Schedule()", ScheduleOptions, options))
        attributes = given.pop("attributes", None)
        self.name = check_name(name)
        self.target = target
        try:
            self.spec = parse_spec(given)
        except InvalidInput as e:
            raise InvalidInput(f"Schedule({name!r}): {e}") from None
        self._attributes = encode_json(attributes) if attributes else b""
        checked(self.request)

    def __repr__(self) -> str:
        return f"<schedule {self.name}>"

    @property
    def request(self) -> ScheduleRequest:
        workflow = self.target.workflow
        problem = workflow.schedule_problem()
        if problem:
            raise InvalidInput(f"Schedule({self.name!r}): {problem}")
        return ScheduleRequest(
            name=self.name,
            workflow=workflow.name,
            input=self.target.data,
            timeout_us=to_us(workflow.timeout) if workflow.timeout is not None else 0,
            attributes=self._attributes,
            spec=self.spec,
            origin=ORIGIN_CODE,
        )

    async def apply(self) -> ScheduleView:
        """Create it, or update it. A paused schedule stays paused."""
        return await self.apply_on(backend())

    async def apply_on(self, target: Backend) -> ScheduleView:
        """Like `apply()`, through a client that you hold."""
        self.target.workflow.prepare(target)
        return (await target.call(acts.PUT, PutSchedule(self.request))).schedule

    async def describe(self) -> ScheduleView:
        """The schedule as it is stored. Raises NotFound if it was not applied."""
        return await backend().call(acts.GET, ScheduleRef(self.name))

    async def pause(self, reason: str = "") -> None:
        """Stop firing until `resume()`. `reason` is shown with the schedule."""
        await backend().call(acts.PAUSE, PauseSchedule(self.name, reason))

    async def resume(self) -> None:
        """Fire again, from now on. Times that have passed meanwhile are not made up for; `backfill()` does that."""
        await backend().call(acts.RESUME, ScheduleRef(self.name))

    async def trigger(self) -> Handle[R]:
        """Start a run now, in addition to the schedule. Returns its handle."""
        target = backend()
        run_id = (await target.call(acts.TRIGGER, ScheduleRef(self.name))).run_id
        return Handle(target, run_id, self.target.workflow.signature.decode_result)

    async def delete(self) -> None:
        """Delete the schedule. Its active runs go on."""
        await backend().call(acts.DELETE, ScheduleRef(self.name))

    async def next(self, limit: int = 5) -> list[datetime]:
        """The next times of the stored schedule, in its time zone."""
        return [self._local(t) for t in (await backend().call(acts.TIMES, ListTimes(self.name, limit))).times]

    async def fires(self, limit: int = 50) -> list[Fire]:
        """Past times and their outcomes, the latest first."""
        return [self._fire(f) for f in (await backend().call(acts.FIRES, ListFires(self.name, None, limit))).items]

    async def backfill(self, since: datetime, until: datetime, *, dry_run: bool = False) -> list[Backfilled]:
        """Start a run for each time from `since` and before `until` that had none.

        With `dry_run` nothing is started. Returns the times, each with whether it had a run, and its run.
        """
        asked = BackfillSchedule(self.name, us_of(since), us_of(until), dry_run)
        times = (await backend().call(acts.BACKFILL, asked)).times
        return [Backfilled(self._local(t.nominal_us), t.exists, _text(t.run_id)) for t in times]

    def _local(self, us: int) -> datetime:
        return datetime_of(us).astimezone(ZoneInfo(self.spec.tz))

    def _fire(self, f: FireView) -> Fire:
        status = RunStatus(f.status).word if f.status is not None else None
        return Fire(self._local(f.nominal_us), datetime_of(f.at_us), f.how, f.outcome, _text(f.run_id), status)


def _text(run_id: bytes | None) -> str | None:
    return None if run_id is None else ids.text(run_id)
