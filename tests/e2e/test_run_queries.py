"""Queries end to end: real engine, real worker, real PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from perdure import Blob, Perdure, Promise, Signal, State, TestEnv, flow, task, wf, workflow
from perdure.core import ids
from perdure.core.api import messages
from perdure.core.api.messages import AskQuery
from perdure.core.limits import QUERIES_OPEN_MAX, QUERY_STATES_BYTES_MAX, QUERY_STATES_MAX
from perdure.engine.services import queries as service
from perdure.errors import NotFound, PayloadMismatch, PayloadTooLarge, QueryFailed, RunFailed, Unavailable
from tests.fakes.waiting import holds, until

progress = State("query_progress", 0)
total = State("query_total", 1)
text = State("query_text", "")
blob: State[Blob | None] = State("query_blob", None, Blob | None)
stop = Signal("query_stop", bool)
never = Promise("query_never", int)


@task(name="query_upload")
def upload() -> Blob:
    return Blob.from_bytes(b"12345")


@workflow(name="query_crawl")
async def crawl(urls: list[str], note: str = "") -> int:
    total.set(len(urls))
    text.set(note)
    blob.set(await upload())
    progress.set(1)
    await stop.next()
    progress.set(len(urls))
    return len(urls)


@crawl.query
def percent(digits: int = 0) -> float:
    return round(100 * progress.get() / total.get(), digits)


@crawl.query
def about() -> tuple[str, str, str, list[str]]:
    run = wf.info()
    return run.id, run.key, run.status, run.arguments["urls"]


@crawl.query
def sizes() -> tuple[int, int, int]:
    """Of what is kept in the payload store."""
    found = blob.get()
    return len(text.get()), len(wf.info().arguments["note"]), len(found.read_bytes()) if found is not None else 0


@crawl.query
def content() -> Blob | None:
    return blob.get()


@crawl.query
def broken() -> None:
    raise LookupError("no such page")


@workflow(name="query_fails")
async def fails() -> None:
    progress.set(7)
    await never.wait()


@fails.query
def seen() -> int:
    return progress.get()


@workflow(name="query_asks")
async def asks() -> float:
    return await percent.read("run")


async def at(run_id: str, wanted: float) -> None:
    async def is_there() -> bool:
        return await percent.read(run_id, 2) == wanted

    await until(is_there)


async def test_a_query_of_an_active_and_of_an_ended_run(dsn: str) -> None:
    async with Perdure(dsn):
        run = await crawl.options(key="queried").start(["a", "b", "c"])
        await at(run.id, 33.33)
        assert await percent.read(run.id, digits=1) == 33.3
        assert await percent.read("key:queried") == 33.0
        assert await about.read(run.id) == (run.id, "queried", "running", ["a", "b", "c"])
        await stop.send(run.id, True)
        assert await run.result("3m") == 3
        assert await percent.read(run.id) == 100.0
        assert (await about.read(run.id))[2] == "success"


async def test_a_query_wakes_and_writes_nothing(dsn: str) -> None:
    async with Perdure(dsn) as p:
        run = await crawl.start(["a", "b"])
        await at(run.id, 50.0)
        p.engine.exits.release(p.engine.runs[ids.parse(run.id)])  # it sleeps

        async def has_no_owner() -> bool:
            return (await run.describe()).owner is None

        await until(has_no_owner)
        before, history = await run.describe(), await run.history()
        assert await percent.read(run.id) == 50.0

        async def is_undisturbed() -> bool:
            assert await run.describe() == before
            return True

        await holds(is_undisturbed, 0.3)
        assert await run.history() == history
        assert ids.parse(run.id) not in p.engine.runs


async def test_a_query_is_answered_by_another_program_after_the_first_has_ended(dsn: str) -> None:
    async with Perdure(dsn) as p:
        run = await crawl.start(["a", "b"])
        await at(run.id, 50.0)
        p.engine.exits.release(p.engine.runs[ids.parse(run.id)])
    async with Perdure(dsn):
        assert await percent.read(run.id) == 50.0


async def test_a_query_of_a_pending_run_has_the_defaults(dsn: str) -> None:
    async with Perdure(dsn):
        run = await crawl.options(delay="1h").start(["a"])
        assert await percent.read(run.id) == 0.0
        assert (await about.read(run.id))[2] == "pending"


async def test_what_is_kept_in_the_payload_store_is_read_there(dsn: str) -> None:
    async with Perdure(dsn):
        long = "x" * 300_000
        run = await crawl.start(["a"], long)
        await at(run.id, 100.0)
        assert await sizes.read(run.id) == (300_000, 300_000, 5)
        found = await content.read(run.id)
        assert found is not None and await found.aread_bytes() == b"12345"


async def test_what_a_query_raises_is_raised_at_the_caller(dsn: str) -> None:
    async with Perdure(dsn):
        run = await crawl.start(["a"])
        with pytest.raises(QueryFailed, match="LookupError: no such page") as caught:
            await broken.read(run.id)
        assert (caught.value.failure.type, caught.value.code) == ("LookupError", "query_failed")
        assert "raise LookupError" in caught.value.failure.traceback


async def test_what_cannot_be_asked_is_refused(dsn: str) -> None:
    async with Perdure(dsn) as p:
        run = await crawl.start(["a"])
        ask = p._backend.call
        with pytest.raises(NotFound, match="has no query 'percet'; did you mean 'percent'"):
            await ask(messages.QUERY, AskQuery(run.id, "percet"))
        with pytest.raises(NotFound, match="no run"):
            await percent.read(ids.text(bytes(16)))
        with pytest.raises(PayloadMismatch, match="digits"):
            await ask(messages.QUERY, AskQuery(run.id, "percent", b'{"digits":"x"}'))
        with pytest.raises(PayloadTooLarge, match="QUERY_ARGUMENTS_BYTES_MAX"):
            await ask(messages.QUERY, AskQuery(run.id, "percent", b" " * 65_537))
        await p.deploy("flow: query_flow\ntasks: {a: {value: 1}}")
        of_flow = await p.start(flow("query_flow"))
        with pytest.raises(NotFound, match="flows have no queries"):
            await ask(messages.QUERY, AskQuery(of_flow.id, "percent"))


async def test_a_query_is_not_read_inside_a_workflow(dsn: str) -> None:
    async with Perdure(dsn):
        run = await asks.start()
        with pytest.raises(
            RunFailed, match=r"works outside workflows only; inside query_crawl, call percent\(\.\.\.\)"
        ):
            await run.result("3m")


async def test_without_a_worker_that_serves_the_workflow_the_error_names_it(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "QUERY_WORKER_WAIT_S", 0.2)
    async with Perdure(dsn):
        run = await crawl.start(["a"])
        await at(run.id, 100.0)
    async with Perdure(dsn, worker=False):
        assert await progress.read(run.id) == 1, "the state needs no worker"
        wanted = f"version '{crawl.version}' of the workflow 'query_crawl'"
        with pytest.raises(Unavailable, match=f"no worker that serves {wanted}"):
            await percent.read(run.id)


async def test_states_beyond_the_limits_are_refused(dsn: str) -> None:
    async with Perdure(dsn):
        run = await fails.start()

        async def is_there() -> bool:
            return await seen.read(run.id) == 7

        await until(is_there)
        connection = await asyncpg.connect(dsn)
        try:
            await _add_states(connection, run.id, 1, QUERY_STATES_BYTES_MAX)
            with pytest.raises(PayloadTooLarge, match="QUERY_STATES_BYTES_MAX"):
                await seen.read(run.id)
            await connection.execute("delete from perdure.run_state where name like 'more-%'")
            await _add_states(connection, run.id, QUERY_STATES_MAX - 1, 1)
            assert await seen.read(run.id) == 7
            await _add_states(connection, run.id, QUERY_STATES_MAX, 1)
            with pytest.raises(PayloadTooLarge, match="QUERY_STATES_MAX"):
                await seen.read(run.id)
        finally:
            await connection.close()


async def _add_states(connection: Any, run_id: str, count: int, size: int) -> None:
    await connection.execute(
        "insert into perdure.run_state (run_id, name, ns, value)"
        " select $1, 'more-' || n, 1, convert_to(repeat('1', $3), 'UTF8') from generate_series(1, $2) n on conflict do nothing",
        UUID(run_id),
        count,
        size,
    )


async def test_more_queries_than_an_engine_keeps_open_are_refused(dsn: str) -> None:
    async with Perdure(dsn) as p:
        run = await crawl.start(["a"])
        await at(run.id, 100.0)
        found = await asyncio.gather(*(percent.read(run.id) for _ in range(QUERIES_OPEN_MAX)))
        assert found == [100.0] * QUERIES_OPEN_MAX
        assert p.engine.queries._open == 0
        p.engine.queries._open = QUERIES_OPEN_MAX
        with pytest.raises(Unavailable, match="QUERIES_OPEN_MAX=64"):
            await percent.read(run.id)


async def test_a_query_in_a_test_environment() -> None:
    async with TestEnv() as env:
        run = await env.start(crawl, ["a", "b"])
        await at(run.id, 50.0)
