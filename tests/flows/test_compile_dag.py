"""`tasks:` bodies, and what documents of both kinds have in common."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from perdure.core import expressions
from perdure.core.expressions.template import Template
from perdure.core.limits import EMBED_DEPTH_MAX, FLOW_NODES_MAX
from perdure.core.retry import TaskOptions
from perdure.core.work import is_flow
from perdure.flows.compile import Compiled, compile_flow, compile_value, version_of
from perdure.flows.model import (
    ApprovalVerb,
    ChildCall,
    Choice,
    Embedded,
    FlowNode,
    HttpServiceOptions,
    MessageVerb,
    Services,
    Sleep,
    SourcePlace,
    TaskCall,
    ValueVerb,
)
from perdure.flows.problems import DocumentProblem, FlowError
from perdure.flows.source import read

NIGHTLY = """\
flow: nightly-etl
input: {day: {type: string, format: date}}
triggers: [{cron: "0 8 * * *", tz: Europe/Paris, overlap: skip}]
defaults: {retry: 3, timeout: 5m}
tasks:
  discover: {python: "etl:discover", with: {day: "${ input.day }"}}
  process:
    depends_on: [discover]
    foreach: discover.files
    concurrency: 4
    on_error: collect
    http: {service: transform, body: "${ item }"}
  route:   {depends_on: [process], choice: [{when: "size(process) > 100", then: review}, {else: publish}]}
  review:  {approval: {assignees: [ops], timeout: 2d}, then: {approved: publish, rejected: cleanup}}
  publish: {flow: publish-report, with: {files: "${ process }"}}
  cleanup: {run: [./rm.sh], run_if: any_failed}
