"""What can be said of an expression before it runs, from JSON Schemas of the roots.

Only what is sure is a problem: a schema that says nothing, or says it in a way not understood here ($ref, for one), allows anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from perdure.core.expressions.functions import FUNCTIONS, listed
from perdure.core.expressions.nodes import (
    Arith,
    CallNode,
    Coalesce,
    Compare,
    Cond,
    ExprNode,
    Get,
    ListOf,
    Literal,
    Logic,
    Macro,
    ObjectOf,
    Root,
    Unary,
    children,
    closest,
    kind,
)
from perdure.core.expressions.text import text

Schema = Mapping[str, Any]
Kinds = frozenset[str]

_SCHEMA_KINDS: Final = {"integer": "number", "array": "list"}
_KIND_TYPES: Final = {"list": "array"}
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_ALTERNATIVES_MAX: Final = 50
"""Alternatives of a schema that are looked into."""
_SHOWN_CHARS_MAX: Final = 60
_NULL: Final = frozenset({"null"})
_TIMES: Final = frozenset({"timestamp", "duration"})
_ORDERED: Final = frozenset({"number", "string"}) | _TIMES
_ARITHMETIC: Final = {
    "+": {
        ("number", "number"): "number",
        ("string", "string"): "string",
        ("list", "list"): "list",
        ("timestamp", "duration"): "timestamp",
        ("duration", "timestamp"): "timestamp",
        ("duration", "duration"): "duration",
    },
    "-": {
        ("number", "number"): "number",
        ("timestamp", "timestamp"): "duration",
        ("timestamp", "duration"): "timestamp",
        ("duration", "duration"): "duration",
    },
}
_OF_NUMBERS: Final = {("number", "number"): "number"}
_ELEMENTS: Final = frozenset({"list", "object"})
_HOLDERS: Final = frozenset({"list", "object", "string"})


def problems_of(tree: ExprNode, types: Mapping[str, Schema]) -> list[str]:
    checker = _Checker(types)
    checker.schema(tree)
    return list(dict.fromkeys(checker.problems))


def schema_of(tree: ExprNode, types: Mapping[str, Schema]) -> Schema | None:
    found = _Checker(types).schema(tree)
    return None if found is None else _leaving(found)


def _leaving(schema: Schema) -> Schema:
    """Of a value that leaves the expression: timestamps and durations are text there."""
    out = dict(schema)
    named = out.get("type")
    if isinstance(named, str | list):
        names = [named] if isinstance(named, str) else named
        plain = list(dict.fromkeys("string" if name in _TIMES else name for name in names))
        out["type"] = plain[0] if len(plain) == 1 else plain
    if isinstance(out.get("items"), Mapping):
        out["items"] = _leaving(out["items"])
    if isinstance(out.get("properties"), Mapping):
        out["properties"] = {
            key: _leaving(value) if isinstance(value, Mapping) else value for key, value in out["properties"].items()
        }
    return out


def kinds_of(schema: Schema | None) -> Kinds | None:
    """The kinds of value that a schema allows; None for all."""
    if schema is None:
        return None
    if "const" in schema:
        return frozenset({kind(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(map(kind, schema["enum"]))
    if (named := schema.get("type")) is not None:
        names: list[Any] = [named] if isinstance(named, str) else list(named) if isinstance(named, list) else []
        found = frozenset(_SCHEMA_KINDS.get(name, name) for name in names if isinstance(name, str))
        return (found | _NULL if schema.get("nullable") is True else found) or None
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return _union(schema[word])
    return frozenset({"object"}) if "properties" in schema else None


def _union(alternatives: list[Any]) -> Kinds | None:
    out: Kinds = frozenset()
    if len(alternatives) > _ALTERNATIVES_MAX:
        return None
    for one in alternatives:
        # One level: an alternative of alternatives may be anything, which keeps this from recursing.
        plain = isinstance(one, Mapping) and not {"anyOf", "oneOf"} & one.keys()
        kinds = kinds_of(cast(Schema, one)) if plain else None
        if kinds is None:
            return None
        out |= kinds
    return out or None


def _of_kinds(kinds: Kinds | None) -> Schema | None:
    if not kinds or len(kinds - _TIMES) == 6:
        return None
    names = sorted(_KIND_TYPES.get(name, name) for name in kinds)
    return {"type": names[0] if len(names) == 1 else names}


def _shown(node: ExprNode) -> str:
    shown = text(node)
    return shown if len(shown) <= _SHOWN_CHARS_MAX else f"{shown[:_SHOWN_CHARS_MAX]}…"


def _a(kinds: Kinds) -> str:
    return listed(kinds) if kinds - _NULL else "null"


class _Checker:
    def __init__(self, types: Mapping[str, Schema]) -> None:
        self._types: Mapping[str, Schema | None] = types
        self.problems: list[str] = []

    def schema(self, node: ExprNode) -> Schema | None:
        """The node's own, after everything below it was looked at."""
        match node:
            case Literal(value=value):
                return {"const": value}
            case Root(name=name):
                return self._types.get(name)
            case Get():
                return self._get(node)
            case ListOf(items=items):
                found = [self.schema(item) for item in items]
                first = kinds_of(found[0]) if found else None
                same = first is not None and all(kinds_of(one) == first for one in found)
                return {"type": "array", "items": _of_kinds(first)} if same else {"type": "array"}
            case ObjectOf(pairs=pairs):
                properties = {key: self.schema(value) or {} for key, value in pairs}
                return {"type": "object", "properties": properties, "additionalProperties": False}
            case Unary() | Logic() | Compare():
                return self._test(node)
            case Arith():
                return self._arith(node)
            case Coalesce(operands=operands):
                return self._either([self.schema(operand) for operand in operands], last_only_null=True)
            case Cond(test=test, then=then, other=other):
                self.schema(test)
                return self._either([self.schema(then), self.schema(other)])
            case CallNode():
                return self._call(node)
            case Macro():
                return self._macro(node)
            case _:
                return None

    def _kinds(self, node: ExprNode) -> Kinds | None:
        return kinds_of(self.schema(node))

    def _either(self, schemas: list[Schema | None], last_only_null: bool = False) -> Schema | None:
        found = [kinds_of(schema) for schema in schemas]
        out: Kinds = frozenset()
        for index, kinds in enumerate(found):
            if kinds is None:
                return None
            out |= kinds - _NULL if last_only_null and index < len(found) - 1 else kinds
        real = [schema for schema, kinds in zip(schemas, found, strict=True) if kinds != _NULL]
        if len(real) == 1 and kinds_of(real[0]) == out:
            return real[0]
        return _of_kinds(out)

    def _get(self, node: Get) -> Schema | None:
        schema = self.schema(node.base)
        for index, step in enumerate(node.steps):
            here = Get(base=node.base, steps=node.steps[:index]) if index else node.base
            if isinstance(step, ExprNode):
                self.schema(step)
            schema = self._step(schema, step, here) if schema is not None else None
        return schema

    def _step(self, schema: Schema, step: str | int | ExprNode, here: ExprNode) -> Schema | None:
        kinds = kinds_of(schema)
        if kinds is None:
            return None
        if not kinds & {"object", "list"}:
            if kinds != _NULL:
                what = "no fields" if isinstance(step, str) else "no elements"
                self.problems.append(f"`{_shown(here)}` is {_a(kinds)} and has {what}")
            return None
        if isinstance(step, str):
            return self._property(schema, kinds, step, here)
        if "list" in kinds and "object" not in kinds:
            items = schema.get("items")
            return cast(Schema, items) if isinstance(items, Mapping) and items else None
        return None

    def _property(self, schema: Schema, kinds: Kinds, name: str, here: ExprNode) -> Schema | None:
        if "object" not in kinds:
            self.problems.append(
                f"`{_shown(here)}` is a list and has no field `{name}`; an element is {_shown(here)}[0]"
            )
            return None
        properties, more = schema.get("properties"), schema.get("additionalProperties")
        known: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        if name in known:
            found = known[name]
            return cast(Schema, found) if isinstance(found, Mapping) and found else None
        if isinstance(more, Mapping) and more:
            return cast(Schema, more)
        closed = more is False or (bool(known) and not more and "additionalProperties" not in schema)
        if closed and "patternProperties" not in schema and "list" not in kinds:
            close = closest(name, known)
            hint = f"did you mean `{close}`?" if close else f"it has {', '.join(known) or 'no fields at all'}"
            self.problems.append(f"`{_shown(here)}` has no field `{name}`; {hint}")
        return None

    def _test(self, node: Unary | Logic | Compare) -> Schema | None:
        if isinstance(node, Compare):
            return self._compare(node)
        found = [self._kinds(child) for child in children(node)]
        if isinstance(node, Unary) and node.op == "-":
            if found[0] is not None and "number" not in found[0]:
                self.problems.append(f"`{_shown(node)}`: the sign - takes a number, not {_a(found[0])}")
            return {"type": "number"}
        return _BOOLEAN

    def _compare(self, node: Compare) -> Schema:
        left, right = self._kinds(node.left), self._kinds(node.right)
        if node.op in ("in", "not in", "contains"):
            holder, place = (left, node.left) if node.op == "contains" else (right, node.right)
            if holder is not None and not holder & (_HOLDERS | _NULL):
                self.problems.append(f"`{_shown(node)}`: `{_shown(place)}` is {_a(holder)}; nothing can be in that")
        elif left is not None and right is not None:
            self._order(node, left, right)
        elif node.op not in ("eq", "ne"):
            for kinds, place in ((left, node.left), (right, node.right)):
                if kinds is not None and not kinds & (_ORDERED | _NULL):
                    self.problems.append(f"`{_shown(node)}`: `{_shown(place)}` is {_a(kinds)}, which has no order")
        return _BOOLEAN

    def _order(self, node: Compare, left: Kinds, right: Kinds) -> None:
        common = left & right
        if node.op not in ("eq", "ne"):
            common &= _ORDERED
        if common or _NULL in (left, right) or left & right >= _NULL:
            return
        how = "are never equal" if node.op in ("eq", "ne") else "have no order"
        self.problems.append(
            f"`{_shown(node)}`: `{_shown(node.left)}` is {_a(left)} and `{_shown(node.right)}` is {_a(right)}; they {how}"
        )

    def _arith(self, node: Arith) -> Schema | None:
        value = self._kinds(node.first)
        for op, operand in node.rest:
            other = self._kinds(operand)
            results = _ARITHMETIC.get(op, _OF_NUMBERS)
            allowed = frozenset(taken for pair in results for taken in pair)
            for kinds in (value, other):
                if kinds is not None and not kinds & allowed:
                    self.problems.append(f"`{_shown(node)}`: {op} takes {_a(allowed - _TIMES)}, not {_a(kinds)}")
                    return None
            found = frozenset(
                result
                for (left, right), result in results.items()
                if (value is None or left in value) and (other is None or right in other)
            )
            if not found:
                assert value is not None and other is not None
                how = "added" if op == "+" else "subtracted"
                self.problems.append(f"`{_shown(node)}`: {_a(value)} and {_a(other)} cannot be {how}")
                return None
            value = found
        return _of_kinds(value)

    def _macro(self, node: Macro) -> Schema | None:
        base = self.schema(node.base)
        kinds = kinds_of(base)
        if kinds is not None and not kinds & (_ELEMENTS | _NULL):
            self.problems.append(
                f"`{_shown(node)}`: .{node.op}() takes a list or an object, but `{_shown(node.base)}` is {_a(kinds)}"
            )
        element = self._element(base, kinds)
        outer = self._types
        self._types = {**outer, node.name: element}
        if node.only is not None:
            self.schema(node.only)
        body = self.schema(node.body)
        self._types = outer
        if node.op == "map":
            return {"type": "array", "items": body} if body is not None else {"type": "array"}
        if node.op == "filter":
            return {"type": "array", "items": element} if element is not None else {"type": "array"}
        return _BOOLEAN

    def _element(self, base: Schema | None, kinds: Kinds | None) -> Schema | None:
        if base is None or kinds is None or "object" in kinds:
            return {"type": "string"} if kinds is not None and kinds - _NULL == frozenset({"object"}) else None
        items = base.get("items")
        return cast(Schema, items) if isinstance(items, Mapping) and items else None

    def _call(self, node: CallNode) -> Schema | None:
        function = FUNCTIONS[node.name]
        schemas = [self.schema(arg) for arg in node.args]
        for index, schema in enumerate(schemas):
            takes = function.params[min(index, len(function.params) - 1)]
            kinds = kinds_of(schema)
            if kinds is not None and not kinds & takes:
                self.problems.append(
                    f"`{_shown(node)}`: {node.name}() takes {_a(takes)}, but `{_shown(node.args[index])}` is {_a(kinds)}"
                )
        if node.name in ("sort", "unique", "reverse", "slice") and kinds_of(schemas[0]) in (_LIST, _STRING):
            return schemas[0] if kinds_of(schemas[0]) == _LIST else {"type": "string"}
        if node.name in ("first", "last") and schemas[0] is not None and kinds_of(schemas[0]) == _LIST:
            items = schemas[0].get("items")
            inner = kinds_of(cast(Schema, items)) if isinstance(items, Mapping) else None
            return _of_kinds(inner | _NULL) if inner is not None else None
        return _of_kinds(function.gives)


_LIST: Final = frozenset({"list"})
_STRING: Final = frozenset({"string"})
