"""What a node looks like to an editor: its verb, its modifiers, and which go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perdure.core.jobs import PULL_POLICIES
from perdure.core.limits import APPROVAL_NAMES_MAX, FANOUT_TASKS_MAX
from perdure.flows.compile.dag import DAG_ONLY, ON_FAILURE, ROUTES, RUN_IF
from perdure.flows.compile.kinds import KINDS, MODES, STRATEGIES
from perdure.flows.compile.nodes import ON_ERROR, UNDO_KEYS, UNDO_VERBS
from perdure.flows.compile.options import OPTION_KEYS
from perdure.flows.compile.services import SERVICE_KEYS
from perdure.flows.compile.verbs import HTTP_METHODS, TAKES, VERBS

Schema = dict[str, Any]
Signatures = Mapping[str, Mapping[str, Any]]

EXPRESSION_IN_TEXT: Final = r"\$\{"
SCALARS: Final[Schema] = {
    "anyOf": [
        {"type": ["object", "null"], "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
        {"type": "string"},
    ]
}
"""Texts and numbers by name."""


def said(description: str, **schema: Any) -> Schema:
    return {"description": description, **schema}


def ref(name: str, description: str = "") -> Schema:
    return {"$ref": f"#/$defs/{name}", **({"description": description} if description else {})}


def any_of(description: str, *schemas: Schema) -> Schema:
    return {"description": description, "anyOf": list(schemas)}


def object_(description: str, properties: Schema, **more: Any) -> Schema:
    return {
        "description": description,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        **more,
    }


def task_schema(signatures: Signatures) -> Schema:
    routes = sorted({action for actions in ROUTES.values() for action in actions})
    properties = {
        **_verbs(signatures, "case"),
        **_modifiers(),
        "depends_on": any_of("Tasks that come before.", ref("names"), {"type": "null"}),
        "when": ref("expression", "Run only if this holds; otherwise the task is skipped."),
        "run_if": said("Which outcomes of the tasks before it let this one run.", enum=[*RUN_IF, None]),
        "on_failure": said(
            "`run` runs it although something before it failed; run_if says more.", enum=[*ON_FAILURE, None]
        ),
        "then": object_(
            "Where the answer to an approval, or the end of a wait, leads.",
            {a: any_of(f"After {a}.", ref("names"), {"type": "null"}) for a in routes},
            type=["object", "null"],
        ),
    }
    assert set(DAG_ONLY) < set(properties)
    return {
        "description": "A task. Nothing at all: the registered task of the same name.",
        "type": ["object", "null"],
        "properties": properties,
        "additionalProperties": False,
        "allOf": [_one_verb(), *_going_together(), *_checked_calls(signatures)],
    }


def graph_node_schema(signatures: Signatures) -> Schema:
    written = {
        "type": ["object", "null"],
        "properties": {**_verbs(signatures, "action_case"), **_modifiers(), **_around()},
        "additionalProperties": False,
        "allOf": [_one_verb(), *_going_together(), *_checked_calls(signatures)],
    }
    kinds = [
        {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": ref(f"kind_{kind}")}
        for kind in KINDS
    ]
    as_data = {"type": "object", "properties": {"kind": {"enum": [*KINDS, "", None]}}, "allOf": kinds}
    return {
        "description": "A node, with a verb or with a kind.",
        "if": {"type": "object", "required": ["kind"]},
        "then": as_data,
        "else": written,
    }


def _one_verb() -> Schema:
    """At most one verb key."""
    return {"oneOf": [*({"required": [v]} for v in VERBS), {"not": {"anyOf": [{"required": [v]} for v in VERBS]}}]}


def _going_together() -> list[Schema]:
    """A modifier that says something needs one of its verbs, or none if it goes with plain tasks."""
    out: list[Schema] = []
    for key, verbs in TAKES.items():
        others = [v for v in VERBS if v not in verbs]
        if "" in verbs:
            fits: Schema = {"not": {"anyOf": [{"required": [v]} for v in others]}} if others else {}
        else:
            fits = {"anyOf": [{"required": [v]} for v in verbs]}
        if fits:
            out.append({"if": {"properties": {key: {"not": {"type": "null"}}}, "required": [key]}, "then": fits})
    return out


def _checked_calls(signatures: Signatures) -> list[Schema]:
    """`with` of a known task against its parameters, as far as it is written out: texts with expressions may become anything."""
    return [
        {
            "if": {
                "properties": {
                    "python": {"pattern": f"^([A-Za-z_][A-Za-z0-9_.]*:)?{_escaped(name)}$"},
                    "with": {"type": "object"},
                },
                "required": ["python", "with"],
            },
            "then": {"properties": {"with": _loosened(arguments)}},
        }
        for name, arguments in signatures.items()
    ]


def _escaped(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else f"\\{c}" if c in r"\.^$*+?()[]{}|/-" else c for c in name)


def _loosened(arguments: Mapping[str, Any]) -> Schema:
    """The same schema, whose properties may be expressions instead."""
    out: Schema = dict(arguments)
    properties: Any = out.get("properties")
    if isinstance(properties, Mapping):
        text = {"type": "string", "pattern": EXPRESSION_IN_TEXT}
        out["properties"] = {k: {"anyOf": [v, text]} for k, v in properties.items()}
    return out


def _verbs(signatures: Signatures, case: str) -> Schema:
    python: Schema = ref("name", "A task of a Python worker: module:function, or its name.")
    if signatures:
        names = [
            {"const": n, "description": str(s.get("description") or s.get("title") or n)} for n, s in signatures.items()
        ]
        python = any_of("A task of a Python worker: module:function, or its name.", *names, ref("name"))
    wait = object_("Wait for a signal.", {"signal": ref("name"), "timeout": ref("timeout")}, required=["signal"])
    match = ref("expression", "Which events: over `event`, its payload, and what is known here.")
    since = said(
        "How far the wait looks back: a duration before now, a time, or `now` to get only events after the wait began. "
        "To the start of the run unless given.",
        type=["string", "number"],
    )
    event = object_(
        "Wait for a named event.",
        {"event": ref("name"), "match": match, "since": since, "timeout": ref("timeout")},
        required=["event"],
    )
    out = {
        "python": python,
        "http": _http(),
        "run": _run(),
        "job": _job(),
        "service": _service("Called with {input, params}."),
        "services": any_of(
            "The same call to several services.",
            {"type": "array", "items": ref("name"), "minItems": 1},
            {"type": "string", "pattern": EXPRESSION_IN_TEXT},
        ),
        "flow": ref("name", "Another workflow, as a run of its own."),
        "tasks": ref("tasks", "Tasks within this one."),
        "graph": ref("graph", "A graph within this node."),
        "subflow": ref("body", "A body within this node."),
        "choice": said("The first case that holds says where it goes on.", type="array", items=ref(case), minItems=1),
        "sleep": any_of("Wait for a while.", ref("duration"), {"type": "string", "pattern": EXPRESSION_IN_TEXT}),
        "wait": any_of("Wait for a signal, or for a named event.", ref("name"), wait, event),
        "approval": _approval(),
        "value": ref("template", "Computed on the spot."),
    }
    assert set(out) == set(VERBS)
    return out


def _service(description: str) -> Schema:
    by_name = {"type": ["object", "null"], "additionalProperties": {"type": "string", "minLength": 1}}
    over_http = object_(
        "A call over HTTP.",
        {
            "name": ref("name", "The name of the service."),
            "url": said("The address of the call, instead of a name.", type=["string", "null"]),
            "params": ref("template", "Beside the input."),
            "headers": said("By name.", **SCALARS),
            "auth": object_(
                "Secrets, by the names of the worker's variables.",
                {
                    "bearer_env": said("Sent as a bearer token.", type=["string", "null"]),
                    "headers_env": said("By header.", **by_name),
                },
            ),
            "max_attempts": said("Calls in one attempt.", type=["integer", "null"], minimum=1),
            "attempt_delay_ms": said("Between calls.", type=["integer", "null"], minimum=0),
            "weighted_by_load": said("Instances with less load are called more often.", type=["boolean", "null"]),
            "timeout": ref("timeout", "For one call."),
        },
    )
    assert set(over_http["properties"]) == set(SERVICE_KEYS)
    return any_of(description, ref("name", "The name of a service, or of a Python task."), over_http)


def _http() -> Schema:
    return object_(
        "A request.",
        {
            "url": said("Where to.", type=["string", "null"]),
            "method": said("GET, or POST with a body.", enum=[*HTTP_METHODS, None]),
            "headers": said("By name.", **SCALARS),
            "query": said("By name.", **SCALARS),
            "body": ref("template", "Sent as JSON."),
            "service": said("The name of a service instead of a url, or beside a path.", type=["string", "null"]),
        },
        anyOf=[{"required": ["url"]}, {"required": ["service"]}],
    )


_SCALARS: Final[list[Schema]] = [{"type": ["object", "null"]}, {"type": "string"}]
_NAMES: Final[list[Schema]] = [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]


_TEXT: Final = ["string", "null"]


def _run() -> Schema:
    argument = {"type": ["string", "number", "boolean"]}
    command = [
        {"type": "string", "not": {"pattern": EXPRESSION_IN_TEXT}, "minLength": 1},
        {"type": "array", "items": argument, "minItems": 1},
    ]
    return any_of(
        "A command: arguments, or text for the shell, which takes no ${ }.",
        *command,
        object_(
            "A command.",
            {
                "command": {"description": "Arguments, or text for the shell.", "anyOf": command},
                "env": said("Variables.", anyOf=[{"type": ["object", "null"]}, {"type": "string"}]),
                "cwd": said("The directory.", type=["string", "null"]),
                "stdin": ref("template", "What it reads; anything but text as JSON."),
                "input": ref("template", "JSON for its stdin, PERDURE_INPUT and the file PERDURE_INPUT_FILE."),
                "secrets": said("Variables of the worker that it gets.", anyOf=_NAMES),
                "exit_codes": said("Exit code -> success, retry or fail.", anyOf=_SCALARS),
                "limits": said(
                    "cpu_s, memory_bytes, file_bytes, open_files, processes; with an image memory_bytes, cpus, processes.",
                    anyOf=_SCALARS,
                ),
                "image": said("The image of a container in which it runs.", type=["string", "null"]),
                "user": said("The user within the container.", type=["string", "integer", "null"]),
                "network": said("A network of the container that the worker allows; none unless given.", type=_TEXT),
                "mounts": said(
                    "Directories of the worker's machine that the worker allows: source, target, read_only.",
                    anyOf=[{"type": ["array", "null"], "items": {"type": "object"}}, {"type": "string"}],
                ),
                "read_only": said("The container cannot write to its root.", type=["boolean", "null"]),
                "pull": said("When the image is pulled; missing unless given.", enum=[*PULL_POLICIES, None]),
            },
            anyOf=[{"required": ["command"]}, {"required": ["image"]}],
        ),
    )


def _job() -> Schema:
    return {
        "description": "Work for an executor outside of the worker, such as kubernetes. The other keys are those of the executor.",
        "type": "object",
        "properties": {
            "executor": ref("name", "objects, kubernetes, cloud-run, or one of another package."),
            "input": ref("template", "What it gets as JSON."),
        },
        "required": ["executor"],
    }


def _approval() -> Schema:
    quorum: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": APPROVAL_NAMES_MAX}
    return any_of(
        "Wait for an approval or a rejection.",
        {"type": "null"},
        ref("name"),
        object_(
            "Wait for an approval or a rejection.",
            {
                "name": said("By default the node's key.", type=["string", "null"]),
                "title": said("What is asked.", type=["string", "null"]),
                "description": said("More about it.", type=["string", "null"]),
                "details": ref("template", "Shown to people as it is."),
                "assignees": any_of("Who may answer; anyone unless given.", ref("names"), {"type": "null"}),
                "quorum": said("So many have to say yes.", **quorum),
                "reject_quorum": said("So many have to say no.", **quorum),
                "form": said("What an answer brings along: fields by name, or a JSON Schema.", type=["object", "null"]),
                "escalate": object_(
                    "Who may answer too after a while.",
                    {"after": ref("duration", "How long."), "to": any_of("Who.", ref("names"))},
                    type=["object", "null"],
                    required=["after", "to"],
                ),
                "timeout": ref("timeout"),
            },
        ),
    )


def _modifiers() -> Schema:
    count = {"type": "integer", "maximum": FANOUT_TASKS_MAX}
    return {
        "with": ref("template", "The arguments, by name. Without it, the outputs of the tasks before it."),
        "foreach": any_of("One execution for every element.", {"type": "array"}, {"type": "string"}, {"type": "null"}),
        "parallel": any_of("So many executions.", {**count, "minimum": 0}, {"type": "string"}, {"type": "null"}),
        "concurrency": any_of(
            "At most so many at a time.", {**count, "minimum": 1}, {"type": "string"}, {"type": "null"}
        ),
        "on_error": said("What one failed execution among many means.", enum=[*ON_ERROR, None]),
        **{k: ref(k) for k in OPTION_KEYS},
        "compensate": _compensate(),
        "set": said(
            "Written to shared state: dotted paths to values; `output` is the result.", type=["object", "null"]
        ),
        "output": ref("template", "What comes out of the body within."),
        "state": ref("state"),
        "max_steps": ref("max_steps"),
        "description": said("For people."),
    }


def _compensate() -> Schema:
    properties = {
        "python": ref("name", "A task of a Python worker: module:function, or its name."),
        "http": _http(),
        "run": _run(),
        "job": _job(),
        "service": _service("Called with {input, params}; by default `output` is its input."),
        "with": ref("template", "The arguments, by name; `output` is the result of what is taken back, `error` why."),
        **{k: ref(k) for k in OPTION_KEYS},
        "description": said("For people."),
    }
    assert set(properties) == set(UNDO_KEYS)
    return any_of(
        "What takes it back, if the run fails or is cancelled later.",
        {"type": "null"},
        ref("name"),
        object_("A call.", properties, oneOf=[{"required": [v]} for v in UNDO_VERBS]),
    )


def _around() -> Schema:
    text = {"type": ["string", "null"]}
    paths = {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
    return {
        "params": said("Merged over the params of the run.", type=["object", "null"]),
        "prep": object_(
            "What goes in.",
            {
                "input_key": said("A path: $params.a, $shared.a, $input.a, or a, which is in shared state.", **text),
                "input_map": said("An object of paths.", **paths),
            },
            type=["object", "null"],
        ),
        "post": object_(
            "What becomes of the result.",
            {
                "output_key": said("Where in shared state it is kept.", **text),
                "output_map": said("Fields of it that are kept, by path.", **paths),
                "action_static": said("The action, for every result.", **text),
                "action_key": said("The field of the result that is the action.", **text),
            },
            type=["object", "null"],
        ),
        "default_action": said("The action when nothing else says one.", **text),
    }


def case_schema(target: str) -> Schema:
    then = (
        ref("names", "Tasks that it leads to.")
        if target == "task"
        else said("An action, or the key of a node.", type="string")
    )
    properties: Schema = {
        "when": ref("expression", "The case holds if this does."),
        "then": then,
        "else": {**then, "description": "Where it goes on if no case holds."},
    }
    if target == "task":
        properties["name"] = ref("name", "What the case is called; by default its first target.")
    return object_("A case.", properties, oneOf=[{"required": ["when"]}, {"required": ["else"]}])


def kind_schema(kind: str) -> Schema:
    number = {"type": ["integer", "null"], "minimum": 0}
    fields: Schema = {
        "service": said("The service that is called with {input, params}.", type="string", minLength=1),
        "choice_cases": said(
            "The first expression that holds names the action.",
            type=["array", "null"],
            items=object_(
                "A case.",
                {"action": ref("name", "The action."), "expr": ref("expression")},
                required=["action", "expr"],
            ),
        ),
        "parallel_services": any_of(
            "By default ${ params.services }.",
            {"type": ["array", "null"], "items": {"type": "string"}},
            {"type": "string"},
        ),
        "parallel_mode": said("One after the other, or at once.", enum=[*MODES, "", None]),
        "max_parallel": said("At most so many at once.", **number),
        "failure_strategy": said("What one failure among many means.", enum=[*STRATEGIES, "", None]),
        "subflow": ref("body", "A flow within."),
        "max_retries": said("Rounds of attempts.", **number),
        "wait_ms": said("Between rounds.", **number),
        "max_attempts": said("Calls in a round, each to another instance.", **number),
        "attempt_delay_ms": said("Between calls.", **number),
        "weighted_by_load": said("Instances with less load are called more often.", type=["boolean", "null"]),
        "description": said("For people."),
        **{k: ref(k) for k in ("queue", "timeout", "heartbeat", "start_within", "finish_within")},
        "compensate": _compensate(),
        **_around(),
    }
    required = {"executor": ["service"], "foreach": ["service"], "subflow": ["subflow"]}.get(kind, [])
    takes = KINDS[kind]
    return {
        "description": f"A node of kind {kind}.",
        "type": "object",
        "properties": {"kind": {"const": kind}, **{k: v for k, v in fields.items() if k in takes}},
        "propertyNames": {"enum": list(dict.fromkeys(k for keys in KINDS.values() for k in keys))},
        "required": ["kind", *required],
    }
