"""The hash chain over a run's history: each row of it names the row before.

    hash(row) = first 16 bytes of sha256(hash(before) at(before) ns seq last epoch run body)

A row's own time is the database's and is not known when its hash is made, so the next row's hash covers it; the last row of an ended
run is covered by the time that the run's row has. Numbers are big-endian: eight bytes for the time in microseconds since 1970, four for the
others. PostgreSQL computes the same (perdure.chain), so that a history can be checked with SQL alone.

The chain has no key. It shows damage, and edits by people who did not recompute what follows; see docs/adr/0015.
"""

from __future__ import annotations

from hashlib import blake2b, sha256
from struct import Struct
from typing import Final

HASH_BYTES: Final = 16
BEGINNING: Final = bytes(HASH_BYTES)
"""What the first row names as the hash before it."""

_PLACE: Final = Struct(f">{HASH_BYTES}sqiiii16s").pack


def link(before: bytes, before_us: int, run_id: bytes, ns: int, seq: int, last: int, epoch: int, body: bytes) -> bytes:
    """The hash of the history row seq..last."""
    return sha256(_PLACE(before, before_us, ns, seq, last, epoch, run_id) + body).digest()[:HASH_BYTES]


def input_hash(workflow: str, data: bytes) -> bytes:
    """What two starts under one key must have in common to be the same start."""
    return blake2b(workflow.encode() + b"\x00" + data, digest_size=16).digest()


def first(run_id: bytes, ns: int, epoch: int, body: bytes) -> bytes:
    """The hash of the row that starts a run."""
    return link(BEGINNING, 0, run_id, ns, 1, 1, epoch, body)
