"""Each invariant can fail: for every one there is a small history, or a ledger, that breaks it and nothing else."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import Failure
from perdure.core.invariants import (
    EXAMPLES_MAX,
    INVARIANTS,
    Findings,
    LedgerLine,
    RunFold,
    StoredRun,
    StoredTask,
    check_executions,
)
from perdure.core.lifecycle import RunStatus, TaskStatus
from perdure.core.retry import TaskOptions

RUN = ids.run_id(1_800_000_000_000, 0, 42)
OPTIONS = TaskOptions(max_attempts=2)
STARTED = ev.RunStarted("w", "1", b"{}")
FAILURE = Failure("task_failed", "no")
DONE = StoredRun(False, RunStatus.SUCCESS, 1, None)

Row = tuple[int, int, int, list[ev.Event]]
"""First event, epoch, microseconds, events."""


def scheduled(first: int = 0, count: int = 1, options: TaskOptions = OPTIONS) -> ev.TasksScheduled:
    return ev.TasksScheduled(first, "t", "default", [b"{}"] * count, options)


def row_of(
    seq: int, status: TaskStatus = TaskStatus.SUCCESS, attempts: int = 1, lost: int = 0, epoch: int = 1
) -> StoredTask:
    return StoredTask(ids.derive(RUN, ids.TASK, seq), seq, "t", status, attempts, lost, epoch)


def task_id(seq: int) -> str:
    return ids.text(ids.derive(RUN, ids.TASK, seq))


def judged(
    rows: list[Row],
    stored: list[StoredRun] | None = None,
    tasks: list[StoredTask] | None = None,
    queued: list[int] | None = None,
    state: dict[str, bytes] | None = None,
    lines: list[LedgerLine] | None = None,
    children: frozenset[bytes] = frozenset(),
) -> dict[int, list[str]]:
    """Violations by invariant."""
    findings = Findings(INVARIANTS)
    fold = RunFold(RUN, findings)
    for seq, epoch, at_us, events in rows:
        fold.row(seq, seq + len(events) - 1, epoch, at_us, events)
    if fold.retries:
        fold.again([ev.Recorded(seq + i, at, e) for seq, _, at, events in rows for i, e in enumerate(events)])
    fold.settle(stored if stored is not None else [DONE], tasks or [], queued or [], state or {}, children)
    check_executions(fold, tasks or [], lines or [], frozenset({"t"}) if lines is not None else frozenset(), findings)
    return {n: [e.what for e in t.examples] for n, t in findings.tallies.items() if t.violations}


def of_one_task(*events: ev.Event, epoch: int = 1) -> list[Row]:
    return [(1, epoch, 10, [STARTED, scheduled(), *events, ev.RunSucceeded(b"1")])]


SUCCESS = of_one_task(ev.TasksSucceeded([0], [b"1"]))


def line(
    phase: Any,
    seq: int = 0,
    attempt: int = 1,
    epoch: int = 1,
    mono_us: int = 0,
    boot: str = "a",
    after: tuple[str, ...] = (),
) -> LedgerLine:
    return LedgerLine(
        run=ids.text(RUN),
        task=task_id(seq),
        name="t",
        attempt=attempt,
        epoch=epoch,
        worker="w",
        phase=phase,
        boot=boot,
        mono_us=mono_us,
        after=after,
    )


EXECUTED = [line("begin"), line("effect", mono_us=1), line("end", mono_us=2)]


def test_a_sound_run_breaks_nothing() -> None:
    assert judged(SUCCESS, tasks=[row_of(0)], lines=EXECUTED) == {}


def test_a_gap_in_the_history_breaks_3() -> None:
    broken = judged([(1, 1, 0, [STARTED]), (3, 1, 0, [ev.RunSucceeded(b"1")])])
    assert broken == {3: ["event 1 is followed by event 3"]}


def test_a_row_that_holds_fewer_events_than_it_claims_breaks_3() -> None:
    findings = Findings(INVARIANTS)
    RunFold(RUN, findings).row(1, 3, 1, 0, [STARTED])
    assert findings.tallies[3].violations == 1


@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        ("the history says success, the row failed", {"stored": [StoredRun(False, RunStatus.FAILED, 1, None)]}),
        ("the row counts 9 events", {"stored": [StoredRun(False, RunStatus.SUCCESS, 1, 9)]}),
        (
            "the history ends in success, the run is still active",
            {"stored": [StoredRun(True, RunStatus.RUNNING, 1, None)]},
        ),
        ("the run has 0 rows", {"stored": []}),
        ("the run has 2 rows", {"stored": [DONE, DONE]}),
        ("task 0 is success in the history and has no row", {"tasks": []}),
        ("and failed in its row", {"tasks": [row_of(0, TaskStatus.FAILED)]}),
        ("task 1 has a row and no end", {"tasks": [row_of(0), row_of(1)]}),
        ("task 0 waits in task_queue", {"queued": [0]}),
        ("stored state differs from the history in x", {"state": {"x": sha256(b"1").digest()}}),
        ("an id of another task", {"tasks": [StoredTask(RUN, 0, "t", 3, 1, 0, 1)]}),
    ],
)
def test_rows_that_differ_from_the_history_break_4(what: str, arguments: Any) -> None:
    broken = judged(SUCCESS, **{"tasks": [row_of(0)], **arguments})
    assert 4 in broken and any(what in one for one in broken[4])


def test_recorded_state_is_compared_by_value() -> None:
    rows: list[Row] = [(1, 1, 0, [STARTED, ev.StateSet("x", b"1"), ev.RunSucceeded(b"1")])]
    assert judged(rows, state={"x": sha256(b"1").digest()}) == {}
    assert 4 in judged(rows, state={"x": sha256(b"2").digest()})


def test_an_event_after_the_end_breaks_5() -> None:
    broken = judged([(1, 1, 0, [STARTED, ev.RunSucceeded(b"1"), ev.SignalReceived("s", b"1")])])
    assert broken == {5: ["event 3 (SignalReceived) comes after event 2 (RunSucceeded)"]}


def test_a_second_end_of_the_run_breaks_5_and_6() -> None:
    assert judged([(1, 1, 0, [STARTED, ev.RunSucceeded(b"1"), ev.RunFailed(FAILURE)])]).keys() == {5, 6}


def test_an_end_of_what_was_never_begun_breaks_6() -> None:
    assert 6 in judged([(1, 1, 0, [STARTED, ev.TimerFired(0), ev.RunSucceeded(b"1")])])
    assert 6 in judged([(1, 1, 0, [STARTED, ev.TaskFailed(0, FAILURE, 1), ev.RunSucceeded(b"1")])])


def test_a_success_without_an_attempt_breaks_6() -> None:
    assert judged(SUCCESS, tasks=[row_of(0, attempts=0)]).keys() == {6}


def test_a_second_result_breaks_7() -> None:
    twice = of_one_task(ev.TasksSucceeded([0], [b"1"]), ev.TaskFailed(0, FAILURE, 1))
    assert 7 in judged(twice, tasks=[row_of(0)])
    assert 7 in judged(SUCCESS, tasks=[row_of(0), row_of(0)])


def test_a_success_without_an_effect_of_its_attempt_breaks_8() -> None:
    assert judged(SUCCESS, tasks=[row_of(0)], lines=[line("begin"), line("end")]).keys() == {8}
    assert judged(SUCCESS, tasks=[row_of(0, attempts=2, lost=1)], lines=EXECUTED).keys() == {8}


def test_an_older_epoch_behind_a_newer_one_breaks_9() -> None:
    rows: list[Row] = [(1, 2, 0, [STARTED]), (2, 1, 0, [ev.RunSucceeded(b"1")])]
    assert judged(rows, stored=[StoredRun(False, RunStatus.SUCCESS, 2, None)]).keys() == {9}


def test_history_of_an_epoch_that_the_run_never_reached_breaks_9() -> None:
    assert judged([(1, 3, 0, [STARTED, ev.RunSucceeded(b"1")])]).keys() == {9}


@pytest.mark.parametrize(
    ("what", "lines", "row"),
    [
        ("began 2 times in epoch 1", [*EXECUTED, *EXECUTED], row_of(0)),
        ("yet attempt 2 began", [*EXECUTED, line("begin", attempt=2)], row_of(0)),
        ("executed again in epoch 2", [*EXECUTED, line("begin", epoch=2)], row_of(0)),
        (
            "recorded 3 attempts, 0 of them lost",
            [line("effect", attempt=3), *(line("begin", attempt=n) for n in (1, 2, 3))],
            row_of(0, attempts=3),
        ),
    ],
)
def test_executions_beyond_what_is_allowed_break_10(what: str, lines: list[LedgerLine], row: StoredTask) -> None:
    broken = judged(SUCCESS, tasks=[row], lines=lines)
    assert broken.keys() == {10} and any(what in one for one in broken[10]), broken


def test_a_task_at_most_once_that_began_twice_breaks_10() -> None:
    options = TaskOptions(max_attempts=1, at_most_once=True)
    rows: list[Row] = [
        (1, 2, 0, [STARTED, scheduled(options=options), ev.TasksSucceeded([0], [b"1"]), ev.RunSucceeded(b"1")])
    ]
    lines = [line("begin", epoch=1), line("begin", epoch=2), line("effect", epoch=2)]
    stored = [StoredRun(False, RunStatus.SUCCESS, 2, None)]
    assert judged(rows, stored=stored, tasks=[row_of(0, epoch=2)], lines=lines).keys() == {10}


def test_lost_workers_and_take_overs_are_no_violation_of_10() -> None:
    rows: list[Row] = [(1, 2, 0, [STARTED, scheduled(), ev.TasksSucceeded([0], [b"1"]), ev.RunSucceeded(b"1")])]
    stored = [StoredRun(False, RunStatus.SUCCESS, 2, None)]
    taken_over = [line("begin", epoch=1, boot="dead"), line("begin", epoch=2), line("effect", epoch=2)]
    assert judged(rows, stored=stored, tasks=[row_of(0, epoch=2)], lines=taken_over) == {}
    lost = [line("begin"), line("begin", attempt=2, epoch=2), line("effect", attempt=2, epoch=2)]
    assert judged(rows, stored=stored, tasks=[row_of(0, attempts=2, lost=1, epoch=2)], lines=lost) == {}


def test_a_task_cancelled_while_another_engine_had_it_may_have_lost_workers() -> None:
    """Its row says 0 attempts, and so nothing about those that were lost."""
    rows = [(1, 1, 10, [STARTED, scheduled(), ev.TasksCancelled([0]), ev.RunTerminated("", "")])]
    stored = [StoredRun(False, RunStatus.CANCELLED, 1, None)]
    row = row_of(0, TaskStatus.CANCELLED, attempts=0)
    begins = [line("begin", attempt=n) for n in range(1, OPTIONS.max_attempts + OPTIONS.lost_max + 2)]
    assert judged(rows, stored=stored, tasks=[row], lines=begins[:-1]) == {}
    assert judged(rows, stored=stored, tasks=[row], lines=begins).keys() == {10}


def two_in_order() -> list[Row]:
    first, second = ev.TasksSucceeded([0], [b"1"]), ev.TasksSucceeded([1], [b"1"])
    return [(1, 1, 0, [STARTED, scheduled(), first, scheduled(1), second, ev.RunSucceeded(b"1")])]


def test_a_task_that_began_before_what_it_needs_breaks_11() -> None:
    tasks = [row_of(0), row_of(1)]
    begin = line("begin", 1, mono_us=5, after=(task_id(0),))
    effect = line("effect", 1, mono_us=6)
    sound = [line("begin"), line("effect", mono_us=1), begin, effect]
    assert judged(two_in_order(), tasks=tasks, lines=sound) == {}
    early = [line("begin"), line("effect", mono_us=9), begin, effect]
    assert judged(two_in_order(), tasks=tasks, lines=early).keys() == {11}


def test_a_result_that_a_worker_brought_from_a_former_owner_satisfies_11() -> None:
    """The second owner had the task begun again before the first execution's end reached it. What ran before it had any result did not."""
    ((_, _, _, events),) = two_in_order()
    rows: list[Row] = [(1, 2, 0, events)]
    tasks = [row_of(0, epoch=2), row_of(1, epoch=2)]
    stored = [StoredRun(active=False, status=RunStatus.SUCCESS, epoch=2, events=6)]
    lines = [
        line("begin"),
        line("effect", mono_us=1),
        line("begin", epoch=2, mono_us=2),
        line("effect", epoch=2, mono_us=9),
    ]
    needs = {"after": (task_id(0),), "mono_us": 5}
    sound = [*lines, line("begin", 1, epoch=2, **needs), line("effect", 1, epoch=2, mono_us=6)]
    assert 11 not in judged(rows, stored, tasks, lines=sound)
    early = [*lines, line("begin", 1, epoch=1, **needs), line("effect", 1, epoch=2, mono_us=6)]
    assert 11 in judged(rows, stored, tasks, lines=early)


