"""Calls of acts as they travel between a client and a server: MessagePack inside the messages of proto/perdure/v1/api.proto."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from perdure.core.api import ACTS
from perdure.core.api.act import Act
from perdure.core.errors import InvalidInput
from perdure.wire.pb import api_pb2 as pb
from perdure.wire.pb import worker_pb2

SERVICE: Final = "perdure.v1.Api"

Q = TypeVar("Q")
R = TypeVar("R")

_encoder: Final = msgspec.msgpack.Encoder()


@cache
def _decoders(name: str) -> tuple[msgspec.msgpack.Decoder[Any], msgspec.msgpack.Decoder[Any]]:
    """Of an act's requests and replies."""
    act = ACTS[name]
    return msgspec.msgpack.Decoder(act.request), msgspec.msgpack.Decoder(act.reply)


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


def decode_request(act: Act[Q, R], data: bytes) -> Q:
    request: Q = _decoders(act.name)[0].decode(data)
    return request


def decode_reply(act: Act[Q, R], data: bytes) -> R:
    reply: R = _decoders(act.name)[1].decode(data)
    return reply


def act_named(name: str) -> Act[Any, Any]:
    act = ACTS.get(name)
    if act is None:
        raise InvalidInput(f"there is no act {name!r}; the server may be older than its client")
    return act


def encode_call(act: Act[Q, R], request: Q) -> bytes:
    return pb.CallRequest(act=act.name, request=_encoder.encode(request)).SerializeToString()


def decode_call(data: bytes) -> tuple[str, bytes]:
    m = pb.CallRequest.FromString(data)
    return m.act, m.request


def encode_call_reply(reply: bytes) -> bytes:
    return pb.CallReply(reply=reply).SerializeToString()


def decode_call_reply(data: bytes) -> bytes:
    return pb.CallReply.FromString(data).reply


CLOCK_KEY: Final = "perdure-clock"
"""Initial metadata of a session: microseconds of the server's clock, which goes on while the machine sleeps."""


class Call(msgspec.Struct, gc=False):
    id: int
    act: str
    request: bytes
    timeout_ms: int = 0
    """In which the server must answer; 0: its own limit."""
    until_us: int = 0
    """When the caller gives up, by the clock that the server gave in CLOCK_KEY; 0: never."""


class Reply(msgspec.Struct, gc=False):
    """`code` is empty when the call succeeded."""

    id: int
    reply: bytes
    code: str = ""
    error: str = ""


def encode_calls(calls: list[Call], given_up: list[int] | None = None) -> bytes:
    """`given_up`: ids of earlier calls whose reply is not waited for any more."""
    m = pb.Calls(given_up=given_up)
    add = m.calls.add
    for c in calls:
        add(id=c.id, act=c.act, request=c.request, timeout_ms=c.timeout_ms, until_us=c.until_us)
    return m.SerializeToString()


def decode_calls(data: bytes) -> tuple[list[Call], list[int]]:
    m = pb.Calls.FromString(data)
    return [Call(c.id, c.act, c.request, c.timeout_ms, c.until_us) for c in m.calls], list(m.given_up)


def encode_replies(replies: list[Reply]) -> bytes:
    m = pb.Replies()
    add = m.replies.add
    for r in replies:
        add(id=r.id, reply=r.reply, error_code=r.code, error=r.error)
    return m.SerializeToString()


def decode_replies(data: bytes) -> list[Reply]:
    return [Reply(r.id, r.reply, r.error_code, r.error) for r in pb.Replies.FromString(data).replies]


def methods() -> dict[str, list[str]]:
    """Every service and method the .proto files declare, by their full names."""
    found: dict[str, list[str]] = {}
    for file in (pb.DESCRIPTOR, worker_pb2.DESCRIPTOR):
        for service in file.services_by_name.values():
            found[service.full_name] = [method.name for method in service.methods]
    return found
