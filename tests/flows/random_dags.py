"""Random dag documents, and what their tasks do. The same seed gives the same case for ever.

    case = make(seed)          case.document, case.given (the run's input), case.script(label) -> Ok | Bad

Documents are valid by construction: nodes refer only to ancestors, and choices lead only forwards. The order of nodes in the document is
another random one. Half of them end in a `sink` that runs whatever happens and is given the output of every other node.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import Any

from tests.flows.reference import Bad, Ok, cases

SIZE_MAX = 60
INNER_MAX = 5
EPOCHS_MAX = 3
FIELDS = ("score", "name", "flag", "files", "count", "inner")
"""What the objects hold that tasks return; a field always has the same type."""
RUN_IFS = ("all_success", "none_failed", "none_failed", "any_failed", "always", "always")
ON_ERRORS = ("fail_fast", "collect", "ignore")
INPUT = {"width": 2, "files": ["a", "b", "c"], "nothing": [], "score": 7, "name": "x"}


@dataclass
class Case:
    seed: int
    document: dict[str, Any]
    given: Any
    failing: float

    epoch: int = 0
    """How often the run has been retried. What fails does so in one to three epochs, then no more."""

    def script(self, label: str) -> Ok | Bad:
        """What the execution of this label comes to, whenever it takes place."""
        rng = random.Random(f"{self.seed} {label}")
        if rng.random() < self.failing and self.epoch < rng.randint(1, EPOCHS_MAX):
            return Bad(f"boom <{label}>")
        return Ok(task_output(random.Random(f"{self.seed} {label} value")))


def make(seed: int, size_max: int = SIZE_MAX) -> Case:
    rng = random.Random(seed)
    size = rng.choice((rng.randint(1, 6), rng.randint(1, 20), rng.randint(1, size_max)))
    document = {"flow": "random", **_Maker(rng, size, "n", nested=True).body()}
    text = json.dumps(document)
    given: Any = INPUT
    if "input." not in text and rng.random() < 0.2:
        given = rng.choice((None, [1, 2], {}))
    return Case(seed, document, given, rng.choice((0.0, 0.05, 0.15, 0.4)))


def without_second_thoughts(case: Case) -> Case:
    """The same, but nothing runs because of a failure or in spite of one: then what a run comes to after any number of retries
    is what it would have come to without the failures."""
    return replace(case, document=_calmed(case.document))


def _calmed(body: dict[str, Any]) -> dict[str, Any]:
    chosen = {
        to
        for node in body["tasks"].values()
        if node
        for _, targets, _ in cases(node.get("choice", []))
        for to in targets
    }
    tasks: dict[str, Any] = {}
    for key, node in body["tasks"].items():
        calm = dict(node or {})
        if calm.pop("on_failure", None) == "run" or calm.get("run_if") in ("always", "any_failed") or key in chosen:
            calm["run_if"] = "none_failed"
        if calm.get("on_error") == "ignore":
            calm["on_error"] = "collect"
        tasks[key] = _calmed(calm) if "tasks" in calm else calm
    return {**body, "tasks": tasks}


def task_output(rng: random.Random) -> Any:
    if rng.random() < 0.2:
        return rng.choice((None, True, 3, "word", [], [1, 2], {}))
    chosen = FIELDS if rng.random() < 0.5 else rng.sample(FIELDS, rng.randint(1, len(FIELDS)))
    return {name: _field(rng, name) for name in chosen}


def _field(rng: random.Random, name: str) -> Any:
    match name:
        case "score" | "count":
            return rng.randint(0, 4)
        case "name":
            return rng.choice(("a", "b", 'it\'s "q" ${x}', "é"))
        case "flag":
            return rng.random() < 0.5
        case "files":
            return [rng.choice((1, "f", {"k": 1}, None, [])) for _ in range(rng.choice((0, 1, 2, 3, 5)))]
        case _:
            return {"score": rng.randint(0, 4), "deep": [1]}


class _Maker:
    """Makes one body: first who follows whom, then what everybody does, since nodes may speak only of their ancestors."""

    def __init__(self, rng: random.Random, size: int, letter: str, nested: bool) -> None:
        self.rng, self.nested = rng, nested
        hyphen = rng.choice(("", "", "-"))
        self.keys = [f"{letter}{hyphen}{i}" for i in range(size)]
        self.nodes: dict[str, dict[str, Any]] = {key: {} for key in self.keys}
        self.ancestors: dict[str, list[str]] = {}

    def body(self) -> dict[str, Any]:
        for i, key in enumerate(self.keys):
            self.connect(i, self.nodes[key])
        self.close_over()
        for key in self.keys:
            self.fill(key, self.nodes[key])
        if self.nested and self.rng.random() < 0.5:
            everything = {key: f"${{{key}}}" for key in self.keys}
            self.nodes["sink"] = {"depends_on": list(self.keys), "run_if": "always", "with": everything}
        order = list(self.nodes)
        if self.rng.random() < 0.5:
            self.rng.shuffle(order)
        body: dict[str, Any] = {"tasks": {key: self.nodes[key] or None for key in order}}
        if self.rng.random() < 0.4:
            told = self.rng.sample(self.keys, self.rng.randint(0, len(self.keys)))
            body["output"] = {"told": {key: f"${{{key}}}" for key in told}, "fixed": [1, "two"]}
        return body

    # -- who follows whom ---------------------------------------------------------------------------------------------

    def connect(self, i: int, node: dict[str, Any]) -> None:
        rng = self.rng
        near = self.keys[max(0, i - 8) : i] if rng.random() < 0.7 else self.keys[:i]
        deps = rng.sample(near, min(len(near), rng.choice((0, 1, 1, 1, 2, 2, 3, 5))))
        if deps:
            node["depends_on"] = deps[0] if len(deps) == 1 and rng.random() < 0.3 else deps
        ahead = self.keys[i + 1 : i + 9]
        if ahead and rng.random() < 0.12:
            node["choice"] = self.choice(ahead)

    def choice(self, ahead: list[str]) -> list[dict[str, Any]]:
        rng, actions, out = self.rng, set[str](), list[dict[str, Any]]()
        for number in range(rng.randint(1, 3)):
            targets = rng.sample(ahead, min(len(ahead), rng.choice((1, 1, 2))))
            case: dict[str, Any] = {"when": "", "then": targets[0] if len(targets) == 1 else targets}
            if targets[0] in actions or rng.random() < 0.2:
                case["name"] = f"case {number}"
                if rng.random() < 0.3:
                    del case["then"]
            actions.add(targets[0])
            out.append(case)
        rest = [key for key in ahead if key not in actions]
        if rest and rng.random() < 0.6:
            out.append({"else": rng.choice(rest)})
        return out

    def close_over(self) -> None:
        sources: dict[str, list[str]] = {key: [] for key in self.keys}
        for key, node in self.nodes.items():
            deps = node.get("depends_on", [])
            sources[key] += [deps] if isinstance(deps, str) else deps
            for _, targets, _ in cases(node.get("choice", [])):
                for target in targets:
                    sources[target].append(key)
        for key in self.keys:  # in order, so that what comes before is complete
            self.ancestors[key] = sorted({a for s in sources[key] for a in [s, *self.ancestors[s]]})

    # -- what everybody does ------------------------------------------------------------------------------------------

    def fill(self, key: str, node: dict[str, Any]) -> None:
        rng = self.rng
        roll = rng.random()
        if roll < 0.35:
            node["run_if"] = rng.choice(RUN_IFS if self.ancestors[key] else ("all_success", "none_failed", "always"))
        elif roll < 0.45:
            node["on_failure"] = rng.choice(("run", "run", "skip"))
        if rng.random() < 0.12:
            node["when"] = self.condition(key)
        if "choice" in node:
            for case in node["choice"]:
                if "when" in case:
                    case["when"] = self.condition(key)
            return
        self.verb(key, node)

    def verb(self, key: str, node: dict[str, Any]) -> None:
        rng = self.rng
        roll = rng.random()
        spread = roll < 0.87 and rng.random() < 0.35
        if spread:
            self.spread(key, node)
        if roll < 0.12 and self.nested:
            node |= _Maker(rng, rng.randint(1, INNER_MAX), rng.choice(("m", "n")), nested=False).body()
        elif roll < 0.22:
            node["value"] = self.template(key, spread)
            return
        elif roll < 0.45:
            node["python"] = rng.choice(("work", "jobs:work"))
        elif roll < 0.55:
            node["service"] = "billing"
        elif roll >= 0.94:
            node["services"] = rng.sample(("alpha", "beta", "gamma"), rng.randint(1, 3))
            self.limits(node)
        if not spread and rng.random() < 0.1:
            node["on_error"] = rng.choice(ON_ERRORS)
        if rng.random() < 0.4:
            node["with"] = {name: self.template(key, spread) for name in rng.sample(FIELDS, rng.randint(0, 3))}

    def spread(self, key: str, node: dict[str, Any]) -> None:
        rng = self.rng
        if rng.random() < 0.3:
            node["parallel"] = rng.choice((0, 1, 2, 4, 7)) if rng.random() < 0.6 else self.reference(key, "count")
        elif rng.random() < 0.4:
            node["foreach"] = rng.choice(([], ["x"], [1, 2, 3], [{"a": 1}, None, "two", [0], 5, 6, 7, 8]))
        else:
            node["foreach"] = self.reference(key, "files" if rng.random() < 0.9 else "nothing")
            if rng.random() < 0.3:
                node["foreach"] = f"${{{node['foreach']}}}"
        self.limits(node)

    def limits(self, node: dict[str, Any]) -> None:
        rng = self.rng
        if rng.random() < 0.5:
            node["concurrency"] = rng.choice((1, 1, 2, 3, "input.width" if self.nested else 2))
        if rng.random() < 0.7:
            node["on_error"] = rng.choice(ON_ERRORS)

    def reference(self, key: str, field: str) -> str:
        """A path from here to a field of that name: of an ancestor, or of the input."""
        near = self.ancestors[key]
        root = self.rng.choice(near) if near and self.rng.random() < 0.8 else "input"
        return f"{root}.{field}"

    def template(self, key: str, spread: bool) -> Any:
        rng = self.rng
        places = ("index", "count", "item", "item.k") if spread else ()
        parts: list[Any] = [1, "text", None, True, [], {}]
        parts += [f"${{{self.reference(key, rng.choice(FIELDS))}}}", *(f"${{{a}}}" for a in self.ancestors[key][-2:])]
        parts += [f"${{{place}}}" for place in places]
        one = rng.choice(parts)
        return one if rng.random() < 0.6 else rng.choice(({"a": one, "b": [one]}, [one, 2]))

    def condition(self, key: str) -> str:
        rng = self.rng
        parts = [self.comparison(key) for _ in range(rng.choice((1, 1, 2)))]
        text = rng.choice((" and ", " or ")).join(parts)
        return f"${{{text}}}" if rng.random() < 0.2 else text

    def comparison(self, key: str) -> str:
        rng = self.rng
        if self.nested and rng.random() < 0.2:
            return f"input.width {rng.choice(('<', '>='))} {rng.randint(1, 3)}"
        field = rng.choice(("score", "name", "flag", "count"))
        literal = {"name": rng.choice(("a", "b"))}.get(field) or (
            rng.random() < 0.5 if field == "flag" else rng.randint(0, 4)
        )
        return f"{self.reference(key, field)} {rng.choice(('==', '!='))} {json.dumps(literal)}"
