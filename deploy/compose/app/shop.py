"""The workflow that the workers of compose.yaml serve. Put your own modules beside it."""

from perdure import task, wf, workflow


@task
async def charge(order: int) -> str:
    return f"charged order {order}"


@task(retry=3)
async def ship(order: int) -> str:
    return f"shipped order {order}"


@workflow
async def checkout(order: int) -> list[str]:
    charged = await charge(order)
    await wf.sleep("2s")
    return [charged, await ship(order)]
