"""`graph: {start, nodes, edges}`: one cursor that follows the actions of nodes along edges, and may come back.

A node is written with a verb, as in a dag, or with a `kind` (kinds.py). Either way it ends with an action, and `edges` say
where each action leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from perdure.core import expressions
from perdure.core.limits import NODE_KEY_CHARS_MAX
from perdure.core.suggestions import did_you_mean
from perdure.flows.compile.kinds import KIND_KEYS, read_kind
from perdure.flows.compile.nodes import (
    BROKEN,
    DEPENDENCIES_MAX,
    Parts,
    check_keys,
    known_keys,
    read_parts,
    read_writes,
    usable_key,
)
from perdure.flows.compile.prepost import PREPOST_KEYS, read_exits, read_params, read_prepare, settle_choice
from perdure.flows.compile.reading import Reader, Scope
from perdure.flows.compile.verbs import Bodies, NodeView, check_modifiers, verb_of
from perdure.flows.model import APPROVED, DEFAULT, ERROR, REJECTED, TIMEOUT, ApprovalVerb, Choice, FlowNode, MessageVerb
from perdure.flows.problems import Path

GRAPH_KEYS: Final = ("start", "nodes", "edges")
EDGE_KEYS: Final = ("from", "action", "to")
NODE_KEYS: Final = known_keys("kind", *PREPOST_KEYS)
CASE_KEYS: Final = ("when", "then", "else")
DAG_ONLY: Final = ("depends_on", "when", "run_if", "on_failure", "then")
GRAPH_ROOTS: Final = frozenset({"input", "params", "shared", "state", "run", "now"})


class Edges(msgspec.Struct, frozen=True):
    """Of one node: where each action leads, and where that is said."""

    to: dict[str, int]
    paths: dict[str, Path]


def compile_graph(
    r: Reader, graph: Mapping[str, Any], path: Path, bodies: Bodies, where: str
) -> tuple[tuple[FlowNode, ...], int, Scope]:
    """The nodes, the index of the first, and the scope of the body's output."""
    scope = Scope(GRAPH_ROOTS, {})
    views = _views(r, graph.get("nodes"), (*path, "nodes") if "nodes" in graph else path, where)
    index = {v.key: i for i, v in enumerate(views)}
    start = _start(r, graph, path, where, index)
    edges = _edges(r, graph.get("edges"), (*path, "edges"), views, index)
    nodes = [_node(r, v, scope, bodies, edges[i], index) for i, v in enumerate(views)]
    if views and not r.problems:
        _warn(r, views, nodes, start, edges)
    return tuple(nodes), start, scope


def _views(r: Reader, value: Any, path: Path, where: str) -> list[NodeView]:
    if value is None or value == {}:
        r.error(path, f"{where} has no nodes", "name at least one", key=True)
        return []
    out: list[NodeView] = []
    for key, item in (r.mapping(value, path, "nodes") or {}).items():
        usable_key(r, key, path)
        at = (*path, key)
        shown = f"node {key[:NODE_KEY_CHARS_MAX]!r}"
        fields = {} if item is None else r.mapping(item, at, shown)
        out.append(NodeView(key, fields or {}, at, shown))
    return out


def _start(r: Reader, graph: Mapping[str, Any], path: Path, where: str, index: Mapping[str, int]) -> int:
    value = graph.get("start")
    if value is None:
        r.error(path, f"{where} does not say where to begin", "add start: with the key of a node", key=True)
    elif not isinstance(value, str):
        r.wanted((*path, "start"), "start", "the key of a node", value)
    elif value in index:
        return index[value]
    else:
        r.error(
            (*path, "start"),
            f"start is {value[:NODE_KEY_CHARS_MAX]!r}, which is no node here",
            did_you_mean(value, index),
        )
    return 0


