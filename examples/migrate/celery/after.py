"""The same order on Perdure, in blocking code, as it was.

    perdure server
    perdure worker after --apply-schedules
    python after.py order A-1
    python after.py approve A-1 ada
    python after.py report

A run waits for a person where the code says so, and what the code knew before is still in its variables.
"""

import asyncio
import sys

import shop

from perdure import Retry, Schedule, Signal, SyncClient, task, wf, workflow

approved = Signal("approved", str)
patiently = Retry(5, delay="1s", on=(ConnectionError,))


@task(retry=patiently)
def reserve(number: str, line: shop.Line) -> int:
    return shop.reserve(number, line)


@task(retry=patiently)
def ask(number: str, cents: int) -> None:
    shop.ask(number, cents)


@task(retry=patiently)
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
    by = await approved.next()
    await charge(number, cents)
    await wf.sleep(f"{shop.PACKING_S}s")
    return f"order {number}: {await ship(number)}, {cents / 100:.2f} paid, approved by {by}"


@workflow
async def nightly_report() -> str:
    return await report()


nightly = Schedule("nightly", nightly_report.bind(), cron="0 8 * * *")


def main() -> None:
    with SyncClient() as client:
        match sys.argv[1:]:
            case ["order", number]:
                client.start(fulfil.options(key=number, on_conflict="attach"), shop.order(number))
            case ["approve", number, by]:
                client.signal(approved, f"key:{number}", by)
                print(client.get(key=number, workflow=fulfil).result(timeout="60s"))
            case ["report"]:
                print(client.run(nightly_report))


if __name__ == "__main__":
    main()
