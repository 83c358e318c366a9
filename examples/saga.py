"""A saga: when a later step fails, undo the earlier ones. It is a try/except, nothing more.

    python examples/saga.py

Because the workflow is durable, the compensation runs to its end as well, whatever process dies on the way.
"""

import asyncio
from collections.abc import Callable

from perdure import Perdure, Retry, Step, TaskFailed, task, workflow


class CardDeclined(Exception):
    pass


@task
async def book_flight(city: str) -> str:
    print(f"  booking a flight to {city}")
    return f"flight-to-{city}"


@task
async def book_hotel(city: str) -> str:
    print(f"  booking a hotel in {city}")
    return f"hotel-in-{city}"


@task(retry=Retry(3, initial="50ms", never=(CardDeclined,)))
async def charge(card: str) -> str:
    print(f"  charging {card}")
    if card == "expired card":
        raise CardDeclined("the card has expired")
    return "receipt-1"


@task
async def cancel_booking(booking: str) -> None:
    print(f"  cancelling {booking}")


@workflow
async def trip(city: str, card: str) -> str:
    undo: list[Callable[[], Step[None]]] = []
    try:
        flight = await book_flight(city)
        undo.append(lambda: cancel_booking(flight))
        hotel = await book_hotel(city)
        undo.append(lambda: cancel_booking(hotel))
        receipt = await charge(card)
    except TaskFailed as e:
        for compensate in reversed(undo):
            await compensate()
        return f"no trip: {e}"
    return f"trip to {city} booked, {receipt}"


async def main() -> None:
    async with Perdure():
        print("a trip that works:")
        print(f"  -> {await trip.run('Lisbon', 'good card')}")
        print("a trip whose payment fails:")
        print(f"  -> {await trip.run('Oslo', 'expired card')}")


if __name__ == "__main__":
    asyncio.run(main())
