"""Schedules: runs that start by themselves, what became of each time, and the calendars they keep to.

A schedule of a flow's `triggers:` has a slash in its name; in a path it is written as it is, or as %2F.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from perdure.core import ids
from perdure.core.calls import encode_json
from perdure.core.errors import Conflict, NotFound
from perdure.core.limits import NAME_CHARS_MAX, PREVIEW_TIMES_MAX
from perdure.core.schedules import ScheduleSpec, parse_calendar, parse_spec, spec_json
from perdure.engine.api.schedules import Schedules
from perdure.flows.scheduled import BackfillTime, CalendarView, FireView, ScheduleRequest, ScheduleView
from perdure.server.auth.ports import Detail
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.documents import check_input
from perdure.server.rest.guard import Caller, Developer, GuardedRoute, Operator, Reader
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses
from perdure.server.rest.workflows import known, version_known

TIMES_DEFAULT: Final = 5

router = APIRouter(tags=["schedules"], route_class=GuardedRoute)

ScheduleName = Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX, examples=["nightly"])]
Count = Annotated[int, Query(ge=1, le=PREVIEW_TIMES_MAX, description="How many times.")]
Times = str | list[str] | None
Span = float | str | None


# -- what goes over the wire ---------------------------------------------------------------------------------------


class Spec(m.Body):
    """When it fires. `cron`, `every` and `at` add up; the rest narrows them down."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"cron": "0 8 * * *", "tz": "Europe/Paris"}]}
    )

    cron: Times = Field(default=None, description="5 fields (minute first) or 6 (second first); one or several.")
    every: Span = Field(default=None, description="An interval: seconds, or text such as `15m`.")
    anchor: str | None = Field(default=None, description="The moment that `every` is counted from.")
    at: Times = Field(default=None, description="A moment, or several.")
    tz: str | None = Field(default=None, description="Zone of `cron`, of days, and of moments without an offset.")
    calendars: list[str] | None = Field(default=None, description="Only on days of these calendars.")
    exclude: list[str] | None = Field(default=None, description="Not on days of these calendars.")
    start: str | None = Field(default=None, description="Nothing before this moment.")
    end: str | None = Field(default=None, description="Nothing from this moment on.")
    jitter: Span = Field(default=None, description="Each firing is put off by up to this much.")
    overlap: str | None = Field(
        default=None, description="skip, queue, cancel or allow: when an earlier run is active."
    )
    missed: str | None = Field(default=None, description="none, last or all: what is made up for after an outage.")
    window: Span = Field(default=None, description="How far back that goes.")

    def parsed(self) -> ScheduleSpec:
        return parse_spec(self.model_dump(exclude_none=True))


class PutSchedule(m.Body):
    """Arguments come as when a run is started: as `input`, or as `args` and `kwargs`."""

    workflow: m.Name
    spec: Spec
    input: Any = Field(default=None, description="An object: arguments by name. Null: none. Else the one argument.")
    args: list[Any] = Field(default_factory=list, max_length=m.ARGUMENTS_MAX)
    kwargs: dict[str, Any] = Field(default_factory=dict, max_length=m.ARGUMENTS_MAX)
    timeout: m.Seconds | m.DurationText | None = Field(default=None, description="When a run of it fails.")
    attributes: dict[m.AttributeName, m.Attribute] = Field(default_factory=dict, max_length=m.ATTRIBUTES_MAX - 1)
    version: Annotated[str, Field(min_length=1, max_length=m.VERSION_CHARS_MAX)] | None = Field(
        default=None, description="A registered version; whatever is current when it fires unless given."
    )

    def as_start(self) -> m.StartRun:
        return m.StartRun(input=self.input, args=self.args, kwargs=self.kwargs)


class CreateSchedule(PutSchedule):
    name: m.Name = Field(examples=["nightly"])


class Paused(BaseModel):
    at: m.Moment
    by: str
    reason: str | None


class Schedule(BaseModel):
    name: str = Field(examples=["nightly"])
    workflow: str
    version: str | None = Field(description="Null: whatever is current when it fires.")
    input: Any
    attributes: dict[str, Any]
    timeout_s: float | None
    spec: dict[str, Any] = Field(description="What differs from the defaults.", examples=[{"cron": "0 8 * * *"}])
    state: Literal["active", "paused", "over"]
    origin: str = Field(description="`api`, `code`, or `flow:` and the flow whose triggers it comes from.")
    paused: Paused | None
    next_at: m.Moment | None = Field(description="The next nominal time; null when it is over.")
    fire_at: m.Moment | None = Field(description="When that one fires: with its jitter.")
    fired: int
    missed: int = Field(description="Times that went by and were not made up for.")
    skipped: int = Field(description="Times that started nothing because an earlier run was active.")
    error: str | None = Field(description="Why the last time could not be fired.")
    created_at: m.Moment
    created_by: str
    updated_at: m.Moment
    url: str = Field(description="Its past times.")


