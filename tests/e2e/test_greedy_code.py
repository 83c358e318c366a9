"""Workflow code that does not give way: an endless loop, one that swallows everything, a huge gather. The others of its worker go on."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest
from harness.servers import Servers

from perdure import Client, Perdure, task, wf, workflow
from perdure.errors import Stuck
from perdure.sdk.worker import workflow_runner
from perdure.sdk.worker.overrun import StretchBound
from tests.fakes.waiting import until

LIMIT_S = 0.3


@task(name="greedy_say")
async def say(n: int) -> int:
    return n


@workflow(name="greedy_loop")
async def loop(swallow: bool = False) -> None:
    n = await say(1)
    while n:
        try:
            while n:
                pass
        except Exception:
            pass


@workflow(name="greedy_twice")
async def twice() -> int:
    """Swallows the first interruption, and the second one ends it."""
    try:
        while True:
            pass
    except BaseException:
        while True:
            pass


@workflow(name="greedy_finally")
async def at_last() -> None:
    try:
        await wf.sleep("1h")
    finally:
        while True:
            pass


@workflow(name="greedy_modest")
async def modest(n: int) -> int:
    return await say(n)


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow_runner, "StretchBound", lambda unstoppable: StretchBound(unstoppable, LIMIT_S))


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("greedy", [loop, twice])
async def test_a_loop_without_end_is_stuck_with_its_stack_and_the_others_go_on(dsn: str, greedy: object) -> None:
    async with Perdure(dsn) as p:
        stuck = await p.start(greedy)  # type: ignore[arg-type]
        others = [await p.start(modest, n) for n in range(5)]
        with pytest.raises(Stuck, match="WORKFLOW_STRETCH_S_MAX") as caught:
            await stuck.result("3m")
        assert (
            "test_greedy_code.py" in str(caught.value) and "while" in str(caught.value) or "pass" in str(caught.value)
        )
        assert [await other.result("3m") for other in others] == list(range(5))
        assert p.engine.counters.sessions_fenced == 0


@pytest.mark.usefixtures("bounded")
async def test_code_that_is_thrown_away_is_bounded_too(dsn: str) -> None:
    async with Perdure(dsn) as p:
        await p.start(at_last)
        await until(lambda: any(run.state.timers for run in p.engine.runs.values()))
        began = monotonic()
        p.worker.forget_all()  # closes the coroutine, whose `finally` never ends
        assert monotonic() - began < 20
        assert await (await p.start(modest, 3)).result("3m") == 3


@workflow(name="greedy_swallows")
async def swallows() -> None:
    """Only started here; the worker has code of its own."""


SWALLOWS = """
from perdure import task, workflow

@workflow(name="greedy_swallows")
async def swallows() -> None:
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
"""


@pytest.mark.usefixtures("processes")
async def test_a_worker_whose_code_cannot_be_stopped_ends_and_the_run_is_stuck(dsn: str, tmp_path: Path) -> None:
    """And no other worker gets the run."""
    (tmp_path / "swallowing.py").write_text(SWALLOWS)
    with Servers(tmp_path, dsn, 1, lease_s=5.0) as fleet:
        server = fleet.server(0)
        await until(lambda: fleet.is_up(server, "ready"), "the server is up", 60)
        arguments = ["worker", "swallowing", "--server", fleet.addresses[0]]
        workers = [fleet._start("worker", arguments, {"PYTHONPATH": str(tmp_path)}) for _ in range(2)]
        await until(lambda: all(fleet.is_up(w, "connected") for w in workers), "the workers are up", 60)
        async with Client(fleet.addresses[0]) as client:
            handle = await client.start(swallows)
            with pytest.raises(Stuck, match="could not be stopped") as caught:
                await handle.result("3m")
            assert "swallowing.py" in str(caught.value)
        await until(lambda: any(w.process.poll() == 70 for w in workers), "one worker has ended", 30)
        assert sum(w.process.poll() is None for w in workers) == 1
