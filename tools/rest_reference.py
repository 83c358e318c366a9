"""docs/reference/rest.md, from the OpenAPI document of the server's routes: `uv run python docs/generate.py`."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, Final

from perdure.server.rest.app import application

ORDER: Final = (
    "runs",
    "messages",
    "stream",
    "workflows",
    "schedules",
    "approvals",
    "bulk jobs",
    "dead letters",
    "flow control",
    "notifications",
    "webhooks",
    "services",
    "workers",
    "payloads",
    "retention",
    "sessions",
    "administration",
)
"""Of the groups: what a client uses first, first."""
HEAD: Final = """<!-- Written by docs/generate.py. Change the code it reads, or the generator, and run it again. -->
# REST API

Every route of the server, by subject. [Use the REST API](../how-to/use-the-rest-api.md) shows them at
work; the [OpenAPI document](openapi.json), also at `/api/v1/openapi.json` of each server, has the
schemas of all bodies and answers.

All paths begin with `/api/v1`. Lists answer `{"items": [...], "next": cursor}`. Errors are
`application/problem+json` with a [code](errors.md).
"""


def page() -> str:
    document = application().openapi()
    groups: dict[str, list[str]] = defaultdict(list)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups[operation["tags"][0]].append(_operation(method, path, operation, document))
    assert set(groups) == set(ORDER), f"ORDER lacks {set(groups) ^ set(ORDER)}"
    out = [HEAD]
    for tag in ORDER:
        out += [f"## {tag[0].upper()}{tag[1:]}\n", *groups[tag]]
    return "\n".join(out)


def _operation(method: str, path: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    out = [f"### {_sentence_case(operation['summary'])}", "", f"`{method.upper()} {path.removeprefix('/api/v1')}`", ""]
    if text := operation.get("description"):
        out += [re.sub(r"\s*\n\s*", "\n", text.strip()), ""]
    rows = [_parameter(p) for p in operation.get("parameters", ()) if p["in"] == "query"]
    rows += _body(operation, document)
    if rows:
        out += ["| name | in | type | meaning |", "|---|---|---|---|", *rows, ""]
    answers = ", ".join(f"{status}" for status in operation["responses"])
    return "\n".join([*out, f"Answers: {answers}.", ""])


def _sentence_case(title: str) -> str:
    first, *rest = title.split()
    return " ".join([first, *(word if word.isupper() else word.lower() for word in rest)]).replace("Api key", "API key")


def _parameter(parameter: dict[str, Any]) -> str:
    return _row(parameter["name"], "query", parameter["schema"], parameter.get("description", ""), parameter)


def _body(operation: dict[str, Any], document: dict[str, Any]) -> list[str]:
    content = operation.get("requestBody", {}).get("content", {})
    schema = next(iter(content.values()), {}).get("schema", {})
    schema = _resolved(schema, document)
    if "properties" not in schema:
        return ["| | body | any JSON value | |"] if content else []
    needed = set(schema.get("required", ()))
    return [
        _row(name, "body", value, value.get("description", ""), {"required": name in needed})
        for name, value in schema["properties"].items()
    ]


def _row(name: str, place: str, schema: dict[str, Any], text: str, parameter: dict[str, Any]) -> str:
    shown = re.sub(r"\s+", " ", text).replace("|", r"\|").strip()
    needed = " (required)" if parameter.get("required") else ""
    return f"| `{name}` | {place} | {_type(schema)}{needed} | {shown} |"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"{schema['$ref'].rpartition('/')[2]}"
    if kinds := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(kind) for kind in kinds if kind.get("type") != "null")) or "null"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type") or "any")


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    kinds = [k for k in schema.get("anyOf", ()) if k.get("type") != "null"]
    if len(kinds) == 1:
        schema = kinds[0]
    if "$ref" in schema:
        found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return found
    return schema
