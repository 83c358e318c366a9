"""TestEnv: the real engine with mocked tasks and time that skips."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import NamedEvent, Promise, Retry, Signal, TestEnv, flow, task, wf, workflow
from perdure.errors import ChildFailed, InvalidInput, PerdureError, RunFailed
from tests.fakes.waiting import turns

calls: list[str] = []
ok = Promise("env_ok", bool)
poke = Signal("env_poke", int)


@task(name="env_fetch", retry=Retry(3, delay="10m", jitter=False))
async def fetch(url: str) -> int:
    raise AssertionError("the real task must not run in a test that mocks it")


@workflow(name="env_patient")
async def patient(url: str) -> str:
    began = wf.now()
    n = await fetch(url)
    await wf.sleep("30d")
    return f"{n} after {(wf.now() - began).days} days"


@workflow(name="env_asks")
async def asks(x: int) -> str:
    try:
        return f"{await ok.wait(timeout='2d')}"
    except TimeoutError:
        return "nobody answered"


@workflow(name="env_ticks")
async def ticks(n: int) -> list[int]:
    seen: list[int] = []
    start = wf.now()
    for _ in range(n):
        await asyncio.sleep(3600)
        seen.append(round((wf.now() - start).total_seconds() / 3600))
    return seen


@workflow(name="env_forever")
async def forever(x: int) -> int:
    return await poke.next()


rung = NamedEvent("env_rung", str)


@workflow(name="env_hears")
async def hears(x: int) -> str:
    try:
        return await rung.wait(timeout="1d")
    except TimeoutError:
        return "silence"


async def test_run_skips_sleeps_and_retry_delays() -> None:
    tries = 0

    def flaky(url: str) -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionError("not yet")
        return len(url)

    async with TestEnv() as env:
        env.mock(fetch, flaky)
        assert await env.run(patient, "abc") == "3 after 30 days"
    assert tries == 3


async def test_time_stands_still_until_it_is_advanced() -> None:
    async with TestEnv() as env:
        env.mock(fetch, lambda url: 1)
        handle = await env.start(patient, "abc")
        before = env.now
        await env.advance("29d")
        assert await handle.status() == "running"
        assert timedelta(days=29) <= env.now - before < timedelta(days=29, minutes=5)
        await env.advance("2d")
        assert await handle.result("5s") == "1 after 30 days"


async def test_timers_on_the_way_fire_in_order_at_their_own_times() -> None:
    async with TestEnv() as env:
        handle = await env.start(ticks, 5)
        await env.advance("1d")
        assert await handle.result("5s") == [1, 2, 3, 4, 5]


async def test_a_timeout_and_an_answer_in_time_take_their_own_paths() -> None:
    async with TestEnv() as env:
        assert await env.run(asks, 1) == "nobody answered"
        handle = await env.start(asks, 2)
        await env.advance("1d")
        await ok.resolve(handle.id, True)
        assert await handle.result("5s") == "True"


async def test_a_mock_still_passes_through_the_types_of_its_task() -> None:
    async with TestEnv() as env:
        env.mock(fetch, lambda url: "not a number")  # type: ignore[arg-type,return-value]
        with pytest.raises(RunFailed, match="PayloadMismatch"):
            await env.run(patient, "abc")


async def test_an_async_mock_is_awaited() -> None:
    async def answer(url: str) -> int:
        await turns()
        return 7

    async with TestEnv() as env:
        env.mock(fetch, answer)
        assert await env.run(patient, "abc") == "7 after 30 days"


async def test_run_says_that_a_workflow_waits_for_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.clockwork.INPUT_S", 0.2)
    async with TestEnv() as env:
        with pytest.raises(PerdureError, match=r"env_forever waits for a signal.*env\.start"):
            await env.run(forever, 1)


async def test_two_environments_do_not_share_time_or_runs() -> None:
    async with TestEnv() as a:
        await a.advance("10d")
        async with TestEnv() as b:
            assert a.now - b.now > timedelta(days=9)


# -- mocked workflows -----------------------------------------------------------------------------------------------


@workflow(name="env_child")
async def child(order: str, copies: int = 1) -> list[str]:
    raise AssertionError("the real child must not run in a test that mocks it")


@workflow(name="env_parent")
async def parent(order: str) -> str:
    try:
        return "+".join(await child(order, copies=2))
    except ChildFailed as e:
        return f"failed: {e}"


@workflow(name="env_calls_by_name")
async def calls_by_name(day: str) -> int:
    return await flow("env_elsewhere", int)(day=day)


async def test_a_child_is_mocked_by_its_definition() -> None:
    seen: list[tuple[str, int]] = []

    def fake(order: str, copies: int = 1) -> list[str]:
        seen.append((order, copies))
        return [order] * copies

    async with TestEnv() as env:
        env.mock(child, fake)
        assert await env.run(parent, "ink") == "ink+ink"
    assert seen == [("ink", 2)]


async def test_a_child_is_mocked_by_its_name_and_may_wait() -> None:
    async def fake(order: str, copies: int = 1) -> list[str]:
        began = wf.now()
        await wf.sleep("3d")
        return [order, f"{(wf.now() - began).days}d"]

    async with TestEnv() as env:
        env.mock("env_child", fake)
        assert await env.run(parent, "ink") == "ink+3d"


async def test_a_mocked_child_that_raises_fails_its_run() -> None:
    def fake(order: str, copies: int = 1) -> list[str]:
        raise LookupError(f"no {order}")

    async with TestEnv() as env:
        env.mock(child, fake)
        assert await env.run(parent, "ink") == "failed: LookupError: no ink"


async def test_the_result_of_a_mocked_child_passes_through_its_type() -> None:
    async with TestEnv() as env:
        env.mock(child, lambda order, copies: 7)  # type: ignore[arg-type,return-value]
        with pytest.raises(RunFailed, match="list"):
            await env.run(child, "ink")


async def test_a_child_that_is_only_known_by_name_is_mocked() -> None:
    async with TestEnv() as env:
        env.mock(flow("env_elsewhere"), lambda day: len(day))
        assert await env.run(calls_by_name, "monday") == 6


async def test_a_child_of_a_flow_and_a_deployed_flow_are_mocked() -> None:
    async with TestEnv() as env:
        await env.deploy({"flow": "env_elsewhere", "tasks": {"a": {"value": 1}}, "output": "${ 1 }"})
        tasks = {
            "a": {"flow": "env_elsewhere", "with": {"day": "mo"}},
            "b": {"flow": "env_child", "with": {"order": "ink", "copies": 3}},
        }
        await env.deploy({"flow": "env_outer", "tasks": tasks, "output": {"a": "${ a }", "b": "${ b }"}})
        env.mock(flow("env_elsewhere"), lambda day: f"not {day}")
        env.mock(flow("env_child"), lambda order, copies: [order] * copies)
        assert await env.run(flow("env_outer")) == {"a": "not mo", "b": ["ink"] * 3}


async def test_what_cannot_be_mocked_is_refused() -> None:
    targets: list[Any] = [poke, "env_nothing_of_that_name", print, 7]
    async with TestEnv() as env:
        for target in targets:
            with pytest.raises(InvalidInput, match="cannot be mocked|no task or workflow 'env_nothing_of_that_name'"):
                env.mock(target, lambda: None)
        with pytest.raises(InvalidInput, match="cannot be called"):
            env.mock(child, ["a"])  # type: ignore[call-overload]


async def test_a_mock_returns_raises_and_records_its_calls() -> None:
    async with TestEnv() as env:
        with env.mock(fetch, returns=4) as returned:
            assert await env.run(patient, "abc") == "4 after 30 days"
        with env.mock(fetch, raises=OSError("down")) as raising:
            with pytest.raises(RunFailed, match="down"):
                await env.run(patient, "abc")
        with env.mock("env_fetch", calls=len) as called:
            assert await env.run(patient, "abcd") == "4 after 30 days"
        assert returned.calls == [(("abc",), {})]
        assert (returned.call_count, raising.call_count, called.call_count) == (1, 3, 1)
        with pytest.raises(RunFailed, match="the real task must not run"):  # every mock has ended
            await env.run(patient, "abc")
        env.assert_mocks_used()
        unused = env.mock(child, returns=[])
        unused.assert_not_called()
        with pytest.raises(AssertionError, match="the mock of env_child was not called"):
            unused.assert_called()
        with pytest.raises(AssertionError, match="mocks that were not called: env_child"):
            env.assert_mocks_used()


async def test_of_two_mocks_the_last_counts_and_the_first_is_back_when_it_ends() -> None:
    async with TestEnv() as env:
        outer = env.mock(fetch, returns=1)
        with env.mock(fetch, returns=2):
            assert await env.run(patient, "abc") == "2 after 30 days"
        assert await env.run(patient, "abc") == "1 after 30 days"
        assert outer.call_count == 1


async def test_the_calls_of_a_mocked_child_are_recorded_once_for_each_run() -> None:
    async def fake(order: str, copies: int = 1) -> list[str]:
        with pytest.raises(TimeoutError):
            await ok.wait(timeout="1d")
        return [order]

    async with TestEnv() as env:
        mock = env.mock(child, fake)
        handle = await env.start(parent, "ink")
        env.client.engine.eviction.release_all()  # the rest of the run begins with a replay
        await env.advance("2d")
        assert await handle.result("5s") == "ink"
        assert mock.calls == [(("ink", 2), {})]


async def test_a_mock_of_a_name_ends_and_what_is_deployed_is_back() -> None:
    async with TestEnv() as env:
        await env.deploy({"flow": "env_elsewhere", "tasks": {"a": {"value": 1}}, "output": "${ 1 }"})
        with env.mock(flow("env_elsewhere"), returns=9) as mock:
            assert await env.run(calls_by_name, "monday") == 9
        assert mock.calls == [((), {"day": "monday"})]
        assert await env.run(calls_by_name, "monday") == 1


async def test_built_in_tasks_of_flows_are_mocked_without_a_network_or_an_executor() -> None:
    tasks = {
        "page": {"http": {"url": "https://example.org/prices"}},
        "listed": {"run": ["ls", "-l"], "depends_on": ["page"]},
        "counted": {"job": {"executor": "kubernetes", "spec": {"image": "etl:7"}}, "depends_on": ["listed"]},
    }
    async with TestEnv() as env:
        await env.deploy(
            {"flow": "env_outside", "tasks": tasks, "output": ["${ page.body }", "${ listed }", "${ counted }"]}
        )
        page = env.mock("perdure.http", returns={"status": 200, "headers": {}, "body": "dear"})
        command = env.mock("perdure.run", lambda **spec: spec["command"])
        job = env.mock("perdure.job.kubernetes", returns=7)
        assert await env.run(flow("env_outside")) == ["dear", ["ls", "-l"], 7]
        assert "https://example.org/prices" in page.calls[0].args
        assert (command.call_count, job.calls[0].kwargs) == (1, {"spec": {"image": "etl:7"}})


async def test_a_mock_is_given_in_one_way() -> None:
    async with TestEnv() as env:
        for given in ({}, {"returns": 1, "raises": OSError}, {"calls": len, "returns": 1}):
            with pytest.raises(InvalidInput, match="a mock is given in one way"):
                env.mock(fetch, **given)  # type: ignore[call-overload]


async def test_a_named_event_is_delivered_before_time_moves_on() -> None:
    async with TestEnv() as env:
        handle = await env.start(hears, 1)
        await rung.emit("loud")
        await env.advance("2d")
        assert await handle.result("5s") == "loud"


async def test_tasks_that_keep_time_from_moving_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.clockwork.SETTLE_S", 0.2)
    never = asyncio.Event()

    async def hang(url: str) -> int:
        await never.wait()
        return 1

    async with TestEnv() as env:
        env.mock(fetch, hang)
        with pytest.raises(PerdureError, match="time cannot move.*Running tasks: env_fetch"):
            await env.start(patient, "abc")
        never.set()
