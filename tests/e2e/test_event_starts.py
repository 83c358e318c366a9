"""Named events that start runs: exactly one each, whichever engines deliver them and wherever they crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import msgspec
import pytest

from perdure import Dedup, NamedEvent, On, Perdure, TestEnv, workflow
from perdure.core.api import named_events
from perdure.core.api.named_events import EmitEvent, EventItem, ListEvents
from perdure.core.limits import EVENT_START_TRIES_MAX
from perdure.store import event_starts as store_module
from perdure.store.event_starts import PostgresEventStarts
from perdure.store.verify import verify
from tests.e2e.test_named_events import quick
from tests.fakes.waiting import until

LIMIT = "60s"


@dataclass
class Payment:
    order: int
    total: float = 0.0


paid = NamedEvent("starts.paid", Payment)
fields = NamedEvent("starts.fields", dict[str, Any])
keyed = NamedEvent("starts.keyed", dict[str, Any])
dup = NamedEvent("starts.dup", dict[str, Any])
go = NamedEvent("starts.go", dict[str, Any])


@workflow(name="starts_paid", on=On(paid, match="event.total > 10"))
async def on_paid(payment: Payment) -> float:
    return payment.total + payment.order


@workflow(name="starts_fields", on=On(fields))
async def on_fields(a: int, b: int = 2) -> int:
    return a * b


@workflow(name="starts_keyed", on=On(keyed, key="event.id", input={"id": "${ event.id }"}))
async def on_keyed(id: str) -> str:
    return (await go.wait("event.id == input.id"))["word"]


@workflow(name="starts_dup", on=On(dup, dedup=Dedup("event.id", within="1h")))
async def on_dup(event: dict[str, Any]) -> int:
    return int(event["n"])


DEFINITIONS = [on_paid, on_fields, on_keyed, on_dup]


def embedded(dsn: str, **options: Any) -> Perdure:
    client = Perdure(dsn, **options)
    assert client.worker is not None
    for definition in DEFINITIONS:
        client.worker.adopt(definition)
    return client


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[Perdure]:
    async with embedded(dsn) as one:
        yield one


async def listed(client: Perdure, name: str = "") -> list[EventItem]:
    found = (await client._backend.call(named_events.LIST, ListEvents(name))).items
    return found[::-1]


async def decided(client: Perdure, name: str, count: int = 1) -> list[EventItem]:
    """Once so many events of the name are fully delivered, oldest first."""

    async def all_done() -> list[EventItem]:
        found = await listed(client, name)
        return found if len(found) == count and all(e.done_us and not e.undecided for e in found) else []

    return await until(all_done)


async def value(dsn: str, query: str, *args: Any) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(query, *args)
    finally:
        await connection.close()


async def runs_of(dsn: str, name: str) -> int:
    """Active and ended ones."""
    query = "select (select count(*) from perdure.run_queue where workflow = $1) + (select count(*) from perdure.run where workflow = $1)"
    return int(await value(dsn, query, name))


async def result(client: Perdure, event: EventItem) -> Any:
    run_id = event.starts[0].run_id
    assert run_id is not None
    return await (await client.get(run_id.hex())).result(LIMIT)


# -- which runs ----------------------------------------------------------------------------------------------------------


async def test_an_event_that_matches_starts_a_run_with_the_payload_as_its_argument(client: Perdure, dsn: str) -> None:
    for total in (5, 20):
        await paid.emit(Payment(3, total))
    small, large = await decided(client, paid.name, 2)
    assert (small.started, small.starts) == (0, [])
    assert (large.started, large.failed, large.starts[0].workflow) == (1, 0, "starts_paid")
    assert await result(client, large) == 23
    assert await runs_of(dsn, "starts_paid") == 1
    assert await value(dsn, "select attributes->>'event' from perdure.run where workflow = 'starts_paid'") == paid.name


async def test_a_workflow_with_several_parameters_takes_the_fields_that_it_names(client: Perdure) -> None:
    await fields.emit({"a": 7, "b": 3, "unknown": True})
    await fields.emit({"a": 7})
    assert [await result(client, e) for e in await decided(client, fields.name, 2)] == [21, 14]


async def test_an_event_sent_twice_under_its_key_starts_one_run(client: Perdure, dsn: str) -> None:
    assert [await paid.emit(Payment(1, 50), key="once") for _ in range(3)] == [True, False, False]
    await decided(client, paid.name)
    assert await runs_of(dsn, "starts_paid") == 1


async def test_an_active_run_under_the_key_stands_for_the_event_and_an_ended_one_does_not(
    client: Perdure, dsn: str
) -> None:
    for _ in range(2):
        await keyed.emit({"id": "k1"})
    await keyed.emit({"id": "k2"})
    first, second, third = await decided(client, keyed.name, 3)
    assert [e.starts[0].outcome for e in (first, second, third)] == ["started", "attached", "started"]
    assert first.starts[0].run_id == second.starts[0].run_id != third.starts[0].run_id
    assert (second.started, second.failed) == (0, 0)
    await until(lambda: value(dsn, "select count(*) = 2 from perdure.promise where kind = 'event'"))
    await go.emit({"id": "k1", "word": "one"})
    assert await result(client, first) == "one"
    await keyed.emit({"id": "k1"})
    again = (await decided(client, keyed.name, 4))[-1]
    assert again.starts[0].outcome == "started" and again.starts[0].run_id != first.starts[0].run_id
    assert not [t for t in await verify(dsn) if t.violations]


async def test_events_with_the_same_dedup_key_start_one_run(client: Perdure, dsn: str) -> None:
    for n in range(3):
        await dup.emit({"id": "x", "n": n})
    await dup.emit({"id": "y", "n": 9})
    found = await decided(client, dup.name, 4)
    assert [e.starts[0].outcome for e in found] == ["started", "attached", "attached", "started"]
    assert [await result(client, e) for e in found] == [0, 0, 0, 9]
    assert await runs_of(dsn, "starts_dup") == 2


async def test_a_key_of_another_workflow_is_a_failure_of_the_event(client: Perdure) -> None:
    run = await on_keyed.options(key="taken").start("other")
    flow = {"flow": "starts-taken", "on": {"event": "starts.taken", "key": "event.id"}, "tasks": {"a": {"value": 1}}}
    await client.deploy(flow)
    await client._backend.call(named_events.EMIT, EmitEvent("starts.taken", b'{"id":"taken"}'))
    (event,) = await decided(client, "starts.taken")
    assert event.failed == 1 and "starts_keyed" in str(event.starts[0].error)
    await go.emit({"id": "other", "word": "end"})
    assert await run.result(LIMIT) == "end"


# -- flows ----------------------------------------------------------------------------------------------------------------

ORDERS: dict[str, Any] = {
    "flow": "starts-orders",
    "on": [{"event": "starts.order", "match": "event.total > 10", "input": {"order": "${ event.id }"}}],
    "input": {"order": {"type": "integer"}},
    "tasks": {"double": {"value": "${ input.order * 2 }"}},
    "output": {"twice": "${ double }"},
}
PUSHES: dict[str, Any] = {
    "flow": "starts-pushes",
    "on": {"event": "starts.push"},
    "input": {"ref": {"type": "string"}},
    "tasks": {"note": {"value": "got ${ input.ref }"}},
    "output": {"note": "${ note }"},
}


async def emit(client: Perdure, name: str, payload: Any) -> int:
    return (await client._backend.call(named_events.EMIT, EmitEvent(name, msgspec.json.encode(payload)))).id


async def test_an_event_starts_a_flow_with_the_input_it_maps(client: Perdure) -> None:
    await client.deploy(ORDERS)
    await emit(client, "starts.order", {"id": 21, "total": 99})
    await emit(client, "starts.order", {"id": 22, "total": 9})
    first, second = await decided(client, "starts.order", 2)
    assert await result(client, first) == {"twice": 42}
    assert second.starts == []


async def test_without_a_mapping_a_flow_takes_the_fields_that_its_input_names(client: Perdure) -> None:
    await client.deploy(PUSHES)
    await emit(client, "starts.push", {"ref": "main", "pusher": {"name": "ada"}})
    (event,) = await decided(client, "starts.push")
    assert await result(client, event) == {"note": "got main"}


async def test_an_event_from_before_the_deployment_starts_nothing(client: Perdure, dsn: str) -> None:
    await emit(client, "starts.push", {"ref": "before"})
    await client.deploy(PUSHES)
    await emit(client, "starts.push", {"ref": "after"})
    before, after = await decided(client, "starts.push", 2)
    assert (before.starts, after.started) == ([], 1)
    assert await runs_of(dsn, "starts-pushes") == 1


async def test_the_current_version_says_which_events_start_runs(client: Perdure, dsn: str) -> None:
    await client.deploy(PUSHES)
    await client.deploy({**PUSHES, "on": {"event": "starts.merge"}})
    await emit(client, "starts.push", {"ref": "x"})
    await emit(client, "starts.merge", {"ref": "y"})
    (push,), (merge,) = await decided(client, "starts.push"), await decided(client, "starts.merge")
    assert (push.starts, merge.started) == ([], 1)
    assert await result(client, merge) == {"note": "got y"}
    await client.deploy({k: v for k, v in PUSHES.items() if k != "on"})
    await emit(client, "starts.merge", {"ref": "z"})
    assert (await decided(client, "starts.merge", 2))[-1].starts == []
    for description in ("one", "two"):  # both versions name the event; one of them is current
        await client.deploy({**PUSHES, "description": description})
    await emit(client, "starts.push", {"ref": "again"})
    assert (await decided(client, "starts.push", 2))[-1].started == 1


async def test_what_cannot_start_is_recorded_and_holds_up_nothing(client: Perdure) -> None:
    await client.deploy({**PUSHES, "on": {"event": "starts.push", "match": "1 / event.n > 0"}})
    await client.deploy({**PUSHES, "flow": "starts-others"})
    await emit(client, "starts.push", {"ref": "a", "n": 0})
    await emit(client, "starts.push", {"ref": 7, "n": 1})
    await emit(client, "starts.push", {"ref": "c", "n": 1})
    first, second, third = await decided(client, "starts.push", 3)
    assert [(s.workflow, s.outcome) for s in first.starts] == [
        ("starts-others", "started"),
        ("starts-pushes", "failed"),
    ]
    assert "division by zero" in str(first.starts[1].error)
    assert (first.started, first.failed) == (1, 1)
    assert (second.started, second.failed) == (0, 2) and "ref" in str(second.starts[0].error)
    assert (third.started, third.failed) == (2, 0)


async def test_a_workflow_that_is_deleted_before_the_delivery_is_a_failure(client: Perdure, dsn: str) -> None:
    await client.deploy(PUSHES)
    event = await emit(client, "starts.none", {})
    insert = "insert into perdure.event_start (event_id, ns, workflow, version, due_at) select $1, ns, name, current, now() from perdure.workflow where name = 'starts-pushes'"
    await value(dsn, "update perdure.workflow set deleted_at = now() where name = 'starts-pushes'")
    client.engine.flows.forget(client.engine.ns, "starts-pushes")
    await value(
        dsn,
        "update perdure.workflow_version set subscriptions = '[{\"event\":\"starts.none\"}]' where workflow = 'starts-pushes'",
    )
    await value(dsn, insert, event)

    async def failed() -> bool:
        return (await listed(client, "starts.none"))[0].failed == 1

    await until(failed)
    assert "starts-pushes" in str((await listed(client, "starts.none"))[0].starts[0].error)


async def test_an_event_wakes_the_runs_that_wait_for_it_and_starts_others(client: Perdure, dsn: str) -> None:
    run = await on_keyed.start("both")
    await client.deploy({**PUSHES, "on": {"event": go.name, "input": {"ref": "${ event.word }"}}})
    await until(lambda: value(dsn, "select count(*) = 1 from perdure.promise where kind = 'event'"))
    await go.emit({"id": "both", "word": "w"})
    (event,) = await decided(client, go.name)
    assert (event.matched, event.started) == (1, 1)
    assert await run.result(LIMIT) == "w" and await result(client, event) == {"note": "got w"}


# -- crashes --------------------------------------------------------------------------------------------------------------


async def test_an_engine_that_dies_after_the_event_is_durable_leaves_the_start_to_another(dsn: str) -> None:
    async with embedded(dsn, settings=quick()) as gone:
        ns = gone.engine.ns
    # As the statement of an engine that died right after it.
    from perdure.store.named_events import PostgresNamedEvents

    store = PostgresNamedEvents(dsn)
    await store.open()
    await store.emit(ns, paid.name, None, msgspec.json.encode(Payment(1, 20)), "test")
    await store.close()
    async with embedded(dsn, settings=quick()) as other:
        (event,) = await decided(other, paid.name)
        assert await result(other, event) == 21
    assert await runs_of(dsn, "starts_paid") == 1


@pytest.mark.parametrize("place", ["lock_event_start", "insert_run", "settle_event_start", "commit"])
async def test_a_crash_anywhere_in_a_start_leaves_nothing_or_all_of_it(
    dsn: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """After each statement of the transaction, and after its commit."""
    monkeypatch.setattr(store_module, "LEASE_S", 0.2)
    crashes: list[str] = []

    def dying(real: Any) -> Any:
        async def call(c: Any, name: str, /, **args: Any) -> Any:
            found = await real(c, name, **args)
            if name == place and len(crashes) < 2:
                crashes.append(name)
                raise RuntimeError(f"dies after {name}")
            return found

        return call

    monkeypatch.setattr(store_module, "execute", dying(store_module.execute))
    monkeypatch.setattr(store_module, "fetch_row", dying(store_module.fetch_row))
    monkeypatch.setattr("perdure.store.deferred_starts.execute", dying(store_module.execute))
    begin = PostgresEventStarts.begin

    async def dies_after(self: Any, *args: Any) -> Any:
        found = await begin(self, *args)
        if place == "commit" and len(crashes) < 2:
            crashes.append(place)
            raise RuntimeError("dies after the commit")
        return found

    monkeypatch.setattr(PostgresEventStarts, "begin", dies_after)
    async with embedded(dsn, settings=quick()) as client:
        await paid.emit(Payment(1, 20))
        (event,) = await decided(client, paid.name)
        assert (event.started, event.failed) == (1, 0)
        assert await result(client, event) == 21
    assert crashes
    assert await runs_of(dsn, "starts_paid") == 1
    assert not [t for t in await verify(dsn) if t.violations]


@pytest.mark.parametrize("died", [False, True])
async def test_a_start_that_never_works_is_given_up(
    client: Perdure, dsn: str, monkeypatch: pytest.MonkeyPatch, died: bool
) -> None:
    """`died`: engines that tried it did not live to say so."""
    monkeypatch.setattr(store_module, "LEASE_S", 0.0)
    monkeypatch.setattr("perdure.engine.services.event_starts.EVENT_START_TRIES_MAX", 3)
    begun: list[Any] = []

    async def broken(self: Any, *args: Any) -> None:
        begun.append(args)
        if died:
            await value(dsn, "update perdure.event_start set tries = 3")
        raise RuntimeError("broken")

    monkeypatch.setattr(PostgresEventStarts, "begin", broken)
    await paid.emit(Payment(1, 20))
    (event,) = await decided(client, paid.name)
    assert (event.started, event.failed, len(begun)) == (0, 1, 1 if died else 3)
    assert ("never decided" if died else "broken") in str(event.starts[0].error)


async def test_a_slow_engine_whose_start_was_taken_over_starts_nothing(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LEASE_S", 0.2)
    async with embedded(dsn, settings=quick()) as client:
        engine = client.engine
        store = PostgresEventStarts(client.store.pool)
        taken: list[Any] = []
        begin = PostgresEventStarts.begin

        async def slow(self: Any, *args: Any) -> Any:
            taken.append(args)
            return await begin(self, *args)

        monkeypatch.setattr(PostgresEventStarts, "begin", slow)
        await paid.emit(Payment(1, 20))
        await decided(client, paid.name)
        start, run, plan = taken[0]
        late = msgspec.structs.replace(run, run_id=engine.new_run_id())
        assert await store.begin(start, late, plan) is None
        await store.fail(start, "too late")
        (event,) = await listed(client, paid.name)
        assert (event.started, event.failed) == (1, 0)
    assert await runs_of(dsn, "starts_paid") == 1


async def test_two_engines_start_each_run_once(dsn: str) -> None:
    async with embedded(dsn, settings=quick()) as a, embedded(dsn, settings=quick()) as b:
        body = [msgspec.json.encode(Payment(i, 20)) for i in range(60)]
        keys = [msgspec.json.encode({"id": f"k{i % 5}"}) for i in range(40)]
        calls = [(paid.name, x) for x in body] + [(keyed.name, x) for x in keys]
        await asyncio.gather(
            *((a, b)[i % 2]._backend.call(named_events.EMIT, EmitEvent(*call)) for i, call in enumerate(calls))
        )
        await until(lambda: value(dsn, "select count(*) = 0 from perdure.event_start where outcome is null"))
        assert await value(dsn, "select count(*) from perdure.event_start where outcome = 'failed'") == 0
    assert await runs_of(dsn, "starts_paid") == 60
    assert await runs_of(dsn, "starts_keyed") == 5


async def test_an_event_is_kept_while_a_start_of_it_is_undecided_and_goes_with_its_starts(
    client: Perdure, dsn: str
) -> None:
    await paid.emit(Payment(1, 20))
    await decided(client, paid.name)
    store = client.engine.named_events.store
    await value(dsn, "update perdure.named_event set at = now() - interval '30 days'")
    await value(dsn, "update perdure.event_start set outcome = null, run_id = null, due_at = 'infinity'")
    assert await store.trim(86_400, 10) == 0
    await value(dsn, "update perdure.event_start set outcome = 'failed', error = 'x'")
    assert await store.trim(86_400, 10) == 1
    assert await value(dsn, "select count(*) from perdure.event_start") == 0


async def test_the_time_skipping_environment_starts_runs_by_events_too() -> None:
    async with TestEnv() as env:
        await env.run(on_fields, 2, 3)
        await fields.emit({"a": 4, "b": 5})
        (event,) = await decided(env.client, fields.name)
        assert await result(env.client, event) == 20


async def test_engines_that_die_use_up_the_tries_of_no_other_start(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take, ports = PostgresEventStarts.take_starts, []

    async def take_none(self: PostgresEventStarts, limit: int) -> list[Any]:
        ports.append(self)
        return []

    monkeypatch.setattr(PostgresEventStarts, "take_starts", take_none)
    connection: Any = await asyncpg.connect(dsn)
    async with embedded(dsn):
        for a in range(5):
            await fields.emit({"a": a})
        await until(lambda: connection.fetchval("select count(*) = 5 from perdure.event_start"))
        await until(lambda: ports)
        tries = []
        for _ in range(2 * EVENT_START_TRIES_MAX):  # as many engines that die of what they have claimed
            tries.append([one.tries for one in await take(ports[-1], 100)])
            await connection.execute(
                "update perdure.event_start set due_at = now() - (now() - due_at) - interval '1 hour'"
            )
    assert tries[:3] == [[1] * 5, [2], [2]]
    monkeypatch.undo()
    async with embedded(dsn):
        await until(lambda: connection.fetchval("select bool_and(outcome is not null) from perdure.event_start"))
    outcomes = await connection.fetch("select outcome, count(*) from perdure.event_start group by 1")
    await connection.close()
    assert [tuple(r) for r in outcomes] == [("started", 5)]
