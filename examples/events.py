"""Named events: many runs wait, each hears of what concerns it. And a signal that starts the run it is for.

    python examples/events.py

Needs nothing: without PERDURE_DSN it starts a PostgreSQL of its own in ./.perdure.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from perdure import NamedEvent, Perdure, Signal, workflow


@dataclass
class Arrival:
    train: str
    platform: int


arrived = NamedEvent("train.arrived", Arrival)
luggage = Signal("luggage", str)


@workflow
async def traveller(name: str, train: str) -> str:
    arrival = await arrived.wait("event.train == input.train", timeout="1h")
    return f"{name} runs to platform {arrival.platform}"


@workflow
async def porter(train: str) -> str:
    """Collects luggage until the train is there."""
    pieces: list[str] = []
    coming = arrived.wait("event.train == input.train")
    while not coming.done():
        piece = asyncio.ensure_future(luggage.next())
        await asyncio.wait([coming, piece], return_when=asyncio.FIRST_COMPLETED)
        if piece.done():
            pieces.append(piece.result())
        else:
            piece.cancel()
    return f"{len(pieces)} pieces for platform {coming.result().platform}: {', '.join(pieces)}"


async def main() -> None:
    async with Perdure():
        people = [("Ada", "EC 7"), ("Grace", "EC 7"), ("Edsger", "IR 3")]
        travellers = [await traveller.start(name, train) for name, train in people]
        # The first piece starts the porter, the others find him.
        at_work = porter.options(key="porter EC 7")
        for i, piece in enumerate(("a trunk", "a hatbox", "a bicycle")):
            handle = await at_work.signal_with_start(luggage.keyed(f"ticket {i}"), piece, "EC 7")
        again = await luggage.send("key:porter EC 7", "a bicycle", key="ticket 2")
        print(f"the bicycle's ticket again: {'taken' if again else 'he has it'}")
        await asyncio.sleep(0.5)

        for train, platform in (("IR 3", 12), ("EC 7", 4)):
            await arrived.emit(Arrival(train, platform), key=f"{train} today")
        for one in (*travellers, handle):
            print(await one.result())


if __name__ == "__main__":
    asyncio.run(main())
