"""Typed JSON payloads, checked at both ends.

Laws:
1. A payload is JSON, or an envelope of JSON with references to blobs (core/payloads.py). Nothing is ever pickled, so no payload can run code and any language can read it.
2. What `decode` returns is equal to what `encode` was given, or `encode` raises. To prove it, `encode` reads its own
   output back through the typed decoder and compares, except for scalars whose JSON form is known to be exact.
3. The same value gives the same bytes in every process: sets are written sorted, since their order follows a hash seed.

msgspec does the work. It refuses unions that it cannot tell apart from the JSON alone, such as two dataclasses; for
those, and for pydantic models, pydantic is used when it is installed, and imported only then.
"""

from __future__ import annotations

import functools
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, Union, cast, get_args, get_origin

import msgspec

from perdure.core.errors import InvalidInput, PayloadMismatch, PayloadTooLarge
from perdure.core.limits import PAYLOAD_OBJECT_BYTES_MAX
from perdure.core.payloads import MARK
from perdure.sdk.payloads import markers
from perdure.sdk.payloads.blobs import Blob
from perdure.sdk.payloads.pydantic import (
    Codec,
    explain,
    is_model,
    is_pydantic_error,
    read_model,
    through_pydantic,
    write_model,
)
from perdure.sdk.payloads.roundtrip import difference, type_name

T = TypeVar("T")

_EXACT_TYPES: frozenset[Any] = frozenset({int, str, bool, NoneType, bytes})
"""Types whose JSON form always reads back as the same value. Not float: NaN and infinity become null."""

_PLAIN_DATA = (
    "A payload is JSON: builtins, list, dict, tuple, set, datetime, UUID, Decimal, Enum, dataclasses, TypedDict, "
    "NamedTuple, msgspec.Struct and pydantic models. Pass such data, or an id by which the other side finds the object."
)


class Converter(Generic[T]):
    """Turns values of one annotation into JSON and back."""

    __slots__ = ("_dump", "_exact", "_load", "annotation", "native")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.native = False
        """True if msgspec alone carries this type, so that it may be a field of a generated Struct."""
        if is_model(annotation):
            self._dump, self._load = through_pydantic(annotation, strict=None)
        else:
            self._dump, self._load = self._through_msgspec_or_pydantic(annotation)
        self._exact = _exact_types(annotation) if self.native else frozenset[Any]()

    @classmethod
    def of(cls, annotation: Any) -> Converter[Any]:
        """The converter of an annotation, built once."""
        try:
            return _cached(annotation)
        except TypeError:  # Annotated[...] may carry something unhashable; such a type is built each time
            return Converter(annotation)

    def encode(self, value: T, what: str = "the value") -> bytes:
        """Write `value` as JSON. `what` names it in errors."""
        try:
            data = self._dump(value)
            # The fast path is decided by exact type: a subclass may compare equal and still be something else.
            if type(value) not in self._exact and not self._load(data) == value:  # noqa: SIM201 (`!=` may be defined apart)
                self._refuse_change(value, self._load(data), what)
        except PayloadMismatch:
            raise
        except Exception as error:
            if markers.noticed():
                return self._encode_with_blobs(value, what)
            raise PayloadMismatch(self._why_not_encoded(value, what, error)) from error
        if len(data) > PAYLOAD_OBJECT_BYTES_MAX:
            raise too_large(what, len(data))
        return data

    def _encode_with_blobs(self, value: T, what: str) -> bytes:
        """An envelope with a reference for each blob. Laws 2 and 3 hold for it as well."""
        try:
            data = markers.written_with_blobs(lambda: self._dump(value))
        except Exception as error:
            raise PayloadMismatch(self._why_not_encoded(value, what, error)) from error
        back = self.decode(data, what)
        if not back == value:  # noqa: SIM201
            self._refuse_change(value, back, what)
        return data

    def dump(self, value: T) -> bytes:
        """As JSON, unchecked: for a part of a payload that is checked as a whole."""
        return self._dump(value)

    def decode(self, data: bytes, what: str = "the value") -> T:
        """Read JSON as a value of the annotation."""
        try:
            value: T = self._load(data)
            return value
        except Exception as error:
            if data.startswith(MARK):
                return self._decode_with_blobs(data, what)
            raise PayloadMismatch(
                f"{what} does not fit `{type_name(self.annotation)}`: {explain(error)}. Either it was written by "
                "code with another signature or the annotation changed; let the annotation accept both forms."
            ) from error

    def _decode_with_blobs(self, data: bytes, what: str) -> T:
        with markers.reading(data) as envelope:
            return cast(T, markers.adopted(self.decode(envelope.body, what), envelope, Blob))

    def decode_all(self, blobs: list[bytes], what: str = "the value") -> list[T]:
        try:
            return list(map(self._load, blobs))
        except Exception:
            return [self.decode(blob, f"{what} (item {i})") for i, blob in enumerate(blobs)]

    def _through_msgspec_or_pydantic(self, annotation: Any) -> Codec:
        try:
            load = msgspec.json.Decoder(annotation, dec_hook=read_model).decode
        except NameError as error:
            raise InvalidInput(_unresolved(annotation, error)) from error
        except TypeError as error:
            return through_pydantic(annotation, strict=True, refusal=error)
        self.native = True
        encoder = _SORTING_ENCODER if _contains_set(annotation) else _ENCODER
        return encoder.encode, load

    def _refuse_change(self, value: Any, back: Any, what: str) -> None:
        changed = difference(value, back)
        if changed:
            raise PayloadMismatch(
                f"{what} would not survive as `{type_name(self.annotation)}`: {changed}. Annotate it with the exact "
                "type, or convert it before passing it on."
            )

    def _why_not_encoded(self, value: Any, what: str, error: Exception) -> str:
        head = f"{what} cannot be sent as `{type_name(self.annotation)}`"
        if isinstance(error, msgspec.ValidationError) or is_pydantic_error(error):
            reason = explain(error)
            null = (
                ". NaN and infinity have no JSON form; send None or a string instead" if "got `null`" in reason else ""
            )
            return f"{head}: {reason}{null}."
        if isinstance(error, RecursionError):
            return f"{head}: it is nested too deeply, or it contains itself. Pass a flat structure with ids instead."
        if isinstance(error, UnicodeEncodeError):
            return (
                f"{head}: a string holds a lone surrogate, which is no Unicode text. Pass bytes, or clean the string."
            )
        return f"{head}: {error} (given a `{type_name(type(value))}`). {_PLAIN_DATA}"


