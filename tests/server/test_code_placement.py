"""Which worker holds the code of which run: placed, parked while its worker may come back, moved when it leaves or drains."""

from __future__ import annotations

import secrets

from perdure.core.work import Activation, Decided, ServedCode
from perdure.server.grpc.code_placement import CodePlacement
from perdure.server.grpc.connection import Connection
from perdure.server.grpc.pools import WorkerPools
from perdure.wire.protocol import Hello

NS = 1
RUN = bytes(16)


def connection(version: str = "1") -> Connection:
    served = {"w": ServedCode(version=version)}
    return Connection(Hello(secrets.token_bytes(16), "worker", "host", 1, "test", 10, [], served, []), NS, "ns", 0)


def replay(run_id: bytes = RUN, version: str = "1") -> Activation:
    return Activation(run_id, "w", [], True, NS, version)


def codes(decided: list[Decided]) -> list[str]:
    return [d.stuck.code for d in decided if d.stuck is not None]


async def test_a_run_stays_with_the_worker_that_holds_its_code() -> None:
    pools, workers = WorkerPools(), [connection(), connection()]
    assert [pools.add(c) for c in workers] == [True, False]
    code = CodePlacement(pools)
    assert code.activate([replay()]) == []
    (home,) = [c for c in workers if c.held == {RUN}]
    for number in (1, 2, 3):
        assert code.take(home, [(number, Decided(RUN, []), False)]) == ([Decided(RUN, [])], 0)
        assert code.activate([Activation(RUN, "w", [], False, NS, "1")]) == []
    assert code.holds(home, RUN)


async def test_an_activation_waits_for_a_worker_that_may_come_back() -> None:
    pools, away, back = WorkerPools(), connection(), connection()
    code = CodePlacement(pools)
    assert codes(code.activate([replay()])) == ["no_worker"]
    pools.add(away)
    away.is_open = False
    assert code.activate([replay()]) == [] and not away.held
    pools.add(back)
    assert code.unpark() == [] and back.held == {RUN}


async def test_nothing_waits_for_workers_of_a_server_that_is_leaving() -> None:
    pools, away = WorkerPools(), connection()
    code = CodePlacement(pools)
    pools.add(away)
    away.is_open = False
    code.activate([replay()])
    code.stop_parking()
    assert codes(code.unpark()) == ["no_worker"]


async def test_runs_of_a_worker_that_left_are_read_again_elsewhere() -> None:
    pools, c = WorkerPools(), connection()
    pools.add(c)
    code = CodePlacement(pools)
    idle = bytes([2] * 16)
    code.activate([replay(), replay(idle)])
    code.take(c, [(2, Decided(idle, []), False)])
    lost = code.release(c)
    assert dict(zip((d.run_id for d in lost), codes(lost), strict=True)) == {RUN: "worker_lost", idle: "cache_miss"}, (
        "one was lost while its code ran"
    )
    assert not code.holds(c, RUN) and code.release(c) == []
    assert code.take(c, [(1, Decided(RUN, []), False)]) == ([], 1), "its last answer came too late"


async def test_a_draining_worker_hands_over_idle_runs_only() -> None:
    pools, c, other = WorkerPools(), connection(), bytes([1] * 16)
    pools.add(c)
    code = CodePlacement(pools)
    code.activate([replay(), replay(other)])
    code.take(c, [(1, Decided(RUN, []), False)])
    assert [d.run_id for d in code.hand_over(c)] == [RUN]
    assert code.holds(c, other) and not code.holds(c, RUN)


async def test_a_run_is_given_to_a_worker_of_its_version_and_to_no_other() -> None:
    pools, old, new = WorkerPools(), connection("1"), connection("2")
    code = CodePlacement(pools)
    pools.add(old)
    pools.add(new)
    runs = [secrets.token_bytes(16) for _ in range(50)]
    assert code.activate([replay(run_id, "12"[n % 2]) for n, run_id in enumerate(runs)]) == []
    assert (old.held, new.held) == (set(runs[::2]), set(runs[1::2]))
    assert codes(code.activate([replay(RUN, "3")])) == ["no_worker"]


async def test_versions_of_workers_that_leave_are_not_offered_to_runs() -> None:
    pools, old, new = WorkerPools(), connection("1"), connection("2")
    pools.add(old)
    pools.add(new)
    assert set(pools.code) == {(NS, "w", "1"), (NS, "w", "2")}
    old.draining = True
    assert set(pools.code) == {(NS, "w", "2")}
