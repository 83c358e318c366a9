"""The tasks of these flows. `perdure worker examples/flows/tasks.py`, or `perdure dev examples/flows`, serves them."""

from __future__ import annotations

from typing import Any

from perdure import task


@task
async def discover(day: str) -> dict[str, list[str]]:
    return {"files": [f"{day}-{part}.csv" for part in ("north", "south", "west")]}


@task
async def load(file: str) -> int:
    return len(file) * 10


@task
async def publish(day: str, rows: int) -> str:
    return f"{rows} rows of {day}"


@task
def clean(files: list[str]) -> int:
    return len(files)


@task
async def price(supplier: str, asked: int) -> int:
    if supplier == "nobody":
        raise ConnectionError(f"{supplier} does not answer")
    return 120 - 15 * asked


@task
async def create_account(name: str) -> dict[str, str]:
    return {"login": name.lower()}


@task
async def charge(customer: str, amount: int) -> int:
    return amount


@task
async def reserve(what: str) -> str:
    return f"#{len(what)}"


@task
async def cancel(what: str, result: str) -> None:
    print(f"cancelled {what} {result}")


@task
async def pay_by(card: str) -> str:
    if card == "expired":
        raise ValueError("the card has expired")
    return f"paid by {card} card"


@task
async def multiply(input: float, params: dict[str, Any]) -> float:
    """A service: what flows as data call with an input and params."""
    return round(input * params["by"], 2)


@task
async def add(input: list[float], params: dict[str, Any]) -> dict[str, float]:
    return {"sum": sum(input), "count": len(input)}
