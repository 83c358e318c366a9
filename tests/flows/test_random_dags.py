"""Random dags against a reference: the decider does what the document says, in whatever order the world answers.

Of every case: the same executions with the same payloads, the same skips, the same result. And after every single activation, exactly
those executions have been asked for that are due: none before its sources are terminal, none late, none above `concurrency`, none out
of item order, none after a spread has failed fast. A decider that is rebuilt from the history asks for what the old one asks for.

    python -m tests.flows.test_random_dags --count 20000 [--first SEED]        prints the smallest document that goes wrong
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import Failure
from perdure.core.runstate import RunState
from perdure.flows.compile import compile_value
from perdure.flows.decide.decider import Decider
from tests.flows.random_dags import EPOCHS_MAX, Case, make, without_second_thoughts
from tests.flows.reference import Bad, Node, Ok, Outcome, play, same

EXAMPLES = 300
RUN_ID = ids.run_id(1_700_000_000_000, 0, 7)
TURNS_MAX = 2_000
START_US = 1_700_000_000_000_000
CODE = "task_failed"


@pytest.mark.keep
def test_random_dags_end_as_the_reference_says() -> None:
    for seed in range(EXAMPLES):
        check(make(seed), through_decider)


@pytest.mark.keep
def test_a_retried_run_comes_to_what_it_would_have_come_to_without_failures() -> None:
    for seed in range(EXAMPLES // 3):
        check(without_second_thoughts(make(seed)), through_retries)


def test_a_retry_takes_up_no_more_bodies_at_a_time_than_concurrency_allows() -> None:
    body = {"foreach": [1, 2], "concurrency": 1, "on_error": "collect", "tasks": {"p": None}}
    told = tell({"tasks": {"n": body}}, [failed(0), failed(1), ev.RunRetried(0, [], []), well(2), well(3)])
    assert told == [["n[0].p"], ["n[1].p"], ["FailRun"], ["n[0].p"], ["n[1].p"], ["CompleteRun"]]


def test_a_retry_remembers_a_body_that_ended_in_the_moment_its_spread_failed() -> None:
    body = {"foreach": [1, 2], "tasks": {"p": None, "q": None}}
    told = tell({"tasks": {"n": body}}, [failed(0), well(2), well(1, 3), ev.RunRetried(0, [], []), well(4)])
    assert told == [["n[0].p", "n[0].q", "n[1].p", "n[1].q"], [], [], ["FailRun"], ["n[0].p"], ["CompleteRun"]]


def test_a_retry_decides_a_cleanup_anew_when_what_it_waits_for_has_ended() -> None:
    tasks = {"a": None, "b": {"depends_on": "a", "run_if": "any_failed"}}
    told = tell({"tasks": tasks}, [failed(0), failed(1), ev.RunRetried(0, [], []), well(2)])
    assert told == [["a"], ["b"], ["FailRun"], ["a"], ["SkipTasks", "CompleteRun"]]


def test_a_retry_does_not_execute_what_had_succeeded_before_it_could_be_stopped() -> None:
    decider = Decider(compile_value({"tasks": {"n": {"foreach": [1, 2]}}}, name="x").flow, RUN_ID)
    start = ev.Recorded(1, START_US, ev.RunStarted("x", "flow-x", b"{}"))
    decider.activate([start], replay=True)
    facts = [ev.Recorded(n, START_US, e) for n, e in ((3, failed(1)), (4, well(0)))]
    (_, end) = decider.activate(facts, replay=False)
    assert isinstance(end, cm.FailRun)
    (again,) = decider.activate([ev.Recorded(6, START_US, ev.RunRetried(0, [], []))], replay=False)
    assert isinstance(again, cm.ScheduleTasks)
    assert (again.nodes, again.index, len(again.inputs)) == (["n"], 1, 1)


def tell(document: dict[str, Any], facts: list[ev.Event]) -> list[list[str]]:
    """One fact at a time; answers what each leads to: labels of executions, and names of other commands."""
    decider = Decider(compile_value(document, name="x").flow, RUN_ID)
    out: list[list[str]] = []
    for number, fact in enumerate([ev.RunStarted("x", "flow-x", b"{}"), *facts], 1):
        commands = decider.activate([ev.Recorded(number, START_US + number, fact)], replay=False)
        out.append([c.nodes[0] if isinstance(c, cm.ScheduleTasks) else type(c).__name__ for c in commands])
    return out


def failed(seq: int) -> ev.Event:
    return ev.TaskFailed(seq, Failure(CODE, "boom"), 1)


def well(*seqs: int) -> ev.Event:
    return ev.TasksSucceeded(list(seqs), [b"1"] * len(seqs))


# -- the reference itself, against dags worked out by hand ---------------------------------------------------------------


def scripted(**ends: Any) -> Callable[[str], Ok | Bad]:
    """What is not named returns its own label; an exception is a failure."""
    return lambda label: Bad(label) if ends.get(label) is Bad else Ok(ends.get(label, label))


def statuses(outcome: Outcome) -> dict[str, str]:
    return {label: "tainted" if node.tainted else node.status for label, node in outcome.nodes.items()}


def after(source: str, run_if: str) -> dict[str, Any]:
    return {"depends_on": source, "run_if": run_if}


def test_reference_skips_after_a_failure_as_run_if_says() -> None:
    tasks = {"a": None, "b": {"depends_on": "a"}, "c": {"depends_on": ["a", "b"]}}
    tasks |= {run_if: after("c", run_if) for run_if in ("all_success", "none_failed", "any_failed", "always")}
    assert statuses(play({"tasks": tasks}, None, scripted(a=Bad))) == {
        "a": "failed",
        "b": "tainted",
        "c": "tainted",
        "all_success": "tainted",
        "none_failed": "tainted",
        "any_failed": "success",
        "always": "success",
    }
    well = play({"tasks": tasks}, {"x": 1}, scripted(a={"y": 2}))
    assert statuses(well) == {**dict.fromkeys(tasks, "success"), "any_failed": "skipped"}
    assert well.calls["c"] == ("c", {"**": {"x": 1, "y": 2, "a": {"y": 2}, "b": "b"}})
    assert well.result == {"all_success": "all_success", "none_failed": "none_failed", "always": "always"}


def test_reference_takes_one_way_of_a_choice_and_joins_again() -> None:
    ways = [{"when": "a.n == 1", "then": ["b", "c"]}, {"when": "a.n == 2", "name": "two"}, {"else": "d"}]
    join = {run_if: {"depends_on": ["b", "d"], "run_if": run_if} for run_if in ("all_success", "none_failed", "always")}
    tasks = {"a": None, "pick": {"depends_on": "a", "choice": ways}, "b": None, "c": None, "d": None, **join}
    first = play({"tasks": tasks}, None, scripted(a={"n": 1}))
    ran = {"all_success": "skipped", "none_failed": "success", "always": "success"}
    assert statuses(first) == {"a": "success", "pick": "success", "b": "success", "c": "success", "d": "skipped", **ran}
    assert (first.nodes["pick"].output, first.calls["always"][1]) == ("b", {"**": {"b": "b", "d": None}})
    second = play({"tasks": tasks}, None, scripted(a={"n": 2}))
    assert {k for k, s in statuses(second).items() if s == "success"} == {"a", "pick", "always"}
    third = play({"tasks": tasks}, None, scripted(a={"n": 3}, d=Bad))
    assert statuses(third)["none_failed"] == "tainted"
    assert statuses(play({"tasks": tasks}, None, scripted(a=Bad)))["b"] == "tainted"


def test_reference_spreads_and_fails_as_on_error_says() -> None:
    tasks: dict[str, Any] = {"a": None}
    for how in ("fail_fast", "collect", "ignore"):
        tasks[how] = {"depends_on": "a", "foreach": "a.files", "on_error": how, "concurrency": 2}
    tasks |= {"none": {"foreach": []}, "odd": {"depends_on": "a", "foreach": "${a.missing}", "on_error": "ignore"}}
    tasks["sum"] = {"depends_on": ["ignore", "none", "odd"], "run_if": "always", "value": ["${ignore}", "${none}"]}
    bad = {f"{how}[1]": Bad for how in ("fail_fast", "collect", "ignore")}
    out = play({"tasks": tasks}, None, scripted(a={"files": ["p", "q", "r"]}, **bad))
    assert statuses(out) == {
        "a": "success",
        "fail_fast": "failed",
        "collect": "failed",
        "ignore": "success",
        "none": "success",
        "odd": "failed",
        "sum": "success",
    }
    assert out.optional == {"fail_fast[0]", "fail_fast[1]", "fail_fast[2]"}
    assert out.nodes["sum"].output == [["ignore[0]", None, "ignore[2]"], []]
    assert out.calls["collect[2]"] == ("collect", {"**": {"item": "r", "parallel_index": 2, "parallel_count": 3}})
    assert not out.succeeded


def test_reference_gives_an_embedded_body_its_own_scope() -> None:
    inner = {"x": {"with": {"v": "${input.item}"}}, "y": {"depends_on": "x"}}
    tasks = {
        "a": None,
        "b": {"depends_on": "a", "foreach": [7, 8], "tasks": inner, "output": "${y}", "on_error": "ignore"},
    }
    out = play({"tasks": tasks}, None, scripted(**{"b[1].x": Bad}))
    assert out.calls["b[0].x"] == ("x", {"v": 7})
    item = {"a": "a", "item": 7, "parallel_index": 0, "parallel_count": 2}
    assert out.calls["b[0].y"] == ("y", {"**": {**item, "x": "b[0].x"}})
    assert statuses(out)["b[1].y"] == "tainted"
    assert (out.succeeded, out.result) == (True, {"b": ["b[0].y", None]})


def test_reference_evaluates_when_after_run_if_and_a_false_one_is_no_failure() -> None:
    tasks = {"a": {"when": "input.go == true"}, "b": after("a", "none_failed"), "c": after("a", "always")}
    assert statuses(play({"tasks": tasks}, {"go": False}, scripted())) == {
        "a": "skipped",
        "b": "skipped",
        "c": "success",
    }


# -- a case ------------------------------------------------------------------------------------------------------------


class Seen(msgspec.Struct):
    """What was observed of a whole run."""

    calls: dict[str, tuple[str, Any]] = {}
    skipped: list[str] = []
    succeeded: bool = False
    result: Any = None
    failure: Failure | None = None


Way = Callable[[Case, Outcome], None]
"""Carries a case out and compares. There are two here; a test with an engine brings its own, with tasks that ask `case.script`
for their label's end, and hands `compare` what it has seen."""


