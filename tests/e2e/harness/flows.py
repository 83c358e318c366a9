"""Workflows of mixed shapes whose tasks write everything they do into a ledger.

A task answers with its own id and takes the ids of the tasks it depends on, so that data dependencies are visible in the ledger.
"""

from __future__ import annotations

import asyncio
import os

import perdure
from perdure import Retry, Signal, State, task, wf, workflow
from perdure.errors import TaskFailed, TaskLost
from perdure.testing.ledger import Ledger
from tests.fakes.waiting import busy, busy_thread

ledger = Ledger(os.environ["PERDURE_TEST_LEDGER"])
OPEN = os.environ["PERDURE_TEST_LEDGER"] + ".open"
"""When this file is there the gate is open."""
QUICK = Retry(4, delay="50ms", max_delay="200ms")

go = Signal("go", str)
progress = State("progress", 0)


@task(retry=QUICK)
async def step(after: list[str], pause_s: float = 0.0) -> str:
    with ledger.execution(after) as line:
        if pause_s:
            await busy(pause_s)
        line.effect()
    return perdure.attempt().task_id


@task(retry=QUICK)
def blocking_step(after: list[str]) -> str:
    with ledger.execution(after) as line:
        busy_thread(0.005)
        line.effect()
    return perdure.attempt().task_id


@task(retry=QUICK)
async def leaf(number: int) -> str:
    with ledger.execution() as line:
        if number % 5 == 0:
            await busy(0.02)
        line.effect()
    return perdure.attempt().task_id


@task(retry=Retry(3, delay="50ms", max_delay="200ms"))
async def flaky(after: list[str]) -> str:
    """Fails in its first two attempts, lost ones included."""
    with ledger.execution(after) as line:
        if perdure.attempt().number < 3:
            raise ConnectionError("not yet")
        line.effect()
    return perdure.attempt().task_id


@task(at_most_once=True)
async def once(after: list[str]) -> str:
    with ledger.execution(after) as line:
        await busy(0.01)
        line.effect()
    return perdure.attempt().task_id


@workflow
async def chain(length: int) -> str:
    last: list[str] = []
    for i in range(length):
        last = [await (blocking_step(last) if i % 3 == 2 else step(last))]
        progress.set(i + 1)
    return last[0]


@workflow
async def spread(width: int) -> int:
    first = await step([])
    leaves = await wf.map(leaf, range(width))
    assert len(set(leaves)) == width
    await step([first, *leaves])
    return width


@workflow
async def nap(seconds: float) -> None:
    first = await step([])
    await wf.sleep(seconds)
    await step([first])


@workflow
async def family(children: int) -> int:
    first = await step([])
    ended = await asyncio.gather(*(chain(2) for _ in range(children)), nap(0.2))
    await step([first])
    return len(ended)


@workflow
async def stubborn() -> None:
    await flaky([await step([])])


@workflow
async def careful() -> str:
    try:
        return await once([])
    except TaskLost:
        return await step([])


@workflow
async def lingering(seconds: float) -> None:
    await step([await step([], seconds)])


@workflow
async def listening(patience_s: float) -> str:
    first = await step([])
    try:
        word = await go.next(timeout=patience_s)
    except TimeoutError:
        word = ""
    await step([first])
    return word


@workflow
async def relay(left: int) -> int:
    await step([])
    if left:
        wf.continue_as_new(left - 1)
    return left


@task(retry=Retry(2, delay="50ms"))
async def gate(after: list[str]) -> str:
    """Fails until the gate is open."""
    with ledger.execution(after) as line:
        if not os.path.exists(OPEN):
            raise ConnectionError("closed")
        line.effect()
    return perdure.attempt().task_id


@workflow
async def doomed(width: int, depth: int) -> int:
    """Fails at the gate, or because of a child that does; what it did about that is taken back when it is retried."""
    first = await step([])
    leaves = await wf.map(leaf, range(width))
    progress.set(1)
    if depth:
        await doomed(width, depth - 1)
    else:
        try:
            first = await gate([first])
        except TaskFailed:
            progress.set(-1)
            await step([await step([first])])
            raise
    progress.set(2)
    await step([first, *leaves])
    return width


SHAPES = 9
DOOMED = 9
"""The shape that does not end well by itself; it is not among those that are drawn."""


async def start_one(shape: int, number: int) -> str:
    """Start a run of some shape; returns its id once that is durable."""
    if shape == DOOMED:
        return (await doomed.start(1 + number % 5, number % 3)).id
    match shape % SHAPES:
        case 0:
            return (await chain.start(2 + number % 5)).id
        case 1:
            return (await spread.start(3 + number % 18)).id
        case 2:
            return (await nap.start(0.1 + number % 30 / 10)).id
        case 3:
            return (await family.start(1 + number % 3)).id
        case 4:
            return (await stubborn.start()).id
        case 5:
            return (await careful.start()).id
        case 6:
            return (await lingering.start(0.5 + number % 20 / 10)).id
        case 7:
            return (await listening.start(5.0)).id
        case _:
            return (await relay.start(number % 3)).id
