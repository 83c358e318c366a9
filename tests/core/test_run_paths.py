"""What a path keeps of a history and what it leaves out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.core import events as ev
from perdure.core.errors import Failure
from perdure.core.retry import TaskOptions
from perdure.core.run_paths import path_of, spread

START = ev.RunStarted("shop", "1", b"{}")
OPTIONS = TaskOptions()


def history(*events: ev.Event) -> list[ev.Recorded]:
    return [ev.Recorded(n, n, event) for n, event in enumerate((START, *events), 1)]


def task(seq: int, name: str = "charge", count: int = 1) -> ev.Event:
    return ev.TasksScheduled(seq, name, "default", [b"{}"] * count, OPTIONS)


def ok(*seqs: int, value: bytes = b"1") -> ev.Event:
    return ev.TasksSucceeded(list(seqs), [value] * len(seqs))


def steps(*events: ev.Event) -> str:
    return path_of(history(*events)).steps


def same(a: list[ev.Event], b: list[ev.Event]) -> bool:
    return path_of(history(*a)).fingerprint == path_of(history(*b)).fingerprint


def test_a_path_has_commands_and_answers_by_name() -> None:
    assert steps(task(0), ok(0), ev.TimerStarted(0, 5), ev.TimerFired(0)) == (
        "start > task charge > charge ok > timer > timer fired"
    )


def test_values_do_not_matter_but_failures_do() -> None:
    assert same([task(0), ok(0, value=b"1")], [task(0), ok(0, value=b'"x"')])
    failed = ev.TaskFailed(0, Failure("task_failed", "no", "CardError"), 1)
    assert not same([task(0), ok(0)], [task(0), failed])
    assert steps(task(0), failed) == "start > task charge > charge failed CardError"


def test_names_of_tasks_nodes_children_and_promises_matter() -> None:
    assert not same([task(0, "a1")], [task(0, "a2")])
    assert not same([ev.ChildStarted(0, b"", "a", b"")], [ev.ChildStarted(0, b"", "b", b"")])
    assert not same([ev.PromiseCreated(0, "paid")], [ev.PromiseCreated(0, "sent")])
    node = ev.TasksScheduled(0, "t", "q", [b""], OPTIONS, ["a"])
    assert not same([node], [ev.TasksScheduled(0, "t", "q", [b""], OPTIONS, ["b"])])


def test_numbers_in_names_that_programs_make_are_one() -> None:
    assert same([ev.PromiseCreated(0, "order-17")], [ev.PromiseCreated(0, "order-18")])


def test_answers_between_two_commands_are_a_set() -> None:
    asked = [task(0, "a"), task(1, "b")]
    assert same([*asked, ok(0), ok(1)], [*asked, ok(1), ok(0)])
    assert not same([*asked, ok(0), task(2), ok(1)], [*asked, ok(1), task(2), ok(0)])


def test_small_counts_differ_and_large_ones_are_folded() -> None:
    fan = [[task(0, count=n), ok(*range(n))] for n in range(1, 130)]
    prints = {path_of(history(*events)).fingerprint for events in fan}
    assert len(prints) == len({1, 2, 3, 4, 8, 16, 32, 64, 128})


def test_bodies_of_loops_are_folded_and_the_place_in_the_body_is_kept() -> None:
    def polling(times: int) -> list[ev.Event]:
        body = [[task(n, "poll"), ok(n), ev.TimerStarted(n, 0), ev.TimerFired(n)] for n in range(times)]
        return [event for events in body for event in events]

    assert same(polling(33), polling(50))
    assert not same(polling(2), polling(3))
    assert not same(polling(50), [*polling(50), task(50, "poll")])
    assert steps(*polling(20)) == "start > (task poll > poll ok > timer > timer fired) x16.."


def test_waits_and_pending_tasks_are_kept() -> None:
    path = path_of(history(task(0)), ["signal:paid"])
    assert path.steps.endswith("> waits for signal:paid")
    assert path.pending == ("charge",)
    assert path.fingerprint != path_of(history(task(0)), ["signal:sent"]).fingerprint


def test_classes_of_values_tell_truth_sign_and_magnitude_apart() -> None:
    values = [b"true", b"false", b"null", b"0", b"5", b"500", b"-5", b'""', b"[]", b"[1]", b'{"a":1}', b'{"a":100}']
    classes = {path_of(history(task(0), ok(0, value=v))).values for v in values}
    assert len(classes) == len(values)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000)), max_size=60), st.integers(1, 6), st.integers(1, 9))
def test_choosing_from_pages_is_choosing_from_all(samples: list[tuple[int, int]], count: int, page: int) -> None:
    pages = [spread(samples[n : n + page], count, lambda s: s) for n in range(0, len(samples), page)]
    chosen = spread([s for one in pages for s in one], count, lambda s: s)
    assert chosen == spread(samples, count, lambda s: s)
    assert len({values for values, _ in chosen}) == min(count, len({values for values, _ in samples}))
