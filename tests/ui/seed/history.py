"""A month of runs in the past, made by a real engine on a clock that is set back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perdure import Perdure, Schedule, flow
from tests.ui.seed import pace
from tests.ui.seed import workflows as w

DAY_S = 86_400
QUARTER_S = 900
AFTER_S = 2.0
"""How long after a quarter of an hour the clock stops first: schedules fire in between."""
AFTERNOON_S = 14 * 3600
CHANGED_DAYS_AGO = 8
"""When the flow got its second version."""
BAD_DAYS_AGO = (17, 12, 11, 5, 2)
FLOWS = Path(__file__).parent / "flows"


def schedules() -> list[Schedule[Any]]:
    etl = flow("nightly-etl").bind(day="2026-10-22", seconds=20.0)
    return [
        Schedule("nightly", etl, cron="0 8 * * *", tz="Europe/Paris", attributes={"env": "prod", "team": "data"}),
        Schedule(
            "ledger-close",
            w.ledger_close.bind([1000, 2000, 3000]),
            cron="30 2 * * *",
            tz="Europe/Paris",
            overlap="queue",
        ),
        Schedule("crm-sync", w.sync_crm.bind(2), cron="*/15 * * * *"),
        Schedule("churn-weekly", w.train_churn.bind("v19", False), cron="0 4 * * MON", tz="America/New_York"),
    ]


async def _small(n: int) -> Any:
    """One of the small runs of a business hour."""
    kind = random.random()
    if kind < 0.45:
        amount = 950.0 if random.random() < 0.015 else random.uniform(9, 300)
        return await w.checkout.options(attributes={"env": "prod", "shop": random.choice(("eu", "us"))}).start(
            w.Order(f"A-{20_000 + n}", round(amount, 2))
        )
    if kind < 0.7:
        return await w.thumbnail.start(f"https://cdn.acme.dev/{n}.jpg")
    if kind < 0.88:
        return await w.fraud_score.start(f"A-{20_000 + n}")
    fails = random.choice((0, 0, 0, 0, 1, 1, 1, 2, 9))
    return await w.dunning.options(attributes={"env": "prod"}).start(f"inv-{n}", fails)


async def make(dsn: str, *, days: int = 30, per_hour: int = 40) -> None:
    """`per_hour`: small runs of an hour of the last day, about."""
    random.seed(23)
    async with Perdure(dsn) as client:
        for one in (*w.WORKFLOWS, *w.TASKS):
            client._backend.adopt(one)
        await client.engine.refresh()
        pace.past = past = pace.Past(client, days * DAY_S)
        try:
            await past.forward(past.behind_s - AFTER_S)  # from here on the engine knows the time, and ids have it
            current = (FLOWS / "nightly-etl.yaml").read_text()
            await client.deploy(current.replace("concurrency: 50", "concurrency: 24"))
            for schedule in schedules():
                await schedule.apply()
            for at, is_today in quarters(days):
                day = int((time.time() - at) // DAY_S)
                if day == CHANGED_DAYS_AGO:
                    await client.deploy(current)
                if day in BAD_DAYS_AGO and at % DAY_S == AFTERNOON_S:
                    await flow("nightly-etl").options(attributes={"env": "prod"}).start(day="2026-10-22", bad=True)
                await _quarter(past, at, per_hour if is_today else 0)
        finally:
            pace.past = None
            client.store.shift_clock(0.0)


def quarters(days: int) -> Iterator[tuple[float, bool]]:
    """When the clock stops: at two quarters of an hour a day, and at each of the last 24 hours."""
    now = time.time()
    first = int(now - days * DAY_S) // QUARTER_S * QUARTER_S + QUARTER_S
    for at in range(first, int(now), QUARTER_S):
        is_today = at > now - DAY_S
        if is_today or at % DAY_S in (
            90 * 60,
            7 * 3600,
            AFTERNOON_S,
        ):  # the times of the nightly schedules, in winter, and an afternoon
            yield at, is_today


async def _quarter(past: pace.Past, at: float, per_hour: int) -> None:
    past.jump(time.time() - at - AFTER_S)
    past.client.engine.scheduler.wake()
    await past.forward(past.behind_s - AFTER_S)
    await asyncio.sleep(0.1)  # what is due fires
    hour = time.localtime(at).tm_hour
    load = per_hour / 4 * (0.4 + 1.1 * max(0.0, 1 - abs(hour - 14) / 9)) * random.uniform(0.7, 1.2)
    begun = [await _small(int(at) % 100_000 + n) for n in range(round(load) if per_hour else 3)]
    done = asyncio.ensure_future(asyncio.gather(*(h.result() for h in begun), return_exceptions=True))
    until = time.time() - at - QUARTER_S + 60
    while past.behind_s > until and not (done.done() and not await _is_busy(past)):
        await past.forward(max(until, past.behind_s - 2 * pace.STEP_S))
    done.cancel()


async def _is_busy(past: pace.Past) -> bool:
    """Whether a run has not ended; the one whose queue has no worker never will."""
    async with past.client.store.pool.take() as connection:
        rows = await connection.fetch("select from perdure.run_queue where workflow <> 'train-churn-model' limit 1")
    return bool(rows)
