"""What a dag has to come to, worked out the plain way: recursively over the document, all at once, without events or time.

It shares no line with the compiler and the decider; it reads the document itself. What depends on the order in which tasks end is
left open: of a spread that fails fast, which executions took place (`optional`), and of several failures, which came first.

    outcome = play({"tasks": {...}}, input, script)          script(label) -> Ok(value) | Bad(message)

Labels: `node`, `node[2]` in a spread, `outer.inner` or `outer[2].inner` in an embedded body. Expressions are the few that random
documents use: a dotted path, comparisons of a path with a JSON literal, and those joined by `and` or by `or`.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Ok(NamedTuple):
    value: Any


class Bad(NamedTuple):
    message: str


Script = Callable[[str], Ok | Bad]


@dataclass
class Node:
    """How one node ended."""

    status: str  # success, failed, skipped
    output: Any = None
    tainted: bool = False
    action: str | None = None
    runs: list[str] = field(default_factory=list)
    """Labels of what it executed: tasks, or bodies within."""
    sources: list[str] = field(default_factory=list)
    limit: int | None = None
    """How many of its executions may be in flight."""
    fast: bool = False
    """It failed with its first failed execution, and the rest was called off."""


@dataclass
class Outcome:
    """How everything ended, by label."""

    nodes: dict[str, Node] = field(default_factory=dict)
    calls: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """Every task executed: its name and its payload."""
    ends: dict[str, bool] = field(default_factory=dict)
    """Every execution, of a task or of a body within: whether it succeeded."""
    optional: set[str] = field(default_factory=set)
    """Calls and nodes that may never have come about: a node that fails fast may have failed before."""
    succeeded: bool = False
    result: Any = None


def play(document: dict[str, Any], given: Any, script: Script) -> Outcome:
    seen = Outcome()
    end = _Body(document, given, script, "", seen).play()
    seen.succeeded, seen.result = isinstance(end, Ok), end.value if isinstance(end, Ok) else None
    return seen


class _Body:
    def __init__(self, body: dict[str, Any], given: Any, script: Script, prefix: str, seen: Outcome) -> None:
        self.tasks = {key: node or {} for key, node in body["tasks"].items()}
        self.output, self.given, self.script, self.prefix, self.seen = body.get("output"), given, script, prefix, seen
        self.done: dict[str, Node] = {}

    def play(self) -> Ok | Bad:
        nodes = {key: self.node(key) for key in self.tasks}
        if any(n.status == "failed" for n in nodes.values()):
            return Bad("a node failed")
        if self.output is not None:
            return Ok(render(self.output, self.scope()))
        sources = {s for key in nodes for s in self.sources(key)}
        return Ok({key: n.output for key, n in nodes.items() if n.status == "success" and key not in sources})

    # -- whether a node runs ------------------------------------------------------------------------------------------

    def node(self, key: str) -> Node:
        if key not in self.done:
            before = {s: self.node(s) for s in self.sources(key)}
            self.done[key] = self.seen.nodes[self.prefix + key] = self.decide(key, before)
            self.done[key].sources = [self.prefix + s for s in before]
        return self.done[key]

    def deps(self, key: str) -> list[str]:
        deps = self.tasks[key].get("depends_on", [])
        return [deps] if isinstance(deps, str) else deps

    def arcs(self, key: str) -> list[tuple[str, str]]:
        """(choice, action) pairs that lead here."""
        return [(c, a) for c, node in self.tasks.items() for a, to, _ in cases(node.get("choice", [])) if key in to]

    def sources(self, key: str) -> list[str]:
        return list(dict.fromkeys(self.deps(key) + [s for s, _ in self.arcs(key)]))

    def decide(self, key: str, before: dict[str, Node]) -> Node:
        node, deps, arcs = self.tasks[key], [before[d] for d in self.deps(key)], self.arcs(key)
        trouble = any(n.status == "failed" or n.tainted for n in before.values())
        live = any(before[s].status == "success" and before[s].action == action for s, action in arcs)
        run_if = {"run": "always", "skip": "all_success"}.get(
            node.get("on_failure", ""), node.get("run_if", "all_success")
        )
        runs = {
            "all_success": all(d.status == "success" for d in deps) and (live or not arcs),
            "none_failed": not trouble
            and (not deps or any(d.status == "success" for d in deps))
            and (live or not arcs),
            "any_failed": trouble or live,
            "always": not arcs or live or trouble,
        }[run_if]
        if not runs:
            return Node("skipped", tainted=trouble)
        if "when" in node and not holds(node["when"], self.scope()):
            return Node("skipped")
        return self.execute(key, node)

    # -- what it does -------------------------------------------------------------------------------------------------

    def execute(self, key: str, node: dict[str, Any]) -> Node:
        label = self.prefix + key
        if "choice" in node:
            action = next(
                (a for a, _, when in cases(node["choice"]) if when is None or holds(when, self.scope())), None
            )
            return Node("success", action, action=action)
        places = self.places(node)
        if places is None:
            return Node("failed")
        labels = [f"{label}[{p['index']}]" if p else label for p in places]
        ends = [self.once(key, node, at, place) for at, place in zip(labels, places, strict=True)]
        ignored = node.get("on_error") == "ignore"
        outputs = [e.value if isinstance(e, Ok) else None for e in ends]
        failed = not ignored and any(isinstance(e, Bad) for e in ends)
        fast = failed and spreads(node) and node.get("on_error", "fail_fast") == "fail_fast"
        if fast:
            inside = tuple(x + "." for x in labels)
            names = [*self.seen.calls, *self.seen.nodes]
            self.seen.optional.update(n for n in names if n in labels or n.startswith(inside))
        output = None if failed else outputs if spreads(node) else outputs[0]
        limit = render(node.get("concurrency"), self.scope(), whole=True)
        status, runs = "failed" if failed else "success", [] if "value" in node else labels
        return Node(status, output, runs=runs, limit=limit, fast=fast)

    def places(self, node: dict[str, Any]) -> list[dict[str, Any]] | None:
        """What is in scope in each execution besides the rest; None when there is no telling."""
        if "foreach" in node:
            items = render(node["foreach"], self.scope(), whole=True)
            if not isinstance(items, list):
                return None
            return [{"item": item, "index": i, "count": len(items)} for i, item in enumerate(items)]
        if "parallel" in node:
            count = render(node["parallel"], self.scope(), whole=True)
            if type(count) is not int or count < 0:
                return None
            return [{"index": i, "count": count} for i in range(count)]
        if "services" in node:
            return [{"index": i, "count": len(node["services"])} for i in range(len(node["services"]))]
        return [{}]

    def once(self, key: str, node: dict[str, Any], label: str, place: dict[str, Any]) -> Ok | Bad:
        scope = {**self.scope(), **({"item": place["index"]} if place else {}), **place}
        if "value" in node:
            return Ok(render(node["value"], scope))
        args = render(node["with"], scope) if "with" in node else self.offer(key, node, place)
        if "tasks" in node:
            end = _Body(node, args, self.script, label + ".", self.seen).play()
        else:
            self.seen.calls[label] = self.call(key, node, args, place)
            end = self.script(label)
        self.seen.ends[label] = isinstance(end, Ok)
        return end

    def call(self, key: str, node: dict[str, Any], args: Any, place: dict[str, Any]) -> tuple[str, Any]:
        if "service" in node or "services" in node:
            name = node.get("service") or node["services"][place["index"]]
            return name, {"input": args if "with" in node else place.get("item")}
        return node.get("python", key).rpartition(":")[2], args if "with" in node else {"**": args}

    def offer(self, key: str, node: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
        foreach = node.get("foreach")
        spread_over = path_of(foreach).split(".")[0] if isinstance(foreach, str) else None
        offer = dict(self.given) if isinstance(self.given, dict) else {}
        for dep in self.deps(key):
            if dep != spread_over:
                output = self.done[dep].output
                offer |= {**(output if isinstance(output, dict) else {}), dep: output}
        if place:
            offer |= {"parallel_index": place["index"], "parallel_count": place["count"]}
            offer |= {"item": place["item"]} if "item" in place else {}
        return offer

    def scope(self) -> dict[str, Any]:
        return {"input": self.given, **{key: node.output for key, node in self.done.items()}}


# -- the document ------------------------------------------------------------------------------------------------------


def spreads(node: dict[str, Any]) -> bool:
    return any(word in node for word in ("foreach", "parallel", "services"))


def cases(choice: list[dict[str, Any]]) -> list[tuple[str, list[str], str | None]]:
    """(action, targets, condition) of each case; the condition of `else` is None."""
    out: list[tuple[str, list[str], str | None]] = []
    for case in choice:
        to = case.get("then", case.get("else", []))
        targets = [to] if isinstance(to, str) else to
        out.append((case.get("name") or targets[0], targets, case.get("when")))
    return out


def render(template: Any, scope: dict[str, Any], whole: bool = False) -> Any:
    """Strings that are `${path}` become what the path leads to; with `whole`, any string is such a path."""
    if isinstance(template, dict):
        return {key: render(value, scope) for key, value in template.items()}
    if isinstance(template, list):
        return [render(value, scope) for value in template]
    if isinstance(template, str) and (whole or template.startswith("${")):
        return lookup(path_of(template), scope)
    return template


def path_of(text: str) -> str:
    return text.removeprefix("${").removesuffix("}").strip()


def lookup(path: str, scope: Any) -> Any:
    for part in path.split("."):
        scope = scope.get(part) if isinstance(scope, dict) else None
    return scope


def same(a: Any, b: Any) -> bool:
    """As JSON, where 1 is not true and the order of fields does not matter."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


OPERATORS = {"==": same, "!=": lambda a, b: not same(a, b), "<": operator.lt, ">=": operator.ge}


def holds(text: str, scope: dict[str, Any]) -> bool:
    text = path_of(text)
    if " or " in text:
        return any(holds(part, scope) for part in text.split(" or "))
    if " and " in text:
        return all(holds(part, scope) for part in text.split(" and "))
    path, sign, literal = text.split(" ", 2)
    return bool(OPERATORS[sign](lookup(path, scope), json.loads(literal)))
