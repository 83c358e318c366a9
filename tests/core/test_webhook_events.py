"""The name and the key of the event that a request of a webhook becomes."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core import webhook_events as w
from perdure.core.errors import InvalidInput
from perdure.core.limits import MESSAGE_KEY_CHARS_MAX
from perdure.core.webhooks import GITHUB, HMAC, SLACK, STANDARD, STRIPE, SignatureScheme


def told(kind: str, body: Any, headers: dict[str, str] | None = None) -> tuple[str, str]:
    scheme = SignatureScheme(kind, "x-sign" if kind == HMAC else "")
    request = {"body": body, "headers": headers or {}}
    found = w.event_of("shop", w.default_event(scheme, "shop"), w.default_key(scheme), request, "print")
    return found.name, found.key


def test_providers_say_name_and_key_in_their_own_places() -> None:
    github = {"x-github-event": "push", "x-github-delivery": "72d3162e"}
    assert told(GITHUB, {}, github) == ("github.push", "hook:shop:72d3162e")
    assert told(STRIPE, {"type": "invoice.paid", "id": "evt_1"}) == ("stripe.invoice.paid", "hook:shop:evt_1")
    event = {"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention"}}
    assert told(SLACK, event) == ("slack.app_mention", "hook:shop:Ev1")
    assert told(SLACK, {"type": "block_actions", "trigger_id": "12.7"}) == ("slack.block_actions", "hook:shop:12.7")
    assert told(SLACK, {"command": "/deploy"}) == ("slack.command", "hook:shop:print")
    assert told(STANDARD, {"type": "paid"}, {"webhook-id": "msg_1"}) == ("shop.paid", "hook:shop:msg_1")


def test_the_generic_scheme_has_no_name_of_its_own() -> None:
    with pytest.raises(InvalidInput, match="needs the name"):
        told(HMAC, {})


@pytest.mark.parametrize("body", [{}, {"type": None}, {"type": "a\nb"}, {"type": "x" * 500}, [], "text", None])
def test_a_request_without_a_name_for_its_event_is_refused(body: Any) -> None:
    with pytest.raises(InvalidInput):
        told(STRIPE, body)


def test_an_expression_that_fails_refuses_the_request() -> None:
    for event, key in (("e.${ 1 / body.zero }", ""), ("e", "1 / body.zero"), ("${ body.zero }", ""), ("e", "body")):
        with pytest.raises(InvalidInput):
            w.event_of("shop", event, key, {"body": {"zero": 0}, "headers": {}}, "print")


def test_a_key_that_cannot_be_shown_is_a_digest_and_still_tells_requests_apart() -> None:
    def key(ident: Any) -> str:
        return w.event_of("shop", "e", "body.id", {"body": {"id": ident}, "headers": {}}, "print").key

    long, other = key("x" * 500), key("x" * 499 + "y")
    assert long != other and len(long) <= MESSAGE_KEY_CHARS_MAX
    assert key("a\nb") != key("a\tb") and "\n" not in key("a\nb")
    assert key(7) == "hook:shop:7"
    assert key("") == key(None) == "hook:shop:print"


@pytest.mark.parametrize("event", ["", "x" * 300, "a\nb", "${ body.", "${ input.type }", "x" * 5_000])
def test_a_name_that_can_never_be_one_is_refused_when_it_is_said(event: str) -> None:
    with pytest.raises(InvalidInput):
        w.check_event(event)


@pytest.mark.parametrize("key", ["body.", "event.id", "x" * 5_000])
def test_so_is_a_key(key: str) -> None:
    with pytest.raises(InvalidInput):
        w.check_key(key)


def test_fields_of_a_form_are_the_body() -> None:
    assert w.form_fields(b"a=1&b=&c=x%20y&c=z&c=w") == {"a": "1", "b": "", "c": ["x y", "z", "w"]}
    assert w.form_fields(b"") == {}
    for wrong in (b"\xff=1", b"&".join(b"f%d=1" % n for n in range(1_001)), b"not a form"):
        with pytest.raises(InvalidInput):
            w.form_fields(wrong)
    assert w.json_field({"payload": '{"a": 1}'}) == '{"a": 1}'
    assert w.json_field({"payload": "words"}) is None and w.json_field({"payload": "{}", "x": ""}) is None


def test_credentials_are_no_headers_that_can_be_read() -> None:
    assert w.shown_headers({"authorization": "a", "cookie": "b", "x-event": "c"}) == {"x-event": "c"}
