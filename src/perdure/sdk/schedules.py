"""`Schedule("nightly", crawl.bind(urls), cron="0 8 * * *", tz="Europe/Paris")`: when a workflow starts by itself.

A schedule has no effect until it is applied: `await nightly.apply()`, `Perdure(schedules=[nightly])`, `perdure schedule apply MODULE`, or
`perdure worker --apply-schedules`. Applied again it is updated, and
keeps its next time unless the times changed. From then on any engine of the database fires it, whether this program runs or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack

import msgspec

from perdure.core.api import schedules as acts
from perdure.core.api.schedules import ORIGIN_CODE, PutSchedule, ScheduleRef, ScheduleRequest, ScheduleView
from perdure.core.calls import encode_json
from perdure.core.durations import Duration, to_us
from perdure.core.errors import InvalidInput
from perdure.core.schedules import parse_spec, spec_json
from perdure.flows.scheduled import check_name, checked
from perdure.sdk import registry
from perdure.sdk.client.backend import Backend, backend
from perdure.sdk.client.handles import Handle
from perdure.sdk.client.keys import within
from perdure.sdk.client.schedules import Backfilled, Fire, ScheduleClient
from perdure.sdk.options import checked as checked_options
from perdure.sdk.startable import Bound

R = TypeVar("R")

Moment = datetime | str
Overlap = Literal["skip", "queue", "cancel", "allow"]
Missed = Literal["none", "last", "all"]


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
        registry.schedules.add(self)

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

    def document(self) -> dict[str, Any]:
        """The body of `PUT /schedules/{name}`."""
        request = self.request
        body = {
            "workflow": request.workflow,
            "spec": spec_json(self.spec),
            "input": msgspec.json.decode(request.input),
            "timeout": request.timeout_us / 1e6 or None,
            "attributes": msgspec.json.decode(request.attributes or b"{}"),
            "origin": request.origin,
        }
        return {name: value for name, value in body.items() if value is not None}

    async def apply(self, *, timeout: Duration | None = None) -> ScheduleView:
        """Create it, or update it. A paused schedule stays paused."""
        return await self.apply_on(backend(), within_s=within(timeout))

    async def apply_on(self, target: Backend, *, within_s: float | None = None) -> ScheduleView:
        """`apply` through a client."""
        self.target.workflow.prepare(target)
        return (await target.call(acts.PUT, PutSchedule(self.request), within_s)).schedule

    async def describe(self, *, timeout: Duration | None = None) -> ScheduleView:
        """The schedule as it is stored. Raises NotFound if it was not applied."""
        return await _stored().get(self.name, timeout=timeout)

    async def pause(self, reason: str = "", *, timeout: Duration | None = None) -> None:
        """Stop firing until `resume()`. `reason` is shown with the schedule."""
        await _stored().pause(self.name, reason, timeout=timeout)

    async def resume(self, *, timeout: Duration | None = None) -> None:
        """Fire again, from now on. Times that have passed meanwhile are not made up for; `backfill()` does that."""
        await _stored().resume(self.name, timeout=timeout)

    async def trigger(self, *, timeout: Duration | None = None) -> Handle[R]:
        """Start a run now, in addition to the schedule. Returns its handle."""
        target = backend()
        run_id = (await target.call(acts.TRIGGER, ScheduleRef(self.name), within(timeout))).run_id
        return Handle(target, run_id, self.target.workflow.signature.decode_result)

    async def delete(self, *, timeout: Duration | None = None) -> None:
        """Delete the schedule. Its active runs go on."""
        await _stored().delete(self.name, timeout=timeout)

    async def next(self, limit: int = 5, *, timeout: Duration | None = None) -> list[datetime]:
        """The next times of the stored schedule, in its time zone."""
        return list(await _stored().next(self.name, limit, timeout=timeout))

    async def fires(self, limit: int = 50, *, timeout: Duration | None = None) -> list[Fire]:
        """Past times and their outcomes, the latest first."""
        return list(await _stored().fires(self.name, limit, timeout=timeout))

    async def backfill(
        self, since: datetime, until: datetime, *, dry_run: bool = False, timeout: Duration | None = None
    ) -> list[Backfilled]:
        """Start a run for each time from `since` and before `until` that had none.

        With `dry_run` nothing is started. Returns the times, each with whether it had a run, and its run.
        """
        return list(await _stored().backfill(self.name, since, until, dry_run=dry_run, timeout=timeout))


def _stored() -> ScheduleClient:
    return ScheduleClient(backend())
