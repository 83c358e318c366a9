"""The same order on Perdure.

perdure server
perdure worker after --apply-schedules
python after.py order A-1
python after.py approve A-1 ada
python after.py report
"""

import asyncio
import sys

import shop

from perdure import Client, Handle, Retry, Schedule, Signal, State, task, workflow

approved = Signal("approved", str)
step = State("step", "new")
patiently = Retry(5, delay="1s")


@task(timeout="30s", retry=patiently)
def reserve(number: str, line: shop.Line) -> int:
    return shop.reserve(number, line)


@task(timeout="30s")
def ask(number: str, cents: int) -> None:
    shop.ask(number, cents)


@task(timeout="30s")
def charge(number: str, cents: int) -> str:
    return shop.charge(number, cents)


@task(timeout="30s")
def ship(number: str) -> str:
    return shop.ship(number)


@task(timeout="30s")
def report() -> str:
    return shop.report()


@workflow
async def fulfil(order: shop.Order) -> str:
    number = order["id"]
    step.set("reserving")
    cents = sum(await asyncio.gather(*(reserve(number, line) for line in order["lines"])))
    await ask(number, cents)
    step.set("waiting for approval")
    by = await approved.next(timeout="2d")
    step.set("sending")
    await charge(number, cents)
    await asyncio.sleep(shop.PACKING_S)  # durable, as wf.sleep() is
    parcel = await ship(number)
    return f"order {number}: {parcel}, {cents / 100:.2f} paid, approved by {by}"


@workflow
async def nightly_report() -> str:
    return await report()


nightly = Schedule("nightly", nightly_report.bind(), cron="0 8 * * *")


async def place(client: Client, number: str) -> Handle[str]:
    return await client.start(fulfil.options(key=number, on_conflict="attach"), shop.order(number))


async def main() -> None:
    async with Client() as client:
        match sys.argv[1:]:
            case ["order", number]:
                await place(client, number)
            case ["approve", number, by]:
                handle = await client.get(key=number, workflow=fulfil)
                print(await handle.query(step))
                await handle.signal(approved, by)
                print(await handle.result())
            case ["report"]:
                print(await client.run(nightly_report))


if __name__ == "__main__":
    asyncio.run(main())