class ScheduleTimes(BaseModel):
    times: list[m.Moment]


class Preview(m.Body):
    spec: Spec
    n: int = Field(default=TIMES_DEFAULT, ge=1, le=PREVIEW_TIMES_MAX)


class PauseSchedule(m.Body):
    reason: Annotated[str, Field(max_length=m.REASON_CHARS_MAX)] = ""


class Triggered(BaseModel):
    run_id: str = Field(examples=[m.ID])
    url: str


class BackfillSchedule(m.Body):
    since: Annotated[str, Field(max_length=100)] = Field(
        description="A time with its zone, or how long ago.", examples=["2026-10-01T00:00:00Z", "7d"]
    )
    until: Annotated[str, Field(max_length=100)] | None = Field(
        default=None, description="Not included; now unless given."
    )
    dry_run: bool = Field(default=False, description="Only say what would be started.")


class Backfilled(BaseModel):
    nominal_at: m.Moment
    exists: bool = Field(description="It had a run already, and gets no other.")
    run_id: str | None


class Backfill(BaseModel):
    dry_run: bool
    started: int = Field(description="Or how many would be.")
    times: list[Backfilled]


class Fire(BaseModel):
    """One nominal time and what came of it."""

    nominal_at: m.Moment
    at: m.Moment = Field(description="When it was fired.")
    how: Literal["fired", "trigger", "backfill"]
    outcome: Literal["started", "skipped", "missed"]
    run_id: str | None
    status: m.RunStatusWord | None = Field(description="Of the run; null when there is none, or none any more.")


class Calendar(BaseModel):
    name: str
    spec: dict[str, Any] = Field(examples=[{"dates": ["2026-12-25"], "weekdays": ["sat", "sun"]}])
    updated_at: m.Moment
    updated_by: str


