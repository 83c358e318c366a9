"""Updates and queries end to end: real engine, real worker, real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
import pytest

from perdure import EngineSettings, Perdure, Promise, Signal, State, SyncPerdure, TestEnv, Update, task, wf, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import messages
from perdure.core.api.messages import AskUpdate
from perdure.core.limits import UPDATES_OPEN_MAX
from perdure.core.messages import UpdateMessage
from perdure.core.placement import Placement
from perdure.core.work import UpdateAnswer
from perdure.errors import NotFound, RunFailed, RunFinished, UpdateFailed, UpdateRejected, WorkflowRuleBroken
from perdure.sdk.client.handles import Handle
from tests.fakes.waiting import forever, holds, until

LIMIT = "60s"
calls: Counter[str] = Counter()


@dataclass
class Price:
    cents: int


@dataclass
class Receipt:
    old: int
    new: int


set_price = Update("set_price", Price, Receipt)
rename = Update("rename", str, str)
stop = Signal("stop", bool)
go = Promise("go", bool)
price = State("price", 100)


@pytest.fixture(autouse=True)
def clean_slate() -> None:
    calls.clear()


@task(name="updates_audit")
async def audit(cents: int) -> int:
    calls["audit"] += 1
    if cents == 13:
        raise ValueError("thirteen is bad luck")
    return cents


def sane(p: Price) -> None:
    if p.cents <= 0:
        raise ValueError("a price is above zero")


@workflow(name="updates_shop")
async def shop() -> int:
    async def change(p: Price) -> Receipt:
        old = price.get()
        await audit(p.cents)
        price.set(p.cents)
        return Receipt(old, p.cents)

    set_price.handle(change, validate=sane)
    await stop.next()
    return price.get()


@workflow(name="updates_late")
async def late() -> list[str]:
    """Takes what has come, one by one, once it is told to."""
    names: list[str] = []
    await go.wait()
    async for request in rename:
        if request.value == "":
            request.reject("a name has letters")
            continue
        names.append(request.value)
        request.reply(request.value.upper())
        if request.value == "last":
            return names
    return names


@workflow(name="updates_silent")
async def silent(fails: bool = False) -> None:
    rename.handle(never)
    await stop.next()
    if fails:
        raise ValueError("no luck")


async def never(name: str) -> str:
    await forever()


@workflow(name="updates_chain")
async def chain(n: int) -> int:
    """Continues as new before it answers anything, then answers."""
    if n < 2:
        await stop.next()
        return wf.continue_as_new(n + 1)
    rename.handle(lambda name: f"{n}:{name}")
    await stop.next()
    return n


@workflow(name="updates_handover")
async def handover(n: int) -> int:
    if n == 0:
        rename.handle(never)
        await stop.next()
        return wf.continue_as_new(1)
    return n


mended: set[str] = set()


@workflow(name="updates_retried")
async def retried() -> list[str]:
    names: list[str] = []

    def add(name: str) -> str:
        names.append(name)
        return f"{len(names)}"

    rename.handle(add)
    await stop.next()
    await stumble()
    await go.wait()
    return names


@task(name="updates_stumble", retry=1)
async def stumble() -> None:
    if "stumble" not in mended:
        raise ValueError("not yet")


@workflow(name="updates_asks")
async def asks(run_id: str) -> str:
    return await rename.ask(run_id, "x")


QUICK = EngineSettings(placement=Placement(idle_s=0.05))


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[Perdure]:
    async with Perdure(dsn) as opened:
        yield opened


def ask_later(update: Update[str, str], run_id: str, value: str, id: str | None = None) -> asyncio.Task[str]:
    return asyncio.ensure_future(update.ask(run_id, value, key=id, timeout=LIMIT))


async def received(handle: Handle[object], count: int) -> None:
    async def has_received() -> bool:
        return sum(isinstance(r.event, ev.UpdateReceived) for r in await handle.history()) >= count

    await until(has_received)


async def successor_of(handle: Handle[object]) -> bytes | None:
    return (await handle.describe()).successor


async def is_unowned(handle: Handle[object]) -> bool:
    return (await handle.describe()).owner is None


async def test_an_update_is_validated_handled_with_steps_and_answered(client: Perdure) -> None:
    handle = await shop.start()
    assert await set_price.ask(handle.id, Price(300)) == Receipt(100, 300)
    assert await set_price.ask(handle.id, Price(500)) == Receipt(300, 500)
    with pytest.raises(UpdateRejected, match="above zero"):
        await set_price.ask(handle.id, Price(0))
    with pytest.raises(UpdateFailed, match="thirteen is bad luck"):
        await set_price.ask(handle.id, Price(13))
    await stop.send(handle.id, True)
    assert await handle.result(LIMIT) == 500
    kinds = Counter(type(r.event).__name__ for r in await handle.history())
    assert kinds["UpdateReceived"] == kinds["UpdateAnswered"] == 4


async def test_the_same_id_is_handled_once_and_answered_alike(client: Perdure) -> None:
    handle = await shop.start()
    first, second = await asyncio.gather(*(set_price.ask(handle.id, Price(7), key="one") for _ in range(2)))
    assert first == second == Receipt(100, 7)
    assert await set_price.ask(handle.id, Price(8), key="one") == Receipt(100, 7)
    assert calls["audit"] == 1
    await stop.send(handle.id, True)
    assert await handle.result(LIMIT) == 7
    assert await set_price.ask(handle.id, Price(9), key="one") == Receipt(100, 7)  # the answer outlives the run
    with pytest.raises(RunFinished):
        await set_price.ask(handle.id, Price(9))
    with pytest.raises(NotFound):
        await set_price.ask(ids.text(ids.run_id(1_700_000_000_000, 0, 1)), Price(9))


async def test_mail_that_arrives_twice_is_handled_once(client: Perdure) -> None:
    """As when an earlier run handed an update on and it is asked for again at its successor."""
    handle = await shop.start()
    message = UpdateMessage("twice", "set_price", b'{"cents":5}')
    for _ in range(3):
        await client.store.send(ids.parse(handle.id), client.engine.ns, message)
    client.engine.claims.wake()
    assert await set_price.ask(handle.id, Price(5), key="twice") == Receipt(100, 5)
    assert await set_price.ask(handle.id, Price(6)) == Receipt(5, 6)
    assert calls["audit"] == 2
    assert sum(isinstance(r.event, ev.UpdateReceived) for r in await handle.history()) == 2


async def test_updates_wait_for_code_that_takes_them_one_by_one(client: Perdure) -> None:
    handle = await late.start()
    asked = []
    for n, name in enumerate(("a", "", "last"), 1):  # in this order: the last one ends the run
        asked.append(ask_later(rename, handle.id, name))
        await received(handle, n)
    assert not any(t.done() for t in asked)
    await go.resolve(handle.id, True)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(a for a in answers if isinstance(a, str)) == ["A", "LAST"]
    refused = [a for a in answers if not isinstance(a, str)]
    assert [type(r) for r in refused] == [UpdateRejected]
    assert str(refused[0]) == "a name has letters"


async def test_a_timeout_leaves_the_update_under_way(client: Perdure) -> None:
    handle = await late.start()
    with pytest.raises(TimeoutError, match="ask again with key='slow'"):
        await rename.ask(
            handle.id, "last", key="slow", timeout=1.5
        )  # of which sending it may take most, on a slow machine
    await go.resolve(handle.id, True)
    assert await rename.ask(handle.id, "last", key="slow") == "LAST"


@pytest.mark.parametrize("fails", [False, True])
async def test_the_end_of_a_run_answers_what_it_left(client: Perdure, fails: bool) -> None:
    handle = await silent.start(fails)
    asked = [ask_later(rename, handle.id, str(n)) for n in range(3)]
    await received(handle, 3)
    await stop.send(handle.id, True)
    for one in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(one, RunFinished), one
        assert "before it answered" in str(one)


async def test_an_update_that_no_run_came_to_read_is_answered_by_its_end(client: Perdure, dsn: str) -> None:
    handle = await silent.start()
    await stop.send(handle.id, True)
    await handle.result(LIMIT)
    connection = await asyncpg.connect(dsn)  # as if it had been posted just before the end
    await connection.execute("insert into perdure.update_answer (run_id, id, ns) values ($1, 'lost', 1)", handle.id)
    await connection.close()
    with pytest.raises(RunFinished, match="ended before it answered"):
        await rename.ask(handle.id, "x", key="lost", timeout=LIMIT)


async def test_unanswered_updates_go_on_to_the_run_that_continues(client: Perdure) -> None:
    handle = await chain.start(0)
    one = ask_later(rename, handle.id, "early", id="early")
    await received(handle, 1)
    await stop.send(handle.id, True)
    successor = await until(lambda: successor_of(handle))
    again = ask_later(rename, handle.id, "early", id="early")
    two = ask_later(rename, handle.id, "later")
    await received(await client.get(ids.text(successor)), 2)
    await stop.send(handle.id, True)
    assert await asyncio.gather(one, again, two) == ["2:early", "2:early", "2:later"]
    await stop.send(handle.id, True)
    assert await handle.result(LIMIT) == 2


async def test_an_update_whose_handler_began_is_not_begun_again_elsewhere(client: Perdure) -> None:
    handle = await handover.start(0)
    asked = ask_later(rename, handle.id, "x")
    await received(handle, 1)
    await stop.send(handle.id, True)
    with pytest.raises(RunFinished, match="continued as a new one"):
        await asked
    assert await handle.result(LIMIT) == 1


async def test_a_retried_run_hears_its_updates_again_and_answers_stand(client: Perdure) -> None:
    mended.clear()
    handle = await retried.start()
    assert await rename.ask(handle.id, "a", key="a") == "1"
    await stop.send(handle.id, True)
    with pytest.raises(RunFailed, match="not yet"):
        await handle.result(LIMIT)
    mended.add("stumble")
    await handle.retry()
    assert await rename.ask(handle.id, "b") == "2"
    assert await rename.ask(handle.id, "again", key="a") == "1"
    await go.resolve(handle.id, True)
    assert await handle.result(LIMIT) == ["a", "b"]


@workflow(name="updates_sum")
async def running_sum() -> int:
    total = 0

    async def add(name: str) -> str:
        nonlocal total
        await audit(1)
        total += int(name)
        return f"{total}"

    rename.handle(add)
    await stop.next()
    return total


async def update(client: Perdure, request: AskUpdate) -> UpdateAnswer:
    answer = (await client._backend.call(messages.UPDATE, request)).answer
    assert answer is not None
    return answer


async def test_every_update_is_handled_once_while_engines_lose_their_memory(dsn: str) -> None:
    """Each question is sent twice under its id. An engine that starts over gives up its memory in the middle of whatever it does."""
    count, losses = 60, 6
    async with Perdure(dsn) as one, Perdure(dsn) as two:
        handle = await one.start(running_sum)

        said: list[bytes] = []

        async def ask(n: int) -> None:
            asked = AskUpdate(handle.id, "rename", b'"%d"' % n, f"n{n}")
            first, second = await asyncio.gather(update(one, asked), update(two, asked))
            assert first == second
            assert first.failure is None, first.failure
            said.append(first.value)

        async def lose() -> None:
            for n in range(losses):
                await until(lambda n=n: len(said) > n * count // losses)  # type: ignore[misc]
                engine = (one, two)[n % 2].engine
                await engine.lease.start_over()

        losing = asyncio.create_task(lose())
        for start in range(0, count, 10):
            await asyncio.gather(*(ask(n) for n in range(start, start + 10)))
        await losing
        assert len(set(said)) >= count - 1, "0 adds nothing; all other sums differ"
        await stop.send(handle.id, True)
        assert await handle.result(LIMIT) == sum(range(count))
        kinds = Counter(type(r.event).__name__ for r in await handle.history())
        assert kinds["UpdateReceived"] == kinds["UpdateAnswered"] == count


async def test_updates_reach_runs_of_other_engines_and_sleeping_runs(dsn: str) -> None:
    async with Perdure(dsn, settings=QUICK), Perdure(dsn, worker=False) as asker:
        handle = await asker.start(shop)
        for cents in (1, 2, 3):
            raw = await update(asker, AskUpdate(handle.id, "set_price", b'{"cents":%d}' % cents, f"id-{cents}", 30))
            assert raw.value == b'{"old":%d,"new":%d}' % (cents - 1 if cents > 1 else 100, cents)
            await until(lambda: is_unowned(handle))


async def test_too_many_open_updates_are_refused(client: Perdure) -> None:
    handle = await silent.start()
    run_id = ids.parse(handle.id)
    for n in range(UPDATES_OPEN_MAX):
        await client.store.send(run_id, client.engine.ns, UpdateMessage(str(n), "rename", b'"x"'))
    client.engine.claims.wake()
    await received(handle, UPDATES_OPEN_MAX)
    with pytest.raises(UpdateRejected, match="UPDATES_OPEN_MAX=1000"):
        await rename.ask(handle.id, "one too many", timeout=LIMIT)


async def test_an_update_that_the_code_does_not_have_is_refused_at_once(client: Perdure) -> None:
    handle = await client.start(silent)
    with pytest.raises(UpdateRejected, match=r"has no update 'uptades_rename'\. Did you mean 'rename'\?"):
        await update(client, AskUpdate(handle.id, "uptades_rename", b'"x"', "typo"))


async def test_flows_take_no_updates(client: Perdure) -> None:
    from perdure import flow

    await client.deploy("flow: updates-flow\ntasks:\n  a: {sleep: 1h}")
    handle = await client.start(flow("updates-flow"))
    with pytest.raises(UpdateRejected, match="a declarative flow takes no updates"):
        await rename.ask(handle.id, "x", timeout=LIMIT)


async def test_workflow_code_cannot_ask(client: Perdure) -> None:
    handle = await asks.start("x")
    with pytest.raises(RunFailed, match="outside workflows only"):
        await handle.result(LIMIT)
    assert WorkflowRuleBroken.code == "workflow_rule_broken"


async def test_updates_work_in_the_test_environment() -> None:
    async with TestEnv() as env:
        env.mock(audit, lambda cents: cents)
        handle = await env.start(shop)
        assert await set_price.ask(handle.id, Price(3)) == Receipt(100, 3)
        assert calls["audit"] == 0


def test_sync_code_asks_too(dsn: str) -> None:
    with SyncPerdure(dsn) as p:
        handle = p.start(shop)
        assert p.update(set_price, handle.id, Price(4)) == Receipt(100, 4)
        assert p.query(price, handle.id) == 4


async def test_old_answers_are_forgotten(client: Perdure, dsn: str) -> None:
    handle = await shop.start()
    await set_price.ask(handle.id, Price(4), key="old")
    await set_price.ask(handle.id, Price(5), key="new")
    connection = await asyncpg.connect(dsn)
    await connection.execute("update perdure.update_answer set at = now() - interval '8 days' where id = 'old'")
    await client.store.sweep()
    left = await connection.fetch("select id from perdure.update_answer")
    await connection.close()
    assert [r["id"] for r in left] == ["new"]
    from perdure.errors import Conflict

    with pytest.raises(Conflict, match="no longer kept"):
        await set_price.ask(handle.id, Price(4), key="old", timeout=LIMIT)


async def test_a_query_disturbs_nothing(dsn: str) -> None:
    async with Perdure(dsn, settings=QUICK) as client:
        handle = await shop.start()
        await set_price.ask(handle.id, Price(42))
        await until(lambda: is_unowned(handle))
        before, events = await handle.describe(), len(await handle.history())
        for _ in range(20):
            assert await price.read(handle.id) == 42

        async def is_undisturbed() -> bool:
            return await handle.describe() == before

        await holds(is_undisturbed, 0.3)
        assert before.owner is None
        assert len(await handle.history()) == events
        assert ids.parse(handle.id) not in client.engine.runs


async def test_the_engine_knows_which_signals_code_and_flows_wait_for(client: Perdure) -> None:
    from perdure import flow

    await client.deploy("flow: updates-waits\ntasks:\n  a: {wait: {signal: paid}}\n  b: {wait: {signal: sent}}")
    code, pull = await shop.start(), await late.start()
    graph = await client.start(flow("updates-waits"))
    await go.resolve(pull.id, True)

    def waiting(handle: Handle[object]) -> list[str] | None:
        run = client.engine.runs.get(ids.parse(handle.id))
        return None if run is None else run.waiting

    await until(lambda: waiting(code) == ["signal:stop"])
    await until(lambda: waiting(pull) == ["update:rename"])
    await until(lambda: waiting(graph) == ["signal:paid", "signal:sent"])
    await Signal("paid", int).send(graph.id, 1)
    await until(lambda: waiting(graph) == ["signal:sent"])
