"""One connected worker as the server sees it: what it runs, what it holds, and what waits to be sent to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from perdure.core.commands import Command
from perdure.core.errors import PerdureError
from perdure.core.work import Activation, Assignment, QueryCall, Report
from perdure.wire.parts import activation_parts, activation_size
from perdure.wire.protocol import PART_BYTES, Down, Hello, Token, Welcome


class Connection:
    """Lives as long as the stream, and for a grace period after."""

    def __init__(self, hello: Hello, ns: int, namespace: str, now_us: int) -> None:
        self.id, self.name, self.hello, self.ns, self.namespace = hello.worker_id, hello.name, hello, ns, namespace
        self.slots = hello.slots
        self.connected_us = self.seen_us = now_us
        self.is_open = True
        self.draining = False
        self.blocked = ""
        """The stack that blocks its event loop, as last reported."""
        self.running: dict[tuple[bytes, int], int] = {}
        """(run, seq) -> attempt of what was assigned and not reported."""
        self.epochs: dict[tuple[bytes, int], int] = {}
        """The epoch of each of those that was assigned here; what was brought along has none."""
        self.deferred: set[tuple[bytes, int]] = set()
        """(run, seq) of those that wait for a job outside and hold no slot."""
        self.held: set[bytes] = set()
        """Runs whose code this worker holds."""
        self.parts: dict[bytes, list[Command]] = {}
        """Commands of decisions of which more is to come."""
        self.early: list[Report] | None = None
        """Reports that wait until the attempts of a reconnected worker are adopted."""
        self.over: asyncio.Future[PerdureError] = asyncio.get_running_loop().create_future()
        """Why the server ends the stream, once it does."""
        self.counted = 0
        """Free slots as its pool counts them."""
        self._news = asyncio.Event()
        self._tasks: list[Assignment] = []
        self._activations: deque[tuple[int, Activation, bool]] = deque()
        self._queries: dict[int, QueryCall] = {}
        """By number, in the order in which they were asked."""
        self._cancels: list[Token] = []
        self._forgets: list[bytes] = []
        self._welcome: Welcome | None = None
        self._acked = 0
        self._going_away = False

    @property
    def free(self) -> int:
        return self.slots - self.slots_used if self.is_open and not self.draining else 0

    @property
    def slots_used(self) -> int:
        return len(self.running) - len(self.deferred)

    def expects(self, r: Report) -> bool:
        """Whether a report is about what it has. The same task may have been begun in an earlier epoch with the same number."""
        key = (r.run_id, r.seq)
        return self.running.get(key) == r.attempt and r.epoch in (0, self.epochs.get(key, r.epoch))

    def defer(self, tokens: list[Token]) -> list[Token]:
        """Those of them that it has; their slots are free from now on."""
        mine = [t for t in tokens if self.running.get(t[:2]) == t[2]]
        self.deferred.update(t[:2] for t in mine)
        return mine

    def drop(self, key: tuple[bytes, int]) -> None:
        self.running.pop(key, None)
        self.deferred.discard(key)
        self.epochs.pop(key, None)

    def end(self, why: PerdureError) -> None:
        if not self.over.done():
            self.over.set_result(why)

    def greet(self, welcome: Welcome) -> None:
        self._welcome = welcome
        self._news.set()

    def assign(self, batch: list[Assignment]) -> None:
        for a in batch:
            self.deferred.discard((a.run_id, a.seq))
            self.running[a.run_id, a.seq] = a.attempt
            self.epochs[a.run_id, a.seq] = a.epoch
        self._tasks.extend(batch)
        self._news.set()

    def activate(self, number: int, a: Activation) -> None:
        self.held.add(a.run_id)
        self._activations.extend(activation_parts(number, a))
        self._news.set()

    def query(self, number: int, call: QueryCall) -> None:
        self._queries[number] = call
        self._news.set()

    def drop_query(self, number: int) -> None:
        """The caller has gone: it need not be sent any more."""
        self._queries.pop(number, None)

    def cancel(self, token: Token) -> None:
        self._cancels.append(token)
        self._news.set()

    def forget(self, run_id: bytes) -> None:
        self.held.discard(run_id)
        self.parts.pop(run_id, None)
        self._forgets.append(run_id)
        self._news.set()

    def acknowledge(self, number: int) -> None:
        self._acked = number
        self._news.set()

    def go_away(self) -> None:
        self._going_away = True
        self._news.set()

    async def next_message(self, clock_us: Callable[[], int]) -> Down:
        """Everything that is ready, up to about PART_BYTES of payload; waits until there is something."""
        await self._news.wait()
        tasks, self._tasks = _fitting(self._tasks)
        activations: list[tuple[int, Activation, bool]] = []
        room = PART_BYTES
        while self._activations and room > 0:
            part = self._activations.popleft()
            activations.append(part)
            room -= activation_size(part[1])
        queries: list[tuple[int, QueryCall]] = []
        while self._queries and room > 0:
            number = next(iter(self._queries))
            queries.append((number, self._queries.pop(number)))
            room -= _query_size(queries[-1][1])
        down = Down(
            self._welcome,
            tasks,
            activations,
            self._cancels,
            self._forgets,
            self._acked,
            self._going_away,
            clock_us(),
            queries=queries,
        )
        self._welcome, self._cancels, self._forgets, self._acked, self._going_away = None, [], [], 0, False
        if not self._tasks and not self._activations and not self._queries:
            self._news.clear()
        return down


def _query_size(q: QueryCall) -> int:
    return 64 + len(q.arguments) + len(q.input) + sum(len(n) + len(v) for n, v in q.states.items())


def _fitting(tasks: list[Assignment]) -> tuple[list[Assignment], list[Assignment]]:
    """As many as fit into a message, and the rest."""
    room = PART_BYTES
    for i, a in enumerate(tasks):
        room -= 64 + len(a.input)
        if room < 0 and i:
            return tasks[:i], tasks[i:]
    return tasks, []
