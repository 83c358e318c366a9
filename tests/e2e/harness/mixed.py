"""Workflows of every way to wait, served and started by processes of different versions of Perdure. Each has one result, whoever ran which part."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from perdure import Approval, NamedEvent, Promise, Retry, Signal, State, Update, task, wf, workflow


@dataclass
class Terms:
    price: int


go = Signal("go", str)
word = Promise("word", str)
delivered = NamedEvent("mixed.delivered", dict)
ok = Approval("ok")
"""Of the flow."""
terms = Approval("terms", Terms, title="What does it cost?", assignees=["ada"])
add = Update("add", int, int)
total = State("total", 0)

NAP_S = 6.0
"""Longer than it takes to stop one server and start another."""


@task(retry=Retry(4, delay="50ms"))
async def mixed_add(a: int, b: int) -> int:
    return a + b


@task(retry=Retry(2, delay="50ms"))
def mixed_thread(number: int) -> int:
    return number * number


@workflow
async def mixed_chain(length: int) -> int:
    """Half of its tasks before a signal, and half after it."""
    last = 0
    for i in range(length):
        last = await mixed_add(last, i)
    heard = await go.next()
    for i in range(length):
        last = await mixed_add(last, i)
    return last + len(heard)


@workflow
async def mixed_spread(width: int) -> int:
    squares = await wf.map(mixed_thread, range(width))
    await go.next()
    return sum(squares) + sum(await wf.map(mixed_thread, range(width)))


@workflow
async def mixed_nap() -> int:
    """What it waits for does not come: a timer of the first version fires under the second."""
    before = await mixed_add(1, 1)
    try:
        await go.next(timeout=NAP_S)
    except TimeoutError:
        return await mixed_add(before, 1)
    return 0


@workflow
async def mixed_asking() -> str:
    answered = await terms.wait(details={"for": "a ticket"})
    said = await word.wait()
    return f"{said} for {answered.price}"


@workflow
async def mixed_updated() -> int:
    async def more(number: int) -> int:
        total.set(await mixed_add(total.get(), number))
        return total.get()

    add.handle(more)
    await go.next()
    return total.get()


@workflow
async def mixed_family() -> list[int]:
    """Its children wait for a signal of their own; one continues as new."""
    chains = [mixed_chain.options(key=f"{wf.info().key}/{n}")(n + 1) for n in range(2)]
    return list(await asyncio.gather(*chains, mixed_relay(3)))


@workflow
async def mixed_relay(left: int) -> int:
    await mixed_add(left, 1)
    if left:
        wf.continue_as_new(left - 1)
    return left


@workflow
async def mixed_event(number: int) -> int:
    found = await delivered.wait("event.number == number", number=number)
    return int(found["number"])


DAG: dict[str, Any] = {
    "flow": "mixed-dag",
    "input": {"base": {"type": "integer"}},
    "tasks": {
        "first": {"python": "mixed_add", "with": {"a": "${ input.base }", "b": 1}},
        "squares": {"foreach": "${ range(4) }", "python": "mixed_thread", "with": {"number": "${ item }"}},
        "ok": {
            "depends_on": ["first", "squares"],
            "approval": {"title": "Go on?", "assignees": ["ada"], "timeout": "1d"},
        },
        "heard": {"depends_on": ["ok"], "wait": {"signal": "go", "timeout": "1d"}},
        "pause": {"depends_on": ["heard"], "sleep": "100ms"},
        "last": {"depends_on": ["pause"], "python": "mixed_add", "with": {"a": "${ first }", "b": "${ sum(squares) }"}},
    },
    "output": "${ last }",
}
GRAPH: dict[str, Any] = {
    "flow": "mixed-graph",
    "state": {"rounds": 0},
    "max_steps": 100,
    "graph": {
        "start": "count",
        "nodes": {
            "count": {
                "python": "mixed_add",
                "with": {"a": "${ state.rounds }", "b": 1},
                "set": {"rounds": "${ output }"},
            },
            "enough": {"choice": [{"when": "state.rounds >= 4", "then": "done"}, {"else": "listen"}]},
            "listen": {"wait": {"signal": "go", "timeout": "1d"}},
            "done": {"value": "done"},
        },
        "edges": [{"from": "count", "to": "enough"}, {"from": "listen", "to": "count"}],
    },
    "output": {"rounds": "${ state.rounds }"},
}
