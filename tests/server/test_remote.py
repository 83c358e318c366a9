"""Workers and clients over gRPC, against a real server and database."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncpg
import grpc
import pytest

from perdure import Client, EngineSettings, Promise, Signal, State, attempt, task, wf, workflow
from perdure.core import commands as cm
from perdure.core.api import messages
from perdure.core.api.messages import ResolvePromise, SendSignal
from perdure.core.retry import End
from perdure.core.work import Assignment, Beat, Decided, LogChunk, LogLine, Report
from perdure.errors import NotFound, PayloadTooLarge, RunFailed, Stuck, Unavailable
from perdure.localpg.postmaster import free_port
from perdure.sdk.client.channel import Access
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.stream import RemoteWorker
from perdure.sdk.worker.worker import Worker
from perdure.server.grpc.server import GrpcServer
from perdure.wire import protocol
from tests.fakes.waiting import busy, busy_thread, holds, until
from tests.server.remote import Everybody, server, worker

steer = Signal("remote_steer", str)
answer = Promise("remote_answer", int)
progress = State("remote_progress", 0)


@task
async def remote_double(n: int) -> int:
    return 2 * n


@task
def remote_sync(n: int) -> int:
    busy_thread(0.01)
    return n + 1


@task(retry=1)
async def remote_fail(text: str) -> None:
    raise ValueError(text)


@workflow
async def remote_sums(n: int) -> int:
    doubled = await wf.map(remote_double, range(n))
    progress.set(n)
    return sum(doubled) + await remote_sync(1)


@workflow
async def remote_chat(x: int) -> str:
    first = await steer.next()
    return f"{x} {first} {await answer.wait()} {await wf.run('dice', lambda: 4)}"


@workflow
async def remote_broken(text: str) -> None:
    await remote_fail(text)


@workflow
async def remote_nap(x: int) -> int:
    await wf.sleep("200ms")
    return x


@workflow
async def remote_parent(n: int) -> int:
    return sum(await asyncio.gather(*(remote_nap(i) for i in range(n))))


async def test_a_run_is_decided_and_executed_by_a_remote_worker(dsn: str) -> None:
    async with server(dsn) as s, worker(s.address), Client(s.address):
        assert await remote_sums.run(100) == 9900 + 2
        handle = await remote_sums.start(10)
        assert await handle.result("10s") == 92
        assert await progress.read(handle.id) == 10
        assert await handle.status() == "success"
        assert [e.type async for e in handle.events()][-1] == "RunSucceeded"
        assert s.hub.messages.refused == 0


async def test_messages_children_timers_and_errors_over_the_wire(dsn: str) -> None:
    async with server(dsn) as s, worker(s.address), Client(s.address) as client:
        chat = await remote_chat.options(key="chat-1").start(7)
        await steer.send(chat.id, "left")
        await answer.resolve(chat.id, 42)
        assert await (await client.get(key="chat-1", workflow=remote_chat)).result("10s") == "7 left 42 4"
        assert await remote_parent.run(3) == 3
        with pytest.raises(RunFailed, match="bang"):
            await remote_broken.run("bang")
        with pytest.raises(NotFound):
            await client.get("01890000-0000-7000-8000-000000000000")


async def test_two_workers_share_the_work_and_one_that_drains_ends_without_error(dsn: str) -> None:
    async with server(dsn) as s, Client(s.address), worker(s.address, slots=4):
        async with worker(s.address, slots=4):
            handles = [await remote_sums.start(20) for _ in range(10)]
            await until(lambda: s.engine.counters.tasks_ended > 0)
        # The second worker has left; what it held goes on at the first.
        assert [await h.result("3m") for h in handles] == [380 + 2] * 10
        assert s.engine.counters.tasks_lost == 0
        assert len(s.workers.connections()) == 1


@task
async def remote_long(seconds: float) -> str:
    await busy(seconds)
    return f"attempt {attempt().number}"


@workflow
async def remote_patient(seconds: float) -> str:
    return await remote_long(seconds)


async def task_rows(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval("select count(*) from perdure.task_queue"))
    finally:
        await connection.close()


async def test_a_worker_whose_server_dies_takes_its_running_task_to_another_one(dsn: str) -> None:
    async with server(dsn) as second:
        async with server(dsn) as first:
            async with worker(first.address, second.address) as w:
                home, other = (first, second) if first.workers.connections() else (second, first)
                async with Client(other.address):
                    handle = await remote_patient.start(3.0)
                    await until(lambda: any(c.running for c in home.workers.connections()))
                    await until(lambda: task_rows(dsn))
                    await home.grpc.stop(0)
                    assert await handle.result("3m") == "attempt 1"
                    assert w.streams == 2
                    assert len(other.workers.connections()) == 1


async def test_a_broken_stream_to_the_same_server_repeats_nothing(dsn: str) -> None:
    async with server(dsn) as s, worker(s.address) as w, Client(s.address):
        handle = await remote_patient.start(2.0)
        napping = [await remote_nap.start(i) for i in range(5)]
        await until(lambda: any(c.running for c in s.workers.connections()))
        port = s.grpc.port
        await s.grpc.stop(0)
        s.grpc = GrpcServer(s.api, s.hub, Everybody(), f"127.0.0.1:{port}")
        await s.grpc.start()
        assert await handle.result("3m") == "attempt 1"
        assert [await h.result("3m") for h in napping] == list(range(5))
        assert w.streams == 2
        assert s.engine.counters.tasks_lost == 0


async def test_attempts_of_a_worker_that_never_comes_back_run_again_elsewhere(dsn: str) -> None:
    async with server(dsn, grace_s=0.5) as s, Client(s.address):
        doomed = RemoteWorker(Worker(Capacity(slots=5)), Access(addresses=(s.address,)))
        task = asyncio.create_task(doomed.run())
        await doomed.connected()
        handle = await remote_patient.start(1.0)
        await until(lambda: any(c.running for c in s.workers.connections()))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with worker(s.address):
            assert await handle.result("3m") == "attempt 2"
        assert s.engine.counters.tasks_lost == 1


async def test_a_worker_that_holds_fewer_runs_than_it_is_given_replays_the_others(dsn: str) -> None:
    async with server(dsn) as s, worker(s.address, runs_max=2), Client(s.address):
        chats = [await remote_chat.start(i) for i in range(8)]
        await until(lambda: s.engine.counters.activations >= 8 and all(r.is_idle for r in s.engine.runs.values()))
        for chat in chats:
            await steer.send(chat.id, "on")
            await answer.resolve(chat.id, 1)
        assert [await c.result("3m") for c in chats] == [f"{i} on 1 4" for i in range(8)]


@workflow
async def remote_fanned(n: int) -> int:
    texts = await wf.map(remote_echo, ["x" * 1000] * n)
    await steer.next()
    return len(texts)


@task
async def remote_echo(text: str) -> str:
    return text


async def test_large_fan_outs_and_histories_travel_in_parts(dsn: str) -> None:
    """About 5 MB of inputs up, and inputs and results down again when another worker replays the run."""
    async with server(dsn) as s, Client(s.address):
        async with worker(s.address, slots=500):
            handle = await remote_fanned.start(5000)
            await until(lambda: s.engine.counters.tasks_ended >= 5000)
        async with worker(s.address):
            await steer.send(handle.id, "done")
            assert await handle.result("3m") == 5000


async def test_a_worker_gets_and_touches_nothing_of_another_namespace(dsn: str) -> None:
    async with server(dsn) as s, Client(s.address):
        await s.engine._context.store.namespace("other")
        async with worker(s.address, namespace="other") as foreign, Client(s.address, namespace="other") as there:
            assert foreign.streams == 1
            handle = await remote_patient.start(0.1)  # finds `there`, the innermost client
            assert await handle.result("10s") == "attempt 1"
            mine = Client(s.address)
            async with mine:
                waiting = await mine.start(remote_patient, 0.1)
                with pytest.raises(NotFound):
                    await there.get(waiting.id)

                async def is_pending() -> bool:
                    return await waiting.status() == "pending"

                await holds(is_pending, 1.0)
                async with worker(s.address):
                    assert await waiting.result("10s") == "attempt 1"


async def test_what_a_worker_says_of_attempts_and_runs_that_are_not_its_own_is_refused(dsn: str) -> None:
    async with server(dsn) as s, worker(s.address), Client(s.address):
        handle = await remote_patient.start(1.0)
        await until(lambda: any(c.running for c in s.workers.connections()))
        (key, attempt_) = next(iter(s.workers.connections()[0].running.items()))
        run_id = key[0]
        hello = protocol.Hello(b"\x07" * 16, "liar", "h", 1, "x", 1, [("default", "nothing")], {}, [])
        async with Access(addresses=(s.address,)).channel(s.address) as channel:
            call = channel.stream_stream(protocol.CONNECT)()
            await call.write(protocol.encode_up(protocol.Up(hello=hello)))
            await call.read()
            report = Report(run_id, key[1], attempt_, End.SUCCESS, b'"forged"', None, 1, 2)
            forged = Decided(run_id, [cm.CompleteRun(b'"forged"')])
            await call.write(
                protocol.encode_up(
                    protocol.Up(
                        reports=[report],
                        reports_number=1,
                        decisions=[(1, forged, False), (0, forged, False)],
                        beats=[Beat(run_id, key[1], attempt_)],
                        logs=[LogChunk(run_id, key[1], attempt_, 0, [LogLine(1, "stdout", "info", "forged")])],
                    )
                )
            )
            await until(lambda: s.hub.messages.refused >= 5)
            call.cancel()
        assert await handle.result("10s") == "attempt 1"


async def test_a_first_message_that_is_no_hello_and_a_worker_of_another_protocol_are_told_why(dsn: str) -> None:
    async with server(dsn) as s:
        async with Access(addresses=(s.address,)).channel(s.address) as channel:
            for up, why in (
                (protocol.Up(alive=True), "hello"),
                (
                    protocol.Up(hello=protocol.Hello(b"x" * 16, "w", "h", 1, "x", 1, [], {}, [], protocol=9)),
                    "protocol 9",
                ),
                (protocol.Up(hello=protocol.Hello(b"x", "w", "h", 1, "x", 1, [], {}, [])), "16 bytes"),
                (protocol.Up(hello=protocol.Hello(b"x" * 16, "w", "h", 1, "x", 0, [], {}, [])), "slots"),
            ):
                call = channel.stream_stream(protocol.CONNECT)()
                await call.write(protocol.encode_up(up))
                with pytest.raises(grpc.aio.AioRpcError, match=why):
                    while await call.read() is not grpc.aio.EOF:
                        pass
                    raise grpc.aio.AioRpcError(await call.code(), None, None, await call.details())  # type: ignore[arg-type]
        assert s.workers.connections() == []


async def test_a_worker_that_was_silent_for_too_long_comes_back(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.server.grpc.hub.SILENT_S_MAX", 0.3)
    monkeypatch.setattr("perdure.server.grpc.server.RECHECK_S", 0.2)
    async with server(dsn) as s, worker(s.address) as w, Client(s.address):
        await until(lambda: w.streams >= 2)
        monkeypatch.undo()
        assert await remote_sums.run(5) == 22


async def test_a_failure_without_a_reason_fails_its_task_and_nothing_else(dsn: str) -> None:
    async with server(dsn) as s, worker(s.address, queues=["nowhere"]), Client(s.address):
        handle = await remote_broken.start("never seen")
        hello = protocol.Hello(b"\x08" * 16, "terse", "h", 1, "x", 5, [("default", "remote_fail")], {}, [])
        async with Access(addresses=(s.address,)).channel(s.address) as channel:
            call = channel.stream_stream(protocol.CONNECT)()
            await call.write(protocol.encode_up(protocol.Up(hello=hello)))
            tasks: list[Assignment] = []
            async with asyncio.timeout(120):
                while not tasks:
                    tasks = protocol.decode_down(await call.read()).tasks
            a = tasks[0]
            ended = Report(a.run_id, a.seq, a.attempt, End.ERROR, b"", None, 1, 2)
            await call.write(protocol.encode_up(protocol.Up(reports=[ended], reports_number=1)))
            with pytest.raises(RunFailed, match="gave no reason"):
                await handle.result("10s")
            call.cancel()


async def test_a_client_finds_the_server_that_answers_and_says_so_when_none_does(dsn: str) -> None:
    nowhere = f"localhost:{free_port()}"
    async with server(dsn) as s, worker(s.address):
        async with Client(f"{nowhere},{s.address}"):
            assert await remote_sums.run(5) == 22
            assert await remote_sums.run(6) == 32
    async with Client(nowhere):
        began = time.monotonic()
        with pytest.raises(Unavailable, match="perdure dev"):
            await remote_sums.run(5)
        assert time.monotonic() - began < 10


async def test_a_result_is_waited_for_through_a_restart_of_the_server(dsn: str) -> None:
    async with server(dsn) as s, worker(s.address), Client(s.address):
        handle = await remote_patient.start(1.5)
        waiting = asyncio.create_task(handle.result("3m"))
        await until(lambda: any(c.running for c in s.workers.connections()))
        port = s.grpc.port
        await s.grpc.stop(0)
        await holds(lambda: not waiting.done(), 0.5)
        s.grpc = GrpcServer(s.api, s.hub, Everybody(), f"127.0.0.1:{port}")
        await s.grpc.start()
        assert await waiting == "attempt 1"


async def test_values_over_the_limit_are_refused_at_every_door(dsn: str) -> None:
    async with (
        server(dsn, settings=EngineSettings(payload_bytes_max=200_000)) as s,
        worker(s.address),
        Client(s.address) as client,
    ):
        chat = await remote_chat.start(1)
        large = b'"' + b"x" * (256 * 1024) + b'"'
        with pytest.raises(PayloadTooLarge):
            await client._backend.call(messages.SIGNAL, SendSignal(chat.id, "remote_steer", large))
        with pytest.raises(PayloadTooLarge):
            await client._backend.call(messages.RESOLVE, ResolvePromise(chat.id, "remote_answer", large))
        await chat.cancel()


async def test_an_old_stream_of_a_worker_that_is_back_counts_for_nothing(dsn: str) -> None:
    async with server(dsn) as s, Access(addresses=(s.address,)).channel(s.address) as channel:
        hello = protocol.Hello(b"\x09" * 16, "twice", "h", 1, "x", 7, [("default", "nothing")], {}, [])

        async def connect() -> Any:
            call = channel.stream_stream(protocol.CONNECT)()
            await call.write(protocol.encode_up(protocol.Up(hello=hello)))
            await call.read()
            return call

        old = await connect()
        (before,) = s.workers.connections()
        new = await connect()
        assert s.workers.slots_free == 7
        s.hub.messages.received(before, protocol.Up(draining=True, reports_number=1))  # it was on its way
        s.hub.left(before)
        (now,) = s.workers.connections()
        assert now is not before and not now.draining and s.workers.slots_free == 7
        with pytest.raises(grpc.aio.AioRpcError, match="another stream"):
            while await old.read() is not grpc.aio.EOF:
                pass
        new.cancel()
        await until(lambda: s.workers.slots_free == 0)


@pytest.mark.parametrize("times", [(-5, 2**62), (2**62, 1), (0, 0), (-(2**63), 2**63 - 1)])
async def test_times_that_cannot_be_are_no_reason_to_lose_a_result(dsn: str, times: tuple[int, int]) -> None:
    async with server(dsn) as s, worker(s.address, queues=["nowhere"]), Client(s.address):
        handle = await remote_patient.start(1.0)
        hello = protocol.Hello(b"\x0a" * 16, "dreamer", "h", 1, "x", 5, [("default", "remote_long")], {}, [])
        async with Access(addresses=(s.address,)).channel(s.address) as channel:
            call = channel.stream_stream(protocol.CONNECT)()
            await call.write(protocol.encode_up(protocol.Up(hello=hello)))
            tasks: list[Assignment] = []
            async with asyncio.timeout(120):
                while not tasks:
                    tasks = protocol.decode_down(await call.read()).tasks
            a = tasks[0]
            ended = Report(a.run_id, a.seq, a.attempt, End.SUCCESS, b'"done"', None, *times)
            await call.write(protocol.encode_up(protocol.Up(reports=[ended], reports_number=1)))
            assert await handle.result("10s") == "done"
            call.cancel()


async def test_a_decision_without_end_stops_its_run_and_no_other(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.server.grpc.code_placement.DECISION_BYTES_MAX", 1_000_000)
    async with server(dsn) as s, worker(s.address), Client(s.address):
        handle = await remote_fanned.start(5000)
        with pytest.raises(Stuck, match="DECISION_BYTES_MAX"):
            await handle.result("3m")
        assert await remote_sums.run(5) == 22
