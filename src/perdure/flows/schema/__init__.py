"""The JSON Schema (2020-12) of the document format, for editors: every key with a word about it, and which go together.

The compiler is the judge (compile.py); this is what an editor can check while you type. It never refuses what compiles. With the
signatures of tasks at hand it also completes their names and checks `with` against their parameters.
"""

from __future__ import annotations

from typing import Final

from perdure.core.durations import ISO_PATTERN
from perdure.core.flow_control.options import POLICIES, PRIORITY_MAX, PRIORITY_MIN
from perdure.core.limits import (
    ATTEMPTS_MAX,
    CONCURRENCY_MAX,
    GRAPH_STEPS_DEFAULT,
    GRAPH_STEPS_MAX,
    LIMITS_PER_TASK_MAX,
    NAME_CHARS_MAX,
)
from perdure.core.schedules import MISSED, OVERLAPS
from perdure.flows.compile import DOCUMENT_KEYS
from perdure.flows.compile.dag import RESERVED
from perdure.flows.compile.flow_control import CONTROL_KEYS
from perdure.flows.compile.kinds import KINDS
from perdure.flows.compile.options import FACTOR_MAX
from perdure.flows.compile.subscriptions import ON_KEYS
from perdure.flows.compile.triggers import TRIGGER_KEYS
from perdure.flows.schema.nodes import (
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
        "triggers": _triggers(),
        "on": _on(),
        "timeout": ref("duration", "How long a run may take, unless its start says otherwise."),
        "on_failure": ref(
            "task", "Runs after a run of the flow has failed, as a flow of its own; `input.run` is the ended run."
        ),
        "on_success": ref(
            "task", "Runs after a run of the flow has succeeded, as a flow of its own; `input.run` is the ended run."
        ),
        "defaults": object_(
            "For every task that does not say otherwise.",
            {
                "retry": ref("retry"),
                "timeout": ref("timeout"),
                "queue": ref("queue"),
                "heartbeat": ref("heartbeat"),
                "start_within": ref("start_within"),
                "finish_within": ref("finish_within"),
            },
            type=["object", "null"],
        ),
        **{key: ref(key) for key in CONTROL_KEYS},
        **_body(),
    }
    assert set(out) == set(DOCUMENT_KEYS)
    return out


def _triggers() -> Schema:
    words = {"type": ["string", "null"]}
    several = {"type": ["string", "array", "null"], "items": {"type": "string"}}
    span = {"type": ["string", "number", "null"]}
    fields = {
        "name": said("Behind the flow's name and a slash, the schedule's name.", **words),
        "with": said(
            "The input of its runs. `${ day }`, `${ nominal }` and `${ schedule }` are known.", type=["object", "null"]
        ),
        "cron": said("5 fields (minute first) or 6 (second first), or @daily and the like; one or several.", **several),
        "every": said("An interval, such as 15m.", **span),
        "anchor": said("A moment that the interval is counted from.", **words),
        "at": said("A moment, or several.", **several),
        "tz": said("The zone of cron expressions and days, such as Europe/Paris.", **words),
        "calendars": said("Only on days of these calendars.", **several),
        "exclude": said("Not on days of these calendars.", **several),
        "start": said("Nothing before this moment.", **words),
        "end": said("Nothing from this moment on.", **words),
        "jitter": said("Each firing is delayed by up to this much.", **span),
        "overlap": said("When an earlier run is still active.", enum=[*OVERLAPS, None]),
        "missed": said("What is made up for after an outage.", enum=[*MISSED, None]),
        "window": said("How far back that goes.", **span),
    }
    assert set(fields) == set(TRIGGER_KEYS)
    trigger = object_("A schedule that comes and goes with the flow.", fields)
    return said("When runs start by themselves.", type=["array", "null"], items=trigger)


def _on() -> Schema:
    expression = {"type": ["string", "boolean", "object", "array", "null"]}
    window = {"type": ["string", "number", "null"]}
    dedup = object_(
        "Events with the same key are answered with the run of the first.",
        {
            "key": said("An expression over `event`, such as `event.id`.", **expression),
            "within": said("For how long; without it until that run has ended.", **window),
        },
    )
    fields = {
        "event": said("The name of the event, such as `order.paid`.", type="string"),
        "match": said("An expression over `event`, the payload: only events for which it is true.", **expression),
        "key": said(
            "An expression over `event`: the run's key. An active run under it stands for the event.", **expression
        ),
        "dedup": said("Events that are duplicates of one another.", anyOf=[expression, dedup]),
        "input": said(
            "The input of the run. `${ event }` is the payload, which is the input without this.",
            type=["object", "null"],
        ),
    }
    assert set(fields) == set(ON_KEYS)
    event = object_("A named event that starts a run.", fields, required=["event"])
    return said("Named events that start runs.", anyOf=[event, {"type": "array", "items": event}, {"type": "null"}])


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
            'A duration such as "30s" or "1h30m", in ISO 8601 such as "PT1H30M", or a number of seconds.',
            {"type": "string", "pattern": rf"^(?:[0-9. usmhdw]+|{ISO_PATTERN})$"},
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
        "start_within": ref("duration", "How long a task may wait for an execution to begin."),
        "finish_within": ref("duration", "How long a task may take from scheduling to its end, over all executions."),
        "queue": said(
            "Where workers look for the task.", type=["string", "null"], minLength=1, maxLength=NAME_CHARS_MAX
        ),
        "at_most_once": said("Never execute again after a lost attempt.", type=["boolean", "null"]),
        **_control(),
    }


def _control() -> Schema:
    path = {"type": "string", "minLength": 1}
    key = said("Limits of the same key share what they count.", type=["string", "null"], maxLength=NAME_CHARS_MAX)
    number = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "minLength": 1}, {"type": "null"}]}
    most = {"type": "integer", "minimum": 1, "maximum": CONCURRENCY_MAX}
    limit = object_(
        "How many at a time.",
        {
            "max": said("At most so many at a time.", **most),
            "by": said(
                "An argument, or an expression over input: each value has a limit of its own.", type=["string", "null"]
            ),
            "key": key,
            "policy": said("Of runs: what becomes of one that finds the limit reached.", enum=[*POLICIES, None]),
        },
        required=["max"],
    )
    rate = object_(
        "How many per time.",
        {
            "count": said("So many units,", type="number", exclusiveMinimum=0),
            "per": ref("duration", "within this time; a second by default."),
            "by": said("Each value of this has a rate of its own.", type=["string", "null"]),
            "key": key,
            "units": {"description": "What one counts; 1 by default.", **number},
            "burst": said("So many may begin at once.", type=["number", "null"], minimum=1),
        },
        required=["count"],
    )
    fair = object_(
        "What takes turns.",
        {
            "by": said("An argument.", **path),
            "weight": {"description": "How often a value has its turn; 1 by default.", **number},
        },
        required=["by"],
    )
    return {
        "limit": any_of("At most so many at a time.", most, limit, _several(most, limit), {"type": "null"}),
        "rate": any_of("At most so many per time.", rate, _several(rate), {"type": "null"}),
        "priority": said("Higher goes first.", type=["integer", "null"], minimum=PRIORITY_MIN, maximum=PRIORITY_MAX),
        "fair": any_of("Its values take turns, however many wait for each.", path, fair, {"type": "null"}),
        "weight": {"description": "How often a value of fair has its turn, relative to the others.", **number},
    }


def _several(*items: Schema) -> Schema:
    return {"type": "array", "items": {"anyOf": list(items)}, "maxItems": LIMITS_PER_TASK_MAX}
