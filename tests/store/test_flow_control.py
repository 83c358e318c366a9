"""Lines at the level of the store: two claims at once, and who has to make room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.core import ids
from perdure.core.flow_control.groups import FlowControlGroup, FlowControlRules, run_group, task_group
from perdure.core.flow_control.options import FlowControlSpec, LimitOption
from perdure.core.retry import TaskOptions
from perdure.store import flow_control
from perdure.store.connections import connect
from perdure.store.migrate import known
from perdure.store.queries import fetch_row
from perdure.wire.codec import encode_options
from tests.fakes.waiting import until
from tests.store.blocking import is_blocked

KEY = "key/shared"


@pytest.fixture
async def ends(dsn: str) -> AsyncIterator[list[Any]]:
    """Connections as the store makes them."""
    made = [await connect(dsn) for _ in range(3)]
    yield made
    for c in made:
        await c.close()


async def session(c: Any) -> int:
    return int((await fetch_row(c, "register_session", engine="engine", lease_s=60.0, slots=5, knows=known()))["id"])


async def waiting_task(c: Any, seq: int, line: FlowControlGroup) -> None:
    run_id = ids.run_id(1_000, 0, 1)
    await c.execute(
        "insert into perdure.task_queue (id, ns, run_id, seq, name, queue, status, attempt, lost, run_at, scheduled_at, options, input, group_id)"
        " values ($1, 1, $2, $3, $4, $5, 'pending', 1, 0, now(), now(), $6, '{}', $7)",
        ids.derive(run_id, ids.TASK, seq),
        run_id,
        seq,
        line.name,
        line.queue,
        encode_options(TaskOptions()),
        line.id,
    )


async def test_lines_of_one_key_in_two_queues_never_take_more_slots_than_it_has(ends: list[Any]) -> None:
    """Each line has a row of its own to lock, so that only the lock of the key keeps the second claim from counting too early."""
    one, two, observer = ends
    control = FlowControlSpec(limits=(LimitOption(max=1, key="shared"),))
    left, right = (task_group(control, 1, queue, f"on_the_{queue}", "w", b"{}") for queue in ("left", "right"))
    await flow_control.put_groups(one, [left, right])
    for seq, line in enumerate((left, right)):
        await waiting_task(one, seq, line)
    first, second = await session(one), await session(two)
    transaction = one.transaction()
    await transaction.start()
    claimed = await flow_control.claim_from_lines(
        one, first, [((1, "left", "on_the_left"), 5)], 5, FlowControlRules({})
    )
    assert len(claimed.tasks) == 1
    claiming = asyncio.create_task(
        flow_control.claim_from_lines(two, second, [((1, "right", "on_the_right"), 5)], 5, FlowControlRules({}))
    )

    async def is_decided() -> bool:
        return claiming.done() or await is_blocked(observer, two)

    await until(is_decided)
    if not claiming.done():
        await transaction.commit()
    assert (await claiming).tasks == []
    assert await observer.fetchval("select count(*) from perdure.flow_control_slot where key = $1", KEY) == 1


async def test_as_many_holders_are_asked_to_make_room_as_there_are_newcomers_and_once(ends: list[Any]) -> None:
    """A holder may take a while to stop: looking again meanwhile asks no other one in its place."""
    c = ends[0]
    line = run_group(FlowControlSpec(limits=(LimitOption(max=3, key="shared", policy="cancel_oldest"),)), 1, "w", b"{}")
    holders = [ids.run_id(n, 0, n) for n in range(1, 4)]
    newcomers = [ids.run_id(n, 0, n) for n in range(11, 13)]
    for n, run_id in enumerate(holders):
        await queue_run(c, run_id, None)
        await c.execute(
            "insert into perdure.flow_control_slot (ns, key, holder, run_id, at) values (1, $1, $2, $2, now() + $3 * interval '1 second')",
            KEY,
            run_id,
            n,
        )
    engine = await session(c)

    async def look() -> list[bytes]:
        await c.execute("update perdure.flow_control_group set next_at = now()")
        await flow_control.admit_runs(c, engine, FlowControlRules({}))
        return [r["run_id"] for r in await c.fetch("select run_id from perdure.inbox order by id")]

    await flow_control.put_groups(c, [line])
    await queue_run(c, newcomers[0], line)
    assert await look() == holders[:1]
    assert await look() == holders[:1]
    await queue_run(c, newcomers[1], line)
    assert await look() == holders[:2]
    assert await look() == holders[:2]


async def test_no_room_is_made_for_those_that_find_room(ends: list[Any]) -> None:
    c = ends[0]
    line = run_group(FlowControlSpec(limits=(LimitOption(max=2, key="shared", policy="cancel_oldest"),)), 1, "w", b"{}")
    holder, *newcomers = [ids.run_id(n, 0, n) for n in range(1, 4)]
    await queue_run(c, holder, None)
    await c.execute(
        "insert into perdure.flow_control_slot (ns, key, holder, run_id, at) values (1, $1, $2, $2, now() - interval '1 second')",
        KEY,
        holder,
    )
    await flow_control.put_groups(c, [line])
    for run_id in newcomers:
        await queue_run(c, run_id, line)
    entered = await flow_control.admit_runs(c, await session(c), FlowControlRules({}))
    assert (entered.runs, entered.cancelled) == (1, 1)
    assert [r["run_id"] for r in await c.fetch("select run_id from perdure.inbox")] == [holder]


async def test_keys_are_locked_in_one_order(ends: list[Any]) -> None:
    """Whoever waits for a key holds none that comes after it, so that two claims never wait for each other crosswise."""
    one, two, observer = ends
    keys = sorted(((1, f"key/{n}") for n in range(6)), key=flow_control._hash)
    async with one.transaction():
        await one.execute("select pg_advisory_xact_lock($1)", flow_control._hash(keys[0]))

        async def look() -> None:
            async with two.transaction():
                await flow_control._keys(two, sorted(keys))

        looking = asyncio.create_task(look())
        await until(lambda: is_blocked(observer, two))
        held = "select count(*) from pg_locks where locktype = 'advisory' and granted and pid = $1"
        assert await observer.fetchval(held, two.get_server_pid()) == 0
    await looking


async def queue_run(c: Any, run_id: bytes, line: FlowControlGroup | None) -> None:
    await c.execute(
        "insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at, group_id)"
        " values ($1, 1, 'w', 'v', 'pending', now(), 'infinity', $2)",
        run_id,
        line.id if line else None,
    )
