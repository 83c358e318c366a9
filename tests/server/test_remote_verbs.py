"""Built-in tasks and the schemas of tasks, over the worker stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from perdure import Client, task, wf, workflow
from perdure.core.work import ServedCode
from perdure.errors import InvalidInput, TaskFailed
from perdure.server.grpc.hub import row_of
from perdure.wire import protocol
from perdure.wire.protocol import TASK_SCHEMAS_BYTES_MAX, Hello, Up, bounded_signatures
from tests.server.remote import server, worker


@task(name="verbs_twice")
async def twice(n: int) -> int:
    """Twice as much."""
    return 2 * n


@workflow(name="verbs_commands")
async def commands(text: str) -> Any:
    said = await wf.call("perdure.run", {"command": ["printf", "%s", text]})
    return said["stdout"], await twice(len(text))


@workflow(name="verbs_failing")
async def failing() -> str:
    try:
        await wf.call("perdure.run", {"command": "echo why >&2; exit 4"}, retry=1)
    except TaskFailed as error:
        return str(error)
    return "it did not fail"


@workflow(name="verbs_request")
async def request(url: str) -> Any:
    return (await wf.call("perdure.http", {"url": url, "body": {"n": 1}}))["body"]


async def test_a_remote_worker_runs_commands_where_it_may(dsn: str) -> None:
    async with server(dsn) as s, Client(s.address):
        async with worker(s.address):
            handle = await commands.start("ab")
            with pytest.raises(TimeoutError):  # nobody may: it waits
                await handle.result("500ms")
        async with worker(s.address, executors=["process"]):
            assert await handle.result("3m") == ["ab", 4]
            assert "exited with code 4\nwhy" in await failing.run()


async def test_a_remote_worker_sends_requests(dsn: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        )
        body = await reader.readexactly(size)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        async with server(dsn) as s, worker(s.address, http_allow=["127.0.0.1"]), Client(s.address):
            assert await request.run(f"http://127.0.0.1:{port}/") == {"n": 1}
    finally:
        listening.close()
        await listening.wait_closed()


async def test_a_server_hears_the_schemas_of_tasks_and_people_see_no_built_in_ones(dsn: str) -> None:
    async with server(dsn) as s:
        heard: list[tuple[int, Mapping[str, bytes]]] = []
        s.engine.events.task_signatures_received.subscribe(lambda ns, found: heard.append((ns, found)))
        async with worker(s.address, executors=["process"]):
            ((ns, signatures),) = heard
            schema = json.loads(signatures["verbs_twice"])
            assert schema["properties"] == {"n": {"type": "integer"}} and schema["description"] == "Twice as much."
            assert ns == s.engine.ns
            (connection,) = s.workers.connections()
            assert connection.hello.signatures == {}  # thousands of workers would say the same
            assert {"perdure.http", "perdure.run"} <= {name for _, name in connection.hello.tasks}
            shown = row_of(connection).tasks
            assert "verbs_twice" in shown and not {"perdure.http", "perdure.run"} & set(shown)


def _hello(**changed: Any) -> Hello:
    first = Hello(bytes(range(16)), "w", "h", 1, "other 1.0", 1, [("default", "verbs_twice")], {}, [])
    for name, value in changed.items():
        setattr(first, name, value)
    return first


@pytest.mark.parametrize(
    "signatures",
    [
        {},
        {"verbs_twice": b"{", "other": b"{}"},
        {"verbs_twice": b"[1]"},
        {"verbs_twice": b"[" * 100_000},
        {"verbs_twice": b'{"a":"' + b"x" * TASK_SCHEMAS_BYTES_MAX + b'"}'},
    ],
    ids=["none", "broken, and of a task it does not serve", "no object", "too deep", "too large"],
)
async def test_schemas_that_are_of_no_use_are_left_aside(dsn: str, signatures: dict[str, bytes]) -> None:
    async with server(dsn) as s:
        heard: list[Mapping[str, bytes]] = []
        s.engine.events.task_signatures_received.subscribe(lambda ns, found: heard.append(found))
        c = s.hub.join(_hello(signatures=signatures), s.engine.ns, "default")
        assert c.is_open and heard == []
        s.hub.left(c)


def test_schemas_travel_and_a_worker_without_them_is_as_welcome() -> None:
    for signatures in ({}, {"a": b"{}", "b": b'{"type":"object"}'}):
        back = protocol.decode_up(protocol.encode_up(Up(hello=_hello(signatures=signatures)))).hello
        assert back == _hello(signatures=signatures)


def test_schemas_that_do_not_fit_are_left_out() -> None:
    large = {"text": "x" * (TASK_SCHEMAS_BYTES_MAX - 100)}
    found = bounded_signatures({"b": large, "c": {"text": "y" * 200}, "a": {}, "d": {}})
    assert list(found) == ["a", "b", "d"]
    assert sum(map(len, found.values())) <= TASK_SCHEMAS_BYTES_MAX


async def test_code_cannot_pass_for_a_flow(dsn: str) -> None:
    with pytest.raises(InvalidInput, match="declarative flows"):
        workflow(version="flow-1")(failing.fn)
    async with server(dsn) as s:
        with pytest.raises(InvalidInput, match="is code"):
            s.hub.join(_hello(workflows={"w": ServedCode(version="flow-1")}), s.engine.ns, "default")
