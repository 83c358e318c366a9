"""Starts that are put off, gathered, or answered with a run that is there already: real engines, real PostgreSQL."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import asyncpg
import msgspec
import pytest

from perdure import (
    Client,
    Debounce,
    Dedup,
    EngineSettings,
    Handle,
    Limit,
    Perdure,
    Signal,
    TestEnv,
    Workflow,
    wf,
    workflow,
)
from perdure.core import ids
from perdure.core.api import runs
from perdure.core.deferred_starts import BatchSpec, joined
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.core.work import StartRequest
from perdure.engine.services.deferred_starts import DeferralRequest
from perdure.engine.services.new_runs import NewRun
from perdure.errors import Conflict, InvalidInput, NotFound, RunFailed
from perdure.store.deferred_starts import PostgresDeferredStarts
from tests.fakes.waiting import holds, until
from tests.server.remote import server, worker

R = TypeVar("R")

go = Signal("starts_go", str)


async def begin(client: Perdure, request: StartRequest) -> bytes:
    return (await client._backend.call(runs.START, request)).run_id


def handle_of(client: Perdure, run_id: bytes, workflow: Workflow[..., R]) -> Handle[R]:
    """Of a run that may not have begun: until then a client does not find it."""
    return Handle(client._backend, run_id, workflow.decode_result)


@workflow(name="starts_echo")
async def echo(text: str) -> str:
    return text


@workflow(name="starts_sum")
async def gather(numbers: list[int]) -> list[int]:
    return numbers


@workflow(name="starts_wait")
async def wait(text: str) -> str:
    return text + await go.next()


@workflow(name="starts_twice")
async def twice(left: int) -> str:
    """Goes on as new, then waits."""
    return wf.continue_as_new(left - 1) if left else await go.next()


@workflow(name="starts_limited", limit=Limit(1))
async def one_at_a_time(text: str) -> str:
    return text + await go.next()


DEFINITIONS = (echo, gather, wait, twice, one_at_a_time)


def embedded(dsn: str, **settings: Any) -> Perdure:
    client = Perdure(dsn, settings=EngineSettings(**{"lease_s": 3.0, "heartbeat_s": 0.2, **settings}))
    assert client.worker is not None
    for one in DEFINITIONS:
        client.worker.adopt(one)
    return client


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[Perdure]:
    async with embedded(dsn) as one:
        yield one


async def counted(dsn: str, workflow: str) -> int:
    """Runs of a workflow, ended or not."""
    connection = await asyncpg.connect(dsn)
    try:
        found: int = await connection.fetchval(
            "select (select count(*) from perdure.run where workflow = $1) + (select count(*) from perdure.run_queue where workflow = $1)",
            workflow,
        )
        return found
    finally:
        await connection.close()


async def left_over(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        found: int = await connection.fetchval(
            "select (select count(*) from perdure.deferred_start) + (select count(*) from perdure.deferred_start_input)"
        )
        return found
    finally:
        await connection.close()


# -- debounce ------------------------------------------------------------------------------------------------------


async def test_of_several_starts_the_last_counts_and_all_have_the_same_handle(client: Perdure, dsn: str) -> None:
    one = echo.options(debounce=Debounce("400ms", key="k"))
    handles = [await one.start(f"input {n}") for n in range(5)]
    assert len({h.id for h in handles}) == 1
    assert await handles[0].result("3m") == "input 4"
    assert await handles[4].result("3m") == "input 4"
    assert await counted(dsn, "starts_echo") == 1
    assert await left_over(dsn) == 0


async def test_keys_are_put_off_apart(client: Perdure, dsn: str) -> None:
    handles = [await echo.options(debounce=Debounce("1s", key=f"k{n % 3}")).start(f"input {n}") for n in range(6)]
    assert [await h.result("3m") for h in handles] == ["input 3", "input 4", "input 5"] * 2
    assert await counted(dsn, "starts_echo") == 3


async def test_a_debounce_is_not_put_off_beyond_its_most(client: Perdure, dsn: str) -> None:
    one = echo.options(debounce=Debounce("2s", key="k", max_delay="2.5s"))
    began = time.monotonic()
    first = await one.start("first")
    result = asyncio.create_task(first.result("3m"))
    while not result.done():
        await one.start("again")
        await asyncio.wait([result], timeout=0.1)
    elapsed = time.monotonic() - began
    assert result.result() == "again"
    assert 2.4 <= elapsed < 6
    again = await one.start("again")
    assert again.id != first.id  # what comes after the run has begun is for the next one


async def test_the_run_is_unknown_until_it_begins_but_its_result_can_be_waited_for(client: Perdure) -> None:
    handle = await echo.options(debounce=Debounce("700ms", key="k")).start("x")
    with pytest.raises(NotFound):
        await handle.describe()
    assert await handle.result("3m") == "x"
    assert (await handle.describe()).workflow == "starts_echo"
    with pytest.raises(NotFound):
        await handle_of(client, client.engine.new_run_id(), echo).result("3m")


async def test_run_waits_for_a_debounced_start(client: Perdure) -> None:
    assert await echo.options(debounce=Debounce("50ms", key="k")).run("x") == "x"


async def test_time_can_be_skipped_over_a_debounce(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        handle = await env.start(echo.options(debounce=Debounce("1h", key="k")), "later")
        with pytest.raises(NotFound):
            await handle.describe()
        await env.advance("59m")
        with pytest.raises(NotFound):
            await handle.describe()
        await env.advance("2m")
        assert await handle.result("10s") == "later"
        assert await env.run(echo.options(debounce=Debounce("1d", key="k")), "run") == "run"


# -- batch ---------------------------------------------------------------------------------------------------------


async def test_a_batch_begins_when_it_has_enough_items(client: Perdure, dsn: str) -> None:
    batch = gather.batch(key="k", size=5, max_delay="1h")
    handles = [await batch.add(n) for n in range(5)]
    assert len({h.id for h in handles}) == 1
    assert await handles[0].result("3m") == [0, 1, 2, 3, 4]
    later = await batch.add(5)
    assert later.id != handles[0].id
    assert await left_over(dsn) == 2


async def test_a_batch_begins_after_its_time(client: Perdure, dsn: str) -> None:
    batch = gather.batch(key="k", size=1000, max_delay="300ms")
    first = await batch.add(1, 2)
    second = await batch.add(3)
    assert first.id == second.id
    assert await first.result("3m") == [1, 2, 3]
    assert await left_over(dsn) == 0


async def test_what_many_engines_add_at_once_is_in_exactly_one_run(dsn: str) -> None:
    async with embedded(dsn) as a, embedded(dsn) as b, embedded(dsn) as c:
        clients = [a, b, c]

        async def add(n: int) -> bytes:
            request = StartRequest(
                workflow="starts_sum",
                version=gather.version,
                input=b'{"numbers":[%d]}' % n,
                later=BatchSpec("k", 10, 300_000),
            )
            return await begin(clients[n % 3], request)

        found = await asyncio.gather(*(add(n) for n in range(90)))
        by_run: dict[bytes, list[int]] = {}
        for n, run_id in enumerate(found):
            by_run.setdefault(run_id, []).append(n)
        results = {run_id: await handle_of(a, run_id, gather).result("3m") for run_id in by_run}
    assert {run_id: sorted(items) for run_id, items in results.items()} == by_run
    assert Counter(n for items in results.values() for n in items) == Counter(range(90))
    assert all(len(items) <= 10 for items in results.values())
    assert await left_over(dsn) == 0


async def test_a_batch_that_would_be_too_large_begins_at_once_and_a_new_one_is_opened(
    client: Perdure, dsn: str
) -> None:
    later = BatchSpec("k", 10_000, 3_600_000_000)
    half = [10**30] * (PAYLOAD_BYTES_MAX // 32 // 2)
    first = await begin(client, _numbers(half, later))
    assert await begin(client, _numbers([1], later)) == first
    second = await begin(client, _numbers(half, later))
    assert second != first
    assert len(await handle_of(client, first, gather).result("3m")) == len(half) + 1
    assert await begin(client, _numbers([2], later)) == second
    with pytest.raises(InvalidInput, match="BATCH_ITEMS_MAX"):
        gather.batch(key="k", size=10_001, max_delay="1h")


def _numbers(items: list[int], later: BatchSpec, once: str = "") -> StartRequest:
    body = ",".join(map(str, items)).encode()
    return StartRequest(
        workflow="starts_sum",
        version=gather.version,
        input=b'{"numbers":[%b]}' % body,
        later=later,
        idempotency_key=once,
    )


async def test_items_that_are_sent_twice_under_a_key_are_added_once(client: Perdure) -> None:
    later = BatchSpec("k", 3, 3_600_000_000)
    first = await begin(client, _numbers([1], later, "sent-1"))
    assert await begin(client, _numbers([1], later, "sent-1")) == first
    with pytest.raises(Conflict, match="other items"):
        await begin(client, _numbers([9], later, "sent-1"))
    await begin(client, _numbers([2, 3], later, "sent-2"))
    assert await begin(client, _numbers([1], later, "sent-1")) == first
    assert await handle_of(client, first, gather).result("3m") == [1, 2, 3]


async def test_a_batched_start_brings_one_list_the_same_way(client: Perdure) -> None:
    later = BatchSpec("k", 100, 3_600_000_000)
    for wrong in (b"{}", b'{"a":1}', b'{"a":[1],"b":[2]}', b'{"**":{"a":[1]}}', b'{"*":[1]}', b"[1]"):
        with pytest.raises(
            InvalidInput, match="one list|it takes numbers"
        ):  # the workflow's own arguments are checked first
            await begin(client, StartRequest(workflow="starts_sum", version="v", input=wrong, later=later))
    with pytest.raises(InvalidInput, match="no items"):
        await begin(client, _numbers([], later))
    await begin(client, _numbers([1], later))
    with pytest.raises(InvalidInput, match="the same way"):
        await begin(client, StartRequest(workflow="starts_sum", version="v", input=b'{"*":[[1]]}', later=later))


def test_inputs_are_joined_as_they_were_written() -> None:
    assert joined([b'{"a": [1.0, {"b":"\\u00e9"}]}', b'{"a":[]}', b'{"a":[1e5]}']) == b'{"a":[1.0,{"b":"\\u00e9"},1e5]}'
    assert joined([b'{"*":[[1]]}', b'{"*":[[2,3]]}']) == b'{"*":[[1,2,3]]}'


# -- crashes -------------------------------------------------------------------------------------------------------


async def test_an_engine_that_dies_with_a_due_start_in_hand_leaves_it_to_another(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.store.deferred_starts.LEASE_S", 0.5)
    async with embedded(dsn) as gone:
        ns, run_id = gone.engine.ns, gone.engine.new_run_id()
    store = PostgresDeferredStarts(dsn)
    await store.open()
    request = msgspec.msgpack.encode(StartRequest(workflow="starts_echo", version=echo.version, input=b""))
    later = Debounce("1ms", key="k").recorded
    await store.defer(DeferralRequest(ns, run_id, "starts_echo", later, request, b'{"text":"survived"}'))
    taken = await until(lambda: store.take_due(10))
    assert [t.run_id for t in taken] == [run_id]  # and this is where it dies
    assert await store.take_due(10) == []
    async with embedded(dsn) as client:
        assert await handle_of(client, run_id, echo).result("3m") == "survived"
    late = NewRun(run_id, ns, "starts_echo", echo.version, b"", None, None)
    assert await store.begin_due(late) is False  # it was not dead after all, only slow
    await store.close()
    assert await counted(dsn, "starts_echo") == 1
    assert await left_over(dsn) == 0


async def test_a_start_that_cannot_be_read_does_not_hold_up_the_others(client: Perdure, dsn: str, caplog: Any) -> None:
    store = PostgresDeferredStarts(client.store.pool)
    later = Debounce("1ms", key="broken").recorded
    broken = DeferralRequest(client.engine.ns, client.engine.new_run_id(), "starts_echo", later, b"no request", b"{}")
    await store.defer(broken)
    assert await echo.options(debounce=Debounce("20ms", key="k")).run("goes on") == "goes on"
    assert "from its deferred start" in caplog.text
    assert await left_over(dsn) == 1


# -- flow control --------------------------------------------------------------------------------------------------


async def has_statuses(*handles: Handle[Any], expected: list[str]) -> bool:
    try:
        return [await h.status() for h in handles] == expected
    except NotFound:  # a start that is put off has no run yet
        return False


async def test_runs_of_put_off_and_deduplicated_starts_wait_for_their_limit(client: Perdure) -> None:
    first = await one_at_a_time.options(dedup=Dedup("a")).start("a")
    await until(lambda: has_statuses(first, expected=["running"]))
    second = await one_at_a_time.options(dedup=Dedup("b")).start("b")
    third = await one_at_a_time.options(debounce=Debounce("10ms", key="c")).start("c")
    both_wait = functools.partial(has_statuses, first, second, third, expected=["running", "pending", "pending"])
    await until(both_wait)
    await holds(both_wait, 1.0)
    for handle, expected in ((first, "a!"), (second, "b!"), (third, "c!")):
        await go.send(handle.id, "!")
        assert await handle.result("3m") == expected


# -- from afar -----------------------------------------------------------------------------------------------------


async def test_a_client_of_a_server_puts_off_gathers_and_deduplicates(dsn: str) -> None:
    async with server(dsn) as s, worker(s.address), Client(s.address):
        one = echo.options(debounce=Debounce("1s", key="k"))
        handles = [await one.start(f"input {n}") for n in range(3)]
        assert len({h.id for h in handles}) == 1
        assert await handles[0].result("3m") == "input 2"
        assert await echo.options(debounce=Debounce("50ms", key="k")).run("run") == "run"
        batch = gather.batch(key="k", size=3, max_delay="1h")
        added = [await batch.add(n) for n in range(3)]
        assert await added[0].result("3m") == [0, 1, 2]
        first = await echo.options(dedup=Dedup("k", within="1h")).start("a")
        second = await echo.options(dedup=Dedup("k", within="1h")).start("b")
        assert first.id == second.id
        with pytest.raises(InvalidInput, match="Expected `array`"):
            await gather.batch(key="k", size=3, max_delay="1h").add(numbers={"a": 1})  # type: ignore[arg-type]


# -- dedup ---------------------------------------------------------------------------------------------------------


async def test_fifty_starts_at_once_under_a_key_are_one_run(dsn: str) -> None:
    async with embedded(dsn) as a, embedded(dsn) as b:
        one = wait.options(dedup=Dedup("k"))
        handles = await asyncio.gather(*((a if n % 2 else b).start(one, f"input {n}") for n in range(50)))
        assert len({h.id for h in handles}) == 1
        await a.get(handles[0].id)
        await go.send(handles[0].id, "!")
        results = {await h.result("3m") for h in handles}
        assert len(results) == 1
    assert await counted(dsn, "starts_wait") == 1


async def test_a_key_is_free_again_when_its_run_has_ended(client: Perdure, dsn: str) -> None:
    one = wait.options(dedup=Dedup("k"))
    first = await one.start("a")
    assert (await one.start("b")).id == first.id
    assert (await wait.options(dedup=Dedup("other")).start("c")).id != first.id
    assert (await echo.options(dedup=Dedup("k")).start("d")).id != first.id  # keys belong to a workflow
    await go.send(first.id, "!")
    assert await first.result("3m") == "a!"
    second = await one.start("e")
    assert second.id != first.id


async def test_a_run_that_continues_as_new_keeps_its_key(client: Perdure) -> None:
    one = twice.options(dedup=Dedup("k"))
    first = await one.start(2)

    async def has_continued() -> bool:
        return (await first.describe()).successor is not None

    await until(has_continued)
    assert (await one.start(2)).id == first.id
    view = await first.describe()
    while view.successor:
        view = await (await client.get(ids.text(view.successor))).describe()
    await go.send(ids.text(view.run_id), "end")
    assert await first.result("3m") == "end"
    assert (await one.start(0)).id != first.id


async def test_a_key_for_a_time_outlasts_its_run(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        one = echo.options(dedup=Dedup("k", within="10m"))
        first = await env.start(one, "a")
        assert await first.result("10s") == "a"
        await env.advance("9m")
        again = await env.start(one, "b")
        assert again.id == first.id
        assert await again.result("10s") == "a"
        await env.advance("2m")
        third = await env.start(one, "c")
        assert third.id != first.id
        assert await third.result("10s") == "c"


async def test_keys_that_say_nothing_any_more_are_forgotten(client: Perdure, dsn: str) -> None:
    active = await wait.options(dedup=Dedup("active")).start("x")
    ended = await echo.options(dedup=Dedup("ended")).start("x")
    timed = await echo.options(dedup=Dedup("timed", within="1ms")).start("x")
    lasting = await echo.options(dedup=Dedup("lasting", within="1h")).start("x")
    for h in (ended, timed, lasting):
        await h.result("3m")
    async with client.store.pool.take() as connection:
        await until(
            lambda: connection.fetchval("select expires_at < clock_timestamp() from perdure.dedup where key = 'timed'")
        )
        await PostgresDeferredStarts(client.store.pool).sweep()
        keys = {r["key"] for r in await connection.fetch("select key from perdure.dedup")}
    assert keys == {"active", "lasting"}
    await active.cancel()


async def test_a_start_asks_for_one_of_them_at_most(client: Perdure) -> None:
    with pytest.raises(InvalidInput, match="debounce and dedup"):
        echo.options(debounce=Debounce("1s", key="k"), dedup=Dedup("k"))
    with pytest.raises(InvalidInput, match="dedup and a key of its own"):
        echo.options(dedup=Dedup("k"), key="x")
    with pytest.raises(InvalidInput, match="invalid key name"):
        Dedup("")
    with pytest.raises(InvalidInput, match="shorter than quiet"):
        Debounce("1m", key="k", max_delay="1s")
    with pytest.raises(InvalidInput, match="DEFERRED_START_US_MAX"):
        Debounce("30d", key="k")


# -- what goes with a start ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"debounce": Debounce("10ms", key="k")}, {"dedup": Dedup(key="k")}])
async def test_a_start_that_is_put_off_keeps_the_timeout_of_its_run(client: Perdure, how: dict[str, Any]) -> None:
    handle = await wait.options(timeout="200ms", **how).start("never ends by itself")
    with pytest.raises(RunFailed, match="deadline"):
        await handle.result("3m")


async def test_a_start_that_cannot_be_read_does_not_hold_up_those_behind_it(client: Perdure, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            "insert into perdure.deferred_start (run_id, ns, workflow, key, kind, due_at, last_at, request)"
            " values ($1, 1, 'starts_echo', 'unreadable', 'debounce', now(), now(), 'x')",
            ids.text(ids.run_id(1, 0, 1)),
        )
        handle = await echo.options(debounce=Debounce("10ms", key="k")).start("good")
        assert await handle.result("3m") == "good"
        assert await connection.fetchval("select count(*) from perdure.deferred_start") == 1, "the bad one is kept"
    finally:
        await connection.close()
