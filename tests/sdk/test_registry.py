"""Names of tasks and workflows in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure import task
from perdure.errors import NotRegistered
from perdure.sdk import registry
from perdure.sdk.worker.definitions import WorkerDefinitions


@pytest.fixture(autouse=True)
def only_these(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "tasks", registry.Registry("task"))
    monkeypatch.setattr(registry, "workflows", registry.Registry("workflow"))
    yield


def define(name: str) -> None:
    @task(name=name)
    async def first() -> None: ...


def define_another(name: str) -> None:
    @task(name=name)
    async def second() -> None: ...


def test_a_name_of_two_functions_is_served_by_neither_and_a_worker_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A run waited for such a task, and nothing said why."""
    define("pack")
    define("twice")
    define_another("twice")
    served = WorkerDefinitions(None, None)
    served.refresh()
    served.refresh()
    assert served.kinds == [("default", "pack")]
    (warned,) = [r.getMessage() for r in caplog.records]
    assert warned.startswith("two tasks are called 'twice': ")
    assert "define.<locals>.first" in warned and "define_another.<locals>.second" in warned
    assert warned.endswith("give one of them another name=; this worker serves neither")
    with pytest.raises(NotRegistered, match="two tasks are called 'twice'"):
        registry.tasks.get("twice")


def test_the_same_function_defined_again_is_no_conflict(caplog: pytest.LogCaptureFixture) -> None:
    define("once")
    define("once")
    served = WorkerDefinitions(None, None)
    served.refresh()
    assert served.kinds == [("default", "once")] and not caplog.records


def test_what_a_worker_was_given_by_hand_keeps_its_name(caplog: pytest.LogCaptureFixture) -> None:
    define("mine")
    chosen = registry.tasks.get("mine")
    served = WorkerDefinitions(None, None)
    served.adopt(chosen)
    define_another("mine")
    served.refresh()
    assert served.task("mine") is chosen and not caplog.records
