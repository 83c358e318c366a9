"""An order of a shop on Temporal: https://docs.temporal.io. Needs a Temporal server.

temporal server start-dev
python before.py worker
python before.py order A-1
python before.py approve A-1 ada
python before.py report
"""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleSpec,
    WorkflowHandle,
)
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    import shop

QUEUE = "shop"
TIMEOUT = timedelta(seconds=30)


@activity.defn
def reserve(number: str, line: shop.Line) -> int:
    return shop.reserve(number, line)


@activity.defn
def ask(number: str, cents: int) -> None:
    shop.ask(number, cents)


@activity.defn
def charge(number: str, cents: int) -> str:
    return shop.charge(number, cents)


@activity.defn
def ship(number: str) -> str:
    return shop.ship(number)


@activity.defn
def report() -> str:
    return shop.report()


@workflow.defn
class Fulfil:
    def __init__(self) -> None:
        self.approved_by: str | None = None
        self.step = "new"

    @workflow.run
    async def run(self, order: shop.Order) -> str:
        number = order["id"]
        self.step = "reserving"
        patiently = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=5)
        reserved = [
            workflow.execute_activity(
                reserve, args=[number, line], start_to_close_timeout=TIMEOUT, retry_policy=patiently
            )
            for line in order["lines"]
        ]
        cents = sum(await asyncio.gather(*reserved))
        await workflow.execute_activity(ask, args=[number, cents], start_to_close_timeout=TIMEOUT)
        self.step = "waiting for approval"
        await workflow.wait_condition(lambda: self.approved_by is not None, timeout=timedelta(days=2))
        self.step = "sending"
        await workflow.execute_activity(charge, args=[number, cents], start_to_close_timeout=TIMEOUT)
        await asyncio.sleep(shop.PACKING_S)
        parcel = await workflow.execute_activity(ship, number, start_to_close_timeout=TIMEOUT)
        return f"order {number}: {parcel}, {cents / 100:.2f} paid, approved by {self.approved_by}"

    @workflow.signal
    def approve(self, by: str) -> None:
        self.approved_by = by

    @workflow.query
    def current_step(self) -> str:
        return self.step


@workflow.defn
class NightlyReport:
    @workflow.run
    async def run(self) -> str:
        return await workflow.execute_activity(report, start_to_close_timeout=TIMEOUT)


async def work(client: Client) -> None:
    nightly = ScheduleActionStartWorkflow(NightlyReport.run, id="nightly", task_queue=QUEUE)
    try:
        await client.create_schedule("nightly", Schedule(nightly, spec=ScheduleSpec(cron_expressions=["0 8 * * *"])))
    except ScheduleAlreadyRunningError:
        pass
    activities = [reserve, ask, charge, ship, report]
    with ThreadPoolExecutor(10) as threads:
        worker = Worker(
            client,
            task_queue=QUEUE,
            workflows=[Fulfil, NightlyReport],
            activities=activities,
            activity_executor=threads,
        )
        await worker.run()


async def place(client: Client, number: str) -> WorkflowHandle[Fulfil, str]:
    return await client.start_workflow(
        Fulfil.run,
        shop.order(number),
        id=number,
        task_queue=QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )


async def main() -> None:
    client = await Client.connect(os.environ.get("TEMPORAL_ADDRESS", "127.0.0.1:7233"))
    match sys.argv[1:]:
        case ["worker"]:
            await work(client)
        case ["order", number]:
            await place(client, number)
        case ["approve", number, by]:
            handle = client.get_workflow_handle_for(Fulfil.run, number)
            print(await handle.query(Fulfil.current_step))
            await handle.signal(Fulfil.approve, by)
            print(await handle.result())
        case ["report"]:
            print(await client.execute_workflow(NightlyReport.run, id="report", task_queue=QUEUE))


if __name__ == "__main__":
    asyncio.run(main())
