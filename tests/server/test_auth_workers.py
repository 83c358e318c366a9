"""A worker of one namespace that lies: whatever it sends, it touches nothing of another one. And a worker whose key is revoked goes."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from perdure.core.access import NewKey, Role
from perdure.core.errors import PerdureError
from perdure.core.events import TaskOptions
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.core.retry import End
from perdure.core.work import Assignment, Beat, Decided, LogChunk, LogLine, Report
from perdure.programs.server_process import ServerProcess
from perdure.programs.settings import Address, ServerSettings
from perdure.server.grpc import server as grpc_server
from perdure.server.grpc.connected_workers import ConnectedWorkers
from perdure.server.grpc.connection import Connection
from perdure.server.grpc.hub import WorkerHub
from perdure.wire import protocol
from perdure.wire.protocol import Hello, Token, Up
from tests.fakes.upstreams import upstream_to
from tests.fakes.waiting import holds, turns

VICTIM, LIAR = 1, 2
RUN = bytes(range(16))


def hello(tasks: list[tuple[str, str]], running: list[Token] | None = None) -> Hello:
    return Hello(secrets.token_bytes(16), "worker", "host", 1, "test", 10, tasks, {}, running or [])


def report(value: bytes) -> Report:
    return Report(RUN, 1, 1, End.SUCCESS, value, None, 1, 2)


class Flights:
    """Attempts in flight."""

    def __init__(self) -> None:
        self.flights: dict[tuple[bytes, int], Any] = {}

    def get(self, run_id: bytes, seq: int) -> Any:
        return self.flights.get((run_id, seq))

    def unplaced(self, placed: Any) -> set[Any]:
        return set()


class Served:
    def serve(self) -> None: ...


class Engine:
    """As much of one as a hub needs; `presented` is opened by the test."""

    name = "engine"

    def __init__(self, heard: Heard) -> None:
        self.attempts = Flights()
        self.upstream = upstream_to(
            clock_us=lambda: 1,
            reported=heard.reports.extend,
            decided=heard.decisions.extend,
            beats=heard.beats.extend,
            logged=heard.logs.extend,
        )
        self.presented = asyncio.Event()
        self.served = Served()

    async def present(self, ns: int, tokens: list[Token]) -> list[Token]:
        await self.presented.wait()
        return []

    def workers_changed(self) -> None: ...


@dataclass
class Heard:
    reports: list[Report] = field(default_factory=list)
    decisions: list[Decided] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    logs: list[LogChunk] = field(default_factory=list)


@pytest.fixture
def engine(heard: Heard) -> Engine:
    return Engine(heard)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def hub(engine: Engine) -> WorkerHub:
    workers = ConnectedWorkers()
    workers.open(engine.upstream)
    return WorkerHub(engine, workers)  # type: ignore[arg-type]


def give_task(hub: WorkerHub, engine: Engine) -> Connection:
    """The victim's worker gets the task whose token the liar knows."""
    victim = hub.join(hello([("default", "t")]), VICTIM, "victim")
    a = Assignment(RUN, 1, 1, 1, "t", b"[]", TaskOptions(), VICTIM, "", "default")
    hub._workers.assign([a])
    engine.attempts.flights[RUN, 1] = SimpleNamespace(assignment=a)
    return victim


def lies() -> Up:
    return Up(
        reports=[report(b'"forged"')],
        decisions=[(0, Decided(RUN, []), False), (1, Decided(RUN, []), False)],
        beats=[Beat(RUN, 1, 1)],
        logs=[
            LogChunk(RUN, 1, 1, 0, [LogLine(1, "stdout", "", "forged")]),
            LogChunk(RUN, -1, 1, 0, [LogLine(1, "stdout", "", "forged")]),
        ],
    )


async def test_reports_about_the_tasks_of_others_are_refused(hub: WorkerHub, engine: Engine, heard: Heard) -> None:
    victim = give_task(hub, engine)
    liar = hub.join(hello([("default", "t")]), LIAR, "liar")
    hub.messages.received(liar, lies())
    await turns(10)
    assert heard == Heard()
    assert hub.messages.refused >= 5
    hub.messages.received(victim, Up(reports=[report(b'"true"')]))
    assert [r.value for r in heard.reports] == [b'"true"']


async def test_beats_about_the_attempt_of_another_namespace_keep_nothing_alive(
    hub: WorkerHub, engine: Engine, heard: Heard
) -> None:
    """The liar brought the token along before anybody had the attempt, so that it counts as running it until that has been checked."""
    liar = hub.join(hello([("default", "t")], [(RUN, 1, 1)]), LIAR, "liar")
    give_task(hub, engine)
    hub.messages.received(liar, Up(beats=[Beat(RUN, 1, 1)]))
    assert heard.beats == []
    assert hub.messages.refused == 1


