"""The agent of test_agent_kills.py. As a program: an engine and its worker in one process, which serves conversations until it is killed.

It begins when it reads a line, the number of conversations that it is to start: a process that waits has imported everything.

The model is local. It writes each call that it receives to a file, and only then answers.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # for `tests`

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from perdure import EngineSettings, Perdure, Retry, workflow
from perdure.frameworks.pydantic_ai import PerdureDurability
from tests.fakes.waiting import busy, forever

AGENT = "kills"
MODEL_TASK = f"{AGENT}.model_stream"
CALLS = "PERDURE_TEST_CALLS"
"""Names the file of calls: a line `conversation turn pid` for each."""
LEASE_S = 1.0
ALWAYS = Retry(1000, delay="10ms", max_delay="50ms")


def noted(conversation: str, turn: int) -> None:
    """On disk before the model answers: no crash of this process hides a call."""
    file = os.open(os.environ[CALLS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{conversation} {turn} {os.getpid()}\n".encode())
    os.fsync(file)
    os.close(file)


async def local_model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Calls the tool once per turn, and answers when it has done so as often as it was asked to."""
    returned = [p for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
    conversation, _, turns = str(messages[0].parts[0].content).partition(" ")  # type: ignore[union-attr]
    turn = len(returned)
    noted(conversation, turn)
    await busy(random.uniform(0.02, 0.25))
    yield f"turn {turn} "
    await busy(0.02)
    if turn < int(turns):
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


@workflow(name="agent_kills")
async def converse(conversation: str, turns: int) -> str:
    result = await agent.run(f"{conversation} {turns}", deps=conversation)
    return result.output


async def main(dsn: str, turns: int) -> None:
    conversations = int(sys.stdin.readline() or 0)
    settings = EngineSettings(lease_s=LEASE_S, heartbeat_s=LEASE_S / 4)
    async with Perdure(dsn, settings=settings):
        for n in range(conversations):
            await converse.options(key=f"c{n}").start(f"c{n}", turns)
        print("ready", flush=True)
        await forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
