"""Hooks of runs: a task or a workflow that runs after a run has failed or succeeded, once per end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import Perdure, Retry, task, workflow
from perdure.core import ids
from perdure.core.api import notifications as acts
from perdure.core.api import runs
from perdure.core.api.notifications import ListNotifications
from perdure.core.api.runs import ChangeRun, ListRuns, RunFilter, RunItem
from perdure.core.lifecycle import RunStatus
from perdure.errors import FlowError, InvalidInput, RunFailed
from tests.fakes.waiting import until

seen: list[tuple[str, dict[str, Any]]] = []


@task(retry=Retry(1))
async def hook_tell(ended: dict[str, Any]) -> None:
    seen.append(("tell", ended))


@task(retry=Retry(1))
async def hook_breaks(ended: dict[str, Any]) -> None:
    seen.append(("breaks", ended))
    raise ValueError("the hook fails")


@workflow
async def hook_cleanup(ended: dict[str, Any]) -> None:
    seen.append(("cleanup", ended))


@workflow(on_failure=hook_tell, on_success=hook_cleanup)
async def hooked(x: int) -> int:
    if x < 0:
        raise ValueError("below zero")
    return 2 * x


@workflow(on_failure=hook_breaks)
async def hooked_badly() -> None:
    raise ValueError("the run fails")


@workflow(on_failure="hook_missing")
async def hooked_nowhere() -> None:
    raise ValueError("the run fails")


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[Perdure]:
    seen.clear()
    async with Perdure(dsn) as one:
        yield one


async def ended_runs(app: Perdure, workflow: str) -> list[RunItem]:
    page = await app._backend.call(runs.LIST, ListRuns(RunFilter(workflow=workflow)))
    return [r for r in page.items if r.finished_us is not None]


async def test_a_failed_run_calls_its_task_once_with_what_happened(app: Perdure) -> None:
    handle = await hooked.options(key="order-1").start(-1)
    with pytest.raises(RunFailed):
        await handle.result()
    (run,) = await until(lambda: ended_runs(app, "hooked.on_failure"), "the hook has run")
    assert run.status == RunStatus.SUCCESS
    assert run.key == f"perdure.hook:{handle.id}:{await _events(app, handle.id)}"
    ((name, ended),) = seen
    assert name == "tell"
    assert (ended["run_id"], ended["workflow"], ended["key"]) == (handle.id, "hooked", "order-1")
    assert (ended["status"], ended["result"]) == ("failed", None)
    assert "below zero" in ended["error"]["message"]


async def test_a_run_that_succeeds_starts_the_workflow_of_its_hook_with_the_result(app: Perdure) -> None:
    assert await hooked.run(21) == 42
    (run,) = await until(lambda: ended_runs(app, "hook_cleanup"), "the hook has run")
    assert run.status == RunStatus.SUCCESS
    ((name, ended),) = seen
    assert (name, ended["status"], ended["result"], ended["error"]) == ("cleanup", "success", 42, None)


async def test_a_retried_run_that_fails_again_calls_its_hook_again(app: Perdure) -> None:
    handle = await hooked.start(-1)
    with pytest.raises(RunFailed):
        await handle.result()
    await until(lambda: len(seen) == 1, "the hook has run")
    await app._backend.call(runs.RETRY, ChangeRun(handle.id))
    await until(lambda: len(seen) == 2, "the hook has run again")
    assert {ended["run_id"] for _, ended in seen} == {handle.id}


async def test_a_hook_that_fails_is_a_failed_run_and_changes_nothing_of_the_first(app: Perdure) -> None:
    handle = await hooked_badly.start()
    with pytest.raises(RunFailed):
        await handle.result()
    (run,) = await until(lambda: ended_runs(app, "hooked_badly.on_failure"), "the hook has run")
    assert run.status == RunStatus.FAILED
    (first,) = await ended_runs(app, "hooked_badly")
    assert "the run fails" in str(first.error)


async def test_a_hook_whose_workflow_is_unknown_is_tried_again_and_says_why(app: Perdure) -> None:
    with pytest.raises(RunFailed):
        await hooked_nowhere.run()

    async def tried() -> Any:
        found = (await app._backend.call(acts.LIST, ListNotifications())).items
        return [n for n in found if n.error]

    (row,) = await until(tried, "it was tried")
    assert (row.kind, row.hook, row.status) == ("hook.failed", "hook_missing", "pending")
    assert "hook_missing" in str(row.error)


async def test_the_run_of_a_hook_has_no_hooks_itself(app: Perdure) -> None:
    made = workflow(name="hook_loop", on_failure="hook_loop")(_loops)
    app.serve(made)
    with pytest.raises(RunFailed):
        await made.run({})

    async def two() -> bool:
        return len(await ended_runs(app, "hook_loop")) >= 2

    await until(two, "the hook has run")
    async with app.store.pool.take() as c:
        assert await c.fetchval("select count(*) from perdure.notification") == 1


async def _loops(ended: dict[str, Any]) -> None:
    raise ValueError("again")


async def test_a_flow_runs_the_node_of_its_hook_as_a_flow_of_its_own(app: Perdure) -> None:
    await app.deploy(
        {
            "flow": "hooked_flow",
            "input": {"x": {"type": "integer"}},
            "tasks": {"broken": {"value": "${ 1 / input.x }"}},
            "on_failure": {"python": "hook_tell", "with": {"ended": "${ input.run }"}},
            "on_success": {"value": "${ input.run.result.broken }"},
        }
    )
    from perdure import flow

    with pytest.raises(RunFailed):
        await flow("hooked_flow").run(x=0)
    await until(lambda: len(seen) == 1, "the hook has run")
    assert seen[0][1]["workflow"] == "hooked_flow"
    await flow("hooked_flow").run(x=1)
    (run,) = await until(lambda: ended_runs(app, "hooked_flow.on_success"), "the other hook has run")
    assert run.status == RunStatus.SUCCESS


async def test_a_mistake_in_a_hook_is_a_problem_of_the_flow(app: Perdure) -> None:
    broken = {"flow": "f", "tasks": {"a": {"value": 1}}, "on_failure": {"value": "${ nothing.there }"}}
    with pytest.raises(FlowError, match="on_failure"):
        await app.deploy(broken)


def test_a_hook_that_is_neither_task_nor_workflow_is_refused() -> None:
    with pytest.raises(InvalidInput, match="on_failure is a task or a workflow"):
        workflow(name="hooked_wrong", on_failure=print)(_loops)


async def _events(app: Perdure, run: str) -> int:
    async with app.store.pool.take() as c:
        found: int = await c.fetchval("select events from perdure.run where run_id = $1", ids.parse(run))
    return found
