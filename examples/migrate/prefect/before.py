"""An order of a shop on Prefect: https://docs.prefect.io. Needs a Prefect server.

prefect server start
python before.py serve
python before.py order A-1
python before.py approve A-1 ada
python before.py report
"""

import sys
import time

import shop
from prefect import flow, get_client, serve, task
from prefect.client.schemas.filters import FlowRunFilter
from prefect.deployments import run_deployment
from prefect.flow_runs import pause_flow_run, resume_flow_run
from prefect.input import RunInput


class Approval(RunInput):
    by: str


@task(retries=4, retry_delay_seconds=1, persist_result=True)
def reserve(number: str, line: shop.Line) -> int:
    return shop.reserve(number, line)


@task(persist_result=True)
def ask(number: str, cents: int) -> None:
    shop.ask(number, cents)


@task(persist_result=True)
def charge(number: str, cents: int) -> str:
    return shop.charge(number, cents)


@task(persist_result=True)
def ship(number: str) -> str:
    return shop.ship(number)


@flow(persist_result=True)
def fulfil(order: dict) -> str:
    number = order["id"]
    reserved = [reserve.submit(number, line) for line in order["lines"]]
    cents = sum(future.result() for future in reserved)
    ask(number, cents)
    approval = pause_flow_run(wait_for_input=Approval, timeout=2 * 24 * 3600, poll_interval=1)
    charge(number, cents)
    time.sleep(shop.PACKING_S)
    return f"order {number}: {ship(number)}, {cents / 100:.2f} paid, approved by {approval.by}"


@flow(persist_result=True)
def nightly_report() -> str:
    return shop.report()


def place(number: str) -> None:
    run_deployment(
        "fulfil/shop", parameters={"order": shop.order(number)}, timeout=0, idempotency_key=number, flow_run_name=number
    )


def approve(number: str, by: str) -> str:
    with get_client(sync_client=True) as client:
        (run,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(name={"any_": [number]}))
        while not run.state.is_paused():  # before it asks, it takes no answer
            time.sleep(0.2)
            run = client.read_flow_run(run.id)
        resume_flow_run(run.id, run_input={"by": by})
        while not run.state.is_final():
            time.sleep(0.2)
            run = client.read_flow_run(run.id)
    return run.state.result()


def main() -> None:
    match sys.argv[1:]:
        case ["serve"]:
            serve(fulfil.to_deployment("shop"), nightly_report.to_deployment("shop", cron="0 8 * * *"))
        case ["order", number]:
            place(number)
        case ["approve", number, by]:
            print(approve(number, by))
        case ["report"]:
            print(run_deployment("nightly-report/shop", poll_interval=1).state.result())


if __name__ == "__main__":
    main()
