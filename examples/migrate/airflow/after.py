"""The same order on Perdure.

perdure server
perdure worker after --apply-schedules
python after.py order A-1
python after.py approve A-1 ada
python after.py report
"""

import asyncio
import sys
from dataclasses import dataclass

import shop

from perdure import Approval, Client, Retry, Schedule, task, wf, workflow


@dataclass
class Approved:
    by: str


approval = Approval("approval", Approved, title="Send the order?", timeout="2d")


@task(retry=1)
def lines(number: str) -> list[shop.Line]:
    return shop.order(number)["lines"]


@task(retry=Retry(5, delay="1s", factor=1))
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
async def fulfil(number: str) -> str:
    cents = sum(await asyncio.gather(*(reserve(number, line) for line in await lines(number))))
    await ask(number, cents)
    approved = await approval.wait(details={"order": number})
    await charge(number, cents)
    await wf.sleep(f"{shop.PACKING_S}s")
    return f"order {number}: {await ship(number)}, {cents / 100:.2f} paid, approved by {approved.by}"


@workflow
async def nightly_report() -> str:
    return await report()


nightly = Schedule("nightly", nightly_report.bind(), cron="0 8 * * *", missed="none")


async def main() -> None:
    async with Client() as client:
        match sys.argv[1:]:
            case ["order", number]:
                await client.start(fulfil.options(key=number, on_conflict="attach"), number)
            case ["approve", number, by]:
                handle = await client.get(key=number, workflow=fulfil)
                await handle.approve(approval, Approved(by))
                print(await handle.result())
            case ["report"]:
                print(await (await nightly.trigger()).result())


if __name__ == "__main__":
    asyncio.run(main())
