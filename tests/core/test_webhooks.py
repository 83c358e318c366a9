"""Signatures of webhooks: what is let in, and that everything else is not. The vectors are those that the providers publish."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from perdure.core import webhooks
from perdure.core.errors import InvalidInput
from perdure.core.limits import WEBHOOK_SKEW_S
from perdure.core.webhooks import GITHUB, HMAC, SLACK, STANDARD, STRIPE, SignatureScheme

NOW = 1_800_000_000


@dataclass(frozen=True)
class Request:
    """A request as its sender makes it."""

    scheme: SignatureScheme
    secret: bytes
    headers: dict[str, str]
    body: bytes
    at_s: int
    """When it was sent."""

    def verified(self, *, late_s: float = 0, secrets: tuple[bytes, ...] | None = None) -> str | None:
        return webhooks.verified(self.scheme, secrets or (self.secret,), self.headers, self.body, self.at_s + late_s)


STANDARD_VECTOR = Request(
    SignatureScheme(STANDARD),
    b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    },
    b'{"test": 2432232314}',
    1_614_265_330,
)
GITHUB_VECTOR = Request(
    SignatureScheme(GITHUB),
    b"It's a Secret to Everybody",
    {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
    b"Hello, World!",
    NOW,
)
SLACK_VECTOR = Request(
    SignatureScheme(SLACK),
    b"8f742231b10e8888abcd99yyyzzz85a5",
    {
        "x-slack-request-timestamp": "1531420618",
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    },
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
    1_531_420_618,
)


def stripe_header(secret: bytes, at_s: int, body: bytes) -> str:
    """As stripe-python's `WebhookSignature` computes it: hex of HMAC-SHA256(secret, "%d.%s" % (timestamp, payload))."""
    mac = hmac.new(secret, b"%d.%b" % (at_s, body), hashlib.sha256)
    return f"t={at_s},v1={mac.hexdigest()},v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39"


STRIPE_BODY = b'{\n  "id": "evt_test_webhook",\n  "object": "event"\n}'
STRIPE_VECTOR = Request(
    SignatureScheme(STRIPE),
    b"whsec_test_secret",
    {"stripe-signature": stripe_header(b"whsec_test_secret", NOW, STRIPE_BODY)},
    STRIPE_BODY,
    NOW,
)
HMAC_VECTOR = Request(
    SignatureScheme(HMAC, "X-Shopify-Hmac-Sha256", encoding="base64"),
    b"hush hush",
    {"x-shopify-hmac-sha256": base64.b64encode(hmac.digest(b"hush hush", b"{}", "sha256")).decode()},
    b"{}",
    NOW,
)
VECTORS = [STANDARD_VECTOR, GITHUB_VECTOR, SLACK_VECTOR, STRIPE_VECTOR, HMAC_VECTOR]
TIMED = [STANDARD_VECTOR, SLACK_VECTOR, STRIPE_VECTOR]
SIGNATURE = {
    STANDARD: "webhook-signature",
    GITHUB: "x-hub-signature-256",
    SLACK: "x-slack-signature",
    STRIPE: "stripe-signature",
    HMAC: "x-shopify-hmac-sha256",
}
kinds = pytest.mark.parametrize("request_", VECTORS, ids=lambda r: r.scheme.kind)
timed = pytest.mark.parametrize("request_", TIMED, ids=lambda r: r.scheme.kind)


@kinds
def test_the_published_vector_is_accepted(request_: Request) -> None:
    assert request_.verified() is not None


@timed
@pytest.mark.parametrize("late_s", [1, -1, WEBHOOK_SKEW_S, -WEBHOOK_SKEW_S])
def test_a_signature_holds_for_a_while(request_: Request, late_s: int) -> None:
    assert request_.verified(late_s=late_s) is not None


@timed
@pytest.mark.parametrize("late_s", [WEBHOOK_SKEW_S + 1, -WEBHOOK_SKEW_S - 1, 10**9])
def test_an_old_or_early_signature_does_not(request_: Request, late_s: int) -> None:
    assert request_.verified(late_s=late_s) is None


