"""The smallest workflow: two tasks, one result.

    python examples/hello.py

Needs nothing: without PERDURE_DSN it starts a private PostgreSQL in ./.perdure and leaves it running for the next time.
"""

import asyncio

from perdure import Perdure, task, workflow


@task
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@task
def shout(text: str) -> str:
    """A plain function is a task too: it runs in a thread."""
    return text.upper()


@workflow
async def hello(name: str) -> str:
    greeting = await greet(name)
    return await shout(greeting)


async def main() -> None:
    async with Perdure():
        handle = await hello.start("world")
        print(f"started run {handle.id}")
        print(f"result: {await handle.result()}")
        print("what PostgreSQL remembers of it:")
        async for event in handle.events():
            print(f"  {event.seq} {event.type}")


if __name__ == "__main__":
    asyncio.run(main())
