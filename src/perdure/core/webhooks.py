"""Signatures of webhooks: which sender a request comes from, and when it was sent.

    standard   webhook-id, webhook-timestamp, webhook-signature: v1,<base64>   of "<id>.<time>." + body   (standardwebhooks.com)
    github     X-Hub-Signature-256: sha256=<hex>                               of the body
    stripe     Stripe-Signature: t=<time>,v1=<hex>                             of "<time>." + body
    slack      X-Slack-Signature: v0=<hex>, X-Slack-Request-Timestamp          of "v0:<time>:" + body
    hmac       a header of your choice: <prefix><hex or base64>                of the body

Laws:

1. It fails closed: anything that is not exactly one of these is no signature.
2. The comparison takes as long for a wrong signature as for a right one. The time is judged after the signature.
3. While a secret is replaced there are two, and either of them will do. A request has the same fingerprint under both.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.limits import WEBHOOK_SECRET_CHARS_MAX, WEBHOOK_SECRET_CHARS_MIN, WEBHOOK_SKEW_S

NAME_CHARS_MAX: Final = 100
"""Characters of a webhook's name."""
SIGNATURE_CHARS_MAX: Final = 1_000
"""Characters of a header with signatures."""
SIGNATURES_MAX: Final = 5
"""Signatures in one header."""
AFFIX_CHARS_MAX: Final = 100
"""Characters of the header's name and of the prefix in a scheme of the kind `hmac`."""

STANDARD: Final = "standard"
GITHUB: Final = "github"
STRIPE: Final = "stripe"
SLACK: Final = "slack"
HMAC: Final = "hmac"
ALGORITHMS: Final = ("sha256", "sha1", "sha384", "sha512")
ENCODINGS: Final = ("hex", "base64")
STANDARD_PREFIX: Final = "whsec_"
OWN_SECRET: Final = frozenset({STRIPE, SLACK})
"""Senders that choose the secret themselves."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_TIME = re.compile(r"[0-9]{1,12}")
_HEX = re.compile(r"[0-9a-fA-F]{16,128}")

Headers = Mapping[str, str]
"""By name, in lower case."""


class SignatureScheme(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a sender signs. All fields but the first belong to the kind `hmac`."""

    kind: str = STANDARD
    header: str = ""
    algorithm: str = ALGORITHMS[0]
    prefix: str = ""
    """What stands in the header before the signature, such as `sha256=`."""
    encoding: str = ENCODINGS[0]


class _Claim(msgspec.Struct, frozen=True):
    """What a request says of itself: these bytes are signed with one of these signatures."""

    message: bytes
    signatures: Sequence[bytes]
    at_s: int | None = None
    algorithm: str = ALGORITHMS[0]


def check_name(name: str) -> str:
    """The name, if it fits into an address as it is."""
    if len(name) <= NAME_CHARS_MAX and _NAME.fullmatch(name):
        return name
    raise InvalidInput(
        f"{name[:NAME_CHARS_MAX]!r} cannot name a webhook: use up to {NAME_CHARS_MAX} letters, digits and . _ -"
    )


def check_scheme(scheme: SignatureScheme) -> None:
    """InvalidInput for one by which no request could be checked."""
    if scheme.kind not in _READERS:
        raise InvalidInput(f"scheme: there is no {scheme.kind[:NAME_CHARS_MAX]!r}; use one of {', '.join(_READERS)}")
    if scheme.kind != HMAC:
        if scheme != SignatureScheme(scheme.kind):
            raise InvalidInput(
                f"header, algorithm, prefix and encoding belong to the scheme {HMAC}; the scheme {scheme.kind} says them by itself"
            )
        return
    if not _HEADER.fullmatch(scheme.header) or len(scheme.header) > AFFIX_CHARS_MAX:
        raise InvalidInput(f"the scheme {HMAC} needs the name of the header that holds the signature: header")
    if scheme.algorithm not in ALGORITHMS:
        raise InvalidInput(f"algorithm: use one of {', '.join(ALGORITHMS)}")
    if scheme.encoding not in ENCODINGS:
        raise InvalidInput(f"encoding: use {' or '.join(ENCODINGS)}")
    if len(scheme.prefix) > AFFIX_CHARS_MAX or not scheme.prefix.isascii() or not scheme.prefix.isprintable():
        raise InvalidInput(f"prefix: use up to {AFFIX_CHARS_MAX} printable ASCII characters")


def new_secret(scheme: SignatureScheme, random: bytes) -> str:
    """A secret of this scheme, made of random bytes."""
    return STANDARD_PREFIX + base64.b64encode(random).decode() if scheme.kind == STANDARD else random.hex()


