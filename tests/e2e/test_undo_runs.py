"""Runs of code take back what they did: on a real engine, past deadlines, and with engines that die at every commit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from perdure import Perdure, Retry, TestEnv, task, wf, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import runs
from perdure.core.api.runs import CancelRun
from perdure.core.undo import stack_of
from perdure.engine.engine import Engine
from perdure.engine.tasks.lost_workers import settle_lost
from perdure.errors import Conflict, RunCancelled, RunFailed, TaskFailed
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.worker import Worker
from perdure.store.postgres import PostgresStore
from perdure.store.verify import verify
from perdure.wire.codec import decode_row
from tests.fakes.api import api_on, engine_on
from tests.fakes.waiting import forever, until
from tests.flows.engine_harness import SETTINGS, CrashingStore

done: list[str] = []
tries: dict[str, int] = {}
began = asyncio.Event()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    done.clear()
    tries.clear()
    began.clear()
    yield


@task(name="undo_release", retry=Retry(5, delay="1ms"))
async def release(what: str, result: str, error: dict[str, str]) -> None:
    tries[what] = tries.get(what, 0) + 1
    if what == "slippery" and tries[what] < 3:
        raise ConnectionError("not yet")
    if what == "stuck":
        raise RuntimeError("it is gone")
    done.append(f"-{result} ({error['code']})")


@task(name="undo_hold", undo=release)
async def hold(what: str) -> str:
    done.append(f"+{what}")
    return what


@task(name="undo_refuse", retry=Retry(1))
async def refuse() -> None:
    raise ValueError("no")


@task(name="undo_long", undo=release, retry=Retry(1))
async def long(what: str) -> str:
    began.set()
    await forever()


@workflow(name="undo_trip")
async def trip(whats: list[str]) -> str:
    for what in whats:
        await hold(what)
    await refuse()
    return "never"


@workflow(name="undo_wide")
async def wide(n: int) -> None:
    await hold.map([str(i) for i in range(n)])
    await asyncio.gather(long("a"), refuse())


@workflow(name="undo_waits")
async def waits(whats: list[str]) -> str:
    for what in whats:
        await hold(what)
    await forever()


@task(name="undo_let_go", retry=Retry(100, delay="10m", factor=1, max_delay="10m", jitter=False))
async def let_go() -> None:
    tries["let go"] = tries.get("let go", 0) + 1
    raise RuntimeError("never")


@task(name="undo_grip", undo=let_go)
async def grip() -> None:
    pass


@workflow(name="undo_tenacious")
async def tenacious() -> None:
    await grip()
    await forever()


@workflow(name="undo_pushes")
async def pushes() -> None:
    wf.undo(release, "x", "by hand", {"code": "pushed"})
    await forever()


@workflow(name="undo_busy")
async def busy() -> None:
    await hold("first")
    await long("second")


@workflow(name="undo_second_try")
async def second_try() -> str:
    try:
        await hold("one")
        await refuse()
    except TaskFailed:
        await wf.unwind()
    return await hold("two")


@workflow(name="undo_parent")
async def parent() -> None:
    await hold("outer")
    await trip(["inner"])


async def test_a_failed_run_takes_back_what_it_did(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await trip.start(["a", "slippery", "b"])
        with pytest.raises(RunFailed, match="^TaskFailed: ValueError: no$"):
            await handle.result()
        assert done == ["+a", "+slippery", "+b", "-b (run_failed)", "-slippery (run_failed)", "-a (run_failed)"]
        assert tries["slippery"] == 3
        with pytest.raises(Conflict, match="start it anew"):
            await (await client.get(str(handle.id))).retry()
        history = await handle.history()
        assert [(u.name, u.status) for u in stack_of(history)] == [
            ("undo_hold", "undone"),
            ("undo_hold", "undone"),
            ("undo_hold", "undone"),
        ]
    assert all(not t.violations for t in await verify(dsn, at_rest=True))


async def test_an_undo_that_cannot_be_done_is_told(dsn: str) -> None:
    async with Perdure(dsn):
        with pytest.raises(RunFailed, match="^TaskFailed: ValueError: no; and undoing 'undo_hold' failed: it is gone$"):
            await trip.run(["a", "stuck", "b"])
    assert tries["stuck"] == 5
    assert done[-1] == "-a (run_failed)"


async def test_a_cancelled_run_takes_back_what_it_did(dsn: str) -> None:
    async with Perdure(dsn):
        handle = await busy.start()
        await asyncio.wait_for(began.wait(), 10)
        await handle.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await handle.result()
    assert done == ["+first", "-first (run_cancelled)"]


async def test_a_spread_is_taken_back_and_what_still_runs_is_stopped(dsn: str) -> None:
    async with Perdure(dsn):
        with pytest.raises(RunFailed):
            await wide.run(50)
    assert sorted(d for d in done if d[0] == "-") == sorted(f"-{i} (run_failed)" for i in range(50))


async def test_code_may_unwind_and_go_on(dsn: str) -> None:
    async with Perdure(dsn):
        assert await second_try.run() == "two"
    assert done == ["+one", "-one (task_failed)", "+two"]


async def test_a_failed_child_has_taken_back_its_own(dsn: str) -> None:
    async with Perdure(dsn):
        with pytest.raises(RunFailed):
            await parent.run()
    assert done == ["+outer", "+inner", "-inner (run_failed)", "-outer (run_failed)"]


async def test_a_run_past_its_deadline_takes_back_what_it_did(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(waits.options(timeout="1h"), ["a", "b"])
        await env.advance("2h")
        with pytest.raises(RunFailed, match="the run did not end before its deadline"):
            await handle.result()
    assert done == ["+a", "+b", "-b (run_timeout)", "-a (run_timeout)"]


async def test_what_code_pushed_by_itself_is_undone_at_the_deadline(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(pushes.options(timeout="1h"))
        await env.advance("2h")
        with pytest.raises(RunFailed, match="the run did not end before its deadline"):
            await handle.result()
    assert done == ["-by hand (pushed)"]


async def test_a_run_that_cannot_undo_within_the_grace_fails_all_the_same(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(tenacious.options(timeout="1h"))
        await env.advance("90m")
        assert tries["let go"] > 1
        assert await handle.status() == "running"
        await env.advance("40m")
        with pytest.raises(RunFailed, match="the run did not end before its deadline"):
            await handle.result()


@pytest.mark.parametrize("flow", [trip, busy], ids=["failed", "cancelled"])
async def test_engines_that_die_at_every_commit_undo_everything_once(dsn: str, flow: object) -> None:
    """In turn just before the commit is written and just after, so that nobody ever hears of it."""
    store = PostgresStore(dsn)
    await store.open()
    crashing = CrashingStore(store)
    crashes = 0
    try:
        async with Perdure(dsn, worker=False) as client:
            handle = await (client.start(trip, ["a", "b", "c"]) if flow is trip else client.start(busy))
        run_id = ids.parse(str(handle.id))
        asked = ended = False

        async def live_until_the_next_crash() -> None:
            engine = engine_on(crashing, Worker(Capacity(slots=10)), SETTINGS)  # type: ignore[arg-type]
            crashing.crashed, crashing.armed = False, False
            await engine.open()
            crashing.armed = True

            async def has_crashed_or_ended() -> bool:
                nonlocal asked, ended
                engine.claims.wake()
                view = await store.describe(run_id, engine.ns)
                assert view is not None
                ended = view.finished_us is not None
                if flow is busy and began.is_set() and not asked:
                    asked = True
                    await api_on(engine, store).call(runs.CANCEL, CancelRun(ids.text(run_id), "enough"))
                return crashing.crashed or ended

            await until(has_crashed_or_ended)
            await _abandon(engine, store)

        while not ended and crashes < 80:
            await live_until_the_next_crash()
            crashes += crashing.crashed
        assert ended, f"not ended after {crashes} crashes"
        assert crashes > 8
        rows = await store.history_after(run_id, 1, 0, 1_000)
        history = [r for row in rows for r in decode_row(row.seq, row.at_us, row.body)]
        stack = stack_of(history)
        assert [u.status for u in stack] == ["undone"] * (3 if flow is trip else 1)
        undone = [e.index for r in history if isinstance(e := r.event, ev.TasksScheduled) and e.nodes]
        assert undone == [u.task for u in stack][::-1]
        assert isinstance(history[-1].event, ev.RunFailed if flow is trip else ev.RunCancelled)
    finally:
        await store.close()


async def _abandon(engine: Engine, store: PostgresStore) -> None:
    """The process is gone. Whoever looks next finds its session expired, and frees what it held."""
    tasks = [*engine._tasks, *engine.background.tasks]
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    engine.timers.close()
    engine.claims.stop_timer()
    await engine._context.worker.close()
    await store.leave(engine.session.id, settle_lost)
