"""Parameters and rows of the named queries: where values are sealed on their way to the database, and opened on their way back.

A statement says in its file which of its parameters hold user data: `-- seals: input task_input, tasks.error error`. What comes back is
recognized by its first bytes, in the columns named below, of any statement. What a value is bound to is taken from its
row, or else from the arguments of the statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from perdure.core.errors import PayloadCorrupt, PayloadKeyMissing
from perdure.core.unopened import Unopened, unopened
from perdure.store.sealing.codec import JSON, MARK, QUOTED, WORD, WORDS, PayloadCodec, from_word, is_sealed
from perdure.store.sealing.kinds import KINDS, Kind, binding

BYTES: Final = frozenset(
    {"answer", "body", "data", "details", "failure", "first", "input", "last", "options", "payload", "request"}
    | {"result", "sealed", "value"}
)
TEXTS: Final = frozenset({"comment", "error", "stuck", "task_error", "traceback"})
JSONS: Final = frozenset({"data", "spec", "votes"})
OPENED: Final = BYTES | TEXTS | JSONS
"""Columns, by the names that statements give them, in which sealed values are looked for."""
SPEC_IN_CLEAR: Final = frozenset(
    {"assignees", "deadline_us", "escalate_to", "escalate_us", "event", "key", "quorum", "since_us"}
)
"""Members of an approval and of a wait for an event that statements look at."""

_json: Final = msgspec.json


class Sealed(NamedTuple):
    """A parameter that holds user data."""

    parameter: str
    column: str
    """Of its tuples; empty: a single value."""
    kind: Kind


def sealed_parameters(line: str) -> tuple[Sealed, ...]:
    """From `input task_input, tasks.error error`."""
    found: list[Sealed] = []
    for part in filter(None, (p.strip() for p in line.split(","))):
        name, kind = part.split()
        parameter, _, column = name.partition(".")
        found.append(Sealed(parameter, column, KINDS[kind]))
    return tuple(found)


class OpenedRow:
    """A row of the driver with some of its values opened."""

    __slots__ = ("_row", "_values")

    def __init__(self, row: Any, values: dict[str, Any]) -> None:
        self._row, self._values = row, values

    def __getitem__(self, key: str | int) -> Any:
        name = key if isinstance(key, str) else list(self._row.keys())[key]
        value = self._values.get(name, self)
        if value is self:
            return self._row[name]
        if isinstance(value, Unopened):
            raise value.error
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self._row else default

    def keys(self) -> Any:
        return self._row.keys()

    def values(self) -> Iterator[Any]:
        return iter(self)

    def items(self) -> Iterator[tuple[str, Any]]:
        return zip(self._row.keys(), self, strict=True)

    def __contains__(self, key: str) -> bool:
        return key in self._row

    def __iter__(self) -> Iterator[Any]:
        """The values, as a row of the driver iterates."""
        return (self._values.get(k, v) for k, v in self._row.items())

    def __len__(self) -> int:
        return len(self._row)


# out


def is_marked(places: Sequence[tuple[str, int | None]], args: Mapping[str, Any]) -> bool:
    """Whether bytes of a user look sealed, so that they must be wrapped although nothing is sealed."""
    for parameter, place in places:
        given = args.get(parameter)
        if not given:
            continue
        values = [given] if place is None else [row[place] for row in map(tuple, given)]
        if any(value is not None and value[:2] == MARK for value in values):
            return True
    return False


def seal_arguments(
    codec: PayloadCodec, seals: Sequence[Sealed], columns: Mapping[str, tuple[str, ...]], args: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a statement with user data sealed."""
    out = dict(args)
    for one in seals:
        given = out.get(one.parameter)
        if given is None or (one.kind.in_text and not codec.encrypts):
            continue
        if not one.column:
            out[one.parameter] = _seal(codec, one.kind, args, given)
            continue
        names = columns[one.parameter]
        place = names.index(one.column)
        out[one.parameter] = [
            row
            if row[place] is None
            else (
                *row[:place],
                _seal(codec, one.kind, {**args, **dict(zip(names, row, strict=True))}, row[place]),
                *row[place + 1 :],
            )
            for row in map(tuple, given)
        ]
    return out


def _seal(codec: PayloadCodec, kind: Kind, found: Mapping[str, Any], value: Any) -> Any:
    bound_to = binding([found[name] for name in kind.bound_to])
    if kind.name == "spec":
        return seal_members(codec, kind, bound_to, value)
    if kind.name == "stuck":
        return seal_reason(codec, kind, bound_to, value)
    if kind.in_text:
        return codec.seal_text(kind, bound_to, value)
    return codec.seal(kind, bound_to, value)


