"""Messages from outside on their way into inboxes: signals, requests to stop, updates.

Laws:

1. Who posts is answered after the commit, or with an error. After an error the message may still have arrived, because an answer can be
   lost; with a key of its own it can be sent again without harm, for as long as the run goes on.
2. Messages of one run leave in the order in which they came here, also those of somebody who does not wait for the answers, and also
   when the run has continued as new in between.
3. A message that the database refuses takes nobody along.
4. What waits here is bounded, in number and in bytes.

One statement at a time is under way; meanwhile the next batch gathers. So an idle engine posts at once, and a busy one writes hundreds of
messages for the price of one commit.

    put -> line -> statement --taken--> answered
             ^        |-- the run's row is held by a commit --> to the head of the line
             |        |-- no such active run --> followed to its successor
             '--------+---------------------------'
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from perdure.core.errors import InvalidInput, PerdureError, RunFinished, Unavailable
from perdure.core.ids import text
from perdure.core.limits import (
    POST_BATCH_BYTES,
    POSTS_PER_BATCH,
    POSTS_WAITING_BYTES_MAX,
    POSTS_WAITING_MAX,
    SUCCESSORS_MAX,
)
from perdure.core.work import RunView
from perdure.engine.ports import NotCommitted, Poison, PostRow

log = logging.getLogger("perdure.engine")

TAKEN, REPEATED, NOT_THERE, HELD = range(4)
"""What becomes of a message, as the store tells."""

HELD_PAUSE_S: Final = 0.002
"""Before a run whose row was held is asked for again, when there is nothing else to do."""
HELD_S_MAX: Final = 10.0
"""How long a message waits for such a run."""
STATEMENT_TRIES: Final = 5
"""Of one that failed because of what somebody else did at the same moment."""
SUCCESSORS_KEPT: Final = 10_000
"""Runs that continued whose successors are remembered."""

Where = tuple[int, bytes]
"""(namespace, run)"""


class PostStore(Protocol):
    async def post_many(self, rows: list[PostRow]) -> list[int]:
        """One outcome each. Raises NotCommitted (write it again), Poison or Unavailable."""
        ...


class Post:
    __slots__ = ("answer", "body", "hops", "key", "named", "ns", "run_id", "since", "stops")

    def __init__(self, ns: int, run_id: bytes, body: bytes, key: str | None, stops: bool, since: float) -> None:
        self.ns, self.run_id, self.named, self.body, self.key, self.stops = ns, run_id, run_id, body, key, stops
        self.since, self.hops = since, 0
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def row(self) -> PostRow:
        return self.run_id, self.ns, self.body, self.key, self.named, self.stops

    def settle(self, taken: bool) -> None:
        if not self.answer.done():
            self.answer.set_result(taken)

    def refuse(self, why: PerdureError) -> None:
        if not self.answer.done():
            self.answer.set_exception(why)


class Postbox:
    def __init__(
        self,
        store: PostStore,
        describe: Callable[[bytes, int], Awaitable[RunView]],
        posted: Callable[[bytes], None],
    ) -> None:
        self._store, self._describe, self._posted = store, describe, posted
        self._line: deque[Post] = deque()
        self._bytes = 0
        self._lost: dict[Where, list[Post]] = {}
        """Messages for runs that are not active, while their successors are looked for."""
        self._successors: dict[Where, bytes] = {}
        """What runs continued as, which never changes."""
        self._writing: asyncio.Task[None] | None = None
        self._following: set[asyncio.Task[None]] = set()
        self._closed = False
        self.cancel_posted: Callable[[], None] = lambda: None
        """Called when requests to stop were written."""

    async def post(self, ns: int, run_id: bytes, body: bytes, *, key: str = "", stops: bool = False) -> bool:
        """False when a message of this key was here before. Raises NotFound, RunFinished or Unavailable."""
        return await self.put(ns, run_id, body, key=key, stops=stops)

    def put(self, ns: int, run_id: bytes, body: bytes, *, key: str = "", stops: bool = False) -> asyncio.Future[bool]:
        """Join the line, at once: whoever calls twice is served in this order."""
        if self._closed:
            raise Unavailable("this engine is closing; send the message to another one")
        waiting = len(self._line) + sum(map(len, self._lost.values()))
        if waiting >= POSTS_WAITING_MAX or self._bytes + len(body) > POSTS_WAITING_BYTES_MAX:
            raise Unavailable(
                f"{waiting} messages wait to be written here (POSTS_WAITING_MAX={POSTS_WAITING_MAX}, "
                f"POSTS_WAITING_BYTES_MAX={POSTS_WAITING_BYTES_MAX}); send slower, or to several engines"
            )
        post = Post(ns, run_id, body, key or None, stops, asyncio.get_running_loop().time())
        self._bytes += len(body)
        post.answer.add_done_callback(lambda _: self._gone(post))
        self._line.append(post)
        self._write_soon()
        return post.answer

    def _gone(self, post: Post) -> None:
        self._bytes -= len(post.body)

    @property
    def is_idle(self) -> bool:
        return self._writing is None and not self._lost

    async def close(self) -> None:
        """Write what waits, for as long as the caller allows; then nothing is taken any more."""
        self._closed = True
        try:
            while not self.is_idle:
                await asyncio.gather(
                    *self._following, *([self._writing] if self._writing else []), return_exceptions=True
                )
        finally:
            for task in (*self._following, *([self._writing] if self._writing else [])):
                task.cancel()
            for post in [*self._line, *(p for posts in self._lost.values() for p in posts)]:
                post.refuse(Unavailable("this engine has closed; the message was not sent"))

    # -- writing ----------------------------------------------------------------------------------------------------

    def _write_soon(self) -> None:
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="perdure-postbox")
            self._writing.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the postbox failed; what it was writing is in doubt", exc_info=error)
        if self._line and not task.cancelled():
            self._write_soon()

    async def _write(self) -> None:
        while self._line:
            batch = self._take()
            if not batch:
                continue
            try:
                held = await self._send(batch)
            except BaseException:
                for post in batch:
                    post.refuse(Unavailable("whether the message was written is unknown; repeat it if it has a key"))
                raise
            if held:
                self._line.extendleft(reversed(held))
                if len(held) == len(batch):
                    await asyncio.sleep(HELD_PAUSE_S)

    def _take(self) -> list[Post]:
        """The next batch. Of two messages with one key in the line, the second waits for what becomes of the first."""
        batch: list[Post] = []
        keys: set[tuple[bytes, str]] = set()
        size = 0
        while self._line and len(batch) < POSTS_PER_BATCH:
            post = self._line[0]
            if post.answer.done():  # whoever sent it has given up
                self._line.popleft()
                continue
            self._direct(post)
            if lost := self._lost.get((post.ns, post.run_id)):
                lost.append(self._line.popleft())
                continue
            size += len(post.body)
            if batch and size > POST_BATCH_BYTES:
                break
            if post.key is not None:
                if (post.named, post.key) in keys:
                    break
                keys.add((post.named, post.key))
            batch.append(self._line.popleft())
        return batch

    def _direct(self, post: Post) -> None:
        """To the last successor that is known of."""
        while (successor := self._successors.get((post.ns, post.run_id))) is not None and post.hops < SUCCESSORS_MAX:
            post.run_id = successor
            post.hops += 1

    async def _send(self, batch: list[Post]) -> list[Post]:
        """Write a batch and answer; returns those whose runs were held."""
        try:
            outcomes = await self._tried([p.row for p in batch])
        except Unavailable as e:
            for post in batch:
                post.refuse(Unavailable(f"{e}; whether the message was written is unknown: repeat it if it has a key"))
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

    async def _tried(self, rows: list[PostRow]) -> list[int]:
        why = ""
        for _ in range(STATEMENT_TRIES):
            try:
                return await self._store.post_many(rows)
            except NotCommitted as e:
                why = str(e)
                await asyncio.sleep(HELD_PAUSE_S)
        raise Unavailable(f"the messages met others too often: {why}")

    def _settle(self, batch: list[Post], outcomes: list[int]) -> list[Post]:
        held: list[Post] = []
        reached: dict[bytes, None] = {}
        now = asyncio.get_running_loop().time()
        for post, outcome in zip(batch, outcomes, strict=True):
            if outcome == TAKEN:
                reached[post.run_id] = None
                post.settle(taken=True)
            elif outcome == REPEATED:
                post.settle(taken=False)
            elif outcome == NOT_THERE:
                self._follow(post)
            elif now - post.since > HELD_S_MAX:
                post.refuse(
                    Unavailable(f"run {text(post.run_id)} could not be reached for {HELD_S_MAX:g} s; try again")
                )
            else:
                held.append(post)
        for run_id in reached:
            self._posted(run_id)
        if any(p.stops for p, outcome in zip(batch, outcomes, strict=True) if outcome == TAKEN):
            self.cancel_posted()
        return held

    # -- runs that are not there ------------------------------------------------------------------------------------

    def _follow(self, post: Post) -> None:
        where = (post.ns, post.run_id)
        lost = self._lost.get(where)
        if lost is not None:
            lost.append(post)
            return
        self._lost[where] = [post]
        task = asyncio.get_running_loop().create_task(self._find(where))
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _find(self, where: Where) -> None:
        """A run that continued as new is followed; all its messages go on together, in their order, before those that came later."""
        error: PerdureError | None = None
        try:
            view = await self._describe(where[1], where[0])
            if view.successor is not None:
                self._remember(where, view.successor)
            elif view.finished_us is not None:
                error = RunFinished(f"run {text(view.run_id)} has ended and takes no more messages")
            # else: it was opened again a moment ago
        except PerdureError as e:
            error = e
        except Exception as e:
            log.exception("a run could not be looked up")
            error = Unavailable(f"the run could not be looked up: {e}")
        finally:
            posts = self._lost.pop(where, [])
        for post in reversed(posts):
            post.hops += where not in self._successors
            if error is not None:
                post.refuse(error)
            elif post.hops >= SUCCESSORS_MAX:
                post.refuse(RunFinished("the run was continued too many times to follow"))
            else:
                self._line.appendleft(post)
        if self._line:
            self._write_soon()

    def _remember(self, where: Where, successor: bytes) -> None:
        self._successors[where] = successor
        if len(self._successors) > SUCCESSORS_KEPT:
            del self._successors[next(iter(self._successors))]
