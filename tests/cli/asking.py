"""A workflow in code that asks people; the worker of the tests of approvals serves it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from perdure import Approval, Promise, Retry, Signal, task, workflow
from perdure.errors import ApprovalRejected, FinalError, TaskFailed


@dataclass
class Price:
    price: int


@workflow
async def asking_code(timeout: str, escalate: str) -> str:
    sign = Approval(
        "sign",
        Price,
        assignees=["ada", "ben"],
        quorum=2,
        title="Sign it?",
        escalate_after=escalate,
        escalate_to=["lead"],
    )
    try:
        agreed = await sign.wait(timeout=timeout, details={"rows": 3})
    except ApprovalRejected as e:
        return f"rejected by {', '.join(e.by)}: {e.comment}"
    except TimeoutError:
        await Approval("hold").wait()
        return "late"
    return f"approved at {agreed.price}"


@task(retry=Retry(1))
async def charge(flag: str) -> None:
    """Fails until the file exists."""
    if not Path(flag).exists():
        raise FinalError(f"{flag} is missing")


async def _asked(question: str) -> None:
    await Approval("sign", assignees=["ada"]).wait(title=question)


@workflow
async def asking_again(flag: str) -> str:
    """Asks for a refund. Once it was retried, asks for a payment under the same name."""
    try:
        await charge(flag)
    except TaskFailed:
        asking = asyncio.create_task(_asked("Refund 5?"))
        await Signal("go", int).next()
        asking.cancel()
        raise
    await _asked("Pay 1,000,000?")
    return "paid"


@workflow
async def asking_value() -> str:
    return await Promise("answer", str).wait()
