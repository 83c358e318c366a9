"""Each edit of the corpus, against real runs of a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.check.conftest import Runs
from tests.check.corpus import BREAKS, CODE, COMPATIBLE, DAG, GRAPH, Edit
from tests.check.editing import checked, edited


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("edit", BREAKS, ids=lambda e: e.name)
def test_an_edit_that_breaks_runs_is_found(edit: Edit, runs: Runs, tmp_path: Path) -> None:
    path = edited(edit, tmp_path)
    done, report = checked(runs, path)
    found = [f for f in report["findings"] if f["workflow"] == edit.workflow]
    assert done.code == 6, report
    assert report["result"] == "breaks"
    assert {f["workflow"] for f in report["findings"]} == {edit.workflow}, report["findings"]
    assert edit.finds in {f["kind"] for f in found}, found
    assert any(edit.says in f.get("got", "") for f in found), json.dumps(found, indent=1)
    lines = path.read_text().splitlines()
    shown = [lines[f["place"]["line"] - 1] for f in found if "place" in f]
    assert not edit.line or any(edit.line in line for line in shown), shown
    assert all(f.get("place", {"file": str(path)})["file"] == str(path) for f in found)
    if edit.finds != "not_deterministic":
        assert all(f["runs"] >= 1 for f in found if f["kind"] == edit.finds)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("edit", COMPATIBLE, ids=lambda e: e.name)
def test_an_edit_that_breaks_no_run_is_let_through(edit: Edit, runs: Runs, tmp_path: Path) -> None:
    done, report = checked(runs, edited(edit, tmp_path))
    assert (done.code, report["findings"], report["unchecked"]) == (0, [], []), report["findings"]
    assert report["result"] == "ok"
    assert report["replayed"] >= len(report["paths"]) > 0


def test_the_corpus_is_as_large_as_it_has_to_be_and_covers_every_kind_of_workflow() -> None:
    for edits in (BREAKS, COMPATIBLE):
        assert len(edits) >= 25
        assert {e.file for e in edits} == {CODE, DAG, GRAPH}
        assert len({e.name for e in edits}) == len(edits)
