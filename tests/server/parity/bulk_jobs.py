"""Scenarios of bulk jobs. Their query matches nothing, so that each is over at once."""

from __future__ import annotations

from perdure.core import ids
from perdure.core.api import bulk_jobs
from perdure.core.api.bulk_jobs import BulkJobRef, ListBulkJobs, ListBulkRuns, StartBulkJob
from tests.fakes.waiting import until
from tests.server.parity.stage import Refusal, Rest, Scenario, Stage, each

JOB = (
    "id action query reason is_dry_run=dry_run status error created_us=created_at created_by finished_us=finished_at "
    "matched done skipped failed"
)
NONE = "00000000-0000-7000-8000-000000000000"
QUERY = "key = parity-none"


async def job(stage: Stage) -> str:
    """One that has ended."""
    request = StartBulkJob(action="cancel", query=QUERY, reason="parity", key=stage.name())
    id = ids.text((await stage.embedded(bulk_jobs.START, request)).id)

    async def ended() -> bool:
        return (await stage.embedded(bulk_jobs.GET, BulkJobRef(id))).finished_us is not None

    await until(ended)
    return id


async def unfinished(stage: Stage) -> str:
    """One that another engine has, which does nothing."""
    id = ids.text(stage.perdure.engine.new_run_id())
    async with stage.perdure.store.pool.take() as c:
        await c.execute(
            "with other as (insert into perdure.engine_session (engine, expires_at) values ('parity', now() + interval '1 hour') returning id)"
            " insert into perdure.bulk_job (id, ns, action, query, reason, is_dry_run, created_at, created_by, owner)"
            " select $1, $2, 'cancel', $3, 'parity', false, now(), 'parity', id from other",
            ids.parse(id),
            stage.perdure.engine.ns,
            QUERY,
        )
    return id


SCENARIOS = (
    Scenario(
        act=bulk_jobs.START,
        request=lambda s: StartBulkJob(action="pause", query=QUERY, reason="parity", is_dry_run=True),
        rest=lambda s: Rest(
            "POST", "/bulk-jobs", {"action": "pause", "query": QUERY, "reason": "parity", "dry_run": True}
        ),
        fields=JOB,
        refusal=lambda name: Refusal(
            code="invalid_input",
            request=StartBulkJob(action="cancel", query="status ="),
            rest=Rest("POST", "/bulk-jobs", {"action": "cancel", "query": "status ="}),
        ),
    ),
    Scenario(
        act=bulk_jobs.LIST,
        setup=job,
        request=lambda s: ListBulkJobs(),
        rest=lambda s: Rest("GET", "/bulk-jobs"),
        fields=f"{each(JOB)} next",
        without_refusal="it names nothing",
    ),
    Scenario(
        act=bulk_jobs.GET,
        setup=job,
        request=BulkJobRef,
        rest=lambda s: Rest("GET", f"/bulk-jobs/{s}"),
        fields=JOB,
        nowhere=(NONE, "not_found"),
    ),
    Scenario(
        act=bulk_jobs.RUNS,
        setup=job,
        request=lambda s: ListBulkRuns(s),
        rest=lambda s: Rest("GET", f"/bulk-jobs/{s}/runs"),
        fields=f"{each('run_id outcome message')} next",
        nowhere=(NONE, "not_found"),
    ),
    Scenario(
        act=bulk_jobs.CANCEL,
        setup=unfinished,
        request=BulkJobRef,
        rest=lambda s: Rest("POST", f"/bulk-jobs/{s}/cancel"),
        fields=JOB,
        nowhere=(NONE, "not_found"),
    ),
)
