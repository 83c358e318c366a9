"""Runs in flight by the thousand: valid histories, made by the code itself, copied into the database."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.chain import BEGINNING, link
from perdure.core.wait_reasons import WaitReason
from perdure.sdk.workflow.instance import WorkflowInstance
from perdure.store.connections import Connections
from perdure.wire.codec import encode_events

BEGAN_US = 1_790_000_000_000_000
SECOND_US = 1_000_000
ROWS_AT_A_TIME = 20_000
WAITS = msgspec.json.encode([WaitReason(on="signal", text="a signal 'go'", name="go")]).decode()


def history(workflow: Any, **arguments: Any) -> list[ev.Recorded]:
    """What the code asks for, with every task successful and every timer fired, up to where it waits for a message."""
    instance = WorkflowInstance(bytes(16), workflow)
    data = workflow.signature.encode_call((), arguments)
    records = [ev.Recorded(1, BEGAN_US, ev.RunStarted(workflow.name, workflow.version, data))]
    given = records[:]
    while True:
        done = instance.activate(given, replay=len(records) == 1)
        assert done.stuck is None, done.stuck
        commands, given = done.commands, []
        if not commands:
            instance.evict()
            return records
        asked = [_event(c) for c in commands]
        answers = [answer for event in asked if (answer := _answer(event)) is not None]
        for event in (*asked, *answers):
            records.append(ev.Recorded(len(records) + 1, BEGAN_US + len(records) * SECOND_US, event))
            if isinstance(event, ev.FACTS):
                given.append(records[-1])


def _event(command: cm.Command) -> ev.Event:
    match command:
        case cm.ScheduleTasks():
            return ev.TasksScheduled(command.first, command.name, command.queue, command.inputs, command.options)
        case cm.StartTimer():
            return ev.TimerStarted(command.seq, command.fire_at_us)
        case cm.SetState():
            return ev.StateSet(command.name, command.value)
        case _:
            raise AssertionError(command)


def _answer(event: ev.Event) -> ev.Event | None:
    match event:
        case ev.TasksScheduled():
            return ev.TasksSucceeded(
                list(range(event.first, event.first + len(event.inputs))),
                [msgspec.json.encode(msgspec.json.decode(data)["amount"]) for data in event.inputs],
            )
        case ev.TimerStarted():
            return ev.TimerFired(event.seq)
        case _:
            return None


async def fill(dsn: str, workflow: Any, count: int, routes: int) -> None:
    """`count` runs that wait for a message, evenly over the first `routes` routes, with 25 amounts each."""
    made = {(r, a): history(workflow, route=r, amount=a) for r in range(routes) for a in range(0, 25 * 40, 40)}
    kinds = list(made.values())
    pool = Connections(dsn)
    await pool.open()
    try:
        async with pool.take() as c:
            ns = await c.fetchval("select id from perdure.namespace where name = 'default'")
            for at in range(0, count, ROWS_AT_A_TIME):
                await _copy(c, ns, workflow, kinds, range(at, min(count, at + ROWS_AT_A_TIME)))
    finally:
        await pool.close()


async def _copy(c: Any, ns: int, workflow: Any, kinds: list[list[ev.Recorded]], numbers: range) -> None:
    rows: list[tuple[Any, ...]] = []
    queue: list[tuple[Any, ...]] = []
    for n in numbers:
        run_id, records = ids.run_id(BEGAN_US // 1000 + n // 100, 0, n), kinds[n % len(kinds)]
        head, before_us = BEGINNING, 0
        # As an engine writes them: the start by itself, then a few commits.
        bounds = [0, 1, *range(4, len(records), 4), len(records)]
        for first, end in zip(bounds, bounds[1:], strict=False):
            if first == end:
                continue
            body = encode_events([r.event for r in records[first:end]])
            at_us = records[first].at_us
            head = link(head, before_us, run_id, ns, first + 1, end, 1, body)
            before_us = at_us
            rows.append((run_id, first + 1, end, ns, 1, at_us, body, head))
        queue.append(
            (
                run_id,
                ns,
                workflow.name,
                workflow.version,
                "running",
                BEGAN_US,
                BEGAN_US + 10**15,
                "signal",
                WAITS,
                len(records),
                head,
            )
        )
    await c.copy_records_to_table(
        "history",
        schema_name="perdure",
        columns=["run_id", "seq", "last", "ns", "epoch", "at", "body", "hash"],
        records=rows,
    )
    columns = "run_id ns workflow version status created_at wake_at waiting_on wait_reasons events head"
    await c.copy_records_to_table("run_queue", schema_name="perdure", columns=columns.split(), records=queue)
