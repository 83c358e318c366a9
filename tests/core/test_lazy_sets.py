"""Sets that come into being with their first item."""

from perdure.core.lazy_sets import EMPTY, LazySet, added, discard


def test_nothing_is_shared_between_two_sets_that_were_empty() -> None:
    one: LazySet[int] = EMPTY
    other: LazySet[int] = EMPTY
    one = added(one, 1)
    assert (one, other, EMPTY) == ({1}, set(), set())
    assert added(one, 2) is one
    assert one == {1, 2}


def test_an_item_is_discarded_whether_or_not_it_is_there() -> None:
    held = added(EMPTY, 1)
    discard(held, 1)
    discard(held, 2)
    discard(EMPTY, 1)
    assert held == set()


def test_items_of_a_frozen_set_are_kept() -> None:
    assert added(frozenset({1}), 2) == {1, 2}
