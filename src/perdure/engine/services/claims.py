"""How an engine polls for work: due runs, runs with messages, queued tasks, messages for its own runs.

One cheap question (`next_due`) says whether anything is due and when the next thing will be; only then does it claim.

Laws:

1. Rows claimed under a session that was lost meanwhile belong to another engine, and are ignored.
2. A claim whose answer is lost is in doubt: rows may be this session's that are not known here. The engine starts over.
3. Messages of a run are delivered before its timers fire: what came while it slept came before it woke.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from itertools import islice
from typing import Final, TypeVar

from perdure.core.errors import Failure, Fenced, Unavailable
from perdure.core.limits import SUCCESSORS_MAX
from perdure.core.messages import ChildEndedMessage, TaskEndedMessage
from perdure.core.unopened import Unopened
from perdure.core.work import Outcome
from perdure.engine.context import EngineContext
from perdure.engine.ports import ClaimedRun, Due, InboxRow, Kind, Pin
from perdure.engine.runs.history import History, read_history
from perdure.engine.runs.loop import RunLoop, RunParts
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.turns import SLICE_S, within
from perdure.engine.services.service import Service
from perdure.engine.tasks.dispatch import Dispatcher
from perdure.wire.codec import decode_message

log = logging.getLogger("perdure.engine")

CLAIM_RUNS_MAX: Final = 250
PAGES_MAX: Final = 4
"""Pages of due runs that are claimed in one poll; then messages, flow control and tasks have their turn."""
FULL_US: Final = 100_000
"""Runs are due and memory is full: poll again after this time."""
LOAD_EVENTS: Final = 2_000
"""Events of histories after which claimed runs are taken in and the rest of the event loop has a turn."""
MESSAGES_MAX: Final = 1_000

T = TypeVar("T")


class ClaimInDoubt(Exception):
    """Whether a claim took effect is unknown: its answer was lost. Rows may be this session's that are not known here."""