def test_a_task_scheduled_before_what_it_needs_ended_breaks_11() -> None:
    both = [STARTED, scheduled(), scheduled(1), ev.TasksSucceeded([0, 1], [b"1", b"1"]), ev.RunSucceeded(b"1")]
    lines = [
        line("begin"),
        line("effect", mono_us=1),
        line("begin", 1, mono_us=5, after=(task_id(0),)),
        line("effect", 1, mono_us=6),
    ]
    assert judged([(1, 1, 0, both)], tasks=[row_of(0), row_of(1)], lines=lines).keys() == {11}


def test_a_task_given_a_result_that_nobody_recorded_breaks_11() -> None:
    lines = [line("begin", after=(task_id(7),)), line("effect")]
    assert judged(SUCCESS, tasks=[row_of(0)], lines=lines).keys() == {11}


def test_a_fan_out_that_lacks_an_end_breaks_12() -> None:
    rows: list[Row] = [
        (1, 1, 0, [STARTED, scheduled(0, 3), ev.TasksSucceeded([0, 2], [b"1", b"1"]), ev.RunSucceeded(b"1")])
    ]
    assert judged(rows, tasks=[row_of(0), row_of(2)]).keys() == {12}


def test_a_join_that_went_on_twice_breaks_12() -> None:
    rows: list[Row] = [
        (
            1,
            1,
            0,
            [
                STARTED,
                scheduled(0, 2),
                ev.TasksSucceeded([0, 1], [b"1", b"1"]),
                scheduled(2),
                scheduled(2),
                ev.TasksSucceeded([2], [b"1"]),
                ev.RunSucceeded(b"1"),
            ],
        )
    ]
    assert judged(rows, tasks=[row_of(n) for n in range(3)]).keys() == {12}


