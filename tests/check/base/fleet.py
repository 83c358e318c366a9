"""A workflow whose route decides which of many ways a run takes."""

from perdure import Signal, State, task, wf, workflow

go = Signal("go", bool)
place = State("place", 0)
pause = wf.sleep


@task
async def load(amount: int) -> int:
    return amount


@task
async def drive(amount: int) -> int:
    return amount


@task
async def unload(amount: int) -> int:
    return amount


@workflow(name="fleet")
async def fleet(route: int, amount: int) -> int:
    if route & 1:
        amount = await load(amount)
    if route & 2:
        await pause("1s")
    if route & 4:
        await wf.map(drive, [amount, amount + 1])
    if route & 8:
        place.set(route)
    for _ in range(2):
        await drive(amount)
    if route & 16:
        amount = await unload(amount)
    if route & 32:
        await drive(amount)
    await go.next()
    await pause("30d")
    return amount
