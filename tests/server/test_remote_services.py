"""Calls of services by a remote worker, which asks its server for instances over gRPC."""

from __future__ import annotations

import json
from typing import Any

from perdure import Client, wf, workflow
from perdure.core.api import services as acts
from perdure.core.api.services import InstanceItem, RegisterInstance
from perdure.engine.api.services import receive_callback
from tests.fakes.waiting import until
from tests.sdk.test_builtin_tasks import Answer, web
from tests.server.remote import server, worker

JSON = {"content-type": "application/json"}


@workflow(name="services_twice")
async def twice(n: int) -> Any:
    return await wf.service("twice", n, params={"by": 2}, call={"max_attempts": 2, "weighted_by_load": True})


@workflow(name="services_later")
async def later() -> Any:
    return await wf.service("later", timeout="1m")


def doubled(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
    call = json.loads(body)
    return 200, JSON, json.dumps({"result": call["input"] * call["params"]["by"], "error": ""}).encode()


async def test_a_workflow_calls_a_service_through_a_remote_worker(dsn: str) -> None:
    async with web(doubled) as w, server(dsn) as s, Client(s.address) as client:
        made: InstanceItem = await client._backend.call(acts.REGISTER, RegisterInstance(w.url, ["twice"]))
        assert made.status == "online"
        async with worker(s.address, http_allow=["127.0.0.0/8"]):
            assert await twice.run(21) == 42


async def test_an_accepted_job_is_watched_by_the_next_worker(dsn: str) -> None:
    async with (
        web(lambda *_: (202, JSON, b'{"accepted": true}')) as w,
        server(dsn) as s,
        Client(s.address) as client,
    ):
        await client._backend.call(acts.REGISTER, RegisterInstance(w.url, ["later"]))
        async with worker(s.address, http_allow=["127.0.0.0/8"]):
            handle = await later.start()
            await until(lambda: w.asked)
            url = w.asked[0][2]["x-perdure-callback"]
            job = w.asked[0][2]["idempotency-key"]
            assert url.startswith("https://example.org/callbacks/")
            await until(lambda: s.api.ports.services.callback(s.engine.ns, job))
        async with worker(s.address, http_allow=["127.0.0.0/8"]):
            assert await receive_callback(s.api, url.rpartition("/")[2], b'"done"', "")
            assert await handle.result("3m") == "done"
        assert len(w.asked) == 1, "the second worker did not call it again"
