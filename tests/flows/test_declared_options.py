"""Options that tasks declare, laid under those of a flow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure import Limit, RateLimit, Retry, task
from perdure.core import declared
from perdure.core import events as ev
from perdure.core.commands import ScheduleTasks
from perdure.core.declared import Declared, laid_under
from perdure.core.flow_control.options import FlowControlSpec, RateOption
from perdure.core.flow_control.options import LimitOption as RecordedLimit
from perdure.core.retry import TaskOptions
from perdure.engine.runs.flow_definitions import HEARD_US, Flows
from perdure.flows.compile import compile_flow
from perdure.flows.decide.decider import Decider
from perdure.flows.model import TaskCall
from perdure.flows.source import read
from perdure.sdk.worker.worker import Worker
from perdure.wire.protocol import TASK_SCHEMAS_BYTES_MAX, bounded_signatures

DECLARED = Declared(
    queue="mail",
    options=TaskOptions(
        max_attempts=7, initial_us=5, timeout_us=9, control=FlowControlSpec(rates=(RateOption(count=2, per_us=1),))
    ),
    said=("max_attempts", "timeout_us", "control"),
)


def call_of(node: str, document: str = "") -> TaskCall:
    flow = compile_flow(read(f"flow: f\n{document}\ntasks:\n  send: {{{node}}}\n")).flow
    verb = flow.body.nodes[0].verb
    assert isinstance(verb, TaskCall)
    return verb


def resolved(call: TaskCall) -> tuple[str, TaskOptions]:
    return laid_under(DECLARED, call.queue, call.options, call.said)


def test_what_the_flow_does_not_say_the_task_does() -> None:
    queue, options = resolved(call_of("python: send"))
    assert (queue, options.max_attempts, options.timeout_us) == ("mail", 7, 9)
    assert options.control == DECLARED.options.control
    assert options.initial_us == TaskOptions().initial_us, "the task did not say this one"


@pytest.mark.parametrize(
    ("node", "document", "field", "value"),
    [
        ("python: send, retry: 2", "", "max_attempts", 2),
        ("python: send, retry: 3", "", "max_attempts", 3),
        ("python: send", "defaults: {retry: 3}", "max_attempts", 3),
        ("python: send, timeout: 1s", "", "timeout_us", 1_000_000),
        ("python: send", "defaults: {timeout: 1s}", "timeout_us", 1_000_000),
    ],
)
def test_the_flow_wins_even_with_what_is_the_default_anyway(node: str, document: str, field: str, value: int) -> None:
    _, options = resolved(call_of(node, document))
    assert getattr(options, field) == value
    assert options.control == DECLARED.options.control


def test_the_flow_wins_with_queue_and_flow_control() -> None:
    assert resolved(call_of("python: send, queue: default"))[0] == "default"
    assert resolved(call_of("python: send", "defaults: {queue: other}"))[0] == "other"
    _, options = resolved(call_of("python: send, limit: 3"))
    assert options.control is not None
    assert options.control.limits == (RecordedLimit(max=3),) and options.control.rates == (
        RateOption(count=2, per_us=1),
    )
    _, options = resolved(call_of("python: send, rate: {count: 9, per: 1s}"))
    assert options.control is not None and [r.count for r in options.control.rates] == [9]


def test_a_task_that_nobody_declared_keeps_what_the_flow_has() -> None:
    call = call_of("python: send, retry: 2")
    assert laid_under(None, call.queue, call.options, call.said) == (call.queue, call.options)


@task(
    name="declared_all",
    queue="mail",
    retry=Retry(5, delay="2s"),
    timeout="3s",
    heartbeat="4s",
    start_within="5s",
    finish_within="6s",
    rate=RateLimit(2, per="1s"),
    limit=Limit(1),
)
async def declared_all(to: str) -> None: ...


@task(name="declared_once", at_most_once=True)
async def declared_once() -> None: ...


@task(name="declared_default_queue", queue="default")
async def declared_default_queue() -> None: ...


@task(name="declared_nothing")
async def declared_nothing() -> None: ...


def test_a_task_declares_what_was_given_and_nothing_else() -> None:
    said = declared_all.declared
    assert said is not None and said.queue == "mail"
    assert set(said.said) == {
        "max_attempts",
        "initial_us",
        "factor",
        "cap_us",
        "jitter",
        "never",
        "on",
        "timeout_us",
        "heartbeat_us",
        "to_start_us",
        "to_close_us",
        "control",
    }
    assert said.options.initial_us == 2_000_000 and said.options.undo == ""
    assert declared.decode(declared.encode(said)) == said
    once = declared_once.declared
    assert once is not None and set(once.said) == {"max_attempts", "at_most_once"}
    assert declared_default_queue.declared == Declared(queue="default")
    assert declared_nothing.declared is None
    assert declared.decode(b'{"options": 7}') is None


def test_declarations_travel_with_signatures_whatever_room_there_is() -> None:
    signatures = {k: v for k, v in Worker(verbs=None).definitions.signatures.items() if k.startswith("declared_")}
    sent = bounded_signatures(signatures)
    schema, options = declared.split(sent["declared_all"])
    assert json.loads(schema)["properties"].keys() == {"to"} and "x-perdure" not in json.loads(schema)
    assert options is not None and declared.decode(options) == declared_all.declared
    assert declared.split(sent["declared_nothing"])[1] is None
    big: dict[str, Any] = {f"a{i}": {"description": "x" * 10_000} for i in range(TASK_SCHEMAS_BYTES_MAX // 10_000 + 1)}
    crowded = bounded_signatures({**big, **signatures})
    assert declared.split(crowded["declared_all"])[1] == options
    assert sum(map(len, crowded.values())) <= TASK_SCHEMAS_BYTES_MAX


def test_a_replay_takes_the_options_from_the_record() -> None:
    """What the task declares by then does not matter."""
    flow = compile_flow(read("flow: f\ntasks:\n  send: {python: send}\n")).flow
    first = Decider(flow, bytes(16), lambda task: DECLARED)
    began = ev.Recorded(1, 1, ev.RunStarted(workflow="f", version="1", input=b"{}"))
    [command] = first.activate([began], replay=False)
    assert isinstance(command, ScheduleTasks) and command.queue == "mail" and command.options.max_attempts == 7
    record = ev.TasksScheduled(
        command.first, command.name, command.queue, command.inputs, command.options, command.nodes, command.index
    )
    again = Decider(flow, bytes(16), lambda task: None)
    assert again.activate([began, ev.Recorded(2, 2, record)], replay=True) == []


class Options:
    """As much of a store as declared options need."""

    def __init__(self) -> None:
        self.saved: dict[str, bytes] = {}
        self.reads = 0

    async def save_task_options(self, ns: int, options: dict[str, bytes | None]) -> None:
        self.saved = {n: o for n, o in {**self.saved, **options}.items() if o is not None}

    async def task_options(self, ns: int) -> dict[str, bytes]:
        self.reads += 1
        return dict(self.saved)

    async def document(self, *_: object) -> None:
        return None


async def test_an_engine_knows_what_its_workers_and_the_database_say() -> None:
    now = [0]
    store = Options()
    flows = Flows(store, lambda: now[0])  # type: ignore[arg-type]
    assert flows.declared(1, "a") is None
    await flows.declare(1, {"a": declared.encode(DECLARED), "b": None})
    assert flows.declared(1, "a") == DECLARED and flows.declared(2, "a") is None
    flows.hear(1, {"a": b'{"type":"object"}', "b": b'{"x-perdure":{"queue":"q"}}'})  # a newer worker, not saved yet
    assert flows.declared(1, "a") is None and flows.declared(1, "b") == Declared(queue="q")
    store.saved = {"a": declared.encode(Declared(queue="newest"))}
    now[0] += HEARD_US
    reads = store.reads
    await flows.ensure([(1, "w", "flow-1"), (1, "x", "flow-2")])
    assert store.reads == reads + 1 and flows.declared(1, "a") == Declared(queue="newest")
    await flows.ensure([(1, "w", "flow-1")])
    assert store.reads == reads + 1, "what was read a moment ago is trusted"
