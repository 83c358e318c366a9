"""Options of `@task` hold where a flow calls the task, on an embedded engine and on a server with remote workers."""

from __future__ import annotations

import time
from typing import Any

from perdure import Perdure, RateLimit, Retry, flow, task
from perdure.core.events import TasksScheduled
from perdure.errors import RunFailed
from perdure.sdk import registry
from tests.fakes.waiting import forever

began: list[float] = []


@task(name="decl_send", queue="mail", rate=RateLimit(2, per="1s", key="decl-mail"))
async def decl_send(n: int) -> int:
    began.append(time.monotonic())
    return n


tries: list[str] = []


@task(name="decl_fails", retry=Retry(2, delay="1ms"))
async def decl_fails(which: str) -> None:
    tries.append(which)
    raise ValueError("no")


@task(name="decl_slow", timeout="50ms", retry=1)
async def decl_slow() -> None:
    await forever()


def define() -> None:
    for one in (decl_send, decl_fails, decl_slow):
        registry.tasks.adopt(one)


async def scheduled(handle: Any) -> TasksScheduled:
    """The record of the first tasks of a run."""
    events = [getattr(one, "event", one) for one in await handle.history()]
    return next(e for e in events if isinstance(e, TasksScheduled))


async def test_queue_rate_retry_and_timeout_of_a_task_hold_in_a_flow(dsn: str) -> None:
    define()
    began.clear()
    tries.clear()
    async with Perdure(dsn) as client:
        await client.deploy(
            "flow: decl_mail\ntasks: {all: {foreach: 'range(6)', python: decl_send, with: {n: '${ item }'}}}"
        )
        handle = await flow("decl_mail").start()
        assert await handle.result("3m") == {"all": [0, 1, 2, 3, 4, 5]}
        assert (await scheduled(handle)).queue == "mail"
        # 2 a second with a burst of 1: the sixth begins 2.5 s after the first. A slow machine only makes it longer.
        assert began[-1] - began[0] >= 2.4
        await client.deploy("flow: decl_bad\ntasks: {a: {python: decl_fails, with: {which: own}}}")
        await failed(await flow("decl_bad").start())
        await client.deploy("flow: decl_worse\ntasks: {a: {python: decl_fails, with: {which: flow}, retry: 4}}")
        await failed(await flow("decl_worse").start())
        assert (tries.count("own"), tries.count("flow")) == (2, 4)
        await client.deploy("flow: decl_late\ntasks: {a: {python: decl_slow}}")
        handle = await flow("decl_late").start()
        assert "task_timeout" in await failed(handle)
        async with client.store.pool.take() as c:
            rows = await c.fetch("select name from perdure.task_type where options is not null order by name")
        assert {"decl_fails", "decl_send", "decl_slow"} <= {r["name"] for r in rows}


async def failed(handle: Any) -> str:
    try:
        await handle.result("3m")
    except RunFailed as error:
        return f"{error.failure.code} {error.failure.message}"
    raise AssertionError("it succeeded")