def seal_reason(codec: PayloadCodec, kind: Kind, bound_to: bytes, reason: str) -> str:
    """`code: message`, of which the message is sealed, unless it is about a key that may be missing."""
    code, colon, message = reason.partition(": ")
    if code == PayloadKeyMissing.code or not message:
        return reason
    return code + colon + codec.seal_text(kind, bound_to, message)


def seal_members(codec: PayloadCodec, kind: Kind, bound_to: bytes, text: str) -> str:
    """A JSON object whose members are sealed, but for those that statements look at."""
    members: dict[str, msgspec.Raw] = _json.decode(text, type=dict[str, msgspec.Raw])
    out: dict[str, Any] = {}
    for name, raw in members.items():
        if name in SPEC_IN_CLEAR:
            out[name] = raw
        elif bytes(raw).startswith(b'"'):
            out[name] = codec.seal_text(kind, bound_to, _json.decode(raw, type=str))
        else:
            out[name] = codec.seal_text(kind, bound_to, bytes(raw).decode(), JSON)
    return _json.encode(out).decode()


# in


def opened_columns(row: Any) -> tuple[str, ...]:
    return tuple(filter(OPENED.__contains__, row.keys()))


def has_sealed(rows: Sequence[Any], columns: Sequence[str]) -> bool:
    for row in rows:
        for name in columns:
            value = row[name]
            if type(value) is bytes:
                if value[:2] == MARK:
                    return True
            elif type(value) is str and WORD in value:
                return True
    return False


async def open_rows(
    codec: PayloadCodec,
    connection: Any,
    rows: Sequence[Any],
    columns: Sequence[str],
    tables: frozenset[str],
    args: Mapping[str, Any],
) -> list[Any]:
    """Rows of which some have sealed values. `tables` are those that the statement names."""
    wanted = codec.missing_keys(data for row in rows for name in columns for data in _sealed_in(row[name]))
    if wanted:
        await codec.load(connection, wanted)
    return [open_row(codec, row, columns, tables, args) for row in rows]


def open_row(
    codec: PayloadCodec, row: Any, columns: Sequence[str], tables: frozenset[str], args: Mapping[str, Any]
) -> Any:
    def bound_to(kind: Kind) -> bytes:
        if tables.isdisjoint(kind.tables):
            raise PayloadCorrupt(
                f"an encrypted {kind.name.replace('_', ' ')} stands where it does not belong ({', '.join(sorted(tables))}): it was moved there"
            )
        return binding([row[name] if name in row else args[name] for name in kind.bound_to])

    values: dict[str, Any] = {}
    for name in columns:
        value = row[name]
        if type(value) is bytes and is_sealed(value):
            values[name] = _opened(codec, value, bound_to)
        elif type(value) is str and WORD in value:
            values[name] = (
                _opened_json(codec, value, bound_to) if name in JSONS else opened_text(codec, value, bound_to)
            )
    return OpenedRow(row, values) if values else row


def _sealed_in(value: Any) -> Iterator[bytes]:
    if type(value) is bytes:
        if is_sealed(value):
            yield value
    elif type(value) is str and WORD in value:
        yield from filter(None, (from_word(m[1]) for m in WORDS.finditer(value)))


def _opened(codec: PayloadCodec, data: bytes, bound_to: Callable[[Kind], bytes]) -> bytes:
    try:
        return codec.open(data, bound_to)[0]
    except (PayloadKeyMissing, PayloadCorrupt) as error:
        return unopened(data, error)


def opened_text(codec: PayloadCodec, text: str, bound_to: Callable[[Kind], bytes]) -> str:
    """Text with the words opened that can be: a list must not fail for one of its errors."""

    def opened(match: Any) -> str:
        found = _word(codec, match[1], bound_to)
        return match[0] if found is None else found[0].decode()

    return WORDS.sub(opened, text)


def _opened_json(codec: PayloadCodec, text: str, bound_to: Callable[[Kind], bytes]) -> str:
    def opened(match: Any) -> str:
        found = _word(codec, match[1], bound_to)
        if found is None:
            return str(match[0])
        content, flags = found
        return content.decode() if flags & JSON else _json.encode(content.decode()).decode()

    def within(match: Any) -> str:
        found = _word(codec, match[1], bound_to)
        return match[0] if found is None else _json.encode(found[0].decode()).decode()[1:-1]

    return WORDS.sub(within, QUOTED.sub(opened, text))


def _word(codec: PayloadCodec, word: str, bound_to: Callable[[Kind], bytes]) -> tuple[bytes, int] | None:
    """None for text that only looks sealed."""
    data = from_word(word)
    if data is None:
        return None
    try:
        return codec.open(data, bound_to)
    except PayloadKeyMissing as error:
        return f"[{error}]".encode(), 0
    except PayloadCorrupt:
        return None
