"""The short form of tests/fuzz/expressions.py."""

from __future__ import annotations

import itertools

import pytest

from tests.fuzz import expressions

COUNT = 20_000


def test_random_expressions_never_break_anything() -> None:
    tally = expressions.fuzz(COUNT, seed=1)
    assert tally.failures == []
    assert tally.done == COUNT
    # A fuzzer whose texts are all refused, or all fail, tests little.
    assert tally.parsed > COUNT // 4
    assert tally.valued > COUNT // 20


def test_the_same_seed_gives_the_same_texts() -> None:
    one, two, other = (list(itertools.islice(expressions.Source(seed).texts(), 300)) for seed in (1, 1, 2))
    assert one == two
    assert one != other


def test_the_fuzzer_notices_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real = expressions.parse

    def planted(text: str) -> object:
        if "==" in text:
            raise ZeroDivisionError("planted")
        return real(text)

    monkeypatch.setattr(expressions, "parse", planted)
    assert "ZeroDivisionError: planted" in expressions.fuzz(2_000, seed=1).failures[0]
