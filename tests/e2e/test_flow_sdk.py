"""Python code starts flows by name: from outside, as children, through every client."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from perdure import Client, FlowRef, Perdure, SyncPerdure, flow, task, wf, workflow
from perdure.engine.api.ports import Deployment
from perdure.errors import NotRegistered, PayloadMismatch, PerdureError, RunAlreadyExists
from perdure.flows.compile import compile_value, version_of
from perdure.store.definitions import PostgresDefinitions
from tests.server.remote import server, worker


@task(name="flowsdk_shout")
def shout(day: str, times: int = 1) -> dict[str, Any]:
    return {"said": day.upper() * times}


DOCUMENT: dict[str, Any] = {
    "flow": "flowsdk-etl",
    "tasks": {
        "quiet": {"python": "flowsdk_shout"},
        "loud": {
            "python": "tests.e2e.test_flow_sdk:flowsdk_shout",
            "depends_on": ["quiet"],
            "with": {"day": "${quiet.said}", "times": 2},
        },
    },
    "output": {"said": "${loud.said}"},
}


@workflow(name="flowsdk_parent")
async def parent(days: list[str]) -> list[str]:
    first = await flow("flowsdk-etl", dict[str, str])(day=days[0])
    rest = await wf.map(flow("flowsdk-etl"), [{"day": d} for d in days[1:]], concurrency=1)
    return [first["said"], *(r["said"] for r in rest)]


@workflow(name="flowsdk_orphan")
async def orphan() -> str:
    await flow("flowsdk-etI")(day="x")
    return "no"


@workflow(name="flowsdk_wrong")
async def wrong() -> str:
    try:
        await flow("flowsdk-etl").start(day="x")
    except PerdureError as error:
        return str(error)
    return "no"


async def deploy(dsn: str, ns: int, document: dict[str, Any] = DOCUMENT) -> str:
    compiled = compile_value(document).flow
    version = version_of(document)
    registry = PostgresDefinitions(dsn)
    await registry.open()
    try:
        deployment = Deployment(
            name=compiled.name,
            version=version,
            kind=compiled.kind,
            description=None,
            document=msgspec.json.encode(document),
            source="",
        )
        await registry.deploy(ns, deployment)
    finally:
        await registry.close()
    return version


async def test_a_flow_is_started_by_name_and_runs_the_current_version(dsn: str) -> None:
    async with Perdure(dsn) as client:
        version = await deploy(dsn, client.engine.ns)
        etl = flow("flowsdk-etl", dict[str, str])
        assert await etl.run(day="mo") == {"said": "MOMO"}
        handle = await etl.options(key="monday").start(day="mo")
        assert await handle.result("3m") == {"said": "MOMO"}
        assert (await handle.describe()).version == version
        with pytest.raises(RunAlreadyExists):
            await etl.options(key="monday").start(day="mo")
        again = await etl.options(key="monday", on_conflict="attach").start(day="mo")
        assert again.id == handle.id
        held = await client.start(etl, day="tu")
        assert await (await client.get(held.id, workflow=etl)).result("3m") == {"said": "TUTU"}


async def test_a_flow_is_a_child_of_a_workflow(dsn: str) -> None:
    async with Perdure(dsn) as client:
        await deploy(dsn, client.engine.ns)
        async with asyncio.timeout(120):
            assert await parent.run(["a", "b", "c"]) == ["AA", "BB", "CC"]
        assert "would not be recorded; call flow('flowsdk-etl')(...)" in await wrong.run()


async def test_the_result_is_checked_against_its_type(dsn: str) -> None:
    async with Perdure(dsn) as client:
        await deploy(dsn, client.engine.ns)
        with pytest.raises(PayloadMismatch, match=r"the result of flow\('flowsdk-etl'\) does not fit"):
            await flow("flowsdk-etl", dict[str, int]).run(day="x")


async def test_a_name_that_nobody_knows_is_refused(dsn: str) -> None:
    async with Perdure(dsn) as client:
        await deploy(dsn, client.engine.ns)
        with pytest.raises(NotRegistered, match="flowsdk-etx"):
            await flow("flowsdk-etx").start()
        with pytest.raises(PerdureError, match="flowsdk-etI"):
            await orphan.run()


async def test_a_remote_client_starts_flows(dsn: str) -> None:
    async with server(dsn) as s, worker(s.address), Client(s.address) as client:
        await deploy(dsn, s.engine.ns)
        etl: FlowRef[Any] = flow("flowsdk-etl")
        assert await etl.run(day="a") == {"said": "AA"}
        handle = await client.start(etl, day="b")
        assert await handle.result("3m") == {"said": "BB"}
        with pytest.raises(NotRegistered):
            await flow("flowsdk-nothing").run()


def test_sync_code_starts_flows(dsn: str) -> None:
    with SyncPerdure(dsn) as p:
        asyncio.run(deploy(dsn, p._client.engine.ns))
        assert p.run(flow("flowsdk-etl"), day="x") == {"said": "XX"}
        assert p.start(flow("flowsdk-etl").options(key="one"), day="y").result("3m") == {"said": "YY"}


async def test_a_flow_outside_a_workflow_says_how_it_is_started_and_takes_keywords_only() -> None:
    with pytest.raises(PerdureError, match=r"await flow\('a'\)\.run\(\.\.\.\)"):
        flow("a")(x=1)
    with pytest.raises(PayloadMismatch, match="given by keywords"):
        flow("a").signature.encode_call((1,), {})
    with pytest.raises(PayloadMismatch, match="the input of flow"):
        flow("a").signature.encode_call((), {"x": object()})
    assert repr(flow("a")) == "<flow a>"
