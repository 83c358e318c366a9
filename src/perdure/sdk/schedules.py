"""`Schedule("nightly", crawl.bind(urls), cron="0 8 * * *", tz="Europe/Paris")`: a declaration of when a workflow starts by itself.

It does nothing until it is applied: `await nightly.apply()`, or `Perdure(schedules=[nightly])`. Applied again it is brought up to date, and
keeps its next time unless the times themselves changed. From then on any engine of the database fires it, whether this program runs or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, TypeVar
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
from perdure.sdk.definitions import Bound

R = TypeVar("R")

Moment = datetime | str
Overlap = Literal["skip", "queue", "cancel", "allow"]
Missed = Literal["none", "last", "all"]


@dataclass(frozen=True)
class Fire:
    """One nominal time and what came of it."""

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
    """It had a run already, and gets no other."""
    run_id: str | None


class Schedule(Generic[R]):
    """When a workflow starts by itself. `cron`, `every` and `at` add up; the rest narrows them down. See docs/how-to/schedule-runs.md."""

    def __init__(
        self,
        name: str,
        target: Bound[R],
        *,
        cron: str | Sequence[str] | None = None,
        every: Duration | None = None,
        anchor: Moment | None = None,
        at: Moment | Sequence[Moment] | None = None,
        tz: str = "UTC",
        calendars: Sequence[str] = (),
        exclude: Sequence[str] = (),
        start: Moment | None = None,
        end: Moment | None = None,
        jitter: Duration | None = None,
        overlap: Overlap = "skip",
        missed: Missed = "last",
        window: Duration | None = None,
        attributes: Mapping[str, str | bool | int | float] | None = None,
    ) -> None:
        self.name = check_name(name)
        self.target = target
        given = {
            "cron": cron, "every": every, "anchor": anchor, "at": at, "tz": tz, "calendars": list(calendars), "exclude": list(exclude),
            "start": start, "end": end, "jitter": jitter, "overlap": overlap, "missed": missed, "window": window,
        }  # fmt: skip
        try:
            self.spec = parse_spec({k: v for k, v in given.items() if v is not None})
        except InvalidInput as e:
            raise InvalidInput(f"Schedule({name!r}): {e}") from None
        self._attributes = encode_json(dict(attributes)) if attributes else b""
        checked(self.request)

    def __repr__(self) -> str:
        return f"<schedule {self.name}>"

    @property
    def request(self) -> ScheduleRequest:
        workflow = self.target.workflow
        refused = workflow.refused_by_schedules()
        if refused:
            raise InvalidInput(f"Schedule({self.name!r}): {refused}")
        return ScheduleRequest(
            name=self.name,
            workflow=workflow.name,
            input=self.target.data,
            timeout_us=to_us(workflow.timeout) if workflow.timeout is not None else 0,
            attributes=self._attributes,
            spec=self.spec,
            origin=ORIGIN_CODE,
        )

    # -- what becomes of it -----------------------------------------------------------------------------------------

    async def apply(self) -> ScheduleView:
        """Create it, or bring it up to date. One that somebody paused stays paused."""
        return await self.apply_on(backend())

    async def apply_on(self, target: Backend) -> ScheduleView:
        """`apply` on a client that you hold."""
        self.target.workflow.prepare(target)
        return (await target.call(acts.PUT, PutSchedule(self.request))).schedule

    async def describe(self) -> ScheduleView:
        return await backend().call(acts.GET, ScheduleRef(self.name))

    async def pause(self, reason: str = "") -> None:
        """Nothing fires until `resume`."""
        await backend().call(acts.PAUSE, PauseSchedule(self.name, reason))

    async def resume(self) -> None:
        """Go on from now: what would have fired meanwhile is not made up for. `backfill` does that."""
        await backend().call(acts.RESUME, ScheduleRef(self.name))

    async def trigger(self) -> Handle[R]:
        """Start a run now, beside what the schedule does."""
        target = backend()
        run_id = (await target.call(acts.TRIGGER, ScheduleRef(self.name))).run_id
        return Handle(target, run_id, self.target.workflow.signature.decode_result)

    async def delete(self) -> None:
        """Runs that are active go on."""
        await backend().call(acts.DELETE, ScheduleRef(self.name))

    async def next(self, n: int = 5) -> list[datetime]:
        """The next times, as the schedule is stored, in its own zone."""
        return [self._local(t) for t in (await backend().call(acts.TIMES, ListTimes(self.name, n))).times]

    async def fires(self, limit: int = 50) -> list[Fire]:
        """Past times and what came of them, the latest first."""
        return [self._fire(f) for f in (await backend().call(acts.FIRES, ListFires(self.name, None, limit))).items]

    async def backfill(self, since: datetime, until: datetime, *, dry_run: bool = False) -> list[Backfilled]:
        """A run for each time from `since` and before `until` that had none. With `dry_run`, only tell which those are."""
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
