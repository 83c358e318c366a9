"""The ScheduleStore port on PostgreSQL.

What fires is decided by the engine between two statements of one transaction; what a put or a resume needs of core/schedules is asked
for here, because the next time, the calendars it depends on and the row it goes into must be seen together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.core import chain
from perdure.core.api.schedules import ORIGIN_API, ORIGIN_FLOW, CalendarView, FireView, ScheduleRequest, ScheduleView
from perdure.core.durations import FOREVER_US
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.limits import CALENDARS_MAX, SCHEDULE_RUNS_LOOKED_AT, SCHEDULES_MAX
from perdure.core.messages import CancelMessage
from perdure.core.schedules import (
    Calendar,
    ScheduleSpec,
    calendar_json,
    fire_at,
    next_after,
    parse_calendar,
    parse_spec,
    spec_hash,
    spec_json,
)
from perdure.core.suggestions import did_you_mean
from perdure.core.versions import VersionChoice
from perdure.core.work import run_kind
from perdure.engine.services.schedule_planner import (
    Calendars,
    DueSchedule,
    Plan,
    PlannedFire,
    PlanStep,
    SchedulePlanner,
)
from perdure.engine.services.schedules import Fired, NextFire
from perdure.flows.scheduled import BACKFILL, FIRED, MISSED, SKIPPED, spec_calendars
from perdure.store.clashes import retried
from perdure.store.flow_control import put_groups
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch, fetch_row, sealed_history
from perdure.store.words import run_status
from perdure.wire.codec import encode_message

PAGE: Final = 500
USERS_SHOWN: Final = 5
"""Schedules that are named in the error when a calendar cannot be deleted."""


@retried()
class PostgresSchedules(PostgresPort):
    async def next_fire(self) -> NextFire:
        row = await self._row("next_fire")
        return NextFire(row["clock"], row["fire_at"])

    async def fire(self, limit: int, planner: SchedulePlanner) -> Fired:
        async with self._pool.take() as c, c.transaction():
            found = [_due(r) for r in await fetch(c, "due_schedules", limit=limit)]
            if not found:
                return Fired(0, 0, 0, 0)
            texts = await _calendar_texts(c, planner.calendars(found))
            active: dict[int, list[bytes]] = {}
            if overlapping := planner.overlapping(found):
                for r in await fetch(c, "active_of_schedules", ids=overlapping, looked_at=SCHEDULE_RUNS_LOOKED_AT):
                    active.setdefault(r["id"], []).append(r["run_id"])
            steps = planner.steps(found, texts, {i: len(runs) for i, runs in active.items()})
            fresh = await _start(c, [(s.schedule, f) for s in steps for f in s.fires], FIRED)
            stopped = [run for s in steps if s.cancel for run in active.get(s.schedule.id, ())]
            if stopped:
                body = encode_message(CancelMessage("the schedule that started it starts the next run"))
                await execute(c, "cancel_runs", run_ids=stopped, body=body)
            return await _advance(c, steps, fresh)

    async def defer(self, ids: Sequence[int], error: str, delay_us: int) -> None:
        await self._fetch("postpone_schedules", ids=list(ids), error=error, delay_us=delay_us)

    async def prune(self, keep_days: float, rows: int) -> int:
        return len(await self._fetch("delete_old_fires", keep_days=keep_days, limit=rows))

    async def start(self, ns: int, name: str, how: str, plan: Plan) -> list[PlannedFire] | None:
        """Start runs for given times. Answers those that were free; None when there is no such schedule."""
        async with self._pool.take() as c, c.transaction():
            row = await fetch_row(c, "schedule_to_start", ns=ns, name=name)
            if row is None:
                return None
            found = _due(row)
            fires = plan(found, await _calendars(c, ns, spec_calendars(_spec(found.spec))))
            fresh = await _start(c, [(found, f) for f in fires], how)
            return [f for f in fires if (found.id, f.nominal_us) in fresh]

    async def put(self, ns: int, r: ScheduleRequest, by: str) -> tuple[ScheduleView, bool]:
        async with self._pool.take() as c, c.transaction():
            return await put(c, ns, r, by)

    async def get(self, ns: int, name: str) -> ScheduleView | None:
        row = await self._row("get_schedule", ns=ns, name=name)
        return None if row is None else _view(row)

    async def page(self, ns: int, workflow: str, after: str, limit: int) -> list[ScheduleView]:
        return [
            _view(r) for r in await self._fetch("list_schedules", ns=ns, workflow=workflow, after=after, limit=limit)
        ]

    async def names(self, ns: int) -> list[str]:
        return [r["name"] for r in await self._fetch("schedule_names", ns=ns, limit=PAGE)]

    async def pause(self, ns: int, name: str, by: str, reason: str) -> ScheduleView | None:
        row = await self._row("pause_schedule", ns=ns, name=name, paused_by=by, reason=reason or None)
        return None if row is None else _view(row)

    async def resume(self, ns: int, name: str) -> ScheduleView | None:
        async with self._pool.take() as c, c.transaction():
            row = await fetch_row(c, "lock_schedule", ns=ns, name=name)
            if row is None:
                return None
            if row["paused_at"] is None:
                return _view(row)
            spec = _spec(row["spec"])
            times = _times(spec, await _calendars(c, ns, spec_calendars(spec)), name, row["clock"])
            return _view(await fetch_row(c, "resume_schedule", id=row["id"], next_at=times[0], fire_at=times[1]))

    async def delete(self, ns: int, name: str) -> bool:
        return await self._row("delete_schedule", ns=ns, name=name) is not None

    async def taken(self, ns: int, name: str, nominal_us: Sequence[int]) -> dict[int, bytes]:
        if not nominal_us:
            return {}
        rows = await self._fetch("fired_times", ns=ns, name=name, times=list(nominal_us))
        return {r["nominal_at"]: r["run_id"] for r in rows}

    async def fires(self, ns: int, name: str, before_us: int | None, limit: int) -> list[FireView] | None:
        row = await self._row("get_schedule", ns=ns, name=name)
        if row is None:
            return None
        before = FOREVER_US if before_us is None else before_us
        return [
            FireView(
                nominal_us=r["nominal_at"],
                at_us=r["at"],
                how=r["how"],
                outcome=r["outcome"],
                run_id=r["run_id"],
                status=run_status(r["status"]) if r["status"] is not None else None,
            )
            for r in await self._fetch("list_fires", schedule_id=row["id"], before=before, limit=limit)
        ]

    async def clock_us(self) -> int:
        clock: int = (await self._row("schedules_clock"))["clock"]
        return clock

    async def calendars(self, ns: int, names: Sequence[str]) -> Calendars:
        if not names:
            return {}
        async with self._pool.take() as c:
            return await _calendars(c, ns, names)

    async def calendar(self, ns: int, name: str) -> CalendarView | None:
        row = await self._row("get_calendar", ns=ns, name=name)
        return None if row is None else _calendar_view(row)

    async def calendar_page(self, ns: int, after: str, limit: int) -> list[CalendarView]:
        return [_calendar_view(r) for r in await self._fetch("list_calendars", ns=ns, after=after, limit=limit)]

    async def put_calendar(self, ns: int, name: str, calendar: Calendar, by: str) -> CalendarView:
        """Schedules that use it and are not due yet get their next time anew, in the same transaction."""
        text = msgspec.json.encode(calendar_json(calendar)).decode()
        async with self._pool.take() as c, c.transaction():
            known = [r["name"] for r in await fetch(c, "list_calendars", ns=ns, after="", limit=CALENDARS_MAX + 1)]
            if name not in known and len(known) >= CALENDARS_MAX:
                raise InvalidInput(f"this namespace has CALENDARS_MAX={CALENDARS_MAX:,} calendars already")
            row = await fetch_row(c, "put_calendar", ns=ns, name=name, spec=text, updated_by=by)
            for s, spec in await _users(c, ns, name):
                if s["next_at"] is None or s["next_at"] > s["clock"]:
                    times = _times(spec, await _calendars(c, ns, spec_calendars(spec)), s["name"], s["clock"])
                    await execute(c, "move_schedule", id=s["id"], next_at=times[0], fire_at=times[1])
            return _calendar_view(row)

    async def delete_calendar(self, ns: int, name: str) -> bool:
        async with self._pool.take() as c, c.transaction():
            if await fetch_row(c, "lock_calendar", ns=ns, name=name) is None:
                return False
            users = [s["name"] for s, _ in await _users(c, ns, name)]
            if users:
                more = f" and {len(users) - USERS_SHOWN} more" if len(users) > USERS_SHOWN else ""
                raise Conflict(
                    f"the calendar {name!r} is used by {', '.join(users[:USERS_SHOWN])}{more}; change or delete those first"
                )
            await fetch(c, "delete_calendar", ns=ns, name=name)
            return True


async def put(c: Any, ns: int, r: ScheduleRequest, by: str) -> tuple[ScheduleView, bool]:
    """Within the caller's transaction."""
    existing = await fetch_row(c, "lock_schedule", ns=ns, name=r.name)
    hashed = spec_hash(r.spec)
    calendars = await _calendars(c, ns, spec_calendars(r.spec))
    times: tuple[int | None, int | None] = (None, None)
    if existing is None and (await fetch_row(c, "schedule_count", ns=ns))["count"] >= SCHEDULES_MAX:
        raise InvalidInput(f"this namespace has SCHEDULES_MAX={SCHEDULES_MAX:,} schedules already; delete some")
    if existing is None or existing["spec_hash"] != hashed:
        clock = (await fetch_row(c, "schedules_clock"))["clock"]
        times = _times(r.spec, calendars, r.name, clock)
        if times[0] is None and r.origin == ORIGIN_API:
            raise InvalidInput(
                f"the schedule {r.name!r} would never fire: no time of it lies ahead. Look at `at`, `end` and the calendars"
            )
    text = msgspec.json.encode(spec_json(r.spec)).decode()
    row = await fetch_row(
        c,
        "put_schedule",
        ns=ns,
        name=r.name,
        workflow=r.workflow,
        version=r.version,
        input=r.input,
        timeout_us=r.timeout_us,
        attributes=r.attributes.decode() or None,
        spec=text,
        spec_hash=hashed,
        origin=r.origin,
        created_by=by,
        next_at=times[0],
        fire_at=times[1],
    )
    if row is None:
        raise Conflict(_elsewhere(r.name, existing["origin"] if existing is not None else ""))
    return _view(row), existing is None


