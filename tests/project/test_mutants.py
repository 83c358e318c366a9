"""The planted bugs of `just mutate` fit the source as it is: a stale one would be a hole in the net that nobody sees."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation.mutants import LAYERS, Mutant, all_mutants

ROOT = Path(__file__).parents[2]


def test_there_are_enough_of_them_in_every_layer() -> None:
    assert len(all_mutants()) >= 150
    of = Counter(m.layer for m in all_mutants())
    assert set(of) == set(LAYERS)
    assert min(of.values()) >= 10


def test_no_two_have_one_name() -> None:
    assert [name for name, n in Counter(m.id for m in all_mutants()).items() if n > 1] == []


@pytest.mark.parametrize("m", all_mutants(), ids=lambda m: f"{m.layer}/{m.id}")
def test_a_mutant_applies_and_its_tests_are_there(m: Mutant) -> None:
    source = (ROOT / "src/perdure" / m.file).read_text(encoding="utf-8")
    assert source.count(m.old) == 1, "update the mutant to the code as it is now, or remove it with what it was about"
    mutated = source.replace(m.old, m.new)
    assert mutated != source
    if m.file.endswith(".py"):
        ast.parse(mutated)
    for test in m.tests.split():
        path, *names = re.sub(r"\[.*", "", test).split("::")
        text = (ROOT / "tests" / path).read_text(encoding="utf-8") if names else ""
        assert (ROOT / "tests" / path).exists()
        assert all(re.search(rf"(def|class) {name}\b", text) for name in names), f"there is no {test}"
