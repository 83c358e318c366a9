"""The same program in the async and in the blocking form, for a server and embedded: both strict checkers must accept it with every type.

It is checked, not run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from perdure import (
    Approval,
    Client,
    ClientBase,
    Handle,
    NamedEvent,
    Perdure,
    Promise,
    Schedule,
    Signal,
    State,
    SyncClient,
    SyncClientBase,
    SyncHandle,
    SyncPerdure,
    Update,
    client,
    sync_client,
    workflow,
)


@dataclass
class Order:
    id: int


@dataclass
class Terms:
    days: int


steer = Signal("steer", str)
stage = State("stage", "new")
price = Update("price", int, float)
answer = Promise("answer", Order)
release = Approval("release", Terms)
ask = Approval("ask")
paid = NamedEvent("paid", Order)


@workflow
async def ship(order: Order, *, express: bool = False) -> list[str]:
    return [str(order.id)] if express else []


@ship.query
def percent(digits: int = 0) -> float:
    return round(50.5, digits)


nightly = Schedule("nightly", ship.bind(Order(1)), cron="0 8 * * *")


async def asynchronous(c: ClientBase) -> None:
    handle = await c.start(ship, Order(1), express=True)
    assert_type(handle, Handle[list[str]])
    assert_type(await c.start(ship.bind(Order(2)), timeout="5s"), Handle[list[str]])
    assert_type(await c.run(ship, Order(1)), list[str])
    assert_type(await c.run(ship.bind(Order(1)), timeout="5s"), list[str])
    assert_type(await c.get(handle.id, workflow=ship, timeout="1s"), Handle[list[str]])
    assert_type(await handle.result(timeout="1m"), list[str])
    assert_type(await c.signal(steer, handle.id, "left", timeout="1s"), bool)
    assert_type(await handle.signal(steer, "left"), bool)
    assert_type(await c.query(stage, handle.id), str)
    assert_type(await handle.query(stage), str)
    assert_type(await c.query(percent, handle.id, digits=1), float)
    assert_type(await handle.query(percent.bind(1), timeout="1s"), float)
    assert_type(await c.update(price, handle.id, 3), float)
    assert_type(await handle.update(price, 3, key="k"), float)
    await c.resolve(answer, handle.id, Order(1))
    await handle.resolve(answer, Order(1))
    assert_type(await c.approve(release, handle.id, Terms(3)), bool)
    assert_type(await handle.approve(ask), bool)
    assert_type(await c.reject(release, handle.id, comment="no"), bool)
    assert_type(await c.emit(paid, Order(1), key="k"), bool)
    for run in await c.list(workflow="ship", timeout="1s"):
        assert_type(run.id, str)
    async for run in c.runs("status = failed"):
        assert_type(run.error, str | None)
    job = await c.bulk("cancel", "workflow = ship", reason="wrong")
    assert_type((await job.wait("1m")).done, int)
    await c.schedules.apply(nightly)
    assert_type(await c.schedules.trigger("nightly"), Handle[Any])
    assert_type((await c.versions.get("ship")).current, str)
    async for question in c.approvals.list(assignee="@me"):
        assert_type(question.title, str)


def blocking(c: SyncClientBase) -> None:
    handle = c.start(ship, Order(1), express=True)
    assert_type(handle, SyncHandle[list[str]])
    assert_type(c.start(ship.bind(Order(2)), timeout="5s"), SyncHandle[list[str]])
    assert_type(c.run(ship, Order(1)), list[str])
    assert_type(c.run(ship.bind(Order(1)), timeout="5s"), list[str])
    assert_type(c.get(handle.id, workflow=ship, timeout="1s"), SyncHandle[list[str]])
    assert_type(handle.result(timeout="1m"), list[str])
    assert_type(c.signal(steer, handle.id, "left", timeout="1s"), bool)
    assert_type(handle.signal(steer, "left"), bool)
    assert_type(c.query(stage, handle.id), str)
    assert_type(handle.query(stage), str)
    assert_type(c.query(percent, handle.id, digits=1), float)
    assert_type(handle.query(percent.bind(1), timeout="1s"), float)
    assert_type(c.update(price, handle.id, 3), float)
    assert_type(handle.update(price, 3, key="k"), float)
    c.resolve(answer, handle.id, Order(1))
    handle.resolve(answer, Order(1))
    assert_type(c.approve(release, handle.id, Terms(3)), bool)
    assert_type(handle.approve(ask), bool)
    assert_type(c.reject(release, handle.id, comment="no"), bool)
    assert_type(c.emit(paid, Order(1), key="k"), bool)
    for run in c.list(workflow="ship", timeout="1s"):
        assert_type(run.id, str)
    for run in c.runs("status = failed"):
        assert_type(run.error, str | None)
    job = c.bulk("cancel", "workflow = ship", reason="wrong")
    assert_type(job.wait("1m").done, int)
    c.schedules.apply(nightly)
    assert_type(c.schedules.trigger("nightly"), SyncHandle[Any])
    assert_type(c.versions.get("ship").current, str)
    for question in c.approvals.list(assignee="@me"):
        assert_type(question.title, str)


async def async_forms() -> None:
    async with Client("127.0.0.1:8601", api_key="k", call_timeout="5s") as remote:
        await asynchronous(remote)
        blocking(sync_client(remote))
    async with Perdure("postgresql://localhost/app", slots=5, schedules=[nightly]) as embedded:
        await asynchronous(embedded)
    await asynchronous(client())


def sync_forms() -> None:
    with SyncClient("127.0.0.1:8601", api_key="k", call_timeout="5s") as remote:
        blocking(remote)
    with SyncPerdure("postgresql://localhost/app", slots=5, schedules=[nightly]) as embedded:
        blocking(embedded)
    blocking(sync_client())
