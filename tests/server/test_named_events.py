"""Events, webhooks and signals that start a run, through the doors of a server."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import httpx2
import pytest

from perdure import Client, NamedEvent, Signal, workflow
from perdure.core import webhooks
from perdure.core.errors import CannotOpenSecret, InvalidInput
from perdure.core.limits import WEBHOOK_BODY_BYTES_MAX, WEBHOOK_SKEW_S
from perdure.engine.api.named_events import NO_SECRET
from perdure.server.rest import webhooks as module
from perdure.server.secret_box import SecretBox, parse_keys
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
    return (await app.get(f"/runs/{run_id}/result", wait=30))["result"]


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
        assert await wanted.result("30s") == {"order_id": 5}
        run = await echo.options(key="grpc").signal_with_start(say, "a", "w")
        assert await say.send("key:grpc", "b", key="k") is True
        assert await say.send(run.id, "b", key="k") is False
        await say.send(run.id, "end")
        assert await run.result("30s") == ["w", "a", "b"]


# -- webhooks --------------------------------------------------------------------------------------------------------------


async def made(app: Live, name: str = "shop", event: str = "rest.paid") -> tuple[str, str]:
    """Where to send to, and the secret."""
    found = await app.ask("PUT", f"/webhooks/{name}", 201, json={"event": event})
    return found["url"], found["secret"]


async def send(
    url: str, secret: str, body: bytes = b'{"order_id": 1}', *, late_s: int = 0, header: str | None = None
) -> httpx2.Response:
    given = webhooks.header(secret.encode(), int(time.time()) + late_s, body) if header is None else header
    async with httpx2.AsyncClient() as http:
        return await http.post(url, content=body, headers={webhooks.HEADER: given} if given else {})


async def test_a_signed_request_becomes_the_event_once(app: Live, dsn: str) -> None:
    url, secret = await made(app)
    assert url == f"{app.url}/hooks/default/shop"
    run = await app.start("rest_event_order", input={"id": 1})
    await waiting(dsn)
    body = b'{ "order_id":1,\n "amount": 2.50 }'
    header = webhooks.header(secret.encode(), int(time.time()), body)
    answers = [await send(url, secret, body, header=header) for _ in range(3)]
    assert [a.status_code for a in answers] == [200, 200, 200]
    assert len({a.json()["id"] for a in answers}) == 1
    assert await result(app, run["id"]) == {"order_id": 1, "amount": 2.5}
    events = (await app.get("/events"))["items"]
    assert [(e["name"], e["source"]) for e in events] == [("rest.paid", "webhook:shop")]


async def test_what_is_not_signed_now_with_the_secret_is_refused_and_told_nothing(app: Live) -> None:
    url, secret = await made(app)
    now = int(time.time())
    other = webhooks.header(b"another", now, b'{"order_id": 1}')
    answers = [
        await send(url, secret, header=""),
        await send(url, secret, header="t=1,v1=nonsense"),
        await send(url, secret, header=other),
        await send(url, secret, late_s=-WEBHOOK_SKEW_S - 5),
        await send(url, secret, late_s=WEBHOOK_SKEW_S + 5),
        await send(url, secret, b"{}", header=webhooks.header(secret.encode(), now, b"{ }")),
        await send(url, secret, b"not json", header=other),
        await send(f"{app.url}/hooks/default/nobody", secret),
        await send(f"{app.url}/hooks/nowhere/shop", secret),
    ]
    assert [a.status_code for a in answers] == [404] * len(answers)
    bodies = [{k: v for k, v in a.json().items() if k != "instance"} for a in answers]
    assert all(b == bodies[0] for b in bodies)
    assert (await app.get("/events"))["items"] == []


async def test_only_a_signed_body_is_read_and_it_has_to_be_json(app: Live) -> None:
    url, secret = await made(app)
    for body, status in (
        (b"not json", 422),
        (b"[1, NaN]", 422),
        (b'"\\u0000"', 422),
        (b"[" * 100 + b"]" * 100, 422),
        (b'"' + b"x" * WEBHOOK_BODY_BYTES_MAX + b'"', 413),
        (b"", 200),
        (b"5", 200),
    ):
        assert (await send(url, secret, body)).status_code == status, body[:20]
    assert [e["payload"] for e in (await app.get("/events"))["items"]] == [5, None]


async def test_a_secret_is_shown_once_and_ends_when_it_is_replaced(app: Live, dsn: str) -> None:
    url, secret = await made(app)
    again = await app.ask("PUT", "/webhooks/shop", 200, json={"event": "rest.changed"})
    assert again["secret"] is None
    assert (await send(url, secret)).json()["event"] == "rest.changed"
    listed = await app.get("/webhooks")
    assert [w["name"] for w in listed["items"]] == ["shop"]
    assert "secret" not in json.dumps(listed)
    fresh = (await app.post("/webhooks/shop/rotate", status=200))["secret"]
    assert (await send(url, secret)).status_code == 404
    assert (await send(url, fresh)).status_code == 200
    await app.ask("DELETE", "/webhooks/shop", 204)
    assert (await send(url, fresh)).status_code == 404
    await app.ask("DELETE", "/webhooks/shop", 404)
    await app.post("/webhooks/shop/rotate", status=404)
    audit = (await app.get("/audit"))["items"]
    assert secret not in json.dumps(audit) and fresh not in json.dumps(audit)
    assert {a["action"] for a in audit} >= {"webhook.put", "webhook.rotate", "webhook.delete"}


async def test_a_webhook_without_a_secret_lets_nobody_in(app: Live, dsn: str) -> None:
    url, _ = await made(app)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("update perdure.webhook set secret = ''")
    finally:
        await connection.close()
    assert (await send(url, "")).status_code == 404
    assert (await send(url, NO_SECRET.decode())).status_code == 404


async def test_guessing_is_slowed_down_and_keeps_no_valid_sender_out(
    app: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFUSALS_PER_S", 0.001)
    monkeypatch.setattr(module, "REFUSALS_BURST", 5.0)
    url, secret = await made(app)
    assert [(await send(url, "wrong")).status_code for _ in range(7)] == [404] * 5 + [429] * 2
    assert (await send(url, secret)).status_code == 200, "from the very address that guesses"
    assert (await send(url, "wrong")).status_code == 429
    other, _ = await made(app, "other")
    assert (await send(other, "wrong")).status_code == 429, "the address goes on with another webhook"


@pytest.mark.parametrize("name", ["a b", "a/b", "é", "x" * 101])
async def test_names_of_webhooks_fit_into_an_address(app: Live, name: str) -> None:
    answer = await app.http.put(f"/webhooks/{name}", json={"event": "e"})
    assert answer.status_code in (404, 405, 422)


# -- how secrets are kept ---------------------------------------------------------------------------------------------------


async def stored(dsn: str, statement: str = "select secret from perdure.webhook", *values: Any) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement, *values)
    finally:
        await connection.close()


def use_keys(app: Live, box: SecretBox) -> None:
    """From now on the server seals and opens secrets with these."""
    app.server.api.ports = replace(app.server.api.ports, secrets=box)


async def test_the_database_has_no_secret_in_the_clear(app: Live, dsn: str) -> None:
    url, secret = await made(app)
    sealed = await stored(dsn)
    assert secret.encode() not in sealed and b"pdh_" not in sealed
    assert app.server.api.ports.secrets.open(sealed, "webhook shop of namespace 1") == secret.encode()
    assert (await send(url, secret)).status_code == 200


async def test_keys_are_replaced_without_new_secrets(app: Live, dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    old, new = bytes(32), bytes([1]) * 32
    url, secret = await made(app)
    use_keys(app, SecretBox([new, old]))
    assert (await send(url, secret)).status_code == 200
    fresh = (await app.post("/webhooks/shop/rotate", status=200))["secret"]
    use_keys(app, SecretBox([new]))
    assert (await send(url, fresh)).status_code == 200
    use_keys(app, SecretBox([old]))
    assert (await send(url, fresh)).status_code == 404
    assert any("sealed with another key" in r.getMessage() for r in caplog.records)


async def test_a_secret_from_before_there_was_a_key_works_until_it_is_replaced(app: Live, dsn: str) -> None:
    url, _ = await made(app)
    await stored(dsn, "update perdure.webhook set secret = $1", b"pdh_old")
    assert (await send(url, "pdh_old")).status_code == 200


async def test_without_a_key_no_secret_is_kept(app: Live) -> None:
    use_keys(app, SecretBox())
    answer = await app.http.put("/webhooks/shop", json={"event": "e"})
    assert (answer.status_code, answer.json()["code"]) == (409, "no_secret_key")
    assert "PERDURE_SECRET_KEY_FILE" in answer.json()["detail"]
    assert (await app.get("/webhooks"))["items"] == []


def test_a_sealed_secret_opens_for_its_owner_alone() -> None:
    box = SecretBox([bytes(32)])
    sealed = box.seal(b"words", "one")
    assert box.seal(b"words", "one") != sealed and box.open(sealed, "one") == b"words"
    for changed, owner in ((sealed, "two"), (sealed[:-1] + bytes([sealed[-1] ^ 1]), "one"), (sealed[:10], "one")):
        with pytest.raises(CannotOpenSecret):
            box.open(changed, owner)


def test_keys_are_32_bytes_in_base64() -> None:
    one = base64.b64encode(bytes(32)).decode()
    assert parse_keys(f"{one}\n") == (bytes(32),)
    assert len(parse_keys(f"{one},{base64.urlsafe_b64encode(bytes([255]) * 32).decode()}")) == 2
    for wrong in ("", "short", base64.b64encode(bytes(16)).decode(), "!" * 44):
        with pytest.raises(InvalidInput):
            parse_keys(wrong)
