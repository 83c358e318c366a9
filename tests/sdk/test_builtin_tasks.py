"""The built-in tasks: requests and commands, as attempts of a worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import Task, task
from perdure.core.jobs import executor_of, job_name
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.core.retry import End, TaskOptions
from perdure.core.work import Assignment, LogChunk, Report
from perdure.errors import InvalidInput
from perdure.executors.http import exchange
from perdure.executors.http.services import parse_services
from perdure.executors.port import Executor
from perdure.executors.process import ProcessExecutor
from perdure.sdk.worker.builtin_tasks import VERBS_OF_ENVIRONMENT, VerbOptions, Verbs
from perdure.sdk.worker.worker import Worker
from tests.fakes.upstreams import upstream_to
from tests.fakes.waiting import until

RUN = bytes(16)


class Bench:
    """A worker without an engine."""

    def __init__(self, *executors: Executor, **options: Any) -> None:
        self.worker = Worker(output="capture", verbs=VerbOptions(**options), executors=executors)
        self.reports: list[Report] = []
        self.chunks: list[LogChunk] = []
        self._seq = 0

    async def __aenter__(self) -> Bench:
        self.worker.open(upstream_to(clock_us=lambda: 1, reported=self.reports.extend, logged=self.chunks.extend))
        await self.worker.connect_executors()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.worker.close()

    def begin(self, name: str, **call: Any) -> int:
        self._seq += 1
        self.assign(name, json.dumps(call).encode(), self._seq)
        return self._seq

    def assign(self, name: str, data: bytes, seq: int) -> None:
        executor = executor_of(name)
        job = job_name(RUN, seq, 1) if executor else ""
        options = TaskOptions(executor=executor)
        self.worker.assign([Assignment(RUN, seq, 1, 1, name, data, options, job=job)])

    async def end(self, seq: int) -> Report:
        found = await until(lambda: [r for r in self.reports if r.seq == seq])
        return found[0]

    async def report(self, name: str, **call: Any) -> Report:
        return await self.end(self.begin(name, **call))

    async def value(self, name: str, **call: Any) -> Any:
        report = await self.report(name, **call)
        assert report.end is End.SUCCESS, report.failure
        return json.loads(report.value)

    def lines(self, stream: str) -> list[str]:
        return [line.text for chunk in self.chunks for line in chunk.lines if line.stream == stream]


Answer = tuple[int, dict[str, str], bytes]


class Web:
    """Answers with whatever `answer` makes of (method, path, headers, body)."""

    def __init__(self, answer: Callable[[str, str, dict[str, str], bytes], Answer]) -> None:
        self._answer = answer
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.asked.append((method, path, headers, body))
            status, out, data = self._answer(method, path, headers, body)
            lines = [f"{k}: {v}" for k, v in {**out, "content-length": str(len(data)), "connection": "close"}.items()]
            writer.write("\r\n".join([f"HTTP/1.1 {status} Said", *lines, "", ""]).encode() + data)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def web(answer: Callable[[str, str, dict[str, str], bytes], Answer]) -> AsyncIterator[Web]:
    made = Web(answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


def echo(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
    said = {
        "method": method,
        "path": path,
        "type": headers.get("content-type"),
        "x": headers.get("x-a"),
        "body": body.decode(),
    }
    return 200, {"content-type": "application/json; charset=utf-8", "set-cookie": "a=b"}, json.dumps(said).encode()


@pytest.fixture(autouse=True)
def reach_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_HTTP_ALLOW", "127.0.0.0/8")


# -- http ----------------------------------------------------------------------------------------------------------------


async def test_a_request_gives_status_headers_and_json() -> None:
    async with web(echo) as w, Bench() as b:
        got = await b.value("perdure.http", url=f"{w.url}/a?x=1", query={"y": [1, "z"], "n": None}, headers={"X-A": 7})
        assert got["status"] == 200 and got["headers"]["content-type"].startswith("application/json")
        assert got["body"] == {"method": "GET", "path": "/a?x=1&y=1&y=z", "type": None, "x": "7", "body": ""}


async def test_a_body_is_posted_as_json_and_text_as_text() -> None:
    async with web(echo) as w, Bench() as b:
        got = (await b.value("perdure.http", url=w.url, body={"a": [1]}))["body"]
        assert (got["method"], got["type"], got["body"]) == ("POST", "application/json", '{"a":[1]}')
        got = (await b.value("perdure.http", url=w.url, method="put", body="ä"))["body"]
        assert (got["method"], got["type"], got["body"]) == ("PUT", "text/plain; charset=utf-8", "ä")
        got = (await b.value("perdure.http", url=w.url, body="<a/>", headers={"Content-Type": "text/xml"}))["body"]
        assert got["type"] == "text/xml"


async def test_cookies_do_not_travel_from_one_call_to_the_next() -> None:
    async with web(echo) as w, Bench() as b:
        await b.value("perdure.http", url=w.url)
        await b.value("perdure.http", url=w.url)
        assert "cookie" not in w.asked[1][2]


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("text/plain", b"[1]", "[1]"),
        ("application/json", b"{broken", "{broken"),
        ("application/problem+json", b"[1]", [1]),
        ("application/json", b"", ""),
        ("", b"[1]", [1]),
        ("text/plain; charset=latin-1", b"\xe4", "ä"),
        ("text/plain", b"\xff", "\N{REPLACEMENT CHARACTER}"),
        ("application/json", b"[" * 20_000, "[" * 20_000),
    ],
)
async def test_what_is_no_json_is_text(kind: str, data: bytes, expected: object) -> None:
    headers = {"content-type": kind} if kind else {}
    async with web(lambda *_: (200, headers, data)) as w, Bench() as b:
        assert (await b.value("perdure.http", url=w.url))["body"] == expected


@pytest.mark.parametrize(
    ("status", "end"),
    [
        (400, End.FINAL_ERROR),
        (404, End.FINAL_ERROR),
        (408, End.ERROR),
        (429, End.ERROR),
        (500, End.ERROR),
        (503, End.ERROR),
    ],
)
async def test_an_error_status_fails_the_attempt_for_good_or_for_now(status: int, end: End) -> None:
    async with web(lambda *_: (status, {}, b"the reason" + b"!" * 100_000)) as w, Bench() as b:
        report = await b.report("perdure.http", url=f"{w.url}/p?token=secret")
        assert report.end is end and report.failure is not None
        assert report.failure.type == "HttpStatus"
        assert f"GET {w.url}/p: {status} Said\nthe reason!" in report.failure.message
        assert "secret" not in report.failure.message and len(report.failure.message) < 3_000


async def test_an_answer_that_no_result_can_hold_is_refused_by_name() -> None:
    async with web(lambda *_: (200, {}, b"x" * (PAYLOAD_BYTES_MAX + 1))) as w, Bench() as b:
        report = await b.report("perdure.http", url=w.url)
        assert report.end is End.FINAL_ERROR and report.failure is not None
        assert report.failure.type == "PayloadTooLarge" and "PAYLOAD_BYTES_MAX" in report.failure.message


async def test_redirects_are_followed_where_the_call_was_sent_and_not_elsewhere() -> None:
    async with web(echo) as other, Bench() as b:

        def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
            to = {"/near": "/there", "/far": f"{other.url}/there", "/loop": "/loop"}.get(path)
            return (302, {"location": to}, b"") if to else (200, {}, path.encode())

        async with web(answer) as w:
            assert (await b.value("perdure.http", url=f"{w.url}/near"))["body"] == "/there"
            far = await b.value("perdure.http", url=f"{w.url}/far")
            assert far["status"] == 302 and far["headers"]["location"] == f"{other.url}/there"
            assert other.asked == []
            loop = await b.report("perdure.http", url=f"{w.url}/loop")
            assert loop.failure is not None and "REDIRECTS_MAX" in loop.failure.message
            assert len([1 for asked in w.asked if asked[1] == "/loop"]) == exchange.REDIRECTS_MAX + 1


async def test_no_connection_and_no_answer_in_time_are_worth_another_attempt() -> None:
    async with Bench() as b:
        report = await b.report("perdure.http", url="http://127.0.0.1:1/x")
        assert report.end is End.ERROR and report.failure is not None
        assert report.failure.type == "HttpFailed" and "GET http://127.0.0.1:1/x" in report.failure.message
        gone = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            gone.set()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        report = await b.report("perdure.http", url=f"http://127.0.0.1:{port}", timeout="50ms")
        assert report.end is End.ERROR and report.failure is not None
        assert "no whole answer within 0.05 s" in report.failure.message
        async with asyncio.timeout(5):
            await gone.wait()  # the connection is not kept
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({}, "neither url and service"),
        ({"url": "http://a", "service": "a"}, "both url and service"),
        ({"url": "file:///etc/passwd"}, "http:// or https://"),
        ({"url": "ftp://a"}, "http:// or https://"),
        ({"url": "nothing"}, "http:// or https://"),
        ({"url": "http://a:b"}, "no request that can be sent"),
        ({"url": "http://127.0.0.1:1", "headers": {"a": "b\r\nc: d"}}, "cannot be a part of a request"),
        ({"url": "http://127.0.0.1:1", "headers": {"a": {}}}, "is a dict"),
        ({"url": "http://127.0.0.1:1", "method": "GE T"}, "cannot be a part of a request"),
        ({"url": "http://127.0.0.1:1", "timeout": "soon"}, "not a duration"),
        ({"service": "trnsform"}, "did you mean 'transform'"),
        ({"service": "transform", "query": {}}, "drop method and query"),
        ({"url": 7}, "does not fit"),
        ({"uri": "http://a"}, "does not fit"),
    ],
)
async def test_a_call_that_can_never_work_is_final_and_says_why(call: dict[str, Any], said: str) -> None:
    async with Bench(services={"transform": "http://127.0.0.1:1"}) as b:
        report = await b.report("perdure.http", **call)
        assert report.end is End.FINAL_ERROR and report.failure is not None
        assert said in report.failure.message


async def test_a_service_is_called_by_its_name() -> None:
    def service(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        asked = json.loads(body)
        assert (method, path, asked["params"]) == ("POST", "/base/exec/transform", {})
        if asked["input"] == "bad":
            return 200, {}, b'{"result":null,"error":"out of order"}'
        if asked["input"] == "odd":
            return 200, {}, b"[1]"
        return 200, {}, json.dumps({"result": asked["input"].upper(), "error": ""}).encode()

    async with web(service) as w, Bench(services={"transform": f"{w.url}/base/"}) as b:
        assert await b.value("perdure.http", service="transform", body="abc") == "ABC"
        for body, said in (("bad", "failed: out of order"), ("odd", "did not answer with {result, error}")):
            report = await b.report("perdure.http", service="transform", body=body)
            assert report.end is End.ERROR and report.failure is not None
            assert report.failure.type == "ServiceFailed" and said in report.failure.message


def test_services_are_read_from_text() -> None:
    assert parse_services(["a=http://h:1/", " b = https://x ", ""]) == {"a": "http://h:1", "b": "https://x"}
    for bad in ("a", "a=", "=http://h", "a=ftp://h", "a=http://", "a=http://h?q=1", "a=http://[::1"):
        with pytest.raises(InvalidInput):
            parse_services([bad])


def test_the_environment_says_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SERVICES", "a=http://h:1,b=http://h:2")
    assert Verbs(VerbOptions())._http._services == {"a": "http://h:1", "b": "http://h:2"}
    assert Verbs(VerbOptions(services={}))._http._services == {}
    assert list(Verbs(VerbOptions()).tasks) == ["perdure.http"]


# -- serving -------------------------------------------------------------------------------------------------------------


def test_every_queue_has_the_verbs_and_commands_only_where_they_are_allowed() -> None:
    def built_in(verbs: VerbOptions | None = VERBS_OF_ENVIRONMENT, *executors: Executor) -> list[tuple[str, str]]:
        return [
            (q, n)
            for _, q, n in Worker(queues=["a", "b"], verbs=verbs, executors=executors).served
            if n.startswith(("perdure.http", "perdure.run", "perdure.job."))  # tests of agents define other names
        ]

    assert built_in() == [(q, n) for q in "ab" for n in ("perdure.http", "perdure.job.service")]
    assert built_in(None, ProcessExecutor()) == [(q, n) for q in "ab" for n in ("perdure.job.process", "perdure.run")]
    assert built_in(None) == []


async def test_a_worker_that_may_not_run_commands_has_no_such_task() -> None:
    async with Bench() as b:
        report = await b.report("perdure.run", command=["true"])
        assert report.end is End.FINAL_ERROR and report.failure is not None
        assert report.failure.type == "NotRegistered"


def test_names_of_ours_are_not_for_others() -> None:
    with pytest.raises(InvalidInput, match="Perdure's own"):

        @task(name="perdure.mine")
        def mine() -> None: ...


def test_a_worker_tells_the_schemas_of_what_was_defined_and_of_nothing_else() -> None:
    def described(n: int) -> None:
        """Says so."""

    def unresolvable(n: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    worker = Worker()
    worker.adopt(Task(described, {"name": "verbs_described"}))
    worker.adopt(Task(unresolvable, {"name": "verbs_unresolvable"}))
    found = worker.definitions.signatures
    assert found["verbs_described"]["properties"] == {"n": {"type": "integer"}}
    assert found["verbs_described"]["description"] == "Says so."
    assert "verbs_unresolvable" not in found and "perdure.http" not in found
