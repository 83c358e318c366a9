"""The journal: what code asks for against what the history says it asked for before."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import journal as journal_module
from perdure.core import limits
from perdure.core.errors import InvalidInput, NondeterminismError
from perdure.core.journal import Journal
from perdure.core.retry import TaskOptions

OPTIONS = TaskOptions()
NAME = st.sampled_from(["a", "b", "c"])
DATA = st.sampled_from([b"1", b"2", b"3"])

# An act is what one line of workflow code does, as (verb, arguments).
ACTS = st.one_of(
    st.tuples(st.just("tasks"), NAME, st.lists(DATA, min_size=1, max_size=5)),
    st.tuples(st.just("timer"), st.integers(0, 10**12)),
    st.tuples(st.just("child"), NAME, DATA, st.sampled_from(["", "key"])),
    st.tuples(st.just("promise"), NAME),
    st.tuples(st.just("operation"), NAME, DATA),
    st.tuples(st.just("state"), NAME, st.none() | DATA),
    st.tuples(st.just("patch"), NAME),
    st.tuples(st.just("attributes"), DATA),
)
PROGRAMS = st.lists(ACTS, max_size=25)


def perform(journal: Journal, program: list[Any]) -> list[Any]:
    """Run a program; answers what its code was told."""
    told: list[Any] = []
    for verb, *given_ in program:
        match verb:
            case "tasks":
                told.append(journal.schedule_tasks(given_[0], "default", given_[1], OPTIONS))
            case "timer":
                told.append(journal.start_timer(given_[0]))
            case "child":
                told.append(journal.start_child(cm.StartChild(cm.UNNUMBERED, given_[0], "v", given_[1], given_[2])))
            case "promise":
                told.append(journal.create_promise(given_[0]))
            case "operation":
                seq, recorded = journal.begin_operation(given_[0])
                if not recorded:
                    journal._commands.append(cm.RecordOperation(seq, given_[0], given_[1]))  # as a worker reports it
                told.append(seq)
            case "state":
                journal.write_state(*given_)
            case "attributes":
                journal.set_attributes(given_[0])
            case "patch":
                told.append(journal.patched(given_[0]))
    return told


def record(commands: list[cm.Command]) -> list[ev.Recorded]:
    """What the engine writes for a batch of commands."""
    events: list[ev.Event] = [ev.RunStarted("w", "v", b"{}")]
    for c in commands:
        match c:
            case cm.ScheduleTasks():
                events.append(ev.TasksScheduled(c.first, c.name, c.queue, c.inputs, c.options))
            case cm.StartTimer():
                events.append(ev.TimerStarted(c.seq, c.fire_at_us))
            case cm.StartChild():
                events.append(ev.ChildStarted(c.seq, bytes(16), c.workflow, c.input, c.key))
            case cm.CreatePromise():
                events.append(ev.PromiseCreated(c.seq, c.name))
            case cm.RecordOperation():
                events.append(ev.OperationRecorded(c.seq, c.name, c.value))
            case cm.SetState():
                events.append(ev.StateSet(c.name, c.value))
            case cm.ClearState():
                events.append(ev.StateCleared(c.name))
            case cm.RecordPatch():
                events.append(ev.PatchRecorded(c.name))
            case cm.SetAttributes():
                events.append(ev.AttributesSet(c.change))
            case cm.CancelTasks():
                events.append(ev.TasksCancelled(c.seqs))
            case cm.CancelTimer():
                events.append(ev.TimerCancelled(c.seq))
            case cm.CancelChild():
                events.append(ev.ChildCancelRequested(c.seq, c.awaited))
            case _:
                raise AssertionError(c)
    return [ev.Recorded(i + 1, 0, e) for i, e in enumerate(events)]


def loaded(history: list[ev.Recorded]) -> Journal:
    """A journal at the point where the whole history has been applied."""
    journal = Journal()
    journal.load(history)
    journal.facts_ahead = 0
    return journal


# -- the laws -------------------------------------------------------------------------------------------------------------


@given(PROGRAMS)
def test_a_program_replayed_against_its_own_record_asks_for_nothing_and_is_told_the_same(program: list[Any]) -> None:
    first = Journal()
    told = perform(first, program)
    again = loaded(record(first.take_commands()))
    assert perform(again, program) == told
    assert again.take_commands() == []
    again.check_all_matched(lambda: "the end")
    assert again.mismatch is None
    assert not again.is_replaying


@given(PROGRAMS, st.data())
def test_a_record_that_a_crash_cut_short_is_completed_by_the_replay(program: list[Any], data: st.DataObject) -> None:
    first = Journal()
    told = perform(first, program)
    commands = first.take_commands()
    kept = data.draw(st.integers(0, len(commands)), label="commands that were committed")
    again = loaded(record(commands[:kept]))
    assert perform(again, program) == told
    assert sorted(map(repr, again.take_commands())) == sorted(map(repr, commands[kept:]))
    assert again.mismatch is None


@given(PROGRAMS, PROGRAMS, st.data())
def test_matching_is_per_kind_so_independent_lines_may_change_places(
    tasks: list[Any], others: list[Any], data: st.DataObject
) -> None:
    tasks = [a for a in tasks if a[0] == "tasks"]
    others = [a for a in others if a[0] in ("timer", "child", "promise", "operation", "state")]
    first = Journal()
    perform(first, tasks + others)
    again = loaded(record(first.take_commands()))
    mixed = copy.copy(others)
    at = 0
    for act in tasks:
        at = data.draw(st.integers(at, len(mixed)))
        mixed.insert(at, act)
        at += 1
    perform(again, mixed)
    again.check_all_matched(lambda: "the end")
    assert again.mismatch is None
    assert again.take_commands() == []


MATCHED = ("tasks", "child", "promise", "operation", "state")


@given(PROGRAMS, st.data())
def test_another_program_is_refused_naming_expected_and_actual(program: list[Any], data: st.DataObject) -> None:
    """One line is changed in a way that the history can show: another name under the same number."""
    lines = [i for i, act in enumerate(program) if act[0] in MATCHED]
    assume(lines)
    at = data.draw(st.sampled_from(lines), label="the line that changed")
    first = Journal()
    perform(first, program)
    history = record(first.take_commands())
    changed = list(program)
    changed[at] = (program[at][0], "changed", *program[at][2:])
    again = loaded(history)
    with pytest.raises(NondeterminismError) as error:
        perform(again, changed)
    assert "'changed'" in error.value.actual
    assert repr(program[at][1]) in error.value.expected
    assert again.mismatch is error.value, "kept, because user code may swallow the exception"


@given(PROGRAMS, st.data())
def test_a_line_that_vanished_is_found_at_the_end(program: list[Any], data: st.DataObject) -> None:
    """Dropping the last line of a kind leaves its record unclaimed."""
    kinds = sorted({a[0] for a in program if a[0] in (*MATCHED, "timer")})
    assume(kinds)
    kind = data.draw(st.sampled_from(kinds))
    at = max(i for i, a in enumerate(program) if a[0] == kind)
    first = Journal()
    perform(first, program)
    again = loaded(record(first.take_commands()))
    perform(again, program[:at] + program[at + 1 :])
    again.check_all_matched(lambda: "the code waits for nothing")
    assert again.mismatch is not None
    assert again.mismatch.actual == "the code waits for nothing"
    assert {"state": "state write", "tasks": "task"}.get(kind, kind) in again.mismatch.where


def test_the_first_mismatch_is_the_one_that_is_kept() -> None:
    first = Journal()
    perform(first, [("promise", "a"), ("promise", "b")])
    again = loaded(record(first.take_commands()))
    with pytest.raises(NondeterminismError):
        again.create_promise("x")
    with pytest.raises(NondeterminismError):
        again.create_promise("y")
    assert again.mismatch is not None
    assert "'x'" in again.mismatch.actual


def test_code_that_ends_early_is_told_what_the_history_still_expected() -> None:
    first = Journal()
    perform(first, [("tasks", "fetch", [b"1", b"2"])])
    again = loaded(record(first.take_commands()))
    again.close(cm.CompleteRun(b"1"))
    assert again.mismatch is not None
    assert "'fetch' x2" in again.mismatch.expected
    assert "CompleteRun" in again.mismatch.actual


def test_a_new_deadline_of_a_timer_is_no_mismatch() -> None:
    """The time to sleep may come from a task's result or a changed constant; the recorded timer stands."""
    first = Journal()
    first.start_timer(100)
    again = loaded(record(first.take_commands()))
    assert again.start_timer(200) == 0
    assert again.take_commands() == []


