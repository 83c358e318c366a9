"""Webhooks through the door of a server: requests as providers sign them, and how their secrets are kept."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import httpx2
import pytest
from standardwebhooks import Webhook

from perdure import NamedEvent, workflow
from perdure.app.secret_box import SecretBox, parse_keys
from perdure.core.errors import CannotOpenSecret, InvalidInput
from perdure.core.limits import WEBHOOK_BODY_BYTES_MAX, WEBHOOK_SKEW_S
from perdure.engine.api.webhooks import NO_SECRET
from perdure.server.rest import webhooks as module
from tests.core.test_webhooks import GITHUB_VECTOR, SLACK_VECTOR, STANDARD_VECTOR
from tests.fakes.waiting import until
from tests.server.rest_live import Live, live
from tests.server.test_named_events import waiting

paid = NamedEvent("hook.paid", dict[str, Any])


@workflow(name="rest_hook_order")
async def order(id: int) -> Any:
    return await paid.wait("event.order_id == input.id")


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[Live]:
    async with live(dsn) as one:
        one.perdure._backend.adopt(order)
        await one.perdure.engine.refresh()
        yield one


async def made(app: Live, name: str = "shop", event: str = "hook.paid") -> tuple[str, str]:
    """Where to send to, and the secret."""
    found = await app.ask("PUT", f"/webhooks/{name}", 201, json={"event": event})
    return found["url"], found["secret"]


def signed(secret: str, body: bytes, *, late_s: int = 0, ident: str = "") -> dict[str, str]:
    """As the package of Standard Webhooks signs."""
    at = datetime.fromtimestamp(int(time.time()) + late_s, UTC)
    ident = ident or f"msg_{time.monotonic_ns()}"
    signature = Webhook(secret).sign(ident, at, body.decode())
    return {"webhook-id": ident, "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}


async def post(url: str, body: bytes, headers: dict[str, str]) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=120) as http:
        return await http.post(url, content=body, headers=headers)


async def send(url: str, secret: str, body: bytes = b'{"order_id": 1}', *, late_s: int = 0) -> httpx2.Response:
    return await post(url, body, signed(secret, body, late_s=late_s))


WRONG = "whsec_" + base64.b64encode(b"another secret, of another sender").decode()


async def events(app: Live) -> list[Any]:
    return [(e["name"], e["payload"]) for e in (await app.get("/events"))["items"]]


async def test_a_signed_request_becomes_the_event_once(app: Live, dsn: str) -> None:
    url, secret = await made(app)
    assert url == f"{app.url}/hooks/default/shop" and secret.startswith("whsec_")
    run = await app.start("rest_hook_order", input={"id": 1})
    await waiting(dsn)
    body = b'{ "order_id":1,\n "amount": 2.50 }'
    # A provider that gets no answer signs again, with another time and the same id.
    answers = [await post(url, body, signed(secret, body, late_s=-late, ident="msg_1")) for late in range(3)]
    assert [a.status_code for a in answers] == [200, 200, 200]
    assert len({a.json()["id"] for a in answers}) == 1
    result = (await app.get(f"/runs/{run['id']}/result", wait=60))["result"]
    assert result == {"order_id": 1, "amount": 2.5}
    found = (await app.get("/events"))["items"]
    assert [(e["name"], e["source"], e["key"]) for e in found] == [("hook.paid", "webhook:shop", "hook:shop:msg_1")]


async def test_what_is_not_signed_now_with_the_secret_is_refused_and_told_nothing(app: Live) -> None:
    url, secret = await made(app)
    body = b'{"order_id": 1}'
    right = signed(secret, body)
    answers = [
        await post(url, body, {}),
        await post(url, body, {**right, "webhook-signature": "nonsense"}),
        await post(url, body, {**right, "webhook-id": "msg_other"}),
        await post(url, body, {**right, "webhook-timestamp": str(int(right["webhook-timestamp"]) + 1)}),
        *[await post(url, body, {k: v for k, v in right.items() if k != name}) for name in right],
        await send(url, WRONG),
        await send(url, secret, late_s=-WEBHOOK_SKEW_S - 5),
        await send(url, secret, late_s=WEBHOOK_SKEW_S + 5),
        await post(url, b'{"order_id": 2}', right),
        await post(url, b"not json", signed(WRONG, b"not json")),
        await send(f"{app.url}/hooks/default/nobody", secret),
        await send(f"{app.url}/hooks/nowhere/shop", secret),
    ]
    assert [a.status_code for a in answers] == [404] * len(answers)
    bodies = [{k: v for k, v in a.json().items() if k != "instance"} for a in answers]
    assert all(b == bodies[0] for b in bodies)
    assert await events(app) == []


async def test_a_header_that_comes_twice_is_no_signature(app: Live) -> None:
    url, secret = await made(app)
    twice = [*signed(secret, b"1").items(), ("webhook-signature", "v1,AAAA")]
    async with httpx2.AsyncClient(timeout=120) as http:
        assert (await http.post(url, content=b"1", headers=twice)).status_code == 404


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
    assert [payload for _, payload in await events(app)] == [5, None]


async def test_a_secret_is_shown_once_and_ends_when_it_is_replaced(app: Live) -> None:
    url, secret = await made(app)
    again = await app.ask("PUT", "/webhooks/shop", 200, json={"event": "hook.changed"})
    assert again["secret"] is None
    assert (await send(url, secret)).json()["event"] == "hook.changed"
    listed = await app.get("/webhooks")
    assert [w["name"] for w in listed["items"]] == ["shop"]
    assert secret not in json.dumps(listed)
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


async def test_an_old_secret_stays_valid_for_as_long_as_was_said(app: Live, dsn: str) -> None:
    url, first = await made(app)
    rotated = await app.post("/webhooks/shop/rotate", {"keep_old": "24h"}, 200)
    second = rotated["secret"]
    assert rotated["old_secret_until"] is not None
    assert [(await send(url, s)).status_code for s in (first, second, WRONG)] == [200, 200, 404]
    third = (await app.post("/webhooks/shop/rotate", {"keep_old": 60}, 200))["secret"]
    assert [(await send(url, s)).status_code for s in (first, second, third)] == [404, 200, 200], "two at most"
    await stored(dsn, "update perdure.webhook set old_until = now() - interval '1 second'")
    assert [(await send(url, s)).status_code for s in (second, third)] == [404, 200]
    assert (await app.get("/webhooks"))["items"][0]["old_secret_until"] is None
    await app.post("/webhooks/shop/rotate", {"keep_old": "31d"}, 422)


async def test_a_webhook_without_a_secret_lets_nothing_in(app: Live, dsn: str) -> None:
    url, _ = await made(app)
    await stored(dsn, "update perdure.webhook set secret = ''")
    assert (await send(url, NO_SECRET.decode())).status_code == 404


async def test_guessing_is_slowed_down_and_keeps_no_valid_sender_out(
    app: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFUSALS_PER_S", 0.001)
    monkeypatch.setattr(module, "REFUSALS_BURST", 5.0)
    url, secret = await made(app)
    assert [(await send(url, WRONG)).status_code for _ in range(7)] == [404] * 5 + [429] * 2
    assert (await send(url, secret)).status_code == 200, "from the very address that guesses"
    assert (await send(url, WRONG)).status_code == 429
    other, _ = await made(app, "other")
    assert (await send(other, WRONG)).status_code == 429, "the address goes on with another webhook"


@pytest.mark.parametrize("name", ["a b", "a/b", "é", "x" * 101])
async def test_names_of_webhooks_fit_into_an_address(app: Live, name: str) -> None:
    answer = await app.http.put(f"/webhooks/{name}", json={"event": "e"})
    assert answer.status_code in (404, 405, 422)


# -- providers ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Delivery:
    """A request of a provider, signed now, and what is to become of it."""

    scheme: dict[str, Any]
    secret: str
    headers: dict[str, str]
    body: bytes
    event: str
    payload: Any
    key: str


def mac(secret: str, message: bytes) -> str:
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def github(body: bytes = b'{"ref": "refs/heads/main"}', event: str = "push", delivery: str = "72d3162e") -> Delivery:
    secret = GITHUB_VECTOR.secret.decode()
    headers = {
        "X-Hub-Signature-256": f"sha256={mac(secret, body)}",
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": delivery,
        "Content-Type": "application/json",
    }
    return Delivery(
        {"scheme": "github"}, secret, headers, body, f"github.{event}", json.loads(body), f"hook:p:{delivery}"
    )


def stripe() -> Delivery:
    body, at, secret = b'{"id": "evt_1", "type": "invoice.paid"}', int(time.time()), "whsec_test_secret"
    headers = {"Stripe-Signature": f"t={at},v1={mac(secret, b'%d.%b' % (at, body))},v0={'0' * 64}"}
    payload = {"id": "evt_1", "type": "invoice.paid"}
    return Delivery({"scheme": "stripe"}, secret, headers, body, "stripe.invoice.paid", payload, "hook:p:evt_1")


def slack() -> Delivery:
    body, at, secret = SLACK_VECTOR.body, int(time.time()), SLACK_VECTOR.secret.decode()
    headers = {
        "X-Slack-Request-Timestamp": str(at),
        "X-Slack-Signature": f"v0={mac(secret, b'v0:%d:%b' % (at, body))}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    payload = {
        "token": "xyzz0WbapA4vBCDEFasx0q6G",
        "team_id": "T1DC2JH3J",
        "team_domain": "testteamnow",
        "channel_id": "G8PSS9T3V",
        "channel_name": "foobar",
        "user_id": "U2CERLKJA",
        "user_name": "roadrunner",
        "command": "/webhook-collect",
        "text": "",
        "response_url": "https://hooks.slack.com/commands/T1DC2JH3J/397700885554/96rGlfmibIGlgcZRskXaIFfN",
        "trigger_id": "398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
    }
    return Delivery(
        {"scheme": "slack"}, secret, headers, body, "slack.command", payload, f"hook:p:{payload['trigger_id']}"
    )


def standard() -> Delivery:
    secret, body = STANDARD_VECTOR.secret.decode(), b'{"type": "user.created"}'
    headers = signed(secret, body, ident="msg_1")
    return Delivery(
        {"scheme": "standard"}, secret, headers, body, "p.user.created", {"type": "user.created"}, "hook:p:msg_1"
    )


def generic() -> Delivery:
    secret, body = "hush hush", b'{"n": 1}'
    digest = base64.b64encode(hmac.digest(secret.encode(), body, "sha512")).decode()
    scheme = {
        "header": "X-Sign",
        "algorithm": "sha512",
        "prefix": "mac ",
        "encoding": "base64",
        "event": "${ body.n > 0 ? 'more' : 'less' }",
    }
    key = hashlib.sha256(body).hexdigest()
    return Delivery(
        {"scheme": "hmac", **scheme}, secret, {"X-Sign": f"mac {digest}"}, body, "more", {"n": 1}, f"hook:p:{key}"
    )


deliveries = pytest.mark.parametrize("make", [standard, github, stripe, slack, generic], ids=lambda make: make.__name__)


async def hooked(app: Live, sent: Delivery) -> str:
    found = await app.ask("PUT", "/webhooks/p", 201, json={**sent.scheme, "secret": sent.secret})
    assert found["secret"] is None, "one that was given is not shown"
    return str(found["url"])


@deliveries
async def test_a_provider_is_accepted_and_a_repeated_delivery_is_one_event(app: Live, make: Any) -> None:
    sent: Delivery = make()
    url = await hooked(app, sent)
    assert [(await post(url, sent.body, sent.headers)).status_code for _ in range(2)] == [200, 200]
    found = (await app.get("/events"))["items"]
    assert [(e["name"], e["payload"], e["key"]) for e in found] == [(sent.event, sent.payload, sent.key)]


@deliveries
async def test_every_tampered_request_of_a_provider_is_refused(app: Live, make: Any) -> None:
    sent: Delivery = make()
    url = await hooked(app, sent)
    unsigned = {"x-github-event", "x-github-delivery", "content-type"}
    names = [name for name in sent.headers if name.lower() not in unsigned]
    tampered = [
        await post(url, sent.body + b" ", sent.headers),
        await post(url, b"x" + sent.body[1:], sent.headers),
        *[await post(url, sent.body, {k: v for k, v in sent.headers.items() if k != name}) for name in names],
        *[await post(url, sent.body, {**sent.headers, name: "x" + sent.headers[name]}) for name in names],
    ]
    assert [a.status_code for a in tampered] == [404] * len(tampered)
    assert "signed for it now" in tampered[0].text and len({a.json()["detail"] for a in tampered}) == 1
    await app.post("/webhooks/p/rotate", {"secret": WRONG}, 200)
    assert (await post(url, sent.body, sent.headers)).status_code == 404
    assert await events(app) == []


async def test_the_vector_of_github_reaches_the_body_that_is_not_json(app: Live) -> None:
    """It is signed, so the answer may say what is wrong with it."""
    url = await hooked(app, github())
    answer = await post(url, GITHUB_VECTOR.body, {**GITHUB_VECTOR.headers, "X-GitHub-Event": "push"})
    assert answer.status_code == 422 and "not JSON" in answer.json()["detail"]


async def test_slack_gets_its_challenge_back(app: Live) -> None:
    url = await hooked(app, slack())
    body, at = b'{"type": "url_verification", "challenge": "3eZbrw1aBm2rZgRNFdxV"}', int(time.time())
    secret = SLACK_VECTOR.secret.decode()
    headers = {"X-Slack-Request-Timestamp": str(at), "X-Slack-Signature": f"v0={mac(secret, b'v0:%d:%b' % (at, body))}"}
    answer = await post(url, body, headers)
    assert (answer.status_code, answer.json()) == (200, {"challenge": "3eZbrw1aBm2rZgRNFdxV"})
    assert (await post(url, body + b" ", headers)).status_code == 404
    assert await events(app) == []


async def test_a_form_with_json_in_it_is_that_json(app: Live) -> None:
    sent = github()
    url = await hooked(app, sent)
    body = b"payload=%7B%22ref%22%3A%20%22x%22%7D"
    headers = {**github(b"{}").headers, "Content-Type": "application/x-www-form-urlencoded"}
    headers["X-Hub-Signature-256"] = f"sha256={mac(sent.secret, body)}"
    assert (await post(url, body, headers)).status_code == 200
    assert await events(app) == [("github.push", {"ref": "x"})]


async def test_a_request_that_says_no_event_is_refused_though_it_is_signed(app: Live) -> None:
    sent = github()
    url = await hooked(app, sent)
    without = {k: v for k, v in sent.headers.items() if k != "X-GitHub-Event"}
    assert (await post(url, sent.body, without)).status_code == 422
    assert await events(app) == []


async def test_what_a_webhook_needs_is_said_when_it_is_created(app: Live) -> None:
    for body, word in (
        ({"scheme": "stripe"}, "chooses the secret itself"),
        ({"scheme": "hmac", "event": "e"}, "header"),
        ({"scheme": "hmac", "header": "X-Sign"}, "needs the name of its event"),
        ({"scheme": "github", "header": "X-Sign"}, "belong to the scheme hmac"),
        ({"event": "e.${ input.x }"}, "unknown name"),
        ({"key": "body."}, "key"),
        ({"secret": "short"}, "characters"),
        ({"secret": "whsec_!!!!!!!!"}, "base64"),
    ):
        answer = await app.http.put("/webhooks/p", json=body)
        assert answer.status_code == 422 and word in answer.json()["detail"], answer.text
    assert (await app.get("/webhooks"))["items"] == []
    await hooked(app, stripe())
    changed = await app.ask("PUT", "/webhooks/p", 200, json={"scheme": "stripe", "event": "paid"})
    assert (changed["event"], changed["secret"]) == ("paid", None)
    await app.ask("PUT", "/webhooks/p", 422, json={"scheme": "github"})
    await app.post("/webhooks/p/rotate", {}, 422)


async def test_a_push_of_github_starts_a_flow_once_though_its_delivery_is_repeated(app: Live, dsn: str) -> None:
    flow = """
