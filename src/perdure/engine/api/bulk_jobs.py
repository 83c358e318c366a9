"""Acts on bulk jobs. bulk_work.py carries them out."""

from __future__ import annotations

import msgspec

from perdure.core import ids
from perdure.core.api import bulk_jobs as acts
from perdure.core.api.bulk_jobs import (
    BulkJob,
    BulkJobPage,
    BulkJobRef,
    BulkRunPage,
    ListBulkJobs,
    ListBulkRuns,
    StartBulkJob,
)
from perdure.core.errors import Conflict, InvalidInput, NotFound, PayloadTooLarge
from perdure.core.limits import BULK_PAYLOAD_BYTES_MAX
from perdure.core.names import check_message_key, checked_name
from perdure.core.run_query import parse
from perdure.engine.api.api import NamespaceApi, handles, page_limit
from perdure.engine.api.saved_views import query_text


@handles(acts.START)
async def start(api: NamespaceApi, r: StartBulkJob) -> BulkJob:
    """The job goes on when its client, or the server, goes away."""
    check_message_key(r.key)
    query = await query_text(api, r.view, r.query)
    if not query.strip():
        raise InvalidInput(
            "a bulk job needs a query that says which runs, such as: workflow = import and status = running"
        )
    parse(query, api.engine.clock.now_us())
    _check_signal(r)
    request = msgspec.structs.replace(r, query=query, view="")
    job, is_new = await api.ports.bulk_jobs.start(api.ns, api.engine.new_run_id(), request, api.by)
    if is_new:
        api.engine.events.bulk_job_started.publish()
        await api.record("bulk_job.start", job.id, act=job.action, query=job.query, is_dry_run=job.is_dry_run)
    return job


def _check_signal(r: StartBulkJob) -> None:
    if r.action != "signal":
        if r.signal or r.payload:
            raise InvalidInput(f"a signal goes with the action `signal`, not with {r.action}")
        return
    checked_name("signal", r.signal)
    if len(r.payload) > BULK_PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(
            f"the value of the signal has {len(r.payload):,} bytes, more than BULK_PAYLOAD_BYTES_MAX={BULK_PAYLOAD_BYTES_MAX:,}; "
            "send a reference to stored data instead"
        )


@handles(acts.GET)
async def get(api: NamespaceApi, r: BulkJobRef) -> BulkJob:
    job = await api.ports.bulk_jobs.get(api.ns, _id(r.id))
    if job is None:
        raise no_job(r.id)
    return job


@handles(acts.LIST)
async def list_jobs(api: NamespaceApi, r: ListBulkJobs) -> BulkJobPage:
    limit = page_limit(r.limit)
    found = await api.ports.bulk_jobs.page(api.ns, r.below, limit + 1)
    return BulkJobPage(found[:limit], found[limit - 1].id if len(found) > limit else None)


@handles(acts.RUNS)
async def list_runs(api: NamespaceApi, r: ListBulkRuns) -> BulkRunPage:
    id, limit = _id(r.id), page_limit(r.limit)
    found = await api.ports.bulk_jobs.runs(api.ns, id, r.outcome, r.after, limit + 1)
    if not found and await api.ports.bulk_jobs.get(api.ns, id) is None:
        raise no_job(r.id)
    return BulkRunPage(found[:limit], found[limit - 1].run_id if len(found) > limit else None)


@handles(acts.CANCEL)
async def cancel(api: NamespaceApi, r: BulkJobRef) -> BulkJob:
    """What was done stays done; the runs that are left are not touched. A cancelled job stays as it is."""
    job = await api.ports.bulk_jobs.cancel(api.ns, _id(r.id))
    if job is None:
        job = await get(api, r)
        if job.status != "cancelled":
            raise Conflict(f"bulk job {r.id} has ended ({job.status}); there is nothing to cancel")
        return job
    await api.record("bulk_job.cancel", job.id)
    return job


def _id(text: str) -> bytes:
    try:
        return ids.parse(text)
    except InvalidInput:
        raise no_job(text) from None


def no_job(id: str) -> NotFound:
    return NotFound(f"there is no bulk job {id[:50]!r} in this namespace; `perdure bulk list` lists them")
