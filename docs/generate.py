"""Writes the parts of the documentation that come from code: `uv run python docs/generate.py`.

    docs/reference/errors.md       whole page, from the error classes
    docs/reference/errors/*.md     whole pages, from the error classes and server/errors.toml
    docs/reference/rest.md         whole page, from the routes of the server
    docs/contents.md               whole page, from the navigation in zensical.toml; docs/decisions.md, from docs/adr
    docs/reference/limits.md       whole page, from core/limits.py and the settings classes
    docs/reference/settings.md     the tables of settings, from programs/settings.py and programs/worker_settings.py; the prose is written by hand
    docs/reference/cli.md          whole page, from the commands (src/perdure/cli/reference.py)
    docs/concepts/lifecycles.md    the two diagrams, from the tables in core/lifecycle.py; the prose around them is written by hand
    docs/reference/messages-and-acts.md  the tables, from tests/messages/pairs.py, which test_pairs.py checks; the prose is written by hand
    docs/architecture.md           the phases of a run in an engine and in a worker, from their tables; the prose is written by hand
    docs/reference/worker-protocol.md    the tables of bounds, statuses, events and commands; the prose around them is written by hand
    docs/how-to/add-to-fastapi.md  what Perdure changes in an application, from examples/fastapi_shop; the prose is written by hand
    docs/how-to/add-to-django.md   what Perdure changes in an application, from examples/django_library; the prose is written by hand
    docs/compare/                  the programs of examples/migrate; the prose around them is written by hand
    docs/concepts/scale.md, docs/how-to/plan-capacity.md   every figure, from core/capacity and bench/costs.json; the prose is written by hand

Meanings are read from the code: the docstring of an error class, the string below a constant or a field.
tests/docs/test_generated.py compares the pages with what this would write.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import os
import re
import subprocess
import sys
import textwrap
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

import msgspec

from perdure import errors as public
from perdure.app.setting_values import as_toml, struct_of
from perdure.bench.shipped_costs import shipped_costs
from perdure.cli.reference import page as cli_page
from perdure.core import (
    application_limits,
    commands,
    errors,
    events,
    lifecycle,
    limits,
    placement,
    retention_limits,
    retry,
)
from perdure.core.capacity import balance
from perdure.core.capacity.costs import UNITS
from perdure.core.capacity.load import Assumptions, DatabaseSize, ExpectedLoad
from perdure.core.capacity.places import HOMES
from perdure.core.capacity.plan import plan
from perdure.core.capacity.shards import ShardChoices, plan_shards
from perdure.core.capacity.sheet import number
from perdure.engine import engine
from perdure.engine.commits import policy
from perdure.engine.runs import transitions as run_phases
from perdure.programs.settings import ServerSettings
from perdure.programs.worker_settings import WorkerSettings
from perdure.sdk.workflow import phases as live_phases
from perdure.sdk.workflow import transitions as live_transitions
from perdure.server import error_guide
from perdure.server.grpc import connected_workers, hello, hub
from perdure.server.grpc import server as grpc_server
from perdure.wire import parts as wire_parts
from perdure.wire import protocol

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests/ and tools/

from tests.messages import pairs
from tools import docs_site, rest_reference

DOCS = Path(__file__).parent
BY = "<!-- Written by docs/generate.py. Change the code it reads, or the generator, and run it again. -->"

# -- errors ------------------------------------------------------------------------------------------------------------

TASK_EXCEPTIONS = (public.FinalError, public.RetryLater, public.AttemptCancelled)


def public_errors() -> list[type[errors.PerdureError]]:
    """The tree of `perdure.errors`, each class above those that derive from it."""
    return [c for c in errors.error_classes() if c.__module__ == public.__name__ and c.__name__ in public.__all__]


def _depth(cls: type) -> int:
    return len([c for c in cls.__mro__ if issubclass(c, errors.PerdureError)]) - 1


def _code(code: str) -> str:
    return f"[`{code}`](errors/{code}.md)"


def _error_row(cls: type[errors.PerdureError]) -> str:
    doors = f"{cls.http_status} | {cls.grpc_status} | {cls.exit_code}"
    return f"| {'&nbsp;&nbsp;' * _depth(cls)}`{cls.__name__}` | {_code(cls.code)} | {cls.meaning()} | {doors} |"


def codes_without_public_class() -> list[str]:
    known = {cls.code for cls in public_errors()}
    return [code for code in error_guide.explanations() if code not in known]


def _bare_row(code: str) -> str:
    kinds = error_guide.classes().get(code)
    doors = f"{kinds[0].http_status} | {kinds[0].grpc_status} | {kinds[0].exit_code}" if kinds else "| | "
    return f"| {_code(code)} | {error_guide.meaning(code)} | {doors} |"


def errors_page() -> str:
    heading = ["| class | code | meaning | HTTP | gRPC | exit |", "|---|---|---|---|---|---|"]
    out = [
        BY,
        "# Errors",
        "",
        "Every error is a `PerdureError` with a stable `code`, and every code has a page: what happened, why, what to do. `perdure explain CODE` prints it.",
        "Codes do not change between versions; texts may. Import the classes from `perdure.errors`.",
        "",
        "HTTP and gRPC are the statuses that a server answers with, exit is the [exit code](cli.md#exit-codes) of a command. An error with HTTP status 500 leaves a",
        "server as `internal`, without its text. Indentation shows which class derives from which: catching a class catches the classes below it.",
        "",
        *heading,
        *(_error_row(c) for c in public_errors()),
        "",
        "## Codes without a class to import",
        "",
        "Clients get those with a status from a server. The others appear in `error.failure.code`, in `perdure.run.error_code` and in logs.",
        "",
        "| code | meaning | HTTP | gRPC | exit |",
        "|---|---|---|---|---|",
        *(_bare_row(code) for code in codes_without_public_class()),
        "",
        "## In the code of a task",
        "",
        "These are not `PerdureError`s: a task raises them, or they are raised inside one.",
        "",
        "| class | meaning |",
        "|---|---|",
        *(f"| `{c.__name__}` | {(c.__doc__ or '').partition(chr(10))[0]} |" for c in TASK_EXCEPTIONS),
        "",
        "`TimeoutError` is Python's own: `Handle.result(timeout=...)`, `Promise.wait(timeout=...)` and `Signal.next(timeout=...)` raise it. The run goes on.",
        "",
        "## Links to these pages",
        "",
        "An error of a command ends with `perdure explain CODE`. Set `PERDURE_DOCS_URL` to the address of this documentation, and it ends with the address of the",
        "page. A problem of the REST API has a `type` that leads to the same text on the page `/errors` of the server itself.",
        "",
    ]
    return "\n".join(out)


def error_page(code: str) -> str:
    """The page of one code."""
    found, kinds = error_guide.explanation(code), error_guide.classes().get(code, [])
    out = [BY, f"# {code}", "", error_guide.meaning(code), ""]
    if kinds:
        first = kinds[0]
        if importable := [f"`{k.__name__}`" for k in kinds if k.__name__ in public.__all__]:
            out.append(f"- class in `perdure.errors`: {', '.join(importable)}")
        if first.http_status != 500:
            out += [f"- HTTP status: {first.http_status}", f"- gRPC status: {first.grpc_status}"]
        out += [f"- [exit code](../cli.md#exit-codes) of a command: {first.exit_code}", ""]
    saying = "For example, with the words of your own code:" if found.yours else "For example:"
    out += ["## What happened and why", "", found.why, "", saying, "", "```text", found.example, "```", ""]
    out += ["## What to do", "", re.sub(r"\]\(", "](../../", found.do), "", "[All errors](../errors.md)", ""]
    return "\n".join(out)


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return text[0].upper() + text[1:] + "."


# -- limits ------------------------------------------------------------------------------------------------------------

FIELD_MEANING = {
    "ATTEMPTS_MAX": "The most that `Retry(attempts=...)` accepts.",
    "namespace": "The tenant whose runs this engine starts, sees and executes.",
    "shard": "The number written into the ids of new runs, 0 to 4,095. One database is one shard; leave it alone.",
    "heartbeat_s": "How often a session is renewed. Keep it at a third of `lease_s` or less.",
    "tick_s": "How often timeouts are looked at and idle runs considered for eviction.",
    "commit": "When a batch is written; fields below.",
    "placement": "Which tasks stay local and which runs leave memory; fields below.",
    "partitions_ahead_days": "Days for which partitions are made in advance.",
    "close_grace_s": "How long closing waits for running tasks before it hands them back as lost.",
}
"""For constants and fields without a text of their own below them."""


def documented(source: Any) -> list[tuple[str, str]]:
    """(name, text below it) of each assignment in a module or class, in order."""
    text = inspect.getsource(source)
    body = ast.parse(text).body
    if not isinstance(source, ModuleType):
        assert isinstance(body[0], ast.ClassDef)
        body = body[0].body
    out: list[tuple[str, str]] = []
    for at, node in enumerate(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            below = body[at + 1] if at + 1 < len(body) else None
            said = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            name = node.target.id
            out.append((name, str(below.value.value) if said else FIELD_MEANING[name]))  # type: ignore[union-attr]
    return out


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, (str, float)):
        return f"`{value!r}`"
    if isinstance(value, int):
        return f"{value:,}"
    return f"`{type(value).__name__}()`"


def _fields(cls: Any) -> list[str]:
    made = cls()
    return [
        "| field | default | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | {_value(getattr(made, name))} | {_sentence(text)} |" for name, text in documented(cls)),
        "",
    ]


def limits_page() -> str:
    out = [
        BY,
        "# Limits",
        "",
        "Bounds of a run, its values, its messages and the API, by the name that errors quote. What to do about a limit is described in",
        "[limits and large data](../how-to/limits-and-large-data.md).",
        "",
        "## Fixed bounds",
        "",
        "These are constants of `perdure.core.limits`, `perdure.core.application_limits` and `perdure.core.retention_limits`. They are the same for every process of one version and cannot be set.",
        "",
        "| name | default | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | {getattr(limits, name):,} | {_sentence(text)} |" for name, text in documented(limits)),
        *(
            f"| `{name}` | {getattr(application_limits, name):,} | {_sentence(text)} |"
            for name, text in documented(application_limits)
        ),
        *(
            f"| `{name}` | {getattr(retention_limits, name):,g} | {_sentence(text)} |"
            for name, text in documented(retention_limits)
        ),
        "",
        "## EngineSettings",
        "",
        "Per engine: `Perdure(settings=EngineSettings(...))`. Names end in their unit.",
        "",
        *_fields(engine.EngineSettings),
        "## CommitPolicy",
        "",
        "When a batch is written: `EngineSettings(commit=CommitPolicy(...))`, from `perdure.engine.commits.policy`.",
        "",
        *_fields(policy.CommitPolicy),
        "## Placement",
        "",
        "What stays with the engine that scheduled it: `EngineSettings(placement=Placement(...))`, from `perdure.core.placement`.",
        "",
        *_fields(placement.Placement),
    ]
    return "\n".join(out)


# -- lifecycles ----------------------------------------------------------------------------------------------------------


def _diagram(table: dict[Any, Any], first: IntEnum, terminal: frozenset[Any]) -> str:
    edges: dict[tuple[str, str], list[str]] = {}
    for (status, act), after in table.items():
        edges.setdefault((status.word, after.word), []).append(act)
    out = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.name.lower()}"]
    out += [f"    {a} --> {b}: {', '.join(acts)}" for (a, b), acts in edges.items()]
    out += [f"    {status.name.lower()} --> [*]" for status in sorted(terminal)]
    return "\n".join([*out, "```"])


def lifecycles_page(current: str) -> str:
    drawn = {
        "run": _diagram(lifecycle.RUN_TABLE, lifecycle.RunStatus.PENDING, lifecycle.RUN_TERMINAL),
        "task": _diagram(lifecycle.TASK_TABLE, lifecycle.TaskStatus.PENDING, lifecycle.TASK_TERMINAL),
    }
    for name, diagram in drawn.items():
        current = _put(current, f"<!-- drawn from core/lifecycle.py: {name} -->", diagram)
    return current


def _after(phase: Any) -> str:
    """The name of a phase in a table: an object, or the type of a phase with data."""
    return (phase.__name__ if isinstance(phase, type) else repr(phase)).upper()


def _run_phases() -> str:
    edges: dict[tuple[str, str], list[str]] = {}
    for table in run_phases.TABLES:
        for before, after in [*table.items(), *table.by_type.items()]:
            edges.setdefault((_after(before), _after(after)), []).append(table.event)
    inside = {_after(phase) for phase in run_phases.ACTIVE}
    everywhere = {
        table.event: _after(next(iter(table.values())))
        for table in run_phases.TABLES
        if set(table) == set(run_phases.ACTIVE) and len({_after(x) for x in table.values()}) == 1
    }
    out = ["```mermaid", "stateDiagram-v2", "    [*] --> active", "    state active {", "        [*] --> LOADING"]
    changes = {(a, b): ", ".join(names) for (a, b), names in edges.items() if a != b}
    out += [f"        {a} --> {b}: {names}" for (a, b), names in changes.items() if {a, b} <= inside]
    out += ["    }"]
    out += [f"    active --> {after}: {event}" for event, after in everywhere.items() if after not in inside]
    out += [f"    {a} --> {b}: {names}" for (a, b), names in changes.items() if a not in inside]
    out += ["    CLOSING --> [*]", "    LEAVING --> [*]", "```", ""]
    out += ["| event | when | what it makes of a phase |", "|---|---|---|"]
    for table in run_phases.TABLES:
        if table.event in everywhere:
            made = f"any active phase becomes {everywhere[table.event]}"
        else:
            made = ", ".join(f"{a} becomes {_after(b)}" for a, b in table.items() if a is not b)
        made += "".join(f", {_after(a)} becomes {_after(b)}" for a, b in table.by_type.items() if a is not b)
        out.append(f"| {table.event} | {_sentence(_below(run_phases, table.event))} | {made} |")
    return "\n".join(out)


def _live_run_phases() -> str:
    kinds = get_args(live_phases.InstancePhase)
    out = ["| phase | meaning |", "|---|---|"]
    out += [f"| {kind.__name__} | {_sentence((kind.__doc__ or '').strip())} |" for kind in kinds]
    names = [kind.__name__ for kind in kinds]
    out += ["", f"| event | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    taken = live_transitions.TRANSITIONS
    for event in taken[live_phases.Running]:
        out.append(f"| `{event.__name__}` | {' | '.join('yes' if event in taken[kind] else '' for kind in kinds)} |")
    return "\n".join(line.replace("|  |", "| |").replace("|  |", "| |") for line in out)


def architecture_page(current: str) -> str:
    current = _put(current, "<!-- drawn from engine/runs/transitions.py -->", _run_phases())
    return _put(current, "<!-- drawn from sdk/workflow/transitions.py -->", _live_run_phases())


def _put(current: str, opening: str, part: str) -> str:
    """A page with a generated part in its place."""
    closing = "<!-- end -->"
    assert opening in current, f"a page has no place for its generated part: {opening}"
    head, _, rest = current.partition(opening)
    _, _, tail = rest.partition(closing)
    return f"{head}{opening}\n{part}\n{closing}{tail}"


# -- the worker protocol ---------------------------------------------------------------------------------------------------

PROTOCOL_BOUNDS: dict[tuple[ModuleType, str], str] = {
    (protocol, "PROTOCOL"): "what `Hello.protocol` must be",
    (protocol, "MESSAGE_BYTES_MAX"): "",
    (protocol, "PART_BYTES"): "",
    (wire_parts, "WHOLE_RECORDS"): "",
    (protocol, "SERVED_MAX"): "",
    (hello, "SLOTS_MAX"): "",
    (hub, "WORKERS_MAX"): "",
    (hub, "ALIVE_EVERY_S"): "",
    (hub, "SILENT_S_MAX"): "",
    (hub, "RECONNECT_GRACE_S"): "",
    (connected_workers, "SHARE_TASKS"): "",
    (grpc_server, "HELLO_S_MAX"): "how long the server waits for the first message of a stream",
    (grpc_server, "RECHECK_S"): "",
    (grpc_server, "CALLS_MAX"): "",
}
"""Where the bounds of the protocol are, and what to say of those without a text of their own."""

EVENT_NOTES = {
    "RunStarted": "the first event of every history",
    "CancelRequested": "a request to stop the run",
    "TasksScheduled": "tasks `first`, `first + 1`, … in the order of `inputs`",
    "TasksSucceeded": "`results[i]` is that of task `seqs[i]`",
    "TaskFailed": "no attempt is left",
    "ChildFailed": "the child failed, or its key was taken",
    "RunRetried": "a failed run goes on; never sent to a worker, which gets the history without what this takes back",
    "PromiseResolved": "by name: it may come before the promise is created",
    "UpdateReceived": "a request for a change, whose sender waits for the answer",
    "UpdateAnswered": "matched by `id`; whether it is a refusal must be the same at a replay",
}
COMMAND_NOTES = {
    "ScheduleTasks": "becomes `TasksScheduled`; at most `SCHEDULE_CHUNK_TASKS` tasks and `SCHEDULE_CHUNK_BYTES` of inputs in one",
    "CancelTasks": "becomes `TasksCancelled`",
    "StartTimer": "becomes `TimerStarted`; the time is absolute, by the database's clock",
    "CancelTimer": "becomes `TimerCancelled`",
    "StartChild": "becomes `ChildStarted`; the server draws the child's id",
    "CancelChild": "becomes `ChildCancelRequested`",
    "CreatePromise": "becomes `PromiseCreated`",
    "RecordOperation": "becomes `OperationRecorded`: the outcome of a side effect",
    "SetState": "becomes `StateSet`",
    "ClearState": "becomes `StateCleared`",
    "RecordPatch": "becomes `PatchRecorded`",
    "SetAttributes": "becomes `AttributesSet`; an attribute that is null is deleted",
    "CompleteRun": "becomes `RunSucceeded`; `result` is JSON and never empty",
    "FailRun": "becomes `RunFailed`",
    "CancelRun": "becomes `RunCancelled`",
    "ContinueAsNew": "becomes `RunContinued`, and the successor's `RunStarted`",
    "AnswerUpdate": "becomes `UpdateAnswered`; the first answer stands",
}


def _type_text(kind: Any) -> str:
    """A field's type in the words of msgpack."""
    plain = {int: "int", str: "str", bytes: "bin", bool: "bool", float: "float", type(None): "nil"}
    if kind in plain:
        return plain[kind]
    if isinstance(kind, type) and issubclass(kind, IntEnum):
        return f"int ({', '.join(f'{x.value} {x.name.lower()}' for x in kind)})"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind.__name__
    inner = get_args(kind)
    if kind == events.Event:
        return "an event"
    if get_origin(kind) is list or (get_origin(kind) is tuple and inner[-1] is ...):
        return f"array of {_type_text(inner[0])}"
    if get_origin(kind) is tuple:
        return f"[{', '.join(map(_type_text, inner))}]"
    return " or ".join(map(_type_text, inner))


