"""Every route of the REST API, against a real engine, worker and PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from perdure.core import ids
from perdure.core.access import Permission
from perdure.core.version import VERSION
from perdure.server.rest.app import guarded_routes
from perdure.server.rest.guard import BODY_BYTES_MAX, JSON_DEPTH_MAX, PUBLIC, allow_of
from perdure.server.rest.pages import PageRoute
from perdure.server.rest.ui import UiRoute
from perdure.server.rest.webhooks import HookRoute
from tests.fakes.waiting import until
from tests.server.rest_live import Live, live


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Live]:
    async with live(dsn) as one:
        yield one


# -- runs --------------------------------------------------------------------------------------------------------------


async def test_a_run_is_started_and_read(api: Live) -> None:
    answer = await api.http.post(
        "/workflows/rest_sum/runs",
        json={"input": {"x": 2, "y": 3}, "key": "order-1", "attributes": {"env": "prod", "n": 5}},
    )
    assert answer.status_code == 201
    run = answer.json()
    assert answer.headers["location"] == f"/api/v1/runs/{run['id']}"
    assert run["url"] == f"{api.url}/runs/{run['id']}"
    assert await api.get(f"/runs/{run['id']}/result", wait=60) == {"status": "success", "result": 10, "error": None}
    run = await api.get(f"/runs/{run['id']}")
    assert run["status"] == "success" and run["result"] == 10 and run["input"] == {"x": 2, "y": 3}
    assert run["key"] == "order-1" and run["attributes"] == {"env": "prod", "n": 5}
    assert run["tasks"]["success"] == 2 and sum(run["tasks"].values()) == 2
    assert run["created_at"].endswith("Z") and len(run["created_at"]) == len("2026-10-21T14:11:58.123456Z")
    assert run["waiting"] is None and run["error"] is None


@pytest.mark.parametrize(
    ("body", "input"),
    [
        ({"input": {"x": 1, "y": 2}}, {"x": 1, "y": 2}),
        ({"args": [1, 2]}, {"*": [1, 2]}),
        ({"args": [1], "kwargs": {"y": 2}}, {"*": [1], "y": 2}),
        ({"kwargs": {"x": 1, "y": 2}}, {"x": 1, "y": 2}),
    ],
)
async def test_arguments_come_by_name_or_by_position(api: Live, body: dict[str, object], input: object) -> None:
    run = await api.ended("rest_sum", **body)
    assert run["result"] == 6 and run["input"] == input


async def test_one_value_is_the_one_argument(api: Live) -> None:
    assert (await api.ended("rest_sum", input=4))["result"] == 8
    assert (await api.ended("rest_listen", status=201, input=0))["result"] == []


async def test_a_failed_run_says_why(api: Live) -> None:
    run = await api.ended("rest_fail", input={"why": "the disk is full"})
    assert run["status"] == "failed"
    assert run["error"]["code"] == "run_failed" and "the disk is full" in run["error"]["message"]
    assert run["tasks"]["failed"] == 1
    result = await api.get(f"/runs/{run['id']}/result")
    assert result["status"] == "failed" and "the disk is full" in result["error"]["message"]
    (task,) = (await api.get(f"/runs/{run['id']}/tasks"))["items"]
    assert task["status"] == "failed" and task["attempts"] == 1 and "the disk is full" in task["error"]


async def test_a_run_that_has_not_ended_answers_202(api: Live) -> None:
    run = await api.start("rest_listen")
    assert (await api.get(f"/runs/{run['id']}/result", 202))["status"] in ("pending", "running")
    assert (await api.get(f"/runs/{run['id']}/result", 202, wait=0.2))["status"] == "running"
    await api.post(f"/runs/{run['id']}/signals/rest_word", "hello", 202)
    assert (await api.get(f"/runs/{run['id']}/result", wait=60))["result"] == ["hello"]


async def test_a_run_is_found_by_prefix_key_and_last(api: Live) -> None:
    first = await api.start("rest_listen", key="my-own")
    assert (await api.get("/runs/key:my-own"))["id"] == first["id"]
    assert (await api.get(f"/runs/{first['id'].replace('-', '')}"))["id"] == first["id"]
    assert (await api.get(f"/runs/{first['id'][:8]}"))["id"] == first["id"]
    second = await api.start("rest_listen")
    assert (await api.get("/runs/@last"))["id"] == second["id"]
    problem = await api.get(f"/runs/{first['id'][:6]}", 409)
    assert problem["code"] == "conflict" and first["id"] in problem["detail"] and second["id"] in problem["detail"]


@pytest.mark.parametrize(
    "name", ["nonsense", "key:nobody", "0192", "ffffffff", "%00", "zz" * 60, "0" * 33, "..", "%F0%9F"]
)
async def test_an_id_that_names_nothing_is_not_found(api: Live, name: str) -> None:
    answer = await api.http.get(f"/runs/{name}")
    assert answer.status_code in (404, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"


async def test_an_empty_namespace_has_no_last_run(api: Live) -> None:
    assert (await api.get("/runs/@last", 404))["code"] == "not_found"


async def test_cancel_resume_and_what_they_refuse(api: Live) -> None:
    run = await api.start("rest_listen")
    assert (await api.post(f"/runs/{run['id']}/resume", status=409))["code"] == "conflict"
    await api.post(f"/runs/{run['id']}/cancel", {"reason": "wrong partition"}, 202)
    result = await api.get(f"/runs/{run['id']}/result", wait=60)
    assert result["status"] == "cancelled" and result["error"]["message"] == "wrong partition"
    assert (await api.post(f"/runs/{run['id']}/cancel", status=409))["code"] == "run_finished"


async def test_a_failed_run_is_retried(api: Live) -> None:
    run = await api.ended("rest_fail", input={"why": "once more"})
    assert (await api.post(f"/runs/{run['id']}/retry", status=202))["id"] == run["id"]
    assert (await api.get(f"/runs/{run['id']}/result", wait=60))["status"] == "failed"
    good = await api.ended("rest_sum", input={"x": 1})
    assert (await api.post(f"/runs/{good['id']}/retry", status=409))["status"] == 409


async def test_tasks_history_logs_and_state(api: Live) -> None:
    run = await api.ended("rest_map", input={"n": 7})
    assert run["result"] == 42
    first = await api.get(f"/runs/{run['id']}/tasks", limit=3)
    assert [t["seq"] for t in first["items"]] == [0, 1, 2]
    rest = await api.get(f"/runs/{run['id']}/tasks", cursor=first["next"])
    assert [t["seq"] for t in rest["items"]] == [3, 4, 5, 6] and rest["next"] is None
    assert [t["seq"] for t in (await api.get(f"/runs/{run['id']}/tasks", after=3, limit=1))["items"]] == [4]
    assert (await api.get(f"/runs/{run['id']}/tasks", status="failed"))["items"] == []
    found = await api.get(f"/runs/{run['id']}/tasks", status="success", limit=5)
    assert len(found["items"]) == 5 and found["next"]
    history = await api.get(f"/runs/{run['id']}/history", limit=2)
    assert [e["seq"] for e in history["items"]] == [1, 2] and history["items"][0]["type"] == "RunStarted"
    assert history["items"][0]["data"]["input"] == {"n": 7}
    assert (await api.get(f"/runs/{run['id']}/history", after=2))["items"][0]["seq"] == 3
    assert (await api.get(f"/runs/{run['id']}/history", cursor=history["next"]))["items"][0]["seq"] == 3
    assert "items" in await api.get(f"/runs/{run['id']}/logs")
    assert "items" in await api.get(f"/runs/{run['id']}/tasks/rest_double/logs")
    assert "items" in await api.get(f"/runs/{run['id']}/tasks/3/logs", attempt=1)
    assert (await api.get(f"/runs/{run['id']}/tasks/unheard_of/logs", 404))["code"] == "not_found"
    assert (await api.get(f"/runs/{run['id']}/state/unset", 404))["code"] == "not_found"


async def test_logs_are_paged_in_time_order(api: Live) -> None:
    run = await api.ended("rest_sum", input={"x": 1})
    run_id = ids.parse(run["id"])
    async with api.perdure.store.pool.take() as c:
        for n in range(4):
            lines = [[1_000_000 * (10 * n + i), "stdout", "info", f"line {n}.{i}"] for i in range(3)]
            await c.execute(
                "insert into perdure.task_log (run_id, seq, attempt, n, ns, at, lines, body) values ($1, $2, 9, $3, 1, $4, 3, $5)",
                run_id,
                n % 2,
                n,
                1_700_000_000_000_000 + n,
                json.dumps(lines).encode(),
            )
    seen: list[str] = []
    cursor = None
    while True:
        page = await api.get(f"/runs/{run['id']}/logs", limit=5, **({"cursor": cursor} if cursor else {}))
        seen += [line["text"] for line in page["items"] if line["attempt"] == 9]
        assert all(line["task"] == "rest_double" for line in page["items"])
        if (cursor := page["next"]) is None:
            break
    assert seen == [f"line {n}.{i}" for n in range(4) for i in range(3)]
    one = await api.get(f"/runs/{run['id']}/tasks/1/logs", attempt=9)
    assert [line["text"] for line in one["items"]] == [f"line {n}.{i}" for n in (1, 3) for i in range(3)]
    back: list[str] = []
    more: dict[str, str] = {}
    while True:
        page = await api.get(f"/runs/{run['id']}/logs", limit=5, order="newest", **more)
        back += [line["text"] for line in page["items"] if line["attempt"] == 9]
        if page["next"] is None:
            break
        more = {"cursor": page["next"]}
    assert back == seen[::-1]
    end = await api.get(f"/runs/{run['id']}/tasks/1/logs", attempt=9, order="newest", limit=2)
    assert [line["text"] for line in end["items"]] == ["line 3.2", "line 3.1"]


async def test_signals_promises_and_state_of_a_run_that_waits(api: Live) -> None:
    run = await api.start("rest_listen", input={"count": 2})
    await api.post(f"/runs/{run['id']}/signals/rest_word", "one", 202)

    async def has_progressed() -> bool:
        state = await api.http.get(f"/runs/{run['id']}/state/rest_progress")
        return state.status_code == 200 and state.json() == {"name": "rest_progress", "value": 1}

    await until(has_progressed)
    await api.post(f"/runs/{run['id']}/signals/rest_word", "two", 202)
    assert (await api.get(f"/runs/{run['id']}/result", wait=60))["result"] == ["one", "two"]
    assert (await api.post(f"/runs/{run['id']}/signals/rest_word", "three", 409))["code"] == "run_finished"
    waits = await api.start("rest_pay")

    async def waits_for_promises() -> Any:
        found = (await api.get(f"/runs/{waits['id']}"))["waiting"]
        return found if found["promises"] else None

    waiting = await until(waits_for_promises)
    assert waiting["promises"] == ["rest_paid"] and "rest_paid" in waiting["reason"]
    await api.post(f"/runs/{waits['id']}/promises/rest_paid", 7, 202)
    again = await api.http.post(f"/runs/{waits['id']}/promises/rest_paid", json=8)
    assert again.status_code == 409 and again.json()["code"] in ("promise_already_resolved", "run_finished")
    assert (await api.get(f"/runs/{waits['id']}/result", wait=60))["result"] == 7


async def test_lists_are_filtered(api: Live) -> None:
    good = await api.ended("rest_sum", input={"x": 1}, attributes={"env": "prod", "n": 5})
    bad = await api.ended("rest_fail", input={"why": "Disk Full"}, key="nightly-1")
    active = await api.start("rest_listen", attributes={"env": "test"})

    async def found(**params: object) -> list[str]:
        return [r["id"] for r in (await api.get("/runs", **params))["items"]]

    assert await found() == [active["id"], bad["id"], good["id"]]
    assert await found(status="failed") == [bad["id"]]
    assert await found(status=["failed", "success"]) == [bad["id"], good["id"]]
    assert await found(status=["failed", "cancelled"]) == [bad["id"]]
    assert await found(status=["pending", "running"]) == [active["id"]]
    assert await found(workflow="rest_sum") == [good["id"]]
    assert await found(workflow="rest_listen") == [active["id"]]
    assert await found(attr="env:prod") == [good["id"]]
    assert await found(attr=["env:prod", "n:5"]) == [good["id"]]
    assert await found(attr="env:test") == [active["id"]]
    assert await found(attr=["env:prod", "n:6"]) == []
    assert await found(attr="env:prod", status="failed") == []
    assert await found(q="disk full") == [bad["id"]]
    assert await found(q="NIGHTLY") == [bad["id"]]
    assert await found(q="rest_list") == [active["id"]]
    assert set(await found(q=good["id"][:8])) >= {good["id"]}
    assert await found(q="no such thing") == []
    assert await found(since="1h") == [active["id"], bad["id"], good["id"]]
    assert await found(until="1h") == []
    assert good["id"] not in await found(since=bad["created_at"])
    assert await found(until=bad["created_at"]) in ([good["id"]], [bad["id"], good["id"]])


async def test_runs_are_found_by_a_query_and_by_a_saved_view(api: Live) -> None:
    good = await api.ended("rest_sum", input={"x": 1}, attributes={"env": "prod", "n": 5})
    bad = await api.ended("rest_fail", input={"why": "Disk Full"}, key="nightly-1")
    active = await api.start("rest_listen", attributes={"env": "test", "n": 50})

    async def found(**params: object) -> list[str]:
        return [r["id"] for r in (await api.get("/runs", **params))["items"]]

    assert await found(query="attr.n > 4") == [active["id"], good["id"]]
    assert await found(query="attr.n > 4 and not status = success") == [active["id"]]
    assert await found(query="key prefix nightly or attr.env in (prod, staging)") == [bad["id"], good["id"]]
    assert await found(query="created > -1h and finished exists", status="failed") == [bad["id"]]
    assert await found(query=f"id prefix {good['id'][:13]} and workflow = rest_sum") == [good["id"]]
    problem = await api.get("/runs", 422, query="status = failed and stauts = x")
    assert problem["code"] == "invalid_input" and "character 21" in problem["detail"]
    assert "did you mean 'status'?" in problem["detail"]

    made = await api.ask("PUT", "/views/many n", 200, json={"query": "attr.n > 4"})
    assert made["query"] == "attr.n > 4"
    assert [v["name"] for v in (await api.get("/views"))["items"]] == ["many n"]
    assert await found(view="many n") == [active["id"], good["id"]]
    assert await found(view="many n", query="status = success or stuck") == [good["id"]]
    assert "no view 'fewer'" in (await api.get("/runs", 404, view="fewer"))["detail"]
    await api.ask("PUT", "/views/many n", 200, json={"query": "attr.n > 40"})
    assert await found(view="many n") == [active["id"]]
    await api.ask("PUT", "/views/bad", 422, json={"query": "attr.n >"})
    await api.ask("DELETE", "/views/many n", 204)
    await api.get("/runs", 404, view="many n")


async def test_a_query_parameter_that_a_route_does_not_have_is_refused(api: Live) -> None:
    problem = await api.get("/runs", 422, stauts="failed")
    assert "'stauts' is no query parameter" in problem["detail"] and "did you mean 'status'?" in problem["detail"]
    assert (
        "It takes attr, cursor, limit, q, query, since, status, until, view, waiting_on, waits, workflow"
        in problem["detail"]
    )
    for route in (r for r in guarded_routes() if not isinstance(r, UiRoute)):
        is_root = isinstance(route, (PageRoute, HookRoute)) or route.path.startswith(("/callbacks/", "/auth/"))
        base = api.url if is_root else f"{api.url}/api/v1"
        path = re.sub(r"\{\w+(:path)?\}", "xxxxxxxx", route.path)
        for method in route.methods:
            answer = await api.http.request(method, f"{base}{path}?utm_source=mail")
            refused = answer.status_code == 422 and "utm_source" in answer.text
            assert refused is not route.takes_any_query, (method, path, answer.text)


async def test_pages_stay_stable_while_runs_are_added_and_end(api: Live) -> None:
    runs = [(await api.start("rest_listen"))["id"] for _ in range(7)]
    seen: list[str] = []
    cursor = None
    for _ in range(10):
        page = await api.get("/runs", limit=3, **({"cursor": cursor} if cursor else {}))
        seen += [r["id"] for r in page["items"]]
        await api.start("rest_listen")
        await api.post(f"/runs/{runs[1]}/cancel", status=202) if cursor is None else None
        if (cursor := page["next"]) is None:
            break
    assert seen == list(reversed(runs))


# -- workflows ---------------------------------------------------------------------------------------------------------


async def test_workflows_are_listed_registered_deleted_and_revived(api: Live) -> None:
    listed = await api.get("/workflows", q="REST_S")
    assert [w["name"] for w in listed["items"]] == ["rest_sum"]
    page = await api.get("/workflows", limit=2)
    assert len(page["items"]) == 2 and page["next"]
    following = await api.get("/workflows", limit=2, cursor=page["next"])
    assert following["items"][0]["name"] > page["items"][1]["name"]
    made = await api.post("/workflows", {"name": "elsewhere", "version": "1", "description": "served by others"})
    assert made["versions"][0] | {"registered_at": ""} == {
        "version": "1",
        "kind": "code",
        "registered_at": "",
        "current": True,
    }
    await api.post("/workflows", {"name": "elsewhere", "version": "1"}, 200)
    await api.post("/workflows", {"name": "elsewhere", "version": "2"}, 201)
    assert {v["version"]: v["current"] for v in (await api.get("/workflows/elsewhere/versions"))["items"]} == {
        "2": True,
        "1": False,
    }
    run = await api.start("elsewhere", version="1")
    assert run["status"] == "pending" and run["version"] == "1" and "elsewhere" in run["waiting"]["reason"]
    assert (await api.get("/workflows/elsewhere"))["runs_active"] == 1
    assert (await api.start("elsewhere", 404, version="3"))["code"] == "not_registered"
    await api.ask("DELETE", "/workflows/elsewhere", 204)
    await api.ask("DELETE", "/workflows/elsewhere", 204)
    assert (await api.start("elsewhere", 409))["code"] == "workflow_deleted"
    assert (await api.get("/workflows/elsewhere"))["deleted_at"]
    assert "elsewhere" not in [w["name"] for w in (await api.get("/workflows"))["items"]]
    await api.post("/workflows", {"name": "elsewhere", "version": "2"}, 200)
    assert (await api.start("elsewhere"))["version"] == "2"


async def test_an_unknown_workflow_suggests_a_near_one(api: Live) -> None:
    problem = await api.start("rest_sun", 404)
    assert problem["code"] == "not_registered" and "did you mean 'rest_sum'" in problem["detail"]
    assert problem["type"] == f"{api.url}/errors#not_registered"
    await api.ask("DELETE", "/workflows/rest_sun", 404)


async def test_a_run_id_is_taken_attached_or_replaced(api: Live) -> None:
    first = await api.start("rest_listen", key="one")
    assert (await api.start("rest_listen", 409, key="one"))["code"] == "run_already_exists"
    assert (await api.start("rest_listen", 200, key="one", on_conflict="attach"))["id"] == first["id"]
    assert (await api.start("rest_listen", 409, key="one", on_conflict="attach", input={"count": 2}))["status"] == 409
    assert (await api.start("rest_listen", 201, key="one", on_conflict="replace"))["id"] != first["id"]


async def test_a_run_times_out(api: Live) -> None:
    run = await api.start("rest_listen", timeout="200ms")
    result = await api.get(f"/runs/{run['id']}/result", wait=60)
    assert result["status"] == "failed" and result["error"]["code"] == "run_timeout"


# -- idempotency -------------------------------------------------------------------------------------------------------


async def test_a_start_that_is_sent_twice_starts_once(api: Live) -> None:
    body = {"input": {"x": 1}, "attributes": {"a": 1}}
    answers = await asyncio.gather(
        *(api.http.post("/workflows/rest_sum/runs", json=body, headers={"Idempotency-Key": "k-1"}) for _ in range(8))
    )
    assert {a.status_code for a in answers} <= {200, 201}
    assert len({a.json()["id"] for a in answers}) == 1
    assert answers[0].json()["key"] is None
    assert (await api.post("/workflows/rest_sum/runs", body, 200, idempotency_key="k-1"))["id"] == answers[0].json()[
        "id"
    ]
    for other in ({"input": {"x": 2}}, {"input": {"x": 1}, "attributes": {"a": 2}}, {"input": {"x": 1}, "timeout": 5}):
        assert (await api.post("/workflows/rest_sum/runs", other, 409, idempotency_key="k-1"))[
            "code"
        ] == "idempotency_conflict"
    assert len((await api.get("/runs"))["items"]) == 1
    assert (await api.start("rest_sum", 422, key="idem:k-1"))["code"] == "invalid_input"


@pytest.mark.parametrize("on_conflict", ["fail", "replace"])
async def test_a_start_with_an_id_is_not_in_conflict_with_itself(api: Live, on_conflict: str) -> None:
    body = {"key": "mine", "on_conflict": on_conflict}
    run = await api.post("/workflows/rest_listen/runs", body, 201, idempotency_key="k-3")
    assert (await api.post("/workflows/rest_listen/runs", body, 200, idempotency_key="k-3"))["id"] == run["id"]
    assert (await api.get(f"/runs/{run['id']}"))["status"] in ("pending", "running")


async def test_a_start_whose_answer_was_lost_is_found_again(api: Live) -> None:
    """The crash lies between the effect and the answer: the run is there, under its key, and the digest may be or may not."""
    body = {"input": {"x": 1}}
    run = await api.post("/workflows/rest_sum/runs", body, 201, idempotency_key="k-2")
    async with api.perdure.store.pool.take() as c:
        await c.execute("delete from perdure.idempotency")
    assert (await api.post("/workflows/rest_sum/runs", body, 200, idempotency_key="k-2"))["id"] == run["id"]
    async with api.perdure.store.pool.take() as c:
        await c.execute("delete from perdure.idempotency")
    assert (await api.post("/workflows/rest_sum/runs", {"input": {"x": 9}}, 409, idempotency_key="k-2"))[
        "code"
    ] == "idempotency_conflict"


async def test_a_signal_that_is_sent_twice_arrives_once(api: Live) -> None:
    run = await api.start("rest_listen", input={"count": 2})
    path = f"/runs/{run['id']}/signals/rest_word"
    sent = await asyncio.gather(
        *(api.http.post(path, json="once", headers={"Idempotency-Key": "s-1"}) for _ in range(8))
    )
    assert {a.status_code for a in sent} == {202}
    assert (await api.post(path, "twice", 409, idempotency_key="s-1"))["code"] == "idempotency_conflict"
    await api.post(path, "last", 202, idempotency_key="s-2")
    assert (await api.get(f"/runs/{run['id']}/result", wait=60))["result"] == ["once", "last"]
    await api.post(path, "last", 202, idempotency_key="s-2")  # a repetition after the end is still a repetition
    assert (await api.post(path, "new", 409, idempotency_key="s-3"))["code"] == "run_finished"


# -- administration ----------------------------------------------------------------------------------------------------


async def test_a_foreign_namespace_does_not_exist(api: Live) -> None:
    run = await api.start("rest_listen", key="mine")
    await api.post("/namespaces", {"name": "other"})
    other = {"Perdure-Namespace": "other"}
    for path in (
        f"/runs/{run['id']}",
        f"/runs/{run['id'][:8]}",
        "/runs/key:mine",
        "/runs/@last",
        f"/runs/{run['id']}/history",
        f"/runs/{run['id']}/tasks",
        f"/runs/{run['id']}/logs",
        f"/runs/{run['id']}/result",
        f"/runs/{run['id']}/state/rest_progress",
        "/workflows/rest_sum",
    ):
        assert (await api.http.get(path, headers=other)).status_code == 404, path
    for path in ("cancel", "resume", "retry", "signals/rest_word", "promises/p"):
        assert (await api.http.post(f"/runs/{run['id']}/{path}", headers=other)).status_code == 404, path
    assert (await api.http.get("/runs", headers=other)).json()["items"] == []
    assert (await api.http.post("/workflows/rest_sum/runs", headers=other)).status_code == 404
    assert (await api.http.get("/runs", headers={"Perdure-Namespace": "nowhere"})).status_code == 404


async def test_namespaces_are_made_and_deleted(api: Live) -> None:
    await api.post("/namespaces", {"name": "shop"})
    await api.post("/namespaces", {"name": "shop"}, 200)
    assert "shop" in [n["name"] for n in (await api.get("/namespaces"))["items"]]
    assert (await api.post("/namespaces", {"name": "no spaces"}, 422))["code"] == "invalid_input"
    assert (await api.http.get("/runs", headers={"Perdure-Namespace": "shop"})).status_code == 200
    await api.ask("DELETE", "/namespaces/shop", 204)
    assert (await api.http.get("/runs", headers={"Perdure-Namespace": "shop"})).status_code == 404
    await api.ask("DELETE", "/namespaces/shop", 404)
    await api.ask("DELETE", "/namespaces/default", 409)


async def test_keys_and_audit(api: Live) -> None:
    key = await api.post("/api-keys", {"name": "ci", "role": "operator", "namespace": "default", "expires_in": "1d"})
    assert key["secret"].startswith("pd_") and key["expires_at"]
    listed = (await api.get("/api-keys"))["items"]
    assert [k["id"] for k in listed] == [key["id"]] and "secret" not in listed[0]
    await api.ask("DELETE", f"/api-keys/{key['id']}", 204)
    assert (await api.get("/api-keys"))["items"][0]["revoked_at"]
    await api.ask("DELETE", "/api-keys/nobody", 404)
    await api.start("rest_sum", input={"x": 1})
    page = await api.get("/audit", limit=2)
    assert [a["action"] for a in page["items"]] == ["run.start", "key.revoke"] and page["items"][0]["actor"] == "dev"
    following = await api.get("/audit", limit=2, cursor=page["next"])
    assert following["items"][0]["action"] == "key.create"
    assert "secret" not in json.dumps(following)
    for wanted, actions in (
        ({"actor": "dev", "action": "key."}, ["key.revoke", "key.create"]),
        ({"target": key["id"], "action": "key.create", "since": "1h"}, ["key.create"]),
        ({"until": "1h"}, []),
        ({"actor": "other"}, []),
    ):
        assert [a["action"] for a in (await api.get("/audit", **wanted))["items"]] == actions, wanted
    await api.ask("GET", "/audit?since=whenever", 422)


async def test_the_server_says_how_it_is_set_up(api: Live) -> None:
    found = await api.get("/server")
    assert found["version"] == VERSION and found["public_url"].startswith("http")
    assert found["keeps"] == {
        "runs_days": 90.0,
        "counts_days": 400,
        "decided_approvals_days": 30,
        "unused_payloads_s": 86_400.0,
    }
    assert found["payload_store"] == "database" and found["limits"]["lease_s"] > 0
    started = datetime.fromisoformat(found["started_at"])
    assert timedelta(0) < datetime.now(UTC) - started < timedelta(minutes=5)


async def test_whoami_workers_and_queues(api: Live) -> None:
    assert await api.get("/whoami") == {"subject": "dev", "role": "admin", "namespace": None, "scopes": None}

    async def workers() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await api.get("/workers"))["items"]
        return items

    (own,) = await until(workers)  # written a moment after the engine is open
    assert (own["sdk"], own["pid"]) == ("embedded", os.getpid())
    async with api.perdure.store.pool.take() as c:
        await c.execute(
            "insert into perdure.task_queue (id, ns, run_id, seq, name, queue, status, attempt, lost, run_at, scheduled_at, options, input)"
            " select gen_random_uuid(), 1, gen_random_uuid(), i, 'n' || i % 2, 'q', 'pending', 1, 0, now() - interval '1 minute', now(), '', ''"
            " from generate_series(1, 5) i"
        )
        await c.execute(
            "insert into perdure.worker values (0, gen_random_uuid(), 1, 'w', 'h', 1, 's', '{q}', '{n1}', '{}', 4, 1, 0, false, now(), now(), null)"
        )
    queues = (await api.get("/queues"))["items"]
    assert [(q["queue"], q["task"], q["pending"], q["running"], q["workers"]) for q in queues] == [
        ("q", "n0", 2, 0, 0),
        ("q", "n1", 3, 0, 1),
    ]
    assert queues[0]["oldest_age_s"] >= 60
    assert "w" in {w["name"] for w in (await api.get("/workers"))["items"]}


# -- the guard ---------------------------------------------------------------------------------------------------------


WITHOUT_A_KEY = {
    *("/workflows/validate", "/schedules/preview", "/session"),
    *("/hooks/{namespace}/{name}", "/links/{token}", "/callbacks/{token}"),
}
"""The first two write nothing; what they are about is too long for a query. The third signs in. The others bring a signature instead."""


def test_every_route_names_exactly_one_need() -> None:
    routes = [r for r in guarded_routes() if not isinstance(r, UiRoute)]  # those are files of the package
    needs = {(m, r.path): allow_of(r.dependant).need for r in routes for m in r.methods}
    sessions = {"/session", "/session/device", "/auth/oidc/start", "/auth/oidc/callback"}
    public = {path for (_, path), need in needs.items() if need == PUBLIC} - sessions
    with_a_signature = {"/hooks/{namespace}/{name}", "/links/{token}", "/callbacks/{token}"}
    assert public == {"/openapi.json", "/static/{name}", "/errors"} | with_a_signature
    assert needs["GET", "/whoami"] is None
    assert needs["POST", "/workflows/{name}/runs"] is Permission.START
    assert needs["DELETE", "/api-keys/{id}"] is Permission.ADMIN
    reads = {"/runs/{id}/queries/{name}"}  # with a body, for the arguments
    for (method, path), need in needs.items():
        if method != "GET" and path not in WITHOUT_A_KEY | reads:
            assert need not in (Permission.READ, None, PUBLIC), (method, path)


@pytest.mark.keep
async def test_a_stranger_gets_in_nowhere(dsn: str) -> None:
    async with live(dsn, keys=True) as api:
        for route in guarded_routes():
            if allow_of(route.dependant).need == PUBLIC:
                continue
            base = api.url if route.path in ("/", "/runs/{id}") and not route.include_in_schema else f"{api.url}/api/v1"
            path = re.sub(r"\{\w+(:path)?\}", "xxxxxxxx", route.path)
            for method in route.methods:
                answer = await api.http.request(method, f"{base}{path}", content=b"{broken")
                assert answer.status_code == 401, (method, path, answer.text)
                assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_credential_gets_what_its_role_grants_in_its_namespace(dsn: str) -> None:
    from perdure.core.access import NewKey, Role

    async with live(dsn, keys=True) as api:
        _, viewer = await api.server.api.ports.keys.create(NewKey(name="v", role=Role.VIEWER, namespace="default"))
        _, boss = await api.server.api.ports.keys.create(NewKey(name="b", role=Role.ADMIN, namespace="default"))
        api.http.headers["Authorization"] = f"Bearer {viewer}"
        assert (await api.get("/runs"))["items"] == []
        assert (await api.get("/whoami"))["role"] == "viewer"
        for method, path in (
            ("POST", "/workflows/rest_sum/runs"),
            ("POST", "/runs/@last/cancel"),
            ("GET", "/api-keys"),
            ("DELETE", "/workflows/x"),
        ):
            assert (await api.ask(method, path, 403))["code"] == "forbidden"
        assert (await api.http.get("/runs", headers={"Perdure-Namespace": "other"})).status_code == 404
        api.http.headers["Authorization"] = f"Bearer {boss}"
        assert (await api.post("/namespaces", {"name": "mine"}, 403))["code"] == "forbidden"
        assert (await api.post("/api-keys", {"name": "k", "role": "admin", "namespace": "other"}, 403))[
            "code"
        ] == "forbidden"
        assert (await api.post("/api-keys", {"name": "k", "role": "viewer"}))["namespace"] == "default"
        assert [n["name"] for n in (await api.get("/namespaces"))["items"]] == ["default"]


async def raw(api: Live, path: str, body: bytes, **headers: str) -> httpx2.Response:
    return await api.http.post(path, content=body, headers={"content-type": "application/json", **headers})


@pytest.mark.keep
async def test_a_body_is_bounded_and_sane(api: Live) -> None:
    path = "/workflows/rest_sum/runs"
    big = await raw(api, path, b'{"input": "' + b"x" * BODY_BYTES_MAX + b'"}')
    assert big.status_code == 413 and big.json()["code"] == "body_too_large"

    async def in_parts() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 65536

    with_no_length = await api.http.post(path, content=in_parts())
    assert with_no_length.status_code == 413
    for body in (
        b'{"input": ' + b"[" * (JSON_DEPTH_MAX + 1) + b"]" * (JSON_DEPTH_MAX + 1) + b"}",
        b"[" * 100_000,
        b"{",
        b'{"input": NaN}',
        b'{"input": 1e999}',
        b'{"input": "\\u0000"}',
        b'{"input": {"\\u0000": 1}}',
        b'{"attributes": {"\\ud800": 1}}',
        b'{"input": "\\ud800"}',
        b'{"key": "\\ud800"}',
        b"\xff\xfe",
        b'{"input": 1' + b"0" * 5000 + b"}",
        b'{"nonsense": 1}',
        b'{"attributes": {"a": [1]}}',
        b'{"attributes": {"a": null}}',
        b'{"timeout": -1}',
        b'{"timeout": "soon"}',
        b'{"on_conflict": "maybe"}',
        b'{"key": ""}',
        b'{"input": {"*": 1}}',
        b'{"input": 1, "args": [1]}',
        b"[1]",
        b'"text"',
    ):
        answer = await raw(api, path, body)
        assert answer.status_code == 422, (body[:60], answer.text)
        assert answer.json()["code"] == "invalid_input"
    deep = b'{"input": {"x": 1, "y": ' + b"[" * 40 + b"]" * 40 + b"}}"
    assert (await raw(api, path, deep)).status_code == 201
    run = await api.start("rest_listen")
    large = await api.http.post(f"/runs/{run['id']}/signals/rest_word", json="x" * 300_000)
    assert large.is_success, large.text  # kept by reference
    assert (await api.get("/runs", 422, q="\x00"))["code"] == "invalid_input"
    for params in (
        {"limit": 0},
        {"limit": 501},
        {"cursor": "!"},
        {"cursor": "AAAA"},
        {"since": "whenever"},
        {"status": "done"},
        {"attr": "x"},
        {"q": "x" * 201},
    ):
        assert (await api.get("/runs", 422, **params))["code"] == "invalid_input", params
    assert (await raw(api, path, b"{}", **{"Idempotency-Key": "x" * 200})).status_code == 422


async def test_everything_that_goes_wrong_is_a_problem(
    api: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for answer, status, code in (
        (await api.http.get("/nowhere"), 404, "not_found"),
        (await api.http.get(f"{api.url}/nowhere"), 404, "not_found"),
        (await api.http.put("/runs"), 405, "method_not_allowed"),
        (await api.http.delete("/whoami"), 405, "method_not_allowed"),
    ):
        assert answer.status_code == status and answer.json()["code"] == code
        assert answer.headers["content-type"] == "application/problem+json"
        assert set(answer.json()) == {"type", "title", "status", "code", "detail", "instance"}

    async def broken(*_: object) -> None:
        raise RuntimeError("postgresql://secret@host")

    monkeypatch.setattr(api.server.api.ports.reads, "queues", broken)
    answer = await api.http.get("/queues")
    assert answer.status_code == 500 and answer.json()["code"] == "internal" and "secret" not in answer.text
    assert "RuntimeError" in caplog.text


async def test_answers_carry_safe_headers(api: Live) -> None:
    for path in ("/runs", f"{api.url}/errors", f"{api.url}/nowhere"):
        headers = (await api.http.get(path)).headers
        assert (
            headers["x-content-type-options"] == "nosniff"
            and "default-src 'none'" in headers["content-security-policy"]
        )
        assert headers["cache-control"] == "no-store"


async def test_the_description_is_public_and_names_permissions(dsn: str) -> None:
    async with live(dsn, keys=True) as api:
        document = await api.get("/openapi.json")
        assert document["openapi"].startswith("3.1")
        assert document["paths"]["/api/v1/runs"]["get"]["x-permission"] == "read"
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                assert operation["x-permission"] and operation["operationId"] and operation["description"], (
                    method,
                    path,
                )