def check(case: Case, way: Way) -> None:
    expected = play(case.document, case.given, case.script)
    try:
        way(case, expected)
    except Exception as e:
        e.add_note(f"seed {case.seed}, input {case.given!r}:\n{json.dumps(case.document)}")
        raise


def compare(expected: Outcome, seen: Seen) -> None:
    """Whatever does not depend on the order in which tasks ended."""
    must = expected.calls.keys() - expected.optional
    assert seen.calls.keys() >= must, f"never executed: {must - seen.calls.keys()}"
    assert seen.calls.keys() <= expected.calls.keys(), f"executed: {seen.calls.keys() - expected.calls.keys()}"
    for label, call in seen.calls.items():
        assert same(call, expected.calls[label]), f"{label}: expected {expected.calls[label]}, got {call}"
    skips = {label for label, node in expected.nodes.items() if node.status == "skipped"}
    assert len(set(seen.skipped)) == len(seen.skipped), f"skipped twice: {seen.skipped}"
    assert skips - expected.optional <= set(seen.skipped) <= skips, f"skipped: {seen.skipped}, expected {skips}"
    assert seen.succeeded == expected.succeeded, seen.failure
    assert same(seen.result, expected.result), f"result: expected {expected.result}, got {seen.result}"


# -- what is due ---------------------------------------------------------------------------------------------------------


