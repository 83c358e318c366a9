"""The words for what a run waits for, their order, and what is recorded of them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.approvals import Spec, encode_spec
from perdure.core.flow_control.admission import QueueReason
from perdure.core.named_events import wait_spec
from perdure.core.retry import TaskOptions
from perdure.core.runstate import RunState
from perdure.core.wait_reasons import (
    CODES,
    NAMES_COUNTED,
    TASK_CODES,
    WAITS_MAX,
    TaskWaiting,
    WaitReason,
    about_to_start,
    backlog,
    decode,
    encode,
    moment,
    no_code,
    no_version,
    of_reason,
    of_run,
    of_task,
    ordered,
    run_paused,
    sentence,
    start_time,
    stuck,
    task_names,
)

NOON_US = 1_767_268_800_000_000
"""2026-01-01 12:00 UTC."""
NOON = "2026-01-01 12:00:00 UTC"
RUNS = [ids.run_id(1_700_000_000_000, 0, n) for n in range(30)]


def state(*events: ev.Event) -> RunState:
    out = RunState()
    for event in (ev.RunStarted("w", "1", b"{}"), *events):
        out.apply(event)
    return out


def tasks(first: int, name: str = "t", count: int = 1) -> ev.TasksScheduled:
    return ev.TasksScheduled(first, name, "default", [b"{}"] * count, TaskOptions())


def child(seq: int) -> ev.ChildStarted:
    return ev.ChildStarted(seq, RUNS[seq], "inner", b"{}")


def approval(name: str, seq: int = 0, **fields: Any) -> ev.PromiseCreated:
    spec = encode_spec(Spec(title="ok?", quorum=1, reject_quorum=1, **fields))
    return ev.PromiseCreated(seq, name, spec, ev.PromiseKind.APPROVAL)


def event_wait(match: str = "") -> ev.PromiseCreated:
    return ev.PromiseCreated(0, "event:paid:1", wait_spec("paid", match, {}), ev.PromiseKind.EVENT)


def waits(*codes: str) -> list[WaitReason]:
    return [WaitReason(on=code, text=f"{code} {n}") for n, code in enumerate(codes)]


# -- what a run waits for ------------------------------------------------------------------------------------------------


def test_a_run_that_waits_for_nothing_has_no_reasons() -> None:
    assert of_run(state()) == []
    assert sentence([]) == ""
    assert encode([]) == (None, None)
    assert decode(None) == decode("") == []


@pytest.mark.parametrize(
    ("created", "expected"),
    [
        (ev.PromiseCreated(0, "p"), WaitReason(on="promise", text="the promise 'p'", name="p")),
        (event_wait(), WaitReason(on="event", text="an event 'paid'", name="paid")),
        (
            event_wait("event.order == 7"),
            WaitReason(on="event", text="an event 'paid' that matches event.order == 7", name="paid"),
        ),
        (approval("ok"), WaitReason(on="approval", text="the approval 'ok' by anyone", name="ok")),
        (
            approval("ok", assignees=["ann", "bob"], deadline_us=5),
            WaitReason(on="approval", text="the approval 'ok' by ann, bob", name="ok", by=("ann", "bob"), until_us=5),
        ),
    ],
)
def test_a_promise_is_waited_for_until_it_is_resolved(created: ev.PromiseCreated, expected: WaitReason) -> None:
    assert of_run(state(created)) == [expected]
    assert of_run(state(created, ev.PromiseResolved(created.name, b"1"))) == []


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        ("signal:go", WaitReason(on="signal", text="a signal 'go'", name="go")),
        ("update:change", WaitReason(on="update", text="an update 'change'", name="change")),
        ("signal:a:b", WaitReason(on="signal", text="a signal 'a:b'", name="a:b")),
        ("go", WaitReason(on="signal", text="a signal 'go'", name="go")),
        ("other:go", WaitReason(on="signal", text="a signal 'other:go'", name="other:go")),
    ],
)
def test_what_the_code_listens_for_is_a_signal_unless_it_says_update(one: str, expected: WaitReason) -> None:
    assert of_run(state(), [one]) == [expected]


def test_children_are_told_by_their_ids_and_not_too_many() -> None:
    text = ids.text(RUNS[0])
    assert of_run(state(child(0))) == [WaitReason(on="child", text=f"child run {text}", runs=(text,))]
    assert of_run(state(child(0), ev.ChildSucceeded(0, b"1"))) == []
    found = of_run(state(*(child(n) for n in range(WAITS_MAX + 5))))
    assert [w.runs for w in found] == [(ids.text(r),) for r in RUNS[:WAITS_MAX]]


@pytest.mark.parametrize(
    ("scheduled", "text", "count"),
    [
        ((tasks(0),), "the task t", 0),
        ((tasks(0, count=2),), "2 tasks: t (2)", 1),
        ((tasks(0, "a"), tasks(1, "b", 2)), "3 tasks: b (2), a", 2),
        ((tasks(0, "a"), tasks(1, "b"), tasks(2, "c")), "3 tasks: a, b, c", 2),
        ((tasks(0, "a"), tasks(1, "b"), tasks(2, "c"), tasks(3, "d")), "4 tasks: a, b, c, ...", 3),
        ((tasks(0, count=NAMES_COUNTED),), "1,000 tasks: t (1,000)", 999),
    ],
)
def test_tasks_are_counted_by_name_with_the_most_frequent_first(
    scheduled: tuple[ev.TasksScheduled, ...], text: str, count: int
) -> None:
    assert of_run(state(*scheduled)) == [WaitReason(on="task", text=text, count=count)]


def test_the_names_of_the_first_unfinished_tasks_are_counted() -> None:
    many = state(tasks(0, "a", 2), tasks(2, "b", NAMES_COUNTED), ev.TasksSucceeded([0], [b"1"]))
    assert task_names(many) == {"a": 1, "b": NAMES_COUNTED - 1}
    (found,) = of_run(many)
    assert (found.text, found.count) == ("1,001 tasks: b (999), a", NAMES_COUNTED)


def test_a_node_waits_for_the_nodes_before_it() -> None:
    found = of_run(state(), blocked=[("d", ["a", "b"]), ("e", ["a", "b", "c", "d"])])
    assert found == [
        WaitReason(on="dependency", text="node 'a', 'b' to end before 'd' begins", name="d", by=("a", "b")),
        WaitReason(
            on="dependency",
            text="node 'a', 'b', 'c', ... to end before 'e' begins",
            name="e",
            by=("a", "b", "c", "d"),
        ),
    ]


def test_of_several_timers_the_first_to_fire_is_told() -> None:
    one = ev.TimerStarted(0, NOON_US + 1_000_000)
    expected = WaitReason(on="timer", text=f"a timer until {NOON}", until_us=NOON_US)
    assert of_run(state(ev.TimerStarted(1, NOON_US))) == [expected]
    assert of_run(state(one, ev.TimerStarted(1, NOON_US))) == [msgspec.structs.replace(expected, count=1)]


def test_a_run_gives_all_its_reasons() -> None:
    found = of_run(
        state(ev.TimerStarted(0, NOON_US), tasks(0), child(0), approval("ok")), ["signal:go"], [("b", ["a"])]
    )
    assert [w.on for w in found] == ["approval", "signal", "child", "task", "dependency", "timer"]


# -- what tasks wait for -------------------------------------------------------------------------------------------------


def waiting(**fields: Any) -> TaskWaiting:
    given: dict[str, Any] = {
        "name": "t",
        "queue": "q",
        "attempt": 1,
        "lost": 0,
        "max_attempts": 3,
        "run_at_us": 0,
        "now_us": NOON_US - 1,
        "reason": None,
        "served": True,
    }
    return TaskWaiting(**given | fields)


PAUSED = QueueReason(code="paused", key="queue q", by="ann")


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (
            waiting(run_at_us=NOON_US, attempt=3, lost=1, reason=PAUSED),
            WaitReason(on="retry", text=f"attempt 2 of 3 of the task 't' at {NOON}", name="t", until_us=NOON_US),
        ),
        (
            waiting(run_at_us=NOON_US, node="n", served=False),
            WaitReason(on="timer", text=f"the task 'n' to begin at {NOON}", name="n", until_us=NOON_US),
        ),
        (
            waiting(run_at_us=NOON_US, now_us=NOON_US, attempt=2, reason=PAUSED, served=False, node="n"),
            WaitReason(on="paused", text="queue q to be resumed, paused by ann", name="n", key="queue q", by=("ann",)),
        ),
        (
            waiting(served=False, node="n"),
            WaitReason(
                on="no_worker", text="a worker that serves the task 't' on queue 'q': none is connected", name="n"
            ),
        ),
        (
            waiting(),
            WaitReason(
                on="slot",
                text="a free slot for the task 't': all workers that serve it on queue 'q' are busy",
                name="t",
            ),
        ),
    ],
)
def test_a_task_gives_the_first_reason_that_keeps_it(task: TaskWaiting, expected: WaitReason) -> None:
    assert of_task(task) == expected


@pytest.mark.parametrize(
    ("held", "most", "told"),
    [
        (0, 2, ""),
        (1, 1, ", held by {0}"),
        (2, 5, ", held by {0}, {1}"),
        (3, 3, ", held by {0}, {1}, {2}"),
        (3, 4, ", held by {0}, {1}, {2}, ..."),
    ],
)
def test_a_limit_tells_who_holds_it(held: int, most: int, told: str) -> None:
    runs = tuple(ids.text(r) for r in RUNS[:held])
    reason = QueueReason(code="limit", key="per user", max=most, holders=tuple(r.hex() for r in RUNS[:held]))
    assert of_reason(reason, "t") == WaitReason(
        on="limit",
        text=f"the limit per user of {most} at a time{told.format(*runs)}",
        name="t",
        key="per user",
        runs=runs,
    )


def test_a_rate_tells_when_it_is_refilled_and_a_pause_who_made_it() -> None:
    assert of_reason(QueueReason(code="rate", key="mails", until_us=NOON_US), "t") == WaitReason(
        on="rate", text=f"the rate of mails, refilled at {NOON}", name="t", key="mails", until_us=NOON_US
    )
    assert of_reason(QueueReason(code="paused", key="task t", by="ann", text="too hot")) == WaitReason(
        on="paused", text="task t to be resumed, paused by ann: too hot", key="task t", by=("ann",)
    )


def test_a_backlog_names_the_three_most_frequent_tasks() -> None:
    assert backlog(Counter({"a": 1, "b": 1_200, "c": 3, "d": 2})) == WaitReason(
        on="slot", text="a free slot for b (1,200), c (3), d (2): all workers that serve it are busy"
    )
    assert backlog(Counter({"a": 1})).text == "a free slot for a: all workers that serve it are busy"


# -- what keeps a whole run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (stuck("ValueError: x\nTraceback"), WaitReason(on="stuck", text="a manual resume: ValueError: x")),
        (
            run_paused("ann", None),
            WaitReason(on="paused", text="the run to be resumed, paused by ann", by=("ann",)),
        ),
        (
            run_paused("ann", "lunch"),
            WaitReason(on="paused", text="the run to be resumed, paused by ann: lunch", by=("ann",)),
        ),
        (start_time(NOON_US), WaitReason(on="timer", text=f"its start at {NOON}", until_us=NOON_US)),
        (
            no_code("w", "1"),
            WaitReason(
                on="version", text="a worker that has version 1 of the workflow 'w': none is connected", name="w"
            ),
        ),
        (
            about_to_start("w"),
            WaitReason(on="slot", text="a worker that serves the workflow 'w' to take it up", name="w"),
        ),
    ],
)
def test_a_run_that_is_kept_from_running_says_by_what(found: WaitReason, expected: WaitReason) -> None:
    assert found == expected


def test_a_run_without_a_worker_for_its_version_says_how_to_move_it() -> None:
    found = no_version("w", "1")
    assert (found.on, found.name, found.key) == ("no_worker_for_version", "w", "1")
    assert found.text.startswith("a worker that serves version 1 of the workflow 'w', to which it is pinned: none")
    assert found.text.endswith("or move its runs: perdure versions move w 1 --to VERSION")


def test_moments_are_told_to_the_second_in_utc() -> None:
    assert moment(NOON_US + 999_999) == NOON
    assert moment(0) == "1970-01-01 00:00:00 UTC"


# -- several reasons -----------------------------------------------------------------------------------------------------


def test_the_most_telling_reason_comes_first_and_gives_the_word() -> None:
    given = waits("timer", "task", "approval", "child")
    word, text = encode(given)
    assert word == "approval"
    assert decode(text) == [given[2], given[3], given[1], given[0]] == ordered(given)
    for first, second in pairwise(CODES):
        assert encode(waits(second, first))[0] == first


def test_what_is_recorded_reads_back_whole_and_has_a_bound() -> None:
    whole = WaitReason(on="limit", text="x", name="n", key="k", until_us=5, runs=("r",), by=("ann",), count=3)
    assert decode(encode([whole])[1]) == [whole]
    assert encode(waits("task"))[1] == '[{"on":"task","text":"task 0"}]'
    many = waits(*["timer"] * 5, *["child"] * WAITS_MAX)
    assert decode(encode(many)[1]) == many[5:]


def test_the_reason_of_a_task_replaces_the_plain_wait_for_it() -> None:
    for code in sorted(TASK_CODES):
        assert [w.on for w in ordered(waits("timer", "task", code))] == [code, "timer"]
    assert [w.on for w in ordered(waits("timer", "task", "signal"))] == ["signal", "task", "timer"]


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        (["timer"], "timer 0"),
        (["task", "timer"], "task 0, and timer 1"),
        (["child", "task", "timer"], "child 0, and task 1, and timer 2"),
        (["child", "child", "task", "timer", "timer"], "child 0, and child 1, and task 2, and 2 more"),
        (["child", "dependency", "dependency", "task"], "child 0, and task 3"),
        (["dependency", "dependency", "timer"], "dependency 0, and timer 2"),
    ],
)
def test_a_sentence_tells_three_reasons_and_counts_the_rest(codes: list[str], told: str) -> None:
    assert sentence(waits(*codes)) == told
