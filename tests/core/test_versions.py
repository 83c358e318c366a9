"""Which version a new run gets."""

from __future__ import annotations

from perdure.core import ids
from perdure.core.versions import Chosen, VersionChoice, is_ramped

RUNS = [ids.run_id(1_700_000_000_000 + n, 0, n) for n in range(4_000)]


def test_a_ramp_gets_its_part_and_a_larger_one_adds_runs() -> None:
    parts = {p: {r for r in RUNS if is_ramped(r, p)} for p in (0.0, 10.0, 50.0, 100.0)}
    assert not parts[0.0] and parts[100.0] == set(RUNS)
    assert parts[10.0] < parts[50.0]
    assert 320 < len(parts[10.0]) < 480 and 1_850 < len(parts[50.0]) < 2_150


def test_a_choice_follows_from_the_id() -> None:
    choice = VersionChoice("1", True, "2", False, 10.0)
    assert {choice.of(r) for r in RUNS} == {Chosen("1", True), Chosen("2", False)}
    assert all((choice.of(r).version == "2") == is_ramped(r, 10.0) for r in RUNS)
    assert {VersionChoice("1").of(r) for r in RUNS} == {Chosen("1", False)}
