"""Nodes written with a `kind`: executor, choice, parallel, subflow, timer, foreach, wait_event, approval.

The shape is the one of flows as data, field for field: programs write it, with every field there is. A field that another kind has, and
that says something, is a warning here; an unknown one is an error.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from perdure.core import expressions
from perdure.core.durations import DURATION_US_MAX
from perdure.core.expressions import Expr
from perdure.core.expressions.template import Template
from perdure.core.limits import ATTEMPTS_MAX, FANOUT_TASKS_MAX, SERVICE_ATTEMPTS_MAX, SERVICE_DELAY_MS_MAX
from perdure.flows.compile.nodes import BROKEN, ITEM_ROOTS, Parts, read_compensate, service_undone_by, undone_by
from perdure.flows.compile.options import ExecutionOptions, read_execution
from perdure.flows.compile.prepost import PREPOST_KEYS, Exits, read_exits, settle_choice
from perdure.flows.compile.reading import Reader, Scope
from perdure.flows.compile.services import over_http, read_names
from perdure.flows.compile.verbs import Bodies, NodeView, read_approval
from perdure.flows.model import (
    ApprovalVerb,
    Choice,
    Embedded,
    HttpServiceOptions,
    MessageVerb,
    NodeSpread,
    OnError,
    Services,
    Sleep,
    TaskCall,
    Verb,
)

_COMMON: Final = ("kind", *PREPOST_KEYS, "description")
_RETRY: Final = ("max_retries", "wait_ms", "max_attempts", "attempt_delay_ms", "weighted_by_load")
_EXECUTION: Final = ("queue", "timeout", "heartbeat", "start_within", "finish_within")
_TASK: Final = (*_RETRY, *_EXECUTION, "compensate")
_MANY: Final = ("parallel_mode", "max_parallel", "failure_strategy")
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "executor": (*_COMMON, "service", *_TASK),
    "choice": (*_COMMON, "choice_cases"),
    "parallel": (*_COMMON, "parallel_services", *_MANY, *_TASK),
    "subflow": (*_COMMON, "subflow", "timeout", "compensate"),
    "timer": _COMMON,
    "foreach": (*_COMMON, "service", *_MANY, *_TASK),
    "wait_event": _COMMON,
    "approval": (*_COMMON, "timeout"),
}
"""Kinds, and the fields each takes."""
KIND_KEYS: Final = tuple(dict.fromkeys(k for keys in KINDS.values() for k in keys))
MODES: Final = ("sequential", "concurrent")
STRATEGIES: Final[dict[str, OnError]] = {
    "fail_fast": "fail_fast",
    "collect_errors": "collect",
    "ignore_errors": "ignore",
}
CASE_KEYS: Final = ("action", "expr")
ASKING: Final = ("title", "description", "details", "assignees", "quorum", "reject_quorum", "form", "escalate")
"""Params of an approval beside its key."""
DELAY_MS_MAX: Final = DURATION_US_MAX // 1000


def read_kind(r: Reader, view: NodeView, scope: Scope, bodies: Bodies) -> tuple[Parts, Exits]:
    kind = view.fields["kind"]
    if kind in (None, ""):
        kind = "executor"
    word = r.word(kind, view.at("kind"), f"kind of {view.where}", tuple(KINDS))
    if word is None:
        return Parts(BROKEN, None, "fail_fast", 0, ()), Exits()
    _check_fields(r, view, word)
    exits = read_exits(r, view, scope, chooses=word in {"choice", "approval"})
    execution, service = bodies.execution, HttpServiceOptions(options=bodies.execution.options)
    if "queue" in KINDS[word]:
        execution, service = _execution(r, view, bodies.execution)
    compensate = None
    if "compensate" in KINDS[word]:
        inner = scope.plus(*ITEM_ROOTS) if word == "foreach" else scope
        compensate = read_compensate(r, view, inner, bodies, {"input": "input", "params": "params"})
        execution, service = undone_by(compensate, execution), service_undone_by(compensate, service)
    timeout_us = 0
    verb: Verb | None = None
    match word:
        case "executor" | "foreach":
            verb = _executor(r, view, execution, service, "item" if word == "foreach" else "input")
        case "parallel":
            verb = _parallel(r, view, scope, execution, service)
        case "subflow":
            verb = _subflow(r, view, bodies)
            timeout_us = _timeout(r, view)
        case "timer":
            verb = _timer(r, view)
        case "wait_event":
            verb = MessageVerb(signal=_param("signal_key"), lookup=True)
            timeout_us = _param_ms(r, view, "timeout_ms") * 1000
        case "approval":
            verb = _approval(r, view, scope)
            timeout_us = _timeout(r, view) or _param_ms(r, view, "timeout_ms") * 1000
            if exits.default is not None:
                r.warn(
                    view.at("default_action"),
                    f"default_action has no effect on {view.where}: it ends approved or rejected",
                    key=True,
                )
        case _:
            verb, exits = _choice(r, view, scope, exits)
    spread = _spread(r, view, word)
    return Parts(verb or BROKEN, spread, _on_error(r, view), timeout_us, (), compensate), exits


def _check_fields(r: Reader, view: NodeView, kind: str) -> None:
    takes = KINDS[kind]
    for key, value in view.fields.items():
        if key in takes:
            continue
        if key not in KIND_KEYS:
            r.unknown(key, view.path, f"{view.where} of kind {kind}", takes)
        elif value not in (None, "", 0, False, [], {}):
            r.warn(view.at(key), f"{key} has no effect on {view.where}, which is of kind {kind}", key=True)


def _param(name: str) -> Template:
    return Template.of(expressions.parse(f"params.{name}"))


def _args(source: str) -> Template:
    return Template.make({"input": f"${{ {source} }}", "params": "${ params }"})


def _executor(
    r: Reader, view: NodeView, execution: ExecutionOptions, service: HttpServiceOptions, source: str
) -> TaskCall | None:
    if not view.fields.get("service"):
        r.error(
            view.path,
            f"{view.where} does not say which service it calls",
            "add service: with the name of a task",
            key=True,
        )
        return None
    name = r.name_of(view.fields["service"], view.at("service"), "service")
    if name is None:
        return None
    return TaskCall(
        task=name,
        queue=execution.queue,
        options=execution.options,
        said=execution.said,
        args=_args(source),
        service=service,
    )


def _parallel(
    r: Reader, view: NodeView, scope: Scope, execution: ExecutionOptions, service: HttpServiceOptions
) -> Services | None:
    names: Template | None = Template.of(expressions.parse("params.services"))
    if view.fields.get("parallel_services") not in (None, "", []):
        path = view.at("parallel_services")
        names = read_names(r, view.fields["parallel_services"], path, "parallel_services", scope)
    if names is None:
        return None
    return Services(
        names=names,
        queue=execution.queue,
        options=execution.options,
        said=execution.said,
        args=_args("input"),
        service=service,
    )


def _subflow(r: Reader, view: NodeView, bodies: Bodies) -> Embedded | None:
    path = view.at("subflow")
    if not view.has("subflow"):
        r.error(view.path, f"{view.where} has no subflow", "add subflow: {start, nodes, edges}", key=True)
        return None
    fields = r.mapping(view.fields["subflow"], path, f"subflow of {view.where}")
    body = None if fields is None else bodies.embed(fields, path, f"the subflow of {view.where}")
    return None if body is None else Embedded(body=body, args=Template.of(expressions.parse("input")))


def _approval(r: Reader, view: NodeView, scope: Scope) -> ApprovalVerb:
    """What people are asked stands in the node's own params; those of the run may mean anything."""
    own: Any = view.fields.get("params")
    given = cast(dict[str, Any], own) if isinstance(own, dict) else {}
    fields = {k: v for k, v in given.items() if k in ASKING and v is not None}
    name = _param("approval_key")
    read = read_approval(r, {**fields, "name": "approval"}, view.at("params"), view, scope) if fields else None
    if read is None:
        return ApprovalVerb(name=name, signals=True)
    shown = (
        {k: f"${{ params.{'escalate.to' if k == 'escalate_to' else k} }}" for k in read.shown.form}
        if read.shown
        else {}
    )
    return msgspec.structs.replace(read, name=name, shown=Template.make(shown) if shown else None, signals=True)


