"""Large values and blobs of tasks on a real Ray cluster: by reference, in the database and in an object store that the node writes to itself."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

from perdure import Blob, EngineSettings, Perdure, flow, wf, workflow
from perdure.core.payload_fields import payloads_of
from perdure.core.payloads import Reference, references_of
from perdure.errors import TaskFailed
from perdure.executors.ray import RayExecutor
from perdure.executors.ray.executor import RayOptions
from tests.e2e.test_payload_memory import watched
from tests.executors.ray import works
from tests.executors.ray.cluster import RayCluster

LIMIT = "10m"
LARGE = 5_000_000
HUGE = 100_000_000
GROWN_MIB_MAX = 64
FLOW = """
tasks:
  made:
    job:
      executor: ray
      function: tests.executors.ray.works:text_of
      input: {size: "${ input.size }"}
      runtime_env: {env_vars: "${ input.env }"}
  measured:
    depends_on: made
    job:
      executor: ray
      function: tests.executors.ray.works:measured
      input: {text: "${ made }"}
      runtime_env: {env_vars: "${ input.env }"}
output: "${ measured }"
"""


@workflow(name="ray_large")
async def large() -> list[Any]:
    text = await works.large(LARGE)
    seen = await works.measured(text, "small")
    function = {"function": "tests.executors.ray.works:measured", "input": {"text": text}}
    return [len(text), seen, await wf.call("perdure.job.ray", function)]


@workflow(name="ray_blobs")
async def blobs(size: int) -> dict[str, Any]:
    found = await works.rendered(size)
    page = found["page"]
    assert isinstance(page, Blob)
    return {
        "page": page,
        "digested": await works.digested(found, page),
        "loop": await works.digested_on_a_loop(page),
    }


@workflow(name="ray_too_large")
async def too_large(size: int) -> list[str]:
    try:
        await works.large(size)
    except TaskFailed as e:
        return [e.failure.code, e.failure.type, str(e)]
    return []


def executor(cluster: RayCluster) -> RayExecutor:
    return RayExecutor(RayOptions(address=cluster.address, call_s=60.0))


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def test_a_large_result_and_a_large_input_go_by_reference(ray_cluster: RayCluster, dsn: str) -> None:
    async with Perdure(dsn, executors=[executor(ray_cluster)]):
        handle = await large.start()
        size, seen, function = await handle.result(timeout=LIMIT)
        wanted = digest_of("x" * LARGE)
        assert size == LARGE
        assert seen == [LARGE, "x", wanted, "small"]
        assert function == [LARGE, "x", wanted, ""]
        assert LARGE + 2 in {r.size for r in await references(handle)}


async def references(handle: Any) -> list[Reference]:
    """All of a history, which has no large payload itself."""
    payloads = [p for r in await handle.history() for p in payloads_of(r.event)]
    assert max(map(len, payloads)) < 2_000
    return [reference for payload in payloads for reference in references_of(payload)]


async def test_blobs_of_tasks_on_ray(ray_cluster: RayCluster, dsn: str) -> None:
    content = b"0123456789" * 100_000
    wanted = hashlib.sha256(content).hexdigest()
    async with Perdure(dsn, executors=[executor(ray_cluster)]):
        found = await (await blobs.start(len(content))).result(timeout=LIMIT)
        assert await found["page"].aread_bytes() == content
        assert found["digested"] == [len(content), wanted, "page.bin", "0123456789", 100_000]
        assert found["loop"] == wanted


async def test_a_result_over_the_limit_of_the_database_is_refused_at_once(ray_cluster: RayCluster, dsn: str) -> None:
    settings = EngineSettings(payload_bytes_max=1_000_000)
    async with Perdure(dsn, executors=[executor(ray_cluster)], settings=settings):
        code, kind, text = await (await too_large.start(1_000_001)).result(timeout=LIMIT)
    assert (code, kind) == ("payload_too_large", "PayloadTooLarge")
    assert "PERDURE_PAYLOADS" in text


async def test_a_node_with_an_object_store_uses_it_itself(ray_cluster: RayCluster, dsn: str, tmp_path: Path) -> None:
    """A huge value passes from task to task without passing through the worker, whose memory does not grow by it."""
    store = f"file://{tmp_path}"
    async with Perdure(dsn, executors=[executor(ray_cluster)], payloads=store) as client:
        await client.deploy(FLOW, name="huge_on_ray")
        with watched(os.getpid()) as (memory,):
            handle = await flow("huge_on_ray").start(size=HUGE, env={"PERDURE_PAYLOADS": store})
            found = await handle.result(timeout=LIMIT)
        assert found == [HUGE // 2, "é", await asyncio.to_thread(digest_of, "é" * (HUGE // 2)), ""]
        (stored,) = {r.store for r in await references(handle)}
    assert stored.startswith(store)
    assert [f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()] == [HUGE + 2]
    assert memory.grown_mib < GROWN_MIB_MAX, memory.grown_mib