output: "${ publish }"
"""


def compiled(text: str, name: str | None = "demo") -> Compiled:
    return compile_flow(read(text, name="flow.yaml"), name=name)


def node(fields: str, *, key: str = "n", before: str = "") -> FlowNode:
    """The node `n`, of which only the fields are given; `a` stands before it."""
    text = f"tasks:\n  a: {{}}\n{before}  {key}: {fields}\n  last: {{}}\n"
    return next(n for n in compiled(text).flow.body.nodes if n.key == key)


def problems(text: str, name: str | None = "demo") -> tuple[DocumentProblem, ...]:
    with pytest.raises(FlowError) as e:
        compiled(text, name)
    assert re.match(r"flow\.yaml:\d+:\d+: ", str(e.value))
    return e.value.problems


def problem(text: str, line: int, column: int) -> str:
    """The only problem of a text, which has to be at that place."""
    found = problems(text)
    assert len(found) == 1, [str(p) for p in found]
    assert (found[0].line, found[0].column) == (line, column), str(found[0])
    return f"{found[0].message}; {found[0].hint}"


def test_the_nightly_flow() -> None:
    c = compiled(NIGHTLY, name=None)
    flow = c.flow
    assert (flow.name, flow.kind, flow.description) == ("nightly-etl", "dag", "")
    assert flow.input_schema == {
        "type": "object",
        "properties": {"day": {"type": "string", "format": "date"}},
        "required": ["day"],
        "additionalProperties": False,
    }
    assert [n.key for n in flow.body.nodes] == ["discover", "process", "route", "review", "publish", "cleanup"]
    discover, process, route, review, publish, cleanup = flow.body.nodes
    options = TaskOptions(max_attempts=3, timeout_us=300_000_000)
    assert discover.verb == TaskCall(
        task="discover",
        queue="default",
        options=options,
        said=frozenset({"max_attempts", "timeout_us"}),
        args=Template.make({"day": "${ input.day }"}),
    )
    assert discover.place == SourcePlace(6, 3)
    assert process.spread is not None
    assert process.spread.items == Template.of(expressions.parse("discover.files"))
    assert process.spread.concurrency == Template.literal(4)
    assert (process.spread.count, process.spread.source) == (None, "discover")
    assert (process.on_error, process.deps, process.arcs) == ("collect", (0,), ())
    assert isinstance(process.verb, TaskCall)
    assert process.verb.task == "perdure.http"
    assert process.verb.args == Template.make({"service": "transform", "body": "${ item }"})
    assert route.verb == Choice(cases=((expressions.parse("size(process) > 100"), "review"),), otherwise="publish")
    assert (route.routes, route.successors) == (frozenset({"review", "publish"}), (3, 4))
    assert review.verb == ApprovalVerb(name=Template.literal("review"), shown=Template.literal({"assignees": ["ops"]}))
    assert (review.timeout_us, review.arcs, review.deps) == (2 * 86_400_000_000, ((2, "review"),), ())
    assert review.routes == {"approved", "rejected"}
    assert publish.verb == ChildCall(workflow="publish-report", args=Template.make({"files": "${ process }"}))
    assert publish.arcs == ((2, "publish"), (3, "approved"))
    assert publish.successors == ()
    assert (cleanup.run_if, cleanup.arcs) == ("any_failed", ((3, "rejected"),))
    assert flow.body.output == Template.make("${ publish }")
    assert c.warnings == []
    (trigger,) = flow.triggers
    assert (trigger.name, trigger.spec.cron, trigger.spec.tz) == ("nightly-etl", ("0 8 * * *",), "Europe/Paris")


def test_a_stored_document_compiles_to_the_same_flow() -> None:
    document = read(NIGHTLY)
    stored = msgspec.json.decode(msgspec.json.encode(document.value))
    again = compile_value(stored, name="other").flow
    placeless = tuple(msgspec.structs.replace(n, place=SourcePlace()) for n in compile_flow(document).flow.body.nodes)
    assert again.body.nodes == placeless
    assert again.name == "nightly-etl"
    assert version_of(stored) == version_of(document.value)


def test_a_version_is_of_the_content_in_its_order() -> None:
    one, two = version_of({"a": 1, "b": 2}), version_of({"b": 2, "a": 1})
    assert one != two
    assert is_flow(one)
    assert re.fullmatch(r"flow-[0-9a-f]{20}", one)
    assert one == version_of({"a": 1, "b": 2})


# -- verbs -------------------------------------------------------------------------------------------------------------

PLAIN = TaskOptions()


def call(task: str, args: Any = None, options: TaskOptions = PLAIN, queue: str = "default", *said: str) -> TaskCall:
    made = None if args is None else Template.make(args)
    return TaskCall(task=task, queue=queue, options=options, said=frozenset(said), args=made)


def run(args: Any) -> TaskCall:
    return call("perdure.run", args, TaskOptions(executor="process"))


OVER_HTTP = HttpServiceOptions(options=TaskOptions(executor="service"))


def service(name: str, args: Any) -> TaskCall:
    return msgspec.structs.replace(call(name, args), service=OVER_HTTP)


def http_service(args: Any) -> TaskCall:
    return call("perdure.job.service", args, TaskOptions(executor="service"))


@pytest.mark.parametrize(
    ("fields", "verb"),
    [
        ("", call("n")),
        ("{}", call("n")),
        ("{with: {x: 1}}", call("n", {"x": 1})),
        ("{with: '${ input }'}", call("n", "${ input }")),
        ("{python: 'pkg.mod:fn'}", call("fn")),
        ("{python: fn}", call("fn")),
        (
            "{http: {url: 'http://x', method: PUT, headers: {a: 1}, query: {q: '${ input.q }'}, body: [1]}}",
            call(
                "perdure.http",
                {"url": "http://x", "method": "PUT", "headers": {"a": 1}, "query": {"q": "${ input.q }"}, "body": [1]},
            ),
        ),
        ("{run: [ls, -l, 3, '${ input.dir }']}", run({"command": ["ls", "-l", 3, "${ input.dir }"]})),
        ("{run: 'ls | wc'}", run({"command": "ls | wc"})),
        (
            "{run: {command: [x], env: {A: '${ input.a }'}, cwd: /tmp, stdin: '${ input }'}}",
            run({"command": ["x"], "env": {"A": "${ input.a }"}, "cwd": "/tmp", "stdin": "${ input }"}),
        ),
        ("{service: s}", service("s", {"input": None})),
        ("{service: s, with: [1, '${ input.x }']}", service("s", {"input": [1, "${ input.x }"]})),
        ("{service: s, foreach: [1]}", service("s", {"input": "${ item }"})),
        (
            "{service: {name: s, max_attempts: 2, weighted_by_load: true}, with: 5}",
            http_service({"input": 5, "service": "s", "max_attempts": 2, "weighted_by_load": True}),
        ),
        (
            "{service: {url: 'https://x/${ input.id }', headers: {A: 1}, auth: {bearer_env: T}}}",
            http_service(
                {"input": None, "url": "https://x/${ input.id }", "headers": {"A": 1}, "auth": {"bearer_env": "T"}}
            ),
        ),
        (
            "{services: [s, t]}",
            Services(
                names=Template.literal(["s", "t"]),
                queue="default",
                options=PLAIN,
                args=Template.make({"input": None}),
                service=OVER_HTTP,
            ),
        ),
        (
            "{services: '${ input.names }', with: 5}",
            Services(
                names=Template.make("${ input.names }"),
                queue="default",
                options=PLAIN,
                args=Template.make({"input": 5}),
                service=OVER_HTTP,
            ),
        ),
        ("{flow: other}", ChildCall(workflow="other")),
        ("{sleep: 5m}", Sleep(delay=Template.literal("5m"))),
        ("{sleep: 2.5}", Sleep(delay=Template.literal(2.5))),
        ("{sleep: '${ input.delay }'}", Sleep(delay=Template.make("${ input.delay }"))),
        ("{wait: go}", MessageVerb(signal=Template.literal("go"))),
        (
            "{wait: {event: e, since: 10m}}",
            MessageVerb(signal=Template.literal("e"), event=True, since=Template.literal("10m")),
        ),
        (
            "{wait: {event: e, since: 90}}",
            MessageVerb(signal=Template.literal("e"), event=True, since=Template.literal(90)),
        ),
        (
            "{wait: {event: e, since: '${ input.x }'}}",
            MessageVerb(signal=Template.literal("e"), event=True, since=Template.make("${ input.x }")),
        ),
        ("{wait: {signal: 'go-${ input.x }', timeout: 1h}}", MessageVerb(signal=Template.make("go-${ input.x }"))),
        ("{approval: }", ApprovalVerb(name=Template.literal("n"))),
        ("{approval: {}}", ApprovalVerb(name=Template.literal("n"))),
        ("{approval: ok}", ApprovalVerb(name=Template.literal("ok"))),
        (
            "{approval: {name: ok, title: T, form: {a: {type: integer}}, assignees: me}}",
            ApprovalVerb(
                name=Template.literal("ok"),
                shown=Template.literal({"title": "T", "assignees": ["me"]}),
                form={
                    "type": "object",
                    "properties": {"a": {"type": "integer"}},
                    "required": ["a"],
                    "additionalProperties": False,
                },
            ),
        ),
        ("{value: }", ValueVerb(value=Template.literal(None))),
        ("{value: {a: '${ input.x }'}}", ValueVerb(value=Template.make({"a": "${ input.x }"}))),
    ],
)
def test_a_verb_says_what_a_node_does(fields: str, verb: Any) -> None:
    assert node(fields).verb == verb


def test_bodies_within_bodies() -> None:
    text = """\
