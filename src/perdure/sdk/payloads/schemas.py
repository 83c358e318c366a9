"""JSON Schemas of annotations, for editors and people. Nothing is checked against them: what counts is whether a value can be read.

msgspec describes what it carries; what goes through pydantic, pydantic describes. A type that neither can describe is `{}`, which accepts any value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.sdk.payloads.blobs import JSON_SCHEMA, Blob
from perdure.sdk.payloads.converters import Converter
from perdure.sdk.payloads.pydantic import is_model
from perdure.sdk.payloads.roundtrip import type_name

Schema = dict[str, Any]


def schemas_of(kinds: Mapping[str, Any]) -> tuple[dict[str, Schema], dict[str, Schema]]:
    """(name -> schema, what these refer to as `#/$defs/...`)."""
    definitions: dict[str, Schema] = {}
    native = {name: kind for name, kind in kinds.items() if _describe([kind], {}) is not None}
    # All in one go: two classes of one name get names of their own that way.
    found = _describe(list(native.values()), definitions) or []
    schemas = dict(zip(native, found, strict=True))
    for name, kind in kinds.items():
        if name not in native:
            schemas[name] = _through_pydantic(kind, definitions)
    return {name: schemas[name] for name in kinds}, definitions


def described(schema: Schema, default: Any, converter: Converter[Any]) -> Schema:
    """With the default, where that can be written as JSON."""
    try:
        value = msgspec.json.decode(converter.encode(default))
    except Exception:  # a default that is not JSON is for the function alone
        return schema
    # Beside a reference nothing else counted before draft 2019-09.
    return {"allOf": [schema], "default": value} if "$ref" in schema else {**schema, "default": value}


def _describe(kinds: list[Any], definitions: dict[str, Schema]) -> list[Schema] | None:
    """None: msgspec cannot carry one of them, or cannot say how."""

    def custom(kind: Any) -> Schema:
        if is_model(kind):
            return _hoisted(kind, kind.model_json_schema(ref_template=_references(kind)), definitions)
        if kind is object:
            return {}
        if kind is Blob:
            return dict(JSON_SCHEMA)
        raise NotImplementedError

    try:
        schemas, components = msgspec.json.schema_components(kinds, schema_hook=custom)
    except Exception:  # of the user's classes as well: their defaults are written into the schema
        return None
    definitions.update(components)
    return list(schemas)


def _through_pydantic(kind: Any, definitions: dict[str, Schema]) -> Schema:
    try:
        import pydantic

        made = pydantic.TypeAdapter(kind).json_schema(ref_template=_references(kind))
    except Exception:  # not installed, or it cannot say either
        return {}
    return _hoisted(kind, made, definitions)


def _hoisted(kind: Any, made: Schema, definitions: dict[str, Schema]) -> Schema:
    """Its definitions belong at the root, where references look for them."""
    for name, schema in made.pop("$defs", {}).items():
        definitions[f"{_plain(kind)}.{name}"] = schema
    return made


def _references(kind: Any) -> str:
    """Pydantic's names under the name of what was asked for, so that they meet no others."""
    return f"#/$defs/{_plain(kind)}.{{model}}"


def _plain(kind: Any) -> str:
    """The name of a type as a part of an address."""
    return re.sub(r"\W+", "_", type_name(kind), flags=re.ASCII)
