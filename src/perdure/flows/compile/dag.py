"""`tasks:`: nodes that wait for each other.

Laws:

1. A node may read what it waits for, directly or through others, and nothing else. Reading adds no dependency: the order of things is
   said in depends_on, choice and then, where readers look for it.
2. There are no cycles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from perdure.core.expressions import KEYWORDS
from perdure.core.limits import NODE_KEY_CHARS_MAX
from perdure.core.suggestions import did_you_mean
from perdure.flows.compile.nodes import (
    BROKEN,
    DEPENDENCIES_MAX,
    Parts,
    check_keys,
    known_keys,
    read_parts,
    read_writes,
)
from perdure.flows.compile.reading import Reader, Scope
from perdure.flows.compile.verbs import Bodies, NodeView, check_modifiers, verb_of
from perdure.flows.model import APPROVED, DEFAULT, REJECTED, TIMEOUT, Choice, FlowNode, RunIf
from perdure.flows.problems import Path

DAG_ONLY: Final = ("depends_on", "when", "run_if", "on_failure", "then")
DAG_KEYS: Final = known_keys(*DAG_ONLY)
GRAPH_ONLY: Final = ("kind", "params", "prep", "post", "default_action", "choice_cases", "parallel_services")
RUN_IF: Final = ("all_success", "none_failed", "any_failed", "always")
ON_FAILURE: Final[Mapping[str, RunIf]] = {"run": "always", "skip": "all_success"}
CASE_KEYS: Final = ("when", "then", "else", "name")
ROUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "approval": (APPROVED, REJECTED, TIMEOUT),
    "wait": (DEFAULT, TIMEOUT),
}
DAG_ROOTS: Final = frozenset({"input", "state", "tasks", "run", "now"})
RESERVED: Final = KEYWORDS | {
    *("input", "state", "shared", "params", "item", "index", "count", "output", "run", "tasks", "now", "secret"),
}
"""Words that mean something else in expressions. Functions are none of them: those have a bracket behind them, and a new one must not
make a flow that is in use unreadable."""
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")


class Case(msgspec.Struct, frozen=True):
    """A case of a choice, or an entry of `then`."""

    action: str
    targets: tuple[int, ...]
    path: Path
    when: Any = None
    otherwise: bool = False


class Wiring(msgspec.Struct):
    """How a node hangs together with others, before anything else of it is read."""

    deps: list[int]
    cases: list[Case]
    arcs: list[tuple[int, str]]
    verb: str | None


def compile_dag(
    r: Reader, tasks: Any, path: Path, bodies: Bodies, types: Mapping[str, Any]
) -> tuple[tuple[FlowNode, ...], Scope]:
    """The nodes, and the scope of the body's output."""
    views = _views(r, tasks, path)
    index = {v.key: i for i, v in enumerate(views)}
    wirings = [_wiring(r, v, index) for v in views]
    _connect(r, wirings, path)
    before = _before(r, views, wirings)
    successors: list[set[int]] = [set() for _ in views]
    for i, w in enumerate(wirings):
        for source in (*w.deps, *(s for s, _ in w.arcs)):
            successors[source].add(i)
    nodes: list[FlowNode] = []
    for i, view in enumerate(views):
        scope = Scope(DAG_ROOTS, types, index, before[i], view.key)
        nodes.append(_node(r, view, wirings[i], scope, bodies, index, tuple(sorted(successors[i]))))
    return tuple(nodes), Scope(DAG_ROOTS, types, index)


def _views(r: Reader, tasks: Any, path: Path) -> list[NodeView]:
    fields = r.mapping(tasks, path, "tasks")
    if fields is None:
        return []
    if not fields:
        r.error(path, "there are no tasks", "name at least one")
    out: list[NodeView] = []
    for key, value in fields.items():
        at = (*path, key)
        _check_key(r, key, at)
        node = {} if value is None else r.mapping(value, at, f"task {key!r}")
        view = NodeView(key, node or {}, at, f"task {key!r}")
        check_keys(r, view, DAG_KEYS, GRAPH_ONLY, "it belongs to the nodes of a graph")
        out.append(view)
    return out


def _check_key(r: Reader, key: str, path: Path) -> None:
    if not _KEY.match(key) or len(key) > NODE_KEY_CHARS_MAX:
        message = f"{key[:NODE_KEY_CHARS_MAX]!r} cannot be the key of a task"
        hint = (
            f"use letters, digits, _ and -, not a digit first, at most NODE_KEY_CHARS_MAX={NODE_KEY_CHARS_MAX} of them"
        )
        r.error(path, message, hint, key=True)
    elif key in RESERVED:
        r.error(
            path,
            f"{key!r} is a word of the expression language and cannot be the key of a task",
            f"call it {key}_task",
            key=True,
        )