flow: on-push
on: {event: github.push, match: 'event.ref == "refs/heads/main"'}
input: {ref: {type: string}}
tasks:
  note: {value: "pushed ${ input.ref }"}
"""
    await app.post("/workflows/deploy", {"source": flow}, 201)
    shown = await app.get("/workflows/on-push")
    assert [(s["event"], s["match"]) for s in shown["on"]] == [("github.push", 'event.ref == "refs/heads/main"')]
    sent = github(b'{"ref": "refs/heads/main", "pusher": {"name": "ada"}}')
    url = await hooked(app, sent)
    answers = [await post(url, sent.body, sent.headers) for _ in range(3)]
    assert [a.status_code for a in answers] == [200] * 3 and len({a.json()["id"] for a in answers}) == 1
    other = github(b'{"ref": "refs/heads/draft"}', delivery="2")
    assert (await post(url, other.body, other.headers)).status_code == 200

    async def delivered() -> list[Any]:
        found = (await app.get("/events", name="github.push"))["items"]
        return found if all(e["is_done"] for e in found) else []

    draft, main = await until(delivered)
    assert (draft["started"], draft["starts"]) == (0, [])
    assert (main["started"], main["failed"], main["starts"][0]["outcome"]) == (1, 0, "started")
    result = (await app.get(f"/runs/{main['starts'][0]['run_id']}/result", wait=60))["result"]
    assert result == {"note": "pushed refs/heads/main"}
    runs = (await app.get("/runs", workflow="on-push"))["items"]
    assert [r["id"] for r in runs] == [main["starts"][0]["run_id"]]


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
    assert secret.encode() not in sealed and b"whsec_" not in sealed
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
    await stored(dsn, "update perdure.webhook set secret = $1", b"whsec_cGRoX29sZA==")
    assert (await send(url, "whsec_cGRoX29sZA==")).status_code == 200


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
