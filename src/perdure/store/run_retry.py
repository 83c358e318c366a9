"""The transaction of a run retry."""

from __future__ import annotations

from typing import Any

from perdure.core.errors import Conflict
from perdure.core.events import PROMISE_WORDS
from perdure.engine.ports import AskedPromise, RetryChanges
from perdure.store.flow_control import put_groups
from perdure.store.queries import execute, fetch_row


async def _take_back_key(connection: Any, r: RetryChanges) -> None:
    key = {"ns": r.ns, "key": r.key, "run_id": r.run_id, "input_hash": r.input_hash}
    await execute(connection, "claim_free_key", **key)
    if await fetch_row(connection, "take_back_key", **key) is None:
        raise Conflict(
            f"the key {r.key!r} of the run belongs to another active run now. Wait until that run has ended, or fork this one."
        )


def promise_row(p: AskedPromise) -> tuple[Any, ...]:
    created = p.created
    kind = PROMISE_WORDS[created.kind] if created is not None else PROMISE_WORDS[0]
    spec = (created.spec.decode() or None) if created is not None else None
    return p.name, p.is_resolved, kind, spec, p.question, created is not None, p.is_authorized, p.event_id


async def retry_run(connection: Any, r: RetryChanges) -> bool:
    """False when the run has changed since it was read; nothing is written then. Raises Conflict when another active run has its key."""
    async with connection.transaction():
        found = await fetch_row(
            connection,
            "retry_run",
            run_id=r.run_id,
            ns=r.ns,
            events=r.events,
            body=r.body,
            attributes=r.attributes,
            added=r.added,
            group_id=r.group.id if r.group else None,
            pinned=r.pinned,
        )
        if not found["retried"]:
            return False
        if r.key:
            await _take_back_key(connection, r)
        await execute(
            connection,
            "retry_run_rest",
            run_id=r.run_id,
            ns=r.ns,
            stale_ids=r.stale,
            stale_seqs=r.stale_seqs,
            tasks=[
                (t.id, t.seq, t.name, t.queue, t.options, t.input, t.wait_us, t.group.id if t.group else None)
                for t in r.queued
            ],
            promises=[promise_row(p) for p in r.promises],
            states=r.states.items(),
            released=r.orphans,
        )
        await put_groups(connection, [group for group in (r.group, *(t.group for t in r.queued)) if group is not None])
        return True
