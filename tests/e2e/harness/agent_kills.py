"""The agent of workloads/agent.py. As a program: an engine and its worker in one process, which serves conversations until it is killed.

The model is local. It writes each call that it receives to a file, and only then answers.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # for `tests`

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.usage import UsageLimits

from perdure import EngineSettings, Perdure, Retry, workflow
from perdure.frameworks.pydantic_ai import PerdureDurability
from tests.fakes.waiting import busy, forever

NAMED = "PERDURE_TEST_AGENT"
"""Names the agent: processes of different agents do not take over each other's conversations."""
AGENT = os.environ.get(NAMED, "kills")
CALLS = "PERDURE_TEST_CALLS"
"""Names the file of calls: a line `conversation turn pid moment` for each."""
LEASE_S = 4.0
ALWAYS = Retry(1000, delay="10ms", max_delay="50ms")


def noted(conversation: str, turn: int) -> None:
    """On disk before the model answers: no crash of this process hides a call."""
    file = os.open(os.environ[CALLS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{conversation} {turn} {os.getpid()} {time.monotonic():.6f}\n".encode())
    os.fsync(file)
    os.close(file)


async def local_model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Calls the tool once per turn. It answers when the file is there that ends all conversations."""
    returned = [p for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
    conversation = str(messages[0].parts[0].content)  # type: ignore[union-attr]
    turn = len(returned)
    noted(conversation, turn)
    await busy(random.uniform(0.02, 0.25))
    yield f"turn {turn} "
    await busy(0.02)
    if not os.path.exists(f"{os.environ[CALLS]}.over"):
        yield {1: DeltaToolCall("add", f'{{"turn": {turn}}}', tool_call_id=f"call-{turn}")}
    else:
        yield f"sums to {sum(int(str(p.content)) for p in returned)}"


agent = Agent(
    FunctionModel(stream_function=local_model),
    name=AGENT,
    deps_type=str,
    capabilities=[PerdureDurability(model={"retry": ALWAYS}, tool={"retry": ALWAYS}, stream=True)],
)


@agent.tool
async def add(ctx: RunContext[str], turn: int) -> int:
    await busy(random.uniform(0, 0.05))
    return turn


@workflow(name=f"agent_{AGENT}")
async def converse(conversation: str) -> str:
    result = await agent.run(conversation, deps=conversation, usage_limits=UsageLimits(request_limit=None))
    return result.output


async def main(dsn: str, conversations: int) -> None:
    settings = EngineSettings(lease_s=LEASE_S, heartbeat_s=LEASE_S / 4)
    async with Perdure(dsn, settings=settings):
        for n in range(conversations):
            await converse.options(key=f"c{n}", on_conflict="attach").start(f"c{n}")
        print("ready", flush=True)
        await forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