async def test_an_attempt_is_reported_by_the_worker_that_has_it_now(
    hub: WorkerHub, engine: Engine, heard: Heard
) -> None:
    """Another one of the same namespace brought its token along, and it was assigned anew since."""
    engine.presented.set()
    earlier = hub.join(hello([("default", "other")], [(RUN, 1, 1)]), VICTIM, "victim")
    await turns(10)
    now = give_task(hub, engine)
    hub.messages.received(earlier, Up(reports=[report(b'"late"')]))
    assert heard.reports == []
    hub.messages.received(now, Up(reports=[report(b'"true"')]))
    assert [r.value for r in heard.reports] == [b'"true"']


async def test_a_decision_about_an_earlier_activation_is_refused(hub: WorkerHub, heard: Heard) -> None:
    c = hub.join(hello([("default", "t")]), VICTIM, "victim")
    hub._code._holder[RUN] = (c, 5)
    hub.messages.received(c, Up(decisions=[(4, Decided(RUN, []), False)]))
    assert (heard.decisions, hub.messages.refused) == ([], 1)
    hub.messages.received(c, Up(decisions=[(5, Decided(RUN, []), False)]))
    assert len(heard.decisions) == 1


async def test_a_result_over_the_limit_fails_its_task(hub: WorkerHub, engine: Engine, heard: Heard) -> None:
    c = give_task(hub, engine)
    hub.messages.received(c, Up(reports=[report(b"x" * (PAYLOAD_BYTES_MAX + 1))]))
    (found,) = heard.reports
    assert (found.end, found.value) == (End.FINAL_ERROR, b"")
    assert found.failure is not None


async def test_what_never_reached_a_worker_that_reconnects_goes_back_unstarted(
    hub: WorkerHub, engine: Engine, heard: Heard
) -> None:
    """At once, and as returned: an attempt that counted as lost would fail a task that may run only once."""
    first = hello([("default", "t")])
    hub.join(first, VICTIM, "victim")
    for seq in (1, 2):
        hub._workers.assign(
            [Assignment(RUN, seq, 1, 1, "t", b"[]", TaskOptions(at_most_once=True), VICTIM, "", "default")]
        )
    again = Hello(first.worker_id, "worker", "host", 1, "test", 10, [("default", "t")], {}, [(RUN, 1, 1)])
    hub.join(again, VICTIM, "victim")
    await turns(10)
    assert [(r.seq, r.attempt, r.end) for r in heard.reports] == [(2, 1, End.RETURNED)]


@pytest.mark.parametrize("first", ["liar", "victim"])
async def test_a_token_of_another_namespace_brought_along_opens_nothing(
    hub: WorkerHub, engine: Engine, heard: Heard, first: str
) -> None:
    """The liar says that it is running the victim's task, and reports its end before anybody could check that."""
    victim = give_task(hub, engine) if first == "victim" else None
    liar = hub.join(hello([("default", "t")], [(RUN, 1, 1)]), LIAR, "liar")
    hub.messages.received(liar, lies())
    if victim is None:
        heard.beats.clear()  # nothing was under way that they could have kept alive
        victim = give_task(hub, engine)
    hub.messages.received(liar, lies())
    engine.presented.set()
    await turns(10)
    hub.messages.received(liar, lies())
    await turns(10)
    assert [r for r in heard.reports if r.value == b'"forged"'] == []
    assert heard.decisions == []
    assert heard.beats == []
    assert all(chunk.ns == LIAR for chunk in heard.logs), (
        "what it writes is in its own namespace, where nobody finds it"
    )
    hub.messages.received(victim, Up(reports=[report(b'"true"')]))
    assert [r.value for r in heard.reports] == [b'"true"']


async def test_a_worker_cannot_take_the_place_of_one_in_another_namespace(hub: WorkerHub, engine: Engine) -> None:
    victim = give_task(hub, engine)
    stolen = hello([("default", "t")])
    stolen.worker_id = victim.id
    with pytest.raises(PerdureError):
        hub.join(stolen, LIAR, "liar")
    assert hub.find(victim.id) is victim


async def test_a_worker_whose_key_is_revoked_is_cut_off(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "RECHECK_S", 0.1)
    process = ServerProcess(
        ServerSettings(dsn=dsn, http=Address("127.0.0.1", 0), grpc=Address("127.0.0.1", 0), drain_s=5.0)
    )
    await process.start()
    try:
        view, key = await process.server.api.ports.keys.create(NewKey(name="w", role=Role.WORKER, created_by="test"))
        async with grpc.aio.insecure_channel(str(process.grpc)) as channel:
            stream: Any = channel.stream_stream("/perdure.v1.Workers/Connect")(
                metadata=[("authorization", f"Bearer {key}")]
            )
            await stream.write(protocol.encode_up(Up(hello=hello([("default", "t")]))))
            assert protocol.decode_down(await stream.read()).welcome is not None
            await holds(lambda: not stream.done(), 0.3)
            await process.server.api.ports.keys.revoke(view.id, None)
            async with asyncio.timeout(5):
                assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        await process.stop()
