"""Webhooks that send a signal to one run: by its key, buffered, started if absent, once for each delivery."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure import Signal, wf, workflow
from perdure.core.limits import PAYLOAD_BYTES_MAX, WEBHOOK_BODY_BYTES_MAX
from perdure.store.sql_requests import PostgresSqlRequests
from tests.fakes.waiting import until
from tests.server.rest_live import Live, live
from tests.server.test_webhooks import github, post, signed

paid = Signal("hooked_paid", Any)
ship = Signal("hooked_ship", str)


@workflow(name="hooked_order")
async def order(id: int = 0, count: int = 1) -> Any:
    return [id, *[await paid.next() for _ in range(count)]]


@workflow(name="hooked_late")
async def late() -> Any:
    """Its wait for the payment begins after something else has come."""
    return [await ship.next(), await paid.next()]


@workflow(name="hooked_first")
async def first() -> Any:
    """Goes on as another run after its first payment."""
    got = await paid.next()
    if got == 1:
        wf.continue_as_new()
    return got


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[Live]:
    async with live(dsn) as one:
        for each in (order, late, first):
            one.perdure._backend.adopt(each)
        await one.perdure.engine.refresh()
        yield one


ORDER = {"signal": "hooked_paid", "run": "key:order-${ body.order_id }"}
STARTS = {**ORDER, "start": "hooked_order", "input": "{id: body.order_id}"}


async def made(app: Live, **body: Any) -> tuple[str, str]:
    found = await app.ask("PUT", "/webhooks/shop", 201, json=body)
    return found["url"], found["secret"]


async def delivered(url: str, secret: str, body: Any, ident: str = "") -> tuple[int, dict[str, Any]]:
    data = json.dumps(body).encode()
    answer = await post(url, data, signed(secret, data, ident=ident))
    return answer.status_code, answer.json()


async def result(app: Live, run: str) -> Any:
    return (await app.get(f"/runs/{run}/result", wait=60))["result"]


async def test_a_signed_request_reaches_the_run_under_its_key(app: Live) -> None:
    url, secret = await made(app, **ORDER)
    run = await app.start("hooked_order", input={"id": 1}, key="order-1")
    body = {"order_id": 1, "amount": 2.5}
    assert await delivered(url, secret, body) == (202, {"run_id": run["id"], "signal": "hooked_paid"})
    assert await result(app, run["id"]) == [1, body]
    assert (await app.get("/events"))["items"] == []
    (line,) = [a for a in (await app.get("/audit"))["items"] if a["action"] == "run.signal"]
    assert (line["actor"], line["target"]) == ("webhook:shop", run["id"])


async def test_what_comes_before_the_run_waits_is_kept_for_it(app: Live) -> None:
    url, secret = await made(app, **ORDER, value="body.amount")
    run = await app.start("hooked_late", key="order-1")
    assert (await delivered(url, secret, {"order_id": 1, "amount": 2}))[0] == 202
    await app.ask("POST", f"/runs/{run['id']}/signals/hooked_ship", 202, json="now")
    assert await result(app, run["id"]) == ["now", 2]


async def test_a_repeated_delivery_counts_once(app: Live) -> None:
    url, secret = await made(app, **ORDER, value="body.n")
    run = await app.start("hooked_order", input={"count": 2}, key="order-1")
    same = [await delivered(url, secret, {"order_id": 1, "n": 1}, "msg_1") for _ in range(3)]
    assert same == [(202, {"run_id": run["id"], "signal": "hooked_paid"})] * 3
    assert (await delivered(url, secret, {"order_id": 1, "n": 2}, "msg_2"))[0] == 202
    assert await result(app, run["id"]) == [0, 1, 2]
    # The answer was lost and the run has ended meanwhile.
    assert await delivered(url, secret, {"order_id": 1, "n": 2}, "msg_2") == same[0]
    status, answer = await delivered(url, secret, {"order_id": 1, "n": 3}, "msg_3")
    assert (status, answer["code"]) == (409, "run_finished")


async def test_the_run_is_started_if_none_is_active_under_its_key(app: Live) -> None:
    url, secret = await made(app, **STARTS)
    status, answer = await delivered(url, secret, {"order_id": 7}, "msg_1")
    assert status == 202
    assert await result(app, answer["run_id"]) == [7, {"order_id": 7}]
    assert (await app.get(f"/runs/{answer['run_id']}"))["key"] == "order-7"
    # It has ended: the delivery that it was started by has no second effect, and the next one starts another run.
    assert await delivered(url, secret, {"order_id": 7}, "msg_1") == (202, answer)
    _, other = await delivered(url, secret, {"order_id": 7}, "msg_2")
    assert other["run_id"] != answer["run_id"]
    # The key belongs to another run by now.
    assert await delivered(url, secret, {"order_id": 7}, "msg_1") == (202, answer)
    assert await result(app, other["run_id"]) == [7, {"order_id": 7}]
    assert len((await app.get("/runs"))["items"]) == 2


async def test_deliveries_at_the_same_moment_start_one_run(app: Live) -> None:
    url, secret = await made(app, **{**STARTS, "input": "{count: 3}"}, value="body.n")
    bodies = [{"order_id": 1, "n": n} for n in range(3) for _ in range(3)]
    answers = await asyncio.gather(*(delivered(url, secret, b, f"msg_{b['n']}") for b in bodies))
    assert {status for status, _ in answers} == {202}
    (run,) = {answer["run_id"] for _, answer in answers}
    assert sorted(await result(app, run)) == [0, 0, 1, 2]


async def test_a_repeated_delivery_counts_once_for_a_run_that_went_on_as_another(app: Live) -> None:
    url, secret = await made(app, signal="hooked_paid", run="key:first", value="body")
    run = await app.start("hooked_first", key="first")
    assert (await delivered(url, secret, 1, "msg_1"))[0] == 202

    async def went_on() -> bool:
        return bool((await app.get(f"/runs/{run['id']}"))["finished_at"])

    await until(went_on)
    assert (await delivered(url, secret, 1, "msg_1"))[0] == 202
    assert (await delivered(url, secret, 2, "msg_2"))[0] == 202
    assert await result(app, run["id"]) == 2


async def test_a_delivery_whose_start_never_came_is_carried_out_when_it_is_sent_again(app: Live, dsn: str) -> None:
    """The engine died after it had written the key of the message, and before it started the run."""
    url, secret = await made(app, **STARTS)
    connection = await asyncpg.connect(dsn)
    await connection.execute("insert into perdure.message_key (run_id, key) values (gen_random_uuid(), 'hook:shop:m1')")
    await connection.close()
    status, answer = await delivered(url, secret, {"order_id": 1}, "m1")
    assert status == 202
    assert await result(app, answer["run_id"]) == [1, {"order_id": 1}]


async def test_a_run_that_does_not_exist_yet_makes_the_sender_try_again(app: Live) -> None:
    url, secret = await made(app, **ORDER)
    status, answer = await delivered(url, secret, {"order_id": 1}, "msg_1")
    assert (status, answer["code"]) == (503, "unavailable")
    assert "no run was started under the key 'order-1'" in answer["detail"] and "Send this delivery" in answer["detail"]
    run = await app.start("hooked_order", key="order-1")
    assert (await delivered(url, secret, {"order_id": 1}, "msg_1"))[0] == 202
    assert await result(app, run["id"]) == [0, {"order_id": 1}]


async def test_a_workflow_that_is_not_there_yet_makes_the_sender_try_again(app: Live) -> None:
    url, secret = await made(app, **{**STARTS, "start": "hooked_ordr"})
    status, answer = await delivered(url, secret, {"order_id": 1})
    assert status == 503 and "did you mean 'hooked_order'" in answer["detail"]


async def test_a_request_that_cannot_become_the_signal_is_refused(app: Live, dsn: str) -> None:
    url, secret = await made(app, **STARTS, value="1 / body.zero")
    run = await app.start("hooked_order", key="order-1")
    for body, text in (
        ({"zero": 1}, "no value for its run"),
        ({"order_id": "a\nb", "zero": 1}, "invalid key name"),
        ({"order_id": 1, "zero": 0}, "division by zero"),
    ):
        status, answer = await delivered(url, secret, body)
        assert (status, answer["code"]) == (422, "invalid_input") and text in answer["detail"]
    assert await inbox(dsn) == 0
    assert (await app.get(f"/runs/{run['id']}"))["status"] != "success"


async def test_a_payload_is_refused_in_the_words_of_the_other_doors(app: Live) -> None:
    assert WEBHOOK_BODY_BYTES_MAX <= PAYLOAD_BYTES_MAX, "no body is too large for a signal"
    url, secret = await made(app, **{**STARTS, "input": "{nobody: 1}"})
    status, answer = await delivered(url, secret, {"order_id": 1})
    body = {"signal": "hooked_paid", "key": "order-1", "input": {"nobody": 1}}
    other = await app.post("/workflows/hooked_order/signal-with-start", body, status)
    assert (status, answer["detail"], answer["code"]) == (422, other["detail"], other["code"])
    assert "nobody" in answer["detail"]


async def inbox(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        count: int = await connection.fetchval("select count(*) from perdure.inbox")
        return count
    finally:
        await connection.close()


async def test_a_wrong_signature_reaches_no_run(app: Live, dsn: str) -> None:
    url, _ = await made(app, **STARTS)
    _, other = await made_other(app)
    assert (await delivered(url, other, {"order_id": 1}))[0] == 404
    assert await inbox(dsn) == 0 and (await app.get("/runs"))["items"] == []


async def made_other(app: Live) -> tuple[str, str]:
    found = await app.ask("PUT", "/webhooks/other", 201, json=ORDER)
    return found["url"], found["secret"]


async def test_a_provider_has_its_own_key_for_deliveries(app: Live, dsn: str) -> None:
    push = github(b'{"repository": {"name": "site"}}')
    body = {**push.scheme, "secret": push.secret, "signal": "hooked_paid", "run": "key:repo-${ body.repository.name }"}
    found = await app.ask("PUT", "/webhooks/p", 201, json={**body, "start": "hooked_order"})
    answers = [await post(found["url"], push.body, push.headers) for _ in range(2)]
    assert [a.status_code for a in answers] == [202, 202] and answers[0].json() == answers[1].json()
    connection = await asyncpg.connect(dsn)
    keys = await connection.fetch("select key from perdure.message_key")
    await connection.close()
    assert keys == [(push.key,)]


async def test_a_webhook_shows_its_signal_and_can_be_changed(app: Live) -> None:
    await made(app, **STARTS)
    (shown,) = (await app.get("/webhooks"))["items"]
    assert {name: shown[name] for name in ("event", "value", *STARTS)} == {"event": None, "value": None, **STARTS}
    changed = await app.ask("PUT", "/webhooks/shop", 200, json={"event": "order.paid"})
    assert (changed["event"], changed["signal"], changed["run"], changed["start"]) == ("order.paid", None, None, None)
    rotated = await app.post("/webhooks/shop/rotate", status=200)
    assert rotated["event"] == "order.paid"
    audit = [a["detail"] for a in (await app.get("/audit"))["items"] if a["action"] == "webhook.put"]
    assert {"scheme": "standard", "value": "", **STARTS} in audit


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({**ORDER, "event": "order.paid"}, "an event or a signal, not both"),
        ({"signal": "paid"}, "needs a run"),
        ({"run": "key:1"}, "describe a signal"),
        ({"event": "e", "start": "w"}, "not both"),
        ({**ORDER, "run": "key:${ nothing }"}, "unknown name 'nothing'"),
        ({**ORDER, "input": "body"}, "only a started run"),
        ({**STARTS, "run": "${ body.run }"}, "only under a key"),
    ],
)
async def test_a_target_that_cannot_work_is_refused(app: Live, body: dict[str, str], text: str) -> None:
    answer = await app.ask("PUT", "/webhooks/shop", 422, json=body)
    assert text in answer["detail"]
    assert (await app.get("/webhooks"))["items"] == []


async def test_a_run_that_a_transaction_has_asked_for_gets_its_signal(
    app: Live, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before an engine comes to its start by itself."""

    async def nothing(self: PostgresSqlRequests, limit: int) -> list[Any]:
        return []

    monkeypatch.setattr(PostgresSqlRequests, "take", nothing)
    connection = await asyncpg.connect(dsn)
    await connection.execute("""select perdure.start('hooked_order', '{"id": 3}', 'order-1')""")
    await connection.execute("""select perdure.start('hooked_order', '{"id": 4}', 'order-2')""")
    await connection.close()
    for order, body in ((1, ORDER), (2, STARTS)):
        found = await app.ask("PUT", f"/webhooks/shop-{order}", 201, json=body)
        status, answer = await delivered(found["url"], found["secret"], {"order_id": order})
        assert status == 202
        assert await result(app, answer["run_id"]) == [order + 2, {"order_id": order}]
