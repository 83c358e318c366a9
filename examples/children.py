"""Workflows that start workflows: each child is a run of its own, with its own history and its own id.

    python examples/children.py

A parent awaits a child like a task. What the child raises, the parent sees as ChildFailed; a parent that ends or is cancelled
takes its children with it.
"""

import asyncio

from perdure import Perdure, task, wf, workflow
from perdure.errors import ChildFailed


@task
async def count_words(text: str) -> int:
    return len(text.split())


@workflow
async def chapter(text: str) -> int:
    if not text:
        raise ValueError("an empty chapter")
    return await count_words(text)


@workflow
async def book(title: str, chapters: list[str]) -> str:
    counts = await wf.map(chapter, chapters, concurrency=2)
    # A child under a key of your own can be found from outside, and a second run cannot take the key.
    foreword = await chapter.options(key=f"{title}/foreword")("to whom it may concern")
    try:
        await chapter("")
    except ChildFailed as e:
        print(f"  the parent sees its child's failure: {e}")
    return f"{title}: {sum(counts) + foreword} words in {len(counts)} chapters and a foreword"


async def main() -> None:
    async with Perdure():
        handle = await book.start("Perdure", ["it was a dark night", "it rained", "the end"])
        print(await handle.result())
        started = [e async for e in handle.events() if e.type == "ChildStarted"]
        print(f"child runs: {len(started)}")


if __name__ == "__main__":
    asyncio.run(main())
