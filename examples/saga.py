"""A saga: each step names the task that undoes it, and when a later step fails, everything before it is undone.

    python examples/saga.py

Nothing in the workflow deals with it. What was done is on the run's undo stack, which follows from its history, so it is unwound to its end
even if processes die on the way.
"""

import asyncio

from perdure import Perdure, Retry, task, wf, workflow
from perdure.errors import RunFailed


class CardDeclined(Exception):
    pass


@task
async def cancel_booking(result: str, error: dict[str, str]) -> None:
    """`result` is what the booking returned, `error` why it is undone. Tried five times unless it says otherwise."""
    print(f"  cancelling {result}")


@task(undo=cancel_booking)
async def book_flight(city: str) -> str:
    print(f"  booking a flight to {city}")
    return f"flight-to-{city}"


@task(undo=cancel_booking)
async def book_hotel(city: str) -> str:
    print(f"  booking a hotel in {city}")
    return f"hotel-in-{city}"


@task(retry=Retry(3, delay="50ms", never=(CardDeclined,)))
async def charge(card: str) -> str:
    print(f"  charging {card}")
    if card == "expired card":
        raise CardDeclined("the card has expired")
    return "receipt-1"


@workflow
async def trip(city: str, card: str) -> str:
    await book_flight(city)
    await book_hotel(city)
    receipt = await charge(card)
    wf.commit_undo()  # it is paid: from here on there is no way back
    return f"trip to {city} booked, {receipt}"


async def main() -> None:
    async with Perdure():
        print("a trip that works:")
        print(f"  -> {await trip.run('Lisbon', 'good card')}")
        print("a trip whose payment fails:")
        try:
            await trip.run("Oslo", "expired card")
        except RunFailed as e:
            print(f"  -> no trip: {e.failure.message}")


if __name__ == "__main__":
    asyncio.run(main())
