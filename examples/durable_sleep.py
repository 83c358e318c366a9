"""A workflow that survives kill -9 in the middle of a sleep.

    python examples/durable_sleep.py

The script starts itself as a second process that begins a run, and kills that process while the run sleeps. Then it carries
on with the same run itself: what was done is not done again, and the sleep ends when it would have ended anyway.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time

from perdure import EngineSettings, Perdure, task, wf, workflow

SLEEP_S = 3
# A process that is gone is noticed after this many seconds. The default of 15 suits production; a demonstration is in a hurry.
SETTINGS = EngineSettings(lease_s=1.5, heartbeat_s=0.5)


@task
def bake(what: str) -> str:
    print(f"  [process {os.getpid()}] baking {what}", flush=True)
    return f"a {what}"


@workflow
async def breakfast(first: str, second: str) -> str:
    one = await bake(first)
    await wf.sleep(f"{SLEEP_S}s")
    return f"{one} and {await bake(second)}"


async def begin(run_id: str) -> None:
    """What the first process does: start the run, then wait for a result it will not live to see."""
    async with Perdure(settings=SETTINGS):
        handle = await breakfast.options(key=run_id).start("croissant", "cake")
        async for event in handle.events():
            if event.type == "TimerStarted":
                print("the run sleeps", flush=True)


async def carry_on(run_id: str) -> None:
    async with Perdure(settings=SETTINGS):
        handle = await breakfast.options(key=run_id, on_conflict="attach").start("croissant", "cake")
        print(f"process {os.getpid()} waits for the same run, {handle.id}", flush=True)
        print(f"result: {await handle.result()}")


def main() -> None:
    run_id = f"breakfast-{time.time_ns()}"
    began = time.monotonic()
    with subprocess.Popen([sys.executable, __file__, "begin", run_id], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        print(f"process {child.pid} starts the run", flush=True)
        for line in child.stdout:
            print(line, end="", flush=True)
            if "the run sleeps" in line:
                child.send_signal(signal.SIGKILL)
                break
    print(f"process {child.pid} was killed with SIGKILL", flush=True)
    asyncio.run(carry_on(run_id))
    print(f"done after {time.monotonic() - began:.1f} s; the first step ran once, in the process that is gone")


if __name__ == "__main__":
    if sys.argv[1:2] == ["begin"]:
        asyncio.run(begin(sys.argv[2]))
    else:
        main()