class Due:
    """Which executions should have been asked for, given those that have ended. One look at one moment."""

    def __init__(self, expected: Outcome, ended: set[str]) -> None:
        self.expected, self.ended = expected, ended
        self.known: dict[str, bool] = {}
        self.calls: set[str] = set()
        self.called_off: set[str] = set()
        """Nodes that have failed fast; nothing more of them may be asked for."""
        self.failed: set[str] = set()
        self.walk("")

    def walk(self, prefix: str) -> None:
        for label in children(self.expected, prefix):
            node = self.expected.nodes[label]
            if not all(self.is_terminal(s) for s in node.sources):
                continue
            self.failed |= {label} if node.status == "failed" and self.is_terminal(label) else set()
            if node.fast and self.is_terminal(label):
                self.called_off.add(label)
            else:
                self.begin(node)

    def of_called_off(self, call: str) -> bool:
        return any(call.startswith(f"{label}[") for label in self.called_off)

    def begin(self, node: Node) -> None:
        in_flight = 0
        for run in node.runs:
            if node.limit is not None and in_flight >= node.limit:
                return
            if run in self.expected.calls:
                self.calls.add(run)
            else:
                self.walk(run + ".")
            in_flight += not self.has_ended(run)

    def is_terminal(self, label: str) -> bool:
        if label not in self.known:
            node = self.expected.nodes[label]
            self.known[label] = all(self.is_terminal(s) for s in node.sources) and self.is_over(node)
        return self.known[label]

    def is_over(self, node: Node) -> bool:
        if node.fast:
            return any(self.has_ended(run) and not self.expected.ends[run] for run in node.runs)
        return all(self.has_ended(run) for run in node.runs)

    def has_ended(self, run: str) -> bool:
        if run in self.expected.calls:
            return run in self.ended
        return all(self.is_terminal(label) for label in children(self.expected, run + "."))


