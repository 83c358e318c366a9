"""Messages into a running workflow, and a workflow that lives for ever without its history growing for ever.

    python examples/signals.py

The account is one run that takes deposits as signals. Every few messages it continues as new: the same run to those outside,
with a fresh history inside. No message is lost on the way.
"""

import asyncio

from perdure import Perdure, Signal, State, wf, workflow

deposits = Signal("deposits", int)
balance = State("balance", 0)

MESSAGES_PER_RUN = 5


@workflow
async def account(total: int, until: int) -> int:
    balance.set(total)
    for _ in range(MESSAGES_PER_RUN):
        total += await deposits.next()
        balance.set(total)
        if total >= until:
            return total
    return wf.continue_as_new(total, until)


async def main() -> None:
    async with Perdure():
        handle = await account.start(0, 78)
        for amount in range(1, 13):
            await deposits.send(handle.id, amount)
        print(f"12 deposits of 1 to 12 were sent; the account closes at {await handle.result()}")
        last = [e.type async for e in handle.events()][-1]
        print(f"the first run of the account ended with {last}")


if __name__ == "__main__":
    asyncio.run(main())
