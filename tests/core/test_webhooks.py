"""Signatures of webhooks: what is let in, and that everything else is not."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import webhooks
from perdure.core.limits import WEBHOOK_SKEW_S

SECRET = b"pdh_secret"
BODY = b'{"order_id": 7}'
NOW = 1_800_000_000


def test_the_documented_formula_is_the_one_that_is_checked() -> None:
    by_hand = hmac.new(SECRET, f"{NOW}.".encode() + BODY, hashlib.sha256).hexdigest()
    assert webhooks.checked(SECRET, f"t={NOW},v1={by_hand}", BODY, NOW) is not None


@pytest.mark.parametrize("late_s", [0, 1, -1, WEBHOOK_SKEW_S, -WEBHOOK_SKEW_S])
def test_a_signature_holds_for_a_while(late_s: int) -> None:
    assert webhooks.checked(SECRET, webhooks.header(SECRET, NOW, BODY), BODY, NOW + late_s) is not None


@pytest.mark.parametrize("late_s", [WEBHOOK_SKEW_S + 1, -WEBHOOK_SKEW_S - 1, 10**9])
def test_an_old_or_early_signature_does_not(late_s: int) -> None:
    assert webhooks.checked(SECRET, webhooks.header(SECRET, NOW, BODY), BODY, NOW + late_s) is None


def test_another_secret_body_or_time_is_refused() -> None:
    header = webhooks.header(SECRET, NOW, BODY)
    assert webhooks.checked(b"other", header, BODY, NOW) is None
    assert webhooks.checked(SECRET, header, BODY + b" ", NOW) is None
    assert webhooks.checked(SECRET, header, b"", NOW) is None
    assert webhooks.checked(SECRET, header.replace(f"t={NOW}", f"t={NOW + 1}"), BODY, NOW) is None
    assert webhooks.checked(b"", webhooks.header(SECRET, NOW, BODY), BODY, NOW) is None


def test_a_body_cannot_be_shifted_into_the_time() -> None:
    """`1` + `.` + `2.x` and `1.2` + `.` + `x` would be the same bytes, if a time could have a dot."""
    signature = webhooks.signature(SECRET, 1, b"2.x")
    assert webhooks.checked(SECRET, f"t=1.2,v1={signature}", b"x", 1) is None


_GOOD = webhooks.signature(SECRET, NOW, BODY)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "t=,v1=",
        f"v1={_GOOD}",
        f"t={NOW}",
        f"t={NOW},v0={_GOOD}",
        f"t={NOW},v1={_GOOD[:-1]}",
        f"t={NOW},v1={_GOOD.upper()}",
        f"t={NOW},t={NOW},v1={_GOOD}",
        f"t=+{NOW},v1={_GOOD}",
        f"t={NOW}.0,v1={_GOOD}",
        f"t={NOW};v1={_GOOD}",
        f"t={NOW} v1={_GOOD}",
        f"t={NOW},v1={_GOOD},",
        f"t={NOW}," + ",".join([f"v1={'0' * 64}"] * 5) + f",v1={_GOOD}",
        f"t={NOW},v1={_GOOD}," + "x=" + "y" * 1_000,
        f"t=\N{ARABIC-INDIC DIGIT ONE},v1={_GOOD}",
    ],
)
def test_what_is_not_exactly_a_signature_is_none(header: str) -> None:
    assert webhooks.checked(SECRET, header, BODY, NOW) is None


def test_one_of_several_signatures_will_do_while_a_secret_is_replaced() -> None:
    other = webhooks.signature(b"old", NOW, BODY)
    assert webhooks.checked(SECRET, f"t={NOW}, v1={other}, v1={_GOOD}", BODY, NOW) is not None


def test_a_request_is_told_from_others_and_from_itself_not() -> None:
    header = webhooks.header(SECRET, NOW, BODY)
    first = webhooks.checked(SECRET, header, BODY, NOW)
    assert first == webhooks.checked(SECRET, header, BODY, NOW + 10)
    # Signed with two secrets it is still the same request.
    assert first == webhooks.checked(SECRET, f"{header},v1={'0' * 64}", BODY, NOW)
    later = webhooks.checked(SECRET, webhooks.header(SECRET, NOW + 1, BODY), BODY, NOW)
    assert later is not None and later != first


@given(st.text(max_size=200), st.binary(max_size=50))
def test_nothing_that_is_not_signed_gets_in_and_nothing_raises(header: str, body: bytes) -> None:
    assert webhooks.checked(SECRET, header, body, NOW) is None
