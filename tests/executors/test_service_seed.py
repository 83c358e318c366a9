"""Documents of the scheduler that the service protocol comes from, unchanged, with workers written from its text alone."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tests.executors.services import deployed, instance, online, result_of, serving

BRANCHES: dict[str, Any] = {
    "start": "A",
    "nodes": {
        "A": {
            "kind": "executor",
            "service": "transform",
            "params": {"op": "upper"},
            "prep": {"input_key": "$params.text"},
            "post": {"output_key": "a", "action_static": "next"},
            "max_retries": 2,
            "wait_ms": 50,
            "max_attempts": 2,
            "attempt_delay_ms": 50,
            "weighted_by_load": True,
        },
        "R": {
            "kind": "executor",
            "service": "route",
            "prep": {"input_key": "a"},
            "post": {"output_key": "routed", "action_key": "action"},
        },
        "B": {
            "kind": "executor",
            "service": "transform",
            "params": {"op": "lower"},
            "prep": {"input_key": "a"},
            "post": {"output_key": "result"},
        },
        "C": {
            "kind": "executor",
            "service": "transform",
            "params": {"op": "mul", "mul": 3},
            "prep": {"input_key": "$params.n"},
            "post": {"output_key": "result"},
        },
    },
    "edges": [
        {"from": "A", "action": "next", "to": "R"},
        {"from": "R", "action": "goB", "to": "B"},
        {"from": "R", "action": "goC", "to": "C"},
    ],
}
"""The demo of its command line: branches."""

EVERY_KIND: dict[str, Any] = {
    "start": "each",
    "nodes": {
        "each": {
            "kind": "foreach",
            "service": "transform",
            "params": {"op": "mul", "mul": 10},
            "prep": {"input_key": "$params.numbers"},
            "parallel_mode": "concurrent",
            "max_parallel": 2,
            "failure_strategy": "fail_fast",
            "post": {"output_key": "tens", "action_static": "on"},
        },
        "all": {
            "kind": "parallel",
            "parallel_services": ["sum", "sum"],
            "parallel_mode": "concurrent",
            "prep": {"input_key": "tens"},
            "post": {"output_key": "sums", "action_static": "on"},
        },
        "pause": {"kind": "timer", "params": {"delay_ms": 20}, "post": {"action_static": "on"}},
        "which": {
            "kind": "choice",
            "choice_cases": [{"action": "big", "expr": {"gt": ["$shared.sums.0", 50]}}],
            "default_action": "small",
        },
        "inner": {
            "kind": "subflow",
            "subflow": {
                "start": "s",
                "nodes": {
                    "s": {
                        "kind": "executor",
                        "service": "sum",
                        "prep": {"input_key": "$params.numbers"},
                        "post": {"output_key": "total"},
                    }
                },
                "edges": [],
            },
            "post": {"output_key": "sub"},
        },
    },
    "edges": [
        {"from": "each", "action": "on", "to": "all"},
        {"from": "all", "action": "on", "to": "pause"},
        {"from": "pause", "action": "on", "to": "which"},
        {"from": "which", "action": "big", "to": "inner"},
    ],
}


@pytest.mark.usefixtures("processes")
async def test_the_branches_of_the_demo(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(dsn, monkeypatch) as server:
        await deployed(server, json.dumps(BRANCHES), "branches")
        with instance(server, WORKER_ID="one"), instance(server, WORKER_ID="two"):
            await online(server, "transform", 2)
            b = await result_of(server, "branches", {"text": "Hello", "n": 7, "action": "goB"})
            assert (b["status"], b["result"]["a"], b["result"]["result"]) == ("success", "HELLO", "hello"), b
            c = await result_of(server, "branches", {"text": "Hello", "n": 7, "action": "goC"})
            assert c["result"]["result"] == 21, c
            tasks = (await server.get(f"/runs/{c['id']}/tasks"))["items"]
            assert {t["name"] for t in tasks} == {"perdure.job.service"}


@pytest.mark.usefixtures("processes")
async def test_every_kind_that_calls_a_service(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(dsn, monkeypatch) as server:
        await deployed(server, json.dumps(EVERY_KIND), "kinds")
        with instance(server):
            await online(server, "sum")
            run = await result_of(server, "kinds", {"numbers": [1, 2, 3]})
            assert run["status"] == "success", run
            assert run["result"]["tens"] == [10, 20, 30] and run["result"]["sums"] == [60, 60]
            assert run["result"]["sub"] == {"total": 6}


@pytest.mark.usefixtures("processes")
async def test_a_service_that_fails_fails_its_node(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(dsn, monkeypatch) as server:
        await deployed(server, json.dumps(BRANCHES), "branches")
        with instance(server):
            await online(server, "transform")
            run = await result_of(server, "branches", {"text": 5, "action": "goB"})
            assert run["status"] == "failed" and "has no attribute 'upper'" in run["error"]["message"], run


async def test_the_registry_as_its_workers_use_it(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(dsn, monkeypatch) as server, httpx2.AsyncClient(base_url=server.url, timeout=120) as http:
        body = {"id": "w1", "url": "http://127.0.0.1:1/", "services": ["x", "y"], "load": 3, "status": "online"}
        made = (await http.post("/workers/register", json=body)).json()
        assert (made["id"], made["url"], made["services"], made["load"], made["status"]) == (
            "w1",
            "http://127.0.0.1:1",
            ["x", "y"],
            3,
            "online",
        )
        await http.post("/workers/register", json={"url": "http://127.0.0.1:2", "services": "x", "load": 1})
        beat = await http.post("/workers/heartbeat", json={"url": "http://127.0.0.1:2", "load": 2.5})
        assert beat.status_code == 200 and beat.json()["status"] == "online"
        assert (await http.post("/workers/heartbeat", json={"worker_id": "w1"})).status_code == 200
        assert (await http.post("/workers/heartbeat", json={"id": "w9"})).status_code == 404
        assert (await http.post("/workers/heartbeat", json={"load": 1})).status_code == 422
        listed = (await http.get("/workers/list", params={"service": "x", "ttl": 15})).json()
        assert [(i["url"], i["load"]) for i in listed] == [("http://127.0.0.1:2", 2.5), ("http://127.0.0.1:1", 3)]
        assert [i["id"] for i in (await http.get("/workers/list", params={"service": "y"})).json()] == ["w1"]
        best = (await http.get("/workers/allocate", params={"service": "x"})).json()
        assert best["url"] == "http://127.0.0.1:2"
        assert (await http.get("/workers/allocate", params={"service": "z"})).status_code == 404
        server.perdure.store.shift_clock(16)
        assert (await server.get("/workers/list", service="x")) == []
        assert [i["status"] for i in (await server.get("/services"))["items"]] == ["offline", "offline"]
        assert len(await server.get("/workers/list", ttl=60)) == 2
        assert (await http.get("/workers/allocate", params={"service": "x"})).status_code == 404
        await http.post("/workers/heartbeat", json={"id": "w1"})
        assert [i["id"] for i in await server.get("/workers/list", service="x")] == ["w1"]


WRONG: list[dict[str, Any]] = [
    {"services": ["x"]},
    {"url": "ftp://h", "services": ["x"]},
    {"url": "http://", "services": ["x"]},
    {"url": "http://h:99999999", "services": ["x"]},
    {"url": "http://user:secret@h", "services": ["x"]},
    {"url": "http://h/?q=1", "services": ["x"]},
    {"url": "http://h", "services": []},
    {"url": "http://h", "services": ["x" * 1000]},
    {"url": "http://h", "services": ["x"], "load": -1},
    {"url": "http://h" + "x" * 3000, "services": ["x"]},
]


async def test_what_cannot_be_registered(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(dsn, monkeypatch) as server:
        for body in WRONG:
            await server.post("/workers/register", body, 422)
        assert (await server.get("/services"))["items"] == []
