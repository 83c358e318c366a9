"""A person decides: the run waits for a promise, however long that takes, and costs nothing while it waits.

    python examples/approval.py

A promise is a typed key that is used at both ends: the workflow waits for it, anybody with the run's id resolves it, once.
"""

import asyncio
from dataclasses import dataclass

from perdure import Perdure, Promise, PromiseAlreadyResolved, RunFinished, State, task, workflow


@dataclass
class Decision:
    approved: bool
    by: str


decision = Promise("decision", Decision)
stage = State("stage", "new")


@task
def publish(title: str) -> str:
    return f"https://example.org/{title.lower().replace(' ', '-')}"


@workflow
async def review(title: str) -> str:
    stage.set("waiting for a decision")
    try:
        answer = await decision.wait(timeout="2d")
    except TimeoutError:
        return f"{title}: nobody decided within two days"
    stage.set("decided")
    if not answer.approved:
        return f"{title}: rejected by {answer.by}"
    return f"{title}: approved by {answer.by}, published at {await publish(title)}"


async def main() -> None:
    async with Perdure():
        good, bad = await review.start("Good News"), await review.start("Bad News")
        for handle in (good, bad):
            async for event in handle.events():
                if event.type == "PromiseCreated":
                    break
            print(f"run {handle.id} is {await stage.read(handle.id)}")
        await decision.resolve(good.id, Decision(True, "Ada"))
        await decision.resolve(bad.id, Decision(False, "Grace"))
        print(await good.result())
        print(await bad.result())
        try:
            await decision.resolve(bad.id, Decision(True, "Mallory"))
        except (PromiseAlreadyResolved, RunFinished) as e:
            print(f"a second decision is refused: {type(e).__name__}")


if __name__ == "__main__":
    asyncio.run(main())
