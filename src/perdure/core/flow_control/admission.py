"""The pure part of a claim: how many members each group may start, and why the others wait.

Laws:

1. `grant` is a function of its arguments. The store calls it between two statements of one transaction, with every key it looks at locked.
2. Groups go by priority, which rises by one for every AGING_US that a group's first member has waited; among equals by turn. A group's turn
   advances by 1/weight for each admission, so keys share by weight, however many members wait.
3. The wait reason of a group with due members is the first thing that blocked it: a pause, a limit, a rate.
   A missing free slot is no reason of the group: it stays due.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from perdure.core.flow_control.groups import FlowControlGroup, FlowControlRule, LimitNeed, Needs, RateNeed, with_rules

AGING_US: Final = 10_000_000
"""Waiting for this long is worth one level of priority."""
LOOK_AGAIN_US: Final = 1_000_000
"""A group that is held up is examined again after this time, even without a notification."""
RATE_STEP_US: Final = 20_000
"""A group that waits for its rate is polled when this share of the rate, and at least one unit, is available: not for every unit."""
HOLDERS_SHOWN: Final = 3

Key = tuple[int, str]
"""(namespace, key)"""


class QueuedGroup(msgspec.Struct, gc=False):
    """A group as the claim found it. `times`: when its members are due, soonest first, one more than could begin."""

    group: FlowControlGroup
    turn: float
    times: Sequence[int]
    head_us: int


class LimitUse(msgspec.Struct, frozen=True, gc=False):
    count: int
    holders: tuple[bytes, ...] = ()
    """Runs that hold it, the oldest first; a few."""


class Bucket(msgspec.Struct, gc=False):
    tokens: float
    at_us: int


class QueueReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a group waits. wait_reasons.py has the words."""

    code: str
    """`limit`, `rate` or `paused`."""
    key: str = ""
    max: int = 0
    policy: str = "queue"
    holders: tuple[str, ...] = ()
    until_us: int = 0
    by: str = ""
    text: str = ""


class Admission(msgspec.Struct, gc=False):
    group: FlowControlGroup
    take: int
    turn: float
    head_us: int
    next_us: int | None
    """When to look again; None: nothing waits in it any more."""
    reason: QueueReason | None
    needs: Needs


class _Candidate(msgspec.Struct, gc=False):
    waiting: QueuedGroup
    needs: Needs
    due: int
    rank: int
    taken: int = 0
    reason: QueueReason | None = None


def effective(group: FlowControlGroup, rules: Sequence[FlowControlRule]) -> Needs:
    return with_rules(group.needs, list(rules))


def keys_of(needs: Needs) -> list[str]:
    return [n.key for n in needs.limits] + [n.key for n in needs.rates]


def admit(
    groups: Sequence[QueuedGroup],
    rules: Mapping[bytes, list[FlowControlRule]],
    held: Mapping[Key, LimitUse],
    buckets: dict[Key, Bucket],
    free: dict[tuple[int, str, str], int],
    total: int,
    now_us: int,
) -> list[Admission]:
    """`free` says how many of a kind (namespace, queue, name) could begin, `total` how many in all. `buckets` is changed: what is
    taken is gone from it."""
    used: dict[Key, int] = {key: h.count for key, h in held.items()}
    candidates = [_candidate(w, rules.get(w.group.id, []), now_us) for w in groups]
    heap = [(-c.rank, c.waiting.turn, i) for i, c in enumerate(candidates) if c.due and c.reason is None]
    heapq.heapify(heap)
    while heap and total > 0:
        rank, turn, i = heapq.heappop(heap)
        c = candidates[i]
        group = c.waiting.group
        kind = (group.ns, group.queue, group.name)
        if free.get(kind, 0) <= 0:
            continue
        c.reason = _obstacle(group.ns, c.needs, used, held, buckets, now_us)
        if c.reason is not None:
            continue
        for limit in c.needs.limits:
            used[group.ns, limit.key] = used.get((group.ns, limit.key), 0) + 1
        for rate in c.needs.rates:
            buckets[group.ns, rate.key].tokens -= rate.units
        free[kind] -= 1
        total -= 1
        c.taken += 1
        turn += 1.0 / group.weight
        c.waiting.turn = turn
        if c.taken < c.due:
            heapq.heappush(heap, (rank, turn, i))
    return [_admitted(c, now_us) for c in candidates]


def _candidate(w: QueuedGroup, rules: list[FlowControlRule], now_us: int) -> _Candidate:
    needs = effective(w.group, rules)
    due = sum(t <= now_us for t in w.times)
    waited = max(now_us - w.times[0], 0) if due else 0
    paused = next((r for r in rules if r.paused_by is not None), None)
    reason = None
    if due and paused is not None:
        reason = QueueReason(
            code="paused", key=paused.key, by=paused.paused_by or "", text=paused.pause_reason or "", until_us=0
        )
    return _Candidate(w, needs, due, w.group.priority + waited // AGING_US, reason=reason)


def _obstacle(
    ns: int,
    needs: Needs,
    used: Mapping[Key, int],
    held: Mapping[Key, LimitUse],
    buckets: dict[Key, Bucket],
    now_us: int,
) -> QueueReason | None:
    for limit in needs.limits:
        if used.get((ns, limit.key), 0) >= limit.max:
            return _limited(limit, held.get((ns, limit.key)))
    for rate in needs.rates:
        bucket = _filled(ns, rate, buckets, now_us)
        wanted = min(
            rate.units, rate.burst
        )  # what is more than the bucket holds goes when it is full, and leaves a debt
        if bucket.tokens < wanted - 1e-9:
            step = max(wanted, min(rate.burst, rate.count * RATE_STEP_US / rate.per_us))
            wait_us = math.ceil((step - bucket.tokens) * rate.per_us / rate.count)
            return QueueReason(code="rate", key=rate.key, until_us=now_us + wait_us)
    return None


def _limited(limit: LimitNeed, held: LimitUse | None) -> QueueReason:
    holders = tuple(h.hex() for h in held.holders[:HOLDERS_SHOWN]) if held else ()
    return QueueReason(code="limit", key=limit.key, max=limit.max, policy=limit.policy, holders=holders)


def _filled(ns: int, rate: RateNeed, buckets: dict[Key, Bucket], now_us: int) -> Bucket:
    """The bucket at this time. An unused one is full."""
    bucket = buckets.get((ns, rate.key))
    if bucket is None:
        bucket = buckets[ns, rate.key] = Bucket(rate.burst, now_us)
    elif bucket.at_us < now_us:
        bucket.tokens = min(rate.burst, bucket.tokens + (now_us - bucket.at_us) * rate.count / rate.per_us)
        bucket.at_us = now_us
    return bucket


def _admitted(c: _Candidate, now_us: int) -> Admission:
    w = c.waiting
    left = w.times[c.taken :]
    if not left:
        # Members may be in flight and return, or have joined since: the store deletes a group only when it is empty.
        return Admission(w.group, c.taken, w.turn, w.head_us, None, None, c.needs)
    if left[0] > now_us:
        return Admission(w.group, c.taken, w.turn, left[0], left[0], None, c.needs)
    next_us = now_us
    if c.reason is not None:
        next_us = c.reason.until_us or now_us + LOOK_AGAIN_US
    return Admission(w.group, c.taken, w.turn, left[0], next_us, c.reason, c.needs)
