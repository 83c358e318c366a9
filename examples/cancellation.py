"""Cancellation: everything that runs is told, cleans up, and ends from the leaves to the root.

    python examples/cancellation.py

One run with a child run and three tasks: on the event loop, in a thread, in a process. None of them knows how to be cancelled; each has a
`finally`, as any Python code would.
"""

import asyncio
import tempfile
import time
from pathlib import Path

from perdure import Perdure, task, workflow
from perdure.errors import RunCancelled

PLACE = Path(tempfile.gettempdir()) / "perdure-cancellation"


def say(text: str) -> None:
    with PLACE.open("a") as file:
        file.write(f"{text}\n")


@task
async def on_the_loop() -> None:
    try:
        say("begun")
        await asyncio.sleep(3600)
    finally:
        say("cleaned up on the event loop")


@task
def in_a_thread() -> None:
    try:
        say("begun")
        while True:
            time.sleep(0.01)
    finally:
        say("cleaned up in a thread")


@task(process=True)
def in_a_process() -> None:
    try:
        say("begun")
        time.sleep(3600)
    finally:
        say("cleaned up in a process")


@task
async def note(text: str) -> None:
    say(text)


@workflow
async def child() -> None:
    try:
        await asyncio.gather(on_the_loop(), in_a_thread(), in_a_process())
    finally:
        await note("the child run unwinds")


@workflow
async def parent() -> None:
    try:
        await child()
    finally:
        await note("the parent run unwinds")


async def told(what: str) -> None:
    """By all three tasks; one of them is another process, so that a file is what they have in common."""
    while not PLACE.exists() or PLACE.read_text().count(what) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def main() -> None:
    PLACE.unlink(missing_ok=True)
    async with Perdure():
        handle = await parent.start()
        await told("begun")
        at = time.monotonic()
        await handle.cancel("enough")
        try:
            await handle.result()
        except RunCancelled as error:
            print(f"the run was cancelled: {error}")
        await told("cleaned up")
        print(f"everything was clean within {'3 s' if time.monotonic() - at < 3 else 'a while'}")
    lines = [line for line in PLACE.read_text().splitlines() if line != "begun"]
    print("\n".join(sorted(line for line in lines if "cleaned" in line)))
    print("\n".join(line for line in lines if "unwinds" in line))
    PLACE.unlink()


if __name__ == "__main__":
    asyncio.run(main())