def test_a_timer_that_fired_early_breaks_14() -> None:
    rows: list[Row] = [
        (1, 1, 10, [STARTED, ev.TimerStarted(0, 5_000)]),
        (3, 1, 4_999, [ev.TimerFired(0), ev.RunSucceeded(b"1")]),
    ]
    assert judged(rows).keys() == {14}
    rows[1] = (3, 1, 5_000, rows[1][3])
    assert judged(rows) == {}


def test_a_timer_that_fired_twice_breaks_14() -> None:
    assert 14 in judged([(1, 1, 10, [STARTED, ev.TimerStarted(0, 5), ev.TimerFired(0), ev.TimerFired(0)])])


@pytest.mark.parametrize(
    ("what", "run", "events"),
    [
        ("stuck: no", StoredRun(True, 1, 1, None, stuck="no"), []),
        ("1 unfinished tasks", StoredRun(True, 1, 1, None), [scheduled()]),
        ("no engine owns it", StoredRun(True, 1, 1, None, due=True), []),
        ("no engine owns it", StoredRun(True, 0, 1, None), []),
        ("waits for child 0", StoredRun(True, 1, 1, None), [ev.ChildStarted(0, b"x" * 16, "w", b"")]),
    ],
)
def test_a_run_that_stands_still_without_a_reason_breaks_21(what: str, run: StoredRun, events: list[ev.Event]) -> None:
    broken = judged([(1, 1, 0, [STARTED, *events])], stored=[run])
    assert broken.keys() == {21} and what in broken[21][0]


