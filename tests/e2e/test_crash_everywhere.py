"""`crash_everywhere`: every example ends the same wherever its engine and worker are killed, and what depends on memory is found."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perdure import Approval, Promise, Signal, TestEnv, flow, task, wf, workflow
from perdure.core.errors import RunFailed
from perdure.core.retry import TaskOptions
from perdure.core.work import Assignment
from perdure.engine.commits.rows import Batch, TaskRow
from perdure.errors import PerdureError, RunCancelled
from perdure.sdk import registry
from perdure.testing import DrivenRun
from perdure.testing.crashes import places
from perdure.testing.mortal import CrashPoint

EXAMPLES = Path(__file__).parents[2] / "examples"
FLOWS = EXAMPLES / "flows"
EVERYWHERE = int(os.environ.get("PERDURE_CRASHES", "0"))
"""Crashes of each workflow at most. 0: as many as its case says."""

Run = DrivenRun[Any]


@dataclass
class Case:
    """One run of an example. `drive` gets the module of the example and the run."""

    module: str
    workflow: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    drive: Callable[[ModuleType, Run], Awaitable[None]] | None = None
    same: Callable[[Any, Any], bool] = lambda a, b: bool(a == b)
    raises: type[BaseException] | None = None
    crashes_max: int = 6
    label: str = ""

    @property
    def id(self) -> str:
        return " ".join(filter(None, (self.module, self.workflow, self.label)))


async def agreed(m: ModuleType, run: Run) -> None:
    await run.settle()
    await m.publication.approve(run.id, m.Terms("Good News"), by="ada")
    await m.publication.delegate(run.id, "dennis", by="grace")
    await m.publication.approve(run.id, m.Terms("Very Good News", 3), by="dennis")


async def rejected(m: ModuleType, run: Run) -> None:
    await run.settle()
    await m.publication.reject(run.id, by="grace", comment="no sources")


async def undecided(m: ModuleType, run: Run) -> None:
    await run.advance("1d")


async def refunded(m: ModuleType, run: Run) -> None:
    await run.settle()
    await m.approvals.approval.approve(run.id, by="ada")


async def cancelled(m: ModuleType, run: Run) -> None:
    async for event in run.handle.events():
        if event.type in ("ChildStarted", "TasksScheduled"):
            break
    await run.handle.cancel("enough")


async def travels(m: ModuleType, run: Run) -> None:
    await run.settle()
    await m.arrived.emit(m.Arrival("IR 3", 12))
    await m.arrived.emit(m.Arrival("EC 7", 4))


async def carries(m: ModuleType, run: Run) -> None:
    await run.settle()
    for piece in ("a trunk", "a hatbox"):
        await m.luggage.send(run.id, piece)
    await run.settle()
    await m.arrived.emit(m.Arrival("EC 7", 4))


async def deposits(m: ModuleType, run: Run) -> None:
    for amount in range(1, 13):
        await m.deposits.send(run.id, amount)


async def books(m: ModuleType, run: Run) -> None:
    assert await m.ask(run.id, "Ada", 2) == "Ada sits on [1, 2]"
    assert await m.ask(run.id, "Barbara", 9) == "Barbara is refused: between one and four seats, please"
    assert await m.ask(run.id, "Ada", 2) == "Ada sits on [1, 2]"
    await m.curtain.send(run.id, True)


async def priced(m: ModuleType, run: Run) -> None:
    await run.settle()
    for who in ("ada", "linus"):
        await Approval("publish", dict[str, int]).approve(run.id, {"price": 3}, by=who)


async def reviewed(m: ModuleType, run: Run) -> None:
    await Promise("review", bool).resolve(run.id, False)


async def signed(m: ModuleType, run: Run) -> None:
    await Signal("contract", dict[str, bool]).send(run.id, {"signed": True})


def same_but_for_attempts(a: list[str], b: list[str]) -> bool:
    """A crash takes an attempt and some time. What had 0.5 s to end may not even begin on a busy machine."""
    takes_time = r"after \d+\.\d s|attempt \d+|(?<=TaskTimeout: TimeoutError: ).*"
    left, right = ([re.sub(takes_time, "", text) for text in texts] for texts in (a, b))
    return left == right


PEOPLE = [{"name": "Ada", "remote": True}, {"name": "Grace", "remote": False}]
TRIP = {"city": "Oslo", "nights": ["mon", "tue"]}

CASES = [
    Case("agent", "support", ("Where is my order?", "Grace"), drive=refunded),
    Case("approval", "review", ("Good News",), drive=agreed, label="agreed"),
    Case("approval", "review", ("Bad News",), drive=rejected, label="rejected"),
    Case("approval", "review", ("No News",), drive=undecided, label="undecided"),
    Case("blobs", "report", (1000,), crashes_max=3),
    Case("cancellation", "parent", drive=cancelled, raises=RunCancelled, crashes_max=3),
    Case("cancellation", "child", drive=cancelled, raises=RunCancelled, crashes_max=3),
    Case("children", "book", ("Perdure", ["it was a dark night", "it rained"])),
    Case("children", "chapter", ("",), raises=RunFailed),
    Case("durable_sleep", "breakfast", ("croissant", "cake")),
    Case("embedded_two_processes", "spread", (3,)),
    Case("events", "traveller", ("Ada", "EC 7"), drive=travels),
    Case("events", "porter", ("EC 7",), drive=carries),
    Case("fan_out", "sum_of_squares", (50,)),
    Case("fan_out", "halves", (4,)),
    Case("hello", "hello", ("world",)),
    Case("limits", "export_all", (["ada"],), crashes_max=8),
    Case("limits", "newsletter", (3,)),
    Case("limits", "press", crashes_max=5),
    Case("limits", "index", ("draft",)),
    Case("limits", "ingest", (["a", "b"],)),
    Case("retries", "everything", same=same_but_for_attempts, crashes_max=5),
    Case("saga", "trip", ("Lisbon", "good card")),
    Case("saga", "trip", ("Oslo", "expired card"), raises=RunFailed, label="undone"),
    Case("signals", "account", (0, 78), drive=deposits),
    Case("updates", "theatre", (6,), drive=books),
    Case("flows", "approval", kwargs={"title": "Good news"}, drive=priced),
    Case("flows", "compensate", kwargs=TRIP),
    Case("flows", "compensate", kwargs=TRIP | {"card": "expired"}, raises=RunFailed, label="undone"),
    Case("flows", "etl", kwargs={"day": "2026-11-15"}),
    Case("flows", "etl", kwargs={"day": "2026-11-15", "review_above": 100}, drive=reviewed, label="reviewed"),
    Case("flows", "haggle", kwargs={"supplier": "acme"}),
    Case("flows", "haggle", kwargs={"supplier": "nobody"}, label="no answer"),
    Case("flows", "limits", kwargs={"customer": "acme"}),
    Case("flows", "onboarding", kwargs={"people": PEOPLE}, drive=signed),
    Case("flows", "pricing", kwargs={"prices": [50, 45.5]}),
]

NOT_RUN = {
    ("schedules", "reading"): "asks for the nominal time that a schedule gives its runs",
}
"""Workflows of examples that cannot be run here. The folder on_ray needs a cluster of Ray, services has no workflows; fastapi_shop and django_library
are killed in tests of their own."""


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Examples use each other's names."""
    monkeypatch.setattr(registry, "tasks", registry.Registry("task"))
    monkeypatch.setattr(registry, "workflows", registry.Registry("workflow"))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(FLOWS))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if (file := getattr(sys.modules[name], "__file__", None)) and Path(file).is_relative_to(EXAMPLES):
            del sys.modules[name]


