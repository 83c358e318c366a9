"""A thousand tasks in one command, and a result per item in the order of the items.

    python examples/fan_out.py

`wf.map` schedules all of them at once: the history holds two events for them, not a thousand. `concurrency=` bounds how many
are in flight, `on_error="collect"` puts exceptions where results would be.
"""

import asyncio
import time

from perdure import Perdure, Retry, task, wf, workflow

TASKS = 1_000


@task
async def square(n: int) -> int:
    return n * n


@task(retry=Retry(1))
async def half(n: int) -> int:
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n // 2


@workflow
async def sum_of_squares(n: int) -> int:
    return sum(await wf.map(square, range(n)))


@workflow
async def halves(n: int) -> list[str]:
    results = await wf.map(half, range(n), concurrency=3, on_error="collect")
    return [f"failed ({r})" if isinstance(r, Exception) else str(r) for r in results]


async def main() -> None:
    async with Perdure():
        began = time.monotonic()
        handle = await sum_of_squares.start(TASKS)
        total = await handle.result()
        elapsed = time.monotonic() - began
        print(f"{TASKS:,} tasks in {elapsed:.2f} s: the sum of squares is {total:,}")
        print(f"events in the history: {len(await handle.history())}")
        print("halves, three at a time, errors collected:")
        for n, text in enumerate(await halves.run(6)):
            print(f"  {n}: {text}")


if __name__ == "__main__":
    asyncio.run(main())
