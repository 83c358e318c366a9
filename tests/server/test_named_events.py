"""Events, and signals that start a run, through the doors of a server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure import Client, NamedEvent, On, Signal, workflow
from perdure.core.api import named_events
from perdure.core.api.named_events import EventItem, ListEvents
from tests.fakes.waiting import until
from tests.server.remote import server as remote_server
from tests.server.remote import worker
from tests.server.rest_live import Live, live

paid = NamedEvent("rest.paid", dict[str, Any])
say = Signal("rest_event_say", str)


@workflow(name="rest_event_order")
async def order(id: int) -> Any:
    return await paid.wait("event.order_id == input.id")


@workflow(name="rest_event_echo")
async def echo(word: str = "") -> list[str]:
    out = [word]
    while (said := await say.next()) != "end":
        out.append(said)
    return out


@workflow(name="rest_event_started", on=On("rest.started", match="event.n > 1"))
async def started(event: dict[str, int]) -> int:
    return event["n"]


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[Live]:
    async with live(dsn) as one:
        for definition in (order, echo):
            one.perdure._backend.adopt(definition)
        await one.perdure.engine.refresh()
        yield one


async def waiting(dsn: str, count: int = 1) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        query = "select count(*) >= $1 from perdure.promise where kind = 'event'"
        await until(lambda: connection.fetchval(query, count))
    finally:
        await connection.close()


async def result(app: Live, run_id: str) -> Any:
    return (await app.get(f"/runs/{run_id}/result", wait=60))["result"]


# -- events ----------------------------------------------------------------------------------------------------------------


async def test_an_event_reaches_the_run_that_waits_and_is_listed(app: Live, dsn: str) -> None:
    run = await app.start("rest_event_order", input={"id": 7})
    await waiting(dsn)
    shown = await app.get(f"/runs/{run['id']}")
    assert "event" in json.dumps(shown.get("waiting"))
    told = await app.post("/events/rest.paid", {"payload": {"order_id": 7, "amount": 3}, "key": "p1"}, 202)
    assert told["is_new"] is True
    assert await result(app, run["id"]) == {"order_id": 7, "amount": 3}
    again = await app.post("/events/rest.paid", {"payload": {"order_id": 7}, "key": "p1"}, 202)
    assert again == {**told, "is_new": False}
    await app.post("/events/rest.other", None, 202)
    page = await app.get("/events")
    assert [e["name"] for e in page["items"]] == ["rest.other", "rest.paid"]
    one = page["items"][1]
    assert (one["payload"], one["reached"], one["is_done"], one["key"]) == ({"order_id": 7, "amount": 3}, 1, True, "p1")
    assert [e["id"] for e in (await app.get("/events", name="rest.paid"))["items"]] == [told["id"]]


async def test_the_list_of_events_is_paged(app: Live) -> None:
    for i in range(7):
        await app.post("/events/page", {"payload": i}, 202)
    seen: list[int] = []
    cursor: dict[str, Any] = {}
    while True:
        page = await app.get("/events", limit=3, **cursor)
        seen += [e["payload"] for e in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert seen == [6, 5, 4, 3, 2, 1, 0]


async def test_the_header_is_a_key_as_well(app: Live) -> None:
    first = await app.post("/events/head", {"payload": 1}, 202, idempotency_key="h")
    second = await app.post("/events/head", {"payload": 1}, 202, idempotency_key="h")
    assert first["id"] == second["id"]


# -- signals ---------------------------------------------------------------------------------------------------------------


async def test_a_message_key_holds_whatever_the_door(app: Live) -> None:
    run = await app.start("rest_event_echo", input={"word": "x"})
    path = f"/runs/{run['id']}/signals/rest_event_say"
    for _ in range(2):
        await app.post(f"{path}?key=k1", "a", 202)
        assert await say.send(run["id"], "a", key="k1") is False
    await app.post(path, "end", 202)
    assert await result(app, run["id"]) == ["x", "a"]


async def test_a_signal_starts_its_run_and_finds_it_the_next_time(app: Live) -> None:
    path = "/workflows/rest_event_echo/signal-with-start"
    body = {"key": "sws", "input": {"word": "w"}, "signal": "rest_event_say", "value": "a"}
    first = await app.post(path, body, 201)
    second = await app.post(path, {**body, "value": "b"}, 200)
    assert first["id"] == second["id"]
    await app.post("/runs/key:sws/signals/rest_event_say", "end", 202)
    assert await result(app, first["id"]) == ["w", "a", "b"]
    third = await app.post(path, body, 201)
    assert third["id"] != first["id"]
    await app.post(path, {**body, "key": None}, 422)
    await app.post("/workflows/nobody/signal-with-start", body, 404)


async def test_the_same_over_grpc(dsn: str) -> None:
    async with remote_server(dsn) as s, worker(s.address), Client(s.address):
        wanted = await order.start(5)
        await waiting(dsn)
        assert await paid.emit({"order_id": 5}, key="e") is True
        assert await paid.emit({"order_id": 5}, key="e") is False
        assert await wanted.result("3m") == {"order_id": 5}
        run = await echo.options(key="grpc").signal_with_start(say, "a", "w")
        assert await say.send("key:grpc", "b", key="k") is True
        assert await say.send(run.id, "b", key="k") is False
        await say.send(run.id, "end")
        assert await run.result("3m") == ["w", "a", "b"]


async def test_an_event_starts_a_workflow_of_a_remote_worker(dsn: str) -> None:
    event = NamedEvent("rest.started", dict[str, int])
    async with remote_server(dsn) as s, worker(s.address), Client(s.address) as client:
        for n in (1, 2):
            await event.emit({"n": n})

        async def delivered() -> list[EventItem]:
            page = await client._backend.call(named_events.LIST, ListEvents("rest.started"))
            return page.items if all(e.done_us and not e.undecided for e in page.items) else []

        large, small = await until(delivered)
        assert (large.started, small.started) == (1, 0)
        run_id = large.starts[0].run_id
        assert run_id is not None
        assert await (await client.get(run_id.hex())).result("3m") == 2
