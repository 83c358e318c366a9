"""Signatures of webhooks: who sent a request, and when.

    Perdure-Signature: t=<unix seconds>,v1=<hex of HMAC-SHA256(secret, "<t>." + body)>

A header may hold several `v1`, so that a sender can sign with two secrets while one replaces the other. Fails closed: anything that
is not exactly this is no signature. The comparison takes as long for a wrong signature as for a right one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

from perdure.core.errors import InvalidInput
from perdure.core.limits import WEBHOOK_SKEW_S

NAME_CHARS_MAX: Final = 100
"""Characters of a webhook's name."""
HEADER: Final = "Perdure-Signature"
HEADER_CHARS_MAX: Final = 1_000
SIGNATURES_MAX: Final = 5
"""Signatures in one header."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_TIME = re.compile(r"[0-9]{1,12}")
_HEX = re.compile(r"[0-9a-f]{64}")


def check_name(name: str) -> str:
    """The name, if it fits into an address as it is."""
    if len(name) <= NAME_CHARS_MAX and _NAME.fullmatch(name):
        return name
    raise InvalidInput(
        f"{name[:NAME_CHARS_MAX]!r} cannot name a webhook: use up to {NAME_CHARS_MAX} letters, digits and . _ -"
    )


def signature(secret: bytes, at_s: int, body: bytes) -> str:
    return hmac.new(secret, str(at_s).encode() + b"." + body, hashlib.sha256).hexdigest()


def header(secret: bytes, at_s: int, body: bytes) -> str:
    """What a sender puts into the header."""
    return f"t={at_s},v1={signature(secret, at_s, body)}"


def checked(secret: bytes, given: str, body: bytes, now_s: float) -> str | None:
    """The unique id of this request, or None when it is not signed with the secret, or its time is out of range. A repeated request
    has the same id."""
    read = _read(given)
    if read is None:
        return None
    at_s, given_signatures = read
    wanted = signature(secret, at_s, body)
    # All of them, and the time last: how long this takes says nothing.
    right = [hmac.compare_digest(wanted, one) for one in given_signatures]
    if not any(right) or abs(now_s - at_s) > WEBHOOK_SKEW_S:
        return None
    return hashlib.sha256(f"{at_s}.{wanted}".encode()).hexdigest()


def _read(given: str) -> tuple[int, list[str]] | None:
    if len(given) > HEADER_CHARS_MAX:
        return None
    at_s: int | None = None
    found: list[str] = []
    for part in given.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals:
            return None
        if name == "t":
            if at_s is not None or not _TIME.fullmatch(value):
                return None
            at_s = int(value)
        elif name == "v1":
            if not _HEX.fullmatch(value) or len(found) == SIGNATURES_MAX:
                return None
            found.append(value)
    return (at_s, found) if at_s is not None and found else None
