"""The transaction of a run retry."""

from __future__ import annotations

from typing import Any

from perdure.core.events import PROMISE_WORDS
from perdure.engine.ports import RetryChanges
from perdure.store.flow_control import put_groups
from perdure.store.queries import execute, fetch_row


async def retry_run(connection: Any, r: RetryChanges) -> bool:
    """False when the run has changed since it was read; nothing is written then."""
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
            promises=[
                (name, kept, PROMISE_WORDS[p.kind] if p else "promise", (p.spec.decode() or None) if p else None)
                for name, (kept, p) in r.promises.items()
            ],
            states=r.states.items(),
            released=r.orphans,
        )
        await put_groups(connection, [group for group in (r.group, *(t.group for t in r.queued)) if group is not None])
        return True
