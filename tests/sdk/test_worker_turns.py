"""Workflow code runs in slices wherever it awaits: a huge gather keeps nobody of its worker waiting."""

from __future__ import annotations

import asyncio

import pytest

from perdure import workflow
from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.work import Activation, Decided
from perdure.sdk.worker import workflow_runner
from perdure.sdk.worker.overrun import StretchBound
from perdure.sdk.worker.worker import Worker
from tests.fakes.upstreams import upstream_to
from tests.fakes.waiting import turns

MANY = 3_000


@workflow(name="turns_gather")
async def gather(n: int) -> int:
    async def one(i: int) -> int:
        await turns()
        return i

    return sum(await asyncio.gather(*(one(i) for i in range(n))))


@workflow(name="turns_modest")
async def modest(n: int) -> int:
    return n


def activation(number: int, name: str, n: int) -> Activation:
    started = ev.RunStarted(name, "v", b'{"n":%d}' % n)
    return Activation(bytes([number]) * 16, name, [ev.Recorded(1, 0, started)], True)


class Driven:
    def __init__(self) -> None:
        self.worker = Worker(output="ignore")
        self.worker.open(upstream_to(decided=self.take))
        self.order: list[int] = []
        self.results: dict[int, bytes] = {}

    def take(self, batch: list[Decided]) -> None:
        for d in batch:
            assert d.stuck is None, d.stuck
            self.order.append(d.run_id[0])
            (end,) = d.commands
            assert isinstance(end, cm.CompleteRun)
            self.results[d.run_id[0]] = end.result

    def activate(self, *batch: Activation) -> None:
        asyncio.get_running_loop().call_soon(lambda: self.take(self.worker.activate(list(batch))))

    async def until(self, count: int) -> int:
        """Turns of the loop until that many were decided."""
        for turn in range(20_000):
            if len(self.order) >= count:
                return turn
            await turns()
        raise AssertionError(f"only {self.order} were decided")


async def test_others_are_decided_between_the_slices_of_a_huge_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow_runner, "SLICE_S", 0.0)
    driven = Driven()
    driven.activate(activation(1, "turns_gather", MANY), activation(2, "turns_modest", 2))
    assert await driven.until(1) < 10
    driven.activate(activation(3, "turns_modest", 3))
    assert await driven.until(2) < 10
    assert await driven.until(3) > MANY / 16, "it was run in one piece"
    assert driven.order == [2, 3, 1]
    assert driven.results == {1: b"%d" % sum(range(MANY)), 2: b"2", 3: b"3"}
    await driven.worker.close()


async def test_a_run_that_is_forgotten_between_two_slices_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow_runner, "SLICE_S", 0.0)
    driven = Driven()
    driven.activate(activation(1, "turns_gather", MANY))
    await turns(5)
    driven.worker.forget(bytes([1]) * 16)
    driven.activate(activation(2, "turns_modest", 2))
    await driven.until(1)
    assert driven.order == [2]
    assert driven.worker.held() == []
    await driven.worker.close()


@workflow(name="turns_endless")
async def endless(n: int) -> int:
    while True:
        n += 1


async def test_code_without_end_is_stopped_also_in_a_worker_that_was_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workflow_runner, "StretchBound", lambda unstoppable: StretchBound(unstoppable, 0.1))
    worker, stopped = Worker(output="ignore"), asyncio.Event()
    worker.adopt(endless)
    worker.open(upstream_to())
    asyncio.get_running_loop().call_soon(lambda: worker.activate([activation(1, "turns_endless", 1)]) and stopped.set())
    await stopped.wait()
    await worker.close()
    stopped.clear()
    worker.open(upstream_to())
    asyncio.get_running_loop().call_soon(lambda: worker.activate([activation(2, "turns_endless", 1)]) and stopped.set())
    await stopped.wait()
    await worker.close()
