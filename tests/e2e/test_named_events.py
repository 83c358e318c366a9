"""Named events end to end: every run that waits hears of them, once, whoever matches them and whoever dies meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import msgspec
import pytest

from perdure import EngineSettings, Handle, NamedEvent, Perdure, Signal, State, TestEnv, flow, wf, workflow
from perdure.core import events as ev
from perdure.core import ids, limits
from perdure.core.api import messages, named_events
from perdure.core.api.messages import SignalWithStart
from perdure.core.api.named_events import EmitEvent
from perdure.core.placement import Placement
from perdure.errors import InvalidInput, PayloadTooLarge, RunFailed, RunFinished
from perdure.store import named_events as store_module
from tests.fakes.waiting import until

LIMIT = "60s"


@dataclass
class Payment:
    order_id: int
    amount: float = 0.0


paid = NamedEvent("test.order.paid", Payment)
tick = NamedEvent("test.tick", int)
say = Signal("test_say", str)
heard = State("test_heard", 0)


@workflow(name="events_one")
async def one(id: int) -> float:
    return (await paid.wait("event.order_id == input.id")).amount


@workflow(name="events_bound")
async def bound(ids: list[int]) -> list[float]:
    waits = [paid.wait("event.order_id == id", id=i) for i in ids]
    return [(await w).amount for w in waits]


@workflow(name="events_loop")
async def loop(times: int) -> list[int]:
    """Looks again and again, and gives up in between."""
    seen: list[int] = []
    while len(seen) < times:
        try:
            seen.append(await tick.wait(timeout="50ms"))
        except TimeoutError:
            heard.set(heard.get() + 1)
    return seen


@workflow(name="events_missed")
async def missed(within: str) -> str:
    try:
        await tick.wait(timeout=within)
    except TimeoutError as e:
        return str(e)
    return "heard"


@workflow(name="events_continues")
async def continues(round: int = 0) -> int:
    await say.next()
    if round == 0:
        waiting = tick.wait(since="now")  # left behind by the run that goes on
        await say.next()
        assert not waiting.done()
        wf.continue_as_new(1)
    return await tick.wait(since="now")


@workflow(name="events_wrong")
async def wrong() -> None:
    await paid.wait("event.order_id == oder", order=1)


@workflow(name="events_echo")
async def echo(word: str = "") -> list[str]:
    out = [word]
    while (said := await say.next()) != "end":
        out.append(said)
    return out


DEFINITIONS = [one, bound, loop, missed, continues, wrong, echo]


def embedded(dsn: str, **options: Any) -> Perdure:
    client = Perdure(dsn, **options)
    assert client.worker is not None
    for definition in DEFINITIONS:
        client.worker.adopt(definition)
    return client


def quick(**more: Any) -> EngineSettings:
    return EngineSettings(**{"lease_s": 3.0, "heartbeat_s": 0.2, "placement": Placement(idle_s=0.05), **more})


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[Perdure]:
    async with embedded(dsn) as one_client:
        yield one_client


async def waiting(dsn: str, count: int) -> None:
    """Until so many waits are recorded."""
    connection = await asyncpg.connect(dsn)
    try:
        recorded = "select count(*) = $1 from perdure.promise where kind = 'event' and resolved_at is null"
        await until(lambda: connection.fetchval(recorded, count))
    finally:
        await connection.close()


async def has_events(run: Handle[Any], kind: type, count: int) -> bool:
    return sum(isinstance(r.event, kind) for r in await run.history()) >= count


async def test_each_run_gets_the_event_that_fits_it(client: Perdure, dsn: str) -> None:
    runs = [await one.start(i) for i in range(20)]
    await waiting(dsn, 20)
    for i in reversed(range(20)):
        assert await paid.emit(Payment(i, i * 1.5))
    assert [await r.result(LIMIT) for r in runs] == [i * 1.5 for i in range(20)]


async def test_all_that_wait_hear_of_it_and_those_that_come_later_do_not(client: Perdure, dsn: str) -> None:
    early = [await missed.start("60s") for i in range(30)]
    await waiting(dsn, 30)
    await tick.emit(1)
    assert [await r.result(LIMIT) for r in early] == ["heard"] * 30
    assert "no event 'test.tick' that fits came in time" in await missed.run("200ms")


async def test_values_are_bound_when_the_wait_begins(client: Perdure, dsn: str) -> None:
    run = await bound.start([3, 1, 2])
    await waiting(dsn, 3)
    for i in (1, 2, 3, 3):
        await paid.emit(Payment(i, i / 2))
    assert await run.result(LIMIT) == [1.5, 0.5, 1.0]
    created = [r.event for r in await run.history() if isinstance(r.event, ev.PromiseCreated)]
    assert [msgspec.json.decode(e.spec)["bound"] for e in created] == [{"id": 3}, {"id": 1}, {"id": 2}]


async def test_a_key_makes_it_one_event(client: Perdure, dsn: str) -> None:
    run = await bound.start([1, 1])
    await waiting(dsn, 2)
    assert await paid.emit(Payment(9), key="k")
    assert not await paid.emit(Payment(9), key="k")
    assert await tick.emit(1, key="k")  # keys belong to the event's name
    assert await paid.emit(Payment(1, 4.0), key="l")
    assert await run.result(LIMIT) == [4.0, 4.0]  # both waits were there
    connection = await asyncpg.connect(dsn)
    try:
        assert await connection.fetchval("select count(*) from perdure.named_event") == 3
    finally:
        await connection.close()


async def test_a_wait_that_is_given_up_is_taken_up_again(client: Perdure, dsn: str) -> None:
    run = await loop.start(3)

    async def waits_in_vain() -> bool:
        return await heard.read(run.id) >= 3

    await until(waits_in_vain)
    for n in range(3):
        await waiting(dsn, 1)
        await tick.emit(n)
        await until(lambda n=n: has_events(run, ev.PromiseResolved, n + 1))  # type: ignore[misc]
    assert await run.result(LIMIT) == [0, 1, 2]
    assert await has_events(run, ev.PromiseCreated, 3)  # one for each event, however often it looked
    assert not await has_events(run, ev.PromiseCreated, 4)


async def test_an_event_for_a_run_that_went_on_as_another_means_nothing_to_that_one(client: Perdure, dsn: str) -> None:
    run = await continues.start()
    await say.send(run.id, "a")
    await waiting(dsn, 1)
    await say.send(run.id, "b")
    await waiting(dsn, 0)
    await tick.emit(1)
    await say.send(run.id, "c")
    await waiting(dsn, 1)
    await tick.emit(2)
    assert await run.result(LIMIT) == 2


async def test_a_wait_that_can_never_work_fails_its_run_with_the_reason(client: Perdure) -> None:
    with pytest.raises(RunFailed, match="reads 'oder', which is not there: did you mean 'order'"):
        await wrong.run()


async def test_events_that_cannot_be_taken_are_refused(client: Perdure) -> None:
    with pytest.raises(PayloadTooLarge):
        await NamedEvent("big", str).emit("x" * (limits.PAYLOAD_BYTES_MAX + 1))
    with pytest.raises(InvalidInput, match="invalid message key name"):
        await tick.emit(1, key="x" * 300)
    with pytest.raises(InvalidInput, match="not JSON"):
        await client._backend.call(named_events.EMIT, EmitEvent("x", b"{"))


async def test_pages_of_waits_are_all_looked_at_and_the_place_is_kept(
    client: Perdure, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "EVENT_WAITS_PAGE", 7)
    run = await bound.start(list(range(60)))
    await waiting(dsn, 60)
    await asyncio.gather(*(paid.emit(Payment(i, i * 2.0)) for i in range(60)))
    assert await run.result(LIMIT) == [i * 2.0 for i in range(60)]


async def test_an_event_whose_engine_dies_is_matched_by_another_and_reaches_sleeping_runs(dsn: str) -> None:
    async with embedded(dsn, settings=quick()):
        runs = [await one.start(i) for i in range(5)]
        await waiting(dsn, 5)
    # Nobody is there: the runs sleep in the database, and the event is written by hand, as one whose engine died right after.
    connection = await asyncpg.connect(dsn)
    try:
        for i in range(5):
            await connection.execute(
                "insert into perdure.named_event (ns, name, body, source) values (1, $1, $2, 'test')",
                paid.name,
                msgspec.json.encode(Payment(i, 8.0 + i)),
            )
    finally:
        await connection.close()
    async with embedded(dsn, settings=quick()) as other:
        results = [await (await other.get(r.id)).result(LIMIT) for r in runs]
    assert results == [8.0, 9.0, 10.0, 11.0, 12.0]


async def test_two_engines_match_side_by_side_and_each_wait_gets_one_event(dsn: str) -> None:
    async with embedded(dsn, settings=quick()) as a, embedded(dsn, settings=quick()) as b:
        runs = [await one.start(i % 10) for i in range(60)]
        await waiting(dsn, 60)
        body = [msgspec.json.encode(Payment(i % 10, 100.0 + i)) for i in range(40)]
        await asyncio.gather(
            *((a, b)[i % 2]._backend.call(named_events.EMIT, EmitEvent(paid.name, body[i])) for i in range(40))
        )
        results = [await r.result(LIMIT) for r in runs]
        histories = [await r.history() for r in runs]
    for i, result in enumerate(results):
        assert result in {100.0 + i % 10 + 10 * k for k in range(4)}
    assert all(sum(isinstance(r.event, ev.PromiseResolved) for r in h) == 1 for h in histories)


async def test_the_time_skipping_environment_has_events_too() -> None:
    async with TestEnv() as env:
        assert "came in time" in await env.run(missed, "1h")
        run = await env.start(one, 3)
        await env.advance("1h")
        await paid.emit(Payment(3, 2.5))
        assert await run.result(LIMIT) == 2.5


# -- flows -----------------------------------------------------------------------------------------------------------------

ORDER: dict[str, Any] = {
    "flow": "events-order",
    "tasks": {
        "order": {"value": {"id": "${ input.id }"}},
        "paid": {
            "wait": {
                "event": paid.name,
                "match": "event.order_id == order.id and event.amount > input.least",
                "timeout": "30s",
            },
            "depends_on": ["order"],
        },
    },
    "output": {"amount": "${ paid.amount }"},
}
LATE: dict[str, Any] = {
    "flow": "events-late",
    "state": {"n": 0},
    "start": "look",
    "nodes": {
        "look": {"wait": {"event": tick.name, "timeout": "50ms"}, "set": {"heard": "${ output }"}},
        "note": {"value": "${ state.n + 1 }", "set": {"n": "${ output }"}},
        "done": {"value": "${ state.heard }"},
    },
    "edges": [
        {"from": "look", "to": "note", "action": "timeout"},
        {"from": "look", "to": "done"},
        {"from": "note", "to": "look"},
    ],
    "output": {"heard": "${ state.heard }", "looked": "${ state.n }"},
}


async def test_a_flow_waits_for_an_event_with_what_it_knows(client: Perdure, dsn: str) -> None:
    await client.deploy(ORDER)
    order = flow("events-order", dict[str, float])
    runs = [await order.start(id=i, least=10) for i in range(3)]
    await waiting(dsn, 3)
    for i in range(3):
        await paid.emit(Payment(i, 10.0))
        await paid.emit(Payment(i, 11.0 + i))
    assert [await r.result(LIMIT) for r in runs] == [{"amount": 11.0 + i} for i in range(3)]


async def test_a_flow_that_looks_again_and_again_leaves_one_wait_behind(client: Perdure, dsn: str) -> None:
    await client.deploy(LATE)
    run = await flow("events-late", dict[str, int]).start()
    await until(lambda: has_events(run, ev.TimerFired, 3))
    await tick.emit(7)
    result = await run.result(LIMIT)
    assert result["heard"] == 7
    assert result["looked"] >= 3
    assert sum(isinstance(r.event, ev.PromiseCreated) for r in await run.history()) == 1


# -- signals that start ----------------------------------------------------------------------------------------------------


async def test_a_signal_starts_the_run_that_is_not_there_and_reaches_the_one_that_is(client: Perdure) -> None:
    under = echo.options(key="echo-1")
    first = await under.signal_with_start(say, "a", "first")
    second = await under.signal_with_start(say, "b", "second")
    assert first.id == second.id
    await say.send("key:echo-1", "end")
    assert await first.result(LIMIT) == ["first", "a", "b"]
    with pytest.raises(RunFinished):
        await say.send("key:echo-1", "late")
    third = await under.signal_with_start(say, "c", "third")
    assert third.id != first.id
    await say.send(third.id, "end")
    assert await third.result(LIMIT) == ["third", "c"]


async def test_many_signals_at_once_start_one_run_and_none_is_lost(dsn: str) -> None:
    async with embedded(dsn, settings=quick()) as a, embedded(dsn, settings=quick()) as b:
        request = echo.options(key="echo-many")._request(a._backend, b'{"word":"x"}')
        answers = await asyncio.gather(
            *(
                (a, b)[i % 2]._backend.call(
                    messages.SIGNAL_WITH_START, SignalWithStart(request, say.name, b'"%d"' % i, f"k{i % 25}")
                )
                for i in range(50)
            )
        )
        assert len({answer.run_id for answer in answers}) == 1
        assert sum(answer.is_new for answer in answers) == 1
        run = await a.get(ids.text(answers[0].run_id))
        await say.send(run.id, "end")
        result = await run.result(LIMIT)
        # Each key once, whichever of the two it was.
        assert sorted(int(r) % 25 for r in result[1:]) == list(range(25))


async def test_a_run_without_an_id_cannot_be_started_by_a_signal(client: Perdure) -> None:
    with pytest.raises(InvalidInput, match="needs a key"):
        await echo.signal_with_start(say, "a", "x")


async def test_a_signal_with_a_key_is_heard_once(client: Perdure) -> None:
    run = await echo.start("x")
    assert [await say.send(run.id, str(i), key=f"k{i // 2}") for i in range(6)] == [True, False] * 3
    await say.send(run.id, "end", key="end")
    assert await run.result(LIMIT) == ["x", "0", "2", "4"]