tasks:
  outer:
    state: {n: 1}
    output: "${ inner }"
    with: {x: "${ input.x }"}
    tasks:
      inner: {value: "${ input.x }"}
  machine:
    max_steps: 7
    graph: {start: s, nodes: {s: {value: "${ shared.x }"}}}
  seed: {subflow: {start: s, nodes: {s: {kind: timer, params: {delay_ms: 5}}}, edges: []}}
  again: {subflow: {tasks: {t: {}}, output: 5}}
"""
    outer, machine, seed, again = (n.verb for n in compiled(text).flow.body.nodes)
    assert isinstance(outer, Embedded)
    assert (outer.body.kind, outer.body.state, outer.body.max_steps) == ("dag", {"n": 1}, 0)
    assert outer.body.output == Template.make("${ inner }")
    assert outer.args == Template.make({"x": "${ input.x }"})
    assert outer.body.nodes[0].place == SourcePlace(7, 7)
    assert isinstance(machine, Embedded)
    assert (machine.body.kind, machine.body.max_steps, machine.args) == ("graph", 7, None)
    assert isinstance(seed, Embedded)
    assert isinstance(seed.body.nodes[0].verb, Sleep)
    assert isinstance(again, Embedded)
    assert again.body.output == Template.literal(5)


def test_a_body_within_sees_nothing_of_the_one_around_it() -> None:
    text = 'tasks:\n  a: {}\n  b:\n    depends_on: a\n    tasks:\n      c: {value: "${ a.x }"}\n'
    assert problem(text, 6, 22).startswith("unknown name 'a'")


# -- modifiers ---------------------------------------------------------------------------------------------------------


def test_retry_and_other_options() -> None:
    fields = """
    retry: {max_attempts: 5, delay: 2s, factor: 3, max_delay: 1m, jitter: false, on: [IOError], never: ValueError}
    timeout: 90s
    heartbeat: 10
    queue: gpu
    at_most_once: true"""
    verb = node(fields).verb
    assert isinstance(verb, TaskCall)
    assert verb.queue == "gpu"
    assert verb.options == TaskOptions(
        max_attempts=5,
        initial_us=2_000_000,
        factor=3.0,
        cap_us=60_000_000,
        jitter=False,
        on=("IOError",),
        never=("ValueError",),
        timeout_us=90_000_000,
        heartbeat_us=10_000_000,
        at_most_once=True,
    )


def test_a_node_goes_over_the_defaults_and_those_over_perdures_own() -> None:
    text = """\
