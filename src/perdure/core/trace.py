"""Where a run stands in a distributed trace (W3C Trace Context), computed from its id, so that it is not stored.

A run's span id is a hash of its run id. Its trace id is the caller's or, for an untraced start, the run id itself: a UUIDv7
is 16 bytes, never zero, and random in its lower half, which is what samplers look at. Hence engine, worker and client
agree on a run's place without telling each other, before the run's span is even written.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

VERSION: Final = "00"
SAMPLED: Final = 0x01
_HEX: Final = frozenset("0123456789abcdef")


class TraceParent(NamedTuple):
    """A traceparent header, taken apart. Ids are lower-case hexadecimal."""

    trace_id: str
    span_id: str
    flags: int

    @property
    def sampled(self) -> bool:
        return bool(self.flags & SAMPLED)

    def __str__(self) -> str:
        return f"{VERSION}-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse(traceparent: str) -> TraceParent | None:
    """None if it is not a valid header. A later version may have more fields; the first four keep their meaning."""
    parts = traceparent.strip().split("-")
    if len(parts) < 4 or [len(p) for p in parts[:4]] != [2, 32, 16, 2] or not _HEX.issuperset("".join(parts[:4])):
        return None
    version, trace_id, span_id, flags = parts[:4]
    if version == "ff" or (version == VERSION and len(parts) > 4) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return TraceParent(trace_id, span_id, int(flags, 16))


def run_span_id(run_id: bytes) -> str:
    return blake2b(run_id, digest_size=8, person=b"run span").hexdigest()


def run_traceparent(run_id: bytes, caller: str) -> str:
    """The traceparent of a run's own span: what its tasks and children are children of.

    It is sampled when the caller is; a run with an untraced start is sampled.
    """
    parent = parse(caller) if caller else None
    if parent is None:
        return str(TraceParent(run_id.hex(), run_span_id(run_id), SAMPLED))
    return str(TraceParent(parent.trace_id, run_span_id(run_id), parent.flags))
