"""An order of a shop on DBOS: https://docs.dbos.dev. Needs PostgreSQL.

python before.py serve
python before.py order A-1
python before.py approve A-1 ada
python before.py report
"""

import os
import sys
import threading
from datetime import datetime
from typing import Any

import shop
from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions

DSN = os.environ.get("SHOP_DSN", "postgresql://postgres@127.0.0.1/shop")

config: DBOSConfig = {"name": "shop", "system_database_url": DSN, "application_version": "1"}
DBOS(config=config)


@DBOS.step(retries_allowed=True, max_attempts=5)
def reserve(number: str, line: shop.Line) -> int:
    return shop.reserve(number, line)


@DBOS.step()
def ask(number: str, cents: int) -> None:
    shop.ask(number, cents)


@DBOS.step()
def charge(number: str, cents: int) -> str:
    return shop.charge(number, cents)


@DBOS.step()
def ship(number: str) -> str:
    return shop.ship(number)


@DBOS.step()
def report() -> str:
    return shop.report()


@DBOS.workflow()
def reserve_line(number: str, line: shop.Line) -> int:
    return reserve(number, line)


@DBOS.workflow()
def fulfil(order: shop.Order) -> str:
    number = order["id"]
    handles = [DBOS.enqueue_workflow("lines", reserve_line, number, line) for line in order["lines"]]
    cents = sum(handle.get_result() for handle in handles)
    ask(number, cents)
    DBOS.set_event("step", "waiting for approval")
    by = DBOS.recv("approved", timeout_seconds=2 * 24 * 3600)
    if by is None:
        raise TimeoutError("no approval within two days")
    charge(number, cents)
    DBOS.sleep(shop.PACKING_S)
    return f"order {number}: {ship(number)}, {cents / 100:.2f} paid, approved by {by}"


@DBOS.workflow()
def nightly_report(scheduled: datetime, context: Any) -> str:
    return report()


def serve() -> None:
    DBOS.launch()
    DBOS.register_queue("orders")
    DBOS.register_queue("lines")
    DBOS.apply_schedules([{"schedule_name": "nightly", "workflow_fn": nightly_report, "schedule": "0 8 * * *"}])
    print("ready", flush=True)
    threading.Event().wait()


def command(*words: str) -> None:
    client = DBOSClient(system_database_url=DSN)
    match words:
        case ["order", number]:
            options: EnqueueOptions = {"queue_name": "orders", "workflow_name": "fulfil", "workflow_id": number}
            client.enqueue(options, shop.order(number))
        case ["approve", number, by]:
            print(client.get_event(number, "step", timeout_seconds=10))
            client.send(number, by, "approved")
            print(client.retrieve_workflow(number).get_result())
        case ["report"]:
            print(client.trigger_schedule("nightly").get_result())
    client.destroy()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else command(*sys.argv[1:])
