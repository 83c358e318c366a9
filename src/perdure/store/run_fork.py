"""The transaction of a fork."""

from __future__ import annotations

from typing import Any

from perdure.engine.ports import ForkedRun
from perdure.store.flow_control import put_groups
from perdure.store.payloads import check_stored
from perdure.store.queries import execute, fetch_row
from perdure.store.run_retry import promise_row


async def fork_run(connection: Any, r: ForkedRun) -> bool:
    """False when its key is taken; nothing is written then. PayloadMissing when content that its events refer to is gone."""
    async with connection.transaction():
        found = await fetch_row(
            connection,
            "fork_run",
            run_id=r.run_id,
            ns=r.ns,
            workflow=r.workflow,
            version=r.version,
            kind=r.kind,
            pin=r.pin,
            key=r.key or None,
            input_hash=r.input_hash,
            attributes=r.attributes,
            group_id=r.group.id if r.group else None,
            deadline_at=r.deadline_us or None,
            events=r.rows[-1].last,
            head=r.rows[-1].hash,
            rows=[(row.seq, row.last, row.at_us, row.body, row.hash) for row in r.rows],
        )
        if not found["forked"]:
            return False
        if r.uses:
            await check_stored(connection, [(r.ns, *place) for place in r.uses])
        await execute(
            connection,
            "fork_run_rest",
            run_id=r.run_id,
            ns=r.ns,
            copies=r.copies,
            tasks=[
                (t.id, t.seq, t.name, t.queue, t.options, t.input, t.wait_us, t.group.id if t.group else None, t.node)
                for t in r.queued
            ],
            promises=[promise_row(p) for p in r.promises],
            states=r.states.items(),
            uses=r.uses,
        )
        await put_groups(connection, [group for group in (r.group, *(t.group for t in r.queued)) if group is not None])
        return True
