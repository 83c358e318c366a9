"""A web application that inserts an order and starts its workflow in one transaction, killed at every step of it.

Afterwards each committed order has exactly one run, and each run has a committed order.

The application is examples/fastapi_shop, served by uvicorn, with the engine and the workers in its process.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg

from harness.forked import Forked, Visitor, send_request
from harness.storm import Storm, Target, Workload, fetch_rows
from perdure.core.events import SignalReceived
from perdure.wire.codec import decode_events
from tests.fakes.killed_forks import Nursery
from tests.fakes.waiting import until, until_sync

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
SERVER = "tests.e2e.harness.shop_server:serve"
CLIENTS = 2
RANDOM_KILL_S_MAX = 0.4
CENTS, STOCK = 1 << 30, 1 << 28
PRODUCTS = {"tea": 500, "samovar": 120_000}
REFUSED = {"no quantity": 409, "no customer": 409, "same reference": 409, "raises": 500}
"""Transactions that roll back on purpose, and what is answered: a CHECK, a deferred FOREIGN KEY at the commit, a UNIQUE, an error of the handler."""
REQUESTS = (
    "select q.act, q.name, q.tries, q.error, r.run_id, array(select h.body from perdure.history h where h.run_id = r.run_id)"
    " from perdure.sql_request q left join perdure.run r on r.workflow = 'fulfil' and r.key = q.run_key"
)
"""Requests that were not carried out, with the history of the run that gets the signal."""
ACTIVE = ("pending", "running", "waiting")


class Shopper(Visitor):
    """Places orders. What happened to each is in `answers`: the status, or None where the server died first."""

    def __init__(self, number: int, port: int) -> None:
        super().__init__(number, port)
        self.answers: dict[str, tuple[str, int | None]] = {}
        """By reference: kind and status."""
        self.again: list[int | None] = []
        """Answers to orders under a reference that was taken."""

    def visit(self) -> None:
        reference = f"r-{self.number}-{len(self.answers)}"
        kind = self.random.choice(["tea", "tea", "tea", "samovar", *REFUSED])
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
                    order["reference"] = self.random.choice(taken)
                    self.again.append(request(self.port, "POST", "/orders", order)[0])
                return
        status, body = request(self.port, "POST", "/orders", order, headers)
        self.answers[reference] = kind, status
        if kind == "samovar" and status == 201 and self.random.random() < 0.5:
            request(self.port, "POST", f"/orders/{body['id']}/approval", {"by": "ada"})


def request(
    port: int, method: str, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> tuple[int | None, Any]:
    """Status and body; (None, None) if the server dies before it has answered."""
    kind = {"Content-Type": "application/json"}
    status, data = send_request(port, method, path, json.dumps(body), kind | (headers or {}))
    return status, json.loads(data) if status and status < 300 and data else None


def seed(nursery: Nursery, database: psycopg.Connection[Any]) -> None:
    """The application creates its tables itself. A process that is asked to stop ends without an error."""
    with nursery.fork({}) as server:
        server.wait_for("ready")
        database.execute("insert into customers (id, balance_cents) values (1, %s)", [CENTS])
        for sku, cents in PRODUCTS.items():
            database.execute("insert into products (sku, price_cents, stock) values (%s, %s, %s)", [sku, cents, STOCK])
        assert server.kill(signal.SIGTERM) == signal.SIGTERM  # uvicorn stops, and raises the signal again


def settle(port: int, database: psycopg.Connection[Any]) -> None:
    """With a server that is not killed every order comes to its end."""
    unapproved = database.execute("select id from orders where sku = 'samovar' and approved_by is null").fetchall()
    for (order,) in unapproved:
        assert request(port, "POST", f"/orders/{order}/approval", {"by": "grace"})[0] == 202

    def is_settled() -> bool:
        row = database.execute(
            "select (select count(*) from orders where status <> 'sent') + (select count(*) from perdure.sql_request where error is null)"
        ).fetchone()
        return row == (0,)

    until_sync(is_settled)


async def await_ended_runs(dsn: str) -> list[tuple[str, str]]:
    """Key and status of each run of the shop, when all have ended."""
    both = "select key, status from perdure.{} where workflow = 'fulfil'"
    query = f"{both.format('run')} union all {both.format('run_queue')}"

    async def ended() -> list[tuple[str, str]]:
        found = [(r["key"], r["status"]) for r in await fetch_rows(dsn, query)]
        return found if all(status not in ACTIVE for _, status in found) else []

    return await until(ended, "the runs of orders end")


def read_orders(database: psycopg.Connection[Any]) -> list[Any]:
    return database.execute("select id, reference, sku, quantity from orders order by id").fetchall()


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


def was_taken(act: str, name: str, tries: int, error: str, run: UUID | None, history: list[bytes]) -> bool:
    """A signal that its run took. The engine was killed before it removed the request, and the next engine found that the run had ended."""
    taken = {e.name for body in history for e in decode_events(body) if isinstance(e, SignalReceived)}
    return (
        act == "signal" and tries > 1 and name in taken and error == f"run {run} has ended and takes no more messages"
    )


def check_effects(orders: list[Any], database: psycopg.Connection[Any]) -> None:
    """Every transactional task had its effect once: nothing of stock and money is lost or taken twice."""
    assert [r for r in database.execute(REQUESTS).fetchall() if not was_taken(*r)] == [], "none was refused"
    left = dict(database.execute("select sku, stock from products").fetchall())
    sold: Counter[str] = Counter()
    for _, _, sku, quantity in orders:
        sold[sku] += quantity
    assert left == {sku: STOCK - sold[sku] for sku in PRODUCTS}
    paid = sum(sold[sku] * cents for sku, cents in PRODUCTS.items())
    assert database.execute("select balance_cents from customers").fetchone() == (CENTS - paid,)


class FastApiShop(Workload):
    name = "fastapi"
    loops = ("fulfil",)

    async def prepare(self, storm: Storm) -> Sequence[Target]:
        self._database = storm.stack.enter_context(psycopg.connect(storm.dsn, autocommit=True))
        environment = {"DATABASE_URL": storm.dsn, "PERDURE_DSN": ""}
        self._nursery = await asyncio.to_thread(storm.stack.enter_context, Nursery(SERVER, environment))
        await asyncio.to_thread(seed, self._nursery, self._database)
        self._shoppers = [Shopper(n, self._nursery.port) for n in range(CLIENTS)]
        self._server = Forked(storm, "shop", self._nursery, STEPS, RANDOM_KILL_S_MAX)
        self._server.engines, self._server.stop_signal = 1, signal.SIGTERM
        return (self._server,)

    async def load(self, storm: Storm) -> None:
        for one in self._shoppers:
            one.start()
        await storm.calm.wait()
        for one in self._shoppers:
            await asyncio.to_thread(one.end)

    async def is_hit(self) -> bool:
        return self._server.is_hit

    async def settle(self, storm: Storm) -> None:
        await asyncio.to_thread(settle, self._nursery.port, self._database)

    async def check(self, storm: Storm) -> str:
        runs, orders = await await_ended_runs(storm.dsn), read_orders(self._database)
        check_runs(runs, orders)
        check_answers(self._shoppers, {reference for _, reference, _, _ in orders})
        check_effects(orders, self._database)
        statuses = Counter(status for one in self._shoppers for _, status in one.answers.values())
        kills = self._server.done
        return f"{kills.total()} kills {dict(kills)}, {len(orders)} orders, answers {dict(statuses)}"
