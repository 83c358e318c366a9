"""Schedules as they are asked for and shown: what starts, by which spec, what became of each time. When they fire is in core/schedules."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from perdure.core.api.schedules import ORIGIN_FLOW, ScheduleRequest
from perdure.core.calls import encode_json
from perdure.core.durations import DURATION_US_MAX, datetime_of
from perdure.core.errors import InvalidInput, PayloadTooLarge
from perdure.core.expressions.template import Template
from perdure.core.flow_control.groups import FlowControlGroup, LimitNeed, Needs, run_group
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.core.names import checked_name, shown
from perdure.core.payloads import refuse_reference
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


RESERVED_TAILS: Final = ("/times", "/fires")
"""A name with this ending could be confused with a name below another schedule."""

OFFERED: Final = ("day", "nominal", "schedule")
"""What the `with:` of a trigger may read, and what it offers where there is none."""


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
    refuse_reference(r.input, f"the input of the schedule {r.name}")
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


def queue_group(own: FlowControlGroup | None, ns: int, workflow: str, name: str, schedule_id: int) -> FlowControlGroup:
    """The flow-control group in which runs of a schedule wait for earlier ones: the needs of the workflow, and the one slot of the schedule."""
    base = own or run_group(None, ns, workflow, b"")
    ident = blake2b(b"%d schedule %d " % (ns, schedule_id) + base.id, digest_size=16).digest()
    limits = (*base.needs.limits, LimitNeed(f"schedule/{name}", 1, "queue"))
    return msgspec.structs.replace(base, id=ident, needs=Needs(limits, base.needs.rates))
