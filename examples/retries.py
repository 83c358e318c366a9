"""Retries: a policy, an error that says when to come back, an error that is final, and times that bound it all.

    python examples/retries.py

What a task does about failure is said where the task is defined; the workflow only sees how it ended.
"""

import asyncio
import time

from perdure import Perdure, Retry, attempt, task, wf, workflow
from perdure.errors import FinalError, RetryLater, TaskFailed, TaskTimeout

seen: list[float] = []


@task(retry=Retry(5, delay="50ms", factor=2.0))
async def flaky(url: str) -> str:
    if attempt().number < 3:
        raise ConnectionError(f"{url} does not answer")
    return f"page of {url} at attempt {attempt().number}"


@task(retry=Retry(3, delay="1h"))
async def polite(url: str) -> str:
    """Its policy would wait for an hour; the server knows better."""
    seen.append(time.monotonic())
    if len(seen) == 1:
        raise RetryLater("300ms", f"{url} asks for a pause")
    return f"after {seen[1] - seen[0]:.1f} s"


@task(retry=10)
async def charge(card: str) -> None:
    raise FinalError(f"{card} has expired")


@task(retry=10, finish_within="500ms")
async def endless() -> None:
    await asyncio.sleep(60)


@workflow
async def everything() -> list[str]:
    told = [await flaky("example.org"), f"polite: {await polite('example.org')}"]
    for bad in (charge("the card"), endless(), wf.call("a_task_nobody_has", start_within="200ms")):
        try:
            await bad
        except (TaskFailed, TaskTimeout) as error:
            told.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return told


async def main() -> None:
    async with Perdure():
        print("\n".join(await everything.run()))


if __name__ == "__main__":
    asyncio.run(main())
