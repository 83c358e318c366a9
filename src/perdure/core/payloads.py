"""Payloads by reference: the form of a payload whose bytes, or parts of them, are kept in a payload store.

A payload is JSON text. One that refers to stored content is an envelope instead: MARK, then MessagePack of a list of references and JSON in
which `{"$payload": n}` stands for reference n, at any depth. MARK opens with a byte that no JSON text and no UTF-8 text contains, so plain
payloads need no change and no escape.

    plain      {"rows": [1, 2, 3]}
    envelope   MARK [[Reference], '{"$payload":0}', '$payload']      the whole value is stored

Laws:

1. A reference is either a value (`is_blob` false): its content is a payload that stands at its place; or a blob: a handle, whose content is read
   on demand. Workflow code sees values whole and blobs as handles.
2. The list names every reference of the envelope, so nothing is found by looking at the JSON. What a stored value refers to in turn is
   recorded with that value in the store.
3. A dict of the user's that looks like a marker survives: the key of the markers is chosen so that the JSON has no other use of it.
4. The same value and the same references give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

from perdure.core.errors import InvalidInput, PayloadTooLarge
from perdure.core.limits import PAYLOAD_BYTES_MAX

MARK: Final = b"\xc1ref"
"""How an envelope begins. Four bytes, so that a record that holds none is recognised by one search of its bytes."""
KEY: Final = "$payload"
JSON_TYPE: Final = "application/json"
OBJECT_TYPE: Final = "application/json; type=object"
"""Of a stored value that is a JSON object. Flows offer the members of one to the next task."""
BINARY_TYPE: Final = "application/octet-stream"
DIGEST_BYTES: Final = 32
KEYS_MAX: Final = 20
"""Keys of markers that are tried."""
MARKER_BYTES: Final = 160
"""About what a reference and its marker take in an envelope."""


class Reference(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Stored content, by its SHA-256."""

    sha256: bytes
    size: int
    store: str = ""
    """Where it is: empty for the database, else the URL of a folder in an object store."""
    is_blob: bool = False
    media_type: str = JSON_TYPE
    name: str = ""
    """The file name of a blob, where it has one."""

    @property
    def hex(self) -> str:
        return self.sha256.hex()


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    references: list[Reference]
    body: bytes
    """JSON with markers."""
    key: str = KEY
    contents: dict[bytes, bytes] = {}
    """Stored values that were loaded for a decider, by SHA-256. Never written: see `without_contents`."""

    @property
    def is_whole(self) -> bool:
        """The payload is one reference and nothing else."""
        return len(self.references) == 1 and self.body == _marker_text(self.key, 0)


class NeedPayload(Exception):
    """An expression reads inside stored values that were not loaded: the decision is made again when they are."""

    def __init__(self, references: list[Reference]) -> None:
        super().__init__(f"{len(references)} stored values are read")
        self.references = references


class Placed:
    """A reference at its place in a decoded payload. Opaque: msgspec does not know it, so it never becomes JSON by accident."""

    __slots__ = ("_value", "reference")

    def __init__(self, reference: Reference, content: bytes | None = None) -> None:
        self.reference = reference
        self._value: Any = content

    @property
    def is_loaded(self) -> bool:
        return self.reference.is_blob or self._value is not None

    def inside(self) -> Any:
        """What it stands for: of a blob what is known about it, of a value the value. NeedPayload when that was not loaded."""
        r = self.reference
        if r.is_blob:
            return {"name": r.name, "size": r.size, "sha256": r.hex, "media_type": r.media_type}
        if self._value is None:
            raise NeedPayload([r])
        if isinstance(self._value, bytes):
            self._value = (decode_tree(self._value),)
        return self._value[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placed) and other.reference == self.reference

    def __hash__(self) -> int:
        return hash(self.reference)

    def __repr__(self) -> str:
        return f"Placed({self.reference.hex[:8]}, {self.reference.size} bytes)"


_envelopes: Final = msgspec.msgpack.Decoder(Envelope)


def digest_of(content: bytes) -> bytes:
    return sha256(content).digest()


def is_by_reference(payload: bytes) -> bool:
    """Whether it is an envelope."""
    return payload.startswith(MARK)


def any_by_reference(payloads: list[bytes]) -> bool:
    """One pass in C: JSON text is below MARK, whose first byte is no ASCII."""
    return bool(payloads) and max(payloads) >= MARK


def sealed(references: list[Reference], body: bytes, key: str = KEY) -> bytes:
    """The bytes of an envelope."""
    return MARK + msgspec.msgpack.encode(Envelope(references, body, key))


def opened(payload: bytes) -> Envelope:
    """The envelope that these bytes are. InvalidInput when they are none."""
    try:
        return _envelopes.decode(memoryview(payload)[len(MARK) :])
    except msgspec.DecodeError as e:
        raise InvalidInput(f"a payload by reference cannot be read: {e}") from None


def whole(reference: Reference) -> bytes:
    """A payload that is one reference."""
    return sealed([reference], _marker_text(KEY, 0))


