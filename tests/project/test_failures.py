"""The helper of tests that check many items: it names all that fail, and lets nothing pass that was not checked."""

from __future__ import annotations

import pytest

from tests.fakes.failures import Failures


def test_items_that_fail_are_all_listed_with_their_reason() -> None:
    def check_all() -> None:
        with Failures() as failures:
            for word, value in (("one", 1), ("two", 3), ("three", "x"), ("four", 5)):
                with failures.of(word):
                    assert int(value) == len(word) - 2, f"{value} is not the number"

    with pytest.raises(AssertionError) as raised:
        check_all()
    said = str(raised.value)
    assert said.startswith("3 of 4 items fail:\n\ntwo: 3 is not the number")
    assert "\n\nthree: ValueError: invalid literal" in said
    assert "\n\nfour: 5 is not the number" in said
    assert "one" not in said


def test_a_block_without_items_fails() -> None:
    with pytest.raises(AssertionError, match="no item was checked"), Failures():
        pass


def test_an_error_outside_of_items_is_raised_as_it_is() -> None:
    with pytest.raises(KeyError), Failures():
        raise KeyError("x")