# -- cancelling ---------------------------------------------------------------------------------------------------------


def test_cancelling_what_the_history_holds_as_cancelled_asks_for_nothing() -> None:
    first = Journal()
    first.schedule_tasks("a", "default", [b"1", b"2", b"3"], OPTIONS)
    first.start_timer(5)
    first.start_child(cm.StartChild(cm.UNNUMBERED, "c", "v", b"1"))
    first.cancel_tasks([0, 2])
    first.cancel_timer(0)
    first.cancel_child(0)
    again = loaded(record(first.take_commands()))
    again.schedule_tasks("a", "default", [b"1", b"2", b"3"], OPTIONS)
    again.start_timer(5)
    again.start_child(cm.StartChild(cm.UNNUMBERED, "c", "v", b"1"))
    again.cancel_tasks([0, 1, 2])
    again.cancel_timer(0)
    again.cancel_child(0)
    assert again.take_commands() == [cm.CancelTasks([1])]


@pytest.mark.parametrize("recorded", [True, False])
def test_whether_the_end_of_a_cancelled_child_is_awaited_is_as_recorded(recorded: bool) -> None:
    first = Journal()
    first.start_child(cm.StartChild(cm.UNNUMBERED, "c", "v", b"1"))
    assert first.cancel_child(0, awaited=recorded) is recorded
    again = loaded(record(first.take_commands()))
    again.start_child(cm.StartChild(cm.UNNUMBERED, "c", "v", b"1"))
    assert again.cancel_child(0, awaited=not recorded) is recorded