def test_a_run_that_waits_for_input_or_a_living_child_is_at_rest() -> None:
    active = [StoredRun(True, 1, 1, None)]
    assert judged([(1, 1, 0, [STARTED, ev.PromiseCreated(0, "p")])], stored=active) == {}
    child = b"x" * 16
    rows: list[Row] = [(1, 1, 0, [STARTED, ev.ChildStarted(0, child, "w", b"")])]
    assert judged(rows, stored=active, children=frozenset({child})) == {}


def of_a_retried_run(*more: ev.Event, retry: ev.Event | None = None) -> list[Row]:
    """Task 0 succeeds, task 1 fails in two attempts; what the code did about it, task 2, is taken back."""
    first: list[ev.Event] = [
        STARTED,
        scheduled(),
        ev.TasksSucceeded([0], [b"1"]),
        scheduled(1),
        ev.TaskFailed(1, FAILURE, 2),
        scheduled(2),
        ev.TasksSucceeded([2], [b"1"]),
        ev.RunFailed(FAILURE),
    ]
    second: list[ev.Event] = [*more, ev.RunSucceeded(b"1")]
    return [(1, 1, 10, first), (9, 1, 20, [retry or ev.RunRetried(5, [1], [])]), (10, 2, 30, second)]


RETRIED = of_a_retried_run(ev.TasksSucceeded([1], [b"1"]))
RETRIED_RUN = [StoredRun(False, RunStatus.SUCCESS, 2, None)]
RETRIED_TASKS = [row_of(0), row_of(1, epoch=2)]
FIRST_TIME = [
    *(line(phase) for phase in ("begin", "effect")),
    line("begin", 1),
    line("begin", 1, attempt=2),
    line("begin", 2, after=(task_id(0),)),
    line("effect", 2),
]
SECOND_TIME = [line(phase, 1, epoch=2, mono_us=9) for phase in ("begin", "effect")]


