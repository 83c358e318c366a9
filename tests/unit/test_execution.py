"""Tasks on the worker's loop: what is cancelled before it began never begins."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from perdure.core.retry import End, TaskOptions
from perdure.core.work import Assignment, Report
from perdure.sdk.execution import Execution


class Plain:
    """A signature of one number."""

    def decode_call(self, data: bytes) -> tuple[tuple[int], dict[str, Any]]:
        return (int(data),), {}

    def encode_result(self, value: int) -> bytes:
        return str(value).encode()


async def test_an_assignment_that_waits_for_a_slot_is_cancelled_without_ever_running() -> None:
    begun: list[int] = []
    gate = asyncio.Event()

    async def work(n: int) -> int:
        begun.append(n)
        await gate.wait()
        return n

    definition = SimpleNamespace(fn=work, is_async=True, signature=Plain())
    reports: list[Report] = []
    execution = Execution(lambda _: definition, lambda: 0, 1, 1, reports.extend, lambda _: None)
    run = bytes(16)
    execution.assign([Assignment(run, n, 1, 1, "work", str(n).encode(), TaskOptions()) for n in range(3)])
    await asyncio.sleep(0.01)
    assert begun == [0]
    execution.cancel(run, 1, 1)
    assert execution.in_use == 2
    gate.set()
    while len(reports) < 2:
        await asyncio.sleep(0.001)
    assert begun == [0, 2]
    assert [(r.seq, r.end) for r in reports] == [(0, End.SUCCESS), (2, End.SUCCESS)]
    assert execution.in_use == 0
    await execution.close()


async def test_many_short_tasks_share_one_runner_and_waiting_ones_run_side_by_side() -> None:
    running = 0
    all_here = asyncio.Event()

    async def short(n: int) -> int:
        return n

    async def waits(n: int) -> int:
        nonlocal running
        running += 1
        if running == 50:
            all_here.set()
        await all_here.wait()
        return n

    found = {"short": short, "waits": waits}
    reports: list[Report] = []
    execution = Execution(
        lambda name: SimpleNamespace(fn=found[name], is_async=True, signature=Plain()),
        lambda: 0, 50, 1, reports.extend, lambda _: None,
    )  # fmt: skip
    for i, name in enumerate(("short", "waits")):
        execution.assign([Assignment(bytes([i] * 16), n, 1, 1, name, b"1", TaskOptions()) for n in range(50)])
        while len(reports) < 50 * (i + 1):
            await asyncio.sleep(0.001)
        if name == "short":
            assert len(execution._runners) == 1
    assert running == 50
    await execution.close()


async def test_context_variables_of_one_task_do_not_reach_the_next() -> None:
    import contextvars

    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")
    seen: list[str] = []

    async def paints(n: int) -> int:
        seen.append(colour.get())
        colour.set(f"painted by {n}")
        return n

    reports: list[Report] = []
    execution = Execution(
        lambda _: SimpleNamespace(fn=paints, is_async=True, signature=Plain()),
        lambda: 0,
        4,
        1,
        reports.extend,
        lambda _: None,
    )
    execution.assign([Assignment(bytes(16), n, 1, 1, "paints", str(n).encode(), TaskOptions()) for n in range(20)])
    while len(reports) < 20:
        await asyncio.sleep(0.001)
    assert seen == ["none"] * 20
    await execution.close()
