"""Workflows for the tests of the web UI. Served by a worker process of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from perdure import Approval, Retry, Signal, State, task, wf, workflow
from perdure.errors import FinalError, TaskFailed
from tests.ui.seed.pace import pause


@dataclass
class Terms:
    price: int
    note: str = ""


pay = Approval("pay", title="Pay out")
publish = Approval("publish", Terms, title="Publish the report", assignees=["ops"], timeout="2d")
steer = Signal("steer", str)
never = Signal("never", str)
stage = State("stage", "new")


@task
async def greet(name: str, times: int = 1) -> str:
    return ", ".join([f"hello {name}"] * times)


@workflow
async def hello(name: str, times: int = 1, loud: bool = False) -> str:
    """Greets a person."""
    text = await greet(name, times)
    return text.upper() if loud else text


@task
async def chatter(lines: int, every_s: float = 0.1) -> int:
    for n in range(lines):
        print(f"line {n} of {lines}")
        await pause(every_s)
    return lines


@workflow
async def talk(lines: int = 5, every_s: float = 0.1) -> int:
    return await chatter(lines, every_s)


@workflow
async def report(title: str) -> str:
    stage.set("asked")
    terms = await publish.wait(
        details={"title": title, "rows": 1284, "parts": [{"name": "a", "rows": 3}, {"name": "b", "rows": 4}]}
    )
    stage.set("decided")
    return f"{title} for {terms.price}"


@workflow
async def listen(count: int = 1) -> list[str]:
    heard: list[str] = []
    while len(heard) < count:
        heard.append(await steer.next())
    return heard


@task(retry=Retry(2, delay="50ms"))
async def fragile_part(flag: str, n: int = 0) -> str:
    """Fails until the file exists."""
    if not Path(flag).exists():
        raise FinalError(f"{flag} is missing, part {n}")
    return f"part {n}"


@workflow
async def mend(flag: str) -> str:
    await greet("before")
    return await fragile_part(flag)


async def ask_to_pay(amount: str) -> None:
    await pay.wait(details={"amount": amount})


@workflow
async def refund(flag: str) -> str:
    """Asks to pay 5. Once it was retried, asks to pay 1,000,000 under the same name."""
    try:
        await fragile_part(flag)
    except TaskFailed:
        asking = asyncio.create_task(ask_to_pay("5"))
        await steer.next()
        asking.cancel()
        raise
    await ask_to_pay("1,000,000")
    return "paid"


@workflow
async def spread(n: int, flag: str = "") -> int:
    if flag:
        await wf.map(fragile_part, [flag] * n)
    return len(await wf.map(greet, [f"p{k}" for k in range(n)]))


@workflow
async def echo(value: object) -> object:
    await chatter(0)
    print(str(value)[:200])
    return value


@workflow
async def sleepy() -> None:
    """Waits for what does not come."""
    await never.next()
