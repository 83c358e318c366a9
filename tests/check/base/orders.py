"""Code with runs in flight; the edits of corpus.py change it."""

import asyncio

from perdure import Promise, Signal, State, Update, task, wf, workflow

paid = Signal("paid", bool)
arrived = Signal("arrived", str)
stop = Signal("stop", bool)
approved = Promise("approved", bool)
stage = State("stage", "new")
set_limit = Update("set_limit", int, int)
pause = wf.sleep


@task
async def validate(order: str, amount: int) -> bool:
    return amount > 0


@task
async def charge(order: str, amount: int) -> str:
    return f"receipt of {order}"


@task
async def pack(item: str) -> str:
    return f"packed {item}"


@task
async def ship(order: str) -> str:
    return f"shipped {order}"


@task
async def notify(order: str, text: str) -> None:
    return None


@task
async def probe(site: str) -> int:
    return 200


def make_token() -> str:
    return "token"


@workflow(name="delivery")
async def delivery(order: str) -> str:
    await ship(order)
    where = await arrived.next()
    await notify(order, where)
    await pause("30d")
    return where


@workflow(name="order")
async def order(order: str, amount: int) -> str:
    if not await validate(order, amount):
        await notify(order, "refused")
        await pause("30d")
        return "refused"
    if amount > 100:
        await approved.wait()
    receipt = await charge(order, amount)
    stage.set("charged")
    await wf.run("token", make_token)
    await wf.map(pack, ["box", "label", "tape"])
    await paid.next()
    await delivery(order)
    return receipt


@workflow(name="monitor")
async def monitor(site: str) -> int:
    set_limit.handle(lambda limit: limit + 1)
    errors = 0
    while errors < 1000:
        status = await probe(site)
        errors += status >= 500
        try:
            await stop.next(timeout="1s" if site == "fast" else "30d")
            break
        except TimeoutError:
            pass
    left, right = await asyncio.gather(probe(site), notify(site, "stopped"))
    await pause("30d")
    return left
