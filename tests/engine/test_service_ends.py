"""An engine ends its loops, also one whose cancellation was lost in an error of the driver."""

from __future__ import annotations

import asyncio

from perdure.core.errors import Unavailable
from perdure.engine.services.service import ended, keep_running


async def test_an_error_in_place_of_a_cancellation_ends_the_loop() -> None:
    begun = 0
    inside = asyncio.Event()

    async def body() -> None:
        nonlocal begun
        begun += 1
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Unavailable("cannot roll back: the connection is closed") from None

    task = asyncio.create_task(keep_running("testing", body))
    await inside.wait()
    task.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait([task])
    assert task.cancelled() and begun == 1


async def test_an_error_without_a_cancellation_begins_it_again() -> None:
    begun = 0

    async def body() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise Unavailable("the database is away")

    async with asyncio.timeout(5):
        await keep_running("testing", body)
    assert begun == 2


async def test_a_task_that_lost_its_cancellation_is_cancelled_again() -> None:
    lost = 0
    inside = asyncio.Event()

    async def stubborn() -> None:
        nonlocal lost
        inside.set()
        while lost < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1

    async def over() -> None:
        pass

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(over())]
    await inside.wait()
    async with asyncio.timeout(5):
        await ended(tasks, again_s=0.01)
    assert lost == 2 and all(task.done() for task in tasks)
