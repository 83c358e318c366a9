"""What a picture of a flow shows, in words: one item for each node, one link for each way from one to the next.

Neutral between the kinds of bodies, and between terminals and SVG. Texts are as written; the drawing cuts and escapes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from perdure.core.calls import HTTP, RUN
from perdure.core.durations import SHOWN_UNITS
from perdure.core.expressions import Expr
from perdure.core.expressions.template import Template
from perdure.core.jobs import CONTAINER, JOB_TASK, executor_of, job_task
from perdure.core.limits import ATTEMPTS_DEFAULT
from perdure.core.secrets import KEY as SECRET_KEY
from perdure.flows.model import (
    DEFAULT,
    ApprovalVerb,
    ChildCall,
    Choice,
    Embedded,
    FlowBody,
    FlowNode,
    MessageVerb,
    Services,
    Sleep,
    TaskCall,
    ValueVerb,
)

INNER_DEPTH_MAX: Final = 8
"""Bodies within bodies that are drawn; one further in is named and counted."""
LABELS_MAX: Final = 3
"""Actions named on one link."""
SHOWN_CHARS_MAX: Final = 60
"""Of an expression or an argument."""
WORDS_MAX: Final = 20
"""Of a command."""

_PARAM: Final = re.compile(r"\s*params\.(\w+)\s*")


class Item(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    path: str
    """Its key behind those of the nodes it is within, with dots between: how statuses name it."""
    word: str
    """What kind of step it is."""
    detail: str = ""
    """Whose: a task's or a workflow's name, where it is not the key."""
    badges: tuple[str, ...] = ()
    inner: Chart | None = None


class ChartLink(msgspec.Struct, frozen=True):
    source: int
    target: int
    label: str = ""


class Chart(msgspec.Struct, frozen=True):
    items: tuple[Item, ...]
    links: tuple[ChartLink, ...]
    start: int | None = None
    """Where a graph begins; a dag begins wherever nothing comes before."""


def as_graph(
    chart: Chart, statuses: Mapping[str, str] | None = None, counts: Mapping[str, Mapping[str, int]] | None = None
) -> dict[str, Any]:
    """As JSON: what REST answers and `perdure flow graph -o json` prints. `counts`: of a run, the tasks of each node by status."""
    keys = [item.key for item in chart.items]
    known, counted = statuses or {}, counts or {}
    return {
        "start": None if chart.start is None else keys[chart.start],
        "nodes": [
            {
                "key": i.key,
                "path": i.path,
                "word": i.word,
                "detail": i.detail,
                "badges": list(i.badges),
                "status": known.get(i.path),
                "tasks": sum(counted.get(i.path, {}).values()),
                "counts": dict(counted.get(i.path, {})),
                "inner": None if i.inner is None else as_graph(i.inner, known, counted),
            }
            for i in chart.items
        ],
        "links": [{"source": keys[e.source], "target": keys[e.target], "label": e.label} for e in chart.links],
    }


def chart_of(body: FlowBody) -> Chart:
    return _chart(body, "", 0)


def _chart(body: FlowBody, prefix: str, depth: int) -> Chart:
    links = _dag_links(body) if body.kind == "dag" else _graph_links(body)
    items = tuple(_item(node, prefix, depth) for node in body.nodes)
    return Chart(items, tuple(links), body.start if body.kind == "graph" else None)


def _dag_links(body: FlowBody) -> list[ChartLink]:
    links: list[ChartLink] = []
    for n, node in enumerate(body.nodes):
        actions: dict[int, list[str]] = {dep: [] for dep in node.deps}
        for source, action in node.arcs:
            actions.setdefault(source, []).append(action)
        links += [_link(body, source, n, named) for source, named in actions.items()]
    return links


def _graph_links(body: FlowBody) -> list[ChartLink]:
    links: list[ChartLink] = []
    for n, node in enumerate(body.nodes):
        only = set(node.edges) == {DEFAULT}
        actions: dict[int, list[str]] = {}
        for action, target in node.edges.items():
            actions.setdefault(target, []).append(action)
        links += [ChartLink(n, target) if only else _link(body, n, target, named) for target, named in actions.items()]
    return links


def _link(body: FlowBody, source: int, target: int, actions: list[str]) -> ChartLink:
    """An action that is called like where it leads says nothing; then the condition behind it does."""
    key, verb = body.nodes[target].key, body.nodes[source].verb
    if not isinstance(verb, Choice):
        return ChartLink(source, target, _label(actions))
    said = [_condition(verb, action) if action == key else action for action in actions]
    return ChartLink(source, target, _label(said))


def _condition(verb: Choice, action: str) -> str:
    found = [_clip(expr.text) for expr, taken in verb.cases if taken == action]
    return " or ".join([*found, *(["else"] if verb.otherwise == action else [])])


def _label(actions: list[str]) -> str:
    more = f" +{len(actions) - LABELS_MAX}" if len(actions) > LABELS_MAX else ""
    return ", ".join(actions[:LABELS_MAX]) + more


def _item(node: FlowNode, prefix: str, depth: int) -> Item:
    word, detail = _words(node)
    inner = None
    path = f"{prefix}{node.key}"
    if isinstance(node.verb, Embedded):
        if depth < INNER_DEPTH_MAX:
            inner = _chart(node.verb.body, f"{path}.", depth + 1)
        else:
            detail = f"{len(node.verb.body.nodes)} nodes"
    return Item(
        key=node.key,
        path=path,
        word=word,
        detail="" if detail == node.key else detail,
        badges=tuple(_badges(node)),
        inner=inner,
    )


def _words(node: FlowNode) -> tuple[str, str]:
    """What it is, and whose."""
    verb = node.verb
    match verb:
        case TaskCall(task=task) if task == HTTP:
            return "http", _http(verb)
        case TaskCall(task=task) if task == RUN:
            return "run", _field(verb.args, "command")
        case TaskCall(task=task) if task == job_task(CONTAINER):
            return "run", _field(verb.args, "command") or _field(verb.args, "image")
        case TaskCall(task=task) if task.startswith(JOB_TASK):
            return "job", executor_of(task)
        case TaskCall():
            return "task", verb.task
        case Services():
            return "services", _shown(_given(node, verb.names))
        case ChildCall():
            return "flow", verb.workflow
        case Embedded():
            return ("tasks" if verb.body.kind == "dag" else "graph"), ""
        case Sleep():
            return "sleep", f"{_shown(_given(node, verb.delay))}{' ms' if verb.ms else ''}"
        case MessageVerb():
            return ("event" if verb.event else "wait"), _shown(_given(node, verb.signal))
        case ApprovalVerb():
            return "approval", _shown(_given(node, verb.name))
        case Choice():
            return "choice", ""
        case ValueVerb():
            return "value", ""


def _given(node: FlowNode, template: Template) -> Any:
    """What a node reads from its params, as written there; the param's name where the run gives the value."""
    form = template.form
    if not (isinstance(form, Expr) and (param := _PARAM.fullmatch(form.text))):
        return form
    params: Any = node.params.form if node.params is not None else None
    return params.get(param[1], form.text) if isinstance(params, dict) else form.text


