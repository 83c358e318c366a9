"""Columns of a commit as PostgreSQL's binary arrays, made a column at a time.

The driver looks at every element of an array to find out whether it is an array itself, and calls a Python function for every uuid and
timestamp. A commit has some forty columns of up to some hundred elements, so that was a seventh of a busy engine's time. The elements of
ours are plain, and whole columns are packed at once. Used for the connection that commits, which sends arrays of these types only.

The public interface of the driver cannot replace the codec of an array type. Where the private one has changed, nothing is replaced
and everything works, only slower; a test notices.
"""

from __future__ import annotations

import logging
import sys
from array import array
from collections.abc import Callable, Sequence
from struct import Struct, pack, unpack_from
from typing import Any, Final

from perdure.core.durations import FOREVER_US
from perdure.store.connections import PG_EPOCH_US, decode_moment, encode_moment

log = logging.getLogger("perdure.store")

_HEAD: Final = Struct(">iiIii")
_LENGTH: Final = Struct(">i")
_WIDE: Final = Struct(">iq")
_NULL: Final = b"\xff\xff\xff\xff"
_TRUE, _FALSE = b"\x00\x00\x00\x01\x01", b"\x00\x00\x00\x01\x00"
_UUID_LENGTH: Final = b"\x00\x00\x00\x10"

Encode = Callable[[Sequence[Any]], bytes]
Body = Callable[[Sequence[Any], bool], bytes]
"""Of the elements, and whether any of them is NULL."""


def _array(element: int, body: Body) -> Encode:
    empty = pack(">iiI", 0, 0, element)

    def encode(values: Sequence[Any]) -> bytes:
        if not values:
            return empty
        nulls = None in values
        return _HEAD.pack(1, nulls, element, len(values), 1) + body(values, nulls)

    return encode


def _uuids(values: Sequence[Any], nulls: bool) -> bytes:
    if nulls:
        return b"".join([_NULL if v is None else _UUID_LENGTH + v for v in values])
    return _UUID_LENGTH + _UUID_LENGTH.join(values)


def _ints(values: Sequence[Any], nulls: bool) -> bytes:
    if nulls:
        return b"".join([_NULL if v is None else pack(">ii", 4, v) for v in values])
    both = array("i", (4, 0)) * len(values)
    both[1::2] = array("i", values)  # refuses what is too large for the type int4
    if sys.byteorder == "little":
        both.byteswap()
    return both.tobytes()


def _small(values: Sequence[Any], _: bool) -> bytes:
    return b"".join([_NULL if v is None else pack(">ih", 2, v) for v in values])


def _large(values: Sequence[Any], nulls: bool) -> bytes:
    """Most are small: their upper half is 0."""
    if not nulls and min(values) >= 0 and max(values) < 1 << 31:
        parts = array("i", (8, 0, 0)) * len(values)
        parts[2::3] = array("i", values)
        if sys.byteorder == "little":
            parts.byteswap()
        return parts.tobytes()
    return b"".join([_NULL if v is None else _WIDE.pack(8, v) for v in values])


def _moments(values: Sequence[Any], nulls: bool) -> bytes:
    if not nulls and FOREVER_US not in values:
        return b"".join([_WIDE.pack(8, v - PG_EPOCH_US) for v in values])
    return b"".join([_NULL if v is None else _WIDE.pack(8, encode_moment(v)[0]) for v in values])


def _texts(values: Sequence[Any], _: bool) -> bytes:
    """Names repeat: each is encoded once."""
    made = {v: _NULL if v is None else _LENGTH.pack(len(text := v.encode())) + text for v in set(values)}
    return made.popitem()[1] * len(values) if len(made) == 1 else b"".join(map(made.__getitem__, values))


def _bytes(values: Sequence[Any], nulls: bool) -> bytes:
    """Hashes are all of one length, and look it."""
    if not nulls and len(values[0]) == len(values[-1]) and len(set(map(len, values))) == 1:
        size = _LENGTH.pack(len(values[0]))
        return size + size.join(values)
    return b"".join([_NULL if v is None else _LENGTH.pack(len(v)) + v for v in values])


def _bools(values: Sequence[Any], _: bool) -> bytes:
    return b"".join([_NULL if v is None else _TRUE if v else _FALSE for v in values])


def _decoder(element: Callable[[bytes], Any]) -> Callable[[bytes], list[Any]]:
    def decode(data: bytes) -> list[Any]:
        data = bytes(data)
        if _LENGTH.unpack_from(data)[0] == 0:
            return []
        count, at = unpack_from(">i", data, 12)[0], 20
        found: list[Any] = []
        for _ in range(count):
            (size,) = _LENGTH.unpack_from(data, at)
            at += 4
            found.append(None if size < 0 else element(data[at : at + size]))
            at += max(size, 0)
        return found

    return decode


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


TYPES: Final[tuple[tuple[str, int, int, Body, Callable[[bytes], Any]], ...]] = (
    ("_bool", 1000, 16, _bools, lambda data: data == b"\x01"),
    ("_bytea", 1001, 17, _bytes, bytes),
    ("_int2", 1005, 21, _small, _number),
    ("_int4", 1007, 23, _ints, _number),
    ("_text", 1009, 25, _texts, lambda data: data.decode()),
    ("_int8", 1016, 20, _large, _number),
    ("_timestamptz", 1185, 1184, _moments, lambda data: decode_moment((_number(data),))),
    ("_uuid", 2951, 2950, _uuids, bytes),
)


def install(connection: Any) -> bool:
    """Whether the columns of this connection are packed here from now on."""
    try:
        settings = connection._protocol.get_settings()
        for name, oid, element, body, value in TYPES:
            settings.add_python_codec(
                oid, name, "pg_catalog", [], "scalar", _array(element, body), _decoder(value), "binary"
            )
    except (AttributeError, TypeError) as e:
        log.info("arrays are encoded by the driver: %s", e)
        return False
    return True
