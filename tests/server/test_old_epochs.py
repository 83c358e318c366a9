"""A worker that brings the result of an attempt from a former life of its run: the same numbers, another epoch."""

from __future__ import annotations

import asyncio

import asyncpg

from perdure import Client, task, workflow
from perdure.core.retry import End
from perdure.core.work import Report
from perdure.sdk.client.channel import Access
from perdure.wire import protocol
from tests.fakes.waiting import until
from tests.server.remote import server, worker


@task(queue="epochs")
async def epoch_step(n: int) -> int:
    return n


@workflow(name="old_epochs")
async def old_epochs(n: int) -> int:
    return await epoch_step(n)


async def test_the_end_of_a_former_attempt_does_not_take_the_place_of_the_present_one(dsn: str) -> None:
    """The worker here answers with the old epoch, then goes away: the present attempt must be found lost, and run elsewhere."""
    async with server(dsn) as s, Client(s.address), Access(addresses=(s.address,)).channel(s.address) as channel:
        call = channel.stream_stream(protocol.CONNECT)()
        hello = protocol.Hello(b"\x08" * 16, "old", "h", 1, "x", 1, [("epochs", "epoch_step")], {}, [])
        await call.write(protocol.encode_up(protocol.Up(hello=hello)))
        async with worker(s.address, queues=["default"]):  # has the code, not the task
            handle = await old_epochs.start(5)
            await until(lambda: any(c.running for c in s.workers.connections()))
            (c,) = [c for c in s.workers.connections() if c.running]
            ((run_id, seq), attempt) = next(iter(c.running.items()))
            old = Report(run_id, seq, attempt, End.SUCCESS, b"1", None, 1, 2, epoch=99)
            await call.write(protocol.encode_up(protocol.Up(reports=[old], reports_number=1)))
            await until(lambda: s.hub.messages.refused > 0)
            assert c.running == {(run_id, seq): attempt}, "its place is still taken by the attempt it was given"
            call.cancel()
            async with worker(s.address, queues=["epochs"]):
                assert await handle.result("3m") == 5


async def test_an_attempt_that_no_worker_has_is_found_and_counts_as_lost(dsn: str) -> None:
    """It should not happen, and if it does nobody waits for ever."""
    async with server(dsn) as s, Client(s.address), Access(addresses=(s.address,)).channel(s.address) as channel:
        call = channel.stream_stream(protocol.CONNECT)()
        hello = protocol.Hello(b"\x08" * 16, "deaf", "h", 1, "x", 1, [("epochs", "epoch_step")], {}, [])
        await call.write(protocol.encode_up(protocol.Up(hello=hello)))
        async with worker(s.address, queues=["default"]):
            handle = await old_epochs.start(6)
            await until(lambda: any(c.running for c in s.workers.connections()))
            (c,) = [c for c in s.workers.connections() if c.running]
            s.workers.placed.clear()
            c.running.clear()
            call.cancel()  # else it may get the next attempt as well
            async with worker(s.address, queues=["epochs"]):
                assert await handle.result("3m") == 6


async def test_an_attempt_whose_row_is_being_written_belongs_to_no_other_engine(dsn: str) -> None:
    """Its worker is lost in this moment. The row would then count as running under a living engine, and its run would wait for ever."""
    holder = await asyncpg.connect(dsn)
    async with server(dsn) as s, Client(s.address), Access(addresses=(s.address,)).channel(s.address) as channel:
        call = channel.stream_stream(protocol.CONNECT)()
        hello = protocol.Hello(b"\x09" * 16, "gone", "h", 1, "x", 1, [("epochs", "epoch_step")], {}, [])
        await call.write(protocol.encode_up(protocol.Up(hello=hello)))
        engine = s.api.engine
        async with worker(s.address, queues=["default"]):
            handle = await old_epochs.start(7)
            async with holder.transaction():
                await holder.execute("lock table perdure.task_queue in exclusive mode")
                await until(lambda: any(f.row for f in engine.attempts.flights.values()))
                call.cancel()
                tokens = [(*key, f.assignment.attempt) for key, f in engine.attempts.flights.items()]
                losing = asyncio.create_task(engine.worker_lost(tokens))
                await asyncio.wait([losing], timeout=0.5)
            await losing
            async with worker(s.address, queues=["epochs"]):
                assert await handle.result("1m") == 7
    await holder.close()