defaults: {retry: {max_attempts: 7, delay: 3s}, timeout: 10, queue: slow, heartbeat: 1}
tasks:
  a: {}
  b: {retry: 2, queue: fast, timeout: 0}
  c: {max_retries: 4}
  d: {wait: x}
"""
    a, b, c, d = compiled(text).flow.body.nodes
    base = TaskOptions(max_attempts=7, initial_us=3_000_000, timeout_us=10_000_000, heartbeat_us=1_000_000)
    said = ("max_attempts", "initial_us", "cap_us", "timeout_us", "queue", "heartbeat_us")
    assert a.verb == call("a", None, base, "slow", *said)
    assert b.verb == call("b", None, msgspec.structs.replace(base, max_attempts=2, timeout_us=0), "fast", *said)
    assert c.verb == call("c", None, msgspec.structs.replace(base, max_attempts=4), "slow", *said)
    assert d.timeout_us == 0


def test_a_first_delay_above_the_usual_longest_one_raises_that() -> None:
    verb = node("{retry: {delay: 10m}}").verb
    assert isinstance(verb, TaskCall)
    assert (verb.options.initial_us, verb.options.cap_us) == (600_000_000, 600_000_000)


@pytest.mark.parametrize(
    ("fields", "run_if"),
    [
        ("{}", "all_success"),
        ("{run_if: none_failed}", "none_failed"),
        ("{on_failure: run}", "always"),
        ("{on_failure: skip}", "all_success"),
    ],
)
def test_when_a_node_runs(fields: str, run_if: str) -> None:
    assert node(fields).run_if == run_if


def test_conditions_are_expressions_in_three_forms() -> None:
    one = expressions.parse("input.x > 3")
    assert node("{when: input.x > 3}").when == one
    assert node('{when: "${ input.x > 3 }"}').when == one
    assert node('{when: {gt: ["$input.x", 3]}}').when == one
    assert node("{when: false}").when == expressions.parse("false")


@pytest.mark.parametrize(
    ("fields", "items", "count", "concurrency", "source"),
    [
        ("{depends_on: a, foreach: a.files}", "${ a.files }", None, None, "a"),
        ("{depends_on: a, foreach: '${ a.files }', concurrency: a.n}", "${ a.files }", None, "${ a.n }", "a"),
        ("{depends_on: a, foreach: 'tasks[\"a\"].files'}", '${ tasks["a"].files }', None, None, "a"),
        ("{foreach: input.files}", "${ input.files }", None, None, None),
        ("{foreach: [1, '${ input.x }']}", [1, "${ input.x }"], None, None, None),
        ("{parallel: 4}", None, 4, None, None),
        ("{parallel: 0, concurrency: 2}", None, 0, 2, None),
        ("{depends_on: a, parallel: a.count}", None, "${ a.count }", None, None),
        ("{services: [x], concurrency: 1}", None, None, 1, None),
    ],
)
def test_a_node_may_be_many(fields: str, items: Any, count: Any, concurrency: Any, source: str | None) -> None:
    spread = node(fields).spread
    assert spread is not None
    for found, wanted in ((spread.items, items), (spread.count, count), (spread.concurrency, concurrency)):
        assert found == (None if wanted is None else Template.make(wanted))
    assert spread.source == source


def test_writes_go_to_dotted_paths_and_see_the_output() -> None:
    writes = node('{set: {report.total: "${ output.n + state.n }", plain: 1}}').writes
    assert [w.to for w in writes] == [("report", "total"), ("plain",)]
    assert writes[0].value == Template.make("${ output.n + state.n }")


def test_a_case_is_called_by_its_name_or_its_first_target() -> None:
    text = """\
tasks:
  pick:
    choice:
      - {when: input.a, then: [x, y]}
      - {when: input.b, then: y, name: second}
      - {when: input.c, name: nowhere}
      - {else: [x, z]}
  x: {}
  y: {}
  z: {}
