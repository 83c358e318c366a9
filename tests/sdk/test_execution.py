"""Tasks on the worker's loop: what is cancelled before it began never begins."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from perdure import attempt, workflow
from perdure.core import events as ev
from perdure.core.limits import DETAILS_BYTES_MAX
from perdure.core.retry import End, TaskOptions
from perdure.core.work import Activation, Assignment, Beat, Decided, Report
from perdure.errors import PayloadMismatch, PayloadTooLarge
from perdure.sdk.worker import execution as execution_module
from perdure.sdk.worker.attempts import Attempt, Pulse
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.execution import TaskExecutor
from perdure.sdk.worker.worker import Worker
from tests.fakes.upstreams import ONE, upstream_to
from tests.fakes.waiting import forever, holds, turns, until


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
    execution = TaskExecutor(lambda _: definition, upstream_to(reported=reports.extend), ONE, "ignore")
    run = bytes(16)
    execution.assign([Assignment(run, n, 1, 1, "work", str(n).encode(), TaskOptions()) for n in range(3)])
    await until(lambda: begun)
    assert begun == [0]
    execution.cancel(run, 1, 1)
    in_use = execution.in_use
    gate.set()
    await until(lambda: len(reports) == 2)
    await execution.close()
    assert begun == [0, 2]
    assert [(r.seq, r.end) for r in reports] == [(0, End.SUCCESS), (2, End.SUCCESS)]
    assert (in_use, execution.in_use) == (2, 0)


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
    execution = TaskExecutor(
        lambda name: SimpleNamespace(fn=found[name], is_async=True, signature=Plain()),
        upstream_to(reported=reports.extend),
        Capacity(slots=50, threads=1),
        "ignore",
    )
    for i, name in enumerate(("short", "waits")):
        execution.assign([Assignment(bytes([i] * 16), n, 1, 1, name, b"1", TaskOptions()) for n in range(50)])
        await until(lambda: len(reports) == 50 * (i + 1))  # noqa: B023 - awaited in this turn
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
    execution = TaskExecutor(
        lambda _: SimpleNamespace(fn=paints, is_async=True, signature=Plain()),
        upstream_to(reported=reports.extend),
        Capacity(slots=4, threads=1),
        "ignore",
    )
    execution.assign([Assignment(bytes(16), n, 1, 1, "paints", str(n).encode(), TaskOptions()) for n in range(20)])
    await until(lambda: len(reports) == 20)
    assert seen == ["none"] * 20
    await execution.close()


# -- drain, reconnect, what is running ------------------------------------------------------------------------------------


class Bench:
    """An execution of plain functions by name; `gate` lets those that wait go on."""

    def __init__(self, slots: int = 10, threads: int = 1, **receivers: Any) -> None:
        self.gate, self.thread_gate = asyncio.Event(), threading.Event()
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.reports: list[Report] = []
        self.beats: list[Beat] = []
        fns: dict[str, tuple[Any, bool]] = {
            "waits": (self._waits, True),
            "stubborn": (self._stubborn, True),
            "in_thread": (self._in_thread, False),
            "exits": (sys.exit, False),
        }
        self.execution = TaskExecutor(
            lambda name: SimpleNamespace(fn=fns[name][0], is_async=fns[name][1], signature=Plain()),
            upstream_to(**{"reported": self.reports.extend, "beats": self.beats.extend, **receivers}),
            Capacity(slots=slots, threads=threads),
            "ignore",
        )

    async def _waits(self, n: int) -> int:
        self.begun.append(n)
        await self.gate.wait()
        return n

    async def _stubborn(self, n: int) -> int:
        self.begun.append(n)
        while not self.gate.is_set():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                continue
        self.ended.append(n)
        return n

    def _in_thread(self, n: int) -> int:
        self.begun.append(n)
        self.thread_gate.wait(30)
        self.ended.append(n)
        return n

    def assign(self, name: str, *seqs: int, **options: Any) -> None:
        batch = [Assignment(bytes(16), n, 1, 7, name, b"%d" % n, TaskOptions(**options), 3) for n in seqs]
        self.execution.assign(batch)

    def running(self) -> list[int]:
        return sorted(seq for _, seq, _ in self.execution.tokens())

    @property
    def ends(self) -> dict[int, End]:
        return {r.seq: r.end for r in self.reports}


async def test_a_drain_gives_back_what_has_not_begun_and_lets_the_rest_finish() -> None:
    bench = Bench(slots=2)
    bench.assign("waits", 1, 2, 3)
    bench.assign("in_thread", 11, 12)
    await until(lambda: len(bench.begun) == 3)
    assert bench.running() == [1, 2, 3, 11, 12]
    drained = asyncio.create_task(bench.execution.drain(30))
    await until(lambda: len(bench.reports) == 2)
    assert bench.ends == {3: End.RETURNED, 12: End.RETURNED}
    bench.assign("waits", 4)
    await until(lambda: 4 in bench.ends)
    assert bench.ends[4] is End.RETURNED
    assert not drained.done()
    bench.gate.set()
    bench.thread_gate.set()
    await drained
    assert {bench.ends[n] for n in (1, 2, 11)} == {End.SUCCESS}
    assert sorted(bench.begun) == [1, 2, 11]
    assert bench.running() == []
    assert bench.execution.in_use == 0
    await bench.execution.close()


async def test_what_a_drain_cannot_wait_for_is_cancelled_and_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_module, "UNWIND_S", 0.1)
    bench = Bench()
    bench.assign("waits", 1)
    bench.assign("stubborn", 2)
    bench.assign("in_thread", 3)
    await until(lambda: len(bench.begun) == 3)
    await bench.execution.drain(0.05)
    assert bench.ends == {1: End.CANCELLED, 2: End.CANCELLED, 3: End.CANCELLED}
    assert bench.running() == []
    assert bench.execution.in_use == 0
    bench.gate.set()
    bench.thread_gate.set()
    await until(lambda: sorted(bench.ended) == [2, 3])
    await holds(lambda: len(bench.reports) == 3, 0.05, "a task that ended late was reported twice")
    assert bench.execution.in_use == 0
    await bench.execution.close()


async def test_what_has_ended_counts_as_running_until_it_is_reported() -> None:
    seen: list[list[int]] = []
    bench = Bench(reported=lambda _: seen.append(bench.running()))
    bench.assign("waits", 1)
    await until(lambda: bench.begun)
    bench.gate.set()
    while not bench.execution._reports and not seen:
        assert bench.running() == [1]
        await turns()
    if not seen:
        assert bench.running() == [1]
    await until(lambda: seen)
    assert seen == [[]]
    await bench.execution.close()


async def test_one_that_waits_for_a_thread_is_kept_alive_and_can_be_cancelled() -> None:
    bench = Bench()
    bench.assign("in_thread", 1, 2, heartbeat_us=600_000)
    await until(lambda: bench.begun)
    await until(lambda: bench.beats)
    assert {b.seq for b in bench.beats} == {2}, "the one that runs speaks for itself"
    bench.execution.cancel(bytes(16), 2, 1)
    assert bench.execution.in_use == 1
    bench.thread_gate.set()
    await until(lambda: bench.reports)
    await holds(lambda: bench.begun == [1], 0.05)
    assert bench.ends == {1: End.SUCCESS}
    assert bench.execution.in_use == 0
    await bench.execution.close()


async def test_a_task_that_calls_sys_exit_fails_and_its_thread_lives_on() -> None:
    bench = Bench()
    bench.assign("exits", 1, 2)
    await until(lambda: len(bench.reports) == 2)
    assert {(r.end, r.failure.type) for r in bench.reports if r.failure} == {(End.ERROR, "SystemExit")}
    assert bench.execution.in_use == 0
    await bench.execution.close()


# -- heartbeats ------------------------------------------------------------------------------------------------------------


async def test_beats_are_coalesced_the_first_goes_at_once_and_the_latest_details_win() -> None:
    done = asyncio.Event()

    async def beats(n: int) -> int:
        for i in range(1_000):
            attempt().heartbeat(i)
        await done.wait()
        return n

    sent: list[Beat] = []
    definition = SimpleNamespace(fn=beats, is_async=True, signature=Plain())
    execution = TaskExecutor(lambda _: definition, upstream_to(beats=sent.extend), ONE, "ignore")
    execution.assign([Assignment(bytes(16), 5, 1, 1, "beats", b"1", TaskOptions())])
    await until(lambda: sent)
    assert [b.details for b in sent] == [b"0"]
    await until(lambda: len(sent) == 2)
    assert sent[1] == Beat(bytes(16), 5, 1, b"999")
    await holds(lambda: len(sent) == 2, 0.3)
    done.set()
    await execution.close()


async def test_details_must_be_json_and_small() -> None:
    class Host:
        sink = None

        def beat(self, attempt: Attempt, details: bytes) -> None:
            given.append(details)

    given: list[bytes] = []
    one = Attempt(Assignment(bytes(16), 1, 1, 1, "t", b"", TaskOptions()), Host())
    one.heartbeat()
    one.heartbeat({"done": 0.5, "where": ("a", 1)})
    assert given == [b"", b'{"done":0.5,"where":["a",1]}']
    with pytest.raises(PayloadTooLarge, match="DETAILS_BYTES_MAX"):
        one.heartbeat("x" * DETAILS_BYTES_MAX)
    with pytest.raises(PayloadMismatch, match="plain data"):
        one.heartbeat(object())


def test_a_short_heartbeat_is_forwarded_often_enough() -> None:
    pulse = Pulse(heartbeat_us=90_000)
    assert pulse.wait_s(10.0, b"") == 0
    pulse.take(10.0)
    assert 0 < pulse.wait_s(10.001, b"") <= 0.03


# -- live runs -------------------------------------------------------------------------------------------------------------


async def test_a_worker_forgets_the_run_that_was_idle_longest_when_it_is_full() -> None:
    @workflow(name="waits for ever")
    async def waits() -> None:
        await forever()

    worker = Worker(Capacity(runs_max=2))
    worker.adopt(waits)
    worker.open(upstream_to())
    ids = [bytes([n] * 16) for n in range(3)]

    async def go(n: int, replay: bool) -> Decided:
        events = [ev.Recorded(1, 0, ev.RunStarted("waits for ever", "1", b"{}"))] if replay else []
        found: list[Decided] = []
        asyncio.get_running_loop().call_soon(  # workflow code must not run inside an asyncio task
            lambda: found.extend(worker.activate([Activation(ids[n], "waits for ever", events, replay)]))
        )
        await until(lambda: found)
        return found[0]

    await go(0, True)
    await go(1, True)
    await go(0, False)
    assert worker.held() == [ids[1], ids[0]]
    await go(2, True)
    assert worker.held() == [ids[0], ids[2]]
    missed = await go(1, False)
    assert missed.stuck is not None and missed.stuck.code == "cache_miss"
    await worker.close()


def idle_execution(beats: list[Beat] | None = None, reports: list[Report] | None = None) -> TaskExecutor:
    said: list[Beat] = [] if beats is None else beats
    ended: list[Report] = [] if reports is None else reports
    return TaskExecutor(lambda _: None, upstream_to(reported=ended.extend, beats=said.extend), ONE, "ignore")


async def test_an_attempt_that_unwinds_late_does_not_take_the_place_of_the_next() -> None:
    execution = idle_execution()
    first, second = (Attempt(Assignment(bytes(16), 0, n, 1, "t", b"", TaskOptions()), execution) for n in (1, 2))
    execution._running[bytes(16), 0] = second
    execution._forget(first)
    assert execution._running == {(bytes(16), 0): second}
    execution._forget(second)
    assert execution._running == {}
    await execution.close()


async def test_what_an_attempt_wrote_goes_before_its_report() -> None:
    order: list[str] = []
    execution = TaskExecutor(lambda _: None, upstream_to(reported=lambda _: order.append("report")), ONE, "ignore")
    execution.sink = SimpleNamespace(is_empty=False, flush=lambda: order.append("output"))  # type: ignore[assignment]
    execution._reports = [Report(bytes(16), 0, 1, End.SUCCESS, b"", None, 0, 0)]
    execution._flush()
    assert order == ["output", "report"]
    execution.sink = None
    await execution.close()


async def test_an_assignment_that_waits_for_a_runner_is_kept_alive() -> None:
    beats: list[Beat] = []
    execution = idle_execution(beats)
    for seq, heartbeat_us in ((0, 1_000_000), (1, 0)):
        execution._queue.append(Assignment(bytes(16), seq, 1, 1, "t", b"", TaskOptions(heartbeat_us=heartbeat_us)))
    execution._keep_waiting()
    assert [(b.seq, b.attempt) for b in beats] == [(0, 1)]
    execution._queue.clear()
    await execution.close()


def test_details_go_with_one_beat() -> None:
    pulse = Pulse(0)
    assert pulse.wait_s(0.0, b"half") == 0.0
    assert pulse.take(0.0) == b"half"
    assert pulse.wait_s(0.0, b"") > 0
    assert pulse.take(9.0) == b""
