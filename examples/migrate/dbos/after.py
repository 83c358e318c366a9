"""The same order on Perdure, in the processes and in the PostgreSQL of the application, as it was.

python after.py serve
python after.py order A-1
python after.py approve A-1 ada
python after.py report
"""

import asyncio
import os
import sys

import shop

from perdure import EngineSettings, Perdure, Retry, Schedule, Signal, State, task, wf, workflow

DSN = os.environ.get("SHOP_DSN", "postgresql://postgres@127.0.0.1/shop")
SETTINGS = EngineSettings(lease_s=3, heartbeat_s=1)
"""After three seconds of silence another process takes over the runs of one that was killed; 15 by default."""

approved = Signal("approved", str)
step = State("step", "new")


@task(retry=Retry(5, delay="1s"))
def reserve(number: str, line: shop.Line) -> int:
    return shop.reserve(number, line)


@task(retry=1)
def ask(number: str, cents: int) -> None:
    shop.ask(number, cents)


@task(retry=1)
def charge(number: str, cents: int) -> str:
    return shop.charge(number, cents)


@task(retry=1)
def ship(number: str) -> str:
    return shop.ship(number)


@task(retry=1)
def report() -> str:
    return shop.report()


@workflow
async def fulfil(order: shop.Order) -> str:
    number = order["id"]
    cents = sum(await asyncio.gather(*(reserve(number, line) for line in order["lines"])))
    await ask(number, cents)
    step.set("waiting for approval")
    by = await approved.next(timeout="2d")  # raises TimeoutError
    await charge(number, cents)
    await wf.sleep(f"{shop.PACKING_S}s")
    return f"order {number}: {await ship(number)}, {cents / 100:.2f} paid, approved by {by}"


@workflow
async def nightly_report() -> str:
    return await report()


nightly = Schedule("nightly", nightly_report.bind(), cron="0 8 * * *")


async def serve() -> None:
    async with Perdure(DSN, schedules=[nightly], settings=SETTINGS):
        print("ready", flush=True)
        await asyncio.Event().wait()


async def command(*words: str) -> None:
    async with Perdure(DSN, worker=False) as client:
        match words:
            case ["order", number]:
                await client.start(fulfil.options(key=number, on_conflict="attach"), shop.order(number))
            case ["approve", number, by]:
                handle = await client.get(key=number, workflow=fulfil)
                print(await handle.query(step))
                await handle.signal(approved, by)
                print(await handle.result())
            case ["report"]:
                print(await (await nightly.trigger()).result())


if __name__ == "__main__":
    asyncio.run(serve() if sys.argv[1:] == ["serve"] else command(*sys.argv[1:]))
