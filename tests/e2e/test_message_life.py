"""What becomes of a message when something happens to its run at that moment. The promises are those of core/message_life.py and
core/questions.py, through the doors that people use."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from perdure import Approval, Handle, NamedEvent, Perdure, Promise, Retry, Signal, Update, task, wf, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import approvals as acts
from perdure.core.lifecycle import RunStatus
from perdure.core.messages import Message, PauseMessage, kind_of, name_of
from perdure.engine.api.api import NamespaceApi
from perdure.engine.api.approvals import Ballot, Links
from perdure.errors import (
    Conflict,
    NotAssigned,
    PromiseAlreadyResolved,
    RunFailed,
    RunFinished,
    TaskFailed,
)
from perdure.wire.codec import encode_message
from tests.e2e.harness.aged import days_ago, retain
from tests.fakes.waiting import until
from tests.store.blocking import until_blocked

go = Signal("life_go", int)
add = Signal("life_add", int)
given = Promise("life_given", int)
change = Update("life_change", int, int)
paid = NamedEvent("life_paid", dict)
solo = Approval("life_solo")
deal = Approval("life_deal", assignees=["ada", "ben"], quorum=2)

broken: set[str] = set()
executed: Counter[str] = Counter()
gate = asyncio.Event()
SOON, SOON_S = "30s", 30.0


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    broken.clear()
    executed.clear()
    global gate
    gate = asyncio.Event()
    yield


@task(name="life_step", retry=Retry(1))
async def step(name: str) -> str:
    executed[name] += 1
    if name in broken:
        raise ValueError(f"{name} is broken")
    return name


@asynccontextmanager
async def before_its_end(dsn: str, run: Handle[Any], *sent: Message) -> AsyncIterator[Any]:
    """Hold the row of a run as each sender does until its message is written, so that a run whose code ends is not over yet. Messages
    that are `sent` here come from that sender."""
    held, observer = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        async with held.transaction():
            ns = await held.fetchval("select ns from perdure.run_queue where run_id = $1 for key share", UUID(run.id))
            for message in sent:
                row = (ns, UUID(run.id), encode_message(message), kind_of(message), name_of(message))
                await held.execute(
                    "insert into perdure.inbox (ns, run_id, body, kind, name) values ($1, $2, $3, $4, $5)", *row
                )
            yield lambda: until_blocked(observer)
    finally:
        await held.close()
        await observer.close()


async def opened(client: Perdure, run: Handle[Any], details: dict[str, Any]) -> None:
    async def is_open() -> bool:
        return details in [asked.details async for asked in client.approvals.list(run=run.id)]

    await until(is_open, f"the run asks {details}", SOON_S)


async def failed(run: Handle[Any]) -> None:
    with pytest.raises(RunFailed):
        await run.result(SOON)


async def last(client: Perdure, run: Handle[Any]) -> Handle[Any]:
    while (successor := (await run.describe()).successor) is not None:
        run = await client.get(ids.text(successor))
    return run


async def continued(client: Perdure, run: Handle[Any]) -> Handle[Any]:
    await until(lambda: _has_continued(run), "the run continues as new", SOON_S)
    return await last(client, run)


async def _has_continued(run: Handle[Any]) -> bool:
    return (await run.describe()).successor is not None


async def events_of(run: Handle[Any], kind: type[Any]) -> list[Any]:
    return [r.event for r in await run.history() if type(r.event) is kind]


# A failed run keeps what was acknowledged, and its retry returns it.


@workflow(name="life_fails_on_go")
async def fails_on_go(name: str) -> int:
    await go.next()
    await step(name)
    return await add.next()


async def test_a_signal_while_the_run_fails_is_read_after_a_retry(dsn: str) -> None:
    broken.add("a")
    async with Perdure(dsn) as client:
        run = await client.start(fails_on_go, "a")
        async with before_its_end(dsn, run) as ends:
            await run.signal(go, 1)
            await ends()
            assert await run.signal(add, 7) is True
        await failed(run)
        broken.clear()
        await run.retry()
        assert await run.result(SOON) == 7


@task(name="life_gated", retry=Retry(1))
async def gated(name: str) -> None:
    await gate.wait()
    if name in broken:
        raise ValueError(f"{name} is broken")


@workflow(name="life_fails_unheard")
async def fails_unheard(name: str) -> int:
    """It has had no message when it fails, so its end has no reason to look for one."""
    await gated(name)
    return await add.next()


async def test_a_pause_while_the_run_fails_is_void_after_a_retry(dsn: str) -> None:
    broken.add("a")
    async with Perdure(dsn) as client:
        run = await client.start(fails_unheard, "a")
        async with before_its_end(dsn, run, PauseMessage("ada")) as ends:
            gate.set()
            await ends()
        await failed(run)
        broken.clear()
        await run.retry()
        await run.signal(add, 7)
        assert await run.result(SOON) == 7


async def test_a_cancel_while_the_run_fails_is_void_after_a_retry(dsn: str) -> None:
    broken.add("a")
    async with Perdure(dsn) as client:
        run = await client.start(fails_unheard, "a")
        async with before_its_end(dsn, run) as ends:
            gate.set()
            await ends()
            await run.cancel("an old request")
        await failed(run)
        broken.clear()
        await run.retry()
        await run.signal(add, 7)
        assert await run.result(SOON) == 7


async def test_a_repeated_key_after_a_retry_is_still_a_repetition(dsn: str) -> None:
    broken.add("a")
    async with Perdure(dsn) as client:
        run = await client.start(reads_twice, "a")
        assert await run.signal(add, 1, key="one") is True
        await failed(run)
        broken.clear()
        await run.retry()
        assert await run.signal(add, 1, key="one") is False
        await run.signal(add, 2)
        assert await run.result(SOON) == [1, 2]


@workflow(name="life_reads_twice")
async def reads_twice(name: str) -> list[int]:
    first = await add.next()
    await step(name)
    return [first, await add.next()]


async def test_an_update_while_the_run_fails_is_answered_after_a_retry(dsn: str) -> None:
    broken.add("a")
    async with Perdure(dsn) as client:
        run = await client.start(changes, "a")
        async with before_its_end(dsn, run) as ends:
            await run.signal(go, 1)
            await ends()
            asked = asyncio.create_task(run.update(change, 4, key="four", timeout=SOON))
            await until(lambda: _asked(dsn, run), within_s=SOON_S)
        with pytest.raises(RunFinished):
            await asked
        broken.clear()
        await run.retry()
        assert await run.update(change, 4, key="four", timeout=SOON) == 5
        await run.signal(add, 1)
        assert await run.result(SOON) == [4]


async def _asked(dsn: str, run: Handle[Any]) -> bool:
    c = await asyncpg.connect(dsn)
    try:
        return bool(
            await c.fetchval("select exists(select from perdure.update_answer where run_id = $1)", UUID(run.id))
        )
    finally:
        await c.close()


@workflow(name="life_changes")
async def changes(name: str) -> list[int]:
    seen: list[int] = []

    async def changed(by: int) -> int:
        seen.append(by)
        return by + 1

    change.handle(changed)
    await go.next()
    await step(name)
    await add.next()
    return seen


# Votes, delegations and used links of a failed run count after its retry.


async def _asked_of(people: Approval[Any], details: dict[str, Any]) -> None:
    await people.wait(details=details)


@workflow(name="life_asks_beside")
async def asks_beside(name: str) -> str:
    asking = asyncio.create_task(_asked_of(deal, {"run": name}))
    await go.next()
    await step(name)
    await asking
    return "approved"


async def test_votes_and_delegations_count_after_a_retry(dsn: str) -> None:
    broken.add("a")
    async with Perdure(dsn) as client:
        run = await client.start(asks_beside, "a")
        await opened(client, run, {"run": "a"})
        assert await run.approve(deal, by="ada") is False
        await deal.delegate(run.id, "dan", by="ben")
        await run.signal(go, 1)
        await failed(run)
        broken.clear()
        await run.retry()
        await opened(client, run, {"run": "a"})
        with pytest.raises(NotAssigned):
            await run.approve(deal, by="ben")
        assert await run.approve(deal, by="dan") is True
        assert await run.result(SOON) == "approved"


# An answer is for the question to which it was given, and for no other.


@workflow(name="life_pays")
async def pays(name: str) -> str:
    await deal.wait(details={"q": "begin?"})
    try:
        await step(name)
    except TaskFailed:
        await deal.wait(details={"q": "refund 5?"})
        raise
    await deal.wait(details={"q": "pay 1,000,000?"})
    return "paid"


async def _both_approve(run: Handle[Any], nth: int) -> None:
    assert await run.approve(deal, by="ada", nth=nth) is False
    assert await run.approve(deal, by="ben", nth=nth) is True


async def test_an_answer_before_a_retry_is_none_to_a_new_question(dsn: str) -> None:
    broken.add("a")
    async with Perdure(dsn) as client:
        run = await client.start(pays, "a")
        await opened(client, run, {"q": "begin?"})
        await _both_approve(run, 1)
        await opened(client, run, {"q": "refund 5?"})
        await _both_approve(run, 2)
        await failed(run)
        broken.clear()
        await run.retry()
        await opened(client, run, {"q": "pay 1,000,000?"})
        await run.reject(deal, by="ben", comment="never", nth=2)
        with pytest.raises(RunFailed, match="never"):
            await run.result(SOON)


async def test_a_link_before_a_retry_is_none_to_a_new_question(dsn: str) -> None:
    broken.add("a")
    async with Perdure(dsn) as client:
        run = await client.start(pays, "a")
        await opened(client, run, {"q": "begin?"})
        await _both_approve(run, 1)
        await opened(client, run, {"q": "refund 5?"})
        created = await client._backend.call(
            acts.CREATE_LINK, acts.CreateLink(run.id, "approval", "life_deal#2", "ada", 0)
        )
        await _both_approve(run, 2)
        await failed(run)
        broken.clear()
        await run.retry()
        await opened(client, run, {"q": "pay 1,000,000?"})
        links = Links(client.api)
        link = await links.read(created.url.rpartition("/")[2])
        with pytest.raises(Conflict, match="asks something else now"):
            await links.asked(link)
        with pytest.raises(Conflict, match="asks something else now"):
            await links.answer(link, Ballot(True))


# An answer that names the question it was given to is none to another one.


@workflow(name="life_refunds")
async def refunds(name: str) -> str:
    try:
        await step(name)
    except TaskFailed:
        asking = asyncio.create_task(_asked_of(deal, {"q": "refund 5?"}))
        await go.next()
        asking.cancel()
        raise
    await deal.wait(details={"q": "pay 1,000,000?"})
    return "paid"


async def question(client: Perdure, run: Handle[Any], details: dict[str, Any]) -> str:
    await opened(client, run, details)
    (asked,) = [asked async for asked in client.approvals.list(run=run.id)]
    return asked.question


@asynccontextmanager
async def asks_something_else(client: Perdure) -> AsyncIterator[tuple[Handle[Any], str, str]]:
    """A run that asked for a refund and asks for a payment under the same name after its retry, and both questions."""
    broken.add("a")
    run = await client.start(refunds, "a")
    old = await question(client, run, {"q": "refund 5?"})
    await run.signal(go, 1)
    await failed(run)
    broken.clear()
    await run.retry()
    yield run, old, await question(client, run, {"q": "pay 1,000,000?"})


async def votes_of(dsn: str, run: Handle[Any]) -> int:
    c = await asyncpg.connect(dsn)
    try:
        return int(await c.fetchval("select count(*) from perdure.vote where run_id = $1", UUID(run.id)))
    finally:
        await c.close()


async def test_a_vote_for_the_question_before_a_retry_is_refused(dsn: str) -> None:
    async with Perdure(dsn) as client, asks_something_else(client) as (run, old, new):
        for vote in (
            run.approve(deal, by="ada", question=old),
            run.reject(deal, by="ada", question=old),
            deal.delegate(run.id, "dan", by="ada", question=old),
        ):
            with pytest.raises(Conflict, match="changed since you read it"):
                await vote
        assert await votes_of(dsn, run) == 0
        await deal.delegate(run.id, "dan", by="ada", question=new)
        assert await run.approve(deal, by="dan", question=new) is False
        assert await run.approve(deal, by="ben") is True
        assert await run.result(SOON) == "paid"


async def test_a_vote_that_meets_a_new_question_in_its_lock_is_refused(dsn: str) -> None:
    """The question changes after the vote was sent, and before it is recorded."""
    async with Perdure(dsn) as client:
        run = await client.start(asks_beside, "a")
        old = await question(client, run, {"run": "a"})
        writer, observer = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
        try:
            async with writer.transaction():
                await writer.execute("update perdure.promise set question = 'another' where run_id = $1", UUID(run.id))
                vote = asyncio.create_task(run.approve(deal, by="ada", question=old))
                await until_blocked(observer)
            with pytest.raises(Conflict, match="changed since you read it"):
                await vote
            assert await votes_of(dsn, run) == 0
        finally:
            await writer.close()
            await observer.close()


async def test_a_vote_before_the_new_question_is_asked_is_refused(dsn: str) -> None:
    broken.add("a")
    async with Perdure(dsn) as client:
        run = await client.start(hesitates, "a")
        old = await question(client, run, {"q": "refund 5?"})
        await run.signal(go, 1)
        await failed(run)
        broken.clear()
        await run.retry()
        with pytest.raises(Conflict, match="changed since you read it"):
            await run.approve(deal, by="ada", question=old)


@workflow(name="life_hesitates")
async def hesitates(name: str) -> str:
    try:
        await step(name)
    except TaskFailed:
        asking = asyncio.create_task(_asked_of(deal, {"q": "refund 5?"}))
        await go.next()
        asking.cancel()
        raise
    await add.next()
    return "paid"


async def test_a_vote_for_the_same_question_counts_after_a_retry(dsn: str) -> None:
    broken.add("a")
    async with Perdure(dsn) as client:
        run = await client.start(asks_beside, "a")
        asked = await question(client, run, {"run": "a"})
        await run.signal(go, 1)
        await failed(run)
        broken.clear()
        await run.retry()
        assert await question(client, run, {"run": "a"}) == asked
        assert await run.approve(deal, by="ada", question=asked) is False
        assert await run.approve(deal, by="ben", question=asked) is True
        assert await run.result(SOON) == "approved"


async def test_a_vote_for_an_earlier_run_of_a_chain_is_refused(dsn: str) -> None:
    """The next run asks the same in the same words: it is a payment of its own."""
    async with Perdure(dsn) as client:
        run = await client.start(asks_the_same, 1)
        old = await question(client, run, {"pay": "rent"})
        await run.signal(go, 1)
        following = await continued(client, run)
        new = await question(client, following, {"pay": "rent"})
        with pytest.raises(Conflict, match="changed since you read it"):
            await run.approve(solo, question=old)
        assert await run.approve(solo, question=new) is True
        assert await following.result(SOON) == "paid 2"


@workflow(name="life_asks_the_same")
async def asks_the_same(n: int) -> str:
    asking = asyncio.create_task(_asked_of(solo, {"pay": "rent"}))
    if n == 1:
        await go.next()
        wf.continue_as_new(2)
    await asking
    return f"paid {n}"


@workflow(name="life_takes_events")
async def takes_events(name: str) -> int:
    try:
        await step(name)
    except TaskFailed:
        await paid.wait("event.order_id == 1")
        raise
    return int((await paid.wait("event.order_id == 2"))["order_id"])


async def test_an_event_before_a_retry_answers_only_its_match(dsn: str) -> None:
    broken.add("a")
    async with Perdure(dsn) as client:
        run = await client.start(takes_events, "a")
        await client.emit(paid, {"order_id": 1})
        await failed(run)
        broken.clear()
        await run.retry()
        await client.emit(paid, {"order_id": 2})
        assert await run.result(SOON) == 2


@task(name="life_amount")
async def amount(x: int) -> int:
    return x


@workflow(name="life_asks_about")
async def asks_about(x: int) -> str:
    pay = await amount(x)
    await solo.wait(details={"pay": pay})
    await go.next()
    return f"paid {pay}"


async def test_an_answer_about_the_old_value_is_none_in_an_edited_fork(dsn: str) -> None:
    async with Perdure(dsn) as client:
        run = await client.start(asks_about, 5)
        await opened(client, run, {"pay": 5})
        assert await run.approve(solo, by="ada") is True
        await until(lambda: events_of(run, ev.PromiseResolved), within_s=SOON_S)
        fork = await run.fork((await run.history())[-1].seq, {"life_amount": 1_000_000})
        await opened(client, fork, {"pay": 1_000_000})
        assert await fork.reject(solo, by="ada", comment="never") is True
        await fork.signal(go, 1)
        with pytest.raises(RunFailed, match="never"):
            await fork.result(SOON)


async def test_an_unread_message_stays_with_the_run_that_was_forked(dsn: str) -> None:
    async with Perdure(dsn) as client:
        run = await client.start(reads_one, "a")
        await run.pause()
        await until(lambda: _is_paused(run), within_s=SOON_S)
        await run.signal(add, 7)
        fork = await run.fork((await run.history())[-1].seq)
        await fork.signal(go, 1)
        await fork.signal(add, 9)
        assert await fork.result(SOON) == 9
        await run.resume()
        await run.signal(go, 1)
        assert await run.result(SOON) == 7


async def _is_paused(run: Handle[Any]) -> bool:
    return (await run.describe()).paused_by is not None


@workflow(name="life_asks_again")
async def asks_again(n: int) -> str:
    asking = asyncio.create_task(_asked_of(solo, {"payment": n}))
    await go.next()
    if n == 1:
        wf.continue_as_new(2)
    await asking
    return f"paid {n}"


async def test_an_answer_at_a_continuation_is_none_in_the_next_run(dsn: str) -> None:
    async with Perdure(dsn) as client:
        run = await client.start(asks_again, 1)
        await opened(client, run, {"payment": 1})
        async with before_its_end(dsn, run) as ends:
            await run.signal(go, 1)
            await ends()
            assert await run.approve(solo, by="ada") is True
        following = await continued(client, run)
        await opened(client, following, {"payment": 2})
        await following.signal(go, 1)
        assert await following.reject(solo, by="ada", comment="never") is True
        with pytest.raises(RunFailed, match="never"):
            await following.result(SOON)


# A run that is about to succeed reads what was acknowledged before its end.


@workflow(name="life_cart")
async def cart(name: str) -> list[int]:
    items: list[int] = []
    while True:
        try:
            items.append(await add.next(timeout="500ms"))
        except TimeoutError:
            return items


async def test_a_signal_while_the_run_succeeds_is_read(dsn: str) -> None:
    async with Perdure(dsn) as client:
        run = await client.start(cart, "a")
        async with before_its_end(dsn, run) as ends:
            await ends()
            assert await run.signal(add, 7) is True
        assert await run.result(SOON) == [7]
        assert len(await events_of(run, ev.EndWithdrawn)) == 1


@workflow(name="life_reads_one")
async def reads_one(name: str) -> int:
    await go.next()
    return await add.next()


@pytest.mark.parametrize("begun_by_signal", [True, False])
async def test_signal_with_start_at_an_end_starts_the_next_run(dsn: str, begun_by_signal: bool) -> None:
    keyed = reads_one.options(key="life-one")
    async with Perdure(dsn) as client:
        if begun_by_signal:
            run = await keyed.signal_with_start(add, 1, "a")
        else:
            run = await client.start(keyed, "a")
            await run.signal(add, 1)
        async with before_its_end(dsn, run) as ends:
            await run.signal(go, 1)
            await ends()
            assert (await keyed.signal_with_start(add, 2, "a")).id == run.id
        assert await run.result(SOON) == 1
        following: Handle[Any] = await client.get("key:life-one")
        assert following.id != run.id
        await go.send("key:life-one", 1)
        assert await following.result(SOON) == 2


async def test_signal_with_start_of_another_input_at_an_end_starts_nothing(dsn: str) -> None:
    keyed = reads_one.options(key="life-one")
    async with Perdure(dsn) as client:
        run = await client.start(keyed, "a")
        await run.signal(add, 1)
        async with before_its_end(dsn, run) as ends:
            await run.signal(go, 1)
            await ends()
            assert (await keyed.signal_with_start(add, 2, "b")).id == run.id
        assert await run.result(SOON) == 1
        assert (await client.get("key:life-one")).id == run.id


async def test_key_of_an_unread_signal_goes_to_the_next_run(dsn: str) -> None:
    keyed = reads_one.options(key="life-repeats")
    async with Perdure(dsn) as client:
        run = await client.start(keyed, "a")
        await run.signal(add, 1)
        async with before_its_end(dsn, run) as ends:
            await run.signal(go, 1)
            await ends()
            await keyed.signal_with_start(add.keyed("two"), 2, "a")
        assert await run.result(SOON) == 1
        following = await keyed.signal_with_start(add.keyed("two"), 2, "a")
        assert following.id != run.id
        await following.signal(go, 1)
        assert await following.result(SOON) == 2
        assert [e.value for e in await events_of(following, ev.SignalReceived) if e.name == add.name] == [b"2"]


@workflow(name="life_reads_nothing")
async def reads_nothing(name: str) -> str:
    await gated(name)
    return name


async def test_signal_that_a_retried_run_leaves_unread_starts_the_next_run(dsn: str) -> None:
    """The run is loaded anew for its retry, and gets no other message until it ends. The next run doesn't read the signal either, so it is
    the last one."""
    broken.add("a")
    keyed = reads_nothing.options(key="life-nothing")
    async with Perdure(dsn) as client:
        run = await keyed.signal_with_start(add, 1, "a")
        await until(lambda: events_of(run, ev.SignalReceived), "the signal is recorded", SOON_S)
        gate.set()
        await failed(run)
        broken.clear()
        await run.retry()
        assert await run.result(SOON) == "a"
        following: Handle[Any] = await client.get("key:life-nothing")
        assert following.id != run.id
        assert await following.result(SOON) == "a"
        assert [e.value for e in await events_of(following, ev.SignalReceived)] == [b"1"]
        assert (await client.get("key:life-nothing")).id == following.id


@workflow(name="life_reads_later")
async def reads_later(n: int) -> list[int]:
    await go.next()
    if n == 1:
        wf.continue_as_new(2)
    return [n, await add.next()]


async def test_next_run_under_a_key_has_the_input_of_its_start(dsn: str) -> None:
    keyed = reads_later.options(key="life-later")
    async with Perdure(dsn) as client:
        run = await keyed.signal_with_start(add, 1, 1)
        await run.signal(go, 1)
        following = await continued(client, run)
        async with before_its_end(dsn, following) as ends:
            await following.signal(go, 1)
            await ends()
            await keyed.signal_with_start(add, 2, 1)
        assert await following.result(SOON) == [2, 1]
        third: Handle[Any] = await client.get("key:life-later")
        assert [e.input for e in await events_of(third, ev.RunStarted)] == [b'{"n":1}']


@workflow(name="life_ends_unread")
async def ends_unread(n: int) -> int:
    await go.next()
    if n == 1:
        wf.continue_as_new(2)
    return n


async def test_signal_with_start_left_by_a_chain_starts_the_next_run(dsn: str) -> None:
    keyed = ends_unread.options(key="life-unread")
    async with Perdure(dsn) as client:
        run = await keyed.signal_with_start(add, 1, 1)
        await run.signal(go, 1)
        following = await continued(client, run)
        await following.signal(go, 1)
        assert await following.result(SOON) == 2
        third: Handle[Any] = await client.get("key:life-unread")
        assert third.id != following.id
        await until(lambda: events_of(third, ev.SignalReceived), within_s=SOON_S)


# A key, or the id of the first run of a chain, finds its last run.


async def test_key_of_a_message_belongs_to_the_whole_chain(dsn: str) -> None:
    """Whether its sender names the chain by its key, or one of its runs."""
    async with Perdure(dsn) as client:
        keyed = reads_later.options(key="life-whole")
        run = await client.start(keyed, 1)
        assert await add.send("key:life-whole", 1, key="one") is True
        await run.signal(go, 1)
        following = await continued(client, run)
        for address in ("key:life-whole", run.id, following.id):
            assert await add.send(address, 1, key="one") is False
        assert (await keyed.signal_with_start(add.keyed("one"), 1, 1)).id == following.id
        assert await following.signal(add, 2, key="two") is True
        for address in ("key:life-whole", run.id):
            assert await add.send(address, 2, key="two") is False
        await following.signal(go, 1)
        assert await following.result(SOON) == [2, 1]
        assert [e.value for e in await events_of(following, ev.SignalReceived) if e.name == add.name] == [b"1", b"2"]


@workflow(name="life_entity")
async def entity(n: int) -> str:
    while True:
        told = await go.next()
        if told < 0:
            return f"run {n}"
        if told > 0:
            wf.continue_as_new(n + 1)


async def test_the_first_run_of_a_living_chain_is_not_deleted(dsn: str) -> None:
    async with Perdure(dsn) as client:
        run = await client.start(entity.options(key="life-entity"), 1)
        await run.signal(go, 1)
        following = await continued(client, run)
        with pytest.raises(Conflict, match="chain is active"):
            await run.delete()
        await go.send(run.id, -1)
        assert await following.result(SOON) == "run 2"


async def test_retention_leaves_the_way_to_a_living_chain(dsn: str) -> None:
    keyed = entity.options(key="life-entity")
    async with days_ago(dsn, 100.5) as client:
        run = await client.start(keyed, 1)
        await run.signal(go, 1)
        following = await continued(client, run)
    await retain(dsn)
    async with Perdure(dsn) as client:
        assert (await keyed.signal_with_start(go, 0, 100)).id == following.id
        await go.send(run.id, 0)
        await go.send("key:life-entity", -1)
        assert await (await client.get(following.id)).result(SOON) == "run 2"


async def test_acts_by_key_reach_the_last_run_of_a_chain(dsn: str) -> None:
    async with Perdure(dsn) as client:
        run = await client.start(works_on.options(key="life-chain"), 1)
        await run.signal(go, 1)
        following = await continued(client, run)
        keyed: Handle[Any] = await client.get("key:life-chain")
        await opened(client, run, {"n": 2})
        await run.pause()
        assert (await following.describe()).paused_by
        await run.resume()
        broken.add("life-chain")
        assert await solo.approve("key:life-chain", by="ada") is True
        await failed(following)
        broken.clear()
        await run.retry()
        assert await keyed.result(SOON) == await following.result(SOON) == "life-chain"


@workflow(name="life_works_on")
async def works_on(n: int) -> str:
    if n == 1:
        await go.next()
        wf.continue_as_new(2)
    await solo.wait(details={"n": n})
    return await step("life-chain")


async def test_a_retry_is_refused_while_another_run_has_its_key(dsn: str) -> None:
    keyed = reads_twice.options(key="life-key")
    broken.add("a")
    async with Perdure(dsn):
        old = await keyed.signal_with_start(add, 1, "a")
        await failed(old)
        broken.clear()
        new = await keyed.signal_with_start(add, 3, "a")
        assert new.id != old.id
        with pytest.raises(Conflict, match="life-key"):
            await old.retry()
        await new.signal(add, 4)
        assert await new.result(SOON) == [3, 4]
        await old.retry()
        await add.send("key:life-key", 2)
        assert await old.result(SOON) == [1, 2]


@workflow(name="life_slow_child")
async def slow_child(name: str) -> str:
    await go.next()
    return await step(f"{name} child")


@workflow(name="life_abandons")
async def abandons(name: str) -> str:
    child = asyncio.create_task(_abandoned(name))
    await go.next()
    await step(name)
    return await child


async def _abandoned(name: str) -> str:
    return await slow_child.options(parent_close="abandon", key=f"life-{name}")(name)


async def test_a_retry_waits_for_an_abandoned_child_that_goes_on(dsn: str) -> None:
    broken.add("a")
    async with Perdure(dsn) as client:
        run = await client.start(abandons, "a")
        await until(lambda: events_of(run, ev.ChildStarted), within_s=SOON_S)
        child: Handle[Any] = await client.get("key:life-a")
        await run.signal(go, 1)
        await failed(run)
        assert await child.status() == "running"
        broken.clear()
        await run.retry()
        await child.signal(go, 1)
        assert await run.result(SOON) == "a child"
        assert executed["a child"] == 1
        assert (await client.get("key:life-a")).id == child.id


@workflow(name="life_given")
async def takes_value(n: int) -> list[int]:
    await go.next()
    if n == 1:
        wf.continue_as_new(2)
    return [n, await given.wait()]


async def test_the_first_value_of_a_promise_stands_in_the_next_run(dsn: str) -> None:
    async with Perdure(dsn) as client:
        run = await client.start(takes_value, 1)
        await run.resolve(given, 7)
        await run.signal(go, 1)
        following = await continued(client, run)
        with pytest.raises(PromiseAlreadyResolved):
            await run.resolve(given, 9)
        await following.signal(go, 1)
        assert await following.result(SOON) == [2, 7]


SPINS = 50


@workflow(name="life_spins")
async def spins(n: int) -> int:
    if n == 1:
        await go.next()
    with suppress(TimeoutError):
        await add.next(timeout="1ms")
    if n < SPINS:
        wf.continue_as_new(n + 1)
    return n


async def test_a_cancel_catches_a_chain_that_continues_at_once(dsn: str) -> None:
    async with Perdure(dsn) as client:
        run = await client.start(spins, 1)
        async with before_its_end(dsn, run) as ends:
            await run.signal(go, 1)
            await ends()
            await run.cancel("enough")
        following = await continued(client, run)
        await until(lambda: _is_cancelled(client, following), within_s=SOON_S)


async def _is_cancelled(client: Perdure, run: Handle[Any]) -> bool:
    view = await (await last(client, run)).describe()
    assert view.successor is not None or view.status in (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.CANCELLED)
    return view.status == RunStatus.CANCELLED


@workflow(name="life_stubborn")
async def stubborn(x: int) -> str:
    try:
        await go.next()
    except asyncio.CancelledError:
        await go.next()
    return "end"


async def test_repeated_cancel_does_not_interrupt_cleanup(dsn: str) -> None:
    """A client repeats a request whose answer was lost: that must not cancel the code that cleans up after the first one."""
    async with Perdure(dsn) as client:
        run = await client.start(stubborn, 1)
        await run.cancel("first")
        await until(lambda: events_of(run, ev.CancelRequested), within_s=SOON_S)
        await run.cancel("second")
        await run.signal(go, 1)
        assert await run.result(SOON_S) == "end"
        assert len(await events_of(run, ev.CancelRequested)) == 1


@workflow(name="life_resolves_later")
async def resolves_later(n: int) -> int:
    await go.next()
    if n == 1:
        wf.continue_as_new(2)
    return await given.wait()


async def test_promise_link_at_a_continuation_reaches_the_next_run(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run continues as new after the act has looked for the last run of the chain, and before it locks that run."""
    async with Perdure(dsn) as client:
        run = await client.start(resolves_later, 1)
        before = await run.describe()
        await run.signal(go, 1)
        following = await continued(client, run)
        look, stale = NamespaceApi.last_of, [before]

        async def look_too_early(api: NamespaceApi, ref: Any) -> Any:
            return stale.pop() if stale else await look(api, ref)

        monkeypatch.setattr(NamespaceApi, "last_of", look_too_early)
        created = await client._backend.call(acts.CREATE_LINK, acts.CreateLink(run.id, "promise", given.name, "", 0))
        assert not stale
        stale.append(before)
        links = Links(client.api)
        await links.answer(await links.read(created.url.rpartition("/")[2]), Ballot(True, 7))
        assert not stale
        await following.signal(go, 1)
        assert await following.result(SOON) == 7


@workflow(name="life_fails_before_a_value")
async def fails_before_a_value(name: str) -> int:
    await step(name)
    return await given.wait()


async def test_promise_link_at_a_retry_is_made(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is retried after the act has found it ended, and before it says so."""
    broken.add("a")
    async with Perdure(dsn) as client:
        run = await client.start(fails_before_a_value, "a")
        await failed(run)
        broken.clear()
        view, looks = NamespaceApi.view, iter(range(2))

        async def retry_first(api: NamespaceApi, run_id: bytes) -> Any:
            if next(looks, None) == 1:  # the first look is for the last run of the chain
                await run.retry()
            return await view(api, run_id)

        monkeypatch.setattr(NamespaceApi, "view", retry_first)
        created = await client._backend.call(acts.CREATE_LINK, acts.CreateLink(run.id, "promise", given.name, "", 0))
        links = Links(client.api)
        await links.answer(await links.read(created.url.rpartition("/")[2]), Ballot(True, 7))
        assert await run.result(SOON) == 7