def children(expected: Outcome, prefix: str) -> Iterator[str]:
    return (label for label in expected.nodes if label.startswith(prefix) and "." not in label[len(prefix) :])


# -- the decider ---------------------------------------------------------------------------------------------------------


def through_decider(case: Case, expected: Outcome) -> None:
    compare(expected, Drive(case, expected).start().to_the_end())


def through_retries(case: Case, expected: Outcome) -> None:
    """Retried until nothing fails that does not fail for ever."""
    drive = Drive(case, expected).start()
    drive.polite = True
    compare(expected, drive.to_the_end())
    while isinstance(drive.closed, cm.FailRun) and case.epoch < EPOCHS_MAX:
        case = replace(case, epoch=case.epoch + 1)
        expected = play(case.document, case.given, case.script)
        compare(expected, drive.retry(case, expected).to_the_end())


class Drive:
    """Plays the engine and the workers around a decider: records what it asks for, answers in a random order."""

    def __init__(self, case: Case, expected: Outcome) -> None:
        self.case, self.expected = case, expected
        self.flow = compile_value(case.document, name="x").flow
        self.rng = random.Random(f"{case.seed} drive")
        self.decider = Decider(self.flow, RUN_ID)
        self.state = RunState()
        self.history: list[ev.Recorded] = []
        self.fresh: list[ev.Recorded] = []
        """Facts that the decider has not been told."""
        self.labels: dict[int, str] = {}
        self.next_seq = 0
        self.ended: set[str] = set()
        self.kept: set[str] = set()
        """What has succeeded before the last retry."""
        self.polite = False
        """Nothing is heard any more of tasks whose spread has failed, though the failure be untold yet."""
        self.seen = Seen({}, [])
        self.first_failed: set[str] = set()
        self.closed: cm.Command | None = None

    def start(self) -> Drive:
        self.add(ev.RunStarted("x", "flow-x", msgspec.json.encode(self.case.given)))
        self.turn(start=True)
        return self

    def retry(self, case: Case, expected: Outcome) -> Drive:
        """The failed run goes on: what has succeeded and what was skipped for no failure stays, everything else is open again."""
        assert isinstance(self.closed, cm.FailRun)
        self.add(ev.RunFailed(self.closed.failure, self.closed.cause))
        self.add(ev.RunRetried(0, [], []))
        self.kept = {label for label in self.ended if self.expected.ends[label]}
        untouched = [label for label in self.seen.skipped if not self.expected.nodes[label].tainted]
        self.seen = Seen({label: call for label, call in self.seen.calls.items() if label in self.kept}, untouched)
        self.case, self.expected, self.ended, self.first_failed, self.closed = (
            case,
            expected,
            set(self.kept),
            set(),
            None,
        )
        self.fresh = self.history[-1:]
        self.turn()
        return self

    def to_the_end(self) -> Seen:
        for _ in range(TURNS_MAX):
            if self.closed is not None:
                break
            assert self.state.tasks or self.fresh, f"the run hangs; ended: {self.ended}, skipped: {self.seen.skipped}"
            for _ in range(self.rng.choice((1, 1, 1, 2, 4))):
                self.answer()
            self.turn()
        assert self.closed is not None, (
            f"no end after TURNS_MAX={TURNS_MAX} turns; {set(self.labels.values()) - self.ended} are outstanding"
        )
        assert not self.state.tasks, f"left behind: {[self.labels[s] for s in self.state.tasks]}"
        assert self.decider.ended
        self.conclude(self.closed)
        return self.seen

    # -- the world ----------------------------------------------------------------------------------------------------

    def add(self, event: ev.Event) -> None:
        self.state.apply(event)
        record = ev.Recorded(len(self.history) + 1, START_US + 1000 * len(self.history), event)
        self.history.append(record)
        if isinstance(event, ev.FACTS):
            self.fresh.append(record)

    def answer(self) -> None:
        """One fact: a task has failed, or some have succeeded."""
        outstanding = list(self.state.tasks)
        if self.polite:
            off = Due(self.expected, self.ended | self.untold()).of_called_off
            outstanding = [seq for seq in outstanding if not off(self.labels[seq])]
        if not outstanding:
            return
        one = self.rng.choice(outstanding)
        end = self.case.script(self.labels[one])
        if isinstance(end, Bad):
            self.add(ev.TaskFailed(one, Failure(CODE, end.message), 1))
            return
        ends = {seq: self.case.script(self.labels[seq]) for seq in outstanding}
        well = [seq for seq in outstanding if seq != one and isinstance(ends[seq], Ok)]
        many = [one, *self.rng.sample(well, self.rng.randint(0, len(well)) if self.rng.random() < 0.4 else 0)]
        self.add(ev.TasksSucceeded(many, [msgspec.json.encode(ends[seq].value) for seq in many]))  # type: ignore[union-attr]

    def untold(self) -> set[str]:
        """What has ended without the decider's knowing."""
        return {self.labels[seq] for record in self.fresh for seq in ends_in(record.event)}

    def turn(self, start: bool = False) -> None:
        """Tell the decider what is new and record what it wants; now and then another one takes over."""
        news, before = self.untold(), set(self.seen.calls)
        facts, self.fresh = self.fresh, []
        self.ended |= news
        commands = self.lively(self.decider.activate(facts, replay=start and self.rng.random() < 0.5))
        if self.rng.random() < 0.15:
            again = self.reload()
            assert again == commands, f"after a reload:\n  expected {commands}\n  got      {again}"
        if self.rng.random() < 0.1:
            self.answer()  # the world does not wait for the commands to be recorded
        for command in commands:
            self.record(command)
        if self.rng.random() < 0.05 and self.closed is None and not self.fresh:
            again = self.reload()
            assert again == [], f"asked for again: {again}"
        self.check_due(before, alone=len(news) == 1)

    def reload(self) -> list[cm.Command]:
        """A fresh decider takes over, and is told the whole history."""
        self.decider = Decider(self.flow, RUN_ID)
        return self.lively(self.decider.activate(self.history, replay=True))

    def lively(self, commands: list[cm.Command]) -> list[cm.Command]:
        """Without the cancelling of what has ended meanwhile, which an engine drops."""
        wanted = [c for c in commands if isinstance(c, cm.ScheduleTasks)]
        live = self.state.tasks.keys() | {c.first + k for c in wanted for k in range(len(c.inputs))}
        out: list[cm.Command] = []
        for c in commands:
            if isinstance(c, cm.CancelTasks):
                seqs = [s for s in c.seqs if s in live]
                out += [cm.CancelTasks(seqs)] if seqs else []
            else:
                out.append(c)
        return out

    def record(self, c: cm.Command) -> None:
        assert self.closed is None, f"{c} after the end"
        match c:
            case cm.ScheduleTasks():
                self.take(c.first, len(c.inputs))
                for k, payload in enumerate(c.inputs):
                    label = c.nodes[k] if c.index < 0 else f"{c.nodes[0]}[{c.index + k}]"
                    assert label not in self.seen.calls, f"{label} is asked for twice"
                    assert label in self.expected.calls, f"{label} should not run"
                    self.labels[c.first + k] = label
                    self.seen.calls[label] = (c.name, msgspec.json.decode(payload))
                self.add(ev.TasksScheduled(c.first, c.name, c.queue, c.inputs, c.options, c.nodes, c.index))
            case cm.SkipTasks():
                self.take(c.first, len(c.nodes))
                self.seen.skipped += c.nodes
                self.add(ev.TasksSkipped(c.first, c.nodes, c.reason))
            case cm.CancelTasks():
                for seq in c.seqs:
                    assert self.labels[seq] in self.expected.optional, f"{self.labels[seq]} is cancelled for no reason"
                live = [seq for seq in c.seqs if seq in self.state.tasks]
                if live:
                    self.add(ev.TasksCancelled(live))
            case cm.CompleteRun() | cm.FailRun():
                self.closed = c
            case _:
                raise AssertionError(f"unexpected: {c}")

    def take(self, first: int, count: int) -> None:
        assert first == self.next_seq, f"task {first} comes after task {self.next_seq - 1}"
        self.next_seq += count

    # -- what has to hold -----------------------------------------------------------------------------------------------

    def check_due(self, before: set[str], alone: bool) -> None:
        due = Due(self.expected, self.ended)
        late = {label for label in self.seen.calls if due.of_called_off(label)}
        if alone:
            # Of several ends the first may still have led to more executions, before the next called them off. And a spread that
            # fails in the moment it begins, because a body within fails at once, may have begun with others.
            for label in due.called_off:
                mine = {call for call in self.seen.calls if call.startswith(f"{label}[")}
                assert mine <= before or not mine & before, f"{label} had failed and began {mine - before}"
        asked, wanted = self.seen.calls.keys() - late - self.kept, due.calls - self.kept
        assert asked == wanted, f"too late: {wanted - asked}, too early: {asked - wanted}"
        for label in due.called_off:
            runs = self.expected.nodes[label].runs
            begun = [any(c == run or c.startswith(run + ".") for c in self.seen.calls) for run in runs]
            if all(run in self.expected.calls for run in runs):
                assert begun == sorted(begun, reverse=True), f"not in item order: {label} {begun}"
        if not self.first_failed:
            self.first_failed = {label for label in due.failed if "." not in label}

    def conclude(self, end: cm.Command) -> None:
        if isinstance(end, cm.CompleteRun):
            self.seen.succeeded, self.seen.result = True, msgspec.json.decode(end.result)
            return
        assert isinstance(end, cm.FailRun)
        self.seen.failure = end.failure
        self.check_failure(end.failure)
        if end.cause:
            blamed = self.history[end.cause - 1].event
            assert isinstance(blamed, (*ev.FACTS, ev.RunRetried)), f"the failure is blamed on {blamed}"

    def check_failure(self, failure: Failure) -> None:
        """It is that of a node that failed first; of several in one activation, any."""
        nodes = self.expected.nodes
        within = [n for n in nodes for f in self.first_failed if n == f or n.startswith((f + ".", f + "["))]
        if failure.code == "expression_error":
            assert any(nodes[n].status == "failed" and not nodes[n].runs for n in within), failure
            return
        signs = tuple(f"<{f}{sign}" for f in self.first_failed for sign in ">.[")
        assert any(sign in failure.message for sign in signs), f"first failed: {self.first_failed}, told: {failure}"


