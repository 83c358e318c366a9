"""`graph:` bodies: with verbs, and the shape of flows as data, field for field."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from perdure.core import expressions
from perdure.core.expressions.template import Template
from perdure.core.limits import GRAPH_STEPS_DEFAULT, GRAPH_STEPS_MAX
from perdure.core.retry import TaskOptions
from perdure.flows.compile import Compiled, compile_flow, compile_value
from perdure.flows.model import (
    ApprovalVerb,
    Choice,
    Embedded,
    FlowNode,
    HttpServiceOptions,
    MessageVerb,
    NodeSpread,
    Services,
    Sleep,
    SourcePlace,
    TaskCall,
    ValueVerb,
    Write,
)
from perdure.flows.problems import DocumentProblem, FlowError
from perdure.flows.source import read

ONCE = TaskOptions(max_attempts=1, initial_us=0, cap_us=0, factor=1.0, jitter=False)
"""Data flows retry only when told to."""
ONCE_OVER_HTTP = HttpServiceOptions(
    options=msgspec.structs.replace(ONCE, executor="service"), fields={"max_attempts": 1}
)
EXECUTED = Template.make({"input": "${ input }", "params": "${ params }"})


def compiled(text: str) -> Compiled:
    return compile_flow(read(text, name="flow.yaml"), name="demo")


def graph(nodes: str, edges: str = "[]", start: str = "a") -> Compiled:
    return compiled(f"graph:\n  start: {start}\n  nodes:\n{nodes}\n  edges: {edges}\n")


def node(fields: dict[str, Any]) -> FlowNode:
    """One node, written as data."""
    return compile_value({"start": "n", "nodes": {"n": fields}, "edges": []}, name="demo").flow.body.nodes[0]


def problems(text: str) -> tuple[DocumentProblem, ...]:
    with pytest.raises(FlowError) as e:
        compiled(text)
    return e.value.problems


def tmpl(text: str) -> Template:
    return Template.of(expressions.parse(text))


# -- the body ----------------------------------------------------------------------------------------------------------

LOOP = """\
flow: loop
state: {n: 0}
max_steps: 500
output: "${ shared.n }"
graph:
  start: count
  nodes:
    count: {value: "${ shared.n + 1 }", set: {n: "${ output }"}}
    enough: {choice: [{when: shared.n >= input.limit, then: done}, {else: again}]}
    done: {value: "${ shared.n }"}
  edges:
    - {from: count, to: enough}
    - {from: enough, action: again, to: count}