"""
    message = problems(text)[0]
    assert "two cases of task 'pick' are called 'x'" in message.message
    pick, x, y, z = compiled(text.replace("else: [x, z]", "else: [z, x]")).flow.body.nodes
    assert isinstance(pick.verb, Choice)
    assert [a for _, a in pick.verb.cases] == ["x", "second", "nowhere"]
    assert pick.verb.otherwise == "z"
    assert x.arcs == ((0, "x"), (0, "z"))
    assert y.arcs == ((0, "x"), (0, "second"))
    assert z.arcs == ((0, "z"),)
    assert pick.routes == {"x", "second", "z"}
    assert pick.successors == (1, 2, 3)


# -- input -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("", None),
        ("{}", {"type": "object", "properties": {}, "required": [], "additionalProperties": False}),
        (
            "{a: {type: integer}, b: {type: string, default: x}, c: {required: false}, d: }",
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "string", "default": "x"}, "c": {}, "d": {}},
                "required": ["a", "d"],
                "additionalProperties": False,
            },
        ),
        (
            "{type: object, properties: {a: {type: string}}}",
            {"type": "object", "properties": {"a": {"type": "string"}}},
        ),
        (
            "{type: {type: string}}",
            {
                "type": "object",
                "properties": {"type": {"type": "string"}},
                "required": ["type"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_input_is_properties_or_a_schema(text: str, schema: Any) -> None:
    assert compiled(f"input: {text}\ntasks: {{a: }}").flow.input_schema == schema


def test_expressions_are_checked_against_the_input() -> None:
    text = "input: {day: {type: string}, n: {type: integer}}\ntasks:\n  a: {value: '${ input.n + input.day }'}\n"
    assert problems(text)[0].line == 3
    assert compiled(text.replace("input.n + input.day", "input.n + 1")).flow


# -- problems ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "the document is empty; begin with flow: and tasks:"),
        ("[1]", 1, 1, "the document is not a mapping"),
        ("flow: x", 1, 1, "the document has nothing to do; add tasks:"),
        ("tasks: {}", 1, 8, "there are no tasks"),
        ("tasks: [a]", 1, 8, "tasks is a list; it must be a mapping"),
        ("tasks: {a: }\ngraph: {}", 2, 1, "the document has tasks and graph; it has one body"),
        ("tasks: {a: }\nstart: x", 2, 1, "the document has tasks and start; it has one body"),
        ("tasks: {a: }\noutptu: 1", 2, 1, "unknown key 'outptu' in the document; did you mean 'output'?"),
        ("flow: [x]\ntasks: {a: }", 1, 7, "flow is a list; it must be a name"),
        ("flow: ' '\ntasks: {a: }", 1, 7, "flow is the text ' '; it must be a name"),
        ("tasks: {a: 5}", 1, 12, "task 'a' is the number 5; it must be a mapping"),
        ("tasks: {1a: }", 1, 9, "'1a' cannot be the key of a task"),
        ("tasks: {in: }", 1, 9, "'in' is a word of the expression language"),
        ("tasks: {item: }", 1, 9, "'item' is a word of the expression language"),
        ("tasks: {a: }\nmax_steps: 5", 2, 1, "max_steps is for graphs"),
        ("tasks: {a: }\nstate: [1]", 2, 8, "state is a list"),
        ("tasks: {a: }\ntriggers: {a: 1}", 2, 11, "triggers is a mapping; it must be a list"),
        ("tasks: {a: }\ndefaults: {retries: 1}", 2, 12, "unknown key 'retries' in defaults; did you mean 'retry'?"),
        ("tasks: {a: }\ndefaults: {timeout: soon}", 2, 21, "'soon' is not a duration"),
        ("tasks: {a: }\ndefaults: {timeout: P1M}", 2, 21, "'P1M' has months, which differ in length"),
        ("tasks: {a: }\ninput: 5", 2, 8, "input is the number 5"),
        ("tasks: {a: }\ninput: {a: string}", 2, 12, "write {type: string}"),
        ("tasks: {a: }\ninput: {a: {type: strnig}}", 2, 19, "did you mean 'string'?"),
        ("tasks: {a: }\ninput: {type: string}", 2, 15, "an input is an object"),
        ("tasks: {a: }\ninput: {a: {type: integer, default: x}}", 2, 37, "the default must be integer, not string"),
        ("tasks: {a: }\ninput: {type: object, properties: 3}", 2, 35, "properties is the number 3"),
        ("tasks: {a: }\noutput: '${ b }'", 2, 13, "unknown name 'b'"),
        ("tasks: {a: }\noutput: '${ a '", 2, 10, "never closed"),
    ],
)
def test_what_is_wrong_with_a_document(text: str, line: int, column: int, message: str) -> None:
    assert message in problem(text, line, column)


@pytest.mark.parametrize(
    ("fields", "column", "message"),
    [
        ("depend_on: [a]", 7, "unknown key 'depend_on' in task 'n'; did you mean 'depends_on'?"),
        ("prep: {}", 7, "unknown key 'prep' in task 'n'; it belongs to the nodes of a graph"),
        ("depends_on: [aa]", 20, "task 'n' depends on 'aa', which is no task here; did you mean 'a'?"),
        ("depends_on: [a, a]", 23, "depends on 'a' twice"),
        ("depends_on: [3]", 20, "an entry of depends_on is the number 3"),
        ("depends_on: n", 3, "task 'n' waits for itself"),
        ("python: x, http: {url: y}", 18, "task 'n' has python and http; a node does one thing"),
        ("python: 'a:b:c'", 15, "it must be module:function"),
        ("python: [x]", 15, "python is a list; it must be a name"),
        ("http: {}", 7, "neither url nor service"),
        ("http: x", 13, "http is the text 'x'; it must be a mapping"),
        ("http: {url: x, methd: GET}", 22, "did you mean 'method'?"),
        ("http: {url: x, method: get}", 30, "did you mean 'GET'?"),
        ("http: {url: x, headers: [1]}", 31, "headers is a list"),
        ("http: {url: x}, with: {a: 1}", 23, "with does not go with http: in task 'n'; put the values in its body"),
        ("run: []", 12, "the command of task 'n' is a list; it must be a list of arguments"),
        ("run: ' '", 12, "runs nothing"),
        ("run: {command: [x], user: a}", 27, "user of task 'n' goes with image"),
        ("run: 'echo ${ input.x }'", 18, "the shell text of task 'n' holds ${ }; pass values as arguments or env"),
        ("run: {command: 'x ${HOME}'}", 25, "the shell text of task 'n' holds ${ }"),
        ("run: [bash, -ec, 'x ${ input.x }']", 27, "the shell text of task 'n' holds ${ }"),
        ("run: [x, [y]]", 16, "an argument of task 'n' is a list"),
        ("run: {command: [x], cmd: 1}", 27, "unknown key 'cmd'"),
        ("service: s, with: '${ nope }'", 29, "unknown name 'nope'"),
        ("services: []", 17, "services has 0 names"),
        ("services: [1]", 18, "an entry of services is the number 1"),
        ("services: [x], foreach: [1]", 22, "foreach does not go with services:"),
        ("flow: '${ input.x }'", 14, "expressions are not evaluated here"),
        ("sleep: 5x", 14, "'5x' is not a duration"),
        ("sleep: 5m, retry: 3", 18, "retry does not go with sleep: in task 'n'"),
        ("sleep: 5m, timeout: 3", 18, "timeout does not go with sleep:"),
        ("wait: ", 13, "the signal's name is nothing; it must be a name"),
        ("wait: {signal: x, since: now}", 25, "since of task 'n' goes with event"),
        ("wait: {event: x, since: yesterday}", 31, "invalid since: 'yesterday'. Use a duration"),
        ("wait: {event: x, since: [1]}", 31, "since is a list; it must be a duration"),
        ("wait: {signal: x, timeout: 5s}, timeout: 5s", 39, "task 'n' has two timeouts; keep the one in wait"),
        ("approval: {asignees: [x]}", 18, "did you mean 'assignees'?"),
        ("approval: 5", 17, "approval is the number 5"),
        ("approval: {form: 3}", 24, "form is the number 3"),
        (
            "value: '${ a.x }'",
            18,
            "task 'n' reads the output of 'a', which it does not wait for; add 'a' to its depends_on",
        ),
        ("value: '${ n }'", 18, "task 'n' reads its own output"),
        ("value: '${ item }'", 18, "'item' is known in a node with foreach or parallel only"),
        ("foreach: [1], when: item", 27, "'item' is known in a node with foreach or parallel only"),
        ("value: '${ output }'", 18, "'output' is known in `set:` only"),
        ("value: '${ shared.x }'", 18, "unknown name 'shared'"),
        ("value: '${ inputt.x }'", 18, "did you mean 'input'?"),
        ("foreach: [1], value: '${ index-1 }'", 32, "put spaces around the minus"),
        ("value: {a: [1, 'x ${ 1 + }']}", 32, "ends too soon"),
        ("value: {'${ x }': 1}", 15, "keys take no expressions"),
        ("when: 5", 13, "when of task 'n' is the number 5; it must be an expression"),
        ("when: {equals: [1, 2]}", 13, "equals"),
        ("when: '1 +* 2'", 17, "when of task 'n'"),
        ("run_if: allways", 15, "did you mean 'always'?"),
        ("on_failure: stop", 19, "on_failure is the text 'stop'; it must be one of run, skip"),
        ("run_if: always, on_failure: run", 23, "task 'n' has run_if and on_failure; keep run_if"),
        ("foreach: 5", 16, "foreach of task 'n' is the number 5; it must be a list, or an expression"),
        ("foreach: [1], parallel: 2", 21, "task 'n' has foreach and parallel; keep one"),
        ("parallel: -1", 17, "a whole number from 0 to 100000"),
        ("parallel: 100001", 17, "a whole number from 0 to 100000"),
        ("foreach: [1], concurrency: 0", 34, "a whole number from 1"),
        ("concurrency: 3", 7, "concurrency needs foreach or parallel beside it"),
        ("on_error: colect", 17, "did you mean 'collect'?"),
        ("retry: 0", 14, "retry (executions in all) is the number 0; it must be a whole number from 1 to 1000"),
        ("retry: [3]", 14, "retry is a list"),
        ("retry: {max_attemps: 3}", 15, "did you mean 'max_attempts'?"),
        ("retry: {factor: 0.5}", 23, "factor is the number 0.5"),
        ("retry: {delay: 1m, max_delay: 5s}", 37, "max_delay is shorter than delay"),
        ("retry: {on: [3]}", 20, "an entry of on is the number 3"),
        ("retry: 3, max_retries: 3", 17, "max_retries and retry say the same thing"),
        ("max_retries: 1001", 20, "from 1 to 1000"),
        ("timeout: -5", 16, "between 0 and 100 years"),
        ("timeout: [1]", 16, "timeout is a list; it must be a duration"),
        ("at_most_once: 1", 21, "true or false"),
        ("queue: ''", 14, "queue is the text ''; it must be a name"),
        ("with: [1]", 13, "with of task 'n' is a list; it must be a mapping of arguments"),
        ("set: [1]", 12, "set of task 'n' is a list"),
        ("set: {a..b: 1}", 13, "it must be a dotted path"),
        ("set: {a: '${ nope }'}", 20, "unknown name 'nope'"),
        ("then: {approved: a}", 7, "then does not go with task 'n'"),
        ("approval: , then: {aproved: a}", 26, "did you mean 'approved'?"),
        ("approval: , then: {approved: aa}", 36, "task 'n' leads to 'aa', which is no task here; did you mean 'a'?"),
        ("wait: x, then: {approved: a}", 23, "unknown key 'approved' in then of task 'n'"),
        ("approval: , foreach: [1], then: {approved: a}", 33, "has many results"),
        ("choice: []", 7, "choice of task 'n' has no cases"),
        ("choice: 3", 15, "choice of task 'n' is the number 3"),
        ("choice: [{then: a}]", 16, "needs either when or else"),
        ("choice: [{when: 'true', else: a}]", 16, "needs either when or else"),
        ("choice: [{when: 'true'}]", 16, "leads nowhere"),
        ("choice: [{when: 'true', then: aa}]", 37, "did you mean 'a'?"),
        ("choice: [{else: a}, {when: 'true', then: last}]", 17, "else of task 'n' must be its last case"),
        ("choice: [{when: nope, then: a}]", 23, "unknown name 'nope'"),
        ("choice: [{else: a}], foreach: [1]", 28, "foreach does not go with choice:"),
        ("state: {}, value: 1", 7, "state does not go with value:"),
        ("tasks: {}", 14, "there are no tasks"),
        ("subflow: {}", 16, "the subflow of task 'n' has nothing to do"),
        ("subflow: {tasks: {b: }, flow: x}", 31, "unknown key 'flow' in the subflow of task 'n'"),
        ("graph: {start: x}", 7, "task 'n' has no nodes"),
    ],
)
def test_what_is_wrong_with_a_task(fields: str, column: int, message: str) -> None:
    text = f"tasks:\n  a: {{}}\n  n: {{{fields}}}\n  last: {{}}\n"
    found = problems(text)
    assert (found[0].line, found[0].column) == (3, column), str(found[0])
    assert message in f"{found[0].message}; {found[0].hint}"
    assert len(found) == 1 or "nodes" in message, [str(p) for p in found]


def test_a_missing_name_is_a_problem_unless_somebody_gives_one() -> None:
    assert "the flow has no name" in problems("tasks: {a: }", name=None)[0].message
    assert compiled("tasks: {a: }", name="stem").flow.name == "stem"
    assert compiled("flow: own\ntasks: {a: }", name="stem").flow.name == "own"


def test_a_cycle_is_named() -> None:
    text = "tasks:\n  a: {depends_on: c}\n  b: {depends_on: a}\n  c: {choice: [{else: d}], depends_on: b}\n  d: {}\n"
    assert problem(text, 2, 3).startswith("these tasks wait for each other: a -> b -> c -> a")
    by_arc = "tasks:\n  a: {depends_on: b}\n  b: {depends_on: c}\n  c: {approval: , then: {approved: d}}\n  d: {approval: , then: {rejected: c}}\n"
    assert problem(by_arc, 4, 3).startswith("these tasks wait for each other: c -> d -> c")


def test_an_ancestor_may_be_far_away() -> None:
    text = (
        "tasks:\n  a: {}\n  b: {depends_on: a}\n  c: {choice: [{else: d}], depends_on: b}\n  d: {value: '${ a.x }'}\n"
    )
    assert compiled(text).flow.body.nodes[3].arcs == ((2, "d"),)


def test_keys_with_a_hyphen_can_be_read() -> None:
    text = "tasks:\n  a-b: {}\n  c: {depends_on: a-b, value: '${ a-b.x }', when: 'tasks[\"a-b\"].y'}\n"
    assert compiled(text).flow.body.nodes[1].deps == (0,)


def test_a_task_may_be_called_like_a_function() -> None:
    text = "tasks:\n  size: {}\n  n: {depends_on: size, value: '${ size(size.files) + size.n }'}\n"
    assert compiled(text).flow.body.nodes[1].deps == (0,)


def test_a_task_read_by_name_has_to_be_there() -> None:
    text = "tasks:\n  first: {}\n  n: {value: '${ tasks.frist.x }'}\n"
    assert problem(text, 3, 18) == "there is no task 'frist' here; did you mean 'first'?"


def test_a_stored_document_is_not_held_against_types_again() -> None:
    value = {"input": {"n": {"type": "integer"}}, "tasks": {"a": {"value": "${ input.m }"}}}
    with pytest.raises(FlowError, match="has no field"):
        compile_value(value, name="x")
    assert compile_value(value, name="x", stored=True).flow.input_schema


def test_all_problems_come_in_the_order_of_the_text() -> None:
    text = "tasks:\n  a: {sleep: 5x, retry: 1}\n  b: {depend_on: a, when: '1 +'}\nouput: 1\n"
    places = [(p.line, p.column) for p in problems(text)]
    assert places == [(2, 14), (2, 18), (3, 7), (3, 31), (4, 1)]


def test_an_expression_is_pointed_at_in_a_block_and_behind_escapes() -> None:
    text = 'tasks:\n  a:\n    value: |\n      one\n      two ${ nope }\n  b: {value: "\\u0041\\"${ nope }"}\n'
    assert [(p.line, p.column) for p in problems(text)] == [(5, 14), (6, 26)]


def test_bounds_have_names() -> None:
    many = {"flow": "x", "tasks": {f"t{i}": None for i in range(FLOW_NODES_MAX + 1)}}
    with pytest.raises(FlowError, match="FLOW_NODES_MAX"):
        compile_value(many)
    del many["tasks"]["t0"]  # type: ignore[attr-defined]
    assert len(compile_value(many).flow.body.nodes) == FLOW_NODES_MAX
    deep: dict[str, Any] = {"tasks": {"t": None}}
    for _ in range(EMBED_DEPTH_MAX):
        deep = {"tasks": {"t": deep}}
    assert compile_value(deep, name="x").flow
    with pytest.raises(FlowError, match="EMBED_DEPTH_MAX"):
        compile_value({"tasks": {"t": deep}}, name="x")


def test_nodes_of_embedded_bodies_count_as_well() -> None:
    half = {"tasks": {f"t{i}": None for i in range(FLOW_NODES_MAX // 2)}}
    with pytest.raises(FlowError, match="FLOW_NODES_MAX"):
        compile_value({"tasks": {"a": half, "b": half}}, name="x")


def test_a_value_without_text_has_paths() -> None:
    with pytest.raises(FlowError) as e:
        compile_value({"tasks": {"a": {"choice": [{"when": "nope", "then": "a"}]}}}, name="demo")
    assert "demo: tasks.a.choice[0].when: unknown name 'nope'" in str(e.value)


@pytest.mark.parametrize(
    "value",
    [{"a": float("nan")}, {"a": 2**64}, {"a": b"x"}, {1: 2}, {"a": "\0"}, {"a": "\ud800"}, {"a": (1,)}],
)
def test_a_value_that_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(FlowError):
        compile_value({"flow": "x", "tasks": {"t": {"value": value}}})


def test_a_value_that_is_too_deep_or_too_large_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(FlowError, match="DOCUMENT_DEPTH_MAX"):
        compile_value({"flow": "x", "tasks": {"t": {"value": deep}}})
    with pytest.raises(FlowError, match="DOCUMENT_NODES_MAX"):
        compile_value({"flow": "x", "tasks": {"t": {"value": [1] * 200_000}}})


def test_state_is_taken_as_written() -> None:
    c = compiled("state: {a: {b: 1}, c: '${ input.x }'}\ntasks: {t: }")
    assert c.flow.body.state == {"a": {"b": 1}, "c": "${ input.x }"}
    assert "not evaluated here" in c.warnings[0].message


def test_the_document_is_kept_as_written() -> None:
    document = read(NIGHTLY)
    assert compile_flow(document).flow.document == document.value