def _http(verb: TaskCall) -> str:
    parts = (_field(verb.args, "method"), _field(verb.args, "service"), _field(verb.args, "url"))
    return " ".join(p for p in parts if p)


def _field(args: Template | None, name: str) -> str:
    form: Any = args.form if args is not None else None
    return _shown(form.get(name, "")) if isinstance(form, dict) else ""


def _shown(form: Any) -> str:
    """A value as it was written, in one line."""
    parts: Any
    if isinstance(form, str):
        return _clip(form)
    if isinstance(form, Expr):
        return _clip(f"${{{form.text}}}")
    if isinstance(form, list):
        return _clip(" ".join(_shown(part) for part in form[:WORDS_MAX]))
    if isinstance(form, (int, float)):
        return str(form)
    if isinstance(form, dict) and SECRET_KEY in form:
        said: Any = form[SECRET_KEY]
        parts = ["", said, ""] if isinstance(said, str) else said
        return _clip("".join(f"${{secret.{p}}}" if n % 2 else _shown(p) for n, p in enumerate(parts)))
    parts = getattr(form, "parts", ())
    return _clip("".join(p if isinstance(p, str) else f"${{{p.text}}}" for p in parts))


def _clip(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 1]}…"


def _badges(node: FlowNode) -> list[str]:
    found = _spread_badges(node)
    options = getattr(node.verb, "options", None)
    if options is not None and options.max_attempts not in (1, ATTEMPTS_DEFAULT):
        found.append(f"{options.max_attempts} attempts")
    timeout_us = options.timeout_us if options is not None else node.timeout_us
    if timeout_us:
        found.append(f"timeout {shown_duration(timeout_us)}")
    if node.on_error != "fail_fast":
        found.append("collects errors" if node.on_error == "collect" else "ignores errors")
    if node.run_if != "all_success":
        found.append({"none_failed": "if none failed", "any_failed": "if any failed", "always": "always"}[node.run_if])
    if node.when is not None:
        found.append(f"when {_clip(node.when.text)}")
    return found


def _spread_badges(node: FlowNode) -> list[str]:
    spread, found = node.spread, list[str]()
    if spread is None:
        return found
    if spread.items is not None:
        written = spread.items.form.text if isinstance(spread.items.form, Expr) else "item"
        found.append(f"for each {_clip(written)}")
    elif spread.count is not None:
        written = spread.count.form.text if isinstance(spread.count.form, Expr) else spread.count.form
        found.append(f"× {_clip(str(written))}")
    if spread.concurrency is not None:
        at_once = spread.concurrency.form
        found.append(f"{_clip(at_once.text) if isinstance(at_once, Expr) else at_once} at a time")
    return found


def shown_duration(us: int) -> str:
    """1h30m, 250ms: the two largest units."""
    parts: list[str] = []
    for unit, size in SHOWN_UNITS:
        if us >= size and len(parts) < 2:
            parts.append(f"{us // size}{unit}")
            us %= size
    return "".join(parts) or "0s"
