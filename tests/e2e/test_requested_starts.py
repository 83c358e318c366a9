"""A run that a committed transaction has asked for is there for whoever names it, before an engine comes to its start by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from perdure import Perdure, Signal, State, Update, in_transaction, workflow
from perdure.engine.api import sql_starts
from perdure.errors import NotFound, Unavailable
from perdure.store.sql_requests import PostgresSqlRequests
from tests.fakes.waiting import until
from tests.server.rest_live import Live, live

more = Signal("asked_more", int)
seen = State("asked_seen", 0)
add = Update("asked_add", int, int)


@workflow(name="asked_sums")
async def sums(n: int = 1) -> int:
    async def plus(by: int) -> int:
        return n + by

    add.handle(plus)
    seen.set(n)
    return n + await more.next()


@sums.query
def total(n: int = 1) -> int:
    return seen.get() + n


take = PostgresSqlRequests.take


@pytest.fixture
async def app(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    """Engines that never come to the starts by themselves."""

    async def nothing(self: PostgresSqlRequests, limit: int) -> list[Any]:
        return []

    monkeypatch.setattr(PostgresSqlRequests, "take", nothing)
    async with live(dsn) as one:
        one.perdure.serve(sums)
        await one.perdure.engine.refresh()
        yield one


@pytest.fixture
async def connection(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def asked(connection: Any, n: int = 1, **options: Any) -> str:
    async with connection.transaction():
        return await in_transaction(connection).start(sums.options(key="k", **options), n)


async def runs(connection: Any) -> int:
    count: int = await connection.fetchval(
        "select (select count(*) from perdure.run_queue) + (select count(*) from perdure.run)"
    )
    return count


async def requests(connection: Any) -> list[Any]:
    rows: list[Any] = await connection.fetch("select tries, error from perdure.sql_request")
    return rows


Ask = Callable[[Live, str], Awaitable[Any]]


async def show(app: Live, run: str) -> Any:
    return (await app.perdure.get(run)).id


async def signal(app: Live, run: str) -> Any:
    return await app.perdure.signal(more, run, 1)


async def update(app: Live, run: str) -> Any:
    return await app.perdure.update(add, run, 4)


async def state(app: Live, run: str) -> Any:
    return await app.perdure.query(seen, run)


async def query(app: Live, run: str) -> Any:
    return await app.perdure.query(total, run)


async def rest_show(app: Live, run: str) -> Any:
    return (await app.get(f"/runs/{run}"))["id"]


async def rest_signal(app: Live, run: str) -> Any:
    await app.ask("POST", f"/runs/{run}/signals/asked_more", 202, json=1)
    return True


async def rest_update(app: Live, run: str) -> Any:
    return (await app.ask("POST", f"/runs/{run}/updates/asked_add", 200, json={"value": 4}))["value"]


async def rest_query(app: Live, run: str) -> Any:
    return (await app.ask("POST", f"/runs/{run}/queries/total", 200, json={}))["value"]


async def rest_result(app: Live, run: str) -> Any:
    return (await app.get(f"/runs/{run}/result", 202))["status"] in ("pending", "running")


async def rest_cancel(app: Live, run: str) -> Any:
    return (await app.ask("POST", f"/runs/{run}/cancel", 202))["key"]


ASKS: list[tuple[Ask, Any]] = [
    (show, ...),
    (signal, True),
    (update, 5),
    (state, ...),
    (query, ...),
    (rest_show, ...),
    (rest_signal, True),
    (rest_update, 5),
    (rest_query, ...),
    (rest_result, True),
    (rest_cancel, "k"),
]
"""What a caller may ask of a run, and the answer; `...`: any."""


@pytest.mark.parametrize("name", ["id", "key"])
@pytest.mark.parametrize(("ask", "answer"), ASKS, ids=lambda one: getattr(one, "__name__", ""))
async def test_a_run_is_there_as_soon_as_its_transaction_has_committed(
    app: Live, connection: Any, ask: Ask, answer: Any, name: str
) -> None:
    id = await asked(connection)
    found = await ask(app, id if name == "id" else "key:k")
    assert answer is ... or found == answer
    assert await requests(connection) == [] and await runs(connection) == 1
    handle = await app.perdure.get(id, workflow=sums)
    if "cancel" not in ask.__name__:
        if "signal" not in ask.__name__:
            await handle.signal(more, 1)
        assert await handle.result("60s") == 2


async def test_its_result_can_be_waited_for(app: Live, connection: Any) -> None:
    id = await asked(connection)
    waiting = asyncio.create_task(app.get(f"/runs/{id}/result", wait=60))
    await until(lambda: runs(connection))
    await app.perdure.signal(more, id, 2)
    assert (await waiting)["result"] == 3


async def test_callers_at_the_same_moment_start_one_run(app: Live, connection: Any, dsn: str) -> None:
    async with Perdure(dsn, tune_gc=False) as other:
        other.serve(sums)
        for n in range(5):
            async with connection.transaction():
                id = await in_transaction(connection).start(sums.options(key=f"race-{n}"), n)
            engines = (app.perdure, other)
            names = (id, f"key:race-{n}")
            got = await asyncio.gather(*(each.get(name) for _ in range(3) for each in engines for name in names))
            assert {handle.id for handle in got} == {id}
            history = (await app.get(f"/runs/{id}/history"))["items"]
            assert [each["type"] for each in history].count("RunStarted") == 1
    assert await runs(connection) == 5 and await requests(connection) == []


async def test_a_caller_waits_for_the_engine_that_carries_out_the_start(app: Live, connection: Any) -> None:
    id = await asked(connection)
    store = app.perdure.api.ports.sql_requests
    (claimed,) = await take(store, 10)  # type: ignore[arg-type]
    waiting = asyncio.create_task(app.perdure.get(id))
    done, _ = await asyncio.wait({waiting}, timeout=0.2)
    assert not done and await runs(connection) == 0
    await app.perdure.api.sql_starts.settle(claimed, app.perdure.api.sql_starts.carry_out)
    assert (await waiting).id == id
    assert await requests(connection) == []


async def test_a_start_whose_engine_died_is_carried_out_when_its_lease_is_over(app: Live, connection: Any) -> None:
    id = await asked(connection)
    await take(app.perdure.api.ports.sql_requests, 10)  # type: ignore[arg-type]
    waiting = asyncio.create_task(app.perdure.get(key="k"))
    done, _ = await asyncio.wait({waiting}, timeout=0.2)
    assert not done
    await connection.execute("update perdure.sql_request set due_at = perdure.clock()")
    assert (await waiting).id == id
    assert await requests(connection) == []


async def test_a_caller_does_not_wait_for_ever(app: Live, connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_starts, "BEGIN_WAIT_S", 0.2)
    id = await asked(connection)
    await take(app.perdure.api.ports.sql_requests, 10)  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match=f"run {id} hasn't begun yet: another engine is carrying out its start"):
        await app.perdure.get(id)
    assert await requests(connection) == [(1, None)]


@pytest.mark.parametrize("name", ["id", "key"])
async def test_a_start_that_fails_gives_its_reason(app: Live, connection: Any, name: str) -> None:
    id = await connection.fetchval("""select perdure.start('asked_sums', '{"wrong": 1}', 'k')""")
    run = str(id) if name == "id" else "key:k"
    for _ in range(2):
        with pytest.raises(NotFound, match=rf"run {id} was not started: .*wrong") as failed:
            await show(app, run)
        answer = await app.http.post(f"/runs/{run}/signals/asked_more", json=1)
        assert (answer.status_code, answer.json()["detail"]) == (404, str(failed.value))
    ((tries, error),) = await requests(connection)
    assert tries == 1 and "wrong" in error
    # The key is free: another start under it is carried out.
    assert await show(app, await asked(connection)) != str(id)
    assert (await app.perdure.get(key="k")).id != str(id)


async def test_a_start_of_a_workflow_that_is_gone_gives_its_reason(app: Live, connection: Any, dsn: str) -> None:
    await connection.execute(
        "insert into perdure.workflow (ns, name, kind, current) values (1, 'asked_gone', 'code', 'v')"
    )
    id = await connection.fetchval("select perdure.start('asked_gone')")
    await connection.execute("delete from perdure.workflow where name = 'asked_gone'")
    with pytest.raises(NotFound, match=rf"run {id} was not started: .*asked_gone"):
        await show(app, str(id))


async def test_a_delayed_start_does_not_begin_early(app: Live, connection: Any) -> None:
    id = await asked(connection, delay="1h")
    for run in (id, "key:k"):
        with pytest.raises(NotFound, match=rf"run {id} begins at 20\d\d-.*Z: its start has a delay"):
            await show(app, run)
    assert await requests(connection) == [(0, None)] and await runs(connection) == 0
    await connection.execute("update perdure.sql_request set due_at = perdure.clock()")
    assert await show(app, id) == id


async def test_a_transaction_that_has_not_committed_has_no_run(app: Live, connection: Any) -> None:
    async with connection.transaction():
        id = await in_transaction(connection).start(sums.options(key="k"), 1)
        for run in (id, "key:k"):
            with pytest.raises(NotFound, match=r"no run (0|was started under the key)"):
                await show(app, run)
    assert await show(app, id) == id


async def test_a_start_belongs_to_its_namespace(app: Live, connection: Any) -> None:
    await connection.execute("insert into perdure.namespace (name) values ('asked_other')")
    id = await asked(connection)
    answer = await app.http.get(f"/runs/{id}", headers={"Perdure-Namespace": "asked_other"})
    assert answer.status_code == 404 and "no run" in answer.json()["detail"], answer.text
    assert await requests(connection) == [(0, None)]


async def test_a_signal_that_may_start_a_run_leaves_its_key_to_the_transaction(app: Live, connection: Any) -> None:
    id = await asked(connection, 5)
    handle = await sums.options(key="k").signal_with_start(more, 1, 7)
    assert (handle.id, await handle.result("60s")) == (id, 6)
    await connection.execute("""select perdure.start('asked_sums', '{"wrong": 1}', 'k2')""")
    with pytest.raises(NotFound, match="was not started"):
        await app.perdure.get(key="k2")
    other = await sums.options(key="k2").signal_with_start(more, 1, 7)
    assert await other.result("60s") == 8


async def test_a_run_that_exists_costs_no_look_at_the_requests(
    app: Live, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await show(app, await asked(connection))

    async def refuse(*given: Any) -> Any:
        raise AssertionError("a look at the requests")

    monkeypatch.setattr(PostgresSqlRequests, "find_start", refuse)
    for ask in (show, state, query, rest_show, rest_result, update, signal):
        await ask(app, id)
    answer = await app.http.get(f"/runs/{id}/updates/nothing")
    assert answer.status_code == 404 and "was asked for no update" in answer.json()["detail"]
