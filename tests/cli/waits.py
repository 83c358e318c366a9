"""One workflow for each thing that a run can wait for."""

from __future__ import annotations

from perdure import Approval, Limit, NamedEvent, Promise, RateLimit, Retry, Signal, Update, task, wf, workflow
from tests.fakes.waiting import forever

go = Signal("go", str)
value = Promise("value", int)
publish: Approval[None] = Approval("publish", assignees=["ops", "lead"])
paid = NamedEvent("order.paid", dict[str, int])
change = Update("change", int, int)


@task
async def long_task() -> None:
    await forever()


@task(queue="nobody")
async def unserved_task() -> None: ...


@task(retry=Retry(5, delay="1h", jitter=False))
async def failing_task() -> None:
    raise ValueError("on purpose")


@task(limit=Limit(1))
async def limited_task() -> None:
    await forever()


@task(rate=RateLimit(1, per="1h"))
async def rated_task() -> None: ...


@task(queue="paused")
async def paused_task() -> None: ...


@workflow
async def wait_timer() -> None:
    await wf.sleep("1d")


@workflow
async def wait_signal() -> None:
    await go.next()


@workflow
async def wait_promise() -> None:
    await value.wait()


@workflow
async def wait_approval() -> None:
    await publish.wait()


@workflow
async def wait_event(order: int) -> None:
    await paid.wait(match="event.order == input.order")


@workflow
async def wait_update() -> None:
    async for request in change:
        request.reply(request.value + 1)


@workflow
async def wait_child() -> None:
    await wait_timer()


@workflow
async def wait_limit() -> None:
    await limited_task()


@workflow(limit=Limit(1))
async def wait_run_limit() -> None:
    await go.next()


@workflow
async def wait_rate() -> None:
    await rated_task()
    await rated_task()


@workflow
async def wait_paused() -> None:
    await paused_task()


@workflow
async def wait_retry() -> None:
    await failing_task()


@workflow
async def wait_worker() -> None:
    await unserved_task()


@workflow
async def wait_slot() -> None:
    await long_task()
