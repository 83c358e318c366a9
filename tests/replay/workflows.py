"""The workflows whose histories are kept as golden files. Change them only in ways that replay must survive."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from perdure import Limit, Promise, Retry, Signal, State, Update, task, wf, workflow
from perdure.errors import ChildFailed, TaskFailed
from tests.fakes import waiting


@dataclass
class Order:
    item: str
    count: int


approve = Promise("approve", bool)
reprice = Update("reprice", Order, float)
label = Update("label", str, str)
note = Signal("note", str)
progress = State("progress", 0)


@task
async def price(order: Order) -> float:
    return order.count * 2.5


@task(retry=Retry(2, delay="1s", jitter=False))
async def refuse(reason: str) -> None:
    raise ValueError(reason)


@task
async def forever(x: int) -> int:
    await waiting.forever()


def roll() -> int:
    return 4


@workflow(version="1")
async def chained(order: Order) -> float:
    """Tasks one after the other and side by side, recorded side effects, time, randomness."""
    first = await price(order)
    a, b = await asyncio.gather(price(Order("x", 1)), price(Order("y", 2)))
    dice = await wf.run("roll", roll)
    wf.uuid()
    return first + a + b + dice + (0 if wf.random() < 1 else 1)


@workflow(version="1")
async def fanned(n: int) -> float:
    """Bulk fan-out, with and without a limit, collecting errors."""
    total = sum(await wf.map(price, [Order("f", i) for i in range(n)]))
    total += sum(await wf.map(price, [Order("g", i) for i in range(n)], concurrency=3))
    mixed = await wf.map(refuse, ["a", "b"], on_error="collect")
    return total + sum(isinstance(m, TaskFailed) for m in mixed)


@workflow(version="1")
async def timed(d: str) -> str:
    """Timers that fire, timers that are cancelled, a task that is cancelled by a timeout."""
    await wf.sleep(d)
    try:
        async with asyncio.timeout(5):
            await forever(1)
    except TimeoutError:
        pass
    async with asyncio.timeout(50):
        await price(Order("t", 1))
    return wf.now().tzname() or ""


@workflow(version="1")
async def messaged(x: int) -> str:
    """Signals, a promise, state, a patch."""
    progress.set(1)
    first = await note.next()
    second = await note.next(timeout="1h")
    progress.set(progress.get() + 1)
    ok = await approve.wait(timeout="1d")
    progress.clear()
    return f"{first} {second} {ok} {wf.patched('later')}"


@workflow(version="1")
async def gathered(wait: str) -> list[str]:
    """One of the messages came while the code ended, before its end was written."""
    notes: list[str] = []
    while True:
        try:
            notes.append(await note.next(timeout=wait))
        except TimeoutError:
            return notes


@workflow(version="1")
async def leaf(x: int) -> int:
    if x < 0:
        raise ValueError("negative")
    return x * 2


@workflow(version="1")
async def sleeper(x: int) -> int:
    await wf.sleep("30d")
    return x


@workflow(version="1")
async def parent(x: int) -> str:
    """Children that succeed, fail, and are cancelled."""
    good = await leaf(x)
    try:
        await leaf(-1)
    except ChildFailed as e:
        bad = str(e)
    slow = sleeper(1)
    await price(Order("p", 1))
    slow.cancel()
    also = await wf.map(leaf, [1, 2, 3])
    return f"{good} {bad} {also}"


@workflow(version="1")
async def witness(x: int) -> str:
    """Sees a child that another caller cancelled."""
    try:
        await sleeper.options(key=f"sleeper-of-witness-{x}")(x)
    except ChildFailed as e:
        return e.failure.code
    return "?"


@workflow(version="1")
async def cancelled(x: int) -> str:
    """Cancelled from outside; cleans up with another task."""
    try:
        await wf.sleep("1d")
    except asyncio.CancelledError:
        await price(Order("cleanup", 1))
        raise
    return "not reached"


@workflow(version="1")
async def failing(x: int) -> str:
    await refuse("because")
    return "not reached"


repaired: set[str] = set()
"""Names that no longer fail."""


@task(retry=Retry(1))
async def fragile(name: str) -> str:
    if name not in repaired:
        raise ConnectionError(f"{name} is down")
    return name


@workflow(version="1")
async def brittle(name: str) -> str:
    if name not in repaired:
        raise ConnectionError(f"{name} is down")
    return name


@workflow(version="1")
async def persistent(x: int) -> str:
    """Fails and is retried: a failure it got over, one it compensated and could not, a child, a step that took too long."""
    await price(Order("first", 1))
    try:
        await fragile("spare part")
    except TaskFailed:
        progress.set(1)
    try:
        part = await fragile("part")
    except TaskFailed as e:
        await price(Order("undo", 1))
        raise RuntimeError("no part") from e
    async with asyncio.timeout(5):
        await patience(1)
    return part + await brittle("child")


@task(retry=Retry(1))
async def patience(x: int) -> int:
    if "patience" not in repaired:
        await waiting.forever()
    return x


@workflow(version="1")
async def renewed(n: int) -> int:
    if n > 0:
        await price(Order("r", n))
        wf.continue_as_new(n - 1)
    return n


@workflow(version="1")
async def labelled(n: int) -> float:
    """Search attributes are set and deleted."""
    wf.set_attribute("stage", "pricing")
    wf.set_attribute("n", n)
    total = await price(Order("l", n))
    wf.set_attribute("stage", None)
    wf.set_attribute("total", total)
    return total


@workflow(limit=Limit(1))
async def delayed() -> float:
    """Began later than it was started: its clock starts when it began."""
    began = wf.now()
    await wf.sleep("90s")
    return (wf.now() - began).total_seconds()


@workflow(version="1")
async def updated(limit: int) -> list[str]:
    """Updates that came before their handler, were validated, refused, went wrong, awaited a task, and were taken one by one."""

    async def change(order: Order) -> float:
        total = await price(order)
        progress.set(progress.get() + order.count)
        return 10 / (total - 25)

    def sane(order: Order) -> None:
        if order.count > limit:
            raise ValueError(f"{order.count} is more than {limit}")

    await note.next()
    reprice.handle(change, validate=sane)
    labels: list[str] = []
    async for request in label:
        if request.value == "bad":
            request.reject("no such label")
            continue
        labels.append(request.value)
        request.reply(request.value.upper())
        if request.value == "last":
            break
    return labels


ALL = {
    w.name: w
    for w in (
        chained,
        fanned,
        timed,
        messaged,
        gathered,
        leaf,
        parent,
        witness,
        cancelled,
        failing,
        renewed,
        persistent,
        updated,
        labelled,
        delayed,
    )
}
