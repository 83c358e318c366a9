"""Keys and clients work in every handler, thread and task: with the client found by context, and with one that the code holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest

from perdure import Client, Perdure, Promise, Signal, State, SyncClient, Update, client, sync_client, task, workflow
from perdure.errors import PerdureError, Unavailable
from perdure.sdk.client.base import ClientBase
from tests.fakes.waiting import until
from tests.server.remote import server, worker

word = Signal("anywhere_word", str)
stage = State("anywhere_stage", "new")
price = Update("anywhere_price", int, int)
answer = Promise("anywhere_answer", str)


@workflow(name="anywhere_talk")
async def talk() -> str:
    price.handle(lambda cents: cents * 2)
    stage.set("listening")
    heard = await word.next()
    return f"{heard} {await answer.wait()}"


@task(name="anywhere_sync_task")
def tells_from_a_thread(run_id: str) -> str:
    sync_client().signal(word, run_id, "hello")
    asyncio.run(answer.resolve(run_id, "from a task"))  # on a loop of the task's own
    return sync_client().query(stage, run_id)


@workflow(name="anywhere_teller")
async def teller(run_id: str) -> str:
    return await tells_from_a_thread(run_id)


async def _talked(c: ClientBase, run_id: str) -> None:
    async def is_listening() -> bool:
        return await c.query(stage, run_id) == "listening"

    await until(is_listening)


async def _in_thread(work: Callable[[], Any]) -> Any:
    """In a thread that inherits no context, as a web server's pool has them."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def run() -> None:
        try:
            found = Context().run(work)
        except BaseException as error:
            loop.call_soon_threadsafe(future.set_exception, error)
        else:
            loop.call_soon_threadsafe(future.set_result, found)

    threading.Thread(target=run, daemon=True).start()
    return await future


async def _use_everywhere(c: ClientBase) -> None:
    first = await c.start(talk)
    await _talked(c, first.id)

    def in_a_thread() -> tuple[str, str]:
        blocking = sync_client()
        run = blocking.get(first.id, workflow=talk)
        assert blocking.update(price, first.id, 4) == 8
        run.signal(word, "hi")
        run.resolve(answer, "there")
        return run.result("3m"), blocking.query(stage, first.id)

    assert await _in_thread(in_a_thread) == ("hi there", "listening")

    second = await c.start(talk)

    def on_another_loop() -> str:
        async def held_and_found() -> str:
            handle = await c.get(second.id, workflow=talk)  # the client that is held
            await word.send(second.id, "good")  # the client that is found
            await client().resolve(answer, second.id, "bye")
            return await handle.result("3m")

        return asyncio.run(held_and_found())

    assert await _in_thread(on_another_loop) == "good bye"

    third = await c.start(talk)
    await _talked(c, third.id)
    assert await c.run(teller, third.id) == "listening"
    assert await third.result("3m") == "hello from a task"


async def test_an_embedded_client_works_in_threads_loops_and_tasks(dsn: str) -> None:
    async with Perdure(dsn, tune_gc=False) as c:
        await _use_everywhere(c)


async def test_a_client_of_a_server_works_in_threads_loops_and_tasks_of_its_workers(dsn: str) -> None:
    async with server(dsn) as one, worker(one.address), Client(one.address) as c:
        await _use_everywhere(c)


async def test_a_blocking_call_on_the_loop_that_has_to_answer_is_refused(dsn: str) -> None:
    async with Perdure(dsn, worker=False, tune_gc=False):
        with pytest.raises(PerdureError, match="await the methods of the async client"):
            sync_client().list()


async def test_a_call_from_another_loop_ends_in_its_time_while_the_loop_of_the_client_hangs(dsn: str) -> None:
    release = threading.Event()

    def call() -> str:
        async def asked() -> str:
            try:
                await client().list(timeout="500ms")
            except Unavailable as error:
                return str(error)
            finally:
                release.set()
            return "answered"

        return asyncio.run(asked())

    async with Perdure(dsn, worker=False, tune_gc=False):
        waiting = asyncio.ensure_future(_in_thread(call))
        await asyncio.to_thread(int)  # it has begun
        release.wait(20)  # blocks this loop
        assert "no answer within 0.5 s" in await waiting


async def test_a_closed_client_says_so(dsn: str) -> None:
    async with Perdure(dsn, worker=False, tune_gc=False) as c:
        blocking = sync_client(c)
    with pytest.raises(PerdureError, match="this client is closed"):
        await c.list()
    with pytest.raises(PerdureError, match="this client is closed"):
        await _in_thread(blocking.list)


def test_a_sync_client_that_is_not_open_says_so() -> None:
    with pytest.raises(PerdureError, match="inside `with`"):
        SyncClient("127.0.0.1:1").list()