def ends_in(event: ev.Event) -> list[int]:
    match event:
        case ev.TasksSucceeded():
            return event.seqs
        case ev.TaskFailed():
            return [event.seq]
        case _:
            return []


# -- the smallest document that goes wrong -----------------------------------------------------------------------------------


def trouble(case: Case, way: Way) -> str | None:
    """The kind of what goes wrong, to tell it from other things: type and first words."""
    try:
        check(case, way)
    except Exception as e:
        return f"{type(e).__name__} {' '.join(re.sub('[0-9]', '', str(e)).split()[:4])[:24]}"
    return None


def shrink(case: Case, way: Way) -> Case:
    """Leave out nodes and keys as long as it goes wrong in the same way."""
    wrong = trouble(case, way)
    smaller: Case | None = case
    while smaller is not None:
        case = smaller
        candidates = (replace(case, document=document) for document in reductions(case.document))
        smaller = next((c for c in candidates if trouble(c, way) == wrong), None)
    return case


def reductions(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in paths(document):
        smaller = copy.deepcopy(document)
        at: Any = smaller
        for step in path[:-1]:
            at = at[step]
        del at[path[-1]]
        if path[-2:-1] == ("tasks",):
            for node in filter(None, at.values()):
                forget(node, path[-1])
        yield smaller


def paths(at: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything in a document, the large before the small."""
    if isinstance(at, dict | list):
        below = [(*here, key) for key in (at if isinstance(at, dict) else range(len(at)))]
        yield from (path for path in below if path not in (("tasks",), ("flow",)))
        for path in below:
            yield from paths(at[path[-1]], path)


def forget(node: dict[str, Any], gone: str) -> None:
    if isinstance(node.get("depends_on"), list):
        node["depends_on"] = [d for d in node["depends_on"] if d != gone]
    if isinstance(node.get("with"), dict):
        node["with"].pop(gone, None)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=EXAMPLES)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    began, kinds = time.monotonic(), dict[str, int]()
    for seed in range(args.first, args.first + args.count):
        case = make(seed)
        for subject, way in ((case, through_decider), (without_second_thoughts(case), through_retries)):
            wrong = trouble(subject, way)
            if wrong is None:
                continue
            kinds[wrong] = kinds.get(wrong, 0) + 1
            if kinds[wrong] == 1:
                report(shrink(subject, way), way)
    print(f"{args.count} dags in {time.monotonic() - began:.0f} s; wrong: {kinds or 'none'}")
    return 1 if kinds else 0


def report(case: Case, way: Way) -> None:
    print(f"seed {case.seed}, {way.__name__}: {json.dumps(case.document)}")
    try:
        check(case, way)
    except Exception:
        traceback.print_exc(limit=-2, file=sys.stdout)
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