def check_secret(scheme: SignatureScheme, secret: str) -> None:
    if not WEBHOOK_SECRET_CHARS_MIN <= len(secret) <= WEBHOOK_SECRET_CHARS_MAX:
        raise InvalidInput(
            f"the secret of a webhook has {WEBHOOK_SECRET_CHARS_MIN} to {WEBHOOK_SECRET_CHARS_MAX} characters, this one {len(secret)}"
        )
    if not signing_key(scheme, secret.encode()):
        raise InvalidInput(f"the secret of the scheme {STANDARD} is base64, after {STANDARD_PREFIX!r}; this one is not")


def signing_key(scheme: SignatureScheme, secret: bytes) -> bytes:
    """The bytes that a secret signs with; empty for one that cannot sign."""
    if scheme.kind != STANDARD:
        return secret
    return _base64(secret.decode(errors="replace").removeprefix(STANDARD_PREFIX)) or b""


def verified(
    scheme: SignatureScheme, secrets: Sequence[bytes], headers: Headers, body: bytes, now_s: float
) -> str | None:
    """The fingerprint of this request, or None when it is not signed with one of the secrets, or its time is out of range. A
    repeated request has the same fingerprint."""
    claim = _READERS[scheme.kind](scheme, headers, body)
    if claim is None:
        return None
    keys = [signing_key(scheme, secret) for secret in secrets]
    wanted = [hmac.new(key, claim.message, claim.algorithm).digest() for key in keys if key]
    # All of them, and the time last: how long this takes says nothing.
    right = [hmac.compare_digest(one, given) for one in wanted for given in claim.signatures]
    if not any(right) or (claim.at_s is not None and abs(now_s - claim.at_s) > WEBHOOK_SKEW_S):
        return None
    return hashlib.sha256(claim.message).hexdigest()


def _standard(scheme: SignatureScheme, headers: Headers, body: bytes) -> _Claim | None:
    ident, at_s = headers.get("webhook-id", ""), _seconds(headers.get("webhook-timestamp", ""))
    # The id is signed with a dot after it, so it must not bring one: parts could move between id, time and body.
    if not ident or "." in ident or at_s is None:
        return None
    found: list[bytes] = []
    for one in _limited(headers.get("webhook-signature", "")).split(" "):
        version, _, text = one.partition(",")
        if version == "v1":
            found.append(_base64(text) or b"")
    signed = f"{ident}.{at_s}.".encode() + body
    return _Claim(signed, found, at_s) if 0 < len(found) <= SIGNATURES_MAX else None


def _github(scheme: SignatureScheme, headers: Headers, body: bytes) -> _Claim | None:
    return _hmac(_GITHUB_HMAC, headers, body)


def _stripe(scheme: SignatureScheme, headers: Headers, body: bytes) -> _Claim | None:
    at_s: int | None = None
    found: list[bytes] = []
    for part in _limited(headers.get("stripe-signature", "")).split(","):
        name, equals, value = part.strip().partition("=")
        if not equals:
            return None
        if name == "t":
            if at_s is not None or (at_s := _seconds(value)) is None:
                return None
        elif name == "v1":
            found.append(_hex(value) or b"")
    if at_s is None or not 0 < len(found) <= SIGNATURES_MAX:
        return None
    return _Claim(f"{at_s}.".encode() + body, found, at_s)


def _slack(scheme: SignatureScheme, headers: Headers, body: bytes) -> _Claim | None:
    at_s = _seconds(headers.get("x-slack-request-timestamp", ""))
    version, equals, text = _limited(headers.get("x-slack-signature", "")).partition("=")
    given = _hex(text)
    if at_s is None or version != "v0" or not equals or given is None:
        return None
    return _Claim(f"v0:{at_s}:".encode() + body, [given], at_s)


def _hmac(scheme: SignatureScheme, headers: Headers, body: bytes) -> _Claim | None:
    text = _limited(headers.get(scheme.header.lower(), ""))
    if not text.startswith(scheme.prefix):
        return None
    given = (_hex if scheme.encoding == "hex" else _base64)(text[len(scheme.prefix) :])
    return _Claim(body, [given], algorithm=scheme.algorithm) if given is not None else None


_Reader = Callable[[SignatureScheme, Headers, bytes], _Claim | None]
_READERS: Final[dict[str, _Reader]] = {
    STANDARD: _standard,
    GITHUB: _github,
    STRIPE: _stripe,
    SLACK: _slack,
    HMAC: _hmac,
}
SCHEMES: Final = tuple(_READERS)
_GITHUB_HMAC: Final = SignatureScheme(HMAC, "x-hub-signature-256", prefix="sha256=")


def _limited(header: str) -> str:
    return header if len(header) <= SIGNATURE_CHARS_MAX else ""


def _seconds(text: str) -> int | None:
    """The time as it was signed: without a sign, a point or zeros before it, so that one time has one text."""
    return int(text) if _TIME.fullmatch(text) and str(int(text)) == text else None


def _hex(text: str) -> bytes | None:
    return bytes.fromhex(text) if _HEX.fullmatch(text) and len(text) % 2 == 0 else None


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True) or None
    except (ValueError, binascii.Error):
        return None
