"""Workflows of several kinds, for a worker of a server that has few rights."""

from typing import Any

import perdure
from perdure import Approval, NamedEvent, Signal, State, task, wf, workflow

paid = Signal("paid", int)
agreed = Approval("agreed")
delivered = NamedEvent("order.delivered", dict[str, Any])
stage = State("stage", "")


@task
async def charge(order: int) -> str:
    print(f"charging {order}")
    return f"charged {order}"


@task(retry=3)
async def pack(order: int) -> int:
    if perdure.attempt().number == 1:
        raise ValueError("the first attempt fails")
    return order


@workflow
async def child(order: int) -> str:
    return await charge(order)


@workflow
async def checkout(order: int) -> list[str]:
    stage.set("waiting for the payment")
    amount = await paid.next()
    charged = await wf.map(charge, [order, await pack(order + 1)])
    return [*charged, await child(order), f"paid {amount}"]


@workflow
async def ask(order: int) -> str:
    await agreed.wait()
    return f"agreed to {order}"


@workflow
async def deliver(order: int) -> str:
    event = await delivered.wait("event.order == input.order")
    return f"{order} delivered by {event['by']}"


@workflow
async def inventory() -> str:
    return await charge(0)
