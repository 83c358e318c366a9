"""CEL's own conformance tests: every case has the outcome that CEL wants, or is listed as different."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.expressions.cel.cases import DIFFERENCES, FILES, HERE, LEFT_OUT, load, outcome
from tests.core.expressions.cel.report import PAGE, page


@pytest.mark.parametrize("name", FILES)
def test_cases_pass_unless_they_are_listed_as_different(name: str) -> None:
    found = {case["name"]: outcome(case) for case in load(name)["cases"]}
    listed = DIFFERENCES["different"][name]
    assert {case: said for case, said in found.items() if said and case not in listed} == {}, "new differences"
    assert [case for case in listed if not found[case]] == [], "listed as different, and yet as CEL wants it"


def test_every_difference_has_a_reason_and_every_reason_a_case() -> None:
    used = {category for cases in DIFFERENCES["different"].values() for category in cases.values()}
    assert used == set(DIFFERENCES["categories"])


def test_every_file_is_either_run_or_left_out() -> None:
    assert {p.stem for p in HERE.glob("*.json")} == {*FILES, "differences"}
    assert not set(LEFT_OUT) & set(FILES)
    names = [case["name"] for name in FILES for case in load(name)["cases"]]
    assert len(names) > 1_000 and all(
        len({c["name"] for c in load(f)["cases"]}) == len(load(f)["cases"]) for f in FILES
    )


def test_the_page_of_differences_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.core.expressions.cel.report"


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"expr": "1 + 1", "value": 2}, ""),
        ({"expr": "1 + 1", "value": 3}, "2 instead of 3"),
        ({"expr": "1 == 1", "value": 1}, "True instead of 1"),
        ({"expr": "1 / 0", "error": True}, ""),
        ({"expr": "1 / 1", "error": True}, "a value instead of an error: 1"),
        ({"expr": "x.y", "bindings": {"x": {"map": [["y", {"double": 1.5}]]}}, "value": {"double": 1.5}}, ""),
        ({"expr": "'a'", "value": {"bytes": "61"}}, "no such value: bytes"),
    ],
)
def test_the_runner_tells_outcomes_apart(case: dict[str, Any], said: str) -> None:
    assert outcome(case) == said
