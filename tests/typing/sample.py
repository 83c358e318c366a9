"""Every feature of the SDK, typed: both strict checkers must accept this file, and every inferred type is asserted.

It is checked, not run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from perdure import (
    Attempt,
    Bound,
    EngineSettings,
    Event,
    Handle,
    Perdure,
    Promise,
    Retry,
    Signal,
    State,
    Step,
    SyncHandle,
    SyncPerdure,
    Task,
    TestEnv,
    Workflow,
    attempt,
    replay,
    task,
    wf,
    workflow,
)
from perdure.errors import ChildFailed, Failure, PerdureError, RunCancelled, RunFailed, TaskError, TaskFailed
from perdure.testing import DrivenRun, Mock, SyncTestEnv


@dataclass
class Page:
    url: str
    words: int


@dataclass
class Decision:
    ok: bool
    note: str = ""


publish = Promise("publish", Decision)
steer = Signal("steer", str)
progress = State("progress", 0)
stage: State[Page | None] = State("stage", None, Page | None)

assert_type(publish, Promise[Decision])
assert_type(steer, Signal[str])
assert_type(progress, State[int])


# -- definitions ----------------------------------------------------------------------------------------------------------


@task
async def fetch(url: str) -> Page:
    me = attempt()
    assert_type(me, Attempt)
    assert_type(me.number, int)
    me.heartbeat()
    me.heartbeat({"words": 1})
    return Page(url, 1)


@task(retry=Retry(5, never=(ValueError,)), timeout="30s", queue="io", heartbeat=timedelta(seconds=5))
def count(pages: list[Page], *, floor: int = 0) -> int:
    return len(pages) + floor


@task(process=True, retry=2)
def crunch(page: Page) -> int:
    return page.words


@task(executor="ray", num_gpus=1, num_cpus=0.5, resources={"tpu": 1}, executor_options={"memory": 1 << 30})
def train(page: Page) -> float:
    return page.words / 2


@task(name="many", at_most_once=True)
def many_arguments(a: int, b: str, c: float = 1.0, *rest: bytes, d: bool, **more: int) -> None:
    """Types hold for any number of arguments."""


@task
def words_of(page: Page) -> int:
    return page.words


@workflow
async def child(n: int) -> str:
    return str(n)


@workflow(name="no-arguments", version="7", timeout="1h")
async def no_arguments() -> None: ...


@child.query
def share(digits: int = 0, *, of: str = "all") -> float:
    return round(progress.get() / 3, digits)


assert_type(share(1, of="some"), float)
assert_type(fetch("a"), Step[Page])
assert_type(count([], floor=2), Step[int])
assert_type(many_arguments(1, "b", 2.0, b"r", d=True, e=5), Step[None])


def roll(sides: int, *, times: int = 1) -> int:
    return sides * times


async def look_up(name: str) -> bytes:
    return name.encode()


# -- inside a workflow ------------------------------------------------------------------------------------------------------


@workflow
async def crawl(urls: list[str]) -> str:
    one = await fetch(urls[0])
    assert_type(one, Page)

    page, n = await asyncio.gather(fetch(urls[0]), count([], floor=1))
    assert_type(page, Page)
    assert_type(n, int)

    pages = await wf.map(fetch, urls, concurrency=50)
    assert_type(pages, list[Page])
    maybe = await wf.map(fetch, urls, on_error="collect")
    assert_type(maybe, list[Page | Exception])
    also = await fetch.map(urls, concurrency=3)
    assert_type(also, list[Page])
    mixed = await words_of.map(pages, on_error="collect")
    assert_type(mixed, list[int | Exception])
    kids = await wf.map(child, [1, 2])
    assert_type(kids, list[str])
    more_kids = await child.map([1, 2], concurrency=1, on_error="collect")
    assert_type(more_kids, list[str | Exception])

    step = fetch.options(retry=3, timeout=timedelta(seconds=3), queue="fast", heartbeat="1s", at_most_once=False)(
        urls[0]
    )
    assert_type(step, Step[Page])
    assert_type(step.id, UUID)
    if not step.done():
        step.cancel()

    dice = await wf.run("roll", roll, 6, times=2)
    assert_type(dice, int)
    found = await wf.run("look up", look_up, "name")
    assert_type(found, bytes)
    text = await wf.run("inline", lambda: "x")
    assert_type(text, str)

    assert_type(await wf.sleep("1d"), None)
    await wf.sleep(timedelta(hours=1))
    await wf.sleep(wf.now() + timedelta(days=1))
    await asyncio.sleep(5)
    assert_type(wf.now(), datetime)
    assert_type(wf.uuid(), UUID)
    assert_type(wf.random(), float)
    assert_type(wf.run_id(), str)
    if wf.patched("new way"):
        n += 1

    assert_type(progress.get(), int)
    progress.set(progress.get() + len(pages))
    progress.clear()
    stage.set(one)
    assert_type(stage.get(), Page | None)

    decision = await publish.wait(timeout="2d")
    assert_type(decision, Decision)
    word = await steer.next(timeout="1h")
    assert_type(word, str)
    async for more in steer:
        assert_type(more, str)
        break

    untyped = await wf.call("somewhere else", {"n": 1}, queue="q", retry=Retry(2), timeout="5s")
    assert_type(untyped, Any)

    try:
        answer = await child.options(key=f"c-{dice}", timeout="1h", on_conflict="fail")(n)
        assert_type(answer, str)
    except ChildFailed as e:
        assert_type(e.failure, Failure)
        raise
    try:
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            first = group.create_task(crawl_one(urls[0]))
    except* TaskFailed as errors:
        assert_type(errors, ExceptionGroup[TaskFailed])
        raise
    assert_type(first.result(), int)

    done, pending = await asyncio.wait([fetch("a"), fetch("b")], return_when=asyncio.FIRST_COMPLETED)
    assert_type(done, set[Step[Page]])
    assert_type(pending, set[Step[Page]])
    waited = await asyncio.wait_for(asyncio.shield(fetch("a")), 3)
    assert_type(waited, Page)
    for next_one in asyncio.as_completed([fetch("a"), fetch("b")]):
        assert_type(await next_one, Page)

    if not decision.ok:
        wf.continue_as_new(urls[1:])
    return answer


async def crawl_one(url: str) -> int:
    assert_type(await crunch(await fetch(url)), int)
    return await words_of(await fetch(url))


# -- outside ------------------------------------------------------------------------------------------------------------------


async def client() -> None:
    async with Perdure("postgresql://localhost/app", slots=10, settings=EngineSettings(lease_s=10)) as perdure:
        handle = await crawl.options(key="crawl-42", on_conflict="attach").start(["https://a"])
        assert_type(handle, Handle[str])
        assert_type(handle.id, str)
        await publish.resolve(handle.id, Decision(True))
        await steer.send(handle.id, "left")
        assert_type(await progress.read(handle.id), int)
        assert_type(await share.read(handle.id, digits=1, of="some"), float)
        assert_type(await share.read(handle.id, 1), float)
        assert_type(await stage.read(handle.id), Page | None)
        assert_type(await handle.result(timeout="5s"), str)
        assert_type(await handle.status(), str)
        events: AsyncIterator[Event] = handle.events(after=3)
        async for event in events:
            assert_type(event.seq, int)
            assert_type(event.type, str)
        await handle.cancel("enough")
        await handle.resume()
        assert_type(await crawl.run([]), str)
        assert_type(await child.run(n=3), str)
        assert_type(await perdure.start(child, 3), Handle[str])
        assert_type(await perdure.get(handle.id, workflow=child), Handle[str])
        bound = crawl.bind(["https://a"])
        assert_type(bound, Bound[str])
        try:
            await handle.result()
        except (RunFailed, RunCancelled) as e:
            assert_type(e.failure, Failure)
        except PerdureError as e:
            assert_type(e.code, str)
        # Outside a workflow a task is the plain function behind the same awaitable.
        assert_type(await fetch("a"), Page)


def sync_client() -> None:
    with SyncPerdure("postgresql://localhost/app") as perdure:
        assert_type(perdure.run(child, 3), str)
        handle = perdure.start(crawl, ["a"])
        assert_type(handle, SyncHandle[str])
        assert_type(handle.result(timeout="1s"), str)
        perdure.signal(steer, handle.id, "left")
        perdure.resolve(publish, handle.id, Decision(True))
        assert_type(perdure.query(progress, handle.id), int)


async def test_crawl() -> None:
    async with TestEnv() as env:
        env.mock(fetch, lambda url: Page(url, 3))
        env.mock(words_of, async_words)
        with env.mock(fetch, returns=Page("a", 3)) as mock:
            assert_type(mock, Mock)
            assert_type(mock.call_count, int)
        env.mock(fetch, raises=OSError)
        env.mock("perdure.http", returns={"status": 200})
        assert_type(await env.crash_everywhere(child.bind(5), drive=drive), str)
        handle = await env.start(crawl, ["a"])
        assert_type(handle, Handle[str])
        await env.advance("1d")
        assert_type(await env.run(child, 5), str)
    await replay(crawl, histories="tests/histories/*.json")


def sync_test(env: SyncTestEnv) -> None:
    assert_type(env.run(child, 5), str)
    assert_type(env.start(child, 5), SyncHandle[str])


async def drive(run: DrivenRun[str]) -> None:
    await steer.send(run.id, "left")


async def async_words(page: Page) -> int:
    return page.words


def takes_definitions(t: Task[[str], Page], w: Workflow[[int], str]) -> None:
    assert_type(t("a"), Step[Page])
    assert_type(w(1), Step[str])
    assert_type(t.name, str)


takes_definitions(fetch, child)


def catches(error: TaskError) -> str:
    return error.failure.message