def test_a_run_that_was_retried_breaks_nothing() -> None:
    done = {"stored": RETRIED_RUN, "tasks": RETRIED_TASKS}
    assert judged(RETRIED, **done, lines=[*FIRST_TIME, *SECOND_TIME]) == {}
    elsewhere = [line("begin", 1, epoch=0), line("begin", 1, epoch=0), line("effect", 1, epoch=0)]
    assert judged(RETRIED, **done, lines=[*FIRST_TIME[:2], *elsewhere]) == {}


def test_a_retry_of_what_has_not_failed_breaks_5() -> None:
    rows: list[Row] = [(1, 1, 0, [STARTED, scheduled(), ev.RunRetried(2, [], [])])]
    assert 5 in judged(rows, stored=[StoredRun(True, 1, 1, None)])
    assert judged(
        [*RETRIED, (12, 2, 40, [ev.SignalReceived("s", b"1")])], stored=RETRIED_RUN, tasks=RETRIED_TASKS
    ).keys() == {5}


def test_a_retry_that_fits_nothing_breaks_6() -> None:
    rows = of_a_retried_run(ev.TasksSucceeded([1], [b"1"]), retry=ev.RunRetried(99, [1], []))
    assert 6 in judged(rows, stored=RETRIED_RUN, tasks=RETRIED_TASKS)


def test_a_row_of_what_a_retry_took_back_breaks_4() -> None:
    assert judged(RETRIED, stored=RETRIED_RUN, tasks=[*RETRIED_TASKS, row_of(2)]).keys() == {4}


def test_what_succeeded_before_a_retry_and_ran_again_breaks_10() -> None:
    lines = [*FIRST_TIME, line("begin", 0, epoch=2), *SECOND_TIME]
    assert judged(RETRIED, stored=RETRIED_RUN, tasks=RETRIED_TASKS, lines=lines).keys() == {10}
    third = [*FIRST_TIME, *SECOND_TIME, line("begin", 1, attempt=2, epoch=2)]
    assert judged(RETRIED, stored=RETRIED_RUN, tasks=RETRIED_TASKS, lines=third).keys() == {10}


def test_order_holds_after_a_retry_as_before() -> None:
    rows = of_a_retried_run(ev.TasksSucceeded([1], [b"1"]), scheduled(2), ev.TasksSucceeded([2], [b"1"]))
    tasks = [*RETRIED_TASKS, row_of(2, epoch=2)]
    last = [line(phase, 2, epoch=2, mono_us=8, after=(task_id(1),)) for phase in ("begin", "effect")]
    assert judged(rows, stored=RETRIED_RUN, tasks=tasks, lines=[*FIRST_TIME, *SECOND_TIME, *last]).keys() == {11}


def test_examples_are_few_and_the_count_is_whole() -> None:
    findings = Findings(INVARIANTS)
    for n in range(EXAMPLES_MAX * 3):
        findings.violate(3, "run", str(n))
    assert findings.tallies[3].violations == EXAMPLES_MAX * 3
    assert len(findings.tallies[3].examples) == EXAMPLES_MAX
    assert not findings.clean


def test_an_invariant_without_material_is_listed_with_what_it_needs() -> None:
    findings = Findings({3})
    findings.examine(8)
    findings.violate(8, "run", "nobody asked")
    assert findings.clean and findings.tallies[8].examined == 0
    assert (findings.tallies[8].needs, findings.tallies[3].needs) == ("--ledger", "")