def _wiring(r: Reader, view: NodeView, index: Mapping[str, int]) -> Wiring:
    verb = verb_of(r, view)
    deps: list[int] = []
    if view.has("depends_on"):
        for name, at in r.names(view.fields["depends_on"], view.at("depends_on"), "depends_on"):
            target = _target(r, name, at, f"{view.where} depends on", index)
            if target in deps:
                r.error(at, f"{view.where} depends on {name!r} twice")
            elif target is not None:
                deps.append(target)
    cases: list[Case] = []
    if verb == "choice":
        cases = _choice_cases(r, view, index)
    if view.has("then"):
        if verb is not None and verb in ROUTES:
            cases = _routes(r, view, index, ROUTES[verb])
        else:
            hint = (
                "a choice names its targets in its cases"
                if verb == "choice"
                else "let the other task depend on this one"
            )
            r.error(view.at("then"), f"then does not go with {view.where}; it is for approval and wait", hint, key=True)
    return Wiring(deps, cases, [], verb)


def _target(r: Reader, name: str, path: Path, what: str, index: Mapping[str, int]) -> int | None:
    found = index.get(name)
    if found is None:
        near = did_you_mean(name, index)
        r.error(path, f"{what} {name[:NODE_KEY_CHARS_MAX]!r}, which is no task here", near)
    return found


def _choice_cases(r: Reader, view: NodeView, index: Mapping[str, int]) -> list[Case]:
    path = view.at("choice")
    items = r.list_of(view.fields["choice"], path, f"choice of {view.where}")
    if items is None:
        return []
    if not items:
        r.error(path, f"choice of {view.where} has no cases", key=True)
    out: list[Case] = []
    for i, item in enumerate(items):
        case = _case(r, item, (*path, i), view, index, last=i == len(items) - 1)
        if case is not None:
            same = next((c for c in out if c.action == case.action and set(c.targets) != set(case.targets)), None)
            if same is not None:
                r.error(
                    case.path,
                    f"two cases of {view.where} are called {case.action!r} and lead to different tasks",
                    "give one of them a name",
                )
            out.append(case)
    return out


def _case(r: Reader, item: Any, path: Path, view: NodeView, index: Mapping[str, int], *, last: bool) -> Case | None:
    fields = r.mapping(item, path, f"a case of {view.where}")
    if fields is None:
        return None
    r.keys(fields, path, f"a case of {view.where}", CASE_KEYS)
    otherwise = "else" in fields
    if otherwise == ("when" in fields):
        r.error(path, f"a case of {view.where} needs either when or else")
        return None
    if otherwise and not last:
        r.error((*path, "else"), f"else of {view.where} must be its last case", key=True)
    if otherwise and "then" in fields:
        r.error((*path, "then"), "else names its targets itself", "write {else: target}", key=True)
    key = "else" if otherwise else "then"
    targets = _targets(r, fields.get(key), (*path, key), view, index)
    name = fields.get("name")
    if name is not None:
        name = r.name_of(name, (*path, "name"), "the name of a case")
    elif not targets:
        if fields.get(key) is None:
            r.error(path, f"a case of {view.where} leads nowhere", f"say where with {key}, or give it a name")
        return None
    if name is None:
        name = next((k for k, i in index.items() if targets and i == targets[0]), None)
    return None if name is None else Case(name, targets, path, fields.get("when"), otherwise)


def _targets(r: Reader, value: Any, path: Path, view: NodeView, index: Mapping[str, int]) -> tuple[int, ...]:
    if value is None:
        return ()
    out: dict[int, None] = {}
    for name, at in r.names(value, path, "the targets"):
        target = _target(r, name, at, f"{view.where} leads to", index)
        if target is not None:
            out[target] = None
    return tuple(out)


def _routes(r: Reader, view: NodeView, index: Mapping[str, int], actions: tuple[str, ...]) -> list[Case]:
    path = view.at("then")
    fields = r.mapping(view.fields["then"], path, f"then of {view.where}")
    out: list[Case] = []
    for action, value in (fields or {}).items():
        if action not in actions:
            r.unknown(action, path, f"then of {view.where}", actions)
        else:
            out.append(Case(action, _targets(r, value, (*path, action), view, index), (*path, action)))
    if view.has("foreach") or view.has("parallel"):
        r.error(
            path,
            f"{view.where} has many results, so then has no one action to go by",
            "decide in a choice after it",
            key=True,
        )
    return out


