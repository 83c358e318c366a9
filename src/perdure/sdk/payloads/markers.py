"""The references of the payload that this thread is writing or reading.

Codecs call back for a blob deep inside a value and take no further argument along, so what they need is kept per thread, for the time of one
call. Payloads without blobs, nearly all, do not come here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import msgspec

from perdure.core.errors import PayloadMissing
from perdure.core.payloads import Envelope, Markers, Reference, marked, opened, written
from perdure.payloads.content import Content, UnsentPayload


class HasBlobs(Exception):
    """The value contains a blob: it is written by `written_with_blobs`."""


class _Here(threading.local):
    markers: Markers | None = None
    contents: dict[bytes, Content] | None = None
    noticed = False
    envelope: Envelope | None = None


_here = _Here()


def place(reference: Reference, content: Content | None) -> dict[str, int]:
    """What is written in the place of a blob."""
    if _here.markers is None or _here.contents is None:
        _here.noticed = True
        raise HasBlobs
    if content is not None:
        _here.contents[reference.sha256] = content
    return _here.markers.place(reference)


def is_collecting() -> bool:
    return _here.markers is not None


def noticed() -> bool:
    """Whether a codec met a blob since this was last asked. Codecs may wrap what a callback raises."""
    was, _here.noticed = _here.noticed, False
    return was


def written_with_blobs(dump: Callable[[], bytes]) -> bytes:
    """The payload that `dump` writes, with the references of its blobs."""
    contents: dict[bytes, Content] = {}

    def collected(markers: Markers) -> bytes:
        contents.clear()
        _here.markers, _here.contents = markers, contents
        try:
            return dump()
        finally:
            _here.markers = _here.contents = None

    payload = written(collected)
    return UnsentPayload.of(payload, tuple(contents.values())) if contents else payload


@contextmanager
def reading(payload: bytes) -> Generator[Envelope]:
    """Decode the JSON of an envelope; blobs find their references here."""
    envelope = opened(payload)
    if any(not r.is_blob for r in envelope.references):
        raise PayloadMissing(
            "the payload refers to a stored value that was not loaded; a history that was exported needs the payload store of its server "
            "to be replayed"
        )
    before, _here.envelope = _here.envelope, envelope
    try:
        yield envelope
    finally:
        _here.envelope = before


def adopted(value: Any, envelope: Envelope, make: Callable[[Reference], Any]) -> Any:
    """The decoded value with blobs also where its types say nothing (Any), which the codec has left as markers."""
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(adopted(item, envelope, make) for item in value)
    if isinstance(value, list):
        return [adopted(item, envelope, make) for item in value]
    if isinstance(value, dict):
        reference = marked(value, envelope)
        if reference is not None:
            return make(reference)
        return {key: adopted(item, envelope, make) for key, item in value.items()}
    for field in _fields_of(value):
        before = getattr(value, field)
        after = adopted(before, envelope, make)
        if after is not before:
            _set(value, field, after)
    return value


def _fields_of(value: Any) -> Iterable[str]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    return getattr(type(value), "__dataclass_fields__", ())


def _set(value: Any, field: str, item: Any) -> None:
    """It was decoded a moment ago and has no other reader yet, so a frozen one may be completed."""
    if isinstance(value, msgspec.Struct):
        msgspec.structs.force_setattr(value, field, item)
    else:
        object.__setattr__(value, field, item)


def reference_at(data: Any) -> Reference:
    """The reference that stands at a place where a blob is expected."""
    if _here.envelope is None or not isinstance(data, dict):
        raise ValueError("expected a blob")
    found = marked(data, _here.envelope)
    if found is None or not found.is_blob:
        raise ValueError("expected a blob")
    return found