"""


def test_a_loop() -> None:
    c = compiled(LOOP)
    body = c.flow.body
    assert (c.flow.kind, body.start, body.max_steps, body.state) == ("graph", 0, 500, {"n": 0})
    assert body.output == tmpl("shared.n")
    count, enough, done = body.nodes
    assert count.verb == ValueVerb(value=Template.make("${ shared.n + 1 }"))
    assert count.writes == (Write(to=("n",), value=tmpl("output")),)
    assert (count.edges, count.routes, count.place) == ({"default": 1}, {"default"}, SourcePlace(8, 5))
    assert enough.verb == Choice(cases=((expressions.parse("shared.n >= input.limit"), "done"),), otherwise="again")
    assert enough.edges == {"again": 0, "done": 2}, "a case may name a node instead of an edge's action"
    assert enough.routes == {"again", "done"}
    assert (done.edges, done.deps, done.arcs) == ({}, (), ())
    assert c.warnings == []


def test_start_nodes_and_edges_may_stand_at_the_top() -> None:
    text = json.dumps({"start": "a", "nodes": {"a": {"kind": "executor", "service": "s"}}, "edges": []})
    body = compiled(text).flow.body
    assert (body.kind, body.max_steps) == ("graph", GRAPH_STEPS_DEFAULT)
    assert body.nodes[0].place == SourcePlace(1, 26)


def test_verbs_in_a_graph() -> None:
    nodes = """\
    a: {service: s}
    b: {service: s, with: {x: "${ params.x }"}}
    c: {services: [s, t], concurrency: 1, on_error: ignore}
    d: {service: s, foreach: input.items, concurrency: 2}
    e: {python: "m:f", prep: {input_key: a.b}, params: {k: "${ shared.k }"}}
    f: {flow: other}
    g: {subflow: {tasks: {t: {}}}}
    h: {wait: {signal: go, timeout: 5s}, post: {output_key: said}}
    i: {approval: , timeout: 1h}
    j: """
    edges = str([{"from": a, "to": b} for a, b in zip("abcdefghi", "bcdefghij", strict=True)])
    a, b, c, d, e, f, g, h, i, j = graph(nodes, edges).flow.body.nodes
    plain = TaskOptions()
    http = HttpServiceOptions(options=TaskOptions(executor="service"))
    assert a.verb == TaskCall(task="s", queue="default", options=plain, args=EXECUTED, service=http)
    assert isinstance(b.verb, TaskCall)
    assert b.verb.args == Template.make({"input": {"x": "${ params.x }"}, "params": "${ params }"})
    assert isinstance(c.verb, Services)
    assert (c.verb.args, c.on_error) == (EXECUTED, "ignore")
    assert c.spread == NodeSpread(concurrency=Template.literal(1))
    assert isinstance(d.verb, TaskCall)
    assert d.verb.args == Template.make({"input": "${ item }", "params": "${ params }"})
    assert d.spread == NodeSpread(items=tmpl("input.items"), concurrency=Template.literal(2))
    assert isinstance(e.verb, TaskCall)
    assert (e.verb.task, e.verb.args, e.prepare, e.params) == (
        "f",
        None,
        tmpl("shared.a.b"),
        Template.make({"k": "${ shared.k }"}),
    )
    assert f.verb.args is None  # type: ignore[union-attr]
    assert isinstance(g.verb, Embedded)
    assert (h.timeout_us, h.writes) == (5_000_000, (Write(to=("said",), value=tmpl("output")),))
    assert i.timeout_us == 3_600_000_000
    assert isinstance(j.verb, TaskCall)
    assert j.verb.task == "j"


# -- kinds -------------------------------------------------------------------------------------------------------------


def test_an_executor_with_all_its_fields() -> None:
    n = node(
        {
            "kind": "executor",
            "service": "transform",
            "params": {"op": "upper", "ref": "${ shared.ref }"},
            "prep": {"input_key": "$params.text", "input_map": None},
            "post": {
                "output_key": "out.text",
                "output_map": {"a.b": "x.y"},
                "action_static": "",
                "action_key": "action",
            },
            "default_action": "",
            "max_retries": 3,
            "wait_ms": 100,
            "max_attempts": 2,
            "attempt_delay_ms": 50,
            "weighted_by_load": True,
            "choice_cases": None,
            "parallel_services": [],
            "parallel_mode": "",
            "max_parallel": 0,
            "failure_strategy": "",
            "subflow": None,
        }
    )
    options = TaskOptions(max_attempts=6, initial_us=100_000, cap_us=100_000, factor=1.0, jitter=False)
    said = frozenset({"max_attempts", "initial_us", "cap_us", "factor", "jitter"})
    fields = {"max_attempts": 2, "attempt_delay_ms": 50, "weighted_by_load": True}
    rounds = msgspec.structs.replace(options, max_attempts=3, executor="service")
    http = HttpServiceOptions(options=rounds, said=said, fields=fields)
    assert n.verb == TaskCall(
        task="transform", queue="default", options=options, said=said, args=EXECUTED, service=http
    )
    assert n.params == Template.make({"op": "upper", "ref": "${ shared.ref }"})
    assert n.prepare == tmpl("params.text")
    assert n.writes == (Write(to=("out", "text"), value=tmpl("output")), Write(to=("a", "b"), value=tmpl("output.x.y")))
    assert (n.action, n.action_of) == (None, tmpl("output.action"))
    assert (n.spread, n.on_error) == (None, "fail_fast")


@pytest.mark.parametrize(
    ("fields", "attempts", "delay_us"),
    [
        ({}, 1, 0),
        ({"max_retries": 3}, 3, 0),
        ({"max_retries": 0, "max_attempts": 0}, 1, 0),
        ({"max_attempts": 2, "attempt_delay_ms": 50}, 2, 50_000),
        ({"max_retries": 2, "max_attempts": 2, "wait_ms": 10, "attempt_delay_ms": 50}, 4, 10_000),
    ],
)
def test_retries_are_rounds_times_attempts_at_a_constant_pace(
    fields: dict[str, Any], attempts: int, delay_us: int
) -> None:
    verb = node({"kind": "executor", "service": "s", **fields}).verb
    assert isinstance(verb, TaskCall)
    assert verb.options == TaskOptions(
        max_attempts=attempts, initial_us=delay_us, cap_us=delay_us, factor=1.0, jitter=False
    )


def test_defaults_do_not_make_data_flows_retry() -> None:
    value = {
        "defaults": {"retry": 5, "timeout": "1m", "queue": "q"},
        "start": "n",
        "nodes": {"n": {"kind": "executor", "service": "s"}},
    }
    verb = compile_value(value, name="x").flow.body.nodes[0].verb
    assert isinstance(verb, TaskCall)
    assert (verb.queue, verb.options.max_attempts, verb.options.timeout_us) == ("q", 1, 60_000_000)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("$params.a.b", "params.a.b"),
        ("$shared.a", "shared.a"),
        ("$input.a", "input.a"),
        ("$input", "input"),
        ("a.b", "shared.a.b"),
        ("a-b.c d", 'shared["a-b"]["c d"]'),
    ],
)
def test_prep_paths(path: str, text: str) -> None:
    assert node({"kind": "executor", "service": "s", "prep": {"input_key": path}}).prepare == tmpl(text)


def test_an_input_map_makes_an_object() -> None:
    n = node({"kind": "executor", "service": "s", "prep": {"input_map": {"x": "$params.a", "y.z": "b.c"}}})
    assert n.prepare == Template.make({"x": "${ params.a }", "y.z": "${ shared.b.c }"})


@pytest.mark.parametrize(
    ("fields", "concurrency", "on_error"),
    [
        ({}, 1, "fail_fast"),
        ({"parallel_mode": "sequential", "max_parallel": 9}, 1, "fail_fast"),
        ({"parallel_mode": "concurrent"}, None, "fail_fast"),
        ({"parallel_mode": "concurrent", "max_parallel": 3, "failure_strategy": "collect_errors"}, 3, "collect"),
        ({"failure_strategy": "ignore_errors"}, 1, "ignore"),
    ],
)
def test_foreach_and_parallel(fields: dict[str, Any], concurrency: int | None, on_error: str) -> None:
    many = None if concurrency is None else Template.literal(concurrency)
    each = node({"kind": "foreach", "service": "s", "prep": {"input_key": "list"}, **fields})
    assert each.verb == TaskCall(
        task="s",
        queue="default",
        options=ONCE,
        args=Template.make({"input": "${ item }", "params": "${ params }"}),
        service=ONCE_OVER_HTTP,
    )
    assert (each.spread, each.on_error) == (NodeSpread(items=tmpl("input"), concurrency=many), on_error)
    side = node({"kind": "parallel", "parallel_services": ["s", "t"], **fields})
    assert side.verb == Services(
        names=Template.literal(["s", "t"]), queue="default", options=ONCE, args=EXECUTED, service=ONCE_OVER_HTTP
    )
    assert (side.spread, side.on_error) == (NodeSpread(concurrency=many), on_error)


def test_services_may_come_from_params() -> None:
    verb = node({"kind": "parallel"}).verb
    assert isinstance(verb, Services)
    assert verb.names == tmpl("params.services")


def test_waiting_kinds() -> None:
    assert node({"kind": "timer", "params": {"delay_ms": 50}}).verb == Sleep(delay=tmpl("params.delay_ms"), ms=True)
    wait = node(
        {"kind": "wait_event", "params": {"signal_key": "go", "timeout_ms": 1500}, "post": {"action_static": "next"}}
    )
    assert (wait.verb, wait.timeout_us, wait.action) == (
        MessageVerb(signal=tmpl("params.signal_key"), lookup=True),
        1_500_000,
        "next",
    )
    approval = node({"kind": "approval", "params": {"approval_key": "ok"}})
    assert approval.verb == ApprovalVerb(name=tmpl("params.approval_key"), signals=True)


def test_a_subflow() -> None:
    inner = {"start": "x", "nodes": {"x": {"kind": "executor", "service": "s"}}, "edges": []}
    n = node({"kind": "subflow", "subflow": inner, "post": {"output_key": "r"}})
    assert isinstance(n.verb, Embedded)
    assert n.verb.args == tmpl("input")
    assert (n.verb.body.kind, n.verb.body.max_steps, len(n.verb.body.nodes)) == ("graph", GRAPH_STEPS_DEFAULT, 1)


def test_a_choice_in_data() -> None:
    cases = [
        {"action": "b", "expr": {"eq": ["$shared.x", "b"]}},
        {"action": "c", "expr": {"not": {"exists": "$params.dry"}}},
    ]
    n = node(
        {
            "kind": "choice",
            "choice_cases": cases,
            "default_action": "d",
            "prep": {"input_key": "x"},
            "post": {"output_key": "y"},
        }
    )
    assert n.verb == Choice(
        cases=((expressions.parse('shared.x == "b"'), "b"), (expressions.parse("not exists params.dry"), "c")),
        otherwise="d",
    )
    assert (n.action, n.action_of) == (None, None)


def test_the_result_of_a_choice_names_the_action_only_when_no_case_holds() -> None:
    cases = [{"action": 'b"\\', "expr": "shared.x > 1"}, {"action": "c", "expr": "shared.x > 0"}]
    n = node({"kind": "choice", "choice_cases": cases, "default_action": "d", "post": {"action_key": "route"}})
    assert n.action_of is not None

    def action(x: int, output: Any) -> Any:
        assert n.action_of is not None
        return n.action_of.evaluate({"shared": {"x": x}, "output": output}.__getitem__)

    assert [action(2, {"route": "r"}), action(1, {"route": "r"}), action(0, {"route": "r"}), action(0, {})] == [
        'b"\\',
        "c",
        "r",
        "d",
    ]


@pytest.mark.parametrize(
    ("fields", "action", "action_of"),
    [
        ({"default_action": "d"}, "d", None),
        ({"default_action": "d", "post": {"action_static": "s"}}, "s", None),
        ({"default_action": "d", "post": {"action_key": "k"}}, None, 'output.k ?? "d"'),
        ({"post": {"action_key": "$shared.k"}}, None, "shared.k"),
    ],
)
def test_the_action_of_a_node(fields: dict[str, Any], action: str | None, action_of: str | None) -> None:
    n = node({"kind": "executor", "service": "s", **fields})
    assert (n.action, n.action_of) == (action, None if action_of is None else tmpl(action_of))


def test_an_empty_kind_is_an_executor() -> None:
    assert isinstance(node({"kind": "", "service": "s"}).verb, TaskCall)


# -- problems ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("graph: 5", 1, 8, "graph is the number 5"),
        ("graph: {start: a}", 1, 1, "the document has no nodes"),
        ("graph: {nodes: {a: }}", 1, 1, "does not say where to begin"),
        ("graph: {start: 3, nodes: {a: }}", 1, 16, "start is the number 3"),
        ("graph: {start: aa, nodes: {a: }}", 1, 16, "start is 'aa', which is no node here; did you mean 'a'?"),
        ("graph: {start: a, nodes: {a: }, edge: []}", 1, 33, "unknown key 'edge' in graph; did you mean 'edges'?"),
        ("graph: {start: a, nodes: {a: }, edges: {}}", 1, 40, "edges is a mapping; it must be a list"),
        ("graph: {start: a, nodes: {a: }, edges: [x]}", 1, 41, "an edge is the text 'x'"),
        ("graph: {start: a, nodes: {a: }, edges: [{from: a}]}", 1, 41, "does not say to which"),
        ("graph: {start: a, nodes: {a: }, edges: [{to: a}]}", 1, 41, "does not say from which"),
        (
            "graph: {start: a, nodes: {a: }, edges: [{from: a, to: b}]}",
            1,
            55,
            "an edge goes to 'b', which is no node here",
        ),
        ("graph: {start: abc, nodes: {abc: }, edges: [{from: abd, to: abc}]}", 1, 52, "did you mean 'abc'?"),
        ("graph: {start: a, nodes: {a: }, edges: [{from: a, to: a, on: x}]}", 1, 58, "unknown key 'on' in an edge"),
        (
            "graph: {start: a, nodes: {a: }, edges: [{from: a, to: a}, {from: a, action: '', to: a}]}",
            1,
            59,
            "a second edge for the action 'default'",
        ),
        ("graph: {start: a, nodes: {a: }, edges: [{from: a, to: a, action: 3}]}", 1, 66, "action is the number 3"),
        ("graph: {start: a, nodes: {'': }}", 1, 27, "is no usable key"),
        ("graph: {start: a, nodes: {a: }}\nmax_steps: 0", 2, 12, "from 1 to 50000"),
        ("graph: {start: a, nodes: {a: }}\nmax_steps: 50001", 2, 12, "from 1 to 50000"),
        ("graph: {start: a, nodes: {a: }}\noutput: '${ a }'", 2, 13, "unknown name 'a'"),
    ],
)
def test_what_is_wrong_with_a_graph(text: str, line: int, column: int, message: str) -> None:
    found = problems(text)
    said = [f"{p.message}; {p.hint}" for p in found if (p.line, p.column) == (line, column)]
    assert any(message in s for s in said), [str(p) for p in found]


@pytest.mark.parametrize(
    ("fields", "column", "message"),
    [
        ("depends_on: b", 9, "unknown key 'depends_on' in node 'a'; in a graph, edges and choice say what comes next"),
        ("value: 1, when: 'true'", 19, "in a graph, edges and choice say"),
        ("approval: , then: {approved: b}", 21, "in a graph, edges and choice say"),
        ("servce: s", 9, "unknown key 'servce' in node 'a'; did you mean 'service'?"),
        ("choice_cases: []", 9, "choice_cases in node 'a' goes with a kind; add kind:"),
        ("kind: exector, service: s", 15, "did you mean 'executor'?"),
        ("kind: executor", 5, "does not say which service it calls"),
        ("kind: executor, service: s, retries: 3", 37, "unknown key 'retries' in node 'a' of kind executor"),
        ("kind: foreach", 5, "does not say which service it calls"),
        ("kind: subflow", 5, "node 'a' has no subflow"),
        ("kind: subflow, subflow: {start: x}", 24, "the subflow of node 'a' has no nodes"),
        ("kind: parallel, parallel_services: [1]", 45, "an entry of parallel_services is the number 1"),
        ("kind: parallel, parallel_mode: conc", 40, "did you mean 'concurrent'?"),
        ("kind: parallel, failure_strategy: collect", 43, "did you mean 'collect_errors'?"),
        ("kind: parallel, max_parallel: -1", 39, "max_parallel is the number -1"),
        ("kind: timer, params: {delay_ms: soon}", 41, "delay_ms is the text 'soon'"),
        ("kind: wait_event, params: {timeout_ms: '${ shared.x }'}", 48, "timeout_ms is the text"),
        (
            "kind: choice, choice_cases: [{action: b, exp: x}]",
            50,
            "unknown key 'exp' in a case of node 'a'; did you mean 'expr'?",
        ),
        ("kind: choice, choice_cases: [{action: b, expr: {equals: [1, 2]}}]", 56, "equals"),
        ("kind: choice, choice_cases: [{action: b, expr: tasks.a}]", 56, "unknown name 'tasks'"),
        ("kind: executor, service: s, max_retries: 100, max_attempts: 100", 37, "ATTEMPTS_MAX=1000"),
        ("kind: executor, service: s, wait_ms: 1s", 46, "wait_ms is the text '1s'"),
        ("kind: executor, service: s, weighted_by_load: 1", 55, "true or false"),
        ("kind: executor, service: s, params: [1]", 45, "params of node 'a' is a list"),
        ("kind: executor, service: s, prep: {input_key: x, input_map: {a: b}}", 58, "has input_key and input_map"),
        ("kind: executor, service: s, prep: {input: x}", 44, "did you mean 'input_map'?"),
        ("kind: executor, service: s, prep: {input_key: $tasks.x}", 55, "unknown name 'tasks'"),
        ("kind: executor, service: s, prep: {input_key: a..b}", 56, "input_key"),
        ("kind: executor, service: s, prep: {input_map: {'${ a }': b}}", 56, "keys take no expressions"),
        ("kind: executor, service: s, post: {output_key: a..b}", 56, "it must be a dotted path"),
        ("kind: executor, service: s, post: {output_map: {a: 3}}", 60, "a path of output_map is the number 3"),
        ("kind: executor, service: s, post: {action_static: 3}", 59, "action_static is the number 3"),
        ("choice: [{when: 'true', then: [b, a]}]", 39, "a graph has one cursor"),
        ("choice: [{when: 'true', then: bb}]", 39, "neither an edge's action nor a node; did you mean 'b'?"),
        ("choice: [{when: 'true', name: x}]", 33, "unknown key 'name'"),
        ("choice: [{else: b}, {when: 'true', then: b}]", 19, "else of node 'a' must be its last case"),
        ("value: '${ params.x + item }'", 31, "'item' is known in a node with foreach or parallel only"),
    ],
)
def test_what_is_wrong_with_a_node(fields: str, column: int, message: str) -> None:
    found = problems(f"graph:\n  start: a\n  nodes:\n    a: {{{fields}}}\n    b: {{}}\n")
    said = [f"{p.message}; {p.hint}" for p in found if (p.line, p.column) == (4, column)]
    assert any(message in s for s in said), [str(p) for p in found]


@pytest.mark.parametrize("steps", [1, GRAPH_STEPS_MAX])
def test_max_steps_has_two_ends(steps: int) -> None:
    value = {"max_steps": steps, "start": "a", "nodes": {"a": None}}
    assert compile_value(value, name="x").flow.body.max_steps == steps


# -- warnings ----------------------------------------------------------------------------------------------------------


def warned(nodes: str, edges: str) -> list[str]:
    return [w.message for w in graph(nodes, edges).warnings]


def test_a_node_that_is_never_reached_is_a_warning() -> None:
    c = graph("    a: {}\n    b: {}\n    c: {}", "[{from: b, to: c}, {from: c, to: b}]")
    assert [(w.line, w.column, w.severity) for w in c.warnings] == [(5, 5, "warning"), (6, 5, "warning")]
    assert "node 'b' is never reached" in c.warnings[0].message


@pytest.mark.parametrize(
    ("fields", "action", "warns"),
    [
        ("{}", "error", False),
        ("{}", "go", True),
        ("{}", "default", False),
        ("{approval: }", "approved", True),
        ("{approval: }", "default", False),
        ("{wait: x}", "timeout", False),
        ("{kind: executor, service: s, post: {action_static: go}}", "stop", True),
        ("{kind: executor, service: s, post: {action_static: go}}", "go", False),
        ("{kind: executor, service: s, post: {action_key: x}}", "go", False),
        ("{kind: choice, choice_cases: [{action: go, expr: 'true'}]}", "stop", True),
        ("{kind: choice, choice_cases: [{action: go, expr: 'true'}]}", "go", False),
    ],
)
def test_an_action_without_an_edge_is_a_warning(fields: str, action: str, warns: bool) -> None:
    said = warned(f"    a: {fields}\n    b: {{}}", f"[{{from: a, action: {action}, to: b}}]")
    assert bool(said) is warns, said
    assert all("for which it has no edge" in s for s in said)


def test_a_field_of_another_kind_is_a_warning_when_it_says_something() -> None:
    c = graph("    a: {kind: timer, params: {delay_ms: 1}, service: s, parallel_mode: ''}")
    assert [w.message for w in c.warnings] == ["service has no effect on node 'a', which is of kind timer"]


def test_a_case_that_falls_to_the_default_edge_is_a_warning() -> None:
    said = warned(
        "    a: {choice: [{when: 'true', then: goo}]}\n    b: {}", "[{from: a, to: b}, {from: a, action: go, to: b}]"
    )
    assert said == ["node 'a' has no edge for the action 'goo'; it goes by the default edge"]
