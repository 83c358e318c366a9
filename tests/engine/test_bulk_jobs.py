"""Bulk jobs: every run that matches, no other, counted exactly."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from perdure import Perdure, Promise, Retry, task, workflow
from perdure.core import limits
from perdure.core.api.bulk_jobs import BulkAction
from perdure.engine.api import bulk_work
from perdure.errors import Conflict, InvalidInput, NotFound
from perdure.sdk.client.bulk_jobs import BulkHandle
from perdure.store.verify import verify
from tests.fakes.waiting import until

go = Promise("go", bool)
broken: set[str] = set()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    broken.clear()
    yield


@task(retry=Retry(1))
async def bulk_fragile(name: str) -> str:
    if name in broken:
        raise ValueError(f"{name} is broken")
    return name


@workflow
async def held(n: int) -> bool:
    return await go.wait()


@workflow
async def bulk_failing(name: str) -> str:
    return await bulk_fragile(name)


@workflow
async def bulk_family(name: str) -> str:
    return await bulk_failing(name)


async def clean(dsn: str) -> None:
    tallies = await verify(dsn, at_rest=True)
    assert {t.number: t.examples for t in tallies if t.violations} == {}


async def statuses(p: Perdure, query: str) -> Counter[str]:
    return Counter([run.status async for run in p.runs(query)])


async def outcomes(job: BulkHandle) -> Counter[str]:
    return Counter([run.outcome async for run in job.runs()])


async def started(p: Perdure, count: int, **attributes: Any) -> None:
    bound = held.options(attributes=attributes)
    await asyncio.gather(*(p.start(bound, n) for n in range(count)))


async def test_every_run_that_matches_is_cancelled_and_no_other(dsn: str) -> None:
    async with Perdure(dsn) as p:
        await started(p, 30, team="a")
        await started(p, 20, team="b")
        job = await p.bulk("cancel", "attr.team = a and status in (pending, running)", reason="wrong input")
        done = await job.wait("30s")
        assert (done.status, done.matched, done.done, done.skipped, done.failed) == ("success", 30, 30, 0, 0)
        await until(lambda: ended(p, "attr.team = a", 30))
        assert await statuses(p, "attr.team = a") == {"cancelled": 30}
        assert await statuses(p, "attr.team = b and status = cancelled") == {}
        assert await outcomes(job) == {"done": 30}
        again = await (await p.bulk("cancel", "attr.team = a")).wait("30s")
        assert (again.matched, again.done, again.skipped) == (30, 0, 30), "they have ended"
        await p.bulk("terminate", "attr.team = b")
        await until(lambda: ended(p, "attr.team = b", 20))
    await clean(dsn)


async def ended(p: Perdure, query: str, count: int) -> bool:
    return (await statuses(p, query))["cancelled"] == count


async def failed_again(p: Perdure, count: int) -> bool:
    return (await statuses(p, "workflow = bulk_failing"))["failed"] == count


async def test_a_dry_run_does_nothing(dsn: str) -> None:
    async with Perdure(dsn) as p:
        await started(p, 5, team="a")
        job = await p.bulk("terminate", "workflow = held", dry_run=True)
        found = await job.wait("10s")
        assert (found.status, found.matched, found.done, found.is_dry_run) == ("success", 5, 0, True)
        assert await outcomes(job) == {"pending": 5}
        assert (await statuses(p, "workflow = held")).keys() <= {"pending", "running"}
        assert (await (await p.bulk("delete", "workflow = held", dry_run=True)).wait("10s")).skipped == 5


async def test_runs_are_paused_resumed_retried_and_deleted(dsn: str) -> None:
    async with Perdure(dsn) as p:
        await started(p, 4)
        assert (await (await p.bulk("pause", "workflow = held", reason="night")).wait("30s")).done == 4
        assert [run async for run in p.runs("workflow = held and not paused")] == []
        assert (await (await p.bulk("resume", "paused")).wait("30s")).done == 4
        assert [run async for run in p.runs("paused")] == []
        broken.add("x")
        handles = [await p.start(bulk_failing, name) for name in ("x", "x", "y")]
        await asyncio.gather(*(h.result() for h in handles), return_exceptions=True)
        broken.clear()
        retried = await (await p.bulk("retry", "workflow = bulk_failing")).wait("30s")
        assert (retried.matched, retried.done, retried.skipped) == (3, 2, 1)
        assert [await h.result("3m") for h in handles] == ["x", "x", "y"]
        deleted = await (await p.bulk("delete", "status = success or status = running")).wait("30s")
        assert (deleted.matched, deleted.done, deleted.skipped) == (7, 3, 4)
        assert [run async for run in p.runs("workflow = bulk_failing")] == []
        await (await p.bulk("terminate", "workflow = held")).wait("30s")
    await clean(dsn)


async def test_a_run_that_fails_in_an_unknown_way_does_not_end_the_job(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, broke = bulk_work.runs.pause, list[str]()

    async def pause(api: Any, request: Any) -> None:
        if not broke:
            broke.append(request.run)
            raise RuntimeError("a history that cannot be read")
        await inner(api, request)

    monkeypatch.setattr(bulk_work.runs, "pause", pause)
    async with Perdure(dsn) as p:
        await started(p, 3)
        job = await p.bulk("pause", "workflow = held")
        done = await job.wait("20s")
        assert (done.status, done.matched, done.done, done.failed) == ("success", 3, 2, 1)
        assert [(r.id, r.message) async for r in job.runs("failed")] == [(broke[0], "a history that cannot be read")]
        await (await p.bulk("terminate", "workflow = held")).wait("20s")


async def test_a_failed_family_is_retried_by_way_of_its_parent(dsn: str) -> None:
    async with Perdure(dsn) as p:
        broken.add("x")
        handle = await p.start(bulk_family, "x")
        with pytest.raises(Exception, match="broken"):
            await handle.result("3m")
        broken.clear()
        job = await p.bulk("retry", "status = failed")
        done = await job.wait("30s")
        assert (done.matched, done.done, done.skipped, done.failed) == (2, 1, 1, 0)
        assert handle.id in [r.message async for r in job.runs("skipped")][0]
        assert await handle.result("3m") == "x"


async def test_a_run_that_stops_matching_is_left_alone(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the moment when it is found and the moment when the job comes to it."""
    monkeypatch.setattr(bulk_work, "ACTED_AT_ONCE", 1)
    async with Perdure(dsn) as p:
        await started(p, 3, team="a")
        async with p.store.pool.take() as c:
            await c.execute(
                "create function perdure.relabel() returns trigger language plpgsql as $$ begin"
                ' update perdure.run_queue set attributes = \'{"team": "b"}\' where run_id = new.run_id; return new; end $$'
            )
            await c.execute(
                "create trigger relabel after insert on perdure.bulk_job_run for each row execute function perdure.relabel()"
            )
        job = await p.bulk("terminate", "attr.team = a")
        done = await job.wait("30s")
        assert (done.matched, done.done, done.skipped) == (3, 0, 3)
        assert {r.message async for r in job.runs()} == {"the run does not match any more"}
        assert (await statuses(p, "attr.team = b"))["cancelled"] == 0


