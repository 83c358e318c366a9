"""Decisions of flows in slices: nothing takes long at a time, and what comes of it does not depend on where the slices end."""

from __future__ import annotations

from time import thread_time
from typing import Any

import pytest

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.expressions import ExprError, parse
from perdure.core.expressions.nodes import Meter
from perdure.flows.compile import compile_value
from perdure.flows.decide import decider as decider_module
from perdure.flows.decide.decider import Decider, DecisionTooLarge
from tests.fakes.slowness import slowness

RUN_ID = bytes(16)
STALL_S = 0.05
"""What no flow may take of the event loop at a time."""
NOISE = 2.0
"""Measured times of one thing differ by this much while other tests use the machine."""
HEAVY = "${ sum(range(48000)) }"


def always() -> bool:
    return True


def begun(document: dict[str, Any], data: bytes = b"{}") -> Decider:
    decider = Decider(compile_value(document, name="x").flow, RUN_ID)
    decider.give([ev.Recorded(1, 0, ev.RunStarted("x", "flow-0", data))], replay=True)
    return decider


def ring(nodes: int, node: dict[str, Any]) -> dict[str, Any]:
    keys = [f"n{i}" for i in range(nodes)]
    return {
        "max_steps": 50000,
        "start": "n0",
        "nodes": dict.fromkeys(keys, node),
        "edges": [{"from": a, "to": b} for a, b in zip(keys, keys[1:] + keys[:1], strict=True)],
    }


ATTACKS: dict[str, dict[str, Any]] = {
    "graph of values": ring(2, {"value": HEAVY}),
    "foreach of values": {"tasks": {"n": {"foreach": "${ range(5000) }", "value": HEAVY}}},
    "foreach of tasks": {"tasks": {"n": {"foreach": "${ range(5000) }", "python": "t", "with": {"x": HEAVY}}}},
    "tasks": {"tasks": {f"t{i}": {"python": "t", "with": {"x": HEAVY}} for i in range(40)}},
    "conditions": {"tasks": {f"t{i}": {"python": "t", "when": "${ sum(range(48000)) < 0 }"} for i in range(300)}},
    "many items": {"tasks": {"n": {"foreach": "${ range(90000) }", "python": "t", "with": {"x": "${ item }"}}}},
    "wide bodies": {
        "tasks": {
            "n": {"foreach": "${ range(2000) }", "tasks": {f"t{i}": {"value": "${ input.item }"} for i in range(300)}}
        }
    },
}


@pytest.mark.parametrize("name", ATTACKS)
def test_no_step_of_a_decision_takes_long(name: str) -> None:
    decider = begun(ATTACKS[name])
    times: list[float] = []
    for _ in range(25):
        began = thread_time()
        done = decider.advance(always)
        times.append(thread_time() - began)
        if done:
            break
    # The collector may run in any one of them: the second longest tells.
    assert sorted(times)[-2] < NOISE * STALL_S * slowness(), f"{max(times):.3f} s"


def test_what_is_asked_for_does_not_depend_on_slices() -> None:
    for document in ATTACKS["tasks"], {"tasks": {"n": {"foreach": "${ range(1234) }", "python": "t"}}}:
        whole = begun(document)
        while not whole.advance(lambda: False):
            pass
        sliced = begun(document)
        commands: list[cm.Command] = []
        while not sliced.advance(always):
            commands += sliced.take()
        assert commands, "nothing was asked for before all of it was decided"
        assert commands + sliced.take() == whole.take()


def test_a_decision_that_was_cut_off_goes_on_with_the_rest_elsewhere() -> None:
    """Its first tasks are recorded, and one of them has even ended; a fresh decider asks for the others, and for none twice."""
    document = {"tasks": {f"t{i}": {"python": "t", "with": {"i": i, "x": HEAVY}} for i in range(8)}}
    whole = begun(document)
    while not whole.advance(lambda: False):
        pass
    wanted = [c for c in whole.take() if isinstance(c, cm.ScheduleTasks)]
    cut = begun(document)
    first: list[cm.ScheduleTasks] = []
    while len(first) < 3:
        assert not cut.advance(always)
        first += [c for c in cut.take() if isinstance(c, cm.ScheduleTasks)]
    events: list[ev.Event] = [ev.RunStarted("x", "flow-0", b"{}")]
    events += [ev.TasksScheduled(c.first, c.name, c.queue, c.inputs, c.options, c.nodes, c.index) for c in first]
    events.append(ev.TasksSucceeded([0], [b"1"]))
    other = Decider(whole.flow, RUN_ID)
    rest = other.activate([ev.Recorded(n + 1, 0, e) for n, e in enumerate(events)], replay=True)
    assert [*first, *rest] == wanted


