"""The document format for editors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from perdure.flows.compile import DOCUMENT_KEYS, compile_flow
from perdure.flows.compile.dag import DAG_KEYS
from perdure.flows.compile.graph import NODE_KEYS
from perdure.flows.compile.kinds import KINDS
from perdure.flows.problems import FlowError
from perdure.flows.schema import document_schema
from perdure.flows.source import read
from tests.fuzz import documents

SCHEMA = document_schema()
VALID = jsonschema_rs.validator_for(SCHEMA)
FETCH = {
    "type": "object",
    "description": "Fetches a page.",
    "properties": {"url": {"type": "string"}, "depth": {"type": "integer"}},
    "required": ["url"],
    "additionalProperties": False,
}


def refusals(text: str, schema: dict[str, Any] = SCHEMA) -> list[str]:
    return [
        "/".join(map(str, e.instance_path)) for e in jsonschema_rs.validator_for(schema).iter_errors(read(text).value)
    ]


def test_the_schema_is_a_schema() -> None:
    jsonschema_rs.meta.validate(SCHEMA)
    jsonschema_rs.meta.validate(document_schema({"fetch": FETCH}))


def test_every_reference_leads_somewhere() -> None:
    for schema in subschemas(SCHEMA):
        if "$ref" in schema:
            assert schema["$ref"].removeprefix("#/$defs/") in SCHEMA["$defs"]


def test_every_key_has_a_description() -> None:
    for schema in subschemas(SCHEMA):
        for key, inner in schema.get("properties", {}).items():
            if set(inner) <= {"const", "not", "type", "enum", "pattern"}:
                continue  # a condition, not a key to write
            target = SCHEMA["$defs"][inner["$ref"].removeprefix("#/$defs/")] if "$ref" in inner else {}
            assert inner.get("description") or target.get("description"), key


def test_the_schema_knows_the_keys_that_the_compiler_knows() -> None:
    assert set(SCHEMA["properties"]) == set(DOCUMENT_KEYS)
    assert set(SCHEMA["$defs"]["task"]["properties"]) == set(DAG_KEYS)
    assert set(SCHEMA["$defs"]["graph_node"]["else"]["properties"]) == set(NODE_KEYS) - {"kind"}
    for kind, keys in KINDS.items():
        assert set(SCHEMA["$defs"][f"kind_{kind}"]["properties"]) == set(keys)


def test_good_documents_are_valid() -> None:
    for text in documents.SEEDS:
        VALID.validate(read(text).value)


def test_what_compiles_is_valid() -> None:
    seen = 0
    for seed in range(400):
        try:
            document = read(documents.document(seed))
            compile_flow(document, name="fuzz")
        except FlowError:
            continue
        seen += 1
        assert VALID.is_valid(document.value), seed
    assert seen > 5


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("{}", ""),
        ("tasks: {}", "tasks"),
        ("tasks: {a: }\ngraph: {start: a, nodes: {a: }}", ""),
        ("tasks: {a: }\noutptu: 1", ""),
        ("tasks: {1a: }", "tasks"),
        ("tasks: {in: }", "tasks"),
        ("tasks: {a: {depend_on: b}}", "tasks/a"),
        ("tasks: {a: {python: x, http: {url: y}}}", "tasks/a"),
        ("tasks: {a: {http: {}}}", "tasks/a/http"),
        ("tasks: {a: {http: {url: x, method: get}}}", "tasks/a/http/method"),
        ("tasks: {a: {run: 'x ${ y }'}}", "tasks/a/run"),
        ("tasks: {a: {run_if: allways}}", "tasks/a/run_if"),
        ("tasks: {a: {retry: 0}}", "tasks/a/retry"),
        ("tasks: {a: {retry: {max_attemps: 3}}}", "tasks/a/retry"),
        ("tasks: {a: {timeout: soon}}", "tasks/a/timeout"),
        ("tasks: {a: {sleep: 5s, retry: 2}}", "tasks/a"),
        ("tasks: {a: {python: x, output: 1}}", "tasks/a"),
        ("tasks: {a: {approval: {asignees: x}}}", "tasks/a/approval"),
        ("tasks: {a: {approval: , then: {aproved: a}}}", "tasks/a/then"),
        ("tasks: {a: {choice: [{then: a}]}}", "tasks/a/choice/0"),
        ("tasks: {a: {prep: {}}}", "tasks/a"),
        ("graph: {start: a}", "graph"),
        ("graph: {start: a, nodes: {a: {depends_on: b}}}", "graph/nodes/a"),
        ("graph: {start: a, nodes: {a: {kind: exector}}}", "graph/nodes/a/kind"),
        ("graph: {start: a, nodes: {a: {kind: executor}}}", "graph/nodes/a"),
        ("graph: {start: a, nodes: {a: {kind: executor, service: s, retries: 1}}}", "graph/nodes/a"),
        ("graph: {start: a, nodes: {a: {kind: parallel, parallel_mode: x}}}", "graph/nodes/a/parallel_mode"),
        ("graph: {start: a, nodes: {a: }, edges: [{from: a}]}", "graph/edges/0"),
        ("graph: {start: a, nodes: {a: {choice: [{when: x, then: [a]}]}}}", "graph/nodes/a/choice/0/then"),
        ("tasks: {a: {tasks: {b: {depend_on: c}}}}", "tasks/a/tasks/b"),
        ("tasks: {a: {subflow: {start: x, nodes: {x: {kind: timer, speed: 1}}}}}", "tasks/a/subflow/nodes/x"),
    ],
)
def test_mistakes_that_an_editor_points_at(text: str, at: str) -> None:
    with pytest.raises(FlowError):
        compile_flow(read(text), name="x")
    assert at in refusals(text)


def test_known_tasks_are_offered_with_what_they_do() -> None:
    python = document_schema({"fetch": FETCH})["$defs"]["task"]["properties"]["python"]
    assert python["anyOf"][0] == {"const": "fetch", "description": "Fetches a page."}
    assert refusals("tasks: {a: {python: something.else}}", document_schema({"fetch": FETCH})) == []


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ("python: fetch, with: {url: x, depth: 3}", None),
        ("python: 'mod.sub:fetch', with: {url: '${ input.url }', depth: '${ input.n }'}", None),
        ("python: fetch", None),
        ("python: fetch, with: '${ input }'", None),
        ("python: prefetch, with: {anything: 1}", None),
        ("python: fetch, with: {depth: 3}", "tasks/a/with"),
        ("python: 'mod:fetch', with: {url: x, dept: 3}", "tasks/a/with"),
        ("python: fetch, with: {url: x, depth: deep}", "tasks/a/with/depth"),
    ],
)
def test_arguments_of_known_tasks_are_checked(fields: str, at: str | None) -> None:
    found = refusals(f"tasks: {{a: {{{fields}}}}}", document_schema({"fetch": FETCH}))
    assert found == [] if at is None else at in found


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    todo = [schema]
    while todo:
        here = todo.pop()
        if isinstance(here, dict):
            yield here
            todo.extend(here.values())
        elif isinstance(here, list):
            todo.extend(here)


@pytest.mark.parametrize("text", ["30s", "1h 30m", "PT1H30M", "P1D", "P2W", "PT0,5S"])
def test_durations_of_both_kinds_fit_the_schema_and_compile(text: str) -> None:
    document = f'flow: x\ntimeout: "{text}"\ntasks: {{a: {{sleep: "{text}"}}}}'
    assert refusals(document) == []
    compile_flow(read(document))


def test_a_duration_with_years_is_refused_by_the_schema_too() -> None:
    assert "timeout" in refusals("flow: x\ntimeout: P1Y\ntasks: {a: {sleep: 1}}")
