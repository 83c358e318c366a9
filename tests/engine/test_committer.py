"""Batches are written whole, once, and under the session that they were taken under."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.core.errors import Fenced, Unavailable
from perdure.engine.commits.committer import Committer
from perdure.engine.commits.policy import CommitPolicy
from perdure.engine.commits.rows import MessageRow, unsealed
from perdure.engine.commits.store import Committed, EndsRefused, NotCommitted, Poison
from perdure.engine.commits.write_queue import AwaitedUnit, EndingUnit, WriteQueue
from perdure.engine.counters import Counters
from perdure.engine.runs.run import ActiveRun, RunUnit
from perdure.engine.session import EngineSession
from tests.fakes.engine_parts import CHILD, RUN


class Commits:
    """A store that refuses some batches."""

    away_s = 0.0
    seal_history = staticmethod(unsealed)

    def __init__(self, *answers: Exception | None) -> None:
        self.answers, self.numbers, self.sizes = list(answers), list[int](), list[int]()

    async def commit(self, session: int, number: int, batch: Any) -> Committed:
        self.numbers.append(number)
        self.sizes.append(len(batch.messages))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        return Committed(1, frozenset())


class MessageUnit:
    """A unit that writes one row."""

    outlives_session = True

    def fill(self, batch: Any) -> None:
        batch.messages.append(MessageRow(RUN, b"", "signal", None))


class Sink:
    """Records what followed."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.refused_: list[Any] = []
        self.sessions: list[int] = []
        self.dropped: list[Any] = []
        self.withdrawn: list[Any] = []

    def committed(self, units: list[Any], result: Committed, session: int) -> None:
        self.written += units
        self.sessions.append(session)

    def refused(self, unit: Any, why: str) -> None:
        self.refused_.append(unit)

    def end_withdrawn(self, unit: Any, session: int) -> None:
        assert unit not in self.written[-1:] or unit.has_more, "after what is left of it"
        self.withdrawn.append(unit)

    def given_up(self, unit: Any) -> None:
        self.dropped.append(unit)


def committer(store: Commits) -> tuple[Committer, WriteQueue, EngineSession, Sink]:
    queue, session, sink = WriteQueue(CommitPolicy(), lambda: 0), EngineSession(), Sink()
    session.begin(7)
    return Committer(store, session, queue, Counters(), sink), queue, session, sink


async def commit_all(store: Commits, units: int) -> Sink:
    made, queue, _, sink = committer(store)
    for _ in range(units):
        queue.add(MessageUnit())
    await written(made, queue)
    return sink


