"""Deploys the flows beside it and runs each once, in this process.

python examples/flows/run.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tasks

from perdure import Approval, Perdure, Promise, Signal, flow
from perdure.errors import RunFailed

HERE = Path(__file__).parent


@dataclass
class Price:
    price: int


publish = Approval("publish", Price)
review = Promise("review", bool)
contract = Signal("contract", dict[str, bool])


async def main() -> None:
    assert tasks.discover.name == "discover"  # what is imported is served
    async with Perdure() as client:
        for file in sorted([*HERE.glob("*.yaml"), *HERE.glob("*.json")]):
            await client.deploy(file)
        await show("approval", agreed())
        await show("compensate", flow("compensate").run(city="Oslo", nights=["mon", "tue"]))
        await show("compensate, not paid", unpaid())
        await show("etl", flow("etl").run(day="2026-11-15"))
        await show("etl, reviewed", reviewed())
        await show("haggle", flow("haggle").run(supplier="acme"))
        await show("haggle with nobody", flow("haggle").run(supplier="nobody"))
        await show("limits", flow("limits").run(customer="acme"))
        await show("onboarding", onboarded())
        await show("pricing", flow("pricing").run(prices=[50, 45.5]))


async def agreed() -> Any:
    run = await flow("approval").start(title="Good news")
    async for event in run.events():
        if event.type == "PromiseCreated":
            break
    for who in ("ada", "linus"):
        await publish.approve(run.id, Price(3), by=who)
    return await run.result()


async def unpaid() -> Any:
    try:
        return await flow("compensate").run(city="Oslo", nights=["mon", "tue"], card="expired")
    except RunFailed as e:
        return e.failure.message


async def reviewed() -> Any:
    run = await flow("etl").start(day="2026-11-15", review_above=100)
    await review.resolve(run.id, False)
    return await run.result()


async def onboarded() -> Any:
    people = [{"name": "Ada", "remote": True}, {"name": "Grace", "remote": False}]
    run = await flow("onboarding").start(people=people)
    await contract.send(run.id, {"signed": True})
    return await run.result()


async def show(name: str, running: Any) -> None:
    print(f"{name}: {await running}")


if __name__ == "__main__":
    asyncio.run(main())
