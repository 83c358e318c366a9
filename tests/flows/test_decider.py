"""What the corpus cannot say: children that do not stop, and limits made small."""

from __future__ import annotations

import pytest
import yaml

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.errors import Failure
from perdure.core.events import label
from perdure.flows.decide import starting
from tests.flows.case import Case, Expect
from tests.flows.pure import Run, World

NOTHING = Expect(status="running", commands="")


def world(flow: str, **more: object) -> World:
    return World(Case(about="", flow=flow, expect=NOTHING, **more), "main")  # type: ignore[arg-type]


def test_a_second_cancel_ends_the_wait_for_a_child_that_does_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one asks the child to stop and waits for it, as a workflow of code does."""
    w = world(
        "tasks: {sub: {flow: worker, with: {}}}",
        flows={"worker": "tasks: {step: {with: {}}}"},
        script={"worker/step": {"hang": True}},
    )
    w.run()
    monkeypatch.setattr(Run, "ask_to_stop", lambda run, why: None)  # the child goes on
    w.main.add(ev.CancelRequested("enough"))
    w.settle()
    assert w.main.closing is None
    assert any(isinstance(r.event, ev.ChildCancelRequested) for r in w.main.history)
    w.main.add(ev.CancelRequested("now"))
    w.settle()
    assert w.main.closing == cm.CancelRun("enough")


def test_signals_that_nothing_waits_for_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.core.waits.SIGNALS_BUFFERED_MAX", 3)
    w = world("tasks: {a: {with: {}}}", script={"a": {"hang": True}})
    w.run()
    for n in range(4):
        assert w.main.decider.full == (["s"] if n >= 3 else [])
        w.main.add(ev.SignalReceived("s", b"1"))
        w.settle()
    assert w.main.closing is None, "senders are refused, the run goes on"


def test_a_spread_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "FANOUT_TASKS_MAX", 3)
    for count, fails in ((3, False), (4, True)):
        w = world(f"tasks: {{a: {{parallel: {count}, with: {{}}}}}}", script={"a[*]": {"hang": True}})
        w.run()
        assert isinstance(w.main.closing, cm.FailRun) is fails
        if fails:
            assert w.main.closing.failure.code == "limit_exceeded"  # type: ignore[union-attr]


def test_a_success_that_comes_with_the_failure_is_not_executed_again_by_a_retry() -> None:
    """Both are read in one go: the end is decided before the success is."""
    w = world("tasks: {a: {with: {}}, b: {with: {}}}", script={"a": {"hang": True}, "b": {"hang": True}})
    w.run()
    w.together = True
    seqs = {label(w.main.state.tasks[s], s): s for s in w.main.state.tasks}
    w.main.add(ev.TaskFailed(seqs["a"], Failure("task_failed", "no"), 1))
    w.main.add(ev.TasksSucceeded([seqs["b"]], [b"1"]))
    w.settle()
    assert isinstance(w.main.closing, cm.FailRun)
    w.main.retry()
    w.settle()
    assert [label(w.main.state.tasks[s], s) for s in w.main.state.tasks] == ["a"]


@pytest.mark.parametrize("count", ["-1", "true", "1.5", "'x'"])
def test_a_spread_over_what_is_no_number_of_executions_fails_its_node(count: str) -> None:
    w = world('tasks: {a: {parallel: "${ input.n }", with: {}}}', input={"n": yaml.safe_load(count)})
    w.run()
    assert isinstance(w.main.closing, cm.FailRun)
    assert "whole number" in w.main.closing.failure.message


def test_an_answer_before_the_question_is_no_approval_of_certain_people() -> None:
    flow = "tasks: {a: {with: {}}, ok: {depends_on: [a], approval: {title: sign, assignees: [ada]}}}"
    for authorized, asked in ((False, True), (True, False)):
        w = world(flow, script={"a": {"hang": True}})
        w.run()
        w.main.add(ev.PromiseResolved("ok", b"true", authorized=authorized))
        w.settle()
        seq = next(iter(w.main.state.tasks))
        w.main.add(ev.TasksSucceeded([seq], [b"1"]))
        w.settle()
        assert (w.main.closing is None) is asked


@pytest.mark.parametrize("ends", ["cancel", "failure"])
def test_nothing_is_taken_back_before_a_child_that_may_still_succeed_has_ended(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    undo = "compensate: {python: unbook, with: {}}"
    w = world(
        f"tasks: {{book: {{with: {{}}, {undo}}}, sub: {{depends_on: book, foreach: [1, 2], flow: worker, with: {{}}, {undo}}}}}",
        flows={"worker": "tasks: {step: {with: {}}}"},
        script={"worker/step": {"hang": True}, "undo:*": {"hang": True}},
    )
    w.run()
    monkeypatch.setattr(Run, "ask_to_stop", lambda run, why: None)  # the children go on
    first, second = list(w.main.state.children)
    if ends == "cancel":
        w.main.add(ev.CancelRequested("enough"))
    w.main.add(ev.ChildFailed(first, Failure("run_failed", "no")))
    w.settle()
    assert not w.main.state.tasks, "it waits for the other child"
    w.main.add(ev.ChildSucceeded(second, b"1"))
    w.settle()
    undone = [label(r.event, r.event.first) for r in w.main.history if isinstance(r.event, ev.TasksScheduled)][1:]
    assert undone == ["undo:sub[1]", "undo:book"]


def test_messages_that_come_after_the_failure_are_heard_after_a_retry() -> None:
    """They are recorded before the end is: with the failure, or while the end waits to be written."""
    w = world(
        "tasks: {a: {with: {}, retry: 1}, b: {wait: go, depends_on: [a]}, c: {approval: ok, depends_on: [a]}}",
        script={"a": {"hang": True}},
    )
    w.run()
    w.together = True
    (a,) = w.main.state.tasks
    w.main.add(ev.TaskFailed(a, Failure("task_failed", "boom"), 1))
    w.main.add(ev.SignalReceived("go", b"1"))
    w.main.add(ev.PromiseResolved("ok", b'{"approved":true}'))
    w.settle()
    assert isinstance(w.main.closing, cm.FailRun)
    w.main.retry()
    w.settle()
    (a,) = w.main.state.tasks
    w.main.add(ev.TasksSucceeded([a], [b"1"]))
    w.settle()
    assert isinstance(w.main.closing, cm.CompleteRun)


def test_messages_that_come_after_the_last_step_are_told_with_the_end() -> None:
    w = world("tasks: {a: {with: {}}}", script={"a": {"hang": True}})
    w.run()
    w.main.add(ev.SignalReceived("early", b"1"))
    w.settle()
    w.together = True
    (a,) = w.main.state.tasks
    w.main.add(ev.TasksSucceeded([a], [b"1"]))
    for message in (ev.SignalReceived("late", b"2"), ev.PromiseResolved("ok", b"3")):
        w.main.add(message)
    w.settle()
    end = w.main.closing
    assert isinstance(end, cm.CompleteRun)
    assert end.unread == [("early", b"1"), ("late", b"2")]
    late = [type(r.event) for r in w.main.history if r.seq in end.late]
    assert late == [ev.SignalReceived, ev.PromiseResolved]