async def replace_triggers(c: Any, ns: int, flow: str, requests: Sequence[ScheduleRequest], by: str) -> None:
    """The schedules of a flow are those that its document names, and no others. Within the caller's transaction."""
    await execute(c, "delete_schedules_of", ns=ns, origin=ORIGIN_FLOW + flow, kept=[r.name for r in requests])
    for r in requests:
        await put(c, ns, r, by)


def _elsewhere(name: str, origin: str) -> str:
    if origin.startswith(ORIGIN_FLOW):
        flow = origin.removeprefix(ORIGIN_FLOW)
        return f"the schedule {name!r} comes from the triggers of the flow {flow!r}: change it there and deploy"
    return f"there is a schedule {name!r} already that does not come from this flow: give the trigger another name, or delete that schedule"


async def _start(c: Any, fires: Sequence[tuple[DueSchedule, PlannedFire]], how: str) -> set[tuple[int, int]]:
    """Take nominal times, and start runs for those that were free. Answers which were."""
    if not fires:
        return set()
    rows = [(s.id, f.nominal_us, s.ns, f.run_id, how, f.outcome) for s, f in fires]
    added = await fetch(c, "add_fires", fires=rows, backfill=how == BACKFILL)
    fresh = {(r["schedule_id"], r["nominal_at"]) for r in added}
    new = [(s, f) for s, f in fires if f.run_id is not None and (s.id, f.nominal_us) in fresh]
    if new:
        bodies = {f.run_id: sealed_history(c, f.run_id, f.body) for _, f in new if f.run_id is not None}
        runs = [
            (
                f.run_id,
                s.ns,
                s.workflow,
                f.version,
                bodies[f.run_id],
                run_kind(f.version),
                f.attributes.decode(),
                f.group.id if f.group else None,
                f.deadline_us or None,
                chain.first(f.run_id, s.ns, 0, bodies[f.run_id]),
                f.version if f.pinned else "",
            )
            for s, f in new
            if f.run_id is not None
        ]
        await execute(c, "start_scheduled", runs=runs)
        await put_groups(c, [f.group for _, f in new if f.group is not None])
    return fresh