def _default_text(value: Any) -> str:
    words: dict[Any, str] = {None: "nil", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    return {b"": "empty", "": "empty"}.get(value, str(value)) if isinstance(value, bytes | str) else str(value)


def _field_text(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return f"`{field.name}` {_type_text(field.type)}"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    empty = value in ((), [])
    return f"`{field.name}` {_type_text(field.type)} = {'[]' if empty else _default_text(value)}"


def _role(kind: Any) -> str:
    """What workflow code has to do with an event."""
    if kind in events.TERMINAL or kind is events.RunRetried:
        return "end" if kind in events.TERMINAL else ""
    return "fact" if kind in events.FACTS else "command"


def _records(kinds: tuple[Any, ...], notes: dict[str, str]) -> str:
    roles = {kind: f" {_role(kind)} |" if kinds is events.EVENT_TYPES else "" for kind in kinds}
    extra = " is |" if kinds is events.EVENT_TYPES else ""
    out = [f"| tag | name |{extra} fields after the tag, in order | |", f"|---|---|{'---|' if extra else ''}---|---|"]
    for kind in kinds:
        fields = ", ".join(map(_field_text, msgspec.structs.fields(kind)))
        doc = (kind.__doc__ or "").strip().partition("\n")[0]
        note = notes.get(kind.__name__) or ("" if doc.startswith(kind.__name__ + "(") else doc)
        said = _sentence(note) if note else ""
        out.append(f"| {kind.__struct_config__.tag} | `{kind.__name__}` |{roles[kind]} {fields} | {said} |")
    return "\n".join(out)


def _shapes(*kinds: Any) -> str:
    out = ["| record | elements, in order |", "|---|---|"]
    out += [f"| `{k.__name__}` | {', '.join(map(_field_text, msgspec.structs.fields(k)))} |" for k in kinds]
    return "\n".join(out)


def _below(module: ModuleType, name: str) -> str:
    """The text below a constant."""
    body = ast.parse(inspect.getsource(module)).body
    for at, node in enumerate(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            below = body[at + 1]
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                return str(below.value.value)
    raise AssertionError(f"{module.__name__}.{name} has no text below it: give it one, or say it in PROTOCOL_BOUNDS")


def _bounds() -> str:
    out = ["| name | value | meaning |", "|---|---|---|"]
    for (module, name), said in PROTOCOL_BOUNDS.items():
        value = getattr(module, name)
        text = f"{value:g} s" if isinstance(value, float) else f"{value:,}"
        out.append(f"| `{name}` | {text} | {_sentence(said or _below(module, name))} |")
    options = {k: v for k, v in protocol.CHANNEL_OPTIONS if k.startswith("grpc.keepalive_t")}
    out += [f"| `{k}` | {v:,} | {KEEPALIVE[k]} |" for k, v in options.items()]
    return "\n".join(out)


KEEPALIVE = {
    "grpc.keepalive_time_ms": "HTTP/2 pings of both sides when nothing else was heard. More often than every 10 s the server ends the connection.",
    "grpc.keepalive_timeout_ms": "How long the answer to a ping may take.",
}


def _statuses() -> str:
    out = ["| gRPC status | `perdure-code` |", "|---|---|"]
    codes: dict[str, list[str]] = {}
    for kind in public_errors():
        if kind.grpc_status != errors.PerdureError.grpc_status:
            codes.setdefault(kind.grpc_status, []).append(f"`{kind.code}`")
    out += [f"| `{status}` | {', '.join(own)} |" for status, own in codes.items()]
    return "\n".join(out)


def protocol_page(current: str) -> str:
    parts = {
        "bounds": _bounds(),
        "statuses": _statuses(),
        "records": _shapes(events.Recorded, errors.Failure, retry.TaskOptions),
        "events": _records(events.EVENT_TYPES, EVENT_NOTES),
        "commands": _records(commands.COMMAND_TYPES, COMMAND_NOTES),
    }
    for name, part in parts.items():
        current = _put(current, f"<!-- written by docs/generate.py: {name} -->", part)
    return current


# -- all ---------------------------------------------------------------------------------------------------------------


# -- settings ----------------------------------------------------------------------------------------------------------

DEFAULTS_OF_THE_MACHINE = {"threads": "cores + 4, at most 32", "processes": "cores"}


def settings_page(current: str) -> str:
    for cls in (ServerSettings, WorkerSettings):
        begin, end = f"<!-- generated: {cls.section} -->\n", "<!-- end -->"
        assert begin in current, begin
        before, rest = current.split(begin)
        current = before + begin + "\n".join(["", *_settings_table(cls), "", rest[rest.index(end) :]])
    return current


def _settings_table(cls: Any) -> list[str]:
    out = ["| key | variable | default | meaning |", "|---|---|---|---|"]
    made = cls()
    for one in cls.settings():
        value = made._value(one.key)
        default = "" if value in (None, "", ()) else f"`{as_toml(value)}`"
        variable = f"`{one.variable}`" + (", `…_FILE`" if one.secret else "")
        shown = DEFAULTS_OF_THE_MACHINE.get(one.key, default)
        out.append(f"| `{one.key}` | {variable} | {shown} | {_sentence(_meaning(cls, one.key))} |")
    return out


def _meaning(cls: Any, key: str) -> str:
    first, *rest = key.split(".")
    if not rest:
        return cls.model_fields[first].description or ""
    owner: Any = struct_of(cls.model_fields[first].annotation)
    for name in rest[:-1]:
        owner = struct_of({f.name: f.type for f in msgspec.structs.fields(owner)}[name])
    return dict(documented(owner))[rest[-1]]


# -- applications before and after -------------------------------------------------------------------------------------

EXAMPLES = DOCS.parent / "examples"
NOT_SHOWN = {"library/tests.py"}
"""Changed files that no page shows."""


def changes(example: str) -> dict[str, str]:
    """File of an example -> its difference before and after, for files that have one."""
    states = [EXAMPLES / example / state for state in ("before", "after")]
    names = {str(file.relative_to(state)) for state in states for file in state.rglob("*") if _is_source(file)}
    found = {name: _difference(name, [state / name for state in states]) for name in sorted(names - NOT_SHOWN)}
    return {name: text for name, text in found.items() if text}


def _is_source(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts


def _difference(name: str, files: list[Path]) -> str:
    before, after = (file.read_text().splitlines() if file.exists() else [] for file in files)
    lines = difflib.unified_diff(before, after, f"before/{name}", f"after/{name}", lineterm="")
    return "\n".join(line.rstrip() for line in lines)  # an empty line stays one


def changes_page(current: str, example: str) -> str:
    for name, text in changes(example).items():
        current = _put(current, f"<!-- written by docs/generate.py: {name} -->", f"\n```diff\n{text}\n```\n")
    return current


# -- the same program in another tool ----------------------------------------------------------------------------------

MIGRATE = EXAMPLES / "migrate"
PEERS = ("celery", "airflow", "temporal", "prefect", "dbos")


def program_page(current: str, *files: Path) -> str:
    """Whole programs. The tests of the documentation do not run them, because tests/compare does."""
    for file in files:
        text = f"\n<!-- no-run: tests/compare runs this program -->\n```python\n{file.read_text().rstrip()}\n```\n"
        current = _put(current, f"<!-- written by docs/generate.py: {file.relative_to(MIGRATE)} -->", text)
    return current


def comparison_pages() -> dict[Path, str]:
    compare = DOCS / "compare"
    files = {
        compare / f"from-{peer}.md": [MIGRATE / peer / f"{name}.py" for name in ("before", "after")] for peer in PEERS
    }
    files[compare / "index.md"] = [MIGRATE / "shop.py"]
    return {page: program_page(page.read_text(), *programs) for page, programs in files.items()}


# -- navigation ----------------------------------------------------------------------------------------------------------


def contents_page() -> str:
    """Every page of the navigation in zensical.toml, with its first sentence."""
    out = [BY, "# All pages", "", "Every page of this documentation, by section."]
    shown: tuple[str, ...] = ()
    for sections, line in docs_site.contents():
        if sections != shown:
            level = "##" if len(sections) == 1 else "###"
            if len(sections) > 1 and (not shown or shown[0] != sections[0]):
                out += ["", f"## {sections[0]}"]
            out += ["", f"{level} {sections[-1]}", ""]
            shown = sections
        out.append(line)
    return "\n".join([*out, ""])


def decisions_page() -> str:
    """Every decision record, with its first paragraph."""
    out = [BY, "# Decision records", "", "Why Perdure is as it is: decisions that a newcomer would question.", ""]
    for record in sorted((DOCS / "adr").glob("*.md")):
        text = record.read_text()
        number, _, title = docs_site.title_of(text).partition(". ")
        out.append(f"{int(number)}. [{title}](adr/{record.name})")
    return "\n".join([*out, ""])


# -- capacity ----------------------------------------------------------------------------------------------------------

BILLION = ExpectedLoad(runs_per_day=1e9, retention_days=3)
HOME_WORDS = {
    "run": "with the run whose id a row holds",
    "key": "on the home of a key or name",
    "copy": "written on the first shard, copied to all",
    "every": "a row on every shard",
    "local": "on every shard about itself",
}


def _rows(header: str, rows: list[list[str]]) -> str:
    """A table, with the first column to the left and all others to the right."""
    columns = header.count("|") + 1
    return "\n".join(
        [f"| {header} |", "|---" + "|---:" * (columns - 1) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    )


def costs_table() -> str:
    costs = shipped_costs()
    rows: list[list[str]] = []
    for name in UNITS:
        c = costs.unit(name)
        figures = (c.server_us, c.worker_us, c.postgres_us, c.wal_bytes, c.disk_bytes)
        rows.append([name.replace("_", " "), *(f"{v:,.0f}" for v in figures), f"x {costs.spread_of(name):.1f}"])
    about = costs.about
    where = (
        f"Medians of {about.rounds} rounds, {about.date}: {about.machine}, Perdure {about.perdure}, PostgreSQL {about.postgresql.split()[0]}, "
        f"Python\n{about.python}; server, worker, client and PostgreSQL share the cores; fsync {about.fsync}. Bare PostgreSQL on it: "
        f"{about.life3_tasks_per_s:,} tasks a second (`life3`)."
    )
    return (
        _rows("one | server µs | worker µs | PostgreSQL µs | WAL bytes | disk bytes | spread of CPU", rows)
        + f"\n\n{textwrap.fill(where, 100)}"
    )


def sizes_table() -> str:
    rows: list[list[str]] = []
    for runs, days, audit_days in (
        (1e6, 30, 365),
        (1e7, 30, 365),
        (1e8, 30, 365),
        (1e9, 30, 365),
        (1e9, 3, 365),
        (1e9, 3, 30),
    ):
        load, assumed = ExpectedLoad(runs_per_day=runs, retention_days=days), Assumptions(audit_days=audit_days)
        p = plan(load, shipped_costs(), assumed, DatabaseSize())
        many = plan_shards(load, shipped_costs(), assumed, DatabaseSize(), ShardChoices())
        rows.append(
            [
                number(runs),
                number(days),
                number(audit_days),
                number(round(p["runs per second, peak"])),
                number(round(p["tasks per second, peak"])),
                number(many["servers, all"]),
                number(many["workers, all"]),
                number(many["PostgreSQL cores, all"]),
                number(round(p["WAL archive"])),
                number(round(many.one["all rows"] * many.shards)),
                number(many.shards),
                p.needs[0].resource,
            ]
        )
    header = "runs a day | days kept | days of audit log | runs/s, peak | tasks/s, peak | servers | workers | PostgreSQL cores | WAL, GB/day | rows, GB | databases | limits first"
    return _rows(header, rows)


def billion_table() -> str:
    many = plan_shards(BILLION, shipped_costs(), Assumptions(), DatabaseSize(), ShardChoices())
    kept = [line for line in many.lines if not line.name.startswith("databases for")]
    return _rows("line | value | how", [[line.name, line.shown, f"`{line.numbers}`"] for line in kept]).replace(
        "---:|---:|", "---:|---|"
    )


def breaks_table() -> str:
    many = plan_shards(BILLION, shipped_costs(), Assumptions(), DatabaseSize(), ShardChoices())
    rows = [
        [line.name, number(round(line.value / 1e6)), number(n.of_one_database)]
        for line in many.breaks
        for n in many.one.needs
        if n.resource == line.name
    ]
    return _rows("of each database | full at million runs a day, in all | planned for", rows)


def lists_table() -> str:
    rows: list[list[str]] = []
    for shards in (1, 4, 16, 64, 256):
        many = plan_shards(BILLION, shipped_costs(), Assumptions(), DatabaseSize(), ShardChoices(shards=shards))
        rows.append(
            [
                number(shards),
                number(many["rows read for a page of 50"]),
                f"{many['answers that wait for a slow shard']:.0%}",
                f"p{100 * many['quantile of one shard that is the median of all']:.1f}",
                f"{many['runs that stand still']:.2%}",
                number(round(many["minutes a year that some shard is away"])),
            ]
        )
    header = "shards | rows for a page of 50 | lists that meet a shard's slowest 1% | the median list is a shard's | runs that stand, one away | minutes a year that some shard is away"
    return _rows(header, rows)


def balance_table() -> str:
    rows: list[list[str]] = []
    for shards in (4, 16, 64):
        trial = balance.try_out([1.0] * shards)
        spreads = [f"{spread.lowest:.2f} to {spread.highest:.2f}" for spread in trial.spreads]
        rows.append([number(shards), *spreads, f"{trial.added.share:.1%}", f"{trial.added.share_by_modulo:.0%}"])
    return _rows("shards | runs | keys | tenants, one home each | keys moved by one more | by modulo", rows)


def homes_table() -> str:
    rows = [
        [f"`{home}`: {words}", ", ".join(f"`{t}`" for t in sorted(HOMES) if HOMES[t] == home)]
        for home, words in HOME_WORDS.items()
    ]
    return _rows("home | tables", rows).replace("|---:|", "|---|")


def console(command: str, first: str, *sections: str) -> str:
    """A command with what it prints at the width of a page: sections that begin like these, and `…` for the rest."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")} | {
        "COLUMNS": "99",
        "NO_COLOR": "1",
    }
    words = [sys.executable, "-c", "from perdure.cli.main import main; main()", *command.split()[1:]]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    out: list[str] = []
    for part in "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines()).split("\n\n"):
        if part.startswith((first, *sections)):
            out.append(part)
        elif not out or out[-1] != "…":
            out.append("…")
    shown = "\n\n".join(out).replace("\n\n…\n\n", "\n…\n").removeprefix("…\n\n")
    return f"```text\n$ {command}\n{shown}\n```"


SHOWN = ("One run costs", "Servers", "Workers", "WAL and", "What limits", "2 servers", "Costs are")
CAPACITY_PARTS = {
    "costs": costs_table,
    "sizes": sizes_table,
    "billion": billion_table,
    "breaks": breaks_table,
    "lists": lists_table,
    "balance": balance_table,
    "homes": homes_table,
    "plan": lambda: console("perdure plan --runs-per-day 10M --tasks 4 --payload 2kB --days 14 -o table", *SHOWN),
    "trial": lambda: console("perdure plan --runs-per-day 1B --days 3 --shards 16 --try -o table", "100,000 of each"),
}


def capacity_page(current: str) -> str:
    for name, part in CAPACITY_PARTS.items():
        if (opening := f"<!-- written by docs/generate.py: {name} -->") in current:
            current = _put(current, opening, f"\n{part()}\n")
    return current


def pages() -> dict[Path, str]:
    """Every page with a generated part, as it should be."""
    life, worker = DOCS / "concepts" / "lifecycles.md", DOCS / "reference" / "worker-protocol.md"
    settings = DOCS / "reference" / "settings.md"
    messages = DOCS / "reference" / "messages-and-acts.md"
    architecture = DOCS / "architecture.md"
    fastapi = DOCS / "how-to" / "add-to-fastapi.md"
    django = DOCS / "how-to" / "add-to-django.md"
    scale, capacity = DOCS / "concepts" / "scale.md", DOCS / "how-to" / "plan-capacity.md"
    return {
        architecture: architecture_page(architecture.read_text()),
        DOCS / "reference" / "errors.md": errors_page(),
        **{DOCS / "reference" / "errors" / f"{code}.md": error_page(code) for code in error_guide.explanations()},
        DOCS / "reference" / "rest.md": rest_reference.page(),
        DOCS / "contents.md": contents_page(),
        DOCS / "decisions.md": decisions_page(),
        DOCS / "reference" / "limits.md": limits_page(),
        DOCS / "reference" / "cli.md": cli_page(),
        life: lifecycles_page(life.read_text()),
        settings: settings_page(settings.read_text()),
        worker: protocol_page(worker.read_text()),
        messages: _put(
            messages.read_text(), "<!-- written from tests/messages/pairs.py -->", f"\n{pairs.write_page()}\n"
        ),
        fastapi: changes_page(fastapi.read_text(), "fastapi_shop"),
        django: changes_page(django.read_text(), "django_library"),
        **comparison_pages(),
        scale: capacity_page(scale.read_text()),
        capacity: capacity_page(capacity.read_text()),
    }


def main() -> None:
    for path, text in pages().items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            sys.stdout.write(f"wrote {path.relative_to(DOCS.parent)}\n")


if __name__ == "__main__":
    main()
