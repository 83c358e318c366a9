"""Flow control on PostgreSQL: the transactions around core/flow_control/admission.py. sql/flow_control.sql explains the locks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from perdure.core.flow_control.admission import (
    Admission,
    Bucket,
    Key,
    LimitUse,
    QueuedGroup,
    QueueReason,
    admit,
    effective,
    keys_of,
)
from perdure.core.flow_control.groups import (
    FlowControlGroup,
    FlowControlRule,
    FlowControlRules,
    decode_needs,
    task_group,
)
from perdure.core.messages import CancelMessage
from perdure.engine.ports import AdmittedRuns, AdmittedTasks, ClaimedTask, Kind
from perdure.store.queries import execute, fetch, fetch_row
from perdure.wire.codec import decode_options, encode_message

GROUPS_PER_KIND: Final = 64
"""Groups of one kind of task that a claim looks at: the next by turn, and those that have waited longest."""
RUN_GROUPS_PER_CLAIM: Final = 64
RUNS_PER_GROUP: Final = 200
"""Runs of one group that are admitted at once."""
STALE_GROUPS_MAX: Final = 500
"""Groups that one round of upkeep looks at."""
ASSIGNED_MAX: Final = 2_000
"""Waiting tasks that one statement assigns to groups when a rule is set."""


async def claim_from_lines(
    c: Any, session: int, served: Sequence[tuple[Kind, int]], limit: int, rules: FlowControlRules
) -> AdmittedTasks:
    """Claim tasks that flow control admits, in one transaction."""
    kinds = [(*kind, free) for kind, free in served]
    async with c.transaction():
        waiting, clock_us = _waiting(
            await fetch(c, "lock_task_groups", session=session, kinds=kinds, groups_per_kind=GROUPS_PER_KIND)
        )
        if not waiting:
            return AdmittedTasks([], None)
        ruled = {w.group.id: rules.of(w.group) for w in waiting}
        held, buckets = await _keys(c, _keys_of(waiting, ruled))
        free = dict(served)
        grants = admit(waiting, ruled, held, buckets, free, limit, clock_us)
        taking = [g for g in grants if g.take]
        rows: list[Any] = []
        if taking:
            rows = await fetch(c, "claim_from_groups", session=session, groups=_takes(taking), slots=_slots(taking))
        await _move(c, grants)
        await _pour(c, taking, buckets)
    keys = {g.group.id: [(g.group.ns, n.key) for n in g.needs.limits] for g in taking}
    # A row as a whole: input that cannot be opened is dealt with by the caller.
    found = [dict(r.items()) for r in rows]
    tasks = [
        ClaimedTask(
            r["id"],
            r["ns"],
            r["run_id"],
            r["seq"],
            r["name"],
            r["queue"],
            r["attempt"],
            r["lost"],
            r["scheduled_at"],
            r["options"],
            r["input"],
            r["trace"],
            tuple(keys[r["group_id"]]),
        )
        for r in found
    ]
    return AdmittedTasks(tasks, min((g.next_us for g in grants if g.next_us is not None), default=None))


async def admit_runs(c: Any, session: int, rules: FlowControlRules) -> AdmittedRuns:
    """Admit runs that waited for the limits of their workflow, in one transaction. They are woken, not claimed."""
    cancelled: list[bytes] = []
    async with c.transaction():
        rows = await fetch(
            c, "lock_run_groups", session=session, groups_max=RUN_GROUPS_PER_CLAIM, runs_per_group=RUNS_PER_GROUP
        )
        waiting, clock_us = _waiting(rows)
        if not waiting:
            return AdmittedRuns(0, 0, None)
        ruled = {w.group.id: rules.of(w.group) for w in waiting}
        held, buckets = await _keys(c, _keys_of(waiting, ruled))
        free = {(w.group.ns, w.group.queue, w.group.name): RUNS_PER_GROUP for w in waiting}
        grants = admit(waiting, ruled, held, buckets, free, RUN_GROUPS_PER_CLAIM * RUNS_PER_GROUP, clock_us)
        taking = [g for g in grants if g.take]
        entered: list[Any] = []
        if taking:
            entered = await fetch(c, "admit_runs", groups=_takes(taking), slots=_slots(taking))
        for w, g in zip(waiting, grants, strict=True):
            if g.reason is not None and g.reason.code == "limit" and g.reason.policy != "queue":
                cancelled += await _make_room(c, g, len(w.times) - g.take)
        await _move(c, grants)
        await _pour(c, taking, buckets)
    return AdmittedRuns(
        len(entered), len(cancelled), min((g.next_us for g in grants if g.next_us is not None), default=None)
    )


def _takes(taking: list[Admission]) -> list[tuple[bytes, int]]:
    return [(g.group.id, g.take) for g in taking]


def _slots(taking: list[Admission]) -> list[tuple[bytes, str]]:
    """(group, key) of the slots that each member takes."""
    return [(g.group.id, need.key) for g in taking for need in g.needs.limits]


async def _make_room(c: Any, g: Admission, waiting: int) -> list[bytes]:
    """Apply the policy of a limit that is reached: cancel the oldest holders, or the new runs."""
    reason = g.reason
    assert reason is not None
    if reason.policy == "cancel_oldest":
        rows = await fetch(c, "mark_oldest_holders", ns=g.group.ns, key=reason.key, wanted=waiting)
        words = f"a newer run takes its place under the limit {reason.key} ({reason.max} at a time)"
    else:
        rows = await fetch(c, "reject_waiting_runs", group_id=g.group.id, kept=0)
        words = f"the limit {reason.key} ({reason.max} at a time) was reached when it was started"
    asked = [r["run_id"] for r in rows]
    if asked:
        await execute(c, "send_cancels", run_ids=asked, body=encode_message(CancelMessage(words)))
    return asked


def _waiting(rows: Sequence[Any]) -> tuple[list[QueuedGroup], int]:
    found = [QueuedGroup(_line(r), r["turn"], r["times"], r["head_at"]) for r in rows]
    return found, rows[0]["clock"] if rows else 0


def _line(r: Any) -> FlowControlGroup:
    return FlowControlGroup(
        r["id"],
        r["ns"],
        r["kind"],
        r["queue"],
        r["name"],
        r["workflow"],
        r["fair"],
        r["weight"],
        r["priority"],
        decode_needs(r["needs"]),
    )


def _keys_of(waiting: Sequence[QueuedGroup], ruled: dict[bytes, list[FlowControlRule]]) -> list[Key]:
    """In the same order in every engine."""
    return sorted({(w.group.ns, key) for w in waiting for key in keys_of(effective(w.group, ruled[w.group.id]))})


async def _keys(c: Any, keys: list[Key]) -> tuple[dict[Key, LimitUse], dict[Key, Bucket]]:
    if not keys:
        return {}, {}
    await execute(c, "lock_keys", hashes=sorted({_hash(key) for key in keys}))
    rows = await fetch(c, "read_keys", keys=keys)
    held = {(r["ns"], r["key"]): LimitUse(r["held"], tuple(r["holders"] or ())) for r in rows}
    buckets = {(r["ns"], r["key"]): Bucket(r["tokens"], r["at"]) for r in rows if r["tokens"] is not None}
    return held, buckets


def _hash(key: Key) -> int:
    return int.from_bytes(blake2b(f"{key[0]}/{key[1]}".encode(), digest_size=8).digest(), "big", signed=True)


async def _move(c: Any, grants: list[Admission]) -> None:
    moved = [
        (g.group.id, g.turn, g.head_us, g.next_us, g.reason.key if g.reason else None, _reason(g.reason))
        for g in grants
    ]
    await execute(c, "update_groups", groups=moved)
    empty = [g.group.id for g in grants if g.next_us is None]
    if empty:
        await execute(c, "delete_empty_groups", ids=empty)


def _reason(reason: QueueReason | None) -> str | None:
    return msgspec.json.encode(reason).decode() if reason is not None else None


async def _pour(c: Any, taking: list[Admission], buckets: dict[Key, Bucket]) -> None:
    used = sorted({(g.group.ns, rate.key) for g in taking for rate in g.needs.rates})
    if used:
        await execute(c, "put_buckets", buckets=[(*key, buckets[key].tokens, buckets[key].at_us) for key in used])


async def sweep(c: Any) -> None:
    """Delete empty groups that no engine tries. They are locked first: a transaction that joins one meanwhile waits, and creates it again."""
    async with c.transaction():
        stale = [r["id"] for r in await fetch(c, "lock_stale_groups", limit=STALE_GROUPS_MAX)]
        if stale:
            await execute(c, "delete_empty_groups", ids=stale)
            await execute(c, "touch_groups", ids=stale)


async def wake_lines(c: Any, keys: Iterable[Key]) -> None:
    await execute(c, "wake_groups", keys=sorted(keys))


async def read_rules(c: Any) -> FlowControlRules:
    rows = await fetch(c, "flow_control_rules")
    return FlowControlRules(
        {
            (r["ns"], r["scope"], r["name"]): FlowControlRule(
                ns=r["ns"],
                scope=r["scope"],
                name=r["name"],
                concurrency=r["concurrency"],
                rate=r["rate"],
                per_us=r["per_us"],
                burst=r["burst"],
                paused_by=r["paused_by"],
                paused_us=r["paused_at"],
                pause_reason=r["pause_reason"],
            )
            for r in rows
        }
    )


async def assign_lines(c: Any, ns: int, scope: str, name: str) -> int:
    """Assign waiting tasks that a new rule is about to groups, within the transaction that sets the rule; returns how many."""
    done = 0
    while rows := await fetch(c, "lock_ungrouped_tasks", ns=ns, scope=scope, name=name, limit=ASSIGNED_MAX):
        groups = [
            task_group(decode_options(r["options"]).control, ns, r["queue"], r["name"], r["workflow"], r["input"])
            for r in rows
        ]
        await put_groups(c, groups)
        await execute(c, "assign_groups", tasks=[(r["id"], group.id) for r, group in zip(rows, groups, strict=True)])
        done += len(rows)
    return done


async def put_groups(c: Any, groups: Sequence[FlowControlGroup]) -> None:
    """Create groups outside a commit of an engine."""
    unique = {group.id: group.row() for group in groups}
    if unique:
        await execute(c, "put_groups", groups=list(unique.values()))


async def held_by(c: Any, ns: int, key: str) -> LimitUse:
    r = await fetch_row(c, "slot_holders", ns=ns, key=key)
    return LimitUse(r["held"], tuple(r["holders"] or ()))
