"""The plans of `just quick`, `just check` and `just long`, and the record they keep."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.checks import changes, durations, long, quick, record
from tools.checks.gate import Plan, describe_plan
from tools.checks.long import Result, describe_results
from tools.checks.parts import (
    SLICE_S,
    draw_slice,
    fill,
    list_touched,
    read_durations,
)
from tools.checks.record import FAILED, FLAKY, PASSED, Entry, append_entries, read_record

PARTS = {f"tests/e2e/test_{n}.py": 30.0 for n in range(40)}


@pytest.fixture
def own_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "deep" / "record.jsonl"
    monkeypatch.setenv("PERDURE_CHECKS_RECORD", str(file))
    return file


def entry(part: str, at: int, result: str = PASSED, tree: str = "t") -> Entry:
    return Entry(part, result, 1.0, "c", tree, at)


def test_record_returns_entries_in_order(own_record: Path) -> None:
    assert read_record() == []
    append_entries([entry("a", 1), entry("b", 2)])
    append_entries([entry("c", 3)])
    assert [e.part for e in read_record()] == ["a", "b", "c"]


def test_record_skips_a_line_cut_off_by_a_crash(own_record: Path) -> None:
    append_entries([entry("a", 1)])
    with own_record.open("a") as file:
        file.write('{"part": "b", "resu\n')
    append_entries([entry("c", 3)])
    assert [e.part for e in read_record()] == ["a", "c"]


def test_record_keeps_its_newer_half(own_record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "LINES_MAX", 10)
    append_entries(entry(str(n), n) for n in range(11))
    assert [e.part for e in read_record()] == ["6", "7", "8", "9", "10"]


def test_slice_takes_parts_that_ran_longest_ago() -> None:
    history = [entry(part, at) for at, part in enumerate(PARTS, 1)]
    oldest = list(PARTS)[: int(SLICE_S / 30)]
    assert draw_slice("any", history, PARTS) == oldest


def test_slices_of_fifteen_landings_run_every_part() -> None:
    """Half an hour of heavy tests, two minutes each time, with a record."""
    parts = {f"tests/{n}.py": 10.0 + n % 50 for n in range(51)}
    assert 1700 < sum(parts.values()) < 1800
    history: list[Entry] = []
    for landing in range(1, 20):
        history += [entry(part, landing) for part in draw_slice(f"c{landing}", history, parts)]
        if {e.part for e in history} == parts.keys():
            break
    assert landing <= 17


def test_slice_without_a_record_depends_on_the_commit() -> None:
    first, second = draw_slice("a", [], PARTS), draw_slice("b", [], PARTS)
    assert first != second
    assert first == draw_slice("a", [], PARTS)
    assert sum(PARTS[part] for part in first) <= SLICE_S


def test_part_longer_than_a_slice_is_drawn_alone() -> None:
    assert draw_slice("a", [], {"long": 500.0}) == ["long"]


def test_fill_skips_parts_that_do_not_fit() -> None:
    assert fill(["a", "b", "c"], {"a": 5, "b": 9, "c": 2}, 8) == ["a", "c"]


def test_touched_folder_adds_its_parts() -> None:
    parts = read_durations().parts()
    ui = list_touched(["ui/src/runs/RunTable.tsx"], parts)
    assert "ui-check" in ui and "tests/ui/test_runs.py" in ui
    assert not [part for part in ui if part.startswith("tests/e2e")]
    assert list_touched(["docs/index.md"], parts) == []
    heavy = next(file for file in parts if file.startswith("tests/e2e/"))
    assert list_touched([heavy], parts) == [heavy]


def test_plan_names_what_it_leaves_out() -> None:
    text = describe_plan(Plan(["ui-check"], ["tests/e2e/test_a.py"], ["tests/ui/test_b.py"]))
    assert "touched: ui-check" in text and "drawn: tests/e2e/test_a.py" in text
    assert "left to `just long`: tests/ui/test_b.py" in text


def test_quick_ranks_the_mirror_before_importers() -> None:
    tests = {
        "tests/core/test_retry.py": "from perdure.core.retry import settle",
        "tests/core/test_other.py": "from perdure.core import ids, retry",
        "tests/e2e/test_runs.py": "from perdure.core.retry import settle",
        "tests/e2e/test_none.py": "from perdure.core import ids",
        "tests/core/test_ids.py": "from perdure.core import ids",
    }
    near = quick.rank_tests(["src/perdure/core/retry.py"], tests)
    assert near == {
        "tests/core/test_retry.py": quick.NAMED,
        "tests/core/test_other.py": quick.MIRRORED,
        "tests/e2e/test_runs.py": quick.IMPORTS,
        "tests/core/test_ids.py": quick.IN_LAYER,
    }


def test_quick_chooses_cheap_tests_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "TESTS_S_MAX", 10.0)
    near = {"slow": 1, "cheap": 1, "named": 0}
    assert quick.choose_tests(near, {"slow": 9.0, "cheap": 2.0, "named": 6.0}) == ["named", "cheap"]


def test_long_holds_recipes_and_every_test_file() -> None:
    parts = long.list_parts()
    assert len(set(parts)) == len(parts)
    assert {"mypy", "coverage", "tests/project/test_checks.py", "tests/executors/ray/test_ray_conformance.py"} < set(
        parts
    )


def test_long_skips_parts_passed_on_this_tree(own_record: Path) -> None:
    append_entries(
        [
            entry("lint", 1, tree="other"),
            entry("mypy", 1),
            entry("wheel", 1),
            entry("wheel", 2, FAILED),
            entry("coverage", 1, FLAKY),
            entry("tests/test_a.py whole", 1),
            entry("tests/test_b.py", 1),
            entry("tests/test_b.py light", 1),
            entry("tests/test_c.py whole", 1, FAILED),
        ]
    )
    assert long.list_done(record.Checkout("c", "t")) == {"mypy", "coverage", "tests/test_a.py"}


def test_long_names_its_slowest_and_failed_parts() -> None:
    results = [Result(f"p{n}", PASSED, float(n)) for n in range(12)] + [Result("bad", FAILED, 1.0)]
    text = describe_results(results, 3, 600)
    assert "13 parts in 10.0 min, 3 had passed before" in text
    assert "p11" in text and "  p1\n" not in text
    assert "Failed: bad. Run it again with `just long 'bad'`." in text


def test_durations_replace_known_times_file_by_file() -> None:
    store, retry = "tests/store/test_locks.py", "tests/core/test_retry.py"
    known = {
        "files": {store: [1.0, 2.0], "tests/gone.py": [1, 1]},
        "slow": {f"{store}::a": 9.0, "tests/gone.py::b": 9.0},
    }
    recorded = {
        store: 5.0,
        f"{store} light": 3.0,
        f"{store} whole": 8.0,
        f"{retry} keep": 8.0,
        f"{store}::c": 4.0,
        f"{store}::d": 0.9,
        f"{retry} light": 2.0,
        "mypy": 70.0,
    }
    assert durations.merge_durations(known, recorded) == {
        "files": {retry: [2.0, 0.0], store: [3.0, 5.0]},
        "slow": {f"{store}::c": 4.0},
    }


def test_gate_times_do_not_clear_slow_tests() -> None:
    """They did not run."""
    store = "tests/store/test_locks.py"
    known = {"files": {store: [1.0, 2.0]}, "slow": {f"{store}::a": 9.0}}
    assert durations.merge_durations(known, {f"{store} light": 3.0})["slow"] == {f"{store}::a": 9.0}


TIERS = """
import pytest