@kinds
def test_another_secret_or_body_is_refused(request_: Request) -> None:
    assert replace(request_, secret=b"whsec_AAAAAAAAAAAAAAAAAAAAAAAA").verified() is None
    assert replace(request_, secret=b"").verified() is None
    for body in (request_.body + b" ", request_.body[:-1], b"", b"x" + request_.body[1:]):
        assert replace(request_, body=body).verified() is None


@kinds
def test_every_header_is_needed_as_it_was_sent(request_: Request) -> None:
    for name, value in request_.headers.items():
        without = {k: v for k, v in request_.headers.items() if k != name}
        assert replace(request_, headers=without).verified() is None, name
        for changed in (
            "",
            value[:-2],
            value + "A0",
            f"x{value}",
            f"{value[:20]}\N{ARABIC-INDIC DIGIT ONE}{value[21:]}",
        ):
            # What follows a Stripe signature that is right belongs to v0, which does not count.
            if request_.scheme.kind == STRIPE and changed in (value[:-2], value + "A0"):
                continue
            assert replace(request_, headers={**without, name: changed}).verified() is None, changed


@timed
def test_another_time_is_refused(request_: Request) -> None:
    later = {k: v.replace(str(request_.at_s), str(request_.at_s + 1)) for k, v in request_.headers.items()}
    assert later != request_.headers
    assert replace(request_, headers=later).verified() is None


@kinds
def test_a_signature_of_another_scheme_is_none(request_: Request) -> None:
    for other in VECTORS:
        if other is not request_:
            assert replace(request_, scheme=other.scheme).verified() is None
            assert replace(request_, headers=other.headers).verified() is None


@kinds
def test_two_secrets_are_valid_at_once_while_one_replaces_the_other(request_: Request) -> None:
    first = request_.verified()
    fresh = b"whsec_AAAAAAAAAAAAAAAAAAAAAAAA"
    assert (
        first
        == request_.verified(secrets=(fresh, request_.secret))
        == request_.verified(secrets=(request_.secret, fresh))
    )
    assert request_.verified(secrets=(fresh, b"whsec_BBBBBBBBBBBBBBBBBBBBBBBB")) is None


def test_the_standard_package_and_this_one_agree() -> None:
    secret = webhooks.new_secret(SignatureScheme(), bytes(range(32)))
    body = '{"type": "user.created", "name": "Zoë"}'
    signature = Webhook(secret).sign("msg_1", datetime.fromtimestamp(NOW, UTC), body)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(NOW), "webhook-signature": f"v1,AAAA v1a,x {signature}"}
    assert webhooks.verified(SignatureScheme(), [secret.encode()], headers, body.encode(), NOW) is not None


