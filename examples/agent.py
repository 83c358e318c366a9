"""An agent of Pydantic AI whose conversation survives crashes: each model request and each tool call is a task.

    pip install 'perdure[agents]'
    python examples/agent.py

The model is a function in this file, so that the example needs no network; replace it by "openai:gpt-5" or another model. The loop of
the agent is workflow code. After a crash it replays: recorded responses are not asked for again. The tool `refund` needs approval, so
the run waits for a person. The text of the answers is printed while the model writes it.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from perdure import Perdure, Retry, workflow
from perdure.frameworks.pydantic_ai import PerdureDurability, ToolApprovals, stream_text

approvals = ToolApprovals("refund", assignees=["ada"])


async def local_model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Looks the order up, asks for a refund, then answers."""
    done = {part.tool_name: part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)}
    if "order" not in done:
        yield {0: DeltaToolCall("order", '{"number": 7}', tool_call_id="call-1")}
    elif "refund" not in done:
        yield {0: DeltaToolCall("refund", '{"number": 7, "euros": 20}', tool_call_id="call-2")}
    else:
        for word in f"Your order arrived late, so: {done['refund'].content}.".split(" "):
            yield f"{word} "
            await asyncio.sleep(0.05)


@dataclass
class Customer:
    name: str


agent = Agent(
    FunctionModel(stream_function=local_model),
    name="support",
    deps_type=Customer,
    instructions="Help the customer.",
    capabilities=[
        PerdureDurability(
            model={"retry": Retry(5), "timeout": "2m"}, tool={"retry": 3}, approvals=approvals, stream=True
        )
    ],
)


@agent.tool
async def order(ctx: RunContext[Customer], number: int) -> str:
    return f"order {number} of {ctx.deps.name}: delivered a week late"


@agent.tool_plain(requires_approval=True, metadata={"perdure": {"retry": 1}})
async def refund(number: int, euros: int) -> str:
    return f"{euros} euros for order {number}"


@workflow
async def support(question: str, customer: str) -> str:
    result = await agent.run(question, deps=Customer(customer))
    return result.output


async def main() -> None:
    async with Perdure():
        handle = await support.start("Where is my order?", "Grace")
        async for event in handle.events():
            if event.type == "PromiseCreated":
                break
        print("the agent wants to pay; ada approves")
        await approvals.approval.approve(handle.id, by="ada")
        async for piece in stream_text(handle):
            print(piece.text, end="\n" if piece.done and piece.text else "", flush=True)
        print("\nresult:", await handle.result())
        tasks = [event.data async for event in handle.events() if event.type == "TasksScheduled"]
        print("tasks:", ", ".join(task.name for task in tasks))


if __name__ == "__main__":
    asyncio.run(main())