def _edges(r: Reader, value: Any, path: Path, views: list[NodeView], index: Mapping[str, int]) -> list[Edges]:
    out = [Edges({}, {}) for _ in views]
    items = [] if value is None else r.list_of(value, path, "edges") or []
    if len(items) > DEPENDENCIES_MAX:
        r.error(path, f"the graph has more than DEPENDENCIES_MAX={DEPENDENCIES_MAX} edges")
        return out
    for i, item in enumerate(items):
        at = (*path, i)
        fields = r.mapping(item, at, "an edge")
        if fields is None:
            continue
        r.keys(fields, at, "an edge", EDGE_KEYS)
        source = _end(r, fields, at, "from", index)
        target = _end(r, fields, at, "to", index)
        action = fields.get("action")
        if action is None or action == "":
            action = DEFAULT
        action = r.name_of(action, (*at, "action"), "action")
        if source is None or target is None or action is None:
            continue
        known = out[source]
        if action in known.to:
            r.error(
                at,
                f"node {views[source].key!r} has a second edge for the action {action!r}",
                "an action leads to one node",
            )
        else:
            known.to[action] = target
            known.paths[action] = at
    return out


def _end(r: Reader, fields: Mapping[str, Any], path: Path, key: str, index: Mapping[str, int]) -> int | None:
    value = fields.get(key)
    if value is None:
        r.error(
            path,
            f"an edge does not say {key} which node it goes"
            if key == "to"
            else "an edge does not say from which node it comes",
        )
    elif not isinstance(value, str):
        r.wanted((*path, key), key, "the key of a node", value)
    elif value in index:
        return index[value]
    else:
        r.error(
            (*path, key),
            f"an edge goes {key} {value[:NODE_KEY_CHARS_MAX]!r}, which is no node here",
            did_you_mean(value, index),
        )
    return None


def _node(r: Reader, view: NodeView, scope: Scope, bodies: Bodies, edges: Edges, index: Mapping[str, int]) -> FlowNode:
    params = read_params(r, view, scope)
    prepare = read_prepare(r, view, scope)
    if "kind" in view.fields:
        parts, exits = read_kind(r, view, scope, bodies)
    else:
        parts = _verb(r, view, scope, bodies, edges, index)
        exits = read_exits(r, view, scope, chooses=isinstance(parts.verb, (Choice, ApprovalVerb)))
        if isinstance(parts.verb, Choice):
            choice, exits = settle_choice(r, view, parts.verb, exits)
            parts = msgspec.structs.replace(parts, verb=choice)
    return FlowNode(
        key=view.key,
        verb=parts.verb,
        place=r.place(view.path),
        spread=parts.spread,
        on_error=parts.on_error,
        timeout_us=parts.timeout_us,
        writes=(*exits.writes, *parts.writes),
        compensate=parts.compensate,
        routes=frozenset(edges.to),
        edges=edges.to,
        prepare=prepare,
        params=params,
        action=exits.action,
        action_of=exits.action_of,
    )


def _verb(r: Reader, view: NodeView, scope: Scope, bodies: Bodies, edges: Edges, index: Mapping[str, int]) -> Parts:
    _check_keys(r, view)
    verb = verb_of(r, view)
    if verb is None:
        return Parts(BROKEN, None, "fail_fast", 0, ())
    if verb == "choice":
        check_modifiers(r, view, verb)
        return Parts(_choice(r, view, scope, edges, index), None, "fail_fast", 0, read_writes(r, view, scope))
    return read_parts(r, verb, view, scope, bodies, {"input": "input", "params": "params"}, ())


def _check_keys(r: Reader, view: NodeView) -> None:
    seed = next((k for k in view.fields if k in KIND_KEYS and k not in NODE_KEYS), None)
    if seed is not None:
        r.error(
            view.at(seed),
            f"{seed} in {view.where} goes with a kind",
            "add kind: executor, choice, parallel, foreach, ...",
            key=True,
        )
    known = (*NODE_KEYS, *KIND_KEYS) if seed is not None else NODE_KEYS
    check_keys(r, view, known, DAG_ONLY, "in a graph, edges and choice say what comes next")


