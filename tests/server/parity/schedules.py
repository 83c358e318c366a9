"""Scenarios of schedules and calendars."""

from __future__ import annotations

from perdure.core.api import schedules
from perdure.core.api.schedules import (
    BackfillSchedule,
    CalendarRef,
    ListCalendars,
    ListFires,
    ListSchedules,
    ListTimes,
    PauseSchedule,
    PreviewSchedule,
    PutCalendar,
    PutSchedule,
    ScheduleRef,
    ScheduleRequest,
)
from perdure.core.schedules import ScheduleSpec, parse_calendar, parse_spec
from tests.server.parity.stage import CALL, Refusal, Rest, Scenario, Stage, each, same, within

MISSING = ("parity-nowhere", "not_found")
SPEC = {"at": "2040-01-01T00:00:00Z"}
YEARLY = {"cron": "0 8 1 1 *"}
SINCE, UNTIL = "2020-01-01T00:00:00Z", "2020-01-03T00:00:00Z"
SINCE_US, UNTIL_US = 1_577_836_800_000_000, 1_578_009_600_000_000
VIEW = (
    "name workflow version input attributes origin next_us=next_at fire_us=fire_at fired missed skipped error state "
    "created_us=created_at created_by updated_us=updated_at"
)
PAUSED = "paused_us=paused.at paused_by=paused.by pause_reason=paused.reason"
CALENDAR = "name spec updated_us=updated_at updated_by"
BACKFILL = {"since": SINCE, "until": UNTIL}


def spec(of: dict[str, str]) -> ScheduleSpec:
    return parse_spec(of)


def put(name: str, workflow: str = "parity_done", when: dict[str, str] = SPEC) -> PutSchedule:
    return PutSchedule(ScheduleRequest(name=name, workflow=workflow, input=CALL, spec=spec(when)))


async def scheduled(stage: Stage) -> str:
    name = stage.name()
    await stage.embedded(schedules.PUT, put(name))
    return name


async def yearly(stage: Stage) -> str:
    name = stage.name()
    await stage.embedded(schedules.PUT, put(name, when=YEARLY))
    return name


async def paused(stage: Stage) -> str:
    name = await scheduled(stage)
    await stage.embedded(schedules.PAUSE, PauseSchedule(name, "enough"))
    return name


async def fired(stage: Stage) -> str:
    name = await scheduled(stage)
    run = (await stage.embedded(schedules.TRIGGER, ScheduleRef(name))).run_id
    handle = await stage.perdure.get(run.hex())
    async for _ in handle.events():
        pass
    return name


async def calendar(stage: Stage) -> str:
    name = stage.name()
    await stage.embedded(schedules.PUT_CALENDAR, PutCalendar(name, parse_calendar({"weekdays": ["sat"]})))
    return name


def unknown_calendar(name: str) -> Refusal:
    when = {"cron": "0 8 * * *", "calendars": ["parity-nowhere"]}
    request = PutSchedule(ScheduleRequest(name=name, workflow="parity_done", input=CALL, spec=parse_spec(when)))
    body = {"workflow": "parity_done", "spec": when}
    return Refusal(code="invalid_input", request=request, rest=Rest("PUT", f"/schedules/{name}", body))


