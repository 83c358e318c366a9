"""Acts on dead letters: tasks that failed for good in runs that failed with them, and their runs retried in bulk.

Laws:

1. A dead letter is a failed task of a run that is failed now. A task whose failure the code caught is none, and neither is one whose run
   was retried: both the list and a retry look at the run as it is.
2. A bulk retry opens each run in a transaction of its own, in the same way as a retry of one run. It reports what it cannot open and
   continues; asked again, it does the rest. A failed run that belongs to a failed parent is retried by way of the parent, once.
"""

from __future__ import annotations

from perdure.core.api import dead_letters as acts
from perdure.core.api.dead_letters import (
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterPosition,
    ListDeadLetters,
    RetriedPage,
    RetriedRun,
    RetryDeadLetters,
)
from perdure.core.errors import InvalidInput, PerdureError, Unavailable
from perdure.core.limits import BULK_RETRY_MAX
from perdure.engine.api.api import NamespaceApi, handles, page_limit
from perdure.engine.api.run_retry import RunRetry


@handles(acts.LIST)
async def list_dead_letters(api: NamespaceApi, r: ListDeadLetters) -> DeadLetterPage:
    return await api.ports.dead_letters.page(api.ns, r.filter, r.below, page_limit(r.limit))


@handles(acts.RETRY)
async def retry_dead_letters(api: NamespaceApi, r: RetryDeadLetters) -> RetriedPage:
    if len(r.runs) > BULK_RETRY_MAX:
        raise InvalidInput(f"more than BULK_RETRY_MAX={BULK_RETRY_MAX} runs in one request")
    following: DeadLetterPosition | None = None
    if r.runs:
        if r.filter != DeadLetterFilter() or r.below is not None:
            raise InvalidInput("give the runs, or a filter that finds them, not both")
        run_ids = [
            (await api.view(await api.run_id(run))).run_id for run in r.runs
        ]  # NotFound for one that is not there
    else:
        page = await api.ports.dead_letters.page(api.ns, r.filter, r.below, min(max(r.limit, 1), BULK_RETRY_MAX))
        run_ids, following = [letter.run_id for letter in page.items], page.next
    wanted = list(dict.fromkeys(run_ids))
    roots = await api.ports.dead_letters.roots(api.ns, wanted)
    done = [await _retried(api, run_id, r.is_dry_run) for run_id in dict.fromkeys(roots[run] for run in wanted)]
    return RetriedPage(done, following)


async def _retried(api: NamespaceApi, run_id: bytes, is_dry_run: bool) -> RetriedRun:
    """Only an unreachable database ends a bulk retry early. A dry run checks each run, so that it refuses what a retry would."""
    try:
        if is_dry_run:
            await RunRetry(api).check(run_id)
            return RetriedRun(run_id, "would_retry")
        await RunRetry(api).retry(run_id)
    except Unavailable:
        raise
    except PerdureError as error:
        return RetriedRun(run_id, "refused", str(error))
    await api.record("run.retry", run_id, bulk=True)
    return RetriedRun(run_id, "retried")
