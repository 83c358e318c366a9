"""The same order on Perdure.

perdure server
perdure worker after --apply-schedules
python after.py order A-1
python after.py approve A-1 ada
python after.py report
"""

import sys
from dataclasses import dataclass

import shop

from perdure import Approval, Retry, Schedule, SyncClient, task, wf, workflow


@dataclass
class Approved:
    by: str


approval = Approval("approval", Approved, title="Send the order?", timeout="2d")


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
async def fulfil(order: shop.Order) -> str:
    number = order["id"]
    reserved = [reserve(number, line) for line in order["lines"]]  # each call starts at once
    cents = sum([await step for step in reserved])
    await ask(number, cents)
    approved = await approval.wait(details={"order": number, "cents": cents})
    await charge(number, cents)
    await wf.sleep(f"{shop.PACKING_S}s")
    return f"order {number}: {await ship(number)}, {cents / 100:.2f} paid, approved by {approved.by}"


@workflow
async def nightly_report() -> str:
    return await report()


nightly = Schedule("nightly", nightly_report.bind(), cron="0 8 * * *")


def place(client: SyncClient, number: str) -> None:
    client.start(fulfil.options(key=number, on_conflict="attach"), shop.order(number))


def approve(client: SyncClient, number: str, by: str) -> str:
    handle = client.get(key=number, workflow=fulfil)
    handle.approve(approval, Approved(by))
    return handle.result()


def main() -> None:
    with SyncClient() as client:
        match sys.argv[1:]:
            case ["order", number]:
                place(client, number)
            case ["approve", number, by]:
                print(approve(client, number, by))
            case ["report"]:
                print(client.schedules.trigger("nightly").result())


if __name__ == "__main__":
    main()