async def _advance(c: Any, steps: Sequence[PlanStep], fresh: set[tuple[int, int]]) -> Fired:
    rows: list[tuple[Any, ...]] = []
    totals: Counter[str] = Counter()
    for s in steps:
        of = Counter(f.outcome for f in s.fires if (s.schedule.id, f.nominal_us) in fresh)
        started = sum(n for outcome, n in of.items() if outcome not in (SKIPPED, MISSED))
        missed = s.missed + of[MISSED]
        rows.append((s.schedule.id, s.next_us, s.fire_us, started, missed, of[SKIPPED], s.error))
        totals.update(started=started, missed=missed, skipped=of[SKIPPED])
    await execute(c, "advance_schedules", schedules=rows)
    return Fired(len(steps), totals["started"], totals["skipped"], totals["missed"])


async def _calendar_texts(c: Any, wanted: set[tuple[int, str]]) -> dict[tuple[int, str], str]:
    if not wanted:
        return {}
    rows = await fetch(c, "calendars_by_name", calendars=sorted(wanted))
    return {(r["ns"], r["name"]): r["spec"] for r in rows}


async def _calendars(c: Any, ns: int, names: Sequence[str]) -> Calendars:
    """InvalidInput for a calendar that does not exist."""
    texts = await _calendar_texts(c, {(ns, name) for name in names})
    for name in names:
        if (ns, name) not in texts:
            known = [r["name"] for r in await fetch(c, "list_calendars", ns=ns, after="", limit=CALENDARS_MAX)]
            near = did_you_mean(name, known) or f"set it first: perdure calendar set {name} FILE"
            raise InvalidInput(f"there is no calendar {name!r} in this namespace; {near}")
    return {name: parse_calendar(msgspec.json.decode(text)) for (_, name), text in texts.items()}


