"""A bulk job in the stream: the job as `GET /bulk-jobs/{id}` shows it, at once and whenever it changes."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from perdure.core.api import bulk_jobs as acts
from perdure.core.api.bulk_jobs import BulkJob, BulkJobRef
from perdure.core.errors import NotFound, Unavailable
from perdure.server.rest.bulk_jobs import shown
from perdure.server.rest.guard import RestCaller

POLL_S: Final = 0.5
"""Between two looks at a job that is under way."""
AWAY_S: Final = 2.0
"""Between two looks while the database is away."""


class BulkListener(Protocol):
    def put(self, event: str, data: Any) -> None: ...


async def follow_bulk(client: BulkListener, caller: RestCaller, id: str) -> None:
    """Until the job has ended, or is gone."""
    last: BulkJob | None = None
    while True:
        try:
            job = await caller.call(acts.GET, BulkJobRef(id))
        except NotFound:
            return
        except Unavailable:
            await asyncio.sleep(AWAY_S)
            continue
        if job != last:
            last = job
            client.put("bulk", shown(job).model_dump(mode="json"))
        if job.finished_us is not None:
            return
        await asyncio.sleep(POLL_S)
