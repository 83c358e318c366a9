"""The transaction by which a failed run goes on."""

from __future__ import annotations

from typing import Any

from perdure.engine.ports import Reopening
from perdure.store.flow_control import put_lines
from perdure.store.queries import queries


async def reopen(connection: Any, r: Reopening) -> bool:
    """False when the run is not there any more as it was read; then nothing was written."""
    q = queries()
    async with connection.transaction():
        found = await connection.fetchrow(
            q["reopen_run"], r.run_id, r.ns, r.events, r.body, r.line.id if r.line else None
        )
        if not found["reopened"]:
            return False
        t = r.queued
        await connection.execute(
            q["reopen_rest"], r.run_id, r.ns, r.stale, r.stale_seqs,
            [x.id for x in t], [x.seq for x in t], [x.name for x in t], [x.queue for x in t], [x.options for x in t], [x.input for x in t],
            list(r.promises), [kept for kept, _ in r.promises.values()], list(r.states), list(r.states.values()), r.orphans,
            [p.kind if p else 0 for _, p in r.promises.values()], [p.spec.decode() or None if p else None for _, p in r.promises.values()],
            [x.wait_us for x in t], [x.line.id if x.line else None for x in t],
        )  # fmt: skip
        await put_lines(connection, [line for line in (r.line, *(x.line for x in t)) if line is not None])
        return True
