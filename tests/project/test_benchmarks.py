"""Results of the bench are drawn."""

from __future__ import annotations

import runpy
from pathlib import Path
from xml.etree import ElementTree

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "benchmarks.py"))


def result(ratio: float) -> dict[str, object]:
    return {"date": "2026-01-02", "commit": "abc", **{w: {"ratio_to_life3": ratio} for w in SCRIPT["WORKLOADS"]}}


def test_each_workload_is_a_line_with_a_point_per_result() -> None:
    tree = ElementTree.fromstring(SCRIPT["drawing"]([result(0.5), result(0.6), result(0.7)]))
    lines = [e for e in tree if e.tag.endswith("polyline")]
    assert len(lines) == len(SCRIPT["WORKLOADS"]) and all(len(e.get("points", "").split()) == 3 for e in lines)


def test_one_result_is_enough() -> None:
    assert ElementTree.fromstring(SCRIPT["drawing"]([result(0.5)])) is not None
