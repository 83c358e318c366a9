"""Small conditions of the engine that only matter when something comes twice, late, or from the wrong one."""

from __future__ import annotations

import asyncio
import heapq
from types import SimpleNamespace
from typing import Any

import pytest
from test_segments import RUN, world

from perdure.core import events as ev
from perdure.core.deferred_starts import Debounce
from perdure.core.errors import Unavailable
from perdure.core.lifecycle import RunStatus, TaskStatus
from perdure.core.messages import CancelAsked, ChildEnded, PromiseKept, SignalSent, TaskEnded
from perdure.core.retry import End, Requeue, TaskOptions
from perdure.core.work import Decided, Report, StartRequest
from perdure.engine.commits.committer import Committer
from perdure.engine.commits.policy import CommitPolicy
from perdure.engine.counters import Counters
from perdure.engine.ports import Committed, MailRow, NotCommitted, Poison
from perdure.engine.runs import loop as loop_module
from perdure.engine.runs.run import ActiveRun
from perdure.engine.services.claims import Claimer, ClaimInDoubt
from perdure.engine.services.deferred_starts import PutOff, Starts
from perdure.engine.services.start_deadlines import Expiry
from perdure.engine.tasks.dispatch import _about, _needs_row
from perdure.wire.codec import encode_mail


def events_of(run: ActiveRun) -> list[ev.Event]:
    return [e for changes in run.pending for e in changes.events]


# -- mail -----------------------------------------------------------------------------------------------------------------


def test_a_row_that_is_read_twice_is_one_fact() -> None:
    loop, run, _ = world()
    row = MailRow(5, RUN, encode_mail(SignalSent("s", b"1")))
    loop.deliver_row(run, row)
    loop.deliver_row(run, row)
    loop.mail_pending.discard(5)
    loop.mail_done.add(5)
    loop.deliver_row(run, row)
    assert events_of(run) == [ev.SignalReceived("s", b"1")]


def test_a_second_cancel_counts_only_while_children_are_waited_for() -> None:
    loop, run, _ = world()
    for _ in range(2):
        loop.deliver(run, CancelAsked("why"))
    assert events_of(run).count(ev.CancelRequested("why")) == 1
    run.state.apply(ev.ChildCancelRequested(0, True))
    loop.deliver(run, CancelAsked("again"))
    assert ev.CancelRequested("again") in events_of(run)


def test_the_end_of_a_child_counts_if_it_is_the_child_that_is_there_now() -> None:
    """A retried parent may have started another child under the same number."""
    loop, run, _ = world()
    loop.deliver(run, ChildEnded(0, RunStatus.SUCCESS, b"1", None, b"another child's"))
    assert events_of(run) == []
    loop.deliver(run, ChildEnded(0, RunStatus.SUCCESS, b"2", None, bytes(16)))
    assert events_of(run) == [ev.ChildSucceeded(0, b"2")]


def test_an_approval_of_certain_people_is_not_resolved_by_mail_from_anybody() -> None:
    loop, run, _ = world()
    guarded = b'{"title":"t","quorum":2,"reject_quorum":1}'
    run.state.apply(ev.PromiseCreated(0, "p", guarded, ev.PromiseKind.APPROVAL))
    run.state.apply(ev.PromiseCreated(1, "plain", b""))
    for name in ("p", "plain"):
        loop.deliver(run, PromiseKept(name, b"1", authorized=False))
    assert [e.name for e in events_of(run) if isinstance(e, ev.PromiseResolved)] == ["plain"]
    loop.deliver(run, PromiseKept("p", b"1", authorized=True))
    loop.deliver(run, PromiseKept("p", b"2", authorized=True))
    assert [e.value for e in events_of(run) if isinstance(e, ev.PromiseResolved) and e.name == "p"] == [b"1"]


# -- runs -----------------------------------------------------------------------------------------------------------------


def test_a_place_that_was_kept_for_a_child_is_given_back() -> None:
    loop, run, _ = world()
    loop.reserved = 1
    loop.begin = lambda *_: None  # type: ignore[method-assign]
    started = ev.RunStarted("c", "v", b"{}")
    child = SimpleNamespace(run_id=b"c" * 16, seq=0, key="", own=True, started=started, version="v", head=b"")
    loop._child_committed(run, child, 5, frozenset({b"c" * 16}))  # type: ignore[arg-type]
    assert loop.reserved == 0


