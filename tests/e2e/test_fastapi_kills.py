"""A web application that inserts an order and starts its workflow in one transaction, killed at every step of it.

Afterwards each committed order has exactly one run, and each run has a committed order.

The application is examples/fastapi_shop, served by uvicorn, with the engine and the workers in its process. PERDURE_KILLS says how often it is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from typing import Any

import psycopg
import pytest

from perdure import Perdure
from perdure.store.verify import verify
from tests.fakes.killed_forks import KilledFork, Nursery
from tests.fakes.waiting import until_sync

pytestmark = pytest.mark.usefixtures("interpreter")

STEPS = (
    "before the insert",
    "after the insert",
    "after in_transaction",
    "before the commit",
    "commit sent",
    "after the commit",
    "before the response",
)
"""Where tests/e2e/harness/shop_server.py stops."""
COMMITTED = ("commit sent", "after the commit", "before the response")
"""Of these, those at which the order is there already."""
KILLS = int(os.environ.get("PERDURE_KILLS", "12"))
CLIENTS = 3
ANSWER_S = 120.0
STEP_S = 120.0
RANDOM_KILL_S_MAX = 0.4
CENTS, STOCK = 1 << 30, 1 << 28
PRODUCTS = {"tea": 500, "samovar": 120_000}
REFUSED = {"no quantity": 409, "no customer": 409, "same reference": 409, "raises": 500}
"""Transactions that roll back on purpose, and what is answered: a CHECK, a deferred FOREIGN KEY at the commit, a UNIQUE, an error of the handler."""


class Shopper(threading.Thread):
    """Places orders without a pause. What happened to each is in `answers`: the status, or None where the server died first."""

    def __init__(self, number: int, port: int) -> None:
        super().__init__(daemon=True)
        self._number, self._port = number, port
        self._random = random.Random(number)
        self.stopped = threading.Event()
        self.answers: dict[str, tuple[str, int | None]] = {}
        """By reference: kind and status."""
        self.again: list[int | None] = []
        """Answers to orders under a reference that was taken."""
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self._shop(f"r-{self._number}-{len(self.answers)}")
        except BaseException as error:
            self.error = error

    def _shop(self, reference: str) -> None:
        kind = self._random.choice(["tea", "tea", "tea", "samovar", *REFUSED])
        order: dict[str, Any] = {"reference": reference, "customer_id": 1, "sku": "tea", "quantity": 2}
        headers = {}
        match kind:
            case "samovar":
                order["sku"] = "samovar"
            case "no quantity":
                order["quantity"] = 0
            case "no customer":
                order["customer_id"] = 2
            case "raises":
                headers["x-fails"] = "1"
            case "same reference":
                taken = [r for r, (_, status) in self.answers.items() if status == 201]
                if taken:
                    order["reference"] = self._random.choice(taken)
                    self.again.append(request(self._port, "POST", "/orders", order)[0])
                return
        status, body = request(self._port, "POST", "/orders", order, headers)
        self.answers[reference] = kind, status
        if kind == "samovar" and status == 201 and self._random.random() < 0.5:
            request(self._port, "POST", f"/orders/{body['id']}/approval", {"by": "ada"})


def request(
    port: int, method: str, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> tuple[int | None, Any]:
    """Status and body; (None, None) if the server dies before it answers."""
    connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"} | (headers or {}))
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if answer.status < 300 and data else None
    except (ConnectionError, HTTPException):
        return None, None
    finally:
        connection.close()


def seed(nursery: Nursery, database: psycopg.Connection[Any]) -> None:
    """The application creates its tables itself. A process that is asked to stop ends without an error."""
    with nursery.fork({}) as server:
        server.wait_for("ready")
        database.execute("insert into customers (id, balance_cents) values (1, %s)", [CENTS])
        for sku, cents in PRODUCTS.items():
            database.execute("insert into products (sku, price_cents, stock) values (%s, %s, %s)", [sku, cents, STOCK])
        assert server.kill(signal.SIGTERM) == signal.SIGTERM  # uvicorn stops, and raises the signal again


def kill_often(nursery: Nursery) -> Counter[str]:
    """How often at each step."""
    moments, done = random.Random(1), Counter[str]()
    plan = [STEPS[n] if n < len(STEPS) else "at random" for n in (k % (len(STEPS) + 5) for k in range(KILLS))]
    for step in plan:
        with nursery.fork({}, pause_at=step, nth=moments.randint(1, 4)) as server:
            server.wait_for("ready")
            if step == "at random":
                assert server.news(moments.uniform(0, RANDOM_KILL_S_MAX)) is None
            else:
                server.wait_for(step, STEP_S)
            assert server.kill() == signal.SIGKILL
        done[step] += 1
    return done


def settle(server: KilledFork, port: int, database: psycopg.Connection[Any]) -> None:
    """With a server that is not killed every order comes to its end."""
    server.wait_for("ready")
    unapproved = database.execute("select id from orders where sku = 'samovar' and approved_by is null").fetchall()
    for (order,) in unapproved:
        assert request(port, "POST", f"/orders/{order}/approval", {"by": "grace"})[0] == 202

    def is_settled() -> bool:
        row = database.execute(
            "select (select count(*) from orders where status <> 'sent') + (select count(*) from perdure.sql_request where error is null)"
        ).fetchone()
        return row == (0,)

    until_sync(is_settled)


async def runs_of(dsn: str) -> list[tuple[str, str]]:
    async with Perdure(dsn, worker=False, tune_gc=False) as client:
        return [(run.key, run.status) async for run in client.runs()]


@contextmanager
def shop(dsn: str) -> Iterator[tuple[Nursery, psycopg.Connection[Any]]]:
    environment = {"DATABASE_URL": dsn, "PERDURE_DSN": ""}
    with (
        psycopg.connect(dsn, autocommit=True) as database,
        Nursery("tests.e2e.harness.shop_server:serve", environment) as nursery,
    ):
        seed(nursery, database)
        yield nursery, database


def test_every_committed_order_has_one_run_and_every_run_a_committed_order(dsn: str) -> None:
    with shop(dsn) as (nursery, database):
        shoppers = [Shopper(n, nursery.port) for n in range(CLIENTS)]
        for one in shoppers:
            one.start()
        kills = kill_often(nursery)
        with nursery.fork({}) as server:
            for one in shoppers:
                one.stopped.set()
            for one in shoppers:
                one.join()
                assert one.error is None, one.error
            settle(server, nursery.port, database)
            runs = until_sync(lambda: ended(asyncio.run(runs_of(dsn))))
            assert server.kill(signal.SIGTERM) == signal.SIGTERM
        orders = database.execute("select id, reference, sku, quantity from orders").fetchall()
        check_runs(runs, orders)
        check_answers(shoppers, {reference for _, reference, _, _ in orders})
        check_effects(orders, database)
    tallies = asyncio.run(verify(dsn))
    assert {t.number: [e.what for e in t.examples] for t in tallies if t.violations} == {}
    statuses = Counter(status for one in shoppers for _, status in one.answers.values())
    print(
        f"{sum(kills.values())} kills {dict(kills)}, {len(orders)} orders, {len(runs)} runs, answers {dict(statuses)}"
    )


def killed_at(step: str, nursery: Nursery, **arguments: bool) -> None:
    """A server that is killed at a step of its only request."""
    with ThreadPoolExecutor(1) as thread, nursery.fork(arguments, pause_at=step) as server:
        server.wait_for("ready")
        order = {"reference": step, "customer_id": 1, "sku": "tea", "quantity": 1}
        answer = thread.submit(request, nursery.port, "POST", "/orders", order)
        server.wait_for(step, STEP_S)
        server.kill()
        assert answer.result() == (None, None)


def test_the_commit_decides_about_order_and_run_at_each_step(dsn: str) -> None:
    with shop(dsn) as (nursery, database):
        for step in STEPS:
            killed_at(step, nursery)
        with nursery.fork({}) as server:
            settle(server, nursery.port, database)
            runs = until_sync(lambda: ended(asyncio.run(runs_of(dsn))))
        orders = database.execute("select id, reference, sku, quantity from orders order by id").fetchall()
        assert [reference for _, reference, _, _ in orders] == list(COMMITTED)
        check_runs(runs, orders)
        check_effects(orders, database)


def test_an_application_that_starts_runs_behind_the_commit_fails_these_tests(dsn: str) -> None:
    with shop(dsn) as (nursery, database):
        killed_at("after the commit", nursery, starts_behind_the_commit=True)
        with nursery.fork({"starts_behind_the_commit": True}) as server:
            server.wait_for("ready")
            order = {"reference": "r-2", "customer_id": 1, "sku": "tea", "quantity": 1}
            assert request(nursery.port, "POST", "/orders", order)[0] == 201
            runs = until_sync(lambda: ended(asyncio.run(runs_of(dsn))))
        orders = database.execute("select id, reference, sku, quantity from orders").fetchall()
        assert (len(orders), len(runs)) == (2, 1)
        with pytest.raises(AssertionError):
            check_runs(runs, orders)


def ended(runs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return runs if all(status not in ("pending", "running", "waiting") for _, status in runs) else []


def check_runs(runs: list[tuple[str, str]], orders: list[Any]) -> None:
    assert len(runs) == len(orders)
    assert dict(runs) == {f"order-{order}": "success" for order, *_ in orders}


def check_answers(shoppers: list[Shopper], committed: set[str]) -> None:
    """What was acknowledged is there, what was refused is not; what died without an answer may be either."""
    for one in shoppers:
        for reference, (kind, status) in one.answers.items():
            assert status in (None, REFUSED.get(kind, 201)), (reference, kind, status)
            assert status is None or (reference in committed) == (status == 201), (reference, kind, status)
            assert kind not in REFUSED or reference not in committed, (reference, kind, status)
        assert set(one.again) <= {None, 409}


def check_effects(orders: list[Any], database: psycopg.Connection[Any]) -> None:
    """Every transactional task had its effect once: nothing of stock and money is lost or taken twice."""
    assert database.execute("select count(*) from perdure.sql_request").fetchone() == (0,), "none was refused"
    left = dict(database.execute("select sku, stock from products").fetchall())
    sold: Counter[str] = Counter()
    for _, _, sku, quantity in orders:
        sold[sku] += quantity
    assert left == {sku: STOCK - sold[sku] for sku in PRODUCTS}
    paid = sum(sold[sku] * cents for sku, cents in PRODUCTS.items())
    assert database.execute("select balance_cents from customers").fetchone() == (CENTS - paid,)