def references_of(payload: bytes) -> list[Reference]:
    """The references that a payload names itself; those inside stored values are known to the store."""
    return opened(payload).references if payload.startswith(MARK) else []


def values_of(payload: bytes) -> list[Reference]:
    """The stored values that stand in a payload."""
    return [r for r in references_of(payload) if not r.is_blob]


class Markers:
    """Collects the references of a payload while its JSON is written."""

    def __init__(self, key: str = KEY) -> None:
        self.key = key
        self.references: list[Reference] = []
        self._places: dict[Reference, int] = {}
        self._written = 0

    def place(self, reference: Reference) -> dict[str, int]:
        """What to write in the place of this reference."""
        n = self._places.get(reference)
        if n is None:
            n = self._places[reference] = len(self.references)
            self.references.append(reference)
        self._written += 1
        return {self.key: n}

    def is_unique_in(self, body: bytes) -> bool:
        """Whether the key occurs in the JSON as markers only."""
        return body.count(b'"' + self.key.encode() + b'"') == self._written


def written(dump: Callable[[Markers], bytes]) -> bytes:
    """The payload that `dump` writes with the markers it is given. It is called again with another key if the value uses the first one."""
    key = KEY
    for _ in range(KEYS_MAX):
        markers = Markers(key)
        body = dump(markers)
        if not markers.references:
            return body
        if markers.is_unique_in(body):
            return sealed(markers.references, body, key)
        key += "$"
    raise InvalidInput(f"a value uses {KEY!r} and KEYS_MAX={KEYS_MAX} longer forms of it as keys; rename one")


def encode_tree(tree: Any) -> bytes:
    """A payload of plain data in which `Placed` stands for references."""
    try:
        return msgspec.json.encode(tree, enc_hook=_refuse)
    except _HasReferences:
        return written(lambda markers: msgspec.json.encode(tree, enc_hook=lambda leaf: _place(markers, leaf)))


def decode_tree(payload: bytes) -> Any:
    """The plain data of a payload, with a `Placed` for each reference."""
    if not payload.startswith(MARK):
        return msgspec.json.decode(payload)
    envelope = opened(payload)
    contents = envelope.contents
    return replaced(msgspec.json.decode(envelope.body), envelope, lambda r: Placed(r, contents.get(r.sha256)))


def with_contents(payload: bytes, contents: Mapping[bytes, bytes]) -> bytes:
    """The payload for a decider, with what was loaded of its values. What it passes on stays a reference."""
    envelope = opened(payload)
    found = {r.sha256: contents[r.sha256] for r in envelope.references if r.sha256 in contents}
    if not found:
        return payload
    return MARK + msgspec.msgpack.encode(msgspec.structs.replace(envelope, contents=found))


def without_contents(payload: bytes) -> bytes:
    """The payload as it may be recorded."""
    envelope = opened(payload)
    return sealed(envelope.references, envelope.body, envelope.key) if envelope.contents else payload


def inside(value: Any) -> Any:
    """The value itself, where it stands for stored content."""
    return value.inside() if type(value) is Placed else value


def without_stored(payload: bytes) -> Any:
    """The plain data of a payload, with None for each reference: for readers that cannot wait for a store."""
    envelope = opened(payload)
    return replaced(msgspec.json.decode(envelope.body), envelope, lambda _: None)


def replaced(tree: Any, envelope: Envelope, make: Callable[[Reference], Any]) -> Any:
    """The tree with `make(reference)` in the place of each marker. Lists and dicts of plain data alone are looked into."""
    if type(tree) is dict:
        found: dict[Any, Any] = tree
        reference = marked(found, envelope)
        if reference is not None:
            return make(reference)
        return {key: replaced(value, envelope, make) for key, value in found.items()}
    if type(tree) is list:
        return [replaced(value, envelope, make) for value in tree]
    return tree


def marked(found: Mapping[Any, Any], envelope: Envelope) -> Reference | None:
    """The reference that a dict of decoded JSON stands for; None: it is data."""
    if len(found) != 1 or envelope.key not in found:
        return None
    n = found[envelope.key]
    if not isinstance(n, int) or not 0 <= n < len(envelope.references):
        raise InvalidInput(f"a payload names reference {n!r} and has {len(envelope.references)}")
    return envelope.references[n]


def spliced(payload: bytes, contents: Mapping[bytes, bytes]) -> bytes:
    """The payload with its stored values in their places, by their SHA-256. They may be envelopes themselves; then so is the result."""
    envelope = opened(payload)
    if envelope.is_whole and not envelope.references[0].is_blob:
        return contents[envelope.references[0].sha256]

    def content(reference: Reference) -> Any:
        if reference.is_blob:
            return Placed(reference)
        data = contents[reference.sha256]
        return decode_tree(data) if data.startswith(MARK) else msgspec.Raw(data)

    return encode_tree(replaced(msgspec.json.decode(envelope.body), envelope, content))