def test_deadlines_stay_among_the_timers_when_cancelled_ones_are_thrown_out() -> None:
    loop, run, _ = world()
    run.state.apply(ev.TimerStarted(3, 70))
    loop._timers = [(50, RUN, -1), (60, RUN, 2), (70, RUN, 3), (80, b"gone", 1)]
    heapq.heapify(loop._timers)
    loop._compact_timers()
    assert sorted(loop._timers) == [(50, RUN, -1), (70, RUN, 3)]


def test_a_history_that_is_too_long_ends_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, run, _ = world()
    failed: list[str] = []
    monkeypatch.setattr(loop, "_fail", lambda _, failure: failed.append(failure.code))
    monkeypatch.setattr(loop_module, "HISTORY_EVENTS_MAX", run.state.events)
    loop._carry_out(run, Decided(RUN, []))
    assert failed == []
    monkeypatch.setattr(loop_module, "HISTORY_EVENTS_MAX", run.state.events - 1)
    loop._carry_out(run, Decided(RUN, []))
    assert failed == ["history_too_large"]


@pytest.mark.parametrize(
    ("writing", "pending", "now"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_a_history_is_read_again_when_all_of_it_is_written(writing: bool, pending: bool, now: bool) -> None:
    loop, run, _ = world()
    loop.reload = lambda: None  # type: ignore[method-assign,assignment]
    run.pending.clear()
    if pending:
        run.segment()
    run.writing = writing
    loop._reload_when_written(run)
    assert (run.id in loop.to_reload) is now


# -- tasks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "needed"),
    [({}, False), ({"at_most_once": True}, True), ({"to_start_us": 1}, True), ({"to_close_us": 1}, True)],
)
def test_what_must_not_run_twice_or_has_to_begin_in_time_has_a_row(options: dict[str, Any], needed: bool) -> None:
    assert _needs_row(TaskOptions(**options)) is needed


@pytest.mark.parametrize(("mine", "its", "same"), [(2, 2, True), (2, 1, False), (2, 0, True), (0, 1, True)])
def test_a_report_is_about_an_attempt_of_the_same_epoch(mine: int, its: int, same: bool) -> None:
    report = Report(RUN, 0, 1, End.SUCCESS, b"", None, 1, 2, epoch=its)
    assert _about(SimpleNamespace(attempt=1, epoch=mine), report) is same  # type: ignore[arg-type]
    assert not _about(SimpleNamespace(attempt=2, epoch=mine), report)  # type: ignore[arg-type]


def test_the_success_of_a_stray_reaches_its_run_by_mail() -> None:
    loop, _, _ = world()
    d, sent = loop.dispatcher, list[tuple[Any, ...]]()
    d.stray_ended = lambda *args: sent.append(args)
    d.strays[RUN, 0, 1] = 7
    d.reported([Report(RUN, 0, 1, End.SUCCESS, b"5", None, 1, 2)])
    assert sent == [(RUN, 7, TaskEnded(0, TaskStatus.SUCCESS, b"5", None, 1, 0, 1, 1, 2))]
    d.reported([Report(RUN, 0, 1, End.SUCCESS, b"5", None, 1, 2)])
    assert len(sent) == 1


# -- commits --------------------------------------------------------------------------------------------------------------


class Commits:
    """A store that refuses some batches."""

    away_s = 0.0

    def __init__(self, *answers: Exception | None) -> None:
        self.answers, self.numbers, self.sizes = list(answers), list[int](), list[int]()

    async def commit(self, session: int, number: int, batch: Any) -> Committed:
        self.numbers.append(number)
        self.sizes.append(len(batch.posts))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        return Committed(1, frozenset())


class Post:
    """A unit that writes one row."""

    def fill(self, batch: Any) -> None:
        batch.posts.add(RUN, b"")


async def commit_all(store: Commits, units: int) -> tuple[list[Any], list[Any]]:
    written: list[Any] = []
    refused: list[Any] = []
    committer = Committer(
        store, CommitPolicy(), Counters(), lambda: 0, lambda batch, *_: written.extend(batch), lambda unit, _: refused.append(unit)
    )  # type: ignore[arg-type]  # fmt: skip
    for _ in range(units):
        committer.add(Post())  # type: ignore[arg-type]
    writing = asyncio.create_task(committer.run())
    async with asyncio.timeout(30):
        await committer.drained()
    writing.cancel()
    return written, refused


async def test_a_batch_with_one_bad_record_is_written_without_it() -> None:
    store = Commits(Poison("four"), Poison("two"), Poison("one"))
    written, refused = await commit_all(store, 4)
    assert (len(written), len(refused)) == (3, 1)
    assert store.sizes == [4, 2, 1, 1, 2]


async def test_a_commit_that_is_written_again_has_another_number() -> None:
    store = Commits(NotCommitted("lost on the way"), None)
    await commit_all(store, 1)
    assert store.numbers == [1, 2]


async def test_a_run_whose_changes_are_dropped_can_be_marked_again() -> None:
    committer = Committer(Commits(), CommitPolicy(), Counters(), lambda: 0, lambda *_: None, lambda *_: None)  # type: ignore[arg-type]
    run = ActiveRun(RUN, 1, "w", "v", 1)
    committer.mark(run, urgent=False)
    committer.drop_runs()
    assert not run.dirty
    committer.mark(run, urgent=False)
    assert run in committer._lazy


def test_a_retry_that_waits_has_to_begin_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, run, _ = world()
    options = TaskOptions(to_start_us=1_000)
    wanted = ev.TasksScheduled(0, "t", "q", [b"{}"], options)
    rows: list[Any] = []
    monkeypatch.setattr(ActiveRun, "queue_row", lambda _, *row: rows.append(row))
    verdict = Requeue(2, 0, 500, SimpleNamespace(message="again"))  # type: ignore[arg-type]
    loop.dispatcher._apply(run, 0, wanted, verdict, 1, 0, (1, 2, 3), b"")
    assert rows[0][-1] == 5 + 500 + 1_000


# -- claims and waits -------------------------------------------------------------------------------------------------


def claimer(store: Any) -> Claimer:
    loop, _, _ = world()
    made = Claimer(store, loop, loop.dispatcher, None, Counters(), loop.lines)
    made.session = 7
    return made


async def test_a_claim_whose_answer_was_lost_is_in_doubt() -> None:
    """Rows may be this session's that nobody here knows of: an outage alone would leave them so."""

    class Away:
        async def claim_runs(self, *_: Any, **__: Any) -> None:
            raise Unavailable("the answer was lost")

    with pytest.raises(ClaimInDoubt):
        await claimer(Away())._claim_page([(1, "w")], with_mail=False)


async def test_mail_reaches_a_loaded_run_before_its_timers_fire() -> None:
    """What came while it slept came before it woke."""
    order: list[str] = []
    loop = SimpleNamespace(load=lambda *_: order.append("load"), fire_timers=lambda: order.append("timers"))
    made = claimer(None)
    made._loop = loop  # type: ignore[assignment]
    made._deliver = lambda mail: order.append("mail")  # type: ignore[method-assign]
    run = ActiveRun(RUN, 1, "w", "v", 1)
    made._take_in([(run, None)], {RUN: set()}, {RUN: []})  # type: ignore[list-item]
    assert order == ["load", "mail", "timers"]


class Waits:
    """Tasks that have to begin in time, as the database sees them."""

    def __init__(self, *upcoming: tuple[int, int | None]) -> None:
        self.upcoming_, self.gone = list(upcoming), [SimpleNamespace(run_id=RUN), SimpleNamespace(run_id=RUN)]

    async def upcoming(self) -> Any:
        clock_us, at_us = self.upcoming_.pop(0)
        return SimpleNamespace(clock_us=clock_us, at_us=at_us)

    async def expire(self, *_: Any) -> list[Any]:
        return self.gone


def expiry_on(store: Waits, posted: Any) -> Expiry:
    made = Expiry(store)  # type: ignore[arg-type]
    made.attach(Counters(), lambda: 7, lambda: 0, posted)
    return made


async def test_a_wish_for_a_row_that_is_not_committed_yet_is_kept() -> None:
    expiry = expiry_on(Waits((50, None), (150, None)), lambda _: None)
    expiry.wish(100)
    await expiry.look()
    assert expiry.next_us == 100
    await expiry.look()
    assert expiry.next_us is None


async def test_the_run_of_an_expired_task_is_told_at_once() -> None:
    told: list[bytes] = []
    expiry = expiry_on(Waits((50, 40), (50, None)), told.append)
    await expiry.look()
    assert told == [RUN]


@pytest.mark.parametrize(("known_us", "looks"), [(None, True), (900, True), (50, False)])
async def test_a_start_that_is_put_off_is_looked_at_in_time(known_us: int | None, looks: bool) -> None:
    """Also when a later one is known: waiting for that would make this one late."""

    class Store:
        async def put_off(self, asked: Any) -> PutOff:
            return PutOff(asked.run_id, 100)

    starts = Starts(Store(), lambda: 0, lambda: RUN, None, lambda _: None)  # type: ignore[arg-type]
    starts._next_us = known_us
    await starts._put_off(
        1, StartRequest(workflow="w", version="v", input=b"{}", later=Debounce(key="k", quiet_us=100))
    )
    assert starts._poked.is_set() is looks