def loaded(module: str) -> ModuleType:
    return importlib.import_module("tasks" if module == "flows" else module)


def test_every_workflow_of_the_examples_is_crashed_or_has_a_reason(own_registry: None) -> None:
    known = {(case.module, case.workflow) for case in CASES} | set(NOT_RUN)
    found = {("flows", file.stem) for file in FLOWS.iterdir() if file.suffix in (".yaml", ".json")}
    for file in EXAMPLES.glob("*.py"):
        registry.workflows = registry.Registry("workflow")
        loaded(file.stem)
        found |= {(file.stem, name) for name in registry.workflows.names() if not name.startswith("perdure.")}
    assert found == known


NOISY = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Cancel scopes of anyio, which Pydantic AI uses, complain when the coroutine of a killed run is collected."""


IN_GATE = {"approval", "fan_out", "hello", "saga", "signals"}
"""Modules whose cases stand for the others."""


def marks_of(case: Case) -> list[pytest.MarkDecorator]:
    marks = [] if case.module in IN_GATE else [pytest.mark.starts("thorough")]
    return [*marks, NOISY] if case.module == "agent" else marks


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id, marks=marks_of(case)) for case in CASES])
async def test_an_example_ends_the_same_wherever_it_crashes(case: Case, own_registry: None) -> None:
    module = loaded(case.module)
    async with TestEnv() as env:
        if case.module == "flows":
            file = next(file for file in FLOWS.iterdir() if file.stem == case.workflow)
            await env.deploy(file)
            bound: Any = flow(case.workflow).bind(**case.kwargs)
        else:
            bound = registry.workflows.get(case.workflow).bind(*case.args)

        async def drive(run: Run) -> None:
            assert case.drive is not None
            await case.drive(module, run)

        work = env.crash_everywhere(
            bound, drive=drive if case.drive else None, same=case.same, crashes_max=EVERYWHERE or case.crashes_max
        )
        if case.raises is None:
            await work
        else:
            with pytest.raises(case.raises):
                await work


# -- what must be found ---------------------------------------------------------------------------------------------

memory: dict[str, int] = {}
turns = [0]


@task(name="crash_login")
async def login() -> None:
    memory["token"] = 7


@task(name="crash_use")
async def use() -> int:
    return memory["token"]


@workflow(name="crash_keeps_it_in_a_global")
async def keeps_it_in_a_global() -> int:
    await login()
    return await use()


@lru_cache
def opened() -> list[int]:
    return []


@task(name="crash_append")
async def append() -> int:
    opened().append(1)
    return len(opened())


@workflow(name="crash_counts_in_a_cache")
async def counts_in_a_cache() -> list[int]:
    return [await append(), await append()]


class Coin:
    """Memory that is not a plain value, so that it is not put back: the code takes another way when it is replayed."""

    side = 0


@workflow(name="crash_tosses_a_coin")
async def tosses_a_coin() -> int:
    Coin.side += 1
    if Coin.side % 2:
        await login()
    return await use()


@task(name="crash_one")
async def one() -> int:
    return 1


asked = Signal("crash_asked", int)
never = Promise("crash_never", int)


@workflow(name="crash_adds")
async def adds(n: int) -> str:
    began = wf.now()
    total = n + await one()
    with suppress(TimeoutError):
        await never.wait(timeout="3d")
    total += await asked.next(timeout="1d")
    return f"{total} after {(wf.now() - began).days} days"


async def test_a_task_that_keeps_something_in_a_global_is_found() -> None:
    async with TestEnv() as env:
        with pytest.raises(AssertionError) as found:
            await env.crash_everywhere(keeps_it_in_a_global)
    text = str(found.value)
    assert "crash_keeps_it_in_a_global: after a crash that followed event 3 of 6, the run ended differently" in text
    assert "without a crash: success, 7" in text
    assert "with the crash:  failed, " in text
    assert "-RunSucceeded result=7" in text
    assert "+RunFailed" in text


async def test_a_cache_of_functools_does_not_survive_a_crash() -> None:
    async with TestEnv() as env:
        with pytest.raises(
            AssertionError, match=r"without a crash: success, \[1, 2\]\n.*with the crash:  success, \[1, 1\]"
        ):
            await env.crash_everywhere(counts_in_a_cache)


async def test_a_workflow_that_is_not_deterministic_is_found() -> None:
    async with TestEnv() as env:
        env.mock(use, returns=1)
        with pytest.raises(AssertionError, match="crash_tosses_a_coin: .* the run ended differently"):
            await env.crash_everywhere(tosses_a_coin)


async def test_time_is_skipped_and_drive_is_called_for_every_run_and_survives_the_crash() -> None:
    runs: list[str] = []

    async def drive(run: Run) -> None:
        runs.append(run.id)
        before = run.now
        await run.advance("3d")
        assert (run.now - before).days == 3
        await asked.send(run.id, 10)

    async with TestEnv() as env:
        one_ = env.mock(one, returns=2)
        assert await env.crash_everywhere(adds.bind(1), drive=drive) == "13 after 3 days"
        assert one_.call_count >= len(runs) > 5
        assert len(set(runs)) == len(runs)


async def test_results_may_be_compared_in_another_way() -> None:
    async with TestEnv() as env:
        same = lambda a, b: len(a) == len(b)  # noqa: E731
        assert await env.crash_everywhere(counts_in_a_cache, same=same) == [1, 2]


async def test_what_drive_raises_is_raised() -> None:
    async def drive(run: Run) -> None:
        raise LookupError("no such thing")

    async with TestEnv() as env:
        with pytest.raises(LookupError, match="no such thing"):
            await env.crash_everywhere(adds.bind(1), drive=drive)


async def test_a_run_that_waits_for_input_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.clockwork.INPUT_S", 0.2)

    @workflow(name="crash_waits")
    async def waits() -> int:
        return await asked.next()

    async with TestEnv() as env:
        with pytest.raises(PerdureError, match="crash_waits waits for a signal"):
            await env.crash_everywhere(waits)


async def test_a_database_of_the_user_is_not_crashed_on(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        with pytest.raises(PerdureError, match=r"use TestEnv\(\) without a DSN"):
            await env.crash_everywhere(adds.bind(1))


def test_of_many_events_some_at_even_distances_are_taken() -> None:
    assert places(5, 100) == [1, 2, 3, 4, 5]
    assert places(1000, 4) == [1, 334, 667, 1000]
    assert places(10, 1) == [1]
    assert places(0, 100) == []
    assert len(places(501, 500)) == 500


async def test_a_task_that_is_executed_after_its_result_was_recorded_is_reported() -> None:
    point = CrashPoint(3)
    row = TaskRow._make([None] * len(TaskRow._fields))._replace(run_id=bytes(16), seq=4, status="success")
    batch = Batch()
    batch.tasks.append(row)
    point.recorded(batch)
    point.assigned([Assignment(bytes(16), seq, 1, 1, f"task_{seq}", b"{}", TaskOptions()) for seq in (3, 4)])
    assert [text.partition(" ")[0] for text in point.repeated] == ["task_4"]
