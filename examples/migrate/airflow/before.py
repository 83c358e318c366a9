"""An order of a shop on Airflow: https://airflow.apache.org. This file lies in the folder of Dags of an installation.

    airflow standalone
    airflow dags trigger fulfil --conf '{"number": "A-1"}'

The approval is given in the web UI, or over REST.
"""

from datetime import UTC, datetime, timedelta

import shop
from airflow.providers.standard.operators.hitl import HITLEntryOperator
from airflow.sdk import Param, dag, task


@dag(schedule=None, params={"number": Param("A-1", type="string")})
def fulfil():
    @task
    def lines(params: dict | None = None) -> list[shop.Line]:
        return shop.order(params["number"])["lines"]

    @task(retries=4, retry_delay=timedelta(seconds=1))
    def reserve(line: shop.Line, params: dict | None = None) -> int:
        return shop.reserve(params["number"], line)

    @task
    def ask(reserved: list[int], params: dict | None = None) -> int:
        cents = sum(reserved)
        shop.ask(params["number"], cents)
        return cents

    approval = HITLEntryOperator(
        task_id="approval",
        subject="Send order {{ params.number }}?",
        params={"by": Param("", type="string")},
        response_timeout=timedelta(days=2),
    )

    @task
    def charge(cents: int, params: dict | None = None) -> str:
        shop.charge(params["number"], cents)
        return (datetime.now(UTC) + timedelta(seconds=shop.PACKING_S)).isoformat()

    @task.sensor(mode="reschedule", poke_interval=1)
    def packed(until: str) -> bool:
        return datetime.now(UTC) >= datetime.fromisoformat(until)

    @task
    def ship(cents: int, approval: dict, params: dict | None = None) -> str:
        number, by = params["number"], approval["params_input"]["by"]
        result = f"order {number}: {shop.ship(number)}, {cents / 100:.2f} paid, approved by {by}"
        print(result)
        return result

    cents = ask(reserve.expand(line=lines()))
    cents >> approval
    paid = charge(cents)
    approval >> paid
    packed(paid) >> ship(cents, approval.output)


@dag(schedule="0 8 * * *", start_date=datetime(2026, 1, 1), catchup=False)
def nightly_report():
    @task
    def report() -> str:
        sold = shop.report()
        print(sold)
        return sold

    report()


fulfil()
nightly_report()