def test_a_decision_without_end_is_stopped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decider_module, "FLOW_DECISION_STEPS_MAX", 1_000_000)
    decider = begun(ATTACKS["graph of values"])
    with pytest.raises(DecisionTooLarge) as caught:
        while not decider.advance(always):
            pass
    failure = caught.value.to_failure()
    assert failure.code == "decision_budget"
    for word in "after event 1 of the run", "FLOW_DECISION_STEPS_MAX=1000000", "Move the computation into a task":
        assert word in failure.message
    assert 1_000_000 < decider.spent < 1_200_000


def test_the_budget_is_that_of_one_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decider_module, "FLOW_DECISION_STEPS_MAX", 150_000)
    nodes = {f"t{i}": {"python": "t", "with": {"x": HEAVY}, "depends_on": [f"t{i - 1}"] if i else []} for i in range(4)}
    decider = Decider(compile_value({"tasks": nodes}, name="x").flow, RUN_ID)
    records: list[ev.Event] = [ev.RunStarted("x", "flow-0", b"{}"), *(ev.TasksSucceeded([n], [b"1"]) for n in range(4))]
    for n, event in enumerate(records):
        decider.activate([ev.Recorded(n + 1, 0, event)], replay=n == 0)
    assert decider.ended


def test_expressions_of_one_step_share_its_steps() -> None:
    """A node cannot be made of many expressions that each take all there is."""
    failed = begun({"tasks": {"t": {"python": "t", "with": {f"x{i}": HEAVY for i in range(50)}}}})
    while not failed.advance(always):
        pass
    (end,) = failed.take()
    assert isinstance(end, cm.FailRun) and "EXPR_STEPS_MAX" not in end.failure.message
    assert "100000 steps" in end.failure.message


def test_a_large_output_is_paid_for_when_it_is_read() -> None:
    decider = begun({"tasks": {"a": {"python": "t"}, "b": {"value": "${ size(a) }", "depends_on": ["a"]}}})
    while not decider.advance(always):
        pass
    decider.take()
    big = b"[" + b",".join([b'"' + b"x" * 98 + b'"'] * 50_000) + b"]"
    decider.give([ev.Recorded(2, 0, ev.TasksSucceeded([0], [big]))], replay=False)
    while not decider.advance(always):
        pass
    (end,) = decider.take()
    assert isinstance(end, cm.FailRun) and "reading an output of 5050001 bytes" in end.failure.message


BIG = list(range(99_000))
SCOPE: dict[str, Any] = {
    "big": BIG,
    "lists": [[i] for i in range(24_000)],
    "objs": [{"a": i, "b": [i]} for i in range(16_000)],
    "csv": ",".join(["abcd"] * 40_000),
    "json": "[" + ",".join(["1"] * 45_000) + "]",
    "text": "x" * 250_000,
    "strings": [str(i) for i in range(45_000)],
}


@pytest.mark.parametrize(
    "text",
    [
        "sum(range(49000))",
        "sort(reverse(range(5000)))",
        "unique(slice(big, 0, 16000))",
        "unique(lists)",
        "unique(objs)",
        "join(strings, ',')",
        "join(slice(big, 0, 24000), ',')",
        "json(big)",
        "json(objs)",
        "split(csv, ',')",
        "parse_json(json)",
        "objs == objs",
        "-1 in big",
        "max(big)",
        "flatten(lists)",
        " or ".join(["text contains 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxy'"] * 25),
        " and ".join(["text == text"] * 230),
    ],
)
def test_no_expression_takes_long(text: str) -> None:
    expr = parse(text)
    times: list[float] = []
    for _ in range(3):
        began = thread_time()
        try:
            expr.run(SCOPE.__getitem__, Meter())
        except ExprError as e:
            assert "steps" in str(e) or "characters" in str(e)
        times.append(thread_time() - began)
    assert min(times) < NOISE * STALL_S * slowness()
