"""Calls about schedules as they travel between a client and a server: one message each way, JSON inside.

Which methods there are, and which of the three calls of the Runs service carries each: reading, operating and changing need different
permissions, and a call names exactly one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.errors import InvalidInput
from perdure.flows.scheduled import BackfillTime, FireView, ScheduleRequest, ScheduleView
from perdure.wire.pb import runs_pb2 as pb

CALLS: Final[dict[str, tuple[str, ...]]] = {
    "ReadSchedule": ("get", "times", "fires"),
    "OperateSchedule": ("pause", "resume", "trigger", "backfill"),
    "ChangeSchedule": ("put", "delete"),
}
CALL_OF: Final = {method: call for call, methods in CALLS.items() for method in methods}


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    method: str
    name: str = ""
    request: ScheduleRequest | None = None
    """Of `put`."""
    reason: str = ""
    count: int = 0
    before_us: int | None = None
    since_us: int = 0
    until_us: int = 0
    dry_run: bool = False


class Answered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    view: ScheduleView | None = None
    created: bool = False
    run_id: bytes = b""
    times: list[int] = []
    fires: list[FireView] = []
    backfill: list[BackfillTime] = []


_asked = msgspec.json.Decoder(Asked)
_answered = msgspec.json.Decoder(Answered)


def encode_asked(asked: Asked) -> bytes:
    return pb.ScheduleCall(body=msgspec.json.encode(asked)).SerializeToString()


def decode_asked(data: bytes, call: str) -> Asked:
    asked = _asked.decode(pb.ScheduleCall.FromString(data).body)
    if asked.method not in CALLS[call]:
        raise InvalidInput(f"{call} does {', '.join(CALLS[call])}, not {asked.method!r}")
    return asked


def encode_answered(answered: Answered) -> bytes:
    return pb.ScheduleReply(body=msgspec.json.encode(answered)).SerializeToString()


def decode_answered(data: bytes) -> Answered:
    return _answered.decode(pb.ScheduleReply.FromString(data).body)
