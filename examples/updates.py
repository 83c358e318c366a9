"""Updates: ask a running workflow to change something, and get its answer or its refusal.

    python examples/updates.py

One run is the seating plan of a small theatre. Many people ask it for seats at once; each gets a ticket or the reason why not. No
seat is given twice, and asking again under the same key, as after a lost connection, returns the same ticket.
"""

import asyncio
from dataclasses import dataclass

from perdure import Perdure, Signal, State, Update, task, workflow
from perdure.errors import UpdateRejected


@dataclass
class Wish:
    name: str
    seats: int


@dataclass
class Ticket:
    name: str
    seats: list[int]


book = Update("book", Wish, Ticket)
curtain = Signal("curtain", bool)
free = State("free", 0)


@task
async def print_ticket(ticket: Ticket) -> None: ...


@workflow
async def theatre(seats: int) -> dict[str, list[int]]:
    sold: dict[str, list[int]] = {}
    left = list(range(1, seats + 1))
    free.set(len(left))

    def sensible(wish: Wish) -> None:
        if not 1 <= wish.seats <= 4:
            raise UpdateRejected("between one and four seats, please")

    async def sell(wish: Wish) -> Ticket:
        if wish.seats > len(left):
            raise UpdateRejected(f"only {len(left)} seats are left")
        taken = [left.pop(0) for _ in range(wish.seats)]
        free.set(len(left))
        ticket = Ticket(wish.name, taken)
        await print_ticket(ticket)
        sold[wish.name] = taken
        return ticket

    book.handle(sell, validate=sensible)
    await curtain.next()
    return sold


async def ask(run_id: str, name: str, seats: int) -> str:
    try:
        ticket = await book.ask(run_id, Wish(name, seats), key=f"booking-of-{name}")
        return f"{name} sits on {ticket.seats}"
    except UpdateRejected as refused:
        return f"{name} is refused: {refused}"


async def main() -> None:
    async with Perdure():
        run = await theatre.start(6)
        print(await ask(run.id, "Ada", 2))
        print(await ask(run.id, "Barbara", 9))
        print(await ask(run.id, "Grace", 3))
        print(await ask(run.id, "Edsger", 2))
        print("asked again:", await ask(run.id, "Ada", 2))
        print(f"{await free.read(run.id)} seat is free")
        await curtain.send(run.id, True)
        print("the house:", await run.result())


if __name__ == "__main__":
    asyncio.run(main())
