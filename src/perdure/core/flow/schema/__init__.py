"""The JSON Schema (2020-12) of the document format, for editors: every key with a word about it, and which go together.

The compiler is the judge (compile.py); this is what an editor can know while somebody types. It never refuses what compiles. With the
signatures of tasks at hand it also completes their names and checks `with` against their parameters.
"""

from __future__ import annotations

from typing import Final

from perdure.core.flow.compile import DOCUMENT_KEYS
from perdure.core.flow.compile.dag import RESERVED
from perdure.core.flow.compile.kinds import KINDS
from perdure.core.flow.compile.options import FACTOR_MAX
from perdure.core.flow.schema.nodes import (
    EXPRESSION_IN_TEXT,
    Schema,
    Signatures,
    any_of,
    case_schema,
    graph_node_schema,
    kind_schema,
    object_,
    ref,
    said,
    task_schema,
)
from perdure.core.limits import ATTEMPTS_MAX, GRAPH_STEPS_DEFAULT, GRAPH_STEPS_MAX, NAME_CHARS_MAX

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
IDENTIFIER: Final = "urn:perdure:flow"


def document_schema(signatures: Signatures | None = None) -> Schema:
    """`signatures`: JSON Schemas of the arguments of known tasks, objects, by name."""
    known = signatures or {}
    return {
        "$schema": DIALECT,
        "$id": IDENTIFIER,
        "title": "Perdure flow",
        "description": "A workflow as a document: tasks that wait for each other, or a graph with one cursor.",
        "type": "object",
        "properties": _document(),
        "additionalProperties": False,
        "oneOf": [{"required": ["tasks"]}, {"required": ["graph"]}, {"required": ["start", "nodes"]}],
        "$defs": _definitions(known),
    }


def _document() -> Schema:
    out = {
        "$schema": said("For editors; it means nothing here."),
        "flow": ref("name", "The flow's name. Without it, the file's."),
        "description": said("For people.", type="string"),
        "input": ref("input"),
        "triggers": said("Kept, not acted on yet.", type=["array", "null"], items={"type": "object"}),
        "defaults": object_(
            "For every task that does not say otherwise.",
            {
                "retry": ref("retry"),
                "timeout": ref("timeout"),
                "queue": ref("queue"),
                "heartbeat": ref("heartbeat"),
            },
            type=["object", "null"],
        ),
        **_body(),
    }
    assert set(out) == set(DOCUMENT_KEYS)
    return out


def _body() -> Schema:
    return {
        "tasks": ref("tasks"),
        "graph": ref("graph"),
        **_graph(),
        "state": ref("state"),
        "max_steps": ref("max_steps"),
        "output": ref(
            "template", "What comes out; by default the outputs of the last tasks, or a graph's shared state."
        ),
    }


def _graph() -> Schema:
    return {
        "start": said("The key of the node that comes first.", type="string"),
        "nodes": said("Nodes by key.", type="object", minProperties=1, additionalProperties=ref("graph_node")),
        "edges": said("Which action of which node leads where.", type=["array", "null"], items=ref("edge")),
    }


def _definitions(signatures: Signatures) -> Schema:
    return {
        **_values(),
        **_options(),
        "tasks": said(
            "Tasks by key, in the order people read them.",
            type="object",
            minProperties=1,
            propertyNames={"pattern": "^[A-Za-z_][A-Za-z0-9_-]*$", "maxLength": 100, "not": {"enum": sorted(RESERVED)}},
            additionalProperties=ref("task"),
        ),
        "graph": object_("One cursor that follows actions along edges.", _graph(), required=["start", "nodes"]),
        "edge": object_(
            "From one node, under an action, to another.",
            {
                "from": said("The key of a node.", type="string"),
                "action": said(
                    "`default` catches every action without an edge of its own; `error` a failure.",
                    type=["string", "null"],
                ),
                "to": said("The key of a node.", type="string"),
            },
            required=["from", "to"],
        ),
        "body": object_("A body of its own.", _body()),
        "task": task_schema(signatures),
        "graph_node": graph_node_schema(signatures),
        "case": case_schema("task"),
        "action_case": case_schema("action"),
        **{f"kind_{kind}": kind_schema(kind) for kind in KINDS},
    }


# -- values ------------------------------------------------------------------------------------------------------------


def _values() -> Schema:
    text = {"type": "string", "pattern": EXPRESSION_IN_TEXT}
    return {
        "name": said("A name.", type="string", minLength=1, maxLength=NAME_CHARS_MAX),
        "names": any_of("One name, or several.", {"type": "string"}, {"type": "array", "items": {"type": "string"}}),
        "template": said("Any value; ${ expressions } in its texts are evaluated."),
        "arguments": any_of("Arguments by name; texts may hold ${ expressions }.", {"type": ["object", "null"]}, text),
        "expression": any_of(
            "An expression, such as size(discover.files) > 3.",
            {"type": "string"},
            {"type": "boolean"},
            {"type": "object"},
            {"type": "null"},
        ),
        "duration": any_of(
            'A duration such as "30s" or "1h30m", or a number of seconds.',
            {"type": "string", "pattern": r"^[0-9. usmhdw]+$"},
            {"type": "number", "minimum": 0},
            {"type": "null"},
        ),
        "input": said(
            "What a run is given: properties by name, each with its JSON Schema and required unless it has a default or required: false. "
            "Or a JSON Schema with type: object.",
            type=["object", "null"],
        ),
        "state": said("What shared state begins with; taken as written.", type=["object", "null"]),
        "max_steps": said(
            f"Visits of nodes after which a graph is stopped; {GRAPH_STEPS_DEFAULT} by default.",
            type=["integer", "null"],
            minimum=1,
            maximum=GRAPH_STEPS_MAX,
        ),
    }


def _options() -> Schema:
    attempts = {"type": "integer", "minimum": 1, "maximum": ATTEMPTS_MAX}
    return {
        "retry": any_of(
            "Executions in all, or how they follow each other.",
            attempts,
            object_(
                "How executions follow each other.",
                {
                    "max_attempts": said("Executions in all.", **attempts),
                    "delay": ref("duration", "Before the second execution."),
                    "factor": said(
                        "Each delay is this much longer than the one before.",
                        type="number",
                        minimum=1,
                        maximum=FACTOR_MAX,
                    ),
                    "max_delay": ref("duration", "The longest delay."),
                    "jitter": said("Spread delays, so that not all come back at once.", type="boolean"),
                    "on": ref("names", "Types of errors that are worth another execution; by default all."),
                    "never": ref("names", "Types of errors that are final."),
                },
            ),
            {"type": "null"},
        ),
        "max_retries": any_of("Executions in all; retry says more.", attempts, {"type": "null"}),
        "timeout": ref("duration", "How long one execution may take, or a wait may last."),
        "heartbeat": ref("duration", "An execution that stays silent longer is ended."),
        "queue": said(
            "Where workers look for the task.", type=["string", "null"], minLength=1, maxLength=NAME_CHARS_MAX
        ),
        "at_most_once": said("Never execute again, whatever happened.", type=["boolean", "null"]),
    }
