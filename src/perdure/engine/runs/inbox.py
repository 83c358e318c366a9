"""The inbox writer: signals, cancel requests and updates from callers, written in batches.

Laws:

1. A sender is answered after the commit, or with an error. After an error the message may still have arrived, because an answer can be
   lost; with a key of its own it can be sent again without harm, for as long as the run goes on.
2. Messages of one run leave in the order in which they came here, also those of a sender that does not wait for the answers, and also
   when the run has continued as new in between.
3. A message that the database refuses takes no other along.
4. What waits here is bounded, in number and in bytes.

One statement at a time is under way; meanwhile the next batch gathers. So an idle engine writes at once, and a busy one writes hundreds of
messages for the price of one commit.

    put -> queue -> statement --taken--> answered
             ^        |-- the run's row is held by a commit --> to the head of the queue
             |        |-- no such active run --> followed to its successor
             '--------+---------------------------'
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, Protocol

from perdure.core.errors import InvalidInput, PerdureError, RunFinished, Unavailable
from perdure.core.ids import ended_run, no_run, text
from perdure.core.limits import (
    MESSAGES_PER_BATCH,
    MESSAGES_QUEUED_BYTES_MAX,
    MESSAGES_QUEUED_MAX,
    POST_BATCH_BYTES,
    SUCCESSORS_MAX,
)
from perdure.core.message_life import InboxKind
from perdure.core.message_limits import NOT_THERE, REPEATED, TAKEN, limit_error
from perdure.core.messages import Message, kind_of, name_of
from perdure.core.work import RunView
from perdure.engine.commits.store import NotCommitted, Poison
from perdure.engine.events import EngineEvents
from perdure.engine.ports import SendRow
from perdure.wire.codec import encode_message

log = logging.getLogger("perdure.engine")

STOPPING: Final = (InboxKind.CANCEL, InboxKind.TERMINATE)
HELD_PAUSE_S: Final = 0.002
"""Pause before a run whose row was locked is tried again, when nothing else is queued."""
HELD_S_MAX: Final = 10.0
"""How long a message waits for such a run."""
STATEMENT_TRIES: Final = 5
"""Tries of a statement that failed because of a concurrent transaction."""
SUCCESSORS_KEPT: Final = 10_000
"""Runs that continued whose successors are remembered."""

RunKey = tuple[int, bytes]
"""(namespace, run)"""


class InboxStore(Protocol):
    async def describe(self, run_id: bytes, ns: int) -> RunView | None: ...
    async def send_many(self, rows: list[SendRow]) -> list[int]:
        """One outcome each. Raises NotCommitted (write it again), Poison or Unavailable."""
        ...


class QueuedMessage:
    __slots__ = ("answer", "body", "hops", "key", "kind", "name", "named", "ns", "run_id", "since")

    def __init__(self, ns: int, run_id: bytes, message: Message, key: str | None, since: float) -> None:
        self.ns, self.run_id, self.named, self.key = ns, run_id, run_id, key
        self.body, self.kind, self.name = encode_message(message), kind_of(message), name_of(message)
        self.since, self.hops = since, 0
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def row(self) -> SendRow:
        return self.run_id, self.ns, self.body, self.key, self.named, self.kind, self.name

    def settle(self, taken: bool) -> None:
        if not self.answer.done():
            self.answer.set_result(taken)

    def refuse(self, why: PerdureError) -> None:
        if not self.answer.done():
            self.answer.set_exception(why)


class InboxWriter:
    def __init__(self, store: InboxStore, events: EngineEvents) -> None:
        self._store, self._events = store, events
        self._waiting: deque[QueuedMessage] = deque()
        self._bytes = 0
        self._unplaced: dict[RunKey, list[QueuedMessage]] = {}
        """Messages for runs that are not active, while their successors are looked for."""
        self._successors: dict[RunKey, bytes] = {}
        """Later runs of their chains."""
        self._writing: asyncio.Task[None] | None = None
        self._following: set[asyncio.Task[None]] = set()
        self._closed = False

    async def send(self, ns: int, run_id: bytes, message: Message, *, key: str = "") -> bool:
        """False when a message of this key was here before. Raises NotFound, RunFinished or Unavailable."""
        return await self.put(ns, run_id, message, key=key)

    def put(self, ns: int, run_id: bytes, sent: Message, *, key: str = "") -> asyncio.Future[bool]:
        """Queue a message, at once: messages of one caller keep their order."""
        if self._closed:
            raise Unavailable("this engine is closing; send the message to another one")
        waiting = len(self._waiting) + sum(map(len, self._unplaced.values()))
        message = QueuedMessage(ns, run_id, sent, key or None, asyncio.get_running_loop().time())
        if waiting >= MESSAGES_QUEUED_MAX or self._bytes + len(message.body) > MESSAGES_QUEUED_BYTES_MAX:
            raise Unavailable(
                f"{waiting} messages wait to be written here (MESSAGES_QUEUED_MAX={MESSAGES_QUEUED_MAX}, "
                f"MESSAGES_QUEUED_BYTES_MAX={MESSAGES_QUEUED_BYTES_MAX}); send slower, or to several engines"
            )
        self._bytes += len(message.body)
        message.answer.add_done_callback(lambda _: self._gone(message))
        self._waiting.append(message)
        self._write_soon()
        return message.answer

    def _gone(self, message: QueuedMessage) -> None:
        self._bytes -= len(message.body)

    @property
    def is_idle(self) -> bool:
        return self._writing is None and not self._unplaced

    async def close(self) -> None:
        """Write the queued messages, for as long as the caller allows; later messages are refused."""
        self._closed = True
        try:
            while not self.is_idle:
                await asyncio.gather(*self.tasks, return_exceptions=True)
        finally:
            for task in self.tasks:
                task.cancel()
            for message in [*self._waiting, *(p for messages in self._unplaced.values() for p in messages)]:
                message.refuse(Unavailable("this engine has closed; the message was not sent"))

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What it does in the background."""
        return [*self._following, *([self._writing] if self._writing else [])]

    def _write_soon(self) -> None:
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="perdure-inbox")
            self._writing.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("writing messages failed; whether they were written is unknown", exc_info=error)
        if self._waiting and not task.cancelled():
            self._write_soon()

    async def _write(self) -> None:
        while self._waiting:
            batch = self._take()
            if not batch:
                continue
            try:
                held = await self._send(batch)
            except BaseException:
                for message in batch:
                    message.refuse(Unavailable("whether the message was written is unknown; repeat it if it has a key"))
                raise
            if held:
                self._waiting.extendleft(reversed(held))
                if len(held) == len(batch):
                    await asyncio.sleep(HELD_PAUSE_S)

    def _take(self) -> list[QueuedMessage]:
        """The next batch. Of two queued messages with the same key, the second waits for the outcome of the first."""
        batch: list[QueuedMessage] = []
        keys: set[tuple[bytes, str]] = set()
        size = 0
        while self._waiting and len(batch) < MESSAGES_PER_BATCH:
            message = self._waiting[0]
            if message.answer.done():  # its sender has given up
                self._waiting.popleft()
                continue
            self._direct(message)
            if unplaced := self._unplaced.get((message.ns, message.run_id)):
                unplaced.append(self._waiting.popleft())
                continue
            size += len(message.body)
            if batch and size > POST_BATCH_BYTES:
                break
            if message.key is not None:
                if (message.named, message.key) in keys:
                    break
                keys.add((message.named, message.key))
            batch.append(self._waiting.popleft())
        return batch

    def _direct(self, message: QueuedMessage) -> None:
        """Address the message to the last known successor of its run."""
        while (
            successor := self._successors.get((message.ns, message.run_id))
        ) is not None and message.hops < SUCCESSORS_MAX:
            message.run_id = successor
            message.hops += 1

    async def _send(self, batch: list[QueuedMessage]) -> list[QueuedMessage]:
        """Write a batch and answer; returns those whose runs were held."""
        try:
            outcomes = await self._tried([p.row for p in batch])
        except Unavailable as e:
            for message in batch:
                message.refuse(
                    Unavailable(f"{e}; whether the message was written is unknown: repeat it if it has a key")
                )
            return []
        except Poison as e:
            if len(batch) == 1:
                batch[0].refuse(InvalidInput(f"the database refuses this message: {e}"))
                return []
            middle = len(batch) // 2
            # One after the other, and what comes later only once it is clear what was held: the order stays.
            held = await self._send(batch[:middle])
            return [*held, *(await self._send(batch[middle:]) if not held else batch[middle:])]
        return self._settle(batch, outcomes)

    async def _tried(self, rows: list[SendRow]) -> list[int]:
        why = ""
        for _ in range(STATEMENT_TRIES):
            try:
                return await self._store.send_many(rows)
            except NotCommitted as e:
                why = str(e)
                await asyncio.sleep(HELD_PAUSE_S)
        raise Unavailable(f"the messages met others too often: {why}")

    def _settle(self, batch: list[QueuedMessage], outcomes: list[int]) -> list[QueuedMessage]:
        held: list[QueuedMessage] = []
        reached: dict[bytes, None] = {}
        now = asyncio.get_running_loop().time()
        for message, outcome in zip(batch, outcomes, strict=True):
            if outcome == TAKEN:
                reached[message.run_id] = None
                message.settle(taken=True)
            elif outcome == REPEATED:
                message.settle(taken=False)
            elif outcome == NOT_THERE:
                self._follow(message)
            elif (refusal := limit_error(outcome, message.run_id, message.name)) is not None:
                message.refuse(refusal)
            elif now - message.since > HELD_S_MAX:
                message.refuse(
                    Unavailable(f"run {text(message.run_id)} could not be reached for {HELD_S_MAX:g} s; try again")
                )
            else:
                held.append(message)
        for run_id in reached:
            self._events.message_sent.publish(run_id)
        if any(p.kind in STOPPING for p, outcome in zip(batch, outcomes, strict=True) if outcome == TAKEN):
            self._events.cancel_sent.publish()
        return held

    def _follow(self, message: QueuedMessage) -> None:
        where = (message.ns, message.run_id)
        unplaced = self._unplaced.get(where)
        if unplaced is not None:
            unplaced.append(message)
            return
        self._unplaced[where] = [message]
        task = asyncio.get_running_loop().create_task(self._find(where))
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _find(self, where: RunKey) -> None:
        """A run that continued as new is followed; all its messages go on together, in their order, before those that came later."""
        error: PerdureError | None = None
        try:
            view = await self._store.describe(where[1], where[0])
            if view is None:
                error = no_run(where[1])
            elif view.next_run is not None:
                self._remember(where, view.next_run)
            elif view.finished_us is not None:
                error = ended_run(view.run_id)
            # else: it was opened again a moment ago
        except PerdureError as e:
            error = e
        except Exception as e:
            log.exception("a run could not be looked up")
            error = Unavailable(f"the run could not be looked up: {e}")
        finally:
            messages = self._unplaced.pop(where, [])
        for message in reversed(messages):
            message.hops += where not in self._successors
            if error is not None:
                message.refuse(error)
            elif message.hops >= SUCCESSORS_MAX:
                message.refuse(RunFinished("the run was continued too many times to follow"))
            else:
                self._waiting.appendleft(message)
        if self._waiting:
            self._write_soon()

    def _remember(self, where: RunKey, successor: bytes) -> None:
        self._successors[where] = successor
        if len(self._successors) > SUCCESSORS_KEPT:
            del self._successors[next(iter(self._successors))]
