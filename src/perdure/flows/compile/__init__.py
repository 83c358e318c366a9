"""Document to Flow: everything that can be known before a run begins is found out here.

    document -> name, input, defaults -> body (dag | graph) -> nodes (verbs, nodes, kinds)

Laws:

1. What compiles can be decided: every name leads somewhere, every expression is read, every bound holds.
2. All problems come together in one FlowError. Warnings do not stand in the way.
3. The same document compiles to the same flow, on every engine and after every restart; its version is the digest of its content.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from math import isfinite
from typing import Any, Final, cast

import msgspec

from perdure.core.limits import (
    DOCUMENT_DEPTH_MAX,
    DOCUMENT_NODES_MAX,
    EMBED_DEPTH_MAX,
    FLOW_NODES_MAX,
    GRAPH_STEPS_DEFAULT,
    GRAPH_STEPS_MAX,
)
from perdure.core.subscriptions import Subscription
from perdure.core.work import VERSION_PREFIX
from perdure.flows.compile.dag import compile_dag
from perdure.flows.compile.flow_control import CONTROL_KEYS, read_control
from perdure.flows.compile.graph import GRAPH_KEYS, compile_graph
from perdure.flows.compile.input import read_input
from perdure.flows.compile.options import ExecutionOptions, read_defaults
from perdure.flows.compile.reading import Reader, leaves
from perdure.flows.compile.subscriptions import read_subscriptions
from perdure.flows.compile.triggers import read_triggers
from perdure.flows.compile.verbs import Bodies
from perdure.flows.hooks import HOOKS, hook_documents, hook_name
from perdure.flows.model import Flow, FlowBody, Trigger
from perdure.flows.problems import DocumentProblem, FlowError, Path
from perdure.flows.source.document import INTEGER_MAX, INTEGER_MIN, UNSTORABLE, Document

VERSION_HEX_CHARS: Final = 20

BODY_KEYS: Final = ("tasks", "graph", *GRAPH_KEYS, "state", "max_steps", "output")
DOCUMENT_KEYS: Final = (
    "$schema",
    "flow",
    "description",
    "input",
    "triggers",
    "on",
    "defaults",
    "timeout",
    *HOOKS,
    *CONTROL_KEYS,
    *BODY_KEYS,
)


class Compiled(msgspec.Struct, frozen=True):
    flow: Flow
    warnings: list[DocumentProblem]


def compile_flow(document: Document, *, name: str | None = None) -> Compiled:
    """Compile a document. `name` is the flow's where the document does not say. FlowError with every problem."""
    return _compile(Reader(document.name, document), document.value, name)


def compile_value(value: Any, *, name: str | None = None, stored: bool = False) -> Compiled:
    """Compile a document that is JSON already; problems have paths instead of lines.

    `stored`: it compiled when it was published. Types are not checked again, so that a later release, which may know more about
    them, does not refuse what is in use.
    """
    reader = Reader(name or "<flow>", typed=not stored)
    _check_value(reader, value)
    return _compile(reader, value, name)


def version_of(value: Mapping[str, Any]) -> str:
    """The version of a document: the same content in the same order, the same version."""
    return VERSION_PREFIX + sha256(msgspec.json.encode(value)).hexdigest()[:VERSION_HEX_CHARS]


