"""Planted mistakes: both strict checkers must report an error on every line marked so, and on no other line.

It is checked, not run.
"""

from __future__ import annotations

import asyncio

from sample import (
    Decision,
    Page,
    child,
    count,
    crawl,
    fetch,
    many_arguments,
    progress,
    publish,
    roll,
    share,
    steer,
    words_of,
)

from perdure import Handle, Perdure, Promise, Retry, Signal, TestEnv, task, wf, workflow


@workflow  # error
def not_async(n: int) -> int:
    return n


@task(retries=3)  # error
def unknown_option() -> None: ...


@task(process="yes")  # error
def wrong_option() -> None: ...


async def inside() -> None:
    await fetch(3)  # error
    await fetch()  # error
    await fetch("a", "b")  # error
    await count([], flor=1)  # error
    await count([Page("a", 1)], 2)  # error
    await many_arguments(1, 2, d=True)  # error
    await wf.map(fetch, [1, 2])  # error
    await wf.map(count, [[1]])  # error
    await fetch.map([1])  # error
    await child.map(["x"])  # error
    await wf.map(fetch, ["a"], on_error="ignore")  # error
    page: int = await fetch("a")  # error
    pages: list[int] = await wf.map(fetch, ["a"])  # error
    _, number = await asyncio.gather(fetch("a"), count([]))
    text: str = number  # error
    print((await wf.map(fetch, ["a"], on_error="collect"))[0].words)  # error
    await words_of(await fetch("a").result)  # error
    await wf.run("roll", roll, "six")  # error
    await wf.run("roll", roll)  # error
    dice: str = await wf.run("roll", roll, 6)  # error
    await wf.sleep(5)  # error
    await child("x")  # error
    n: int = await child(1)  # error
    await child.options(idd="x")(1)  # error
    progress.set("half")  # error
    done: str = progress.get()  # error
    decision: bool = await publish.wait()  # error
    word: int = await steer.next()  # error
    print(page, pages, text, dice, n, done, decision, word)
    Retry(attempts="3")  # error
    Signal("no type")  # error
    wrong: Promise[int] = Promise("p", Decision)  # error
    print(wrong)


async def outside() -> None:
    await crawl.start(urls=3)  # error
    await crawl.start()  # error
    await crawl.options(idd="x").start([])  # error
    await crawl.options(on_conflict="maybe").start([])  # error
    handle: Handle[int] = await crawl.start([])  # error
    length: int = await (await crawl.start([])).result()  # error
    await publish.resolve("x", "yes")  # error
    await steer.send("x", 1)  # error
    crawl.bind(1)  # error
    await share.read(digits=1)  # error
    await share.read("x", "one")  # error
    await share.read("x", digit=1)  # error
    part: str = await share.read("x")  # error
    print(part)
    async with Perdure() as perdure:
        await perdure.start(child, "x")  # error
    async with TestEnv() as env:
        env.mock(fetch, lambda url: 3)  # error
        env.mock(fetch, returns=3)  # error
        await env.run(child, "x")  # error
    print(handle, length)
