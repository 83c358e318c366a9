"""Ids that contain their shard and their age, and that follow from other ids where they can.

A run id is a UUIDv7: 48 bits of Unix milliseconds, version 7, 12 bits `rand_a` holding the shard, 62 random bits.
Every other id inside a run is derived: the run id's first 64 bits, then a hash of (run id, kind, sequence). So ids are the
same under replay, rows of one run lie together, and there is no counter that a replay could forget to advance.

Ids travel as 16 raw bytes; text is only for people.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final
from uuid import UUID

from perdure.core.errors import InvalidInput, NotFound, RunFinished

SHARDS_MAX: Final = 4096

TASK: Final = 1
TIMER: Final = 2
CHILD: Final = 3
PROMISE: Final = 4
OPERATION: Final = 5
RANDOM: Final = 6

KIND_NAMES: Final = {TASK: "task", TIMER: "timer", CHILD: "child", PROMISE: "promise", OPERATION: "operation"}

_RAND_MASK = (1 << 62) - 1


def run_id(unix_ms: int, shard: int, randomness: int) -> bytes:
    """Build a run id. The caller brings the clock and the randomness (62 bits are used)."""
    assert 0 <= shard < SHARDS_MAX and 0 <= unix_ms < 1 << 48
    number = unix_ms << 80 | 0x7 << 76 | shard << 64 | 0x2 << 62 | (randomness & _RAND_MASK)
    return number.to_bytes(16, "big")


def derive(run: bytes, kind: int, seq: int) -> bytes:
    """The id of the seq-th thing of a kind in a run."""
    digest = blake2b(run + kind.to_bytes(1, "big") + seq.to_bytes(8, "big"), digest_size=8).digest()
    return run[:8] + bytes((digest[0] & 0x3F | 0x80,)) + digest[1:]


def shard_of(ident: bytes) -> int:
    return int.from_bytes(ident[6:8], "big") & 0xFFF


def unix_ms_of(ident: bytes) -> int:
    return int.from_bytes(ident[:6], "big")


def lowest_at(unix_ms: int) -> UUID:
    """The smallest id of a millisecond: the bound between two time partitions."""
    return UUID(int=unix_ms << 80)


def text(ident: bytes) -> str:
    h = ident.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def parse(value: str) -> bytes:
    """Read an id a person or a program gave as text."""
    try:
        return UUID(value).bytes
    except ValueError:
        raise InvalidInput(
            f"{value!r} is not a run id; it should look like 0192a6f0-5c1e-7000-8123-0123456789ab"
        ) from None


def task_range(run_id: bytes) -> tuple[bytes, bytes]:
    """Between these are the ids of all tasks of a run, and of other runs of the same millisecond."""
    return run_id[:8] + bytes(8), run_id[:8] + b"\xff" * 8


def ended_run(run_id: bytes) -> RunFinished:
    return RunFinished(f"run {text(run_id)} has ended and takes no more messages")


def no_run(run_id: bytes) -> NotFound:
    error = NotFound(f"no run {text(run_id)} in this namespace")
    error.run_id = run_id
    return error
