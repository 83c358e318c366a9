"""The token in a callback URL: it names one job of one namespace, and only the server can make it."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core import signed_texts

PURPOSE: Final = b"perdure callback 1\n"
TOKEN_CHARS_MAX: Final = 300
PATH: Final = "/callbacks"
"""Of the server: PATH/TOKEN."""


class CallbackToken(msgspec.Struct, frozen=True, array_like=True):
    ns: int
    job: str


_decoder = msgspec.msgpack.Decoder(CallbackToken)


def sign(token: CallbackToken, secret: bytes) -> str:
    return signed_texts.sign(msgspec.msgpack.encode(token), PURPOSE, secret)


def read(text: str, secret: bytes) -> CallbackToken | None:
    body = signed_texts.read(text, PURPOSE, secret, TOKEN_CHARS_MAX)
    try:
        return None if body is None else _decoder.decode(body)
    except msgspec.DecodeError:
        return None
