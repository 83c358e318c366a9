"""The write queue of an engine: runs with changes, and separate units.

Laws:

1. A run stands in at most one place: urgent, because something waits for its changes to be durable, or lazy.
2. A lazy run becomes urgent after `CommitPolicy.lazy_us`: a short task ends before that and is written once, in its final state.
3. A unit whose caller has given up is not written, unless it was handed to the database before.

    mark(run) --> lazy --(lazy_us)--> urgent --\\
    mark(run, urgent) ---------------> urgent ---> take() --> one batch of the committer
    add(unit) ------------------------> units --/
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import Any, ClassVar, Protocol

from perdure.engine.commits.policy import CommitPolicy
from perdure.engine.commits.rows import Batch


class Unit(Protocol):
    """Rows that are written in one transaction."""

    outlives_session: ClassVar[bool]
    """It belongs to no run, so it is written under the next session if this one is lost."""

    def fill(self, batch: Batch) -> None: ...


class AwaitedUnit:
    """A unit with a caller that waits for it. One whose caller has given up is not written, unless it was handed to the database."""

    outlives_session: ClassVar[bool] = True

    def __init__(self) -> None:
        self.is_settled = False
        """The caller has an answer or has given up. A settled unit that was not written is dropped."""
        self.sent = False
        """It is in a transaction whose answer is not here: whether it was written is unknown."""

    def settle(self, created: bool, error: Exception | None = None) -> None:
        """`created`: it was written; its key was taken if not. With an error: whether it was, the error says. The first answer stands."""
        if not self.is_settled:
            self.is_settled = True
            self.answered(created, error)

    def answered(self, created: bool, error: Exception | None) -> None:
        """Answer the caller."""
        raise NotImplementedError

    def give_up(self) -> None:
        """The caller stopped waiting."""
        self.is_settled = True

    def fill(self, batch: Batch) -> None:
        raise NotImplementedError


class EndingUnit:
    """A unit that may end a run."""

    outlives_session: ClassVar[bool] = False

    @property
    def run_id(self) -> bytes:
        raise NotImplementedError

    def has_messages(self) -> None:
        """There are messages that the engine did not know of."""
        raise NotImplementedError

    def withdraw_end(self) -> bool:
        """Leave the run going on. Whether anything else is to be written."""
        raise NotImplementedError

    def fill(self, batch: Batch) -> None:
        raise NotImplementedError


class Writer(Protocol):
    """A run with segments of changes, which are written in order."""

    @property
    def pending(self) -> deque[Any]: ...
    def unit(self, segments: list[Any]) -> Unit:
        """What one commit writes of it."""
        ...


class WriteQueue:
    def __init__(self, policy: CommitPolicy, now_us: Callable[[], int]) -> None:
        self._policy, self.now_us = policy, now_us
        self._urgent: dict[Writer, None] = {}
        """Runs whose changes something waits for."""
        self._lazy: dict[Writer, int] = {}
        """Runs whose changes nothing waits for yet -> since when, oldest first."""
        self._units: deque[Unit] = deque()
        self._asleep = True
        """`due` waits, or is about to. Only then does a change have to set an event: thousands come in a second."""
        self._wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def mark(self, run: Writer, *, urgent: bool) -> None:
        """The run has changes. Urgent when something waits for them to be durable."""
        if urgent:
            if run in self._urgent:
                return
            if self._lazy:
                self._lazy.pop(run, None)
            self._urgent[run] = None
        elif run not in self._lazy and run not in self._urgent:
            self._lazy[run] = self.now_us()
        self._want()

    def add(self, unit: Unit) -> None:
        self._units.append(unit)
        self._want()

    def put_back(self, units: list[Unit], *, behind: bool = False) -> None:
        """Units that belong to no run outlive their session and are written under the next one."""
        kept = [unit for unit in units if unit.outlives_session]
        if behind:
            self._units.extend(kept)
        else:
            self._units.extendleft(reversed(kept))

    def drop_runs(self) -> None:
        """The session is gone: what its runs wanted to write is void. Units that do not belong to a run stay."""
        self._urgent.clear()
        self._lazy.clear()

    def units(self) -> Iterator[Unit]:
        return iter(self._units)

    @property
    def is_idle(self) -> bool:
        return self._idle.is_set()

    async def drained(self) -> None:
        """Wait until nothing is left to write."""
        await self._idle.wait()

    def _want(self) -> None:
        if self._asleep:
            self._asleep = False
            self._idle.clear()
            self._wanted.set()

    async def due(self) -> None:
        """Wait until a batch is to be written."""
        while True:
            await self._wanted.wait()
            oldest_lazy_us = next(iter(self._lazy.values()), None)
            urgent = bool(self._units or self._urgent)
            delay_us = self._policy.flush_in_us(self.now_us(), urgent, oldest_lazy_us)
            if delay_us == 0:
                return
            self._asleep = True
            self._wanted.clear()
            if delay_us is None:
                self._idle.set()
                continue
            try:
                async with asyncio.timeout(delay_us / 1e6):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.set()

    def take(self, is_given_up: Callable[[Unit], bool]) -> list[Unit]:
        """What goes into the next batch. A lazy run is left alone until its time."""
        rows_max, bytes_max = self._policy.rows_max, self._policy.bytes_max
        units: list[Unit] = []
        size = 0
        while self._units and len(units) < rows_max // 2:  # the other half is for runs, however many starts come in
            unit = self._units.popleft()
            if not is_given_up(unit):
                units.append(unit)
        rows = len(units)
        self._ripen()
        for run in list(islice(self._urgent, rows_max)):
            if rows >= rows_max or size >= bytes_max:
                break
            segments: list[Any] = []
            pending = run.pending
            while pending and (not segments or (rows < rows_max and size < bytes_max)):
                segment = pending.popleft()
                segments.append(segment)
                rows += segment.rows
                size += segment.bytes
            if not pending:
                del self._urgent[run]
            if segments:
                units.append(run.unit(segments))
        return units

    def _ripen(self) -> None:
        """Make lazy runs urgent once their time is over."""
        due_us = self.now_us() - self._policy.lazy_us
        for run in list(takewhile(lambda r: self._lazy[r] <= due_us, self._lazy)):
            del self._lazy[run]
            self._urgent[run] = None
