"""What this program defines of signals, promises, updates, approvals and named events, as a worker publishes it with its workflows.

Constructors add themselves here. What is kept is bounded: a program that makes names without end is published as `open`.

Law: a schema refuses nothing that its type reads. So it is published without what a type reads more liberally than JSON Schema does (formats,
patterns of regular expressions that only Python knows), and a type that reads values by code of the user has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final, Literal, cast

import msgspec

from perdure.core.limits import MESSAGE_NAMES_MAX, MESSAGE_SCHEMAS_BYTES_MAX
from perdure.core.published_messages import PublishedMessages, encode
from perdure.sdk.payloads.converters import parts_of
from perdure.sdk.payloads.pydantic import is_model
from perdure.sdk.payloads.schemas import schemas_of
from perdure.sdk.workflow.live_run import current

Kind = Literal["signal", "promise", "update", "approval", "event"]

TYPES_PER_NAME_MAX: Final = 4
"""Types that one name is checked against; a name with more takes any value."""
_ANY: Final = object()
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs"})
"""Keywords that hold schemas by name."""
_VALUES: Final = frozenset({"enum", "const", "required"})
_LEFT_OUT: Final = frozenset({"format", "title", "description", "default", "examples", "uniqueItems", "deprecated"})
_ONLY_PYTHON: Final = ("(?=", "(?!", "(?<", "(?P", "\\1", "\\Z", "\\A")
"""Parts of patterns that checkers of JSON Schema do not know."""
_BY_CODE: Final = frozenset({"function-before", "function-wrap", "function-plain"})
_BY_OTHER_NAMES: Final = ("populate_by_name", "validate_by_name", "coerce_numbers_to_str")

Schema = dict[str, Any]


class _MessageType:
    """A type that a name was defined with, and its schema."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation

    @cached_property
    def schema(self) -> Schema | None:
        """None: it takes any value, or only its code can say what it reads."""
        if self.annotation is _ANY or _reads_by_code(self.annotation):
            return None
        schemas, definitions = schemas_of({"value": self.annotation})
        schema = _loosened(schemas["value"])
        if definitions:
            schema["$defs"] = {name: _loosened(s) for name, s in definitions.items()}
        return schema or None


class MessageRegistry:
    def __init__(self) -> None:
        self._names: dict[tuple[Kind, str], list[_MessageType]] = {}
        self._is_full = False
        self._makers: set[str] = set()
        """Workflows whose code has made messages while it ran."""
        self._encoded: dict[bool, bytes] = {}

    def add(self, kind: Kind, name: str, annotation: Any = _ANY) -> None:
        run = current.get(None)
        if run is not None:
            self._makers.add(run.workflow.name)
        types = self._names.get((kind, name))
        if types is None:
            if len(self._names) >= MESSAGE_NAMES_MAX:
                if not self._is_full:
                    self._is_full = True
                    self._encoded.clear()
                return
            types = self._names[kind, name] = []
        elif any(_same(annotation, known.annotation) for known in types):
            return
        if isinstance(annotation, type):  # defined anew, as in a notebook
            types[:] = [t for t in types if _place(t.annotation) != _place(annotation)]
        if len(types) <= TYPES_PER_NAME_MAX:
            types.append(_MessageType(annotation))
            self._encoded.clear()

    def encoded(self, workflow: str, *, is_open: bool) -> bytes:
        """All of it, as a workflow publishes it: JSON of core/published_messages.py. `is_open`: its code may make more names."""
        is_open = is_open or self._is_full or workflow in self._makers
        found = self._encoded.get(is_open)
        if found is None:
            found = self._encoded[is_open] = encode(self._published(is_open))
        return found

    def _published(self, is_open: bool) -> PublishedMessages:
        room = MESSAGE_SCHEMAS_BYTES_MAX
        by_kind: dict[Kind, dict[str, tuple[Schema, ...]]] = {"signal": {}, "promise": {}, "update": {}}
        for (kind, name), types in sorted(self._names.items(), key=lambda item: item[0]):
            if kind not in by_kind:
                continue
            schemas = _schemas(types)
            size = len(msgspec.json.encode(schemas))
            if size > room:
                schemas = ()
            else:
                room -= size
            by_kind[kind][name] = schemas
        names = {kind: tuple(sorted(n for k, n in self._names if k == kind)) for kind in ("approval", "event")}
        return PublishedMessages(
            signals=by_kind["signal"],
            promises=by_kind["promise"],
            updates=by_kind["update"],
            approvals=names["approval"],
            events=names["event"],
            open=is_open,
        )


messages: Final = MessageRegistry()
"""Of this program."""


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # of the user's classes
        return False


def _place(kind: Any) -> tuple[str, str] | None:
    """Where a class is defined."""
    return (kind.__module__, kind.__qualname__) if isinstance(kind, type) else None


def _schemas(types: list[_MessageType]) -> tuple[Schema, ...]:
    """Empty where one of them takes any value."""
    if len(types) > TYPES_PER_NAME_MAX:
        return ()
    found = [kind.schema for kind in types]
    return tuple(s for s in found if s is not None) if all(found) else ()


def _loosened(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_loosened(item) for item in cast(list[Any], schema)]
    if not isinstance(schema, Mapping):
        return schema
    rules = cast(Mapping[str, Any], schema)
    if rules.get("format") == "decimal":
        return {"type": ["string", "number"]}
    loose: Schema = {}
    for word, value in rules.items():
        if word in _NAMED and isinstance(value, Mapping):
            loose[word] = {name: _loosened(s) for name, s in cast(Mapping[str, Any], value).items()}
        elif word in _VALUES:
            loose[word] = value
        elif word == "pattern" and any(part in str(value) for part in _ONLY_PYTHON):
            continue
        elif word not in _LEFT_OUT:
            loose[word] = _loosened(value)
    return loose


def _reads_by_code(annotation: Any) -> bool:
    """Whether a validator of the user sees a value before its type is checked, or fields have several names."""
    try:
        models = list(_models_in(annotation))
    except Exception:  # of the user's classes as well
        return True
    return any(_has_code(model) for model in models)


def _models_in(annotation: Any) -> Iterator[Any]:
    """The core schemas of pydantic in a type."""
    if is_model(annotation):
        yield annotation.__pydantic_core_schema__
        return
    try:
        waiting, seen = [msgspec.inspect.type_info(annotation)], set[int]()
    except TypeError:  # msgspec cannot carry it
        import pydantic

        yield pydantic.TypeAdapter(annotation).core_schema
        return
    while waiting:
        node = waiting.pop()
        if isinstance(node, msgspec.inspect.CustomType) and is_model(node.cls):
            yield cast(Any, node.cls).__pydantic_core_schema__
        if id(node) not in seen:
            seen.add(id(node))
            waiting.extend(parts_of(node))


def _has_code(core: Any) -> bool:
    waiting: list[Any] = [core]
    seen = set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            rules = cast(dict[str, Any], node)
            if rules.get("type") in _BY_CODE or any(rules.get(word) is True for word in _BY_OTHER_NAMES):
                return True
            if not isinstance(rules.get("validation_alias", ""), str):
                return True
            waiting.extend(rules.values())
        elif isinstance(node, (list, tuple)):
            waiting.extend(cast("list[Any]", node))
    return False