@pytest.fixture(scope="session")
def processes():
    pass

@pytest.fixture
def server(processes):
    pass

def test_light(): pass
def test_slow(): pass
def test_heavy(server): pass
@pytest.mark.keep
def test_kept(server): pass
"""
CONFTEST = """
from pathlib import Path
from tests import tiers
tiers.DURATIONS = Path(__file__).with_name("durations.json")
def pytest_addoption(parser): tiers.add_options(parser)
def pytest_collection_modifyitems(config, items): tiers.select_and_order(config, items)
"""


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--tier=gate"], "test_light test_kept"),
        (["--tier=gate", "--with-heavy=test_tiers.py"], "test_light test_slow test_heavy test_kept"),
        ([], "test_light test_slow test_heavy test_kept"),
    ],
)
def test_tier_follows_from_fixtures_and_times(tmp_path: Path, options: list[str], expected: str) -> None:
    (tmp_path / "test_tiers.py").write_text(TIERS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n keep:\n heavy:\n")
    (tmp_path / "durations.json").write_text('{"files": {}, "slow": {"test_tiers.py::test_slow": 9.0}}')
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options, "test_tiers.py"]
    lean = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(record.ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=lean, capture_output=True, text=True, check=True)
    assert re.findall(r"::(\w+) PASSED", done.stdout) == expected.split()


def git(at: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *who, *words], cwd=at, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (record, changes):
        monkeypatch.setattr(
            module, "run_git", lambda *words, environment=None: record_git(tmp_path, words, environment)
        )
    monkeypatch.delenv("PERDURE_CHECKS_BASE", raising=False)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    return tmp_path


def record_git(at: Path, words: tuple[str, ...], environment: dict[str, str] | None) -> str:
    done = subprocess.run(["git", *words], cwd=at, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(at: Path, name: str, hour: int) -> str:
    (at / name).write_text(name)
    git(at, "add", "--all")
    when = f"2026-11-01T{hour:02}:00:00Z"
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(
        ["git", *who, "commit", "--quiet", "-m", name],
        cwd=at,
        env=os.environ | {"GIT_COMMITTER_DATE": when, "GIT_AUTHOR_DATE": when},
        check=True,
    )
    return git(at, "rev-parse", "HEAD")


def test_landing_is_what_was_committed_within_hours(repository: Path) -> None:
    commit(repository, "old", 1)
    commit(repository, "first", 8)
    commit(repository, "second", 9)
    (repository / "third").write_text("not committed")
    assert changes.list_changes() == ["first", "second", "third"]
    assert changes.list_uncommitted() == ["third"]


def test_landing_starts_where_the_variable_says(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(repository, "old", 1)
    base = commit(repository, "first", 8)
    commit(repository, "second", 9)
    monkeypatch.setenv("PERDURE_CHECKS_BASE", base)
    assert changes.list_changes() == ["second"]


def test_tree_changes_with_uncommitted_content(repository: Path) -> None:
    commit(repository, "a", 1)
    clean = record.read_checkout()
    assert clean.tree == git(repository, "rev-parse", "HEAD^{tree}")
    (repository / "b").write_text("b")
    dirty = record.read_checkout()
    assert dirty.commit == clean.commit and dirty.tree != clean.tree
    assert git(repository, "status", "--short") == "?? b"