# -- fan-outs -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 2_200))
def test_a_fan_out_is_cut_into_chunks_of_bounded_count(count: int) -> None:
    journal = Journal()
    assert journal.schedule_tasks("a", "default", [b"1"] * count, OPTIONS) == 0
    chunks = journal.take_commands()
    assert all(isinstance(c, cm.ScheduleTasks) for c in chunks)
    sizes = [len(c.inputs) for c in chunks if isinstance(c, cm.ScheduleTasks)]
    assert sum(sizes) == count
    assert max(sizes) <= limits.SCHEDULE_CHUNK_TASKS
    firsts = [c.first for c in chunks if isinstance(c, cm.ScheduleTasks)]
    assert firsts == [sum(sizes[:i]) for i in range(len(sizes))]
    assert journal.schedule_tasks("a", "default", [b"1"], OPTIONS) == count


@given(st.lists(st.integers(0, 300_000), min_size=1, max_size=12))
def test_a_fan_out_is_cut_into_chunks_of_bounded_bytes(sizes: list[int]) -> None:
    journal = Journal()
    inputs = [b"x" * n for n in sizes]
    journal.schedule_tasks("a", "default", inputs, OPTIONS)
    chunks = [c.inputs for c in journal.take_commands() if isinstance(c, cm.ScheduleTasks)]
    assert [i for c in chunks for i in c] == inputs
    assert all(len(c) == 1 or sum(map(len, c)) <= limits.SCHEDULE_CHUNK_BYTES for c in chunks)


