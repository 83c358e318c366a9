"""Events, commands and messages as bytes with a version byte; histories as JSON for display and for golden files.

Law: this module reads everything that any version of it has written. A new layout takes a new version byte and keeps the old reader.
"""

from __future__ import annotations

import base64
from functools import cache
from typing import Any, cast

import msgspec

from perdure.core import events as ev
from perdure.core.commands import Command
from perdure.core.errors import Failure, InvalidInput
from perdure.core.events import Event, Recorded
from perdure.core.messages import Message
from perdure.core.retry import TaskOptions
from perdure.core.unopened import Unopened

VERSION = b"\x01"

_encoder = msgspec.msgpack.Encoder()
_events = msgspec.msgpack.Decoder(list[Event])
_messages = msgspec.msgpack.Decoder(Message)
_recorded = msgspec.msgpack.Decoder(list[Recorded])
_commands = msgspec.msgpack.Decoder(list[Command])
_options = msgspec.msgpack.Decoder(TaskOptions)
_failure = msgspec.msgpack.Decoder(Failure)


def encode_events(events: list[Event]) -> bytes:
    return VERSION + _encoder.encode(events)


def decode_events(data: bytes) -> list[Event]:
    return _events.decode(_body(data))


def encode_recorded(records: list[Recorded]) -> bytes:
    """Events with their numbers and times, for a worker."""
    return VERSION + _encoder.encode(records)


def decode_recorded(data: bytes) -> list[Recorded]:
    return _recorded.decode(_body(data))


def encode_commands(commands: list[Command]) -> bytes:
    return VERSION + _encoder.encode(commands)


def decode_commands(data: bytes) -> list[Command]:
    return _commands.decode(_body(data))


def encode_message(message: Message) -> bytes:
    return VERSION + _encoder.encode(message)


def decode_message(data: bytes) -> Message:
    message: Message = _messages.decode(_body(data))
    return message


def encode_options(options: TaskOptions) -> bytes:
    return VERSION + _encoder.encode(options)


def decode_options(data: bytes) -> TaskOptions:
    return _options.decode(_body(data))


def encode_failure(failure: Failure) -> bytes:
    return VERSION + _encoder.encode(failure)


def decode_failure(data: bytes) -> Failure:
    return _failure.decode(_body(data))


def _body(data: bytes) -> memoryview:
    if data[:1] != VERSION:
        if isinstance(data, Unopened):
            raise data.error
        raise InvalidInput(
            f"a record of version {data[:1].hex()} is newer than this Perdure understands; upgrade perdure"
        )
    return memoryview(data)[1:]


def decode_row(seq: int, at_us: int, body: bytes) -> list[Recorded]:
    """One history row holds consecutive events of one commit."""
    return [Recorded(seq + i, at_us, e) for i, e in enumerate(decode_events(body))]


_BY_NAME: dict[str, type[Any]] = {t.__name__: t for t in ev.EVENT_TYPES}


def history_to_json(run_id: str, history: list[Recorded]) -> bytes:
    """Payload bytes that are JSON text appear as text; anything else as base64."""
    document = {
        "perdure_history": 1,
        "run_id": run_id,
        "events": [
            {"seq": r.seq, "at_us": r.at_us, "type": type(r.event).__name__, "data": event_fields(r.event)}
            for r in history
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def history_from_json(data: bytes) -> tuple[str, list[Recorded]]:
    document = msgspec.json.decode(data)
    if not isinstance(document, dict) or document.get("perdure_history") != 1:
        raise InvalidInput("this is not a Perdure history: the field perdure_history: 1 is missing")
    history: list[Recorded] = []
    for item in document["events"]:
        history.append(Recorded(item["seq"], item["at_us"], event_from_fields(item["type"], item["data"])))
    return document["run_id"], history


def event_fields(event: Event) -> dict[str, Any]:
    """The fields of an event as JSON that `event_from_fields` reads: a payload is `{"text": ...}` or `{"base64": ...}`."""
    return {f: _to_plain(getattr(event, f)) for f in event.__struct_fields__}


@cache
def _defaults(struct: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (f.name, f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory())
        for f in msgspec.structs.fields(struct)
    )


def told_fields(record: msgspec.Struct) -> dict[str, Any]:
    """As `event_fields`, without the fields that have their default. Written out, because exports call it for every event there is."""
    out: dict[str, Any] = {}
    for name, default in _defaults(type(record)):
        value = getattr(record, name)
        if value is default or value == default:
            continue
        kind = type(value)
        if kind is str or kind is int:
            out[name] = value
        else:
            out[name] = told_fields(value) if isinstance(value, msgspec.Struct) else _to_plain(value)
    return out


def _to_plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return {"text": value.decode()}
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return [_to_plain(v) for v in value]
    if isinstance(value, msgspec.Struct):
        return {f: _to_plain(getattr(value, f)) for f in value.__struct_fields__}
    return value


@cache
def _hints(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {f.name: f.type for f in msgspec.structs.fields(struct)}


def event_from_fields(kind: str, fields: dict[str, Any]) -> Event:
    event_type = _BY_NAME[kind]
    hints = _hints(cast("type[msgspec.Struct]", event_type))
    return cast("Event", event_type(**{name: _from_plain(value, hints[name]) for name, value in fields.items()}))


def _from_plain(value: Any, hint: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"text"}:
            return value["text"].encode()
        if set(value) == {"base64"}:
            return base64.b64decode(value["base64"])
        struct: type[msgspec.Struct] | None = next(
            (t for t in getattr(hint, "__args__", (hint,)) if isinstance(t, type) and issubclass(t, msgspec.Struct)),
            None,
        )
        assert struct is not None, hint
        parts = _hints(struct)
        return struct(**{k: _from_plain(v, parts[k]) for k, v in value.items()})
    if isinstance(value, list):
        of = getattr(hint, "__args__", (None,))[0]
        items = [_from_plain(v, of) for v in value]
        return tuple(items) if getattr(hint, "__origin__", None) is tuple else items
    return value
