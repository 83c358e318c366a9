"""Who lives on which shard, tried out: keys by slots of a rendezvous hash, runs by weight, and what an added shard moves.

Everything follows from a seed: the same numbers give the same answer on every machine.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Final

import msgspec

from perdure.core.errors import InvalidInput

SLOTS: Final = 16_384
"""A key belongs to a slot for ever, and a slot to one shard at a time. With a quarter of them, the fullest of 64 shards had 1.38 of its part, with these 1.19."""
TENANTS: Final = 1_000
"""Namespaces of the trial, of which the n-th has 1/n of the load of the first (Zipf)."""
_MAX: Final = 1 << 64


class FairPart(msgspec.Struct, frozen=True):
    """How evenly something lies on the shards: each shard's part against the part that its weight gives it."""

    what: str
    lowest: float
    highest: float


class SlotMove(msgspec.Struct, frozen=True):
    """What changes hands when shards are added."""

    share: float
    """Of all keys."""
    share_of_weight: float
    """The weight of the new shards, of all weights: the least that has to move."""
    share_by_modulo: float
    """What a hash by modulo would move."""
    between_old: int
    """Slots that moved from one old shard to another: none."""


class Balance(msgspec.Struct, frozen=True):
    shards: int
    weights: list[float]
    seed: int
    runs: int
    spreads: list[FairPart]
    added: SlotMove


def hashed(seed: int, *parts: object) -> float:
    """A number between 0 and 1, both excluded."""
    text = "\x00".join([str(seed), *map(str, parts)]).encode()
    return (int.from_bytes(blake2b(text, digest_size=8).digest(), "big") + 0.5) / _MAX


def homes(weights: Sequence[float], seed: int = 0) -> list[int]:
    """The shard of each slot: the one with the highest score, where a score is drawn per slot and shard and grows with the weight."""
    check_weights(weights)
    return [
        max(
            range(len(weights)),
            key=lambda shard: -weights[shard] / math.log(hashed(seed, slot, shard)) if weights[shard] else 0.0,
        )
        for slot in range(SLOTS)
    ]


def slot_of(namespace: str, key: str) -> int:
    """Of a key of a run, a flow-control key, or a schedule's name. It has no seed, for it never changes."""
    digest = blake2b(f"{namespace}\x00{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % SLOTS


def check_weights(weights: Sequence[float]) -> None:
    if not weights or any(w < 0 for w in weights) or not sum(weights):
        raise InvalidInput("weights are numbers from 0 on, one per shard, and not all 0; 0 takes nothing new")


def try_out(weights: Sequence[float], *, added: int = 1, runs: int = 100_000, seed: int = 0) -> Balance:
    """Place that many runs and keys, and then add shards of weight 1."""
    old = homes(weights, seed)
    by_slot = [old[slot_of("trial", f"{seed}-{n}")] for n in range(runs)]
    chosen = [_chosen(weights, hashed(seed, "run", n)) for n in range(runs)]
    tenants = _tenants(old, weights, seed)
    spreads = [
        FairPart("runs without a key, placed by weight", *_bounds(_count(chosen, len(weights)), weights)),
        FairPart("keys, by the home of their slot", *_bounds(_count(by_slot, len(weights)), weights)),
        FairPart(f"{TENANTS:,} tenants of unequal size, had each one home", *_bounds(tenants, weights)),
    ]
    return Balance(len(weights), list(weights), seed, runs, spreads, _move(old, weights, added, seed))


def _chosen(weights: Sequence[float], drawn: float) -> int:
    ends = list(accumulate(weights))
    return bisect_left(ends, drawn * ends[-1])


def _count(places: Sequence[int], shards: int) -> list[float]:
    found = [0.0] * shards
    for place in places:
        found[place] += 1
    return found


def _tenants(slots: Sequence[int], weights: Sequence[float], seed: int) -> list[float]:
    found = [0.0] * len(weights)
    for n in range(TENANTS):
        found[slots[slot_of("tenant", f"{seed}-{n}")]] += 1 / (n + 1)
    return found


def _bounds(parts: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    whole, weight = sum(parts), sum(weights)
    ratios = [part / whole / (w / weight) for part, w in zip(parts, weights, strict=True) if w]
    return round(min(ratios), 3), round(max(ratios), 3)


def _move(old: Sequence[int], weights: Sequence[float], added: int, seed: int) -> SlotMove:
    new = homes([*weights, *[1.0] * added], seed)
    moved = [slot for slot in range(SLOTS) if old[slot] != new[slot]]
    shards = len(weights)
    by_modulo = sum(slot % shards != slot % (shards + added) for slot in range(SLOTS))
    return SlotMove(
        share=round(len(moved) / SLOTS, 4),
        share_of_weight=round(added / (sum(weights) + added), 4),
        share_by_modulo=round(by_modulo / SLOTS, 4),
        between_old=sum(new[slot] < shards for slot in moved),
    )
