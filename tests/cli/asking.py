"""A workflow in code that asks people; the worker of the tests of approvals serves it."""

from __future__ import annotations

from dataclasses import dataclass

from perdure import Approval, Promise, workflow
from perdure.errors import ApprovalRejected


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


@workflow
async def asking_value() -> str:
    return await Promise("answer", str).wait()
