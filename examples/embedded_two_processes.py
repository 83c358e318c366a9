"""Two processes, one database: each embeds Perdure, and the work spreads over both by itself.

    python examples/embedded_two_processes.py

There is no server and no broker. A process with free slots takes tasks; any process may start runs and wait for their results.
"""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections import Counter

from perdure import EngineSettings, Perdure, task, wf, workflow

TASKS = 200
SETTINGS = EngineSettings(heartbeat_s=0.3)


@task
async def where(n: int) -> int:
    await asyncio.sleep(0.05)
    return os.getpid()


@workflow
async def spread(n: int) -> list[int]:
    return await wf.map(where, range(n))


async def help_out() -> None:
    """The second process: it only has to be there."""
    async with Perdure(slots=5, settings=SETTINGS):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def main() -> None:
    async with Perdure(slots=5, settings=SETTINGS):
        helper = await asyncio.create_subprocess_exec(sys.executable, __file__, "help", stdin=PIPE, stdout=PIPE)
        assert helper.stdin is not None
        assert helper.stdout is not None
        await helper.stdout.readline()
        await asyncio.sleep(1)  # one heartbeat, so that the two know of each other
        shares = Counter(await spread.run(TASKS))
        for pid, share in shares.items():
            print(f"{'this process' if pid == os.getpid() else 'the other one'} executed {share} tasks")
        print(f"{TASKS} tasks, {len(shares)} processes")
        helper.stdin.close()
        await helper.wait()


if __name__ == "__main__":
    asyncio.run(help_out() if sys.argv[1:] == ["help"] else main())
