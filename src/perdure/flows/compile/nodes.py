"""What both bodies have in common: spreads, writes, and a verb with its modifiers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, cast

import msgspec

from perdure.core.expressions import Expr
from perdure.core.expressions.template import Template
from perdure.core.limits import FANOUT_TASKS_MAX, NODE_KEY_CHARS_MAX, UNDO_ATTEMPTS_DEFAULT
from perdure.core.undo import PREFIX
from perdure.flows.compile.options import OPTION_KEYS, ExecutionOptions, read_execution
from perdure.flows.compile.reading import Reader, Scope
from perdure.flows.compile.services import read_service
from perdure.flows.compile.verbs import (
    TAKES,
    TASK_VERBS,
    VERBS,
    Bodies,
    NodeView,
    check_modifiers,
    read_timeout,
    read_verb,
    verb_of,
)
from perdure.flows.model import HttpServiceOptions, NodeSpread, OnError, TaskCall, ValueVerb, Verb, Write
from perdure.flows.problems import Path

WRITES_MAX: Final = 200
"""Entries of one node's `set`."""
DEPENDENCIES_MAX: Final = 20_000
"""Dependencies, arcs and edges of one document together."""

ON_ERROR: Final = ("fail_fast", "collect", "ignore")
ITEM_ROOTS: Final = ("item", "index", "count")
UNDO_ROOTS: Final = ("output", "error")
UNDO_VERBS: Final = ("python", "http", "run", "job", "service")
UNDO_KEYS: Final = (*UNDO_VERBS, "with", *OPTION_KEYS, "description")
MODIFIERS: Final = tuple(dict.fromkeys((*TAKES, *OPTION_KEYS, "set", "description")))
BROKEN: Final = ValueVerb(value=Template.literal(None))
"""Stands in for a verb with problems, so that the rest can be read; never leaves the compiler."""


class Parts(msgspec.Struct, frozen=True):
    """A node's verb with its modifiers."""

    verb: Verb
    spread: NodeSpread | None
    on_error: OnError
    timeout_us: int
    writes: tuple[Write, ...]
    compensate: TaskCall | None = None


def known_keys(*more: str) -> tuple[str, ...]:
    return (*VERBS, *MODIFIERS, *more)


def check_keys(r: Reader, node: NodeView, known: Collection[str], foreign: Collection[str], hint: str) -> None:
    for key in node.fields:
        if key not in known:
            r.unknown(key, node.path, node.where, known, hint if key in foreign else "")


def read_parts(
    r: Reader, verb: str, node: NodeView, scope: Scope, bodies: Bodies, given: dict[str, str], tasks: Collection[str]
) -> Parts:
    """Everything but choice. `given` has the service protocol's arguments of this kind of body (verbs.read_service)."""
    check_modifiers(r, node, verb)
    spread = read_spread(r, verb, node, scope, tasks)
    inner = scope.plus(*ITEM_ROOTS) if spread is not None and verb != "services" else scope
    is_task = verb in TASK_VERBS or not verb
    execution = read_execution(r, node.fields, node.path, bodies.execution) if is_task else ExecutionOptions()
    compensate = read_compensate(r, node, inner, bodies, given)
    execution = undone_by(compensate, execution)
    made: Verb | None
    if verb in {"service", "services"}:
        if spread is not None and spread.items is not None:
            given = {**given, "input": "item"}
        made = read_service(r, verb, node, inner, execution, given)
    else:
        made = read_verb(r, verb, node, inner, bodies, execution)
    return Parts(
        verb=made or BROKEN,
        spread=spread,
        on_error=read_on_error(r, node),
        timeout_us=0 if is_task else read_timeout(r, verb, node),
        writes=read_writes(r, node, scope),
        compensate=compensate,
    )


def undone_by(compensate: TaskCall | None, execution: ExecutionOptions) -> ExecutionOptions:
    """Tasks are recorded with the name of the one that takes them back."""
    if compensate is None:
        return execution
    return msgspec.structs.replace(execution, options=msgspec.structs.replace(execution.options, undo=compensate.task))


def service_undone_by(compensate: TaskCall | None, service: HttpServiceOptions) -> HttpServiceOptions:
    if compensate is None:
        return service
    return msgspec.structs.replace(service, options=msgspec.structs.replace(service.options, undo=compensate.task))