SCENARIOS = (
    Scenario(
        act=schedules.LIST,
        setup=scheduled,
        request=lambda s: ListSchedules("parity_done"),
        rest=lambda s: Rest("GET", "/schedules", params={"workflow": "parity_done"}),
        fields=f"{each(VIEW)} next",
        without_refusal="a workflow without schedules has none",
    ),
    Scenario(
        act=schedules.PUT,
        request=put,
        rest=lambda s: Rest("PUT", f"/schedules/{s}", {"workflow": "parity_done", "spec": SPEC}),
        fields=within(VIEW, "schedule"),
        shows=lambda r: {"http": 201 if r.is_new else 200},
        refusal=unknown_calendar,
    ),
    Scenario(
        act=schedules.PUT,
        setup=scheduled,
        request=lambda s: put(s, "parity_wait"),
        rest=lambda s: Rest("PUT", f"/schedules/{s}", {"workflow": "parity_wait", "spec": SPEC}),
        fields=within(VIEW, "schedule"),
        shows=lambda r: {"http": 201 if r.is_new else 200},
        refusal=lambda name: Refusal(
            code="not_registered",
            request=put(name, "parity_nowhere"),
            rest=Rest("PUT", f"/schedules/{name}", {"workflow": "parity_nowhere", "spec": SPEC}),
        ),
    ),
    Scenario(
        act=schedules.GET,
        setup=paused,
        request=ScheduleRef,
        rest=lambda s: Rest("GET", f"/schedules/{s}"),
        fields=f"{VIEW} {PAUSED}",
        nowhere=MISSING,
    ),
    Scenario(
        act=schedules.PAUSE,
        setup=scheduled,
        request=lambda s: PauseSchedule(s, "enough"),
        rest=lambda s: Rest("POST", f"/schedules/{s}/pause", {"reason": "enough"}),
        fields=f"{VIEW} {PAUSED}",
        nowhere=MISSING,
    ),
    Scenario(
        act=schedules.RESUME,
        setup=paused,
        request=ScheduleRef,
        rest=lambda s: Rest("POST", f"/schedules/{s}/resume"),
        fields=VIEW,
        nowhere=MISSING,
    ),
    Scenario(
        act=schedules.TRIGGER,
        setup=scheduled,
        request=ScheduleRef,
        rest=lambda s: Rest("POST", f"/schedules/{s}/trigger"),
        fields="run_id",
        nowhere=MISSING,
    ),
    Scenario(
        act=schedules.BACKFILL,
        setup=yearly,
        request=lambda s: BackfillSchedule(s, SINCE_US, UNTIL_US),
        rest=lambda s: Rest("POST", f"/schedules/{s}/backfill", BACKFILL),
        fields="times[].nominal_us=times[].nominal_at times[].exists times[].run_id",
        shows=lambda r: {"started": len(r.times)},
        nowhere=MISSING,
    ),
    Scenario(
        act=schedules.DELETE,
        setup=scheduled,
        request=ScheduleRef,
        rest=lambda s: Rest("DELETE", f"/schedules/{s}"),
        nowhere=MISSING,
    ),
    Scenario(
        act=schedules.TIMES,
        setup=scheduled,
        request=lambda s: ListTimes(s, 3),
        rest=lambda s: Rest("GET", f"/schedules/{s}/times", params={"n": 3}),
        shows=lambda r: {"times": ["2040-01-01T00:00:00.000000Z"]},
        nowhere=MISSING,
    ),
    Scenario(
        act=schedules.PREVIEW,
        setup=same("-"),
        request=lambda s: PreviewSchedule(parse_spec(SPEC), 3),
        rest=lambda s: Rest("POST", "/schedules/preview", {"spec": SPEC, "n": 3}),
        shows=lambda r: {"times": ["2040-01-01T00:00:00.000000Z"]},
        refusal=lambda name: Refusal(
            code="invalid_input",
            request=PreviewSchedule(parse_spec({**SPEC, "calendars": ["parity-nowhere"]}), 3),
            rest=Rest("POST", "/schedules/preview", {"spec": {**SPEC, "calendars": ["parity-nowhere"]}, "n": 3}),
        ),
    ),
    Scenario(
        act=schedules.FIRES,
        setup=fired,
        request=ListFires,
        rest=lambda s: Rest("GET", f"/schedules/{s}/fires"),
        fields="items[].nominal_us=items[].nominal_at items[].at_us=items[].at items[].how items[].outcome items[].run_id next",
        nowhere=MISSING,
    ),
    Scenario(
        act=schedules.LIST_CALENDARS,
        setup=calendar,
        request=lambda s: ListCalendars(),
        rest=lambda s: Rest("GET", "/calendars"),
        fields=f"{each(CALENDAR)} next",
        without_refusal="it names nothing",
    ),
    Scenario(
        act=schedules.GET_CALENDAR,
        setup=calendar,
        request=CalendarRef,
        rest=lambda s: Rest("GET", f"/calendars/{s}"),
        fields=CALENDAR,
        nowhere=MISSING,
    ),
    Scenario(
        act=schedules.PUT_CALENDAR,
        request=lambda s: PutCalendar(s, parse_calendar({"weekdays": ["sat"]})),
        rest=lambda s: Rest("PUT", f"/calendars/{s}", {"weekdays": ["sat"]}),
        fields=CALENDAR,
        refusal=lambda name: Refusal(
            code="invalid_input",
            request=PutCalendar(" ", parse_calendar({"weekdays": ["sat"]})),
            rest=Rest("PUT", "/calendars/%20", {"weekdays": ["sat"]}),
        ),
    ),
    Scenario(
        act=schedules.DELETE_CALENDAR,
        setup=calendar,
        request=CalendarRef,
        rest=lambda s: Rest("DELETE", f"/calendars/{s}"),
        nowhere=MISSING,
    ),
)
