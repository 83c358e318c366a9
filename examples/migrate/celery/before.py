"""An order of a shop on Celery: https://docs.celeryq.dev. Needs Redis.

    celery -A before worker --beat
    python before.py order A-1
    python before.py approve A-1 ada
    python before.py report

A task cannot wait for a person, so the work is cut in two there: what the second half needs is kept in Redis by this program.
"""

import os
import sys

import shop
from celery import Celery, chain, chord
from celery.schedules import crontab

URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")

app = Celery("before", broker=f"{URL}/0", backend=f"{URL}/1")
app.conf.update(
    task_acks_late=True,  # a task whose worker dies is delivered again,
    task_reject_on_worker_lost=True,
    broker_transport_options={"visibility_timeout": 3600},  # after this time where the whole worker died
    worker_redirect_stdouts=False,
    beat_schedule={"nightly": {"task": "before.report", "schedule": crontab(hour=8, minute=0)}},
)


@app.task(autoretry_for=(ConnectionError,), retry_backoff=True, max_retries=4)
def reserve(number: str, line: shop.Line) -> int:
    return shop.reserve(number, line)


@app.task
def ask_for_approval(cents: list[int], number: str) -> None:
    app.backend.client.set(f"waits-for-approval:{number}", sum(cents))
    shop.ask(number, sum(cents))


@app.task(autoretry_for=(ConnectionError,), retry_backoff=True, max_retries=4)
def charge(cents: int, number: str) -> int:
    shop.charge(number, cents)
    return cents


@app.task
def ship(cents: int, number: str, by: str) -> str:
    return f"order {number}: {shop.ship(number)}, {cents / 100:.2f} paid, approved by {by}"


@app.task
def report() -> str:
    return shop.report()


def place(number: str) -> None:
    order = shop.order(number)
    chord([reserve.s(number, line) for line in order["lines"]], ask_for_approval.s(number)).apply_async()


def approve(number: str, by: str) -> str:
    cents = app.backend.client.getdel(f"waits-for-approval:{number}")
    if cents is None:
        raise LookupError(f"order {number} does not wait for an approval")
    packed = ship.s(number, by).set(countdown=shop.PACKING_S)
    return chain(charge.s(int(cents), number), packed).apply_async().get(timeout=60)


def main() -> None:
    match sys.argv[1:]:
        case ["order", number]:
            place(number)
        case ["approve", number, by]:
            print(approve(number, by))
        case ["report"]:
            print(report.delay().get(timeout=60))


if __name__ == "__main__":
    main()
