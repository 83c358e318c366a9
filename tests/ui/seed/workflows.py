"""A company's workflows: what the pages of the user interface are shown and tested with."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from perdure import Approval, Limit, Retry, Signal, State, attempt, task, wf, workflow
from tests.ui.seed.pace import pause


class StripeError(Exception): ...


class TransformError(Exception): ...


class HTTPStatusError(Exception): ...


class PostingError(Exception): ...


@dataclass
class Release:
    up_to: float
    """At most the total."""
    pay_on: str = "today"
    note: str = ""
    tell_customers: bool = True


@dataclass
class Order:
    id: str
    amount: float = 40.0
    items: list[str] = field(default_factory=lambda: ["book"])


release = Approval("release", Release, title="Release refunds over €10,000", assignees=["finance-leads"], timeout="90m")
promote = Approval("promote", title="Promote churn model v19", assignees=["ml-owners"], timeout="3d")
steer = Signal("steer", str)
progress = State("progress", 0)


# -- Checkout ---------------------------------------------------------------------------------------------------------
@task(name="reserve-stock", queue="default")
async def reserve_stock(order: str) -> str:
    await pause(random.uniform(0.4, 1.6))
    return f"reservation of {order}"


@task(name="charge-card", queue="payments", retry=Retry(3, delay="2s"))
async def charge_card(order: str, amount: float) -> str:
    await pause(random.uniform(0.5, 1.9))
    if amount > 900:
        raise StripeError("card_declined: Your card has insufficient funds.")
    print(f"charged {amount:.2f} for {order}")
    return f"ch_{order}"


@task(name="send-receipt", queue="mail")
async def send_receipt(order: str) -> None:
    await pause(random.uniform(0.1, 0.4))


@workflow(name="checkout-saga")
async def checkout(order: Order) -> str:
    """Takes the stock, charges the card and sends the receipt."""
    await reserve_stock(order.id)
    charge = await charge_card(order.id, order.amount)
    await send_receipt(order.id)
    return charge


# -- Small ones ---------------------------------------------------------------------------------------------------------
@task(name="resize", queue="media")
async def resize(url: str) -> str:
    await pause(random.uniform(0.2, 0.9))
    return f"{url}?w=320"


@workflow(name="thumbnail")
async def thumbnail(url: str) -> str:
    return await resize(url)


@task(name="score")
async def score(order: str) -> float:
    await pause(random.uniform(0.1, 0.4))
    return round(random.random(), 3)


@workflow(name="fraud-score")
async def fraud_score(order: str) -> float:
    return await score(order)


@task(name="dun", queue="payments", retry=Retry(5, delay="1s", factor=1.6))
async def dun(invoice: str, fails: int = 0) -> str:
    await pause(random.uniform(0.8, 2.4))
    if attempt().number <= fails:
        raise StripeError("card_declined: Your card has insufficient funds.")
    return f"{invoice} paid"


@workflow(name="invoice-dunning")
async def dunning(invoice: str, fails: int = 0) -> str:
    return await dun(invoice, fails)


@task(name="pull", queue="io", retry=Retry(5, delay="4s", factor=1.8))
async def pull(page: int, fails: int = 0) -> int:
    await pause(random.uniform(3, 9))
    if attempt().number <= fails:
        raise HTTPStatusError("503 from api.hubapi.com")
    return 100


@workflow(name="sync-crm")
async def sync_crm(pages: int = 5, fails: int = 0) -> int:
    total = 0
    for page in range(pages):
        total += await pull(page, fails if page == 2 else 0)
        progress.set(total)
    return total


@task(name="post-book", queue="default", retry=Retry(3, delay="5s"))
async def post_book(book: int) -> int:
    await pause(random.uniform(2, 7))
    if random.random() < 0.02:
        raise PostingError(f"book {book} is locked by audit until 08:00")
    return book


@workflow(name="ledger-close")
async def ledger_close(books: list[int]) -> int:
    return len(await wf.map(post_book, books, concurrency=4))


@task(name="trial-mail", queue="mail")
async def trial_mail(user: str) -> None:
    await pause(0.2)


@workflow(name="onboarding")
async def onboarding(user: str) -> None:
    await trial_mail(user)
    await wf.sleep("3d")
    await trial_mail(user)


@workflow(name="agent-research")
async def agent(question: str) -> list[str]:
    heard: list[str] = []
    while len(heard) < 3:
        heard.append(await steer.next())
        await score(question)
        progress.set(len(heard))
    return heard


@task(name="train", queue="gpu")
async def train(model: str) -> float:
    await pause(60)
    return 0.871


@workflow(name="train-churn-model")
async def train_churn(model: str = "v19", ask: bool = False, reviewer: str = "ml-owners") -> str:
    if ask:
        await promote.wait(
            assignees=[reviewer, "ml-owners"],
            details={"model": model, "AUC": 0.871, "previous": 0.852, "rows": 1_284_000},
        )
        return model
    await train(model)
    return model


@task(name="encode-4k", queue="media", retry=Retry(6, delay="50s", factor=1.2))
async def encode(clip: str, fails: int) -> str:
    await pause(8)
    if attempt().number <= fails:
        raise RuntimeError("encoder exited with status 137")
    return clip


@workflow(name="media-transcode")
async def transcode(clip: str, fails: int = 0) -> str:
    return await encode(clip, fails)


@task(name="collect")
async def collect(batch: str) -> int:
    await pause(3)
    return 23


@task(name="score-fraud")
async def score_fraud(batch: str) -> float:
    await pause(6)
    return 0.62


@task(name="pay", queue="payments")
async def pay(refund: int) -> int:
    await pause(1)
    return refund


REFUNDS = [
    {
        "order": "A-20931",
        "customer": "Nordwind Handels GmbH",
        "reason": "damaged pallet",
        "score": 0.18,
        "amount": "€41,200.00",
    },
    {
        "order": "A-20877",
        "customer": "Ateliers Brun SARL",
        "reason": "duplicate order",
        "score": 0.62,
        "amount": "€28,750.00",
    },
    {
        "order": "A-20702",
        "customer": "Kestrel Outfitters Ltd",
        "reason": "late delivery",
        "score": 0.09,
        "amount": "€19,480.00",
    },
    {"order": "A-20698", "customer": "Ólafsson & Synir", "reason": "wrong item", "score": 0.21, "amount": "€14,310.50"},
    {"order": "A-20655", "customer": "Maison Lefèvre", "reason": "broken seal", "score": 0.05, "amount": "€12,940.00"},
    {"order": "A-20649", "customer": "Taller Ibáñez SL", "reason": "wrong item", "score": 0.14, "amount": "€11,875.00"},
]


@workflow(name="refund-batch")
async def refund_batch(batch: str, reviewer: str = "finance-leads") -> int:
    await collect(batch)
    await score_fraud(batch)
    details: dict[str, Any] = {
        "refunds": 23,
        "total": "€184,920.50",
        "largest": "€41,200.00 to Nordwind Handels GmbH",
        "highest fraud score": 0.62,
        "already refunded this month": "€612,004.10",
        "refunds to look at": REFUNDS,
    }
    await release.wait(details=details, assignees=[reviewer, "finance-leads"])
    return len(await wf.map(pay, list(range(23))))


@task(name="copy-partition", queue="io", limit=Limit(16, key="warehouse-load"))
async def copy_partition(day: int) -> int:
    await pause(random.uniform(20, 60))
    return day


@workflow(name="backfill-orders")
async def backfill(days: int) -> int:
    return len(await wf.map(copy_partition, list(range(days)), concurrency=32))


@task(name="export", queue="media")
async def export(report: str) -> str:
    await pause(240)
    return report


@workflow(name="report-export")
async def report_export(report: str) -> str:
    return await export(report)


# -- The tasks of the flow nightly-etl -----------------------------------------------------------------------------------
@task(name="discover", queue="io")
async def discover(day: str, parts: int = 24) -> dict[str, list[int]]:
    await pause(random.uniform(3, 38))
    print(f"found {parts} files of {day}")
    return {"parts": list(range(parts))}


@task(name="validate", queue="io")
async def validate(day: str) -> bool:
    await pause(random.uniform(4, 19))
    return True


@task(name="extract", queue="io", retry=Retry(5, delay="30s"))
async def extract(source: str) -> int:
    flaky = source == "customers" and attempt().number == 1
    await pause(random.uniform(20, 50))
    if flaky:
        raise HTTPStatusError("canceling statement due to conflict with recovery")
    return 66_000


@task(name="process-part", queue="io", retry=Retry(3, delay="6s", factor=2.0), limit=Limit(24, key="warehouse-load"))
async def process_part(part: int, seconds: float = 30.0, bad: bool = False) -> int:
    print(f"reading s3://acme-lake/orders/2026/10/22/part-{part:04d}.parquet (18.4 MiB)")
    await pause(random.uniform(0.4, 1.8) * seconds)
    if part % 97 == 31 or (bad and part % 11 == 4) or random.random() < 0.002:
        code = random.choice(("XAF", "XOF", "XPF"))
        print(f"unmapped currency '{code}' in 3 rows")
        raise TransformError(f"unmapped currency '{code}'")
    if part % 43 == 7 and attempt().number == 1:
        raise HTTPStatusError("503 from transform for POST http://transform:8080/v1/normalise")
    print(f"wrote {60_000 + part} rows to stage.orders_{part}: <script>alert(1)</script> kept as text")
    return 60_000 + part


@task(name="merge-parts", queue="io")
async def merge_parts(rows: int) -> int:
    await pause(random.uniform(10, 40))
    return rows


@task(name="publish-report", queue="default")
async def publish_report(rows: int) -> str:
    await pause(random.uniform(5, 15))
    return f"https://reports.acme.dev/{rows}"


@task(name="notify", queue="mail")
async def notify(text: str) -> None:
    await pause(0.4)


@task(name="clean-up", queue="io")
async def clean_up(day: str) -> None:
    await pause(2)


@task(name="beat")
async def beat() -> None:
    await asyncio.sleep(0)


@workflow(name="heartbeat")
async def heartbeat() -> None:
    await beat()


WORKFLOWS = (
    checkout,
    thumbnail,
    fraud_score,
    dunning,
    sync_crm,
    ledger_close,
    onboarding,
    agent,
    train_churn,
    transcode,
    refund_batch,
    backfill,
    report_export,
    heartbeat,
)
TASKS = (discover, validate, extract, process_part, merge_parts, publish_report, notify, clean_up)