def _timer(r: Reader, view: NodeView) -> Sleep:
    params: Any = view.fields.get("params")
    delay: Any = cast(dict[str, Any], params).get("delay_ms") if isinstance(params, dict) else None
    if delay is not None and not (isinstance(delay, str) and "${" in delay):
        r.number(delay, view.at("params", "delay_ms"), "delay_ms", 0)
    return Sleep(delay=_param("delay_ms"), ms=True)


def _choice(r: Reader, view: NodeView, scope: Scope, exits: Exits) -> tuple[Choice, Exits]:
    path = view.at("choice_cases")
    items: list[Any] = []
    if view.has("choice_cases"):
        items = r.list_of(view.fields["choice_cases"], path, "choice_cases") or []
    cases: list[tuple[Expr, str]] = []
    for i, item in enumerate(items):
        at = (*path, i)
        fields = r.mapping(item, at, f"a case of {view.where}")
        if fields is None:
            continue
        r.keys(fields, at, f"a case of {view.where}", CASE_KEYS)
        action = r.name_of(fields.get("action"), (*at, "action"), f"the action of a case of {view.where}")
        read = r.expression(fields.get("expr"), (*at, "expr"), f"expr of {view.where}", scope)
        if action is not None and read is not None:
            cases.append((read, action))
    return settle_choice(r, view, Choice(cases=tuple(cases)), exits)