def _choice(r: Reader, view: NodeView, scope: Scope, edges: Edges, index: Mapping[str, int]) -> Choice:
    path = view.at("choice")
    items = r.list_of(view.fields["choice"], path, f"choice of {view.where}") or []
    if not items:
        r.error(path, f"choice of {view.where} has no cases", key=True)
    cases: list[tuple[expressions.Expr, str]] = []
    otherwise: str | None = None
    for i, item in enumerate(items):
        at = (*path, i)
        fields = r.mapping(item, at, f"a case of {view.where}")
        if fields is None:
            continue
        r.keys(fields, at, f"a case of {view.where}", CASE_KEYS)
        if ("else" in fields) == ("when" in fields):
            r.error(at, f"a case of {view.where} needs either when or else")
            continue
        key = "else" if "else" in fields else "then"
        action = _action(r, fields.get(key), (*at, key), view, edges, index)
        if key == "else":
            otherwise = action
            if i != len(items) - 1:
                r.error((*at, "else"), f"else of {view.where} must be its last case", key=True)
            continue
        read = r.expression(fields["when"], (*at, "when"), f"when of {view.where}", scope)
        if read is not None and action is not None:
            cases.append((read, action))
    return Choice(cases=tuple(cases), otherwise=otherwise)


def _action(r: Reader, value: Any, path: Path, view: NodeView, edges: Edges, index: Mapping[str, int]) -> str | None:
    """An action with an edge, or else the key of a node: then the edge is made here."""
    if isinstance(value, list):
        r.error(
            path,
            f"a case of {view.where} names several targets; a graph has one cursor",
            "use tasks: for branches side by side",
        )
        return None
    action = r.name_of(value, path, f"the action of a case of {view.where}")
    if action is None or action in edges.to:
        return action
    if action in index:
        edges.to[action] = index[action]
        edges.paths[action] = path
        return action
    if DEFAULT in edges.to:
        r.warn(
            path,
            f"{view.where} has no edge for the action {action!r}; it goes by the default edge",
            did_you_mean(action, edges.to),
        )
        return action
    near = did_you_mean(action, (*edges.to, *index))
    r.error(
        path,
        f"{view.where} leads to {action[:NODE_KEY_CHARS_MAX]!r}, which is neither an edge's action nor a node",
        near,
    )
    return None


def _warn(r: Reader, views: list[NodeView], nodes: list[FlowNode], start: int, edges: list[Edges]) -> None:
    reached = {start}
    todo = [start]
    while todo:
        for target in nodes[todo.pop()].edges.values():
            if target not in reached:
                reached.add(target)
                todo.append(target)
    for i, view in enumerate(views):
        if i not in reached:
            r.warn(view.path, f"{view.where} is never reached: no edges lead there from {views[start].key!r}", key=True)
        elif edges[i].to and DEFAULT not in edges[i].to:
            for action in _actions(nodes[i]):
                if action not in edges[i].to:
                    r.warn(
                        view.path,
                        f"{view.where} may end with the action {action!r}, for which it has no edge: the flow would end there",
                        key=True,
                    )


def _actions(node: FlowNode) -> tuple[str, ...]:
    """Actions that a node is known to end with."""
    if node.action is not None:
        return (node.action,)
    if node.action_of is not None:
        return ()
    match node.verb:
        case Choice(cases=cases, otherwise=otherwise):
            last = (otherwise,) if otherwise is not None else ()
            return tuple(dict.fromkeys((*(a for _, a in cases), *last)))
        case ApprovalVerb() if node.spread is None:
            return (APPROVED, REJECTED)
        case MessageVerb() if set(node.edges) == {TIMEOUT}:
            return ()
        case _:
            return () if set(node.edges) <= {ERROR, TIMEOUT} else (DEFAULT,)