def test_the_id_of_a_standard_webhook_is_signed_and_cannot_take_up_the_time() -> None:
    other = {**STANDARD_VECTOR.headers, "webhook-id": "msg_other"}
    assert replace(STANDARD_VECTOR, headers=other).verified() is None
    # "a" + 1 + "2.{}" and "a.1" + 2 + "{}" would be the same bytes, if an id could have a dot.
    key = base64.b64decode(b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    given = base64.b64encode(hmac.digest(key, b"a.1.2.{}", "sha256")).decode()
    right = Request(
        SignatureScheme(),
        STANDARD_VECTOR.secret,
        {"webhook-id": "a", "webhook-timestamp": "1", "webhook-signature": f"v1,{given}"},
        b"2.{}",
        1,
    )
    assert right.verified() is not None
    moved = {**right.headers, "webhook-id": "a.1", "webhook-timestamp": "2"}
    assert replace(right, headers=moved, body=b"{}").verified() is None


_GOOD = STRIPE_VECTOR.headers["stripe-signature"].split(",")[1]


@pytest.mark.parametrize(
    "header",
    [
        "t=,v1=",
        _GOOD,
        f"t={NOW}",
        f"t={NOW},v0{_GOOD[2:]}",
        f"t={NOW},t={NOW},{_GOOD}",
        f"t=+{NOW},{_GOOD}",
        f"t=0{NOW},{_GOOD}",
        f"t={NOW}.0,{_GOOD}",
        f"t={NOW};{_GOOD}",
        f"t={NOW} {_GOOD}",
        f"t={NOW},{_GOOD},",
        f"t={NOW}," + ",".join([f"v1={'0' * 64}"] * 5) + f",{_GOOD}",
        f"t={NOW},{_GOOD}," + "x=" + "y" * 1_000,
    ],
)
def test_what_is_not_exactly_a_signature_of_stripe_is_none(header: str) -> None:
    assert replace(STRIPE_VECTOR, headers={"stripe-signature": header}).verified() is None


def test_a_request_is_told_from_others_and_from_itself_not() -> None:
    first = STRIPE_VECTOR.verified()
    assert first == STRIPE_VECTOR.verified(late_s=10)
    later = {"stripe-signature": stripe_header(STRIPE_VECTOR.secret, NOW + 1, STRIPE_BODY)}
    assert replace(STRIPE_VECTOR, headers=later).verified() not in (None, first)


@pytest.mark.parametrize("algorithm", webhooks.ALGORITHMS)
@pytest.mark.parametrize("encoding", webhooks.ENCODINGS)
def test_the_generic_scheme_has_algorithms_encodings_and_a_prefix(algorithm: str, encoding: str) -> None:
    scheme = SignatureScheme(HMAC, "X-Sign", algorithm, f"{algorithm}=", encoding)
    webhooks.check_scheme(scheme)
    mac = hmac.digest(b"hush hush", b"body", algorithm)
    text = mac.hex() if encoding == "hex" else base64.b64encode(mac).decode()
    assert webhooks.verified(scheme, [b"hush hush"], {"x-sign": f"{algorithm}={text}"}, b"body", NOW) is not None
    assert webhooks.verified(scheme, [b"hush hush"], {"x-sign": text}, b"body", NOW) is None
    assert webhooks.verified(scheme, [b"hush hush"], {"x-sign": f"sha999={text}"}, b"body", NOW) is None


@pytest.mark.parametrize(
    "scheme",
    [
        SignatureScheme("nothing"),
        SignatureScheme(HMAC),
        SignatureScheme(HMAC, "X Sign"),
        SignatureScheme(HMAC, "X-Sign", "md5"),
        SignatureScheme(HMAC, "X-Sign", encoding="octal"),
        SignatureScheme(HMAC, "X-Sign", prefix="a\nb"),
        SignatureScheme(GITHUB, "X-Sign"),
        SignatureScheme(STANDARD, prefix="x"),
    ],
)
def test_a_scheme_that_cannot_check_anything_is_refused(scheme: SignatureScheme) -> None:
    with pytest.raises(InvalidInput):
        webhooks.check_scheme(scheme)


@pytest.mark.parametrize("secret", ["", "short", "x" * 501, "whsec_", "whsec_not base64!", "whsec_ééééééééé"])
def test_a_secret_that_cannot_sign_is_refused(secret: str) -> None:
    with pytest.raises(InvalidInput):
        webhooks.check_secret(SignatureScheme(), secret)


@pytest.mark.parametrize("kind", [STANDARD, GITHUB, HMAC])
def test_a_secret_that_was_made_here_can_sign(kind: str) -> None:
    webhooks.check_secret(SignatureScheme(kind), webhooks.new_secret(SignatureScheme(kind), bytes(range(32))))


@given(st.sampled_from(VECTORS), st.text(max_size=200), st.binary(max_size=50))
def test_nothing_that_is_not_signed_gets_in_and_nothing_raises(vector: Request, header: str, body: bytes) -> None:
    name = SIGNATURE[vector.scheme.kind]
    assert replace(vector, headers={**vector.headers, name: header}).verified() is None
    if body != vector.body:
        assert replace(vector, body=body).verified() is None