def _connect(r: Reader, wirings: list[Wiring], path: Path) -> None:
    total = 0
    for i, w in enumerate(wirings):
        total += len(w.deps)
        for case in w.cases:
            for target in case.targets:
                total += 1
                if (i, case.action) not in wirings[target].arcs:
                    wirings[target].arcs.append((i, case.action))
    if total > DEPENDENCIES_MAX:
        r.error(path, f"the tasks have more than DEPENDENCIES_MAX={DEPENDENCIES_MAX} dependencies")


def _before(r: Reader, views: list[NodeView], wirings: list[Wiring]) -> list[int]:
    """For every node the bits of those that have ended when it begins; on and behind a cycle all of them, after saying so."""
    sources = [list(dict.fromkeys((*w.deps, *(s for s, _ in w.arcs)))) for w in wirings]
    after: list[list[int]] = [[] for _ in wirings]
    for i, those in enumerate(sources):
        for s in those:
            after[s].append(i)
    left = [len(those) for those in sources]
    ready = [i for i, n in enumerate(left) if not n]
    before = [0] * len(wirings)
    done = 0
    while ready:
        i = ready.pop()
        done += 1
        for s in sources[i]:
            before[i] |= before[s] | 1 << s
        for t in after[i]:
            left[t] -= 1
            if not left[t]:
                ready.append(t)
    if done == len(wirings):
        return before
    _report_cycle(r, views, sources, left)
    return [-1 if left[i] else bits for i, bits in enumerate(before)]


def _report_cycle(r: Reader, views: list[NodeView], sources: list[list[int]], left: list[int]) -> None:
    at = next(i for i, n in enumerate(left) if n)
    seen: dict[int, int] = {}
    while at not in seen:
        seen[at] = len(seen)
        at = next(s for s in sources[at] if left[s])
    # The walk went from a node to what it waits for; what follows what is the other way round.
    ring = [i for i, n in seen.items() if n >= seen[at]][::-1]
    first = ring.index(min(ring))
    ring = [*ring[first:], *ring[:first]]
    names = " -> ".join(views[i].key for i in (*ring, ring[0]))
    view = views[ring[0]]
    if len(ring) == 1:
        r.error(view.path, f"{view.where} waits for itself", key=True)
    else:
        r.error(
            view.path,
            f"these tasks wait for each other: {names}",
            "cut one of the dependencies, or use a graph",
            key=True,
        )


def _node(
    r: Reader,
    view: NodeView,
    w: Wiring,
    scope: Scope,
    bodies: Bodies,
    index: Mapping[str, int],
    successors: tuple[int, ...],
) -> FlowNode:
    if w.verb == "choice":
        check_modifiers(r, view, "choice")
        parts = Parts(_choice(r, view, w, scope), None, "fail_fast", 0, read_writes(r, view, scope))
    elif w.verb is None:
        parts = Parts(BROKEN, None, "fail_fast", 0, ())
    else:
        parts = read_parts(r, w.verb, view, scope, bodies, {"input": ""}, index)
    when = None
    if view.has("when"):
        when = r.expression(view.fields["when"], view.at("when"), f"when of {view.where}", scope)
    return FlowNode(
        key=view.key,
        verb=parts.verb,
        place=r.place(view.path),
        spread=parts.spread,
        on_error=parts.on_error,
        timeout_us=parts.timeout_us,
        writes=parts.writes,
        compensate=parts.compensate,
        deps=tuple(w.deps),
        arcs=tuple(w.arcs),
        run_if=_run_if(r, view),
        when=when,
        successors=successors,
        routes=frozenset(c.action for c in w.cases if c.targets),
    )


def _choice(r: Reader, view: NodeView, w: Wiring, scope: Scope) -> Choice:
    cases: list[tuple[Any, str]] = []
    otherwise: str | None = None
    for case in w.cases:
        if case.otherwise:
            otherwise = case.action
            continue
        read = r.expression(case.when, (*case.path, "when"), f"when of {view.where}", scope)
        if read is not None:
            cases.append((read, case.action))
    return Choice(cases=tuple(cases), otherwise=otherwise)


def _run_if(r: Reader, view: NodeView) -> RunIf:
    if view.has("run_if") and view.has("on_failure"):
        r.error(view.at("on_failure"), f"{view.where} has run_if and on_failure", "keep run_if", key=True)
    if view.has("run_if"):
        return cast(RunIf, r.word(view.fields["run_if"], view.at("run_if"), "run_if", RUN_IF) or "all_success")
    if view.has("on_failure"):
        word = r.word(view.fields["on_failure"], view.at("on_failure"), "on_failure", tuple(ON_FAILURE))
        return ON_FAILURE[word] if word else "all_success"
    return "all_success"
