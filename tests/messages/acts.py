"""Runs that wait for a message of some kind, what happens to them meanwhile, and what became of the message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import msgspec

from perdure import Approval, Handle, NamedEvent, Promise, Retry, Signal, State, Update, task, wf, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import approvals, runs
from perdure.core.api.approvals import GetApproval
from perdure.core.api.messages import StateRead
from perdure.core.message_life import InboxKind
from perdure.core.work import StartRequest
from perdure.engine.runs.transitions import IDLE, Closing
from perdure.errors import NotFound, PerdureError, RunFinished
from tests.fakes.waiting import until
from tests.messages import pairs
from tests.messages.pair_doors import DELEGATE, NAMES, VALUE, VOTER, Doors, Letter, Sent
from tests.messages.pairs import Act, Door, Kind
from tests.server.parity.stage import NOWHERE, Stage
from tests.store.blocking import until_blocked

SOON_S: Final = 20.0

go = Signal("pairs_go", str)
close = Signal("pairs_close", str)
word = Signal("pairs_word", int)
given = Promise("pairs_value", int)
solo = Approval("pairs_solo", assignees=[VOTER])
deal = Approval("pairs_deal", assignees=["ada", VOTER], quorum=2)
paid = NamedEvent("pairs_paid", dict[str, Any])
change = Update("pairs_change", int, int)
note = State("pairs_note", "")
broken: set[str] = set()


@task(name="pairs_amount")
async def amount(n: int) -> int:
    return n


@task(name="pairs_step", retry=Retry(1))
async def step(key: str) -> None:
    if key in broken:
        raise ValueError("broken")


async def receive(kind: str, key: str, asked: int) -> Any:
    match Kind(kind):
        case Kind.SIGNAL | Kind.SIGNAL_WITH_START:
            return await word.next()
        case Kind.PROMISE:
            return await given.wait()
        case Kind.DECISION:
            await solo.wait(details={"amount": asked})
        case Kind.VOTE | Kind.DELEGATION:
            await deal.wait(details={"amount": asked})
        case Kind.EVENT:
            return (await paid.wait("event.run == run", run=key, amount=asked))["value"]
        case Kind.UPDATE:
            request = await change.next()
            request.reply(request.value)
            return request.value
        case _:
            await asyncio.Event().wait()
    return VALUE


@workflow(name="pairs_reader")
async def reader(kind: str, key: str, reads: bool, n: int = 1) -> Any:
    asked = await amount(n)
    reading = asyncio.create_task(receive(kind, key, asked)) if reads else None
    note.set("here")
    order = await go.next() if n == 1 else "read"
    if order == "fail":
        await step(key)
    if order in ("fail", "read"):
        return None if reading is None else await reading
    await wf.sleep("20ms")  # what comes while the end is being written comes before this timer
    if order == "continue":
        wf.continue_as_new(kind, key, reads, n + 1)
    return reading.result() if order == "succeed" and reading is not None and reading.done() else None


@reader.query
def noted() -> str:
    return note.get()


@workflow(name="pairs_parent")
async def parent(kind: str, key: str, reads: bool, policy: Any) -> None:
    child = asyncio.create_task(_child(kind, key, reads, policy))
    await close.next()
    child.done()


async def _child(kind: str, key: str, reads: bool, policy: Any) -> Any:
    return await reader.options(parent_close=policy, key=key)(kind, key, reads)


QUESTIONS: Final = (Kind.DECISION, Kind.VOTE, Kind.DELEGATION, Kind.EVENT)
RECEIVED: Final = (Kind.SIGNAL, Kind.SIGNAL_WITH_START, Kind.PROMISE, Kind.DECISION, Kind.UPDATE, Kind.EVENT)
"""Kinds that the code reads."""
INBOX: Final[Mapping[Kind, InboxKind]] = {
    Kind.SIGNAL: InboxKind.SIGNAL,
    Kind.SIGNAL_WITH_START: InboxKind.SIGNAL,
    Kind.PROMISE: InboxKind.PROMISE,
    Kind.DECISION: InboxKind.ANSWER,
    Kind.UPDATE: InboxKind.UPDATE,
    Kind.EVENT: InboxKind.ANSWER,
    Kind.CANCEL: InboxKind.CANCEL,
    Kind.TERMINATE: InboxKind.TERMINATE,
    Kind.PAUSE: InboxKind.PAUSE,
}
"""Kinds that stand in the inbox until they are recorded. The others are written, or answered, at once."""
EVENTS: Final[Mapping[Kind, type[ev.Event]]] = {
    Kind.SIGNAL: ev.SignalReceived,
    Kind.SIGNAL_WITH_START: ev.SignalReceived,
    Kind.PROMISE: ev.PromiseResolved,
    Kind.DECISION: ev.PromiseResolved,
    Kind.UPDATE: ev.UpdateReceived,
    Kind.EVENT: ev.PromiseResolved,
}
REASONS: Final = {
    Act.FAILURE: "failed",
    Act.DELETE: "failed",
    Act.CANCEL: "cancelled",
    Act.TERMINATE: "cancelled",
    Act.CANCELLED_CHILD: "cancelled",
    Act.TERMINATED_CHILD: "cancelled",
    Act.CONTINUE: "continued",
}
"""What the list of unread messages says of an act that sets them aside."""
POLICIES: Final = {Act.CANCELLED_CHILD: "cancel", Act.TERMINATED_CHILD: "terminate", Act.ABANDONED_CHILD: "abandon"}
UNSETTLED: Final = """
select exists(select from perdure.inbox where run_id = $1) or exists(select from perdure.event_look where run_id = $1)
"""
"""Messages that are not recorded, and waits that may find an event yet."""
DELIVERED: Final = """
select done_at is not null from perdure.named_event where strpos(convert_from(body, 'utf8'), $1) > 0
"""
ASLEEP: Final = "select owner is null and wake_at > perdure.clock() from perdure.run_queue where run_id = $1"
COMMITTING: Final = "with fence as materialized"
"""Part of the statement that ends a run."""
PAUSING: Final = "paused_at is not null as is_paused"
"""Part of the statement that pauses a run."""


@dataclass
class Cell:
    act: Act
    kind: Kind
    door: Door
    letter: Letter
    run: Handle[Any]
    """To which the message is sent."""
    parent: Handle[Any] | None = None
    sent: Sent = field(default_factory=Sent)

    def __str__(self) -> str:
        return f"{self.act.value} / {self.kind.value} / {self.door.value}"


class Acts:
    def __init__(self, stage: Stage, doors: Doors, pool: Any) -> None:
        self.stage, self.doors, self.pool = stage, doors, pool
        self._one_end = asyncio.Lock()
        self._perform: dict[Act, Callable[[Cell], Awaitable[str]]] = {
            Act.NONE: self._none,
            Act.PAUSE: self._pause,
            Act.STUCK: self._stuck,
            Act.SUCCESS: lambda cell: self._at_end(cell, lambda: cell.run.signal(go, "succeed")),
            Act.SUCCESS_UNREAD: lambda cell: self._at_end(cell, lambda: cell.run.signal(go, "ignore")),
            Act.FAILURE: self._fail,
            Act.RETRY: self._retry,
            Act.CANCEL: lambda cell: self._at_end(cell, cell.run.cancel),
            Act.TERMINATE: lambda cell: self._at_end(cell, cell.run.terminate),
            Act.CANCELLED_CHILD: self._close_parent,
            Act.TERMINATED_CHILD: self._close_parent,
            Act.ABANDONED_CHILD: self._abandon,
            Act.CONTINUE: lambda cell: self._at_end(cell, lambda: cell.run.signal(go, "continue")),
            Act.AFTER_END: self._after_end,
            Act.UNKNOWN_RUN: self._send_elsewhere,
            Act.UNKNOWN_NAME: lambda cell: self._send_wrong(cell, name="pairs_wrong"),
            Act.MISFIT: lambda cell: self._send_wrong(cell, value="seven"),
            Act.FORK: self._fork,
            Act.FORK_PENDING: self._fork_pending,
            Act.FORK_EDITED: lambda cell: self._fork(cell, {"pairs_amount": 1_000_000}),
            Act.RERUN: self._rerun,
            Act.DELETE: self._delete,
        }

    async def begin(self, act: Act, kind: Kind, door: Door) -> Cell:
        """A run that waits for the message."""
        key, reads = self.stage.name(), act is not Act.SUCCESS_UNREAD or kind in QUESTIONS
        given: dict[str, Any] = {"kind": kind.value, "key": key, "reads": reads}
        start = StartRequest(workflow="pairs_reader", version="", input=msgspec.json.encode(given), key=key)
        above = None
        if (policy := POLICIES.get(act)) is None:
            run = self._handle((await self.stage.embedded(runs.START, start)).run_id)
        else:
            given["policy"] = policy
            outer = StartRequest(workflow="pairs_parent", version="", input=msgspec.json.encode(given))
            above = self._handle((await self.stage.embedded(runs.START, outer)).run_id)
            run = self._handle(await until(lambda: self._by_key(key), "the child has started", SOON_S))
        await until(lambda: self._waits(run, "StateSet"), "the run waits", SOON_S)
        if reads and kind in QUESTIONS:
            await until(lambda: self._waits(run, "PromiseCreated"), "the run asks", SOON_S)
        letter = Letter(kind, run.id, key, start, NAMES.get(kind, ""))
        if door is Door.LINK:
            letter = replace(letter, link=await self.doors.link(kind, run.id))
        return Cell(act, kind, door, letter, run, above)

    def _handle(self, run_id: bytes) -> Handle[Any]:
        return Handle(self.stage.perdure._backend, run_id, lambda data: data)

    async def _by_key(self, key: str) -> bytes | None:
        try:
            return ids.parse((await self.stage.perdure.get(f"key:{key}")).id)
        except NotFound:
            return None

    async def _waits(self, run: Handle[Any], event: str) -> bool:
        return event in await self._events(run)

    async def _events(self, run: Handle[Any]) -> list[str]:
        return [type(r.event).__name__ for r in await run.history()]

    async def perform(self, act: Act, kind: Kind, door: Door) -> tuple[Cell, str]:
        """What became of the message."""
        cell = await self.begin(act, kind, door)
        return cell, await self._perform[act](cell)

    async def _send(self, cell: Cell) -> None:
        cell.sent = await self.doors.send(cell.door, cell.letter)

    # ---- acts on a run that goes on

    async def _none(self, cell: Cell) -> str:
        await self._send(cell)
        return await self._read(cell)

    async def _read(self, cell: Cell) -> str:
        """The code reads its message and ends; a run without one waits on."""
        if cell.kind in RECEIVED:
            await cell.run.signal(go, "read")
        return await self._outcome(cell, cell.run)

    async def _pause(self, cell: Cell) -> str:
        await cell.run.pause()
        await self._send(cell)
        await self._resume(cell)
        return await self._read(cell)

    async def _stuck(self, cell: Cell) -> str:
        await self._settle(cell.run)
        query = "update perdure.run_queue set stuck = 'pairs: stuck', owner = null where run_id = $1"
        await self.pool.execute(query, UUID(cell.run.id))
        await self._send(cell)
        await self._resume(cell)
        return await self._read(cell)

    async def _resume(self, cell: Cell) -> None:
        try:
            await cell.run.resume()
        except PerdureError as e:  # a request to stop has ended the pause
            assert cell.kind in (Kind.CANCEL, Kind.TERMINATE) and e.code in ("conflict", "run_finished"), e

    # ---- ends

    async def _at_end(self, cell: Cell, order: Callable[[], Awaitable[Any]]) -> str:
        await self._send_at_end(cell, order)
        await self._ended(cell.run)
        return await self._outcome(cell, await self._last(cell.run))

    async def _send_at_end(self, cell: Cell, order: Callable[[], Awaitable[Any]]) -> None:
        async with self._one_end, self._end_is_held(cell):
            ordered = asyncio.ensure_future(order())
            await until(lambda: self._is_ending(cell), "the end of the run is decided", SOON_S)
            await until_blocked(self.pool, COMMITTING)  # its commit has begun, and has its time
            before = await self._arrived(cell)  # the order may be a message of the same kind
            sending = asyncio.ensure_future(self._send(cell))  # some doors answer when the run has ended
            if cell.kind is Kind.PAUSE:
                await until_blocked(self.pool, PAUSING)
            await until(
                lambda: self._has_arrived(cell, sending, before), "the message is acknowledged or refused", SOON_S
            )
        await sending
        await ordered

    @asynccontextmanager
    async def _end_is_held(self, cell: Cell) -> AsyncIterator[None]:
        """Hold the row of the run as each sender does until its message is written: its end is decided, and written after this. One at
        a time, because a commit that waits for this row keeps later ones of the engine waiting."""
        async with self.pool.acquire() as held, held.transaction():
            await held.execute("select from perdure.run_queue where run_id = $1 for key share", UUID(cell.run.id))
            yield

    def _is_ending(self, cell: Cell) -> bool:
        owned = self.stage.perdure.engine.runs.get(ids.parse(cell.run.id))
        return owned is not None and isinstance(owned.phase, Closing)

    async def _has_arrived(self, cell: Cell, sending: asyncio.Future[None], before: int) -> bool:
        if cell.kind is Kind.PAUSE:
            return True
        if cell.kind not in INBOX or (sending.done() and cell.sent.refused):
            return sending.done()
        return await self._arrived(cell) > before

    async def _arrived(self, cell: Cell) -> int:
        """How many messages of this kind are pending."""
        query = "select count(*) from perdure.inbox where run_id = $1 and kind = $2"
        return int(await self.pool.fetchval(query, UUID(cell.run.id), INBOX.get(cell.kind)))

    async def _fail(self, cell: Cell) -> str:
        broken.add(cell.letter.key)
        return await self._at_end(cell, lambda: cell.run.signal(go, "fail"))

    async def _retry(self, cell: Cell) -> str:
        broken.add(cell.letter.key)
        await self._send_at_end(cell, lambda: cell.run.signal(go, "fail"))
        await self._ended(cell.run)
        if cell.kind is Kind.PAUSE:  # it was refused
            return await self._outcome(cell, cell.run)
        broken.discard(cell.letter.key)
        await cell.run.retry()
        await until(lambda: self._waits(cell.run, "RunRetried"), "the run is retried", SOON_S)
        return await self._outcome(cell, cell.run)

    async def _close_parent(self, cell: Cell) -> str:
        assert cell.parent is not None
        above = cell.parent
        return await self._at_end(cell, lambda: above.signal(close, "now"))

    async def _abandon(self, cell: Cell) -> str:
        assert cell.parent is not None
        await cell.parent.signal(close, "now")
        await self._ended(cell.parent)
        return await self._none(cell)

    async def _after_end(self, cell: Cell) -> str:
        await cell.run.signal(go, "succeed")
        await self._ended(cell.run)
        await self._send(cell)
        return await self._outcome(cell, cell.run)

    # ---- messages that don't fit

    async def _send_elsewhere(self, cell: Cell) -> str:
        key = self.stage.name()
        start = msgspec.structs.replace(cell.letter.start, key=key)
        return await self._send_wrong(cell, run=NOWHERE, key=key, start=start)

    async def _send_wrong(self, cell: Cell, **wrong: Any) -> str:
        cell.letter = replace(cell.letter, **wrong)
        before = await self._events(cell.run)
        await self._send(cell)
        if cell.kind is Kind.EVENT:
            await until(lambda: self.pool.fetchval(DELIVERED, cell.letter.key), "the event is delivered", SOON_S)
        found = await self._outcome(cell, cell.run)
        assert await self._events(cell.run) == before
        return found

    # ---- copies

    async def _fork(self, cell: Cell, edits: Mapping[str, Any] | None = None) -> str:
        await self._record(cell)
        at = (await cell.run.history())[-1].seq
        return await self._copied(cell, await cell.run.fork(at, edits), at)

    async def _fork_pending(self, cell: Cell) -> str:
        await cell.run.pause()
        at = (await cell.run.history())[-1].seq  # a request to stop ends the pause, and is recorded at once
        await self._send(cell)
        return await self._copied(cell, await cell.run.fork(at), at)

    async def _record(self, cell: Cell) -> None:
        """Send the message, and wait until the run has recorded it. An event is on its way to the run after `emit` returns."""
        await self._send(cell)
        if cell.kind in EVENTS:
            name = EVENTS[cell.kind].__name__
            await until(lambda: self._waits(cell.run, name), "the run has recorded the message", SOON_S)
        await self._settle(cell.run)

    async def _rerun(self, cell: Cell) -> str:
        await self._record(cell)
        return await self._copied(cell, await cell.run.rerun())

    async def _copied(self, cell: Cell, copy: Handle[Any], at: int = 0) -> str:
        """What the copy has of the message. `at`: the last event that is copied."""
        if cell.kind in RECEIVED:
            await copy.signal(go, "read")
        await until(lambda: self._waits(copy, "StateSet"), "the copy waits", SOON_S)
        found = await self._outcome(cell, copy)
        if found in (pairs.DELIVERED, pairs.FOUND_AGAIN, pairs.COUNTS, pairs.IN_EFFECT):
            is_copy = cell.kind not in EVENTS or any(
                type(r.event) is EVENTS[cell.kind] and r.seq <= at for r in await copy.history()
            )
            return pairs.COPIED if is_copy else pairs.FOUND_AGAIN
        if found == pairs.ANSWERED or cell.sent.refused:
            return found
        asks = cell.kind in (*QUESTIONS, Kind.PROMISE) and "PromiseCreated" in await self._events(copy)
        return pairs.ASKED_AGAIN if asks else pairs.STAYS

    async def _delete(self, cell: Cell) -> str:
        """Of a failed run that keeps its messages."""
        found = await self._fail(cell)
        await cell.run.delete()
        for table in ("inbox", "set_aside_message", "promise", "vote"):
            query = f"select count(*) from perdure.{table} where run_id = $1"
            assert await self.pool.fetchval(query, UUID(cell.run.id)) == 0, table
        return pairs.DELETED if found in (pairs.SET_ASIDE, pairs.OVER) else found

    # ---- what became of it

    async def _ended(self, run: Handle[Any]) -> None:
        await until(lambda: self._has_ended(run), "the run has ended", SOON_S)

    async def _has_ended(self, run: Handle[Any]) -> bool:
        return await run.status() not in ("pending", "running")

    async def _last(self, run: Handle[Any]) -> Handle[Any]:
        while (successor := (await run.describe()).successor) is not None:
            run = self._handle(successor)
        return run

    async def _settle(self, run: Handle[Any]) -> None:
        await until(lambda: self._is_settled(run), "the run has seen all its messages", SOON_S)

    async def _is_settled(self, run: Handle[Any]) -> bool:
        """It has ended, is paused, or its code has begun, has seen everything, and waits."""
        view = await run.describe()
        if view.finished_us is not None or view.paused_by is not None:
            return True
        if not await self._waits(run, "StateSet"):
            return False
        if await self.pool.fetchval(UNSETTLED, UUID(run.id)):
            return False
        owned = self.stage.perdure.engine.runs.get(ids.parse(run.id))
        if owned is None:  # put out of memory until something wakes it
            return bool(await self.pool.fetchval(ASLEEP, UUID(run.id)))
        return owned.phase is IDLE and not (owned.writing or owned.pending or owned.deliver)

    async def _outcome(self, cell: Cell, run: Handle[Any]) -> str:
        if cell.sent.refused:
            return pairs.refused(cell.sent.refused)
        if isinstance(cell.sent.reply, StateRead) and cell.sent.reply.value is None:
            return pairs.UNSET
        if cell.kind in (Kind.QUERY, Kind.STATE):
            return pairs.ANSWERED
        await self._settle(run)
        if cell.kind in (Kind.VOTE, Kind.DELEGATION):
            return await self._standing(cell, run)
        view = await run.describe()
        if cell.kind is Kind.PAUSE:
            return pairs.IN_EFFECT if view.paused_by is not None else pairs.NO_EFFECT
        if cell.kind in (Kind.CANCEL, Kind.TERMINATE):
            is_from_this = cell.act not in (Act.CANCEL, Act.TERMINATE, Act.CANCELLED_CHILD, Act.TERMINATED_CHILD)
            return pairs.IN_EFFECT if await run.status() == "cancelled" and is_from_this else pairs.NO_EFFECT
        return await self._message(cell, run)

    async def _message(self, cell: Cell, run: Handle[Any]) -> str:
        shown = await self.stage.live.get(f"/runs/{run.id}")
        unread = (await self.stage.live.get(f"/runs/{cell.run.id}"))["unread"]
        if shown["status"] == "success":
            result = (await self.stage.live.get(f"/runs/{run.id}/result"))["result"]
            if result == VALUE:
                return pairs.FOUND_AGAIN if unread else pairs.DELIVERED
        if unread:
            assert [u["kind"] for u in unread] == [INBOX[cell.kind].value], unread
            if unread[0]["set_aside"] is not None:
                assert unread[0]["set_aside"] == REASONS[cell.act], unread
                return pairs.SET_ASIDE
        if cell.kind is Kind.SIGNAL_WITH_START:
            following = self._handle(await until(lambda: self._by_key(cell.letter.key)))
            if following.id not in (run.id, cell.run.id):
                await until(lambda: self._waits(following, "SignalReceived"), "the next run has the signal", SOON_S)
                return pairs.STARTS_RUN
        seen = [r.event for r in await run.history() if type(r.event) is EVENTS[cell.kind]]
        if any(not isinstance(e, ev.SignalReceived) or e.name == word.name for e in seen):
            return pairs.RECORDED
        return pairs.NO_EFFECT

    async def _standing(self, cell: Cell, run: Handle[Any]) -> str:
        if not await self._has_ended(run):
            await until(lambda: self._waits(run, "PromiseCreated"), "the run asks", SOON_S)
        try:
            found = await self.stage.embedded(approvals.GET, GetApproval(run.id, deal.name))
        except (NotFound, RunFinished):
            return pairs.OVER
        counts = VOTER in [v.who for v in found.votes] if cell.kind is Kind.VOTE else DELEGATE in found.answerers
        if counts:
            return pairs.COUNTS
        return pairs.ASKED_AGAIN
