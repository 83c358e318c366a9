"""People decide: the run asks, waits however long that takes, costs nothing while it waits, and goes on with what they filled in.

    python examples/approval.py

An approval is a typed key that is used at both ends: the workflow waits for it, people answer it. Two of the three who are asked have to
agree; one no is enough. On a server they answer with `perdure approve`, over REST, or by a signed link.
"""

import asyncio
from dataclasses import dataclass

from perdure import Approval, Perdure, State, task, workflow
from perdure.errors import ApprovalClosed, ApprovalRejected, RunFinished


@dataclass
class Terms:
    headline: str
    price: int = 0


publication = Approval(
    "publication", Terms, title="Publish it?", assignees=["ada", "grace", "linus"], quorum=2, timeout="2d",
    escalate_after="1d", escalate_to=["editor"],
)  # fmt: skip
stage = State("stage", "new")


@task
def publish(headline: str, price: int) -> str:
    return f"https://example.org/{headline.lower().replace(' ', '-')} for {price} euros"


@workflow
async def review(title: str) -> str:
    stage.set("waiting for a decision")
    try:
        terms = await publication.wait(details={"title": title})
    except ApprovalRejected as no:
        return f"{title}: rejected by {', '.join(no.by)} ({no.comment})"
    except TimeoutError:
        return f"{title}: nobody decided within two days"
    return f"{title}: published at {await publish(terms.headline, terms.price)}"


async def main() -> None:
    async with Perdure():
        good, bad = await review.start("Good News"), await review.start("Bad News")
        for handle in (good, bad):
            async for event in handle.events():
                if event.type == "PromiseCreated":
                    break
            print(f"run {handle.id} is {await stage.read(handle.id)}")
        await publication.approve(good.id, Terms("Good News"), by="ada")
        await publication.delegate(good.id, "dennis", by="grace")
        await publication.approve(good.id, Terms("Very Good News", 3), by="dennis", comment="with a better headline")
        await publication.reject(bad.id, by="grace", comment="no sources")
        print(await good.result())
        print(await bad.result())
        try:
            await publication.approve(bad.id, Terms("Bad News"), by="ada")
        except (ApprovalClosed, RunFinished) as e:
            print(f"an answer after the decision is refused: {type(e).__name__}")


if __name__ == "__main__":
    asyncio.run(main())
