"""A message that came before a deploy and that the new code cannot read: the run is stuck, takes nothing back, and goes on with code that can."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Perdure, Promise, Signal, task, workflow
from perdure.core import ids
from tests.fakes.waiting import until

charged: list[str] = []
undone: list[str] = []


@task(name="um_refund")
async def refund(order: str, result: str, error: dict[str, str]) -> None:
    undone.append(order)


@task(name="um_charge", undo=refund)
async def charge(order: str) -> str:
    charged.append(order)
    return f"paid {order}"


def _deploy(client: Perdure, version: str, kind: Any, by: str) -> Any:
    message: Any = Signal("um_shipped", kind) if by == "signal" else Promise("um_shipped", kind)

    @workflow(name="um_order", version=version)
    async def order(id: str) -> str:
        paid = await charge(id)
        try:
            return f"{paid}, {await (message.next() if by == 'signal' else message.wait())}"
        except Exception as e:
            return f"caught {type(e).__name__}"

    client.serve(order)
    return order, message


@pytest.mark.parametrize("by", ["signal", "promise"])
async def test_a_message_that_new_code_cannot_read_makes_the_run_stuck_and_takes_nothing_back(
    dsn: str, by: str
) -> None:
    charged.clear()
    undone.clear()
    async with Perdure(dsn, tune_gc=False) as client:
        client.serve(charge)
        client.serve(refund)
        order, message = _deploy(client, "1", str, by)
        await client.engine.refresh()
        run = await client.start(order, "ink")

        await until(lambda: charged)
    async with Perdure(dsn, tune_gc=False) as client:  # no worker serves the workflow at the moment
        await (message.send_on if by == "signal" else message.resolve_on)(client._backend, run.id, "by post")
    async with Perdure(dsn, tune_gc=False) as client:
        client.serve(charge)
        client.serve(refund)
        order, _ = _deploy(client, "2", dict, by)
        await client.engine.refresh()
        stuck = await until(lambda: _stuck(client, run.id))
        assert stuck.startswith("payload_mismatch: the code cannot read") and "um_shipped" in stuck
        assert undone == []
    async with Perdure(dsn, tune_gc=False) as client:
        client.serve(charge)
        client.serve(refund)
        order, _ = _deploy(client, "3", str, by)
        await client.engine.refresh()
        repaired = await client.get(run.id, workflow=order)
        await repaired.resume()
        assert await repaired.result("1m") == "paid ink, by post"
    assert undone == []


async def _stuck(client: Perdure, run: str) -> str | None:
    view = await client.store.describe(ids.parse(run), client.engine.ns)
    assert view is not None
    return view.stuck
