"""Runs that slept in the database and are taken up again: in what order they hear of things, and what happens when many are due at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import EngineSettings, Handle, Perdure, Signal, wf, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import runs as acts
from perdure.core.errors import Unavailable
from perdure.core.work import StartRequest
from perdure.engine.services import claims
from tests.fakes.waiting import until

LIMIT = 60.0
woken_words = Signal("woken_words", str)


@workflow
async def woken_sleeper(n: int) -> int:
    await wf.sleep("1s")
    return n


@workflow
async def woken_listener() -> str:
    try:
        return await woken_words.next(timeout="1s")
    except TimeoutError:
        return "nothing came"


@workflow
async def woken_short(n: int) -> int:
    return n


async def timer_us(handle: Handle[Any]) -> int:
    """When the timer of a run is due; 0 if it has none yet."""
    return next((r.event.fire_at_us for r in await handle.history() if isinstance(r.event, ev.TimerStarted)), 0)


async def test_a_run_that_its_timer_woke_is_given_its_history_and_the_timer_at_once(dsn: str) -> None:
    async with Perdure(dsn):
        handles = [await woken_sleeper.start(n) for n in range(3)]
        last_us = max([await until(lambda h=h: timer_us(h)) for h in handles])  # type: ignore[misc]
    await until(lambda: time.time_ns() // 1000 > last_us)
    async with Perdure(dsn) as second:
        for n, handle in enumerate(handles):
            again = await second.get(handle.id, workflow=woken_sleeper)
            assert await again.result(LIMIT) == n
            kinds = [type(r.event) for r in await again.history()]
            assert kinds == [ev.RunStarted, ev.TimerStarted, ev.TimerFired, ev.RunSucceeded]
        assert second.engine.counters.activations == 3


async def test_what_came_in_time_while_a_run_slept_counts_before_its_timer(dsn: str) -> None:
    async with Perdure(dsn):
        handle = await woken_listener.start()
        due_us = await until(lambda: timer_us(handle))
    async with Perdure(dsn, worker=False):
        await woken_words.send(handle.id, "in time")
    await until(lambda: time.time_ns() // 1000 > due_us)
    async with Perdure(dsn) as second:
        again = await second.get(handle.id, workflow=woken_listener)
        assert await again.result(LIMIT) == "in time"
        (heard,) = [r for r in await again.history() if type(r.event) is ev.SignalReceived]
        (started,) = [r for r in await again.history() if type(r.event) is ev.TimerStarted]
        assert heard.at_us > started.event.fire_at_us  # the timer was due by then


async def start_unowned(dsn: str, runs: int) -> list[bytes]:
    """Runs that are due and belong to nobody."""
    async with Perdure(dsn, worker=False) as starter:
        requests = [StartRequest(workflow="woken_short", version="1", input=b'{"n": %d}' % n) for n in range(runs)]
        started = await asyncio.gather(*(starter._backend.call(acts.START, r) for r in requests))
        return [one.run_id for one in started]


async def check_ended(engine: Perdure, run_ids: Sequence[bytes]) -> None:
    async with asyncio.timeout(LIMIT):
        results = [await (await engine.get(ids.text(run_id))).result() for run_id in run_ids]
    assert results == list(range(len(run_ids)))


async def test_memory_that_is_full_takes_in_more_as_soon_as_runs_have_ended(dsn: str) -> None:
    run_ids = await start_unowned(dsn, 100)
    async with Perdure(dsn, settings=EngineSettings(runs_max=8)) as engine:
        engine.serve(woken_short)
        began = time.monotonic()
        await check_ended(engine, run_ids)
        assert time.monotonic() - began < 100 / 8 * claims.Claims.poll_s * 0.75  # not one look a second


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "CLAIM_RUNS_MAX", 10)


@pytest.mark.usefixtures("small_pages")
async def test_a_page_that_cannot_be_read_while_the_next_is_claimed_is_read_later(dsn: str) -> None:
    run_ids = await start_unowned(dsn, 45)
    failed: list[int] = []
    async with Perdure(dsn) as engine:
        load = engine.store.load

        async def broken(run_ids: Sequence[bytes]) -> Any:
            if len(failed) < 2:
                failed.append(len(run_ids))
                await until(lambda: engine.engine.counters.runs_claimed > 10, "the next page is claimed")
                raise Unavailable("away for the test")
            return await load(run_ids)

        engine.store.load = broken  # type: ignore[method-assign]
        engine.serve(woken_short)
        await check_ended(engine, run_ids)
        assert engine.engine.counters.runs_claimed == 45
        assert engine.engine.counters.sessions_fenced == 0
    assert failed[0] == 10 and failed[1] >= 20  # all that is claimed and not in memory is read in one go


@pytest.mark.usefixtures("small_pages")
async def test_a_claim_whose_answer_is_lost_while_a_page_is_read_strands_nothing(dsn: str) -> None:
    run_ids = await start_unowned(dsn, 45)
    pages: list[int] = []
    async with Perdure(dsn) as engine:
        claim = engine.store.claim_runs

        async def answerless(*args: Any, **kwargs: Any) -> Any:
            claimed = await claim(*args, **kwargs)
            if claimed:
                pages.append(len(claimed))
                if len(pages) == 2:
                    raise Unavailable("the answer is lost for the test")
            return claimed

        engine.store.claim_runs = answerless  # type: ignore[method-assign]
        engine.serve(woken_short)
        await check_ended(engine, run_ids)
        assert engine.engine.counters.sessions_fenced == 1
    assert pages[:2] == [10, 10]
