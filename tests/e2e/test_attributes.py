"""Search attributes of runs: given at the start, changed by the code, kept with the end, the retry and the successor."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import msgspec
import pytest

from perdure import Handle, Perdure, Promise, Retry, TestEnv, task, wf, workflow
from perdure.core import ids
from perdure.core.limits import ATTRIBUTES_MAX
from perdure.errors import InvalidInput, RunFailed
from perdure.sdk.client import base
from perdure.store.verify import verify
from tests.fakes.waiting import until

broken: set[str] = set()
go = Promise("go", bool)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    broken.clear()
    yield


@task(retry=Retry(1))
async def labour(name: str) -> str:
    if name in broken:
        raise ValueError(f"{name} is broken")
    return name


@workflow
async def staged(n: int) -> object:
    wf.set_attribute("stage", "first")
    wf.set_attribute("n", n)
    await go.wait()
    wf.set_attribute("stage", "second")
    wf.set_attribute("n", None)
    await labour("work")
    wf.set_attribute("stage", "done")
    return wf.attribute("env")


@workflow
async def at_once(n: int) -> None:
    wf.set_attribute("n", n)


@workflow
async def rounds(n: int) -> int:
    wf.set_attribute("round", n)
    if n > 0:
        wf.continue_as_new(n - 1)
    return n


@workflow
async def family(n: int) -> int:
    return await rounds.options(attributes={"child": True})(n)


@workflow
async def greedy(n: int) -> str:
    try:
        for i in range(n):
            wf.set_attribute(f"a{i}", i)
    except InvalidInput as e:
        return str(e)
    return ""


async def stored(dsn: str, handle: Handle[object]) -> object:
    """The attributes in the run's one row."""
    c = await asyncpg.connect(dsn)
    try:
        rows = await c.fetch(
            "select attributes::text from perdure.run_queue where run_id = $1 union all "
            "select attributes::text from perdure.run where run_id = $1",
            ids.parse(handle.id).hex(),
        )
    finally:
        await c.close()
    (row,) = rows
    return msgspec.json.decode(row[0]) if row[0] else None


async def clean(dsn: str) -> None:
    tallies = await verify(dsn, at_rest=True)
    assert {t.number: t.examples for t in tallies if t.violations} == {}


async def test_code_sets_and_deletes_attributes_and_they_stay_with_the_run(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.client.start(staged.options(attributes={"env": "prod", "stage": "new"}), 7)
        begun = {"env": "prod", "stage": "first", "n": 7}

        async def has_begun() -> bool:
            return await stored(dsn, handle) == begun

        await until(has_begun)
        await go.resolve(handle.id, True)
        assert await handle.result() == "prod"
        assert await stored(dsn, handle) == {"env": "prod", "stage": "done"}
    await clean(dsn)


async def test_a_run_that_sets_attributes_and_ends_in_one_commit_keeps_them(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(at_once, 3)
        await handle.result()
        assert await stored(dsn, handle) == {"n": 3}
    await clean(dsn)


async def test_a_retry_takes_back_what_the_failed_part_had_set(dsn: str) -> None:
    broken.add("work")
    async with TestEnv(dsn) as env:
        handle = await env.client.start(staged, 1)
        await go.resolve(handle.id, True)
        with pytest.raises(RunFailed):
            await handle.result()
        assert await stored(dsn, handle) == {"stage": "second"}
        broken.clear()
        await handle.retry()
        await handle.result()
        assert await stored(dsn, handle) == {"stage": "done"}
    await clean(dsn)


async def test_a_successor_and_a_child_have_the_attributes_they_were_given(dsn: str) -> None:
    async with Perdure(dsn) as client:
        await client.run(family, 2)
        c = await asyncpg.connect(dsn)
        try:
            rows = await c.fetch("select attributes::text from perdure.run where workflow = 'rounds' order by run_id")
        finally:
            await c.close()
        assert [msgspec.json.decode(r[0]) for r in rows] == [{"child": True, "round": n} for n in (2, 1, 0)]
    await clean(dsn)


async def test_the_client_pages_through_the_runs_of_a_query(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAGE_RUNS", 2)
    async with Perdure(dsn) as client:
        for n in range(7):
            await client.run(at_once, n)
        found = [run async for run in client.runs("attr.n > 1 and status = success")]
        assert [run.attributes for run in found] == [{"n": n} for n in (6, 5, 4, 3, 2)]
        assert {(run.status, run.workflow) for run in found} == {("success", "at_once")}
        assert [run.attributes["n"] async for run in client.runs("attr.n > 1", limit=3)] == [6, 5, 4]
        assert [run async for run in client.runs("attr.n > 1", limit=0)] == []
        with pytest.raises(InvalidInput, match="did you mean 'status'"):
            await anext(client.runs("stauts = failed"))


async def test_attributes_are_bounded_and_typed(dsn: str) -> None:
    async with Perdure(dsn) as client:
        assert "ATTRIBUTES_MAX" in await client.run(greedy, ATTRIBUTES_MAX + 1)
        assert await client.run(greedy, ATTRIBUTES_MAX) == ""
    for bad in (
        {"": 1},
        {"a": float("nan")},
        {"a": 2**63},
        {"a": "x" * 1001},
        {"a": [1]},
        {"a": "\x00"},
        {"a": "\ud800"},
    ):
        with pytest.raises(InvalidInput, match=r"attribute|ATTRIBUTE"):
            at_once.options(attributes=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="ATTRIBUTES_MAX"):
        at_once.options(attributes={f"a{i}": i for i in range(ATTRIBUTES_MAX + 1)})
