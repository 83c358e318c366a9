"""The planted bugs of `just mutate` fit the source as it is: a stale one would be a hole in the net that nobody sees."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.fakes.failures import Failures
from tests.mutation.mutants import LAYERS, Mutant, all_mutants

ROOT = Path(__file__).parents[2]


def test_there_are_enough_of_them_in_every_layer() -> None:
    assert len(all_mutants()) >= 150
    of = Counter(m.layer for m in all_mutants())
    assert set(of) == set(LAYERS)
    assert min(of.values()) >= 10


def test_no_two_have_one_name() -> None:
    assert [name for name, n in Counter(m.id for m in all_mutants()).items() if n > 1] == []


@pytest.mark.keep
def test_mutants_apply_and_their_tests_are_there() -> None:
    with Failures() as failures:
        for m in all_mutants():
            with failures.of(f"{m.layer}/{m.id}"):
                check_mutant(m)
            for test in m.tests.split():
                with failures.of(f"{m.layer}/{m.id}, {test}"):
                    check_named_test(test)


@cache
def text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def check_mutant(m: Mutant) -> None:
    source = text_of(ROOT / "src/perdure" / m.file)
    found = source.count(m.old)
    assert found == 1, (
        f"{m.file} has {found} times {m.old!r}: update the mutant to the code as it is now, or remove it with what it was about"
    )
    mutated = source.replace(m.old, m.new)
    assert mutated != source, "it changes nothing"
    if m.file.endswith(".py"):
        ast.parse(mutated)


def check_named_test(test: str) -> None:
    path, *names = re.sub(r"\[.*", "", test).split("::")
    assert (ROOT / "tests" / path).exists(), f"tests/{path} does not exist"
    text = text_of(ROOT / "tests" / path) if names else ""
    missing = [name for name in names if not re.search(rf"(def|class) {name}\b", text)]
    assert not missing, f"tests/{path} has no {', '.join(missing)}"
