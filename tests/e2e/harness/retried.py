"""A workflow whose tasks fail a known number of times, and write every execution into a ledger."""

from __future__ import annotations

import os

import perdure
from perdure import Retry, task, workflow
from perdure.testing.ledger import Ledger
from tests.fakes.waiting import busy, busy_thread

ledger = Ledger(os.environ["PERDURE_TEST_LEDGER"])
QUICK = Retry(4, delay="20ms", max_delay="100ms")


@task(retry=QUICK)
async def later(failures: int) -> int:
    with ledger.execution() as line:
        await busy(0.02)
        if perdure.attempt().number <= failures:
            raise ConnectionError(f"attempt {perdure.attempt().number} of {failures} that fail")
        line.effect()
    return failures


@task(retry=QUICK)
def blocking(failures: int) -> int:
    with ledger.execution() as line:
        busy_thread(0.005)
        if perdure.attempt().number <= failures:
            raise LookupError("not yet")
        line.effect()
    return failures


@workflow
async def retried(number: int) -> int:
    return await later(number % 3) + await blocking(number % 2)