async def test_refusals_and_their_words(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Perdure(dsn) as p:
        for query, view, error in (
            ("", "", InvalidInput),
            ("  ", "", InvalidInput),
            ("status = nothing", "", InvalidInput),
            ("", "none", NotFound),
        ):
            with pytest.raises(error):
                await p.bulk("cancel", query, view=view)
        with pytest.raises(NotFound, match="bulk list"):
            await BulkHandle(p._backend, "nonsense").info()
        await started(p, 3)
        monkeypatch.setattr(bulk_work, "BULK_RUNS_MAX", 2)
        done = await (await p.bulk("terminate", "workflow = held")).wait("10s")
        assert done.status == "failed" and "BULK_RUNS_MAX=2" in (done.error or "") and done.matched == 0
        assert (await statuses(p, "workflow = held"))["cancelled"] == 0
        with pytest.raises(Conflict, match="has ended"):
            await BulkHandle(p._backend, done.id).cancel()


async def test_a_cancelled_job_leaves_the_rest_alone(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_work, "ACTED_AT_ONCE", 2)
    go_on = asyncio.Event()
    inner = bulk_work._act

    async def slow(*args: Any) -> Any:
        done = await inner(*args)
        await go_on.wait()
        return done

    monkeypatch.setattr(bulk_work, "_act", slow)
    async with Perdure(dsn) as p:
        await started(p, 6)
        job = await p.bulk("terminate", "workflow = held")
        await until(lambda: ended(p, "workflow = held", 2))
        assert (await job.cancel()).status == "cancelled"
        assert (await job.cancel()).status == "cancelled", "twice is once"
        go_on.set()

        async def counted() -> bool:
            return (await job.info()).done == 2

        await until(counted)
        assert await outcomes(job) == {"done": 2, "pending": 4}
        assert (await statuses(p, "workflow = held"))["cancelled"] == 2


async def test_one_key_is_one_job_and_jobs_are_bounded(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.core.api import bulk_jobs as acts
    from perdure.core.api.bulk_jobs import StartBulkJob
    from perdure.store import bulk_jobs as store

    async with Perdure(dsn) as p:
        request = StartBulkJob(action="cancel", query="stuck", key="mine")
        first = await p._backend.call(acts.START, request)
        assert (await p._backend.call(acts.START, request)).id == first.id
        with pytest.raises(Conflict, match="another bulk job"):
            await p._backend.call(acts.START, StartBulkJob(action="delete", query="stuck", key="mine"))
        monkeypatch.setattr(store, "BULK_JOBS_MAX", 0)
        with pytest.raises(Conflict, match="BULK_JOBS_MAX"):
            await p.bulk("cancel", "stuck")


ACTIONS: list[BulkAction] = ["cancel", "terminate", "pause", "delete", "retry"]


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_page_whose_outcome_was_lost_is_counted_once(
    dsn: str, action: BulkAction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill between the act and its record: the acts happen, their outcomes are not written, the page comes again."""
    monkeypatch.setattr(bulk_work, "ACTED_AT_ONCE", 4)
    inner, forgotten = bulk_work._act, list[int]()

    async def forgetful(*args: Any) -> Any:
        done = await inner(*args)
        if len(forgotten) < 2:
            forgotten.append(len(done))
            return []
        return done

    monkeypatch.setattr(bulk_work, "_act", forgetful)
    monkeypatch.setattr(bulk_work, "UNREACHED_PAUSE_S", 0.3)
    async with Perdure(dsn) as p:
        if action in ("cancel", "terminate", "pause"):
            await started(p, 10)
            query = "workflow = held and status in (pending, running) and not paused"
        else:
            broken.add("x")
            handles = [await p.start(bulk_failing, "x") for _ in range(10)]
            await asyncio.gather(*(h.result("3m") for h in handles), return_exceptions=True)
            query = "workflow = bulk_failing and status = failed"
        job = await p.bulk(action, query)
        done = await job.wait("60s")
        assert forgotten == [4, 4]
        assert (done.matched, done.done, done.skipped, done.failed) == (10, 10, 0, 0)
        if action == "retry":
            await until(lambda: failed_again(p, 10))
            c = await asyncpg.connect(dsn)
            try:
                attempts = await c.fetchval("select count(*) from perdure.attempt")
            finally:
                await c.close()
            assert attempts == 20, "each was retried once"
        await p.bulk("terminate", "workflow = held")
        await until(lambda: ended(p, "workflow = held", 10 if action in ("cancel", "terminate", "pause") else 0))
    await clean(dsn)


async def test_old_jobs_are_deleted(dsn: str) -> None:
    async with Perdure(dsn) as p:
        job = await p.bulk("cancel", "stuck")
        await job.wait("10s")
        await p.api.ports.bulk_jobs.trim(limits.BULK_JOBS_KEPT_S, 10)
        assert (await job.info()).status == "success"
        await p.api.ports.bulk_jobs.trim(-1.0, 10)
        with pytest.raises(NotFound):
            await job.info()
