"""Schedules as they are asked for and shown: what starts, by which spec, what became of each time. When they fire is in core/schedules."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, Literal
from zoneinfo import ZoneInfo

import msgspec

from perdure.core.calls import encode_json
from perdure.core.durations import DURATION_US_MAX, datetime_of
from perdure.core.errors import InvalidInput, PayloadTooLarge
from perdure.core.expressions.template import Template
from perdure.core.flow_control.groups import LimitNeed, Line, Needs, run_line
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.core.names import checked_name, shown
from perdure.core.schedules import ScheduleSpec, parse_spec, spec_json
from perdure.flows.model import Flow

FIRED: Final = "fired"
BY_HAND: Final = "trigger"
BACKFILL: Final = "backfill"
"""Words of `schedule_fire.how`."""

STARTED: Final = "started"
SKIPPED: Final = "skipped"
MISSED: Final = "missed"
"""Words of `schedule_fire.outcome`."""

ORIGIN_API: Final = "api"
ORIGIN_CODE: Final = "code"
ORIGIN_FLOW: Final = "flow:"
"""Begins the origin of a schedule that the `triggers:` of a flow made; the flow's name follows."""

RESERVED_TAILS: Final = ("/times", "/fires")
"""A name that ended like this could not be told from what is below another schedule."""

OFFERED: Final = ("day", "nominal", "schedule")
"""What the `with:` of a trigger may read, and what it offers where there is none."""

State = Literal["active", "paused", "over"]


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to create or to bring up to date."""

    name: str
    workflow: str
    version: str = ""
    """Empty: the current version when it fires."""
    input: bytes = b"{}"
    timeout_us: int = 0
    """How long its runs may take; 0: as long as they do."""
    attributes: bytes = b""
    spec: ScheduleSpec
    origin: str = ORIGIN_API


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    workflow: str
    version: str
    input: bytes
    timeout_us: int
    attributes: bytes
    spec: ScheduleSpec
    origin: str
    created_us: int
    created_by: str
    updated_us: int
    paused_us: int | None
    paused_by: str | None
    pause_reason: str | None
    next_us: int | None
    """The next nominal time; None when it is over. One that is paused finds its next time when it is resumed."""
    fire_us: int | None
    """When that one fires: nominal time and jitter."""
    fired: int
    missed: int
    skipped: int
    error: str | None

    @property
    def state(self) -> State:
        if self.paused_us is not None:
            return "paused"
        return "over" if self.next_us is None else "active"


class FireView(msgspec.Struct, frozen=True, kw_only=True):
    """One nominal time and what came of it."""

    nominal_us: int
    at_us: int
    how: str
    outcome: str
    run_id: bytes | None = None
    status: int | None = None
    """Of the run; None when there is none, or when it is too old to be known."""


class BackfillTime(msgspec.Struct, frozen=True, kw_only=True):
    """A nominal time in the range of a backfill."""

    nominal_us: int
    exists: bool
    """There was a run for it already: it gets no second one."""
    run_id: bytes | None = None


class CalendarView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    spec: bytes
    """JSON."""
    updated_us: int
    updated_by: str


def check_name(name: str, what: str = "a schedule") -> str:
    checked_name(what.removeprefix("a "), name)
    if name != name.strip():
        raise InvalidInput(f"{shown(name)} cannot name {what}: it must not begin or end with a space")
    if name.startswith("/") or name.endswith(("/", *RESERVED_TAILS)):
        raise InvalidInput(
            f"{shown(name)} cannot name {what}: it must not begin or end with /, nor end with {' or '.join(RESERVED_TAILS)}"
        )
    return name


def checked(r: ScheduleRequest) -> ScheduleRequest:
    """The request as it is stored. Raises InvalidInput for a schedule that can never fire."""
    check_name(r.name)
    try:
        spec = parse_spec(spec_json(r.spec))
        attributes_of(r.name, r.attributes)
    except (OverflowError, ValueError, msgspec.MsgspecError) as e:
        raise InvalidInput(f"the schedule {r.name} cannot be read: {e}") from None
    if not 0 <= r.timeout_us <= DURATION_US_MAX:
        raise InvalidInput(f"the schedule {r.name}: a timeout lies between 0 and 100 years")
    checked_name("workflow", r.workflow)
    if r.version:
        checked_name("version", r.version)
    if len(r.input) > PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(
            f"the input of the schedule {r.name} has {len(r.input)} bytes, over the limit PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX}"
        )
    return msgspec.structs.replace(r, spec=spec)


def trigger_requests(flow: Flow) -> list[ScheduleRequest]:
    """The schedules that a flow's document names."""
    origin = ORIGIN_FLOW + flow.name
    return [
        ScheduleRequest(name=t.name, workflow=flow.name, input=t.input, spec=t.spec, origin=origin)
        for t in flow.triggers
    ]


def spec_calendars(spec: ScheduleSpec) -> list[str]:
    """Calendars that a spec cannot do without."""
    return list(dict.fromkeys((*spec.calendars, *spec.exclude)))


def values_at(name: str, tz: str, nominal_us: int) -> dict[str, str]:
    """The OFFERED ones: the local day, the nominal time with its offset, the schedule's name."""
    local = datetime_of(nominal_us).astimezone(ZoneInfo(tz))
    return {"day": local.date().isoformat(), "nominal": local.isoformat(), "schedule": name}


def input_at(origin: str, data: bytes, name: str, tz: str, nominal_us: int) -> bytes:
    """The input of one run. That of a trigger is a template; any other is as it is."""
    if not origin.startswith(ORIGIN_FLOW):
        return data
    return encode_json(Template.make(msgspec.json.decode(data)).evaluate(values_at(name, tz, nominal_us).__getitem__))


def attributes_of(name: str, attributes: bytes) -> bytes:
    """What a run of a schedule is found by: the schedule's own attributes, and its name."""
    own = msgspec.json.decode(attributes, type=dict[str, str | bool | int | float]) if attributes else {}
    return encode_json({**own, "schedule": name})


def queue_line(own: Line | None, ns: int, workflow: str, name: str, schedule_id: int) -> Line:
    """The flow-control group in which runs of a schedule wait for earlier ones: the needs of the workflow, and the one slot of the schedule."""
    base = own or run_line(None, ns, workflow, b"")
    ident = blake2b(b"%d schedule %d " % (ns, schedule_id) + base.id, digest_size=16).digest()
    limits = (*base.needs.limits, LimitNeed(f"schedule/{name}", 1, "queue"))
    return msgspec.structs.replace(base, id=ident, needs=Needs(limits, base.needs.rates))
