"""Rules by REST: set, listed, taken back, audited; and starts that are put off or deduplicated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import task, workflow
from tests.fakes.waiting import holds, until
from tests.server.rest_live import Live, live


@task(name="rules_step", queue="rules_queue")
async def step(n: int) -> int:
    return n


@workflow(name="rules_flow")
async def flow(n: int) -> int:
    return await step(n)


@workflow(name="rules_gather")
async def gather(items: list[Any]) -> list[Any]:
    return items


@pytest.fixture
async def server(dsn: str) -> AsyncIterator[Live]:
    async with live(dsn) as one:
        for definition in (flow, gather):
            one.perdure._backend.adopt(definition)
        await one.perdure.engine.refresh()
        yield one


async def has_status(server: Live, run: dict[str, Any], status: str) -> bool:
    return bool((await server.get(f"/runs/{run['id']}"))["status"] == status)


async def result(server: Live, run: dict[str, Any]) -> Any:
    """The result of a run whose start was deferred."""

    async def succeeded() -> dict[str, Any]:
        answer = await server.http.get(f"/runs/{run['id']}/result", params={"wait": 5})
        return answer.json() if answer.status_code == 200 and answer.json()["status"] == "success" else {}

    return (await until(succeeded))["result"]


async def test_a_rule_is_set_listed_and_taken_back(server: Live) -> None:
    made = await server.ask(
        "PUT", "/limits/queue/io", 200, json={"concurrency": 10, "rate": {"count": 100, "per": "1m"}}
    )
    assert (made["scope"], made["name"], made["concurrency"]) == ("queue", "io", 10)
    assert made["rate"] == {"count": 100, "per_s": 60, "burst": None}
    whole = await server.ask("PUT", "/limits/namespace/-", 200, json={"concurrency": 1000})
    assert (whole["scope"], whole["name"]) == ("namespace", None)
    first = await server.get("/limits", limit=1)
    assert [r["scope"] for r in first["items"]] == ["namespace"]
    rest = await server.get("/limits", limit=5, cursor=first["next"])
    assert [(r["scope"], r["name"]) for r in rest["items"]] == [("queue", "io")]
    assert rest["next"] is None
    await server.ask("DELETE", "/limits/queue/io", 204)
    problem = await server.ask("DELETE", "/limits/queue/io", 404)
    assert "no limit is set for queue/io" in problem["detail"]
    await server.ask("DELETE", "/limits/namespace/-", 204)
    assert (await server.get("/limits"))["items"] == []
    lines = [(a["action"], a["target"]) for a in (await server.get("/audit"))["items"]]
    assert lines[:4] == [
        ("rule.clear", "namespace/-"),
        ("rule.clear", "queue/io"),
        ("rule.set", "namespace/-"),
        ("rule.set", "queue/io"),
    ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/limits/queue/io", {}),
        ("/limits/queue/io", {"concurrency": 0}),
        ("/limits/queue/io", {"rate": {"count": 0}}),
        ("/limits/queue/io", {"rate": {"count": 1, "per": "soon"}}),
        ("/limits/queue/io", {"rate": {"count": 1, "burst": 0}}),
        ("/limits/queue/io", {"concurency": 1}),
        ("/limits/namespace/x", {"concurrency": 1}),
        ("/limits/nothing/x", {"concurrency": 1}),
    ],
)
async def test_a_rule_that_cannot_work_is_refused(server: Live, path: str, body: dict[str, Any]) -> None:
    await server.ask("PUT", path, 422, json=body)
    assert (await server.get("/limits"))["items"] == []


async def test_a_paused_queue_holds_its_tasks_until_it_is_resumed(server: Live) -> None:
    paused = await server.ask("POST", "/queues/rules_queue/pause", 200, json={"reason": "disk full"})
    assert (paused["pause_reason"], paused["concurrency"]) == ("disk full", None)
    assert paused["paused_by"]
    run = await server.start("rules_flow", input={"n": 5})
    await until(lambda: has_status(server, run, "running"))
    await holds(lambda: has_status(server, run, "running"), 0.5)
    await server.ask("POST", "/queues/rules_queue/resume", 204)
    ended = await server.get(f"/runs/{run['id']}/result", wait=60)
    assert ended["result"] == 5
    problem = await server.ask("POST", "/queues/rules_queue/resume", 404)
    assert "not paused" in problem["detail"]
    actions = [a["action"] for a in (await server.get("/audit"))["items"]]
    assert {"queue.pause", "queue.resume"} <= set(actions)


async def test_a_paused_workflow_takes_starts_and_lets_none_begin(server: Live) -> None:
    await server.ask("POST", "/workflows/rules_flow/pause", 200)
    run = await server.start("rules_flow", input={"n": 6})
    await holds(lambda: has_status(server, run, "pending"), 0.5)
    await server.ask("POST", "/workflows/rules_flow/resume", 204)
    assert (await server.get(f"/runs/{run['id']}/result", wait=60))["result"] == 6


# -- starts --------------------------------------------------------------------------------------------------------


async def test_a_debounced_start_is_answered_with_the_run_that_will_come(server: Live) -> None:
    body = {"debounce": {"key": "k", "quiet": "400ms", "max_delay": "10s"}}
    first = await server.start("rules_flow", 202, input={"n": 1}, **body)
    second = await server.start("rules_flow", 202, input={"n": 2}, **body)
    assert first["id"] == second["id"]
    assert first["due_at"] < second["due_at"]
    await server.get(f"/runs/{first['id']}", 404)
    assert await result(server, first) == 2


async def test_items_that_are_sent_twice_under_an_idempotency_key_are_added_once(server: Live) -> None:
    batch = {"key": "k", "size": 3, "max_delay": "1h"}
    path = "/workflows/rules_gather/runs"
    one = await server.post(path, {"input": {"items": ["a"]}, "batch": batch}, 202, idempotency_key="x-1")
    again = await server.post(path, {"input": {"items": ["a"]}, "batch": batch}, 202, idempotency_key="x-1")
    assert one["id"] == again["id"]
    await server.post(path, {"input": {"items": ["b"]}, "batch": batch}, 409, idempotency_key="x-1")
    await server.post(path, {"input": {"items": ["b", "c"]}, "batch": batch}, 202, idempotency_key="x-2")
    assert await result(server, one) == ["a", "b", "c"]


async def test_a_second_start_under_a_key_is_answered_with_the_first_run(server: Live) -> None:
    first = await server.start("rules_flow", 201, input={"n": 1}, dedup={"key": "k", "within": "10m"})
    second = await server.start("rules_flow", 200, input={"n": 2}, dedup={"key": "k", "within": "10m"})
    assert first["id"] == second["id"]
    assert second["input"] == {"n": 1}


@pytest.mark.parametrize(
    "body",
    [
        {"dedup": {"key": "k"}, "key": "mine"},
        {"dedup": {"key": "k"}, "debounce": {"key": "k", "quiet": "1s"}},
        {"batch": {"key": "k", "size": 1, "max_delay": "1s"}, "debounce": {"key": "k", "quiet": "1s"}},
        {"batch": {"key": "k", "size": 1, "max_delay": "1s"}, "input": {"n": 1}},
        {"debounce": {"key": "k", "quiet": "30d"}},
        {"debounce": {"quiet": "1s"}},
        {"dedup": {"key": ""}},
    ],
)
async def test_a_start_that_cannot_be_meant_is_refused(server: Live, body: dict[str, Any]) -> None:
    await server.start("rules_flow", 422, **{"input": {"n": 1}, **body})