def _compile(r: Reader, value: Any, name: str | None) -> Compiled:
    if not isinstance(value, dict):
        r.error(
            (),
            "the document is empty" if value is None else "the document is not a mapping",
            "begin with flow: and tasks:",
        )
        raise FlowError(r.problems)
    fields = cast(dict[str, Any], value)
    r.keys(fields, (), "the document", DOCUMENT_KEYS)
    title = _name(r, fields, name)
    description = ""
    if fields.get("description") is not None:
        description = r.text(fields["description"], ("description",), "description") or ""
    before = len(r.problems)
    schema = read_input(r, fields.get("input"), ("input",))
    types: dict[str, Any] = {"input": schema} if schema is not None and len(r.problems) == before else {}
    triggers = _triggers(r, title, fields.get("triggers"), types.get("input"))
    subscriptions = _subscriptions(r, fields.get("on"))
    control = read_control(r, fields, (), runs=True, schema=types.get("input"))
    execution = read_defaults(r, fields.get("defaults"), ("defaults",))
    timeout_us = 0
    if fields.get("timeout") is not None:
        timeout_us = r.duration(fields["timeout"], ("timeout",), "timeout") or 0
    hooks = _hooks(r, title, fields)
    body = _Bodies(r, execution).compile(fields, (), "the document", types)
    if r.problems:
        raise FlowError(r.problems)
    assert body is not None
    flow = Flow(
        name=title,
        body=body,
        description=description,
        input_schema=schema,
        document=fields,
        triggers=triggers,
        subscriptions=subscriptions,
        control=control,
        timeout_us=timeout_us,
        hooks=hooks,
    )
    return Compiled(flow, r.warnings)


def _name(r: Reader, fields: Mapping[str, Any], name: str | None) -> str:
    if fields.get("flow") is not None:
        return r.name_of(fields["flow"], ("flow",), "flow") or ""
    if name is None:
        r.error((), "the flow has no name", "add flow: with its name")
        return ""
    return name


def _hooks(r: Reader, flow: str, fields: Mapping[str, Any]) -> dict[str, str]:
    """Each is compiled as the flow that it will be; its problems are reported at its key."""
    found: dict[str, str] = {}
    for key, document in hook_documents(flow, fields).items():
        found[HOOKS[key]] = hook_name(flow, key)
        try:
            compile_value(document, stored=not r.typed)
        except FlowError as error:
            for problem in error.problems:
                r.error((key,), f"{key}: {problem.message}", problem.hint)
    return found


def _subscriptions(r: Reader, value: Any) -> tuple[Subscription, ...]:
    """Those of a stored document are in the database beside it; what cannot be read of them now is left out."""
    return read_subscriptions(r if r.typed else Reader(r.name, typed=False), value)


def _triggers(r: Reader, flow: str, value: Any, schema: Mapping[str, Any] | None) -> tuple[Trigger, ...]:
    """Those of a stored document were looked at when it was published; what cannot be read of them now is left out."""
    try:
        return read_triggers(r if r.typed else Reader(r.name, typed=False), flow, value, schema)
    except FlowError:
        if r.typed:
            raise
        return ()


