"""Every case of the corpus, decided in memory: live, and with the decider lost before every step.

The longer ways: the decider is lost after every step, or all tasks that can end do so together.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import pytest

from perdure.core import events as ev
from tests.flows.case import Case, differences, expected_lines, label, lines_of, load, name_of, paths
from tests.flows.pure import Forgets, World

PATHS = paths()
ENDS: dict[type, str] = {ev.RunSucceeded: "success", ev.RunFailed: "failed", ev.RunCancelled: "cancelled"}


def check(case: Case, history: list[ev.Recorded]) -> None:
    """A run's history against what the case expects of it."""
    wrong = differences(expected_lines(case.expect.commands), lines_of(history))
    assert not wrong, "\n".join(["", case.about, *wrong])
    end = history[-1].event
    assert ENDS.get(type(end), "running") == case.expect.status
    if case.expect.result is not msgspec.UNSET:
        assert isinstance(end, ev.RunSucceeded)
        assert msgspec.json.decode(end.result) == case.expect.result
    if case.expect.error:
        assert isinstance(end, ev.RunFailed)
        assert end.failure.code == case.expect.error.get("code", end.failure.code)
        assert case.expect.error.get("message", "") in end.failure.message
    for name, wanted in case.expect.tasks.items():
        event = next(e for r in history if isinstance(e := r.event, ev.TasksScheduled) and label(e, e.first) == name)
        given = {"queue": event.queue, "name": event.name, **msgspec.structs.asdict(event.options)}
        assert msgspec.json.decode(msgspec.json.encode({k: given[k] for k in wanted})) == wanted


@pytest.fixture(params=PATHS, ids=name_of)
def path(request: pytest.FixtureRequest) -> Path:
    """Every case, one after the other. One that is ahead of the decider has to fail, until it is done."""
    found: Path = request.param
    if reason := load(found).not_yet:
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    return found


@cache
def live(path: Path) -> World:
    """A case as it is played live. Played once: the other ways compare with it, and change nothing of it."""
    return World(load(path), path.stem).run()


def test_a_flow_asks_for_exactly_these_commands(path: Path) -> None:
    check(load(path), live(path).main.history)


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_a_decider_rebuilt_before_every_step_does_the_same(path: Path) -> None:
    check_rebuilt(path, "before")


@pytest.mark.usefixtures("thorough")
@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_a_decider_rebuilt_after_every_step_does_the_same(path: Path) -> None:
    check_rebuilt(path, "after")


def check_rebuilt(path: Path, forgets: Forgets) -> None:
    rebuilt = World(load(path), path.stem, forgets).run()
    assert [r.history for r in rebuilt.runs] == [r.history for r in live(path).runs]


@pytest.mark.usefixtures("thorough")
@pytest.mark.parametrize("forgets", ["never", "after"])
@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_what_happens_together_ends_as_one_by_one(path: Path, forgets: Forgets) -> None:
    case = load(path)
    if case.not_yet:
        pytest.skip("the decider does not do this yet")
    end = World(case, path.stem, forgets, together=True).run().main.history[-1].event
    assert ENDS.get(type(end), "running") == case.expect.status
    if isinstance(end, ev.RunSucceeded):
        assert msgspec.json.decode(end.result) == msgspec.json.decode(_result(case))


def _result(case: Case) -> str:
    return expected_lines(case.expect.commands)[-1].removeprefix("complete ")


def test_the_corpus_is_not_lost() -> None:
    """A glob that finds nothing would pass every test here."""
    assert len(PATHS) >= 130
    assert {p.parent.name for p in PATHS} == {"dag", "graph", "mixed"}