def agree(recorded: list[bytes], asked: list[bytes]) -> bool:
    """Whether code that is replayed asks for what the history has. A value that was stored since is compared by its digest."""
    return len(recorded) == len(asked) and all(map(_agrees, recorded, asked))


def _agrees(recorded: bytes, asked: bytes) -> bool:
    if recorded == asked:
        return True
    if not recorded.startswith(MARK):
        return False
    envelope = opened(recorded)
    if envelope.is_whole:
        return envelope.references[0].sha256 == digest_of(asked)
    return _agree_as_envelopes(envelope, asked) if asked.startswith(MARK) else _agrees_within(envelope, None, asked)


def _agree_as_envelopes(recorded: Envelope, asked: bytes) -> bool:
    """A value with blobs, some of whose other members were stored since."""
    theirs, envelope = _members(recorded.body), opened(asked)
    ours = _members(envelope.body)
    if theirs is None or ours is None or list(theirs) != list(ours):
        return False
    for name, part in theirs.items():
        found = decode_tree(sealed(recorded.references, bytes(part), recorded.key))
        if isinstance(found, Placed) and not found.reference.is_blob:
            if found.reference.sha256 != digest_of(bytes(ours[name])):
                return False
        elif found != decode_tree(sealed(envelope.references, bytes(ours[name]), envelope.key)):
            return False
    return True


def _agrees_within(envelope: Envelope, part: msgspec.Raw | None, asked: bytes) -> bool:
    """A part of an envelope's JSON, or all of it, against what is asked for."""
    recorded = envelope.body if part is None else bytes(part)
    if recorded == asked:
        return True
    theirs = _members(recorded)
    if theirs is None:
        return False
    if len(theirs) == 1 and envelope.key in theirs:
        return envelope.references[msgspec.json.decode(theirs[envelope.key], type=int)].sha256 == digest_of(asked)
    ours = _members(asked)
    if ours is None or list(ours) != list(theirs):
        return False
    return all(_agrees_within(envelope, theirs[name], bytes(ours[name])) for name in ours)


def _members(text: bytes) -> dict[str, msgspec.Raw] | None:
    """The members of a JSON object; None for other values."""
    if not text.startswith(b"{"):
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return None


def large_members(payload: bytes, size_max: int) -> dict[str, msgspec.Raw] | None:
    """The members of an object, such as the arguments of a call, that are stored so that the rest is not larger than `size_max`. None: the
    payload is stored whole. What stays is readable without the store."""
    envelope = opened(payload) if payload.startswith(MARK) else None
    members = _members(payload if envelope is None else envelope.body)
    if not members:
        return None
    marker = b"" if envelope is None else b'"' + envelope.key.encode() + b'"'
    least = max(size_max // 4, MARKER_BYTES)
    # A member that holds a blob stays: its marker means something in this envelope only.
    large = {n: raw for n, raw in members.items() if len(raw) > least and (not marker or marker not in bytes(raw))}
    rest = len(payload) - sum(map(len, large.values())) + MARKER_BYTES * len(large)
    return large if large and rest <= size_max else None


def with_stored(payload: bytes, stored: Mapping[str, Reference]) -> bytes:
    """An object with references in the place of some of its members."""
    tree: dict[str, Any] = decode_tree(payload) if payload.startswith(MARK) else (_members(payload) or {})
    return encode_tree(tree | {name: Placed(reference) for name, reference in stored.items()})


def stored_in(payload: bytes, stores: Mapping[bytes, str]) -> bytes:
    """The envelope with the store of each reference, by SHA-256, once its content is there."""
    envelope = opened(payload)
    references = [
        msgspec.structs.replace(r, store=stores[r.sha256]) if r.sha256 in stores else r for r in envelope.references
    ]
    return sealed(references, envelope.body, envelope.key)


def held_by(payloads: Iterable[bytes]) -> dict[tuple[str, bytes], Reference]:
    """Every reference of some payloads, once, by store and SHA-256."""
    return {(r.store, r.sha256): r for payload in payloads if payload.startswith(MARK) for r in references_of(payload)}


def refuse_reference(payload: bytes, what: str) -> None:
    """For values that no run holds, and that would lose their content: of schedules, deferred starts and named events."""
    if payload.startswith(MARK):
        raise PayloadTooLarge(
            f"{what} cannot refer to stored content, because no run keeps that content yet: leave blobs out, and keep it below "
            f"PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX} bytes"
        )


class _HasReferences(Exception):
    """The tree holds references: it becomes an envelope."""


def _refuse(leaf: Any) -> Any:
    if isinstance(leaf, Placed):
        raise _HasReferences
    raise TypeError(f"a {type(leaf).__name__} is not data")


def _place(markers: Markers, leaf: Any) -> Any:
    if isinstance(leaf, Placed):
        return markers.place(leaf.reference)
    return _refuse(leaf)


def _marker_text(key: str, n: int) -> bytes:
    return msgspec.json.encode({key: n})