def too_large(what: str, size: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"{what} takes {size:,} bytes as JSON, over the limit PAYLOAD_OBJECT_BYTES_MAX={PAYLOAD_OBJECT_BYTES_MAX:,}. Split it, or pass it "
        "as several blobs."
    )


@functools.lru_cache(maxsize=4096)
def _cached(annotation: Any) -> Converter[Any]:
    return Converter(annotation)


def _exact_types(annotation: Any) -> frozenset[Any]:
    """Exact types that `encode` need not read back. Constraints (Annotated) and Literals are not among them."""
    if annotation is Any or annotation is object:
        return _EXACT_TYPES - {bytes}
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return frozenset(kind for kind in _EXACT_TYPES if any(member is kind for member in members))


def _contains_set(annotation: Any) -> bool:
    kinds = (msgspec.inspect.SetType, msgspec.inspect.FrozenSetType)
    waiting, seen = [msgspec.inspect.type_info(annotation)], set[int]()
    while waiting:
        node = waiting.pop()
        if isinstance(node, kinds):
            return True
        if id(node) not in seen:
            seen.add(id(node))
            waiting.extend(parts_of(node))
    return False


def parts_of(node: Any) -> list[Any]:
    """What a node of msgspec's description of a type refers to."""
    if isinstance(node, (tuple, list)):
        return list(cast("tuple[Any, ...]", node))
    if isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)):
        return [getattr(node, name) for name in node.__struct_fields__]
    return []


def _unresolved(annotation: Any, error: Exception) -> str:
    return (
        f"the annotation `{type_name(annotation)}` cannot be resolved: {error}. Define the types it names at module "
        "level, before the first call."
    )


_ENCODER = msgspec.json.Encoder(enc_hook=write_model)
_SORTING_ENCODER = msgspec.json.Encoder(enc_hook=write_model, order="deterministic")
