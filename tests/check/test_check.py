"""Options, formats and static findings of `perdure check`."""

from __future__ import annotations

from pathlib import Path as File

import pytest

from perdure.programs.check import gate
from perdure.programs.check.collect import Path, Served
from perdure.programs.check.replays import Divergence
from perdure.programs.check.static import removed_tasks, removed_workflows
from perdure.programs.check.targets import Targets
from tests.check.conftest import Runs
from tests.check.corpus import BREAKS, COMPATIBLE, Edit
from tests.check.editing import checked, edited
from tests.cli.processes import Running, started

NONE = Served(frozenset(), frozenset(), frozenset())


def named(name: str) -> Edit:
    return next(e for e in (*BREAKS, *COMPATIBLE) if e.name == name)


@pytest.mark.usefixtures("fresh")
def test_github_gets_an_annotation_at_the_line(runs: Runs, tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    path = edited(named("another child"), tmp_path)
    monkeypatch.chdir(tmp_path)
    done = runs.cli("check", path.name, "--format", "github")
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "await monitor(order)" in text)
    assert done.code == 6
    assert f"::error file={path.name},line={line},title=order%3A 2 runs in flight::" in done.out
    assert "%0Agot      (code):    child workflow 'monitor'" in done.out


@pytest.mark.usefixtures("fresh")
def test_only_the_runs_that_are_named_are_checked(runs: Runs, tmp_path: File) -> None:
    path = edited(named("another child"), tmp_path)
    done, report = checked(runs, path, "--workflow", "monitor")
    assert (done.code, report["findings"]) == (0, [])
    assert {p["workflow"] for p in report["paths"]} == {"monitor"}


@pytest.mark.usefixtures("fresh")
def test_runs_before_since_are_left_out(runs: Runs, tmp_path: File) -> None:
    _, report = checked(runs, edited(named("another child"), tmp_path), "--since", "2099-01-01T00:00:00Z")
    assert (report["runs"], report["paths"], report["findings"]) == (0, [], [])


@pytest.mark.usefixtures("fresh")
def test_a_difference_from_an_ended_run_is_a_warning(runs: Runs, tmp_path: File) -> None:
    run = runs.start("delivery", "order=ended")
    runs.waits(run, "signal")
    runs.cli.ok("cancel", run)
    runs.ends(run)
    path = edited(named("a comment"), tmp_path)
    path.write_text(path.read_text().replace("    await ship(order)\n", '    await notify(order, "x")\n'))
    words = ("--workflow", "delivery", "--finished", "5", "--since", "2099-01-01T00:00:00Z")
    done, report = checked(runs, path, *words)
    assert (done.code, report["paths"]) == (0, []), "since is for ended runs too"
    done, report = checked(runs, path, *words[:4])
    ended = [p for p in report["paths"] if p["ended"]]
    assert [p["breaks"] for p in ended] == [1]
    assert "warning" in {f["severity"] for f in report["findings"] if f["run"] == run}


PINNED = """
from perdure import Signal, workflow

first, second = Signal("first", str), Signal("second", str)


@workflow(name="kept", versioning="pinned")
async def kept() -> str:
    return await first.next()
"""


@pytest.mark.usefixtures("fresh")
def test_a_pinned_run_is_replayed_only_as_if_it_were_moved(runs: Runs, place: Running, tmp_path: File) -> None:
    file = tmp_path / "kept.py"
    file.write_text(PINNED)
    with started("worker", "kept.py", "--server", place.grpc, cwd=tmp_path) as worker:
        worker.until("connected")
        run = runs.start("kept")
        runs.waits(run, "signal")
    file.write_text(PINNED.replace("first.next()", "second.next()"))
    done, report = checked(runs, file)
    assert (done.code, report["findings"], report["paths"]) == (0, [], [])
    ((name, versions),) = report["pinned"].items()
    assert name == "kept" and list(versions.values()) == [1]
    said = runs.cli("check", str(file)).err
    assert f"1 run of kept pinned to version {next(iter(versions))}" in said
    moved, report = checked(runs, file, "--pinned")
    assert moved.code == 6 and [f["kind"] for f in report["findings"]] == ["wait_removed"]
    runs.cli.ok("terminate", run)


def path(workflow: str, *, pending: tuple[str, ...] = (), kind: str = "code") -> Path:
    return Path(workflow, kind, "ff", "start", 7, set(pending), (), [("a-run", 0, 0)])


def test_a_scheduled_task_that_nothing_would_serve_is_found() -> None:
    targets = Targets({"order": None}, frozenset({"charge"}), {}, has_code=True)  # type: ignore[dict-item]
    waiting = [path("order", pending=("charge", "pack", "perdure.http"))]
    (found,) = removed_tasks(targets, waiting, NONE)
    assert (found.kind, found.workflow, found.runs, found.expected) == ("task_removed", "order", 7, "task 'pack'")
    assert not list(removed_tasks(targets, waiting, Served(frozenset({"pack"}), frozenset(), frozenset())))
    elsewhere = [path("other", pending=("pack",), kind="flow")]
    assert not list(removed_tasks(targets, elsewhere, NONE))
    assert list(removed_tasks(targets, elsewhere, Served(frozenset(), frozenset(), frozenset({"pack"}))))


def test_a_workflow_that_another_worker_serves_is_not_removed() -> None:
    targets = Targets({"order": None}, frozenset(), {}, has_code=True)  # type: ignore[dict-item]
    flying = [path("order"), path("monitor"), path("nightly", kind="flow")]
    assert [f.workflow for f in removed_workflows(targets, flying, NONE)] == ["monitor"]
    assert not list(removed_workflows(targets, flying, Served(frozenset(), frozenset({"monitor"}), frozenset())))


@pytest.mark.parametrize(
    ("lengths", "waits", "found"),
    [
        ([5, 5], ("signal:stop",), True),
        ([5, 5], (), False),
        ([5, 6, 6], ("signal:stop",), True),
        ([5, 6, 7, 8], ("signal:stop",), False),
    ],
    ids=["it still waits", "it has gone on since the walk", "it went on and waits again", "it keeps going on"],
)
def test_a_wait_counts_as_removed_only_for_a_run_that_waits_now(
    lengths: list[int], waits: tuple[str, ...], found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waits of the walk are older than the history that is replayed."""
    histories = iter([[None] * n for n in lengths])

    def replayed(workflow: object, run_id: bytes, history: object, given: tuple[str, ...]) -> Divergence | None:
        return Divergence(kind="wait_removed", where="signal stop", expected="", got="") if given else None

    monkeypatch.setattr(gate, "history_of", lambda api, run: next(histories))
    monkeypatch.setattr(gate, "waits_of", lambda api, run: waits)
    monkeypatch.setattr(gate, "replay_code", replayed)
    monkeypatch.setattr(gate, "CONFIRM_S", 0)
    targets = Targets({"monitor": None}, frozenset(), {}, has_code=True)  # type: ignore[dict-item]
    run = "01a1e83b-3411-7000-bbd9-225fbd545d76"
    one = gate._Gate(None, targets, lambda text: None, pinned=False)  # type: ignore[arg-type]
    one.replay(Path("monitor", "code", "ff", "start", 7, set(), ("signal:stop",), [(run, 0, 0)]))
    assert [f.kind for f in one.findings] == (["wait_removed"] if found else [])