class Claims(Service):
    name = "claiming runs"
    poll_s = 1.0

    def __init__(self, context: EngineContext, parts: RunParts, loop: RunLoop, dispatcher: Dispatcher) -> None:
        super().__init__()
        self._store, self._session, self._worker = context.store, context.session, context.worker
        self._counters = context.counters
        self._runs, self._flows, self._flow_control = parts.runs, parts.flows, parts.flow_control
        self._versions = parts.versions
        self._delivery, self._timers, self._loop, self._dispatcher = parts.delivery, parts.timers, loop, dispatcher
        self._claimed: list[ClaimedRun] = []
        """Claimed runs that are not in memory yet: read again when the database did not answer."""
        self._claimed_by = 0
        self._suspect: bytes | None = None
        """The suspect run that this engine has claimed; the next one is claimed after it is decided."""
        self.messages_left = False
        """The last poll met a whole page of messages: there may be more behind it, once that is consumed."""
        self._slots_short = False
        """Tasks are due that found no free slot."""

    def slot_freed(self) -> None:
        if self._slots_short:
            self.wake()

    async def poll_once(self) -> None:
        self._counters.polls += 1
        self._slots_short = False
        self._delivery.poll_begins()
        self._loop.activate_suspect()  # the one before may have left without an answer
        workflows = [] if self._runs.draining else self._runs.claimable
        served = [] if self._runs.draining else list(self._dispatcher.served)
        if self._loop.to_reload:
            await self._reload()
        if self._claimed:
            await self._load_claimed()
        freed = self._flow_control.take_freed()
        if freed:
            await self._store.wake_lines(freed)
        due = await self._store.next_due(workflows, served, flows=not self._runs.draining)
        if await self._flow_control.refresh(due.rules_us):
            self._dispatcher.queue_limited()
        if due.has_messages:
            await self._collect_messages()
        if due.run_group_at_us is not None and due.run_group_at_us <= due.clock_us and not self._runs.draining:
            await self._admit_runs(due)
        if due.run_at_us is not None and due.run_at_us <= due.clock_us:
            if self._runs.has_room:
                await self._claim_runs(workflows, with_messages=False)
            elif not self._runs.draining:
                self.wake_in(FULL_US)
        if due.suspects and not self._runs.draining:
            await self._claim_suspect(workflows)
        if due.task_group_at_us is not None and due.task_group_at_us <= due.clock_us and served:
            await self._claim_admitted_tasks(served, due)
        elif self._dispatcher.held_back:
            self._dispatcher.held_back = 0
            self._dispatcher.refill()
        if due.task_at_us is not None and due.task_at_us <= due.clock_us:
            await self._claim_tasks(served)
        for at_us in (due.run_at_us, due.task_at_us, due.task_group_at_us, due.run_group_at_us):
            self._come_back(at_us, due.clock_us)

    def _come_back(self, at_us: int | None, now_us: int) -> None:
        """Poll when something falls due that is nearer than the next poll."""
        if at_us is not None and now_us < at_us < now_us + self.poll_s * 1e6:
            self.wake_in(at_us - now_us)

    async def _claim_runs(self, workflows: list[Pin], *, with_messages: bool) -> None:
        """Page after page while many are due: one is read while the next is claimed."""
        full = await self._claim_page(workflows, with_messages)
        for _ in range(PAGES_MAX - 1):
            if not full:
                break
            found = await asyncio.gather(
                self._claim_page(workflows, with_messages), self._load_claimed(), return_exceptions=True
            )
            for one in found:
                if isinstance(one, BaseException):
                    raise one
            full = bool(found[0])
        if self._claimed:
            await self._load_claimed()
        if full:
            self.wake()

    async def _claim_page(self, workflows: list[Pin], with_messages: bool) -> bool:
        """Whether more runs may be due and should be claimed at once."""
        if self._runs.draining:
            return False
        room = min(CLAIM_RUNS_MAX, self._runs.runs_max - len(self._runs) - len(self._claimed))
        if room <= 0:
            self.wake_in(FULL_US)
            return False
        session = self._session.id
        claimed = await self._certain(
            self._store.claim_runs(session, workflows, room, with_messages=with_messages, flows=True), session
        )
        if claimed:
            self._counters.runs_claimed += len(claimed)
            self._claimed, self._claimed_by = [*self._claimed, *claimed], session
        return len(claimed) == room

    async def _claim_suspect(self, workflows: list[Pin]) -> None:
        """Claimed alone: if it kills this engine, the takeover is counted for no other run."""
        if self._suspect in self._runs or not self._runs.has_room:
            return
        session = self._session.id
        claimed = await self._certain(self._store.claim_suspect(session, workflows, flows=True), session)
        self._suspect = claimed[0].run_id if claimed else None
        if claimed:
            self._counters.runs_claimed += 1
            self._claimed, self._claimed_by = [*self._claimed, *claimed], session
            await self._load_claimed()

    def take_again(self, claimed: ClaimedRun) -> None:
        """Load a run that this session owns and that left memory."""
        self._claimed, self._claimed_by = [*self._claimed, claimed], self._session.id
        self.wake()

    def suspect_settled(self) -> None:
        """A suspect was decided, that is durable, and this engine is alive."""
        self._suspect = None
        self.wake()

    async def _load_claimed(self) -> None:
        """Bring owned runs into memory."""
        session, claimed = self._session.id, self._claimed
        self._check_session(self._claimed_by)
        await self._flows.ensure((c.ns, c.workflow, c.version) for c in claimed)
        await self._find_versions(claimed)
        loaded = await self._store.load([c.run_id for c in claimed])
        self._check_session(session)
        queued: dict[bytes, set[int]] = {c.run_id: set() for c in claimed}
        for run_id, seq in loaded.queued:
            queued[run_id].add(seq)
        for run_id, seq in _ends(loaded.messages):
            queued[run_id].add(seq)
        messages: dict[bytes, list[InboxRow]] = {}
        for row in loaded.messages:
            messages.setdefault(row.run_id, []).append(row)
        children: list[tuple[ActiveRun, int, bytes]] = []
        reads: list[tuple[ActiveRun, History]] = []
        events = 0
        for c in claimed:
            run = ActiveRun(c.run_id, c.ns, c.workflow, c.version, c.epoch)
            run.keys, run.suspect, run.pin = c.keys, c.run_id == self._suspect, c.pin
            run.full = list(c.full)
            run.inbox_used = run.end_stands = c.is_late
            read = await read_history(self._flows, run, loaded.history[c.run_id])
            read.missing = read.missing or _unopened(messages.get(c.run_id, []))
            self._check_session(session)
            reads.append((run, read))
            events += len(read.history)
            if events >= LOAD_EVENTS or c is claimed[-1]:
                self._take_in(reads, queued, messages)
                # Those of the history alone: in the loop's next turn the code may start others, which no commit has made yet.
                children += [(run, seq, child) for run, _ in reads for seq, child in run.state.children.items()]
                reads, events = [], 0
                await asyncio.sleep(0)
                self._check_session(session)
        await self._catch_up_children(children)

    async def _find_versions(self, claimed: list[ClaimedRun]) -> None:
        """What is set for workflows of which workers here serve several versions."""
        named = {(c.ns, c.workflow) for c in claimed if not c.pin}
        for ns, workflow in sorted(named):
            if self._versions.needs_choice(ns, workflow):
                await self._versions.find(ns, workflow, "")

    def _take_in(
        self,
        reads: list[tuple[ActiveRun, History]],
        queued: dict[bytes, set[int]],
        messages: dict[bytes, list[InboxRow]],
    ) -> None:
        """Take loaded runs into memory, with their messages."""
        self._claimed = self._claimed[len(reads) :]
        for run, read in reads:
            self._loop.load(run, read, queued[run.id])
        for run, _ in reads:
            self._deliver(messages.get(run.id, []))
            if run.end_stands:
                self._loop.decide_again(run, run.first_message(()))
        self._timers.fire()  # after the messages, by law 3

    async def _reload(self) -> None:
        """Histories of runs whose worker is gone, for another worker."""
        wanted = dict(islice(self._loop.to_reload.items(), CLAIM_RUNS_MAX))
        session = self._session.id
        loaded = await self._store.load(list(wanted))
        self._check_session(session)
        is_up = within(SLICE_S)
        for run_id, run in wanted.items():
            if self._loop.to_reload.get(run_id) is run:
                del self._loop.to_reload[run_id]
            self._loop.reloaded(run, loaded.history[run_id])
            if is_up():
                await asyncio.sleep(0)
                self._check_session(session)
                is_up = within(SLICE_S)
        if self._loop.to_reload:
            self.wake()

    async def _catch_up_children(self, waiting: list[tuple[ActiveRun, int, bytes]]) -> None:
        """A child may have ended, or never have been created, while its parent moved between two engines."""
        by_ns: dict[int, dict[bytes, tuple[ActiveRun, int]]] = {}
        for run, seq, child in waiting:
            by_ns.setdefault(run.ns, {})[child] = (run, seq)
        for ns, children in by_ns.items():
            await self._catch_up(ns, children)

    async def _catch_up(self, ns: int, waiting: dict[bytes, tuple[ActiveRun, int]]) -> None:
        session = self._session.id
        ended = await self._store.ended(ns, list(waiting))
        existing = await self._store.existing(ns, list(waiting))
        self._check_session(session)
        for child, (run, seq) in waiting.items():
            if child not in existing:
                self._delivery.child_refused(run, seq, "")
            elif child in ended and ended[child].status > 1:
                outcome = await self._last_end(ns, child, ended[child])
                self._check_session(session)
                if outcome is not None:
                    self._delivery.deliver(run, ChildEndedMessage(seq, outcome.status, outcome.value, outcome.failure))

    async def _last_end(self, ns: int, run_id: bytes, outcome: Outcome) -> Outcome | None:
        """A run that continued as new has not ended: its last successor's end counts. None: that one is still going."""
        for _ in range(SUCCESSORS_MAX):
            view = await self._store.describe(run_id, ns) if outcome.is_handover else None
            if view is None or view.next_run is None:
                return outcome
            run_id = view.next_run
            found = (await self._store.ended(ns, [run_id])).get(run_id)
            if found is None or found.status <= 1:
                return None
            outcome = found
        return None

    async def _certain(self, claim: Awaitable[T], session: int) -> T:
        try:
            claimed = await claim
        except Unavailable as e:
            raise ClaimInDoubt(str(e)) from e
        self._check_session(session)
        return claimed

    def _check_session(self, session: int) -> None:
        """Rows claimed under a lost session belong to another engine."""
        if session != self._session.id:
            self._claimed = []
            raise Fenced(f"session {session} was lost on the way")

    async def _admit_runs(self, due: Due) -> None:
        """Runs that waited for flow control. They are woken here and claimed like any other."""
        admitted = await self._store.admit_runs(self._session.id, self._flow_control.rules)
        self._counters.runs_admitted += admitted.runs
        self._come_back(admitted.next_us, due.clock_us)
        if admitted.runs or admitted.cancelled:
            self.wake()

    async def _claim_admitted_tasks(self, served: list[Kind], due: Due) -> None:
        free = self._worker.slots_free
        open_to = [(kind, min(n, free)) for kind in served if (n := self._worker.free_for(kind)) > 0]
        if free <= 0 or not open_to:
            self._dispatcher.held_back = _kept_for_admitted(self._worker.slots, due.task_group_priority or 0)
            self._slots_short = True
            return
        session = self._session.id
        found = await self._certain(
            self._store.claim_from_lines(session, open_to, free, self._flow_control.rules), session
        )
        self._come_back(found.next_us, due.clock_us)
        if found.tasks:
            self._dispatcher.launch_claimed(found.tasks, self._runs.get)
        if len(found.tasks) == free:
            self._slots_short = True
        self._dispatcher.held_back = (
            0  # the backlog has its turn; if tasks are left to admit they have theirs after that
        )

    async def _claim_tasks(self, served: list[Kind]) -> None:
        free = self._worker.slots_free - self._dispatcher.backlog.size
        open_to = [(kind, min(n, free)) for kind in served if (n := self._worker.free_for(kind)) > 0]
        if free <= 0 or not open_to:
            self._slots_short = True
            return
        session = self._session.id
        tasks = await self._certain(self._store.claim_tasks(session, open_to, free), session)
        self._slots_short |= len(tasks) == free
        if tasks:
            self._dispatcher.launch_claimed(tasks, self._runs.get)

    async def _collect_messages(self) -> None:
        rows = await self._store.owned_messages(self._session.id, MESSAGES_MAX)
        self.messages_left = len(rows) == MESSAGES_MAX
        self._deliver(rows)
        if self._runs.has_room:
            await self._claim_runs([] if self._runs.draining else self._runs.claimable, with_messages=True)

    def _deliver(self, rows: list[InboxRow]) -> None:
        for row in rows:
            run = self._runs.get(row.run_id)
            if run is not None:
                self._loop.deliver_row(run, row)


def _kept_for_admitted(slots: int, priority: int) -> int:
    """The local backlog takes every slot as it becomes free: how many are kept for tasks that flow control admits. What is in the backlog
    has priority 0, so a higher one goes first, and an equal one gets its share."""
    if priority > 0:
        return slots
    return max(1, slots // 4) if priority == 0 else slots // 10


def _unopened(rows: list[InboxRow]) -> Failure | None:
    """Why messages of a run cannot be read, one of which may be the end of a task that would count as lost."""
    return next((row.body.error.to_failure() for row in rows if isinstance(row.body, Unopened)), None)


def _ends(rows: list[InboxRow]) -> Iterator[tuple[bytes, int]]:
    """Tasks whose end lies in the inbox: they have no row any more and are not lost. What cannot be read is dealt with at delivery."""
    for row in rows:
        try:
            message = decode_message(row.body)
        except Exception:
            continue
        if isinstance(message, TaskEndedMessage):
            yield row.run_id, message.seq
