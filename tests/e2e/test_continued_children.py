"""A parent waits for the last of a child's successors, wherever it was when they took over."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Perdure, Signal, wf, workflow
from tests.fakes.waiting import until

go = Signal("continued_go", str)


@workflow(name="continued_child")
async def child(left: int) -> str:
    if left > 0:
        wf.continue_as_new(left - 1)
    return await go.next()


@workflow(name="continued_parent")
async def parent(nap: str) -> str:
    answer, _ = await asyncio.gather(child(2), wf.sleep(nap))
    return answer


async def _last_child(client: Perdure, parent_id: str) -> str:
    """The child's id is in the parent's history; its successors are followed by messages themselves."""
    async for event in (await client.get(parent_id)).events():
        if event.type == "ChildStarted":
            return _text(event.data.run_id)  # type: ignore[union-attr]
    raise AssertionError("no child was started")


async def _successor(client: Perdure, run_id: str) -> bytes | None:
    return (await (await client.get(run_id)).describe()).successor


async def _last_successor(client: Perdure, child_id: str) -> str:
    for _ in range(2):
        child_id = _text(await until(lambda run_id=child_id: _successor(client, run_id)))  # type: ignore[misc]
    return child_id


def _text(run_id: bytes) -> str:
    from perdure.core import ids

    return ids.text(run_id)


@pytest.mark.keep
async def test_a_parent_that_is_loaded_again_does_not_take_a_handover_for_the_result(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(parent, "1s")
        child_id = await _last_child(client, handle.id)
        await until(lambda: _successor(client, child_id))
    async with Perdure(dsn) as client:
        client.serve(parent)
        client.serve(child)
        again = await client.get(handle.id, workflow=parent)
        async for event in again.events():
            if event.type == "TimerFired":
                break
        assert await again.status() == "running"
        await go.send(child_id, "done")
        assert await again.result("3m") == "done"


async def test_a_parent_that_was_away_when_the_last_successor_ended_finds_its_result(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(parent, "2s")
        child_id = await _last_child(client, handle.id)
        last = await client.get(await _last_successor(client, child_id))
        # The child tells its parent in memory; a parent that is read again from the database has to find out by itself.
        client.engine.delivery._child_ended = lambda *_: None  # type: ignore[method-assign]
        await go.send(child_id, "early")
        assert await last.result("3m") == "early"
    async with Perdure(dsn) as client:
        client.serve(parent)
        client.serve(child)
        assert await (await client.get(handle.id, workflow=parent)).result("3m") == "early"


async def test_cancelling_a_parent_reaches_the_last_successor_of_its_child(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(parent, "1h")
        last = await client.get(await _last_successor(client, await _last_child(client, handle.id)))
        await handle.cancel("enough")

        async def has_ended() -> bool:
            await client.store.sweep()  # what maintenance does every few seconds
            return await last.status() != "running"

        await until(has_ended)
        assert await last.status() == "cancelled"
