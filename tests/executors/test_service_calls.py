"""Calls of services: what is sent, how it ends, which instance is next, secrets, and the end that comes later."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from perdure.core.api import services as acts
from perdure.core.api.services import JobNames
from perdure.core.errors import Conflict, NotFound
from perdure.core.retry import End
from perdure.engine.api.services import receive_callback
from perdure.executors.service.balance import AWAY_S, Balancer, CallTarget
from tests.executors.agents import assignment, same
from tests.executors.service_agent import PUBLIC, ServiceAgent, service_agent
from tests.fakes.waiting import busy, until
from tests.sdk.test_builtin_tasks import Answer, web

JSON = {"content-type": "application/json"}
HERE = "127.0.0.0/8"


def answers(*values: Any) -> Callable[..., Answer]:
    """One after the other; the last one stays. A number is a status."""
    left = list(values)

    def answer(*_: Any) -> Answer:
        value = left.pop(0) if len(left) > 1 else left[0]
        return (value, JSON, b"{}") if isinstance(value, int) else (200, JSON, json.dumps(value).encode())

    return answer


def ok(value: Any) -> dict[str, Any]:
    return {"result": value, "error": ""}


async def test_what_is_sent(dsn: str) -> None:
    async with web(answers(ok(1))) as w, service_agent(dsn, allow=HERE) as agent:
        await agent.register(w.url, "up per")
        a = assignment("service", {"service": "up per", "input": [1], "params": {"op": "x"}, "headers": {"X-A": 3}})
        report = await agent.report(a)
        assert json.loads(report.value) == 1
        method, path, headers, body = w.asked[0]
        assert (method, path, json.loads(body)) == ("POST", "/exec/up%20per", {"input": [1], "params": {"op": "x"}})
        assert (headers["idempotency-key"], headers["x-a"], headers["x-perdure-attempt"]) == (a.job, "3", "1")
        assert headers["x-perdure-callback"].startswith(f"{PUBLIC}/callbacks/")
        await agent.call(url=f"{w.url}/any/path?q=1", input=2)
        assert w.asked[1][1] == "/any/path?q=1" and json.loads(w.asked[1][3]) == {"input": 2, "params": {}}


@pytest.mark.parametrize(
    ("answer", "end", "type", "calls"),
    [
        (200, End.ERROR, "ServiceFailed", 1),
        (404, End.FINAL_ERROR, "HttpStatus", 1),
        (500, End.ERROR, "HttpStatus", 3),
        (429, End.ERROR, "HttpStatus", 3),
        ({"result": None, "error": "it broke"}, End.ERROR, "ServiceFailed", 1),
        ("text", End.ERROR, "ServiceFailed", 1),
    ],
)
async def test_how_a_call_fails(dsn: str, answer: Any, end: End, type: str, calls: int) -> None:
    async with web(answers(answer)) as w, service_agent(dsn, allow=HERE) as agent:
        await agent.register(w.url, "s")
        report = await agent.call(service="s", max_attempts=3, attempt_delay_ms=1)
        assert (report.end, report.failure.type, len(w.asked)) == (end, type, calls), report
        if isinstance(answer, dict):
            assert "it broke" in report.failure.message


async def test_another_instance_is_called_after_a_failure(dsn: str) -> None:
    async with web(answers(503)) as bad, web(answers(ok("good"))) as good, service_agent(dsn, allow=HERE) as agent:
        await agent.register(bad.url, "s")
        await agent.register(good.url, "s")
        await agent.register("http://127.0.0.1:1", "s")
        for n in range(6):
            assert json.loads((await agent.call(n, service="s", max_attempts=3, attempt_delay_ms=1)).value) == "good"
        assert len(good.asked) == 6


async def test_one_call_is_made_where_a_repetition_is_not_allowed(dsn: str) -> None:
    async with web(answers(503)) as w, service_agent(dsn, allow=HERE) as agent:
        await agent.register(w.url, "s")
        a = assignment("service", {"service": "s", "max_attempts": 5, "attempt_delay_ms": 1}, at_most_once=True)
        assert (await agent.report(a)).end is End.ERROR
        assert len(w.asked) == 1


async def test_a_call_waits_for_an_instance_and_not_for_ever(dsn: str) -> None:
    async with web(answers(ok(5))) as w, service_agent(dsn, allow=HERE, wait_s=60.0) as agent:
        a = agent.begin(assignment("service", {"service": "late"}))
        await agent.running(a)
        await agent.register(w.url, "late")
        assert json.loads((await agent.end(a)).value) == 5
    async with service_agent(dsn, allow=HERE, wait_s=0.2) as agent:
        report = await agent.call(service="never")
        assert report.end is End.ERROR and report.failure.type == "ServiceUnavailable"
        assert "no instance of the service 'never' was online" in report.failure.message


async def test_calls_beyond_the_limit_wait_for_a_place(dsn: str) -> None:
    under_way, most = 0, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal under_way, most
        await reader.readuntil(b"\r\n\r\n")
        under_way += 1
        most = max(most, under_way)
        await busy(0.05)
        under_way -= 1
        data = json.dumps(ok(1)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(data), data))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, service_agent(dsn, allow=HERE, calls_max=2) as agent:
        await agent.register(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "s")
        jobs = [agent.begin(assignment("service", {"service": "s"}, seq=n)) for n in range(8)]
        assert [json.loads((await agent.end(a)).value) for a in jobs] == [1] * 8
        assert most <= 2


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, "neither service and url"),
        ({"service": "s", "url": "http://x"}, "both service and url"),
        ({"service": "s", "nope": 1}, "unknown field"),
        ({"service": "s", "max_attempts": 0}, "max_attempts"),
        ({"service": "s", "attempt_delay_ms": -1}, "attempt_delay_ms"),
        ({"service": "s", "timeout": "soon"}, "duration"),
        ({"service": "a\nb"}, "invalid service name"),
        ({"url": "http://x", "auth": {"bearer_env": "NOT_ALLOWED"}}, "--executor-option service.secrets=NOT_ALLOWED"),
        ({"url": "http://x", "auth": {"bearer_env": "PERDURE_API_KEY"}}, "belongs to Perdure"),
        ({"service": "s", "auth": {"bearer_env": "TOKEN"}}, "to which no secret is sent"),
    ],
)
async def test_what_can_never_be_called(dsn: str, spec: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hush-hush")
    async with service_agent(dsn, allow=HERE, secrets="TOKEN") as agent:
        report = await agent.call(**spec)
        assert report.end is End.FINAL_ERROR and why in report.failure.message, report


async def test_a_secret_is_sent_and_stands_nowhere_else(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hush-hush")

    def echo(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        seen = {"auth": headers.get("authorization"), "key": headers.get("x-key")}
        said = ok(seen) if path == "/good" else {"result": None, "error": f"bad token {seen['key']}"}
        return 200, JSON, json.dumps(said).encode()

    async with web(echo) as w, service_agent(dsn, allow=HERE, secrets="TOKEN") as agent:
        auth = {"bearer_env": "TOKEN", "headers_env": {"X-Key": "TOKEN"}}
        report = await agent.call(url=f"{w.url}/good", auth=auth)
        assert json.loads(report.value) == {"auth": "Bearer ***", "key": "***"}
        assert w.asked[0][2]["authorization"] == "Bearer hush-hush"
        report = await agent.call(2, url=f"{w.url}/bad", auth=auth)
        assert "bad token ***" in report.failure.message
        refused = await agent.call(3, url="http://169.254.169.254/", auth=auth)
        assert "hush-hush" not in str((report, refused, agent.lines(), agent.lines("log")))


# -- the end comes later -------------------------------------------------------------------------------------------------


def accepting(*_: Any) -> Answer:
    return 202, JSON, b'{"accepted": true}'


def _token(w: Any) -> str:
    return str(w.asked[-1][2]["x-perdure-callback"]).rpartition("/")[2]


async def _accepted(agent: ServiceAgent, w: Any, job: str) -> str:
    """The token of a job, once the server has recorded that it was accepted."""

    async def recorded() -> bool:
        return await agent.perdure.api.ports.services.callback(agent.perdure.engine.ns, job) is not None

    await until(recorded)
    return _token(w)


async def test_an_accepted_job_ends_by_its_callback(dsn: str) -> None:
    async with web(accepting) as w, service_agent(dsn, allow=HERE) as agent:
        await agent.register(w.url, "s")
        a = agent.begin(assignment("service", {"service": "s"}))
        api, token = agent.perdure.api, await _accepted(agent, w, a.job)
        assert agent.worker.slots_free == agent.worker.slots
        assert await receive_callback(api, token, b'{"n":1}', "") is True
        assert await receive_callback(api, token, b'{"n":2}', "") is False, "a repetition has no effect"
        assert json.loads((await agent.end(a)).value) == {"n": 1}
        agent.worker.acknowledged(agent.reports)

        async def closed() -> bool:
            found = await api.ports.services.callback(agent.perdure.engine.ns, a.job)
            return found is not None and found[0] == "closed"

        await until(closed)
        with pytest.raises(Conflict, match="has ended without this report"):
            await receive_callback(api, token, b"3", "")


async def test_an_error_by_callback_fails_the_attempt(dsn: str) -> None:
    async with web(accepting) as w, service_agent(dsn, allow=HERE) as agent:
        await agent.register(w.url, "s")
        a = agent.begin(assignment("service", {"service": "s"}))
        await receive_callback(agent.perdure.api, await _accepted(agent, w, a.job), b"null", "no paper")
        report = await agent.end(a)
        assert report.end is End.ERROR and "no paper" in report.failure.message


async def test_an_accepted_job_survives_its_worker_and_is_not_called_again(dsn: str) -> None:
    async with web(accepting) as w, service_agent(dsn, allow=HERE) as first:
        await first.register(w.url, "s")
        a = first.begin(assignment("service", {"service": "s"}))
        token = await _accepted(first, w, a.job)
        async with ServiceAgent(first.perdure, allow=HERE) as second:
            second.begin(same(a, epoch=2))
            await second.running(a)
            await receive_callback(first.perdure.api, token, b"7", "")
            assert json.loads((await second.end(a)).value) == 7
        async with ServiceAgent(first.perdure, allow=HERE) as third:
            assert json.loads((await third.report(same(a, epoch=3))).value) == 7, "its end is recorded"
        assert len(w.asked) == 1


async def test_a_callback_may_come_before_the_answer(dsn: str) -> None:
    async with service_agent(dsn, allow=HERE) as agent:
        reported: list[asyncio.Task[bool]] = []

        def early(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
            token = headers["x-perdure-callback"].rpartition("/")[2]
            reported.append(asyncio.ensure_future(receive_callback(agent.perdure.api, token, b"8", "")))
            return accepting()

        async with web(early) as w:
            await agent.register(w.url, "s")
            assert json.loads((await agent.call(service="s")).value) == 8
            assert await reported[0] is True


async def test_a_token_that_was_changed_names_no_job(dsn: str) -> None:
    async with web(accepting) as w, service_agent(dsn, allow=HERE) as agent:
        await agent.register(w.url, "s")
        a = agent.begin(assignment("service", {"service": "s"}))
        token = await _accepted(agent, w, a.job)
        for wrong in ("", "x", token[:-1], f"{token}A", token[:10] + "A" + token[11:], "ü"):
            with pytest.raises(NotFound):
                await receive_callback(agent.perdure.api, wrong, b"1", "")
        assert (await agent.perdure._backend.call(acts.CALL_ENDS, JobNames([a.job]))).ends == []


async def test_a_cancelled_job_takes_no_report(dsn: str) -> None:
    async with web(accepting) as w, service_agent(dsn, allow=HERE) as agent:
        await agent.register(w.url, "s")
        a = agent.begin(assignment("service", {"service": "s"}))
        token = await _accepted(agent, w, a.job)
        await agent.running(a)
        agent.cancel(a)
        assert (await agent.end(a)).end is End.CANCELLED
        agent.worker.acknowledged(agent.reports)

        async def refused() -> bool:
            try:
                await receive_callback(agent.perdure.api, token, b"1", "")
            except Conflict:
                return True
            return False

        await until(refused)


async def test_an_accepted_job_that_never_ends_times_out(dsn: str) -> None:
    async with web(accepting) as w, service_agent(dsn, allow=HERE) as agent:
        await agent.register(w.url, "s")
        a = agent.begin(assignment("service", {"service": "s"}, timeout_us=500_000))
        report = await agent.end(a)
        assert report.end is End.ERROR and report.failure is not None and report.failure.code == "task_timeout"


async def test_a_worker_that_leaves_waits_for_a_call_and_gives_back_an_accepted_job(dsn: str) -> None:
    answered = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await answered.wait()
        data = json.dumps(ok(1)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(data), data))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    async with server, web(accepting) as w, service_agent(dsn, allow=HERE) as agent:
        await agent.register(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "slow")
        await agent.register(w.url, "later")
        later = agent.begin(assignment("service", {"service": "later"}))
        await _accepted(agent, w, later.job)
        await agent.running(later)
        call = agent.begin(assignment("service", {"service": "slow"}, seq=2))
        await agent.running(call)
        draining = asyncio.create_task(agent.worker.drain(60))
        assert (await agent.end(later)).end is End.RETURNED
        assert not draining.done()
        answered.set()
        assert (await agent.end(call)).end is End.SUCCESS
        await draining


# -- the choice of an instance -------------------------------------------------------------------------------------------


def _spread(targets: list[CallTarget], n: int, *, is_weighted: bool) -> dict[str, int]:
    balancer, made = Balancer(), dict.fromkeys([t.url for t in targets], 0)
    for _ in range(n):
        chosen = balancer.choose("s", targets, (), 0.0, is_weighted=is_weighted)
        assert chosen is not None
        made[chosen.url] += 1
    return made


def test_instances_take_turns() -> None:
    assert _spread([CallTarget("a", 9), CallTarget("b"), CallTarget("c")], 30, is_weighted=False) == {
        "a": 10,
        "b": 10,
        "c": 10,
    }


def test_the_spread_follows_the_weights() -> None:
    targets = [CallTarget("a", 0), CallTarget("b", 1), CallTarget("c", 3)]
    made = _spread(targets, 700, is_weighted=True)
    assert all(abs(made[url] - wanted) <= 1 for url, wanted in (("a", 400), ("b", 200), ("c", 100))), made


def test_calls_under_way_count_as_load() -> None:
    """A burst does not go to the one instance that reported the least load."""
    balancer, targets = Balancer(), [CallTarget("a", 0), CallTarget("b", 2)]
    made = {"a": 0, "b": 0}
    for _ in range(60):
        chosen = balancer.choose("s", targets, (), 0.0, is_weighted=True)
        assert chosen is not None
        balancer.began(chosen.url)
        made[chosen.url] += 1
    assert 25 <= made["b"] <= 35, made


def test_an_instance_that_was_away_comes_last_for_a_while() -> None:
    balancer, targets = Balancer(), [CallTarget("a"), CallTarget("b")]
    balancer.is_away("a", 100.0)

    def chosen(tried: tuple[str, ...], now: float) -> set[str]:
        found = [balancer.choose("s", targets, tried, now, is_weighted=False) for _ in range(4)]
        return {t.url for t in found if t is not None}

    assert chosen((), 101.0) == {"b"}
    assert chosen(("b",), 101.0) == {"a"}
    assert chosen(("a", "b"), 101.0) == {"b"}
    assert chosen((), 101.0 + AWAY_S) == {"a", "b"}
    assert balancer.choose("s", [], (), 0.0, is_weighted=False) is None