class PutCalendar(m.Body):
    """Days: those that any of the four lists names and `not` does not."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    dates: list[str] | None = Field(default=None, examples=[["2026-12-25"]])
    yearly: list[str] | None = Field(default=None, description="Month and day.", examples=[["12-25"]])
    weekdays: list[str] | None = Field(default=None, examples=[["sat", "sun"]])
    ranges: list[list[str]] | None = Field(default=None, description="First and last day.")
    without: dict[str, Any] | None = Field(
        default=None, alias="not", description="A calendar of days that are left out."
    )


# -- schedules -----------------------------------------------------------------------------------------------------


@router.get("/schedules", responses=responses(401, 403, 422))
async def list_schedules(
    caller: Reader,
    workflow: Annotated[str, Query(max_length=NAME_CHARS_MAX, description="Of this workflow only.")] = "",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[Schedule]:
    """Schedules by name."""
    after = (views.read_cursor(cursor, str) or "").replace("\x00", "")
    found = await _use(caller).page(workflow, after, limit + 1)
    page = found[:limit]
    return m.Page[Schedule](
        items=[_shown(caller, s) for s in page], next=views.cursor_of(page[-1].name) if len(found) > limit else None
    )


@router.post("/schedules", status_code=201, responses=responses(401, 403, 404, 409, 413, 422))
async def create_schedule(caller: Developer, body: CreateSchedule, response: Response) -> Schedule:
    """Make a schedule. A name that is taken is refused; PUT changes what is there."""
    use = _use(caller)
    try:
        await use.get(body.name)
    except NotFound:
        pass
    else:
        raise Conflict(f"there is a schedule {body.name!r} already; PUT /schedules/{body.name} changes it")
    view = await _put(caller, body.name, body)
    response.headers["Location"] = f"/api/v1/schedules/{view.name}"
    return _shown(caller, view)


@router.post("/schedules/preview", responses=responses(401, 403, 413, 422))
async def preview_schedule(caller: Reader, body: Preview) -> ScheduleTimes:
    """When a schedule like this would fire. Nothing is written."""
    times = await _use(caller).preview(body.spec.parsed(), body.n)
    return ScheduleTimes(times=[views.moment(t) for t in times])


# A name may hold slashes, so what is below a schedule comes before the schedule itself.


@router.get("/schedules/{name:path}/times", responses=responses(401, 403, 404, 422))
async def schedule_times(caller: Reader, name: ScheduleName, n: Count = TIMES_DEFAULT) -> ScheduleTimes:
    """The next nominal times."""
    return ScheduleTimes(times=[views.moment(t) for t in await _use(caller).times(name, n)])


@router.get("/schedules/{name:path}/fires", responses=responses(401, 403, 404, 422))
async def list_fires(
    caller: Reader, name: ScheduleName, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[Fire]:
    """Past times and what came of them, the latest first."""
    found = await _use(caller).fires(name, views.read_cursor(cursor, int), limit + 1)
    page = found[:limit]
    return m.Page[Fire](
        items=[_fire(f) for f in page], next=views.cursor_of(page[-1].nominal_us) if len(found) > limit else None
    )


@router.post("/schedules/{name:path}/pause", responses=responses(401, 403, 404, 413, 422))
async def pause_schedule(caller: Operator, name: ScheduleName, body: PauseSchedule | None = None) -> Schedule:
    """Fire nothing until it is resumed."""
    reason = body.reason if body is not None else ""
    view = await _use(caller).pause(name, reason)
    await _audit(caller, "schedule.pause", name, reason=reason)
    return _shown(caller, view)


@router.post("/schedules/{name:path}/resume", responses=responses(401, 403, 404, 422))
async def resume_schedule(caller: Operator, name: ScheduleName) -> Schedule:
    """Go on from now. What would have fired meanwhile is not made up for; a backfill does that."""
    view = await _use(caller).resume(name)
    await _audit(caller, "schedule.resume", name)
    return _shown(caller, view)


@router.post("/schedules/{name:path}/trigger", status_code=201, responses=responses(401, 403, 404, 422))
async def trigger_schedule(caller: Operator, name: ScheduleName) -> Triggered:
    """Start a run now, beside what the schedule does."""
    run_id = ids.text(await _use(caller).trigger(name))
    await _audit(caller, "schedule.trigger", name, run=run_id)
    return Triggered(run_id=run_id, url=f"{caller.server.public_url}/runs/{run_id}")


@router.post("/schedules/{name:path}/backfill", responses=responses(401, 403, 404, 413, 422))
async def backfill_schedule(caller: Operator, name: ScheduleName, body: BackfillSchedule) -> Backfill:
    """A run for each nominal time from `since` and before `until` that had none."""
    now_us = caller.server.engine.clock.now_us()
    since = views.read_moment(body.since, "since", now_us) or 0
    until = views.read_moment(body.until, "until", now_us) or now_us
    times = await _use(caller).backfill(name, since, until, dry_run=body.dry_run)
    started = sum(not t.exists for t in times)
    if not body.dry_run:
        await _audit(caller, "schedule.backfill", name, since=views.rfc3339(since), until=views.rfc3339(until), started=started)  # fmt: skip
    return Backfill(dry_run=body.dry_run, started=started, times=[_backfilled(t) for t in times])


@router.get("/schedules/{name:path}", responses=responses(401, 403, 404, 422))
async def get_schedule(caller: Reader, name: ScheduleName) -> Schedule:
    """How it stands."""
    return _shown(caller, await _use(caller).get(name))


@router.put("/schedules/{name:path}", responses=responses(401, 403, 404, 409, 413, 422, s201={"model": Schedule, "description": "It is new."}))  # fmt: skip
async def put_schedule(caller: Developer, name: ScheduleName, body: PutSchedule, response: Response) -> Schedule:
    """Make a schedule, or bring it up to date. The next time is kept unless the spec changed."""
    before = None
    try:
        before = await _use(caller).get(name)
    except NotFound:
        response.status_code = 201
    view = await _put(caller, name, body, before)
    return _shown(caller, view)


@router.delete("/schedules/{name:path}", status_code=204, responses=responses(401, 403, 404, 422))
async def delete_schedule(caller: Developer, name: ScheduleName) -> None:
    """Runs that are active go on, and what fired stays on record."""
    await _use(caller).delete(name)
    await _audit(caller, "schedule.delete", name)


async def _put(caller: Caller, name: str, body: PutSchedule, before: ScheduleView | None = None) -> ScheduleView:
    start = body.as_start()
    if before is None or before.workflow != body.workflow:
        await known(caller, body.workflow)
    await check_input(caller, body.workflow, await version_known(caller, body.workflow, body.version), start)
    view, created = await _use(caller).put(
        ScheduleRequest(
            name=name,
            workflow=body.workflow,
            version=body.version or "",
            input=views.call(start),
            timeout_us=views.duration_us(body.timeout),
            attributes=encode_json(body.attributes) if body.attributes else b"",
            spec=body.spec.parsed(),
        )
    )
    action = "schedule.create" if created else "schedule.update"
    await _audit(caller, action, name, workflow=body.workflow)
    return view


# -- calendars -----------------------------------------------------------------------------------------------------


@router.get("/calendars", responses=responses(401, 403, 422))
async def list_calendars(caller: Reader, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> m.Page[Calendar]:
    """Calendars by name."""
    after = (views.read_cursor(cursor, str) or "").replace("\x00", "")
    found = await _use(caller).calendar_page(after, limit + 1)
    page = found[:limit]
    return m.Page[Calendar](
        items=[_calendar(c) for c in page], next=views.cursor_of(page[-1].name) if len(found) > limit else None
    )


@router.get("/calendars/{name:path}", responses=responses(401, 403, 404, 422))
async def get_calendar(caller: Reader, name: ScheduleName) -> Calendar:
    """Its days, as they were given."""
    return _calendar(await _use(caller).calendar(name))


@router.put("/calendars/{name:path}", responses=responses(401, 403, 413, 422))
async def put_calendar(caller: Developer, name: ScheduleName, body: PutCalendar) -> Calendar:
    """Set the days of a calendar. Schedules that use it find their next time anew."""
    calendar = parse_calendar(body.model_dump(exclude_none=True, by_alias=True))
    view = await _use(caller).put_calendar(name, calendar)
    await _audit(caller, "calendar.put", name)
    return _calendar(view)


@router.delete("/calendars/{name:path}", status_code=204, responses=responses(401, 403, 404, 409, 422))
async def delete_calendar(caller: Developer, name: ScheduleName) -> None:
    """One that a schedule uses cannot go."""
    await _use(caller).delete_calendar(name)
    await _audit(caller, "calendar.delete", name)


# -- views ---------------------------------------------------------------------------------------------------------


def _use(caller: Caller) -> Schedules:
    return Schedules(caller.server.engine.scheduler, caller.ns, caller.principal.subject)


async def _audit(caller: Caller, action: str, name: str, **detail: str | int) -> None:
    kept: Detail = {k: v for k, v in detail.items() if v != ""}
    await caller.server.audit(caller.principal, action, name, kept, ns=caller.ns)


def _shown(caller: Caller, s: ScheduleView) -> Schedule:
    paused = None
    if s.paused_us is not None:
        paused = Paused(at=views.moment(s.paused_us), by=s.paused_by or "", reason=s.pause_reason)
    return Schedule(
        name=s.name,
        workflow=s.workflow,
        version=s.version or None,
        input=views.plain(s.input),
        attributes=views.plain(s.attributes) or {},
        timeout_s=s.timeout_us / 1e6 if s.timeout_us else None,
        spec=spec_json(s.spec),
        state=s.state,
        origin=s.origin,
        paused=paused,
        next_at=views.moment_or_none(s.next_us),
        fire_at=views.moment_or_none(s.fire_us),
        fired=s.fired,
        missed=s.missed,
        skipped=s.skipped,
        error=s.error,
        created_at=views.moment(s.created_us),
        created_by=s.created_by,
        updated_at=views.moment(s.updated_us),
        url=f"{caller.server.public_url}/api/v1/schedules/{s.name}/fires",
    )


def _fire(f: FireView) -> Fire:
    return Fire(
        nominal_at=views.moment(f.nominal_us),
        at=views.moment(f.at_us),
        how=f.how,  # type: ignore[arg-type]
        outcome=f.outcome,  # type: ignore[arg-type]
        run_id=_text(f.run_id),
        status=None if f.status is None else views.word(f.status),
    )


def _backfilled(t: BackfillTime) -> Backfilled:
    return Backfilled(nominal_at=views.moment(t.nominal_us), exists=t.exists, run_id=_text(t.run_id))


def _text(run_id: bytes | None) -> str | None:
    return None if run_id is None else ids.text(run_id)


def _calendar(c: CalendarView) -> Calendar:
    return Calendar(
        name=c.name, spec=msgspec.json.decode(c.spec), updated_at=views.moment(c.updated_us), updated_by=c.updated_by
    )
