"""The signal and the run that a request of a webhook becomes."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.api.named_events import SignalTarget
from perdure.core.errors import InvalidInput
from perdure.core.limits import EXPR_CHARS_MAX
from perdure.core.webhook_signals import WebhookSignal, check_target, signal_of

ORDER = "key:order-${ body.order_id }"


def sent(target: SignalTarget, body: Any, key: str = "body.id", headers: dict[str, str] | None = None) -> WebhookSignal:
    check_target(target)
    return signal_of("shop", target, key, {"body": body, "headers": headers or {}}, "print")


def test_a_request_names_its_run_and_its_value() -> None:
    body = {"id": "evt_1", "order_id": 42, "amount": 5}
    found = sent(SignalTarget("paid", ORDER), body)
    assert found == WebhookSignal("key:order-42", body, None, "hook:shop:evt_1")
    assert sent(SignalTarget("paid", ORDER, "body.amount"), body).value == 5
    assert sent(SignalTarget("paid", ORDER, "body.nothing"), body).value is None
    started = sent(SignalTarget("paid", ORDER, "", "checkout", "{order: body.order_id}"), body)
    assert (started.run_key, started.input) == ("order-42", {"order": 42})
    assert sent(SignalTarget("paid", ORDER), {"order_id": 1}).key == "hook:shop:print"


def test_a_run_is_named_by_its_whole_id_too() -> None:
    run = "01990000-0000-7000-8000-000000000001"
    target = SignalTarget("paid", "${ headers['x-run'] }")
    assert sent(target, None, headers={"x-run": run}).run == run
    for wrong in (run[:8], "@last", "key:", "order-42", "key:a\nb", "key:" + "x" * 500):
        with pytest.raises(InvalidInput):
            sent(target, None, headers={"x-run": wrong})


@pytest.mark.parametrize("body", [{}, {"order_id": None}, {"order_id": ""}, [], "text", None])
def test_a_request_without_a_value_for_its_run_is_refused(body: Any) -> None:
    """Or all orders without an id would share the run `order-`."""
    with pytest.raises(InvalidInput, match=r"no value for its run: key:order-\$\{ body\.order_id \}"):
        sent(SignalTarget("paid", ORDER), body, "")


@pytest.mark.parametrize(
    ("target", "key"),
    [
        (SignalTarget("paid", "key:${ 1 / body.zero }"), ""),
        (SignalTarget("paid", "key:1", "1 / body.zero"), ""),
        (SignalTarget("paid", "key:1", "", "w", "1 / body.zero"), ""),
        (SignalTarget("paid", "key:1"), "1 / body.zero"),
        (SignalTarget("paid", "key:1"), "body"),
    ],
)
def test_an_expression_that_fails_refuses_the_request(target: SignalTarget, key: str) -> None:
    with pytest.raises(InvalidInput):
        sent(target, {"zero": 0}, key)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (SignalTarget("", "key:1"), "Give its name"),
        (SignalTarget("paid", ""), "needs a run"),
        (SignalTarget("a\nb", "key:1"), "invalid signal name"),
        (SignalTarget("paid", "order-42"), "invalid run: 'order-42'"),
        (SignalTarget("paid", "key:${ body. }"), "run: "),
        (SignalTarget("paid", "key:${ input.day }"), "run: unknown name 'input'; it can read body and headers"),
        (SignalTarget("paid", "key:1", "run.id"), "value: unknown name 'run'"),
        (SignalTarget("paid", "key:1", "1 +"), "value: "),
        (SignalTarget("paid", "key:" + "x" * EXPR_CHARS_MAX), "EXPR_CHARS_MAX"),
        (SignalTarget("paid", "key:1", "", "", "body"), "input: only a started run has an input"),
        (SignalTarget("paid", "key:1", "", "w", "secret.X"), "input: unknown name 'secret'"),
        (SignalTarget("paid", "${ body.run }", "", "w"), "only under a key"),
        (SignalTarget("paid", "key:1", "", "w" * 500), "invalid workflow name"),
    ],
)
def test_a_target_that_no_request_can_reach_is_refused_when_it_is_made(target: SignalTarget, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_target(target)
    assert text in str(refused.value)