async def _users(c: Any, ns: int, calendar: str) -> list[tuple[Any, ScheduleSpec]]:
    """Schedules whose spec names a calendar, locked."""
    found: list[tuple[Any, ScheduleSpec]] = []
    after = 0
    while page := await fetch(c, "lock_schedules_page", ns=ns, after_id=after, limit=PAGE):
        after = page[-1]["id"]
        for row in page:
            spec = _spec(row["spec"])
            if calendar in spec_calendars(spec):
                found.append((row, spec))
    return found


def _times(spec: ScheduleSpec, calendars: Calendars, name: str, after_us: int) -> tuple[int | None, int | None]:
    """The next nominal time, and when that one fires."""
    found = next_after(spec, calendars, after_us)
    return found, None if found is None else fire_at(spec, name, found)


def _spec(text: str) -> ScheduleSpec:
    return parse_spec(msgspec.json.decode(text))


def _due(r: Mapping[str, Any]) -> DueSchedule:
    return DueSchedule(
        id=r["id"],
        ns=r["ns"],
        name=r["name"],
        workflow=r["workflow"],
        version=r["version"],
        current=r["current"],
        choice=_choice(r),
        controls=_controls(r),
        input=r["input"],
        timeout_us=r["timeout_us"],
        attributes=(r["attributes"] or "").encode(),
        spec=r["spec"],
        origin=r["origin"],
        next_us=r["next_at"],
        clock_us=r["clock"],
    )


def _choice(r: Mapping[str, Any]) -> VersionChoice | None:
    if r["version"]:
        return VersionChoice(r["version"], bool(r["pinned"]))
    if r["current"] is None:
        return None
    return VersionChoice(
        r["current"],
        bool(r["pinned"]),
        r["ramp"] or "",
        bool(r["ramp_pinned"]),
        r["ramp_percent"] if r["ramp"] else 0.0,
    )


def _controls(r: Mapping[str, Any]) -> dict[str, bytes]:
    found = {r["version"] or r["current"]: r["control"], r["ramp"]: r["ramp_control"]}
    return {version: control.encode() for version, control in found.items() if version and control}


def _view(r: Mapping[str, Any]) -> ScheduleView:
    return ScheduleView(
        name=r["name"],
        workflow=r["workflow"],
        version=r["version"],
        input=r["input"],
        timeout_us=r["timeout_us"],
        attributes=(r["attributes"] or "").encode(),
        spec=_spec(r["spec"]),
        origin=r["origin"],
        created_us=r["created_at"],
        created_by=r["created_by"],
        updated_us=r["updated_at"],
        paused_us=r["paused_at"],
        paused_by=r["paused_by"],
        pause_reason=r["pause_reason"],
        next_us=r["next_at"],
        fire_us=r["fire_at"],
        fired=r["fired"],
        missed=r["missed"],
        skipped=r["skipped"],
        error=r["error"],
    )


def _calendar_view(r: Mapping[str, Any]) -> CalendarView:
    return CalendarView(name=r["name"], spec=r["spec"].encode(), updated_us=r["updated_at"], updated_by=r["updated_by"])
