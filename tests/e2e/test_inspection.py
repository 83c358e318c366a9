"""A run as of an event, two runs side by side, and the debugger, on histories of real runs."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from perdure import Handle, Perdure, Promise, Retry, State, task, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import inspection
from perdure.core.api.inspection import DiffRuns, ExportRun, GetRunAt, RunAt
from perdure.errors import InvalidInput, RunFailed
from perdure.testing.debugger import EventDebugger
from perdure.wire.codec import history_from_json
from tests.fakes.waiting import until

seen = State("look_seen", 0)
answer = Promise("look_answer", str)


@task(name="look_double", retry=Retry(1))
async def double(x: int) -> int:
    if x > 100:
        raise ValueError("too large")
    return 2 * x


async def helper(x: int) -> int:
    return await double(x)


@workflow(name="look_work")
async def work(x: int) -> int:
    a = await helper(x)
    seen.set(a)
    b = await double(a * 10)
    return a + b


@workflow(name="look_wait")
async def wait(x: int) -> str:
    await double(x)
    return await answer.wait()


async def at(client: Perdure, handle: Handle[Any], number: int) -> RunAt:
    return await client._backend.call(inspection.AT, GetRunAt(handle.id, number))


async def failed(client: Perdure) -> Handle[Any]:
    handle = await client.start(work, 30)
    with pytest.raises(RunFailed, match="too large"):
        await handle.result("3m")
    return handle


async def test_the_state_of_every_event_follows_from_the_history_up_to_it(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await failed(client)
        history = await handle.history()
        assert [type(r.event).__name__ for r in history] == [
            *("RunStarted", "TasksScheduled", "TasksSucceeded", "StateSet", "TasksScheduled", "TaskFailed", "RunFailed")
        ]
        found = [await at(client, handle, n) for n in range(1, 8)]
        assert [[(o.kind, o.seq) for o in f.outstanding] for f in found] == [
            *([], [("task", 0)], [], [], [("task", 1)], [], [])
        ]
        assert [f.states.get("look_seen") for f in found] == [None, None, None, *[b"60"] * 4]
        assert [f.status for f in found] == ["running"] * 6 + ["failed"]
        assert [r.error or r.value for r in found[5].results] == ["ValueError: too large", b"60"]
        assert (await at(client, handle, 0)).at == 7
        with pytest.raises(InvalidInput, match="events 1 to 7"):
            await at(client, handle, 8)


async def test_two_runs_are_compared_step_by_step(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await failed(client)
        forked = await handle.fork(6, {"1": 7})
        assert await forked.result("3m") == 67
        found = await client._backend.call(inspection.DIFF, DiffRuns(handle.id, forked.id))
        assert found.parted is not None
        assert (found.same, found.parted.step, found.parted.differs) == (1, "task 1", ["outcome", "result"])
        assert found.differs == ["status", "result", "error"]
        other = await client.start(work, 2)
        await other.result("3m")
        found = await client._backend.call(inspection.DIFF, DiffRuns(handle.id, other.id))
        assert found.parted is not None
        assert (found.same, found.parted.step, found.parted.differs) == (0, "task 0", ["input", "result"])
        same = await client._backend.call(inspection.DIFF, DiffRuns(other.id, other.id))
        assert (same.same, same.parted, same.differs) == (2, None, [])


async def exported(client: Perdure, handle: Handle[Any]) -> tuple[bytes, list[ev.Recorded]]:
    document = (await client._backend.call(inspection.EXPORT, ExportRun(handle.id))).document
    run_id, history = history_from_json(document)
    assert [r.event for r in history] == [r.event for r in await handle.history()]
    return ids.parse(run_id), history


def typed(definition: Any, run_id: bytes, history: list[ev.Recorded], *commands: str) -> list[str]:
    out = io.StringIO()
    given = io.StringIO("\n".join(commands) + "\n")
    EventDebugger(definition, run_id, history, stdin=given, stdout=out).debug()
    return out.getvalue().replace("(perdure) ", "").splitlines()


async def test_the_debugger_goes_from_event_to_event_and_back(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await failed(client)
        run_id, history = await exported(client, handle)
    run = asyncio.get_running_loop().run_in_executor
    lines = await run(None, typed, work, run_id, history, *("p x", "ev", "ev", "p a", "back", "w", "ev 1", "p x", "q"))
    stops = [line.split(")")[0].rpartition("(")[2] for line in lines if line.startswith("> ") and "test_insp" in line]
    first = work.fn.__code__.co_firstlineno + 2
    # The first line; after task 0, inside of the helper; at the await that raises; back in the helper, and its caller; the first line.
    assert stops[0] == str(first)
    assert "raised here: TaskFailed: ValueError: too large" in lines
    assert lines.count("30") == 2 and "60" in lines
    assert [line.split("  ")[0] for line in lines if line.startswith("event ")] == [
        *("event 1", "event 3", "event 6", "event 3", "event 1")
    ]


async def test_the_debugger_ends_where_the_run_waits(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(wait, 1)

        async def waits() -> bool:
            return any(isinstance(r.event, ev.PromiseCreated) for r in await handle.history())

        await until(waits)
        run_id, history = await exported(client, handle)
        run = asyncio.get_running_loop().run_in_executor
        lines = await run(None, typed, wait, run_id, history, *("c", "p x", "q"))
        (place,) = [line for line in lines if line.startswith("the code waits at")]
        assert place.endswith("in wait: return await answer.wait()")
        assert "it waits for promise 'look_answer'" in lines
        assert "1" in lines, "its variables can be looked at"
        await answer.resolve(handle.id, "x")
        assert await handle.result("3m") == "x", "the run itself goes on as if nothing had happened"