async def written(made: Committer, queue: WriteQueue) -> None:
    """Fails with the committer's own error if that ends first."""
    writing, drained = asyncio.create_task(made.run()), asyncio.create_task(queue.drained())
    async with asyncio.timeout(120):
        done, _ = await asyncio.wait((writing, drained), return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    writing.cancel()


async def test_a_batch_with_one_bad_record_is_written_without_it() -> None:
    store = Commits(Poison("four"), Poison("two"), Poison("one"))
    sink = await commit_all(store, 4)
    assert (len(sink.written), len(sink.refused_)) == (3, 1)
    assert store.sizes == [4, 2, 1, 1, 2]


class EndUnit(EndingUnit):
    """The end of a run, perhaps with events before it."""

    def __init__(self, run_id: bytes, *, has_more: bool) -> None:
        self._run_id, self.has_more, self.knows, self.ends = run_id, has_more, False, True

    @property
    def run_id(self) -> bytes:
        return self._run_id

    def has_messages(self) -> None:
        self.knows = True

    def withdraw_end(self) -> bool:
        self.ends = False
        return self.has_more

    def fill(self, batch: Any) -> None:
        batch.messages.append(MessageRow(self._run_id, b"", "signal", None))


async def test_an_end_whose_engine_did_not_know_of_messages_is_written_again_by_one_that_does() -> None:
    store = Commits(EndsRefused(frozenset({RUN}), examined=False), None)
    made, queue, _, sink = committer(store)
    units = [EndUnit(RUN, has_more=False), EndUnit(CHILD, has_more=False)]
    for unit in units:
        queue.add(unit)
    await written(made, queue)
    assert [(u.knows, u.ends) for u in units] == [(True, True), (False, True)]
    assert (sink.written, sink.withdrawn, store.sizes) == (units, [], [2, 2])


@pytest.mark.parametrize("has_more", [True, False])
async def test_an_end_with_unread_messages_is_withdrawn_and_what_came_before_it_is_written(has_more: bool) -> None:
    store = Commits(EndsRefused(frozenset({RUN}), examined=True), None)
    made, queue, _, sink = committer(store)
    unread, other = EndUnit(RUN, has_more=has_more), EndUnit(CHILD, has_more=False)
    queue.add(unread)
    queue.add(other)
    await written(made, queue)
    assert (unread.ends, other.ends) == (False, True)
    assert sink.withdrawn == [unread]
    assert sink.written == ([unread, other] if has_more else [other])


async def test_a_commit_of_withdrawn_ends_alone_is_not_written() -> None:
    store = Commits(EndsRefused(frozenset({RUN}), examined=True))
    made, queue, _, sink = committer(store)
    queue.add(unread := EndUnit(RUN, has_more=False))
    await written(made, queue)
    assert (sink.written, sink.withdrawn, store.sizes) == ([], [unread], [1])


async def test_a_commit_that_is_written_again_has_another_number() -> None:
    store = Commits(NotCommitted("lost on the way"), None)
    await commit_all(store, 1)
    assert store.numbers == [1, 2]


async def test_a_unit_of_no_run_is_written_under_the_next_session() -> None:
    store = Commits(Fenced("gone"))
    made, queue, session, sink = committer(store)
    queue.add(MessageUnit())
    with pytest.raises(Fenced):
        await made.run()
    assert sink.written == []
    session.begin(8)
    await written(made, queue)
    assert (len(sink.written), sink.sessions) == (1, [8])


async def test_changes_of_a_run_are_void_when_its_session_is_lost() -> None:
    made, queue, _, sink = committer(Commits(Fenced("gone")))
    run = ActiveRun(RUN, 1, "w", "v", 1)
    run.segment()
    queue.mark(run, urgent=True)
    with pytest.raises(Fenced):
        await made.run()
    queue.drop_runs()
    await written(made, queue)
    assert sink.written == []


@pytest.mark.parametrize("urgent", [True, False])
async def test_changes_that_wait_to_be_written_are_void_when_the_session_is_lost(urgent: bool) -> None:
    queue = WriteQueue(CommitPolicy(lazy_us=0), lambda: 0)
    run = ActiveRun(RUN, 1, "w", "v", 1)
    run.segment()
    queue.mark(run, urgent=urgent)
    queue.drop_runs()
    assert queue.take(lambda _: False) == []


async def test_a_run_whose_changes_are_dropped_can_be_marked_again() -> None:
    queue = WriteQueue(CommitPolicy(), lambda: 0)
    run = ActiveRun(RUN, 1, "w", "v", 1)
    queue.mark(run, urgent=False)
    queue.drop_runs()
    queue.mark(run, urgent=False)
    assert run in queue._lazy


async def test_a_lazy_run_is_left_alone_until_something_waits_for_it() -> None:
    queue = WriteQueue(CommitPolicy(), lambda: 0)
    run = ActiveRun(RUN, 1, "w", "v", 1)
    run.segment()
    queue.mark(run, urgent=False)
    assert queue.take(lambda _: False) == []
    queue.mark(run, urgent=True)
    (unit,) = queue.take(lambda _: False)
    assert isinstance(unit, RunUnit)
    assert run.writing


async def test_a_lazy_run_is_written_when_its_time_has_come() -> None:
    now = 0
    queue = WriteQueue(CommitPolicy(lazy_us=100), lambda: now)
    run = ActiveRun(RUN, 1, "w", "v", 1)
    run.segment()
    queue.mark(run, urgent=False)
    now = 100
    assert len(queue.take(lambda _: False)) == 1


async def test_a_start_whose_caller_has_given_up_is_not_written() -> None:
    store = Commits()
    made, queue, _, sink = committer(store)
    unit = Start()
    queue.add(unit)
    unit.give_up()
    await written(made, queue)
    assert (store.numbers, sink.dropped) == ([], [unit])


async def test_callers_are_answered_while_the_database_is_away() -> None:
    store = Commits()
    made, queue, _, _ = committer(store)
    unit = Start()
    queue.add(unit)
    store.away_s = 1_000.0
    made.refuse_if_away()
    assert isinstance(unit.error, Unavailable)


class Start(AwaitedUnit):
    error: Exception | None = None

    def answered(self, created: bool, error: Exception | None) -> None:
        self.error = error

    def fill(self, batch: Any) -> None: ...
