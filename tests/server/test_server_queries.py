"""Queries through the doors of a server: REST, gRPC and the command line, computed by remote workers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from perdure import Client, Signal, State, Workflow, workflow
from perdure.core import ids
from perdure.core.api import messages
from perdure.core.api.messages import AskQuery
from perdure.core.limits import QUERY_ANSWER_BYTES_MAX
from perdure.core.work import QueryAnswer, QueryCall, ServedCode
from perdure.engine.services import queries as service
from perdure.errors import Failure, NotFound, QueryFailed, Unavailable
from perdure.sdk.client.channel import Access
from perdure.sdk.worker.stream import RemoteWorker
from perdure.sdk.worker.worker import Worker
from perdure.server.grpc.connection import Connection
from perdure.server.grpc.pools import WorkerPools
from perdure.server.grpc.remote_queries import RemoteQueries
from perdure.wire import protocol
from perdure.wire.protocol import Down, Hello, Up
from tests.fakes.waiting import until
from tests.fakes.workflow_world import keep_private
from tests.server.remote import server, worker
from tests.server.rest_live import live
from tests.server.test_server_updates import perdure

level = State("served_query_level", 0)
stop = Signal("served_query_stop", bool)
held = threading.Event()


@workflow(name="served_query_tank")
async def tank(size: int) -> int:
    level.set(3)
    await stop.next()
    return level.get()


@tank.query
def filled(digits: int = 0) -> float:
    """In percent."""
    from perdure import wf

    return round(100 * level.get() / wf.info().arguments["size"], digits)


@tank.query
def leaks() -> None:
    raise RuntimeError("a leak")


@tank.query
def hangs() -> None:
    held.wait()


def version(label: str, versioning: str) -> Workflow[[], None]:
    """A workflow of one name, in versions of its own."""

    @workflow(name="served_query_versions", version=label, versioning=versioning)  # type: ignore[arg-type]
    async def versions() -> None:
        await stop.next()

    @versions.query
    def label_of() -> str:
        return label

    keep_private({"versions": versions})
    return versions


@asynccontextmanager
async def worker_of(address: str, *definitions: Workflow[..., Any]) -> AsyncIterator[RemoteWorker]:
    made = Worker()
    for definition in definitions:
        made.adopt(definition)
    remote = RemoteWorker(made, Access(addresses=(address,)), drain_s=5)
    task = asyncio.create_task(remote.run())
    try:
        async with asyncio.timeout(120):
            await remote.connected()
        yield remote
    finally:
        remote.drain()
        async with asyncio.timeout(120):
            await asyncio.gather(task, return_exceptions=True)


async def has_level(client: Client, run: str) -> None:
    async def is_there() -> bool:
        return (await client._backend.call(messages.STATE, messages.ReadState(run, level.name))).value == b"3"

    await until(is_there)


async def test_a_query_over_rest(dsn: str) -> None:
    async with live(dsn) as api:
        run = await api.perdure.start(tank, 8)

        async def is_there() -> bool:
            return await level.read(run.id) == 3

        await until(is_there)
        path = f"/runs/{run.id}/queries"
        assert await api.post(f"{path}/filled", {"digits": 1}, 200) == {"name": "filled", "value": 37.5}
        assert (await api.ask("POST", f"{path}/filled", 200))["value"] == 38.0, "no body: no arguments"
        failed = await api.post(f"{path}/leaks", {}, 409)
        assert (failed["code"], failed["detail"]) == ("query_failed", "RuntimeError: a leak")
        unknown = await api.post(f"{path}/fillet", {}, 404)
        assert unknown["code"] == "not_found" and "did you mean 'filled'" in unknown["detail"]
        assert (await api.post(f"{path}/filled", [1], 422))["code"] == "invalid_input"
        assert (await api.post(f"{path}/filled", {"digits": "x"}, 422))["code"] == "payload_mismatch"
        assert (await api.post(f"/runs/{ids.text(bytes(16))}/queries/filled", {}, 404))["code"] == "not_found"
        actions = {entry["action"] for entry in (await api.get("/audit"))["items"]}
        assert not any("query" in action for action in actions)
        assert (await api.get("/workflows/served_query_tank"))["queries"] == ["filled", "leaks", "hangs"]


@pytest.mark.usefixtures("interpreter")
async def test_a_query_from_the_command_line(dsn: str) -> None:
    async with live(dsn) as api:
        run = await api.perdure.start(tank, 8)

        async def is_there() -> bool:
            return await level.read(run.id) == 3

        await until(is_there)
        assert await perdure("query", run.id, "filled", url=api.url) == (0, "38.0\n")
        assert await perdure("query", run.id, "filled", "digits=1", url=api.url) == (0, "37.5\n")
        assert await perdure("query", run.id, "filled", "-i", "digits=1", url=api.url) == (0, "37.5\n")
        code, out = await perdure("query", run.id, "filled", "-i", '{"digits": 1}', "-o", "json", url=api.url)
        assert (code, json.loads(out)) == (0, {"name": "filled", "value": 37.5})
        code, out = await perdure("query", run.id, "leaks", url=api.url)
        assert code == 1 and "RuntimeError: a leak" in out
        code, out = await perdure("query", run.id, "fillet", url=api.url)
        assert code == 4 and "did you mean 'filled'" in out
        code, out = await perdure("query", run.id, "filled", "digits", url=api.url)
        assert code == 2 and "is not NAME=VALUE" in out
        code, out = await perdure("workflow", "show", "served_query_tank", "-o", "json", url=api.url)
        assert json.loads(out)["queries"] == ["filled", "leaks", "hangs"]


async def test_a_remote_client_asks_a_remote_worker(dsn: str) -> None:
    async with server(dsn) as served, Client(served.address) as client:
        async with worker(served.address):
            run = await client.start(tank, 8)
            await has_level(client, run.id)
            assert await filled.read(run.id, digits=1) == 37.5
            with pytest.raises(QueryFailed, match="RuntimeError: a leak") as caught:
                await leaks.read(run.id)
            assert "raise RuntimeError" in caught.value.failure.traceback
            with pytest.raises(NotFound, match="did you mean 'filled'"):
                await client._backend.call(messages.QUERY, AskQuery(run.id, "fillet"))
            await stop.send(run.id, True)
            assert await run.result("3m") == 3
            assert await filled.read(run.id) == 38.0
        assert served.workers.queries._asked == {}


async def test_a_query_waits_for_a_worker_and_then_says_which_one_is_missing(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server(dsn) as served, Client(served.address) as client:
        async with worker(served.address):
            run = await client.start(tank, 8)
            await has_level(client, run.id)
        asked = asyncio.create_task(filled.read(run.id))
        await until(lambda: served.engine.queries._open)
        async with worker(served.address):
            assert await asked == 38.0, "it came in time"
        monkeypatch.setattr(service, "QUERY_WORKER_WAIT_S", 0.1)
        with pytest.raises(Unavailable, match=f"version '{tank.version}' of the workflow 'served_query_tank'"):
            await filled.read(run.id)


async def test_a_worker_that_leaves_while_it_computes_is_not_waited_for(dsn: str) -> None:
    async with server(dsn) as served, Client(served.address) as client:
        async with worker(served.address):
            run = await client.start(tank, 8)
            await has_level(client, run.id)
            api = await served.api.of(service_caller())
            asked = asyncio.create_task(api.call(messages.QUERY, AskQuery(run.id, "hangs")))
            await until(lambda: served.workers.queries._asked)
            for c in served.workers.connections():
                c.end(Unavailable("the test ends the stream"))
            with pytest.raises(Unavailable, match="has disconnected"):
                await asked
            held.set()
            assert await filled.read(run.id) == 38.0, "it is back"
        held.clear()


def service_caller() -> Any:
    from perdure.engine.api.api import EMBEDDED, Caller

    return Caller(EMBEDDED, "default", "sdk")


@pytest.mark.keep
async def test_a_run_that_is_pinned_is_queried_in_its_version_only(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "QUERY_WORKER_WAIT_S", 0.1)
    old, new = version("1", "pinned"), version("2", "pinned")
    async with server(dsn) as served, Client(served.address) as client:
        async with worker_of(served.address, old):
            run = await client.start(old)
            assert await old.queries["label_of"].read(run.id) == "1"
            async with worker_of(served.address, new):
                assert {await old.queries["label_of"].read(run.id) for _ in range(5)} == {"1"}
        async with worker_of(served.address, new):
            with pytest.raises(Unavailable, match="version '1' of the workflow 'served_query_versions' is connected"):
                await old.queries["label_of"].read(run.id)


async def test_a_run_that_is_not_pinned_is_queried_in_a_version_that_is_served(dsn: str) -> None:
    old, new = version("1", "auto_upgrade"), version("2", "auto_upgrade")
    async with server(dsn) as served, Client(served.address) as client:
        async with worker_of(served.address, old):
            run = await client.start(old)
            await stop.send(run.id, True)
            await run.result("3m")
            assert await old.queries["label_of"].read(run.id) == "1"
        async with worker_of(served.address, new):
            assert await old.queries["label_of"].read(run.id) == "2"


async def test_namespaces_do_not_see_each_other(dsn: str) -> None:
    async with live(dsn) as api:
        run = await api.perdure.start(tank, 8)
        await api.post("/namespaces", {"name": "other"}, 201)
        elsewhere: dict[str, Any] = {"headers": {"Perdure-Namespace": "other"}}
        refused = await api.ask("POST", f"/runs/{run.id}/queries/filled", 404, json={}, **elsewhere)
        assert refused["code"] == "not_found"


# -- without a database


CALL = QueryCall(
    run_id=bytes(16),
    workflow="w",
    name="q",
    arguments=b'{"n":1}',
    key="k",
    status="running",
    input=b"{}",
    states={"a": b"1", "b": b'"x"'},
)


def connection() -> Connection:
    served = {"w": ServedCode(version="1")}
    return Connection(Hello(b"w" * 16, "worker", "host", 1, "test", 10, [], served, []), 1, "ns", 0)


def test_queries_and_answers_travel_as_they_are() -> None:
    assert protocol.decode_down(protocol.encode_down(Down(queries=[(7, CALL)]))).queries == [(7, CALL)]
    answers = [(7, QueryAnswer(b"1")), (8, QueryAnswer(b"", Failure("query_failed", "no", "ValueError", "trace")))]
    assert protocol.decode_up(protocol.encode_up(Up(answers=answers))).answers == answers


async def test_an_answer_counts_only_from_the_worker_that_was_asked() -> None:
    pools, asked, other = WorkerPools(), connection(), connection()
    pools.add(asked)
    queries = RemoteQueries(pools)
    assert queries.ask((1, "w", "2"), CALL) is None
    future = queries.ask((1, "w", "1"), CALL)
    assert future is not None
    down = await asked.next_message(lambda: 0)
    ((number, sent),) = down.queries
    assert sent == CALL
    assert queries.answered(other, [(number, QueryAnswer(b"2"))]) == 1 and not future.done()
    assert queries.answered(asked, [(number, QueryAnswer(b"1")), (number + 1, QueryAnswer(b"3"))]) == 0
    assert await future == QueryAnswer(b"1")
    assert queries.answered(asked, [(number, QueryAnswer(b"2"))]) == 0, "it came twice"


async def test_a_query_whose_caller_has_gone_is_not_sent() -> None:
    pools, c = WorkerPools(), connection()
    pools.add(c)
    queries = RemoteQueries(pools)
    gone, kept = queries.ask((1, "w", "1"), CALL), queries.ask((1, "w", "1"), CALL)
    assert gone is not None and kept is not None
    gone.cancel()
    await until(lambda: len(queries._asked) == 1)
    assert [n for n, _ in (await c.next_message(lambda: 0)).queries] == [2]


async def test_queries_that_wait_for_a_stream_are_sent_in_messages_of_bounded_size() -> None:
    c = connection()
    large = msgspec.structs.replace(CALL, states={"a": b"1" * protocol.PART_BYTES})
    for number in (1, 2, 3):
        c.query(number, large)
    sent = [[n for n, _ in (await c.next_message(lambda: 0)).queries] for _ in range(3)]
    assert sent == [[1], [2], [3]]


def test_the_answer_of_a_worker_is_bounded_by_the_server() -> None:
    assert service.checked(QueryAnswer(b"1")) == QueryAnswer(b"1")
    failure = service.checked(QueryAnswer(b"1" * (QUERY_ANSWER_BYTES_MAX + 1))).failure
    assert failure is not None and failure.code == "query_failed"
    with pytest.raises(NotFound):
        service.checked(QueryAnswer(b"", Failure("not_found", "x")))
    said = QueryAnswer(b"", Failure("forbidden", "x"))
    assert service.checked(said) == said, "a worker does not choose the error of a server"