class _Bodies:
    """Compiles bodies, and counts them and their nodes."""

    def __init__(self, r: Reader, execution: ExecutionOptions) -> None:
        self._r = r
        self._bodies = Bodies(execution, self._embed)
        self._depth = 0
        self._nodes = 0

    def compile(self, fields: Mapping[str, Any], path: Path, where: str, types: Mapping[str, Any]) -> FlowBody | None:
        """The body among the fields of a document, a node or a subflow."""
        r = self._r
        kinds = [k for k in ("tasks", "graph") if k in fields]
        if any(k in fields for k in GRAPH_KEYS):
            kinds.append(next(k for k in GRAPH_KEYS if k in fields))
        if len(kinds) != 1:
            if kinds:
                r.error((*path, kinds[1]), f"{where} has {' and '.join(kinds)}; it has one body", key=True)
            else:
                r.error(path, f"{where} has nothing to do", "add tasks:, or graph: with start, nodes and edges")
            return None
        kind = "dag" if kinds[0] == "tasks" else "graph"
        holder = self._holder(fields, path, kinds[0])
        if holder is None:
            return None
        inner, at = holder
        if not self._count(fields["tasks"] if kind == "dag" else inner.get("nodes"), at):
            return None
        start = 0
        if kind == "dag":
            nodes, scope = compile_dag(r, fields["tasks"], at, self._bodies, types)
        else:
            nodes, start, scope = compile_graph(r, inner, at, self._bodies, where)
        output = None
        if fields.get("output") is not None:
            output = r.template(fields["output"], (*path, "output"), scope)
        return FlowBody(
            kind="dag" if kind == "dag" else "graph",
            nodes=nodes,
            start=start,
            output=output,
            state=self._state(fields, path),
            max_steps=self._steps(fields, path, kind),
        )

    def _holder(self, fields: Mapping[str, Any], path: Path, kind: str) -> tuple[Mapping[str, Any], Path] | None:
        """What holds the nodes, and its path."""
        if kind == "tasks":
            return fields, (*path, "tasks")
        if kind != "graph":
            return fields, path
        graph = self._r.mapping(fields["graph"], (*path, "graph"), "graph")
        if graph is None:
            return None
        self._r.keys(graph, (*path, "graph"), "graph", GRAPH_KEYS)
        return graph, (*path, "graph")

    def _embed(self, fields: Mapping[str, Any], path: Path, where: str) -> FlowBody | None:
        if self._depth >= EMBED_DEPTH_MAX:
            self._r.error(
                path,
                f"bodies are nested deeper than EMBED_DEPTH_MAX={EMBED_DEPTH_MAX}",
                "make a flow of its own of it",
                key=True,
            )
            return None
        if path and path[-1] == "subflow":
            self._r.keys(fields, path, where, BODY_KEYS)
        self._depth += 1
        try:
            return self.compile(fields, path, where, {})
        finally:
            self._depth -= 1

    def _count(self, nodes: Any, path: Path) -> bool:
        self._nodes += len(cast(dict[str, Any], nodes)) if isinstance(nodes, dict) else 0
        if self._nodes <= FLOW_NODES_MAX:
            return True
        self._r.error(
            path,
            f"the document has more than FLOW_NODES_MAX={FLOW_NODES_MAX} nodes",
            "make flows of their own of some",
            key=True,
        )
        return False

    def _state(self, fields: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
        if fields.get("state") is None:
            return {}
        state = self._r.mapping(fields["state"], (*path, "state"), "state") or {}
        for leaf, at in leaves(state, (*path, "state")):
            if isinstance(leaf, str) and "${" in leaf:
                self._r.warn(at, "state is taken as written; ${ } is not evaluated here", "use set: in a node")
        return state

    def _steps(self, fields: Mapping[str, Any], path: Path, kind: str) -> int:
        if fields.get("max_steps") is None:
            return GRAPH_STEPS_DEFAULT if kind == "graph" else 0
        at = (*path, "max_steps")
        if kind == "dag":
            self._r.error(at, "max_steps is for graphs; a task runs once", key=True)
            return 0
        return self._r.integer(fields["max_steps"], at, "max_steps", 1, GRAPH_STEPS_MAX) or GRAPH_STEPS_DEFAULT


def _check_value(r: Reader, value: Any) -> None:
    """A decoded document keeps the bounds that a text is held to; nothing after this recurses without end."""
    todo: list[tuple[Any, int]] = [(value, 0)]
    nodes = 0
    while todo:
        item, depth = todo.pop()
        nodes += 1
        inner: Any = ()
        if isinstance(item, dict):
            members = item
            inner = members.values()
            for key in members:
                _check_scalar(r, key, text=True)
        elif isinstance(item, list):
            inner = item
        else:
            _check_scalar(r, item)
        if inner:
            if depth >= DOCUMENT_DEPTH_MAX:
                r.error((), f"the document is nested deeper than DOCUMENT_DEPTH_MAX={DOCUMENT_DEPTH_MAX}")
                raise FlowError(r.problems)
            todo.extend((i, depth + 1) for i in inner)
        if nodes + len(todo) > DOCUMENT_NODES_MAX:
            r.error((), f"the document has more than DOCUMENT_NODES_MAX={DOCUMENT_NODES_MAX} values")
            raise FlowError(r.problems)


def _check_scalar(r: Reader, value: Any, *, text: bool = False) -> None:
    match value:
        case str():
            if UNSTORABLE.search(value):
                r.error((), "a text holds U+0000 or half a surrogate pair, which cannot be stored")
        case None | bool() if not text:
            pass
        case int() if not text and INTEGER_MIN <= value <= INTEGER_MAX:
            pass
        case float() if not text and isfinite(value):
            pass
        case _:
            r.error(
                (), f"the document holds a {type(value).__name__} that is not JSON" if not text else "a key is not text"
            )
