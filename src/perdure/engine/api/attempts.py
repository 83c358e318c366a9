"""The attempts of a run's tasks."""

from __future__ import annotations

from perdure.core.api import attempts as acts
from perdure.core.api.attempts import AttemptPage, ListAttempts
from perdure.engine.api.api import NamespaceApi, handles, page_limit
from perdure.engine.api.runs import numbers


@handles(acts.LIST)
async def list_attempts(api: NamespaceApi, r: ListAttempts) -> AttemptPage:
    """Attempts that ended, and those that have been running for a while."""
    run_id = await api.run_id(r.run)
    seqs = await numbers(api, run_id, r.task) if r.task else None
    page = await api.ports.reads.attempts(api.ns, run_id, seqs, r.unsuccessful, r.after, page_limit(r.limit))
    if not page.items:
        await api.view(run_id)  # NotFound for a run that does not exist
    return page
