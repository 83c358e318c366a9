"""Signed links: one question to one person, as a text that can be passed on and cannot be changed.

Laws:

1. A token says everything about what it is good for: which promise of which run in which namespace, who answers, and until when.
2. It is signed with HMAC-SHA256 over all of it. What does not verify, byte for byte, says nothing: `read` answers None and no reason.
3. That a link works once is not in the token; the store remembers the ids of those that were used.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from perdure.core import signed_texts
from perdure.core.limits import LINK_CHARS_MAX

PURPOSE: Final = b"perdure link 1\n"
"""Signed along, so that no signature made for anything else is one of a link."""
SECRET_BYTES: Final = signed_texts.SECRET_BYTES
ID_BYTES: Final = 16

Kind = Literal["approval", "promise"]


class Link(msgspec.Struct, frozen=True, array_like=True):
    kind: Kind
    namespace: str
    run_id: bytes
    name: str
    """Of the promise."""
    who: str
    """Who answers with it; may be empty for a plain promise."""
    expires_us: int
    id: bytes
    """Drawn at random; what is remembered of a link that was used."""
    question: bytes = b""
    """Of an approval: what it asked when the link was made (core/questions.py)."""


_decoder = msgspec.msgpack.Decoder(Link)


def sign(link: Link, secret: bytes) -> str:
    return signed_texts.sign(msgspec.msgpack.encode(link), PURPOSE, secret)


def read(token: str, secret: bytes) -> Link | None:
    """The link, if it is exactly as it was signed."""
    body = signed_texts.read(token, PURPOSE, secret, LINK_CHARS_MAX)
    if body is None:
        return None
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:
        return None