def _execution(r: Reader, view: NodeView, base: ExecutionOptions) -> tuple[ExecutionOptions, HttpServiceOptions]:
    """Retries only when `max_retries` or `max_attempts` is given, and the pause between them is always the same. A service over HTTP has
    max_retries attempts, with max_attempts calls in each; a Python task has max_retries times max_attempts."""
    given = {k: view.fields[k] for k in _EXECUTION if view.has(k)}
    execution = read_execution(r, given, view.path, base)
    rounds = _count(r, view, "max_retries") or 1
    tries = _count(r, view, "max_attempts") or 1
    if rounds * tries > ATTEMPTS_MAX:
        r.error(
            view.at("max_retries"),
            f"max_retries times max_attempts is {rounds * tries}; ATTEMPTS_MAX={ATTEMPTS_MAX} is the most",
            key=True,
        )
        return execution, HttpServiceOptions(options=execution.options)
    wait_ms = _ms(r, view.fields.get("wait_ms"), view, "wait_ms")
    delay_ms = _ms(r, view.fields.get("attempt_delay_ms"), view, "attempt_delay_ms")
    is_weighted = view.has("weighted_by_load") and bool(
        r.boolean(view.fields["weighted_by_load"], view.at("weighted_by_load"), "weighted_by_load")
    )
    is_said = view.has("max_retries") or view.has("max_attempts")
    fields: dict[str, Any] = {"max_attempts": min(tries, SERVICE_ATTEMPTS_MAX)}
    if view.has("attempt_delay_ms"):
        fields["attempt_delay_ms"] = min(delay_ms, SERVICE_DELAY_MS_MAX)
    if is_weighted:
        fields["weighted_by_load"] = True
    task = _retrying(execution, rounds * tries, wait_ms or delay_ms, is_said)
    call = over_http(_retrying(execution, rounds, wait_ms, is_said), fields)
    return task, call


def _retrying(execution: ExecutionOptions, attempts: int, wait_ms: int, is_said: bool) -> ExecutionOptions:
    us = wait_ms * 1000
    options = msgspec.structs.replace(
        execution.options, max_attempts=attempts, initial_us=us, cap_us=us, factor=1.0, jitter=False
    )
    said = {"max_attempts"} if is_said else set[str]()
    if us:
        said |= {"initial_us", "cap_us", "factor", "jitter"}
    return ExecutionOptions(execution.queue, options, execution.said | said)


def _count(r: Reader, view: NodeView, key: str) -> int:
    value = view.fields.get(key)
    return (
        1
        if value in (None, 0) and not isinstance(value, bool)
        else r.integer(value, view.at(key), key, 1, ATTEMPTS_MAX) or 1
    )


def _ms(r: Reader, value: Any, view: NodeView, key: str) -> int:
    return 0 if value is None else r.integer(value, view.at(key), key, 0, DELAY_MS_MAX) or 0


def _param_ms(r: Reader, view: NodeView, key: str) -> int:
    """A number of milliseconds among the params, which has to be there as such."""
    params: Any = view.fields.get("params")
    value: Any = cast(dict[str, Any], params).get(key) if isinstance(params, dict) else None
    return 0 if value is None else r.integer(value, view.at("params", key), key, 0, DELAY_MS_MAX) or 0


def _timeout(r: Reader, view: NodeView) -> int:
    return r.duration(view.fields["timeout"], view.at("timeout"), "timeout") or 0 if view.has("timeout") else 0


def _spread(r: Reader, view: NodeView, kind: str) -> NodeSpread | None:
    if kind not in {"parallel", "foreach"}:
        return None
    mode = "sequential"
    if view.fields.get("parallel_mode") not in (None, ""):
        mode = r.word(view.fields["parallel_mode"], view.at("parallel_mode"), "parallel_mode", MODES) or mode
    limit = 0
    if view.has("max_parallel"):
        limit = (
            r.integer(view.fields["max_parallel"], view.at("max_parallel"), "max_parallel", 0, FANOUT_TASKS_MAX) or 0
        )
    many = 1 if mode == "sequential" else limit
    concurrency = Template.literal(many) if many else None
    items = Template.of(expressions.parse("input")) if kind == "foreach" else None
    return NodeSpread(items=items, concurrency=concurrency)


def _on_error(r: Reader, view: NodeView) -> OnError:
    if view.fields.get("failure_strategy") in (None, ""):
        return "fail_fast"
    path = view.at("failure_strategy")
    word = r.word(view.fields["failure_strategy"], path, "failure_strategy", tuple(STRATEGIES))
    return STRATEGIES[word] if word else "fail_fast"
