"""A web application that is killed at each step of a request: the commit decides about the order and about its run.

The application is examples/fastapi_shop, served by uvicorn, with the engine and the workers in its process. test_kills.py kills it under load.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from harness.forked import STEP_S
from harness.workloads.fastapi import (
    COMMITTED,
    SERVER,
    STEPS,
    await_ended_runs,
    check_effects,
    check_runs,
    read_orders,
    request,
    seed,
    settle,
)

from tests.fakes.killed_forks import Nursery

pytestmark = pytest.mark.usefixtures("processes")


@contextmanager
def shop(dsn: str) -> Iterator[tuple[Nursery, psycopg.Connection[Any]]]:
    with (
        psycopg.connect(dsn, autocommit=True) as database,
        Nursery(SERVER, {"DATABASE_URL": dsn, "PERDURE_DSN": ""}) as nursery,
    ):
        seed(nursery, database)
        yield nursery, database


def killed_at(step: str, nursery: Nursery, **arguments: bool) -> None:
    """A server that is killed at a step of its only request."""
    with ThreadPoolExecutor(1) as thread, nursery.fork(arguments, pause_at=step) as server:
        server.wait_for("ready")
        order = {"reference": step, "customer_id": 1, "sku": "tea", "quantity": 1}
        answer = thread.submit(request, nursery.port, "POST", "/orders", order)
        server.wait_for(step, STEP_S)
        server.kill()
        assert answer.result() == (None, None)


async def test_the_commit_decides_about_order_and_run_at_each_step(dsn: str) -> None:
    with shop(dsn) as (nursery, database):
        for step in STEPS:
            killed_at(step, nursery)
        with nursery.fork({}) as server:
            server.wait_for("ready")
            settle(nursery.port, database)
            runs = await await_ended_runs(dsn)
        orders = read_orders(database)
        assert [reference for _, reference, _, _ in orders] == list(COMMITTED)
        check_runs(runs, orders)
        check_effects(orders, database)


async def test_runs_started_behind_the_commit_fail_the_check(dsn: str) -> None:
    with shop(dsn) as (nursery, database):
        killed_at("after the commit", nursery, starts_behind_the_commit=True)
        with nursery.fork({"starts_behind_the_commit": True}) as server:
            server.wait_for("ready")
            order = {"reference": "r-2", "customer_id": 1, "sku": "tea", "quantity": 1}
            assert request(nursery.port, "POST", "/orders", order)[0] == 201
            runs = await await_ended_runs(dsn)
        orders = read_orders(database)
        assert (len(orders), len(runs)) == (2, 1)
        with pytest.raises(AssertionError):
            check_runs(runs, orders)