def test_an_empty_fan_out_asks_for_nothing() -> None:
    journal = Journal()
    journal.schedule_tasks("a", "default", [], OPTIONS)
    assert journal.take_commands() == []


def test_a_fan_out_over_the_limit_is_refused_by_the_name_of_the_limit() -> None:
    with pytest.raises(InvalidInput, match="FANOUT_TASKS_MAX=100000"):
        Journal().schedule_tasks("a", "default", [b""] * (limits.FANOUT_TASKS_MAX + 1), OPTIONS)


def test_a_changed_item_in_the_middle_of_a_fan_out_is_a_mismatch() -> None:
    items = [str(n).encode() for n in range(1_200)]
    first = Journal()
    first.schedule_tasks("a", "default", items, OPTIONS)
    history = record(first.take_commands())
    again = loaded(history)
    again.schedule_tasks("a", "default", items, OPTIONS)
    assert again.take_commands() == []
    other = loaded(history)
    with pytest.raises(NondeterminismError, match="at task 500"):
        other.schedule_tasks("a", "default", [*items[:700], b"changed", *items[701:]], OPTIONS)


# -- patches --------------------------------------------------------------------------------------------------------------


def test_a_new_run_takes_the_new_path_and_records_it_once() -> None:
    journal = Journal()
    assert journal.patched("p")
    assert journal.patched("p")
    assert journal.take_commands() == [cm.RecordPatch("p")]


def test_an_old_run_that_passed_the_point_keeps_the_old_path_to_its_end() -> None:
    old = Journal()
    old.schedule_tasks("a", "default", [b"1"], OPTIONS)
    again = loaded(record(old.take_commands()))
    assert not again.patched("p")
    again.schedule_tasks("a", "default", [b"1"], OPTIONS)
    assert not again.patched("p"), "the answer does not change while the run lives, loops see one path"
    assert again.take_commands() == []


def test_an_old_run_with_facts_ahead_keeps_the_old_path() -> None:
    again = Journal()
    again.load([ev.Recorded(1, 0, ev.RunStarted("w", "v", b"")), ev.Recorded(2, 0, ev.SignalReceived("s", b"1"))])
    again.facts_ahead -= 1
    assert not again.patched("p")
    again.facts_ahead -= 1
    assert again.patched("q"), "a point it reaches for the first time is new"


def test_a_run_that_recorded_the_patch_stays_on_the_new_path_even_with_facts_ahead() -> None:
    first = Journal()
    assert first.patched("p")
    first.schedule_tasks("b", "default", [b"1"], OPTIONS)
    again = Journal()
    again.load(record(first.take_commands()))
    assert again.patched("p")
    again.schedule_tasks("b", "default", [b"1"], OPTIONS)
    assert again.take_commands() == []


def test_a_patch_may_be_removed_from_the_code_once_the_old_path_is_gone() -> None:
    first = Journal()
    assert first.patched("p")
    again = loaded(record(first.take_commands()))
    again.check_all_matched(lambda: "the end")
    assert again.mismatch is None


@pytest.mark.parametrize("other", [("d", b"1", ""), ("c", b"2", ""), ("c", b"1", "key")])
def test_a_child_is_compared_by_workflow_input_and_key(other: tuple[str, bytes, str]) -> None:
    first = Journal()
    first.start_child(cm.StartChild(cm.UNNUMBERED, "c", "v", b"1"))
    replayed = loaded(record(first.take_commands()))
    name, data, key = other
    with pytest.raises(NondeterminismError):
        replayed.start_child(cm.StartChild(cm.UNNUMBERED, name, "v", data, key))


def test_each_chunk_of_a_fan_out_has_the_labels_of_its_own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "SCHEDULE_CHUNK_TASKS", 2)
    journal = Journal()
    journal.schedule_tasks("t", "q", [b"1"] * 5, OPTIONS, ["a", "b", "c", "d", "e"])
    assert [c.nodes for c in journal.take_commands()] == [["a", "b"], ["c", "d"], ["e"]]  # type: ignore[union-attr]