def read_compensate(
    r: Reader, node: NodeView, scope: Scope, bodies: Bodies, given: Mapping[str, str]
) -> TaskCall | None:
    """The call that takes back what an execution did: a verb with its modifiers, or just the name of a function."""
    if not node.has("compensate"):
        return None
    value, path = node.fields["compensate"], node.at("compensate")
    where = f"compensate of {node.where}"
    if isinstance(value, str):
        name = r.name_of(value, path, where)
        fields: dict[str, Any] | None = None if name is None else {"python": name}
    else:
        fields = r.mapping(value, path, where)
    if fields is None:
        return None
    r.keys(fields, path, where, UNDO_KEYS)
    view = NodeView(node.key, fields, path, where)
    verb = verb_of(r, view)
    if not verb or verb not in UNDO_VERBS:
        if verb == "":
            r.error(path, f"{where} does not say what to do", f"give it one of {', '.join(UNDO_VERBS)}", key=True)
        return None
    check_modifiers(r, view, verb)
    options = msgspec.structs.replace(bodies.execution.options, max_attempts=UNDO_ATTEMPTS_DEFAULT)
    execution = read_execution(
        r, fields, path, ExecutionOptions(bodies.execution.queue, options, bodies.execution.said - {"max_attempts"})
    )
    inner = scope.plus(*UNDO_ROOTS)
    if verb == "service":
        made = read_service(r, verb, view, inner, execution, {**given, "input": "output"})
    else:
        made = read_verb(r, verb, view, inner, bodies, execution)
    return made if isinstance(made, TaskCall) else None


def read_on_error(r: Reader, node: NodeView) -> OnError:
    if not node.has("on_error"):
        return "fail_fast"
    word = r.word(node.fields["on_error"], node.at("on_error"), "on_error", ON_ERROR)
    return cast(OnError, word or "fail_fast")


def read_spread(r: Reader, verb: str, node: NodeView, scope: Scope, tasks: Collection[str]) -> NodeSpread | None:
    if node.has("foreach") and node.has("parallel"):
        r.error(node.at("parallel"), f"{node.where} has foreach and parallel", "keep one of them", key=True)
    items = count = concurrency = None
    source: str | None = None
    if node.has("foreach"):
        items, source = _items(r, node, scope, tasks)
    elif node.has("parallel"):
        count = _count(r, node, "parallel", 0, scope)
    elif node.has("concurrency") and verb != "services":
        r.error(node.at("concurrency"), f"concurrency needs foreach or parallel beside it in {node.where}", key=True)
        return None
    if node.has("concurrency"):
        concurrency = _count(r, node, "concurrency", 1, scope)
    if items is None and count is None and concurrency is None:
        return NodeSpread() if node.has("foreach") or node.has("parallel") else None
    return NodeSpread(items=items, count=count, concurrency=concurrency, source=source)


def _items(r: Reader, node: NodeView, scope: Scope, tasks: Collection[str]) -> tuple[Template | None, str | None]:
    value, path = node.fields["foreach"], node.at("foreach")
    if isinstance(value, list):
        if len(value) > FANOUT_TASKS_MAX:
            r.error(path, f"foreach has more than FANOUT_TASKS_MAX={FANOUT_TASKS_MAX} items")
        return r.template(value, path, scope), None
    if not isinstance(value, str):
        r.wanted(path, f"foreach of {node.where}", "a list, or an expression such as discover.files", value)
        return None, None
    read = r.expression(value, path, "foreach", scope)
    if read is None:
        return None, None
    return Template.of(read), _source(read, tasks)


def _source(read: Expr, tasks: Collection[str]) -> str | None:
    """The one task that a foreach reads."""
    seen = {root for root in read.roots if root in tasks}
    if "tasks" in read.roots:
        seen.update(str(p[1]) for p in read.paths if len(p) > 1 and p[0] == "tasks")
    return next(iter(seen)) if len(seen) == 1 and next(iter(seen)) in tasks else None


def _count(r: Reader, node: NodeView, key: str, least: int, scope: Scope) -> Template | None:
    value, path = node.fields[key], node.at(key)
    if isinstance(value, str):
        read = r.expression(value, path, key, scope)
        return None if read is None else Template.of(read)
    number = r.integer(value, path, f"{key} of {node.where}", least, FANOUT_TASKS_MAX)
    return None if number is None else Template.literal(number)


def read_writes(r: Reader, node: NodeView, scope: Scope) -> tuple[Write, ...]:
    if not node.has("set"):
        return ()
    path = node.at("set")
    fields = r.mapping(node.fields["set"], path, f"set of {node.where}") or {}
    if len(fields) > WRITES_MAX:
        r.error(path, f"set of {node.where} has more than WRITES_MAX={WRITES_MAX} entries")
        return ()
    inner = scope.plus("output")
    out: list[Write] = []
    for key, value in fields.items():
        to = r.dotted(key, (*path, key), "a key of set", key=True)
        made = r.template(value, (*path, key), inner)
        if to is not None and made is not None:
            out.append(Write(to=to, value=made))
    return tuple(out)


def usable_key(r: Reader, key: str, path: Path) -> None:
    """Of any node. Keys name tasks and promises, and stand in labels."""
    if not key or len(key) > NODE_KEY_CHARS_MAX or not key.isprintable() or key != key.strip():
        message = f"{key[:NODE_KEY_CHARS_MAX]!r} is no usable key: give it 1 to NODE_KEY_CHARS_MAX={NODE_KEY_CHARS_MAX} printable characters"
        r.error((*path, key), message, key=True)
    elif key.startswith(PREFIX) and r.typed:  # a document that is in use goes on
        r.error((*path, key), f"{key!r} cannot be a key: {PREFIX!r} marks tasks that compensate", key=True)
