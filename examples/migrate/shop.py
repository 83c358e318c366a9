"""The services of a shop, as all programs in this folder call them: plain functions that know no orchestrator.

Each writes what it did to the ledger, a file, and prints it. As real services should, they recognise a repetition by the number of the order.
"""

import os
from pathlib import Path
from typing import TypedDict

LEDGER = Path(os.environ.get("SHOP_LEDGER", "ledger.txt"))
PACKING_S = 1
"""How long a parcel is packed. Hours, in a real shop."""


class Line(TypedDict):
    sku: str
    quantity: int
    cents: int


class Order(TypedDict):
    id: str
    lines: list[Line]


def order(number: str) -> Order:
    """What the customer ordered under this number."""
    lines: list[Line] = [{"sku": "book", "quantity": 2, "cents": 1500}, {"sku": "desk", "quantity": 1, "cents": 40000}]
    return {"id": number, "lines": lines}


def reserve(number: str, line: Line) -> int:
    """Take the goods from the stock; what they cost. The desk is on a shelf whose system never answers the first time."""
    if line["sku"] == "desk" and write(f"no answer: {number} desk"):
        raise ConnectionError("the stock system does not answer")
    write(f"reserved: {number} {line['sku']} x {line['quantity']}")
    return line["quantity"] * line["cents"]


def ask(number: str, cents: int) -> None:
    """Ask the office, by mail, whether the order may be sent."""
    write(f"asked: {number} {cents / 100:.2f}")


def charge(number: str, cents: int) -> str:
    write(f"charged: {number} {cents / 100:.2f}")
    return f"payment-{number}"


def ship(number: str) -> str:
    write(f"shipped: {number}")
    return f"parcel-{number}"


def report() -> str:
    """What the shop sold, for the nightly report."""
    charged = [line.split() for line in read() if line.startswith("charged: ")]
    return f"{len(charged)} orders, {sum(float(amount) for _, _, amount in charged):.2f}"


def read() -> list[str]:
    return LEDGER.read_text().splitlines() if LEDGER.exists() else []


def write(entry: str) -> bool:
    """True for a new entry, False for a repetition."""
    if entry in read():
        return False
    with LEDGER.open("a") as ledger:
        ledger.write(entry + "\n")
    os.write(1, (entry + "\n").encode())  # in one piece, from any thread or process
    return True
