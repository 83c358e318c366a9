"""The collector's pace belongs to the application; an engine borrows it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from perdure.app.gc_tuning import OBJECTS, CollectorPace


@pytest.fixture(autouse=True)
def pace_as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_the_pace_is_slowed_down_and_given_back() -> None:
    gc.set_threshold(700, 10, 10)
    pace = CollectorPace()
    pace.slow_down()
    assert gc.get_threshold() == (OBJECTS, 10, 10)
    pace.restore()
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [0, OBJECTS + 1])
def test_an_application_that_chose_for_itself_is_left_alone(chosen: int) -> None:
    gc.set_threshold(chosen, 10, 10)
    pace = CollectorPace()
    pace.slow_down()
    assert gc.get_threshold()[0] == chosen
    pace.restore()
    assert gc.get_threshold()[0] == chosen


def test_a_change_made_meanwhile_is_not_undone() -> None:
    gc.set_threshold(700, 10, 10)
    pace = CollectorPace()
    pace.slow_down()
    gc.set_threshold(5_000, 10, 10)
    pace.restore()
    assert gc.get_threshold()[0] == 5_000


def test_two_engines_in_one_process_give_back_what_was_there_first() -> None:
    gc.set_threshold(700, 10, 10)
    one, two = CollectorPace(), CollectorPace()
    one.slow_down()
    two.slow_down()
    one.restore()
    two.restore()
    assert gc.get_threshold()[0] == 700


def test_a_process_of_its_own_never_looks_again_at_what_it_loaded() -> None:
    gc.set_threshold(700, 10, 10)
    try:
        CollectorPace().settle()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold() == (OBJECTS, 10, 10)
    finally:
        gc.unfreeze()
