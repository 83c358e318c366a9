"""How an engine finds work that nobody handed to it: due runs, runs with mail, queued tasks, mail for its own runs.

One cheap question (`next_due`) says whether anything is due and when the next thing will be; only then does it claim. It is asked
when poked (a local act, a notification), when the next thing falls due, and otherwise about once a second with
jitter, so that nothing depends on notifications and many engines do not ask in step.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import islice
from typing import Final

from perdure.core import ids
from perdure.core.errors import Fenced, Unavailable
from perdure.core.limits import SUCCESSORS_MAX
from perdure.core.messages import ChildEnded, TaskEnded
from perdure.core.work import Outcome
from perdure.engine.counters import Counters
from perdure.engine.ports import ClaimedRun, Due, Kind, MailRow, Named, Store, WorkerPort
from perdure.engine.runs.loop import History, RunLoop
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.turns import SLICE_S, within
from perdure.engine.tasks.dispatch import Dispatcher
from perdure.engine.tasks.flow_control import Lines
from perdure.wire.codec import decode_mail

CLAIM_RUNS_MAX: Final = 250
PAGES_MAX: Final = 4
"""Pages of due runs that are claimed in one look; then mail, lines and tasks have their turn."""
FULL_US: Final = 100_000
"""Runs are due and memory is full: look again after this time."""
LOAD_EVENTS: Final = 2_000
"""Events of histories after which claimed runs are taken in and the rest of the loop has a turn."""
MAIL_MAX: Final = 1_000
STRAYS_MAX: Final = 10_000
"""Attempts without a row that workers brought along; what is over that is not told to its run."""
POLL_S: Final = 1.0

Token = tuple[bytes, int, int]
"""(run id, seq, attempt)"""


class ClaimInDoubt(Exception):
    """Whether a claim took effect is unknown: its answer was lost. Rows may be this session's that nobody here knows of."""


class Claimer:
    def __init__(
        self,
        store: Store,
        loop: RunLoop,
        dispatcher: Dispatcher,
        worker: WorkerPort | None,
        counters: Counters,
        lines: Lines,
    ) -> None:
        self._lines = lines
        self._store, self._loop, self._dispatcher, self._worker, self._counters = (
            store,
            loop,
            dispatcher,
            worker,
            counters,
        )
        self._poked = asyncio.Event()
        self._handle: asyncio.TimerHandle | None = None
        self._handle_at = float("-inf")
        self.session = 0
        self.may_claim = True
        self.looking = True
        """It may hold a run that is not in memory yet; until it has looked once, nobody knows."""
        self._claimed: list[ClaimedRun] = []
        """Ours, and not in memory yet: read again when the database did not answer."""
        self._claimed_by = 0
        self._suspect: bytes | None = None
        """The run that engines did not survive and that this one has taken up; the next one comes when this one is decided."""
        self.mail_left = False
        """The last look met a whole page of mail: there may be more behind it, once that is consumed."""
        self.hungry = False
        """Tasks are due that found no free slot: look again as soon as one is free."""

    def poke(self) -> None:
        self._poked.set()

    def poke_in(self, delay_us: int) -> None:
        """Look again when this much time has passed; the earliest wish counts."""
        if delay_us <= 0:
            self._poked.set()
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_us / 1e6 + 0.002
        if self._handle is None or self._handle.cancelled() or at < self._handle_at or self._handle_at <= loop.time():
            if self._handle is not None:
                self._handle.cancel()
            self._handle_at = at
            self._handle = loop.call_at(at, self._poked.set)

    async def run(self) -> None:
        """Claim for ever. The pause is inside: an idle engine asks about once a second."""
        while True:
            try:
                async with asyncio.timeout(POLL_S * random.uniform(0.75, 1.25)):
                    await self._poked.wait()
            except TimeoutError:
                pass
            self._poked.clear()
            self.looking = True
            try:
                await self.look()
            finally:
                self.looking = False

    async def look(self) -> None:
        self._counters.polls += 1
        self.hungry = False
        self._loop.mail_done.clear()  # what is gone by now is not in anything read from here on
        workflows = list(self._loop.workflows) if self.may_claim else []
        served = list(self._dispatcher.served) if self.may_claim else []
        if self._loop.to_reload:
            await self._reload()
        if self._claimed:
            await self._load_claimed()
        freed = self._lines.take_freed()
        if freed:
            await self._store.wake_lines(freed)
        due = await self._store.next_due(workflows, served, flows=self.may_claim)
        if await self._lines.refresh(due.rules_us):
            self._dispatcher.line_up()
        if due.mail:
            await self._collect_mail()
        if due.run_line_at_us is not None and due.run_line_at_us <= due.clock_us and self.may_claim:
            await self._let_in(due)
        if due.run_at_us is not None and due.run_at_us <= due.clock_us:
            if self._loop.has_room:
                await self._claim_runs(workflows, with_mail=False)
            elif self.may_claim:
                self.poke_in(FULL_US)
        if due.suspects and self.may_claim:
            await self._claim_suspect(workflows)
        if due.line_at_us is not None and due.line_at_us <= due.clock_us and served:
            await self._claim_from_lines(served, due)
        elif self._dispatcher.held_back:
            self._dispatcher.held_back = 0
            self._dispatcher.refill()
        if due.task_at_us is not None and due.task_at_us <= due.clock_us:
            await self._claim_tasks(served)
        for at_us in (due.run_at_us, due.task_at_us, due.line_at_us, due.run_line_at_us):
            self._come_back(at_us, due.clock_us)

    def _come_back(self, at_us: int | None, now_us: int) -> None:
        """Look again when something falls due that is nearer than the next look."""
        if at_us is not None and now_us < at_us < now_us + POLL_S * 1e6:
            self.poke_in(at_us - now_us)

    # -- runs -------------------------------------------------------------------------------------------------------

    async def _claim_runs(self, workflows: list[Named], *, with_mail: bool) -> None:
        """Page after page while many are due: one is read while the next is claimed."""
        full = await self._claim_page(workflows, with_mail)
        for _ in range(PAGES_MAX - 1):
            if not full:
                break
            found = await asyncio.gather(
                self._claim_page(workflows, with_mail), self._load_claimed(), return_exceptions=True
            )
            for one in found:
                if isinstance(one, BaseException):
                    raise one
            full = bool(found[0])
        if self._claimed:
            await self._load_claimed()
        if full:
            self.poke()

    async def _claim_page(self, workflows: list[Named], with_mail: bool) -> bool:
        """Whether there may be more and it is worth asking at once."""
        if not self.may_claim:
            return False
        room = min(CLAIM_RUNS_MAX, self._loop.runs_max - len(self._loop.runs) - len(self._claimed))
        if room <= 0:
            self.poke_in(FULL_US)
            return False
        session = self.session
        try:
            claimed = await self._store.claim_runs(session, workflows, room, with_mail=with_mail, flows=True)
        except Unavailable as e:
            raise ClaimInDoubt(str(e)) from e
        self._check_session(session)
        if claimed:
            self._counters.runs_claimed += len(claimed)
            self._claimed, self._claimed_by = [*self._claimed, *claimed], session
        return len(claimed) == room

    async def _claim_suspect(self, workflows: list[Named]) -> None:
        """Others are not taken up with it: if it is the one that ends this engine, it is the only one that is counted."""
        if self._suspect in self._loop.runs or not self._loop.has_room:
            return
        session = self.session
        try:
            claimed = await self._store.claim_suspect(session, workflows, flows=True)
        except Unavailable as e:
            raise ClaimInDoubt(str(e)) from e
        self._check_session(session)
        self._suspect = claimed[0].run_id if claimed else None
        if claimed:
            self._counters.runs_claimed += 1
            self._claimed, self._claimed_by = [*self._claimed, *claimed], session
            await self._load_claimed()

    async def settle(self, run: ActiveRun) -> None:
        """A suspect was decided, and this engine is alive."""
        await self._store.settle_suspect(self.session, run.id)
        self._suspect = None
        self.poke()

    async def _load_claimed(self) -> None:
        """Bring owned runs into memory."""
        session, claimed = self.session, self._claimed
        self._check_session(self._claimed_by)
        await self._loop.flows.ensure((c.ns, c.workflow, c.version) for c in claimed)
        loaded = await self._store.load([c.run_id for c in claimed])
        self._check_session(session)
        queued: dict[bytes, set[int]] = {c.run_id: set() for c in claimed}
        for run_id, seq in loaded.queued:
            queued[run_id].add(seq)
        for run_id, seq in _ends(loaded.mail):
            queued[run_id].add(seq)
        mail: dict[bytes, list[MailRow]] = {}
        for row in loaded.mail:
            mail.setdefault(row.run_id, []).append(row)
        children: list[tuple[ActiveRun, int, bytes]] = []
        reads: list[tuple[ActiveRun, History]] = []
        events = 0
        for c in claimed:
            run = ActiveRun(c.run_id, c.ns, c.workflow, c.version, c.epoch)
            run.keys, run.suspect = c.keys, c.run_id == self._suspect
            read = await self._loop.read(run, loaded.history[c.run_id])
            self._check_session(session)
            reads.append((run, read))
            events += len(read.history)
            if events >= LOAD_EVENTS or c is claimed[-1]:
                self._take_in(reads, queued, mail)
                # Those of the history alone: in the loop's next turn the code may start others, which no commit has made yet.
                children += [(run, seq, child) for run, _ in reads for seq, child in run.state.children.items()]
                reads, events = [], 0
                await asyncio.sleep(0)
                self._check_session(session)
        await self._catch_up_children(children)

    def _take_in(
        self, reads: list[tuple[ActiveRun, History]], queued: dict[bytes, set[int]], mail: dict[bytes, list[MailRow]]
    ) -> None:
        """Runs that were read, with their mail, in one go."""
        self._claimed = self._claimed[len(reads) :]
        for run, read in reads:
            self._loop.load(run, read, queued[run.id])
        for run, _ in reads:
            self._deliver(mail.get(run.id, []))
        self._loop.fire_timers()  # after the mail: what came while the run slept came before it woke

    async def _reload(self) -> None:
        """Histories of runs whose worker is gone, for another worker."""
        wanted = dict(islice(self._loop.to_reload.items(), CLAIM_RUNS_MAX))
        session = self.session
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
            self.poke()

    async def _catch_up_children(self, waiting: list[tuple[ActiveRun, int, bytes]]) -> None:
        """A child may have ended, or never come to be, while its parent was on its way between two engines."""
        by_ns: dict[int, dict[bytes, tuple[ActiveRun, int]]] = {}
        for run, seq, child in waiting:
            by_ns.setdefault(run.ns, {})[child] = (run, seq)
        for ns, children in by_ns.items():
            await self._catch_up(ns, children)

    async def _catch_up(self, ns: int, waiting: dict[bytes, tuple[ActiveRun, int]]) -> None:
        session = self.session
        ended = await self._store.ended(ns, list(waiting))
        existing = await self._store.existing(ns, list(waiting))
        self._check_session(session)
        for child, (run, seq) in waiting.items():
            if child not in existing:
                self._loop.child_refused(run, seq, "")
            elif child in ended and ended[child].status > 1:
                outcome = await self._last_end(ns, child, ended[child])
                self._check_session(session)
                if outcome is not None:
                    self._loop.deliver(run, ChildEnded(seq, outcome.status, outcome.value, outcome.failure))

    async def _last_end(self, ns: int, run_id: bytes, outcome: Outcome) -> Outcome | None:
        """A run that continued as new has not ended: its last successor's end counts. None: that one is still going."""
        for _ in range(SUCCESSORS_MAX):
            view = await self._store.describe(run_id, ns) if outcome.is_handover else None
            if view is None or view.successor is None:
                return outcome
            run_id = view.successor
            found = (await self._store.ended(ns, [run_id])).get(run_id)
            if found is None or found.status <= 1:
                return None
            outcome = found
        return None

    def _check_session(self, session: int) -> None:
        """What was claimed under a session that is gone belongs to somebody else by now."""
        if session != self.session:
            self._claimed = []
            raise Fenced(f"session {session} was lost on the way")

    # -- lines ------------------------------------------------------------------------------------------------------

    async def _let_in(self, due: Due) -> None:
        """Runs that waited for their workflow's limits. They are woken here and claimed like any other."""
        entered = await self._store.let_in(self.session, self._lines.rules)
        self._counters.runs_let_in += entered.runs
        self._come_back(entered.next_us, due.clock_us)
        if entered.runs or entered.cancelled:
            self.poke()

    async def _claim_from_lines(self, served: list[Kind], due: Due) -> None:
        if self._worker is None:
            return
        free = self._worker.slots_free
        open_to = [(kind, min(n, free)) for kind in served if (n := self._worker.free_for(kind)) > 0]
        if free <= 0 or not open_to:
            self._dispatcher.held_back = _kept_for_lines(self._worker.slots, due.line_priority or 0)
            self.hungry = True
            return
        session = self.session
        try:
            found = await self._store.claim_from_lines(session, open_to, free, self._lines.rules)
        except Unavailable as e:
            raise ClaimInDoubt(str(e)) from e
        self._check_session(session)
        self._come_back(found.next_us, due.clock_us)
        if found.tasks:
            self._dispatcher.launch_claimed(found.tasks, self._loop.runs.get)
        if len(found.tasks) == free:
            self.hungry = True
        self._dispatcher.held_back = 0  # the backlog has its turn; if lines are left they have theirs after that

    # -- tasks ------------------------------------------------------------------------------------------------------

    async def _claim_tasks(self, served: list[Kind]) -> None:
        if self._worker is None:
            return
        free = self._worker.slots_free - self._dispatcher.backlog.size
        open_to = [(kind, min(n, free)) for kind in served if (n := self._worker.free_for(kind)) > 0]
        if free <= 0 or not open_to:
            self.hungry = True
            return
        session = self.session
        try:
            tasks = await self._store.claim_tasks(session, open_to, free)
        except Unavailable as e:
            raise ClaimInDoubt(str(e)) from e
        self._check_session(session)
        self.hungry |= len(tasks) == free
        if tasks:
            self._dispatcher.launch_claimed(tasks, self._loop.runs.get)

    async def elsewhere(self, tokens: list[Token]) -> set[tuple[bytes, int]]:
        """Which of these attempts now belong to another engine: the worker that was here took them along."""
        rows = {
            ids.derive(run_id, ids.TASK, seq): (run_id, seq)
            for run_id, seq, attempt in tokens
            if (f := self._dispatcher.flights.get((run_id, seq))) and f.row and f.assignment.attempt == attempt
        }
        if not rows:
            return set()
        mine = await self._store.still_mine(self.session, list(rows))
        return {key for task_id, key in rows.items() if task_id not in mine}

    async def adopt(self, ns: int, tokens: list[Token]) -> list[Token]:
        """A worker came from another engine with running attempts. Returns those that nobody waits for any more."""
        if not tokens:
            return []
        by_id = {ids.derive(run_id, ids.TASK, seq): (run_id, seq, attempt) for run_id, seq, attempt in tokens}
        session = self.session
        found = await self._store.adopt_tasks(session, ns, [(task_id, t[2]) for task_id, t in by_id.items()])
        self._check_session(session)
        adopted = {(a.run_id, a.seq) for a in self._dispatcher.adopt_running(found.tasks, self._loop.runs.get)}
        void: list[Token] = []
        for task_id, token in by_id.items():
            if token[:2] in adopted:
                continue
            if task_id in found.known:
                void.append(token)  # another attempt is waiting or running already
            elif len(self._dispatcher.strays) < STRAYS_MAX:
                self._dispatcher.strays[token] = ns
        return void

    async def check_claims(self) -> None:
        """Stop executing tasks of other engines' runs that were cancelled there."""
        asked = {
            ids.derive(f.assignment.run_id, ids.TASK, f.assignment.seq): f
            for f in self._dispatcher.flights.values()
            if f.row and f.run is None
        }
        if asked:
            mine = await self._store.still_mine(self.session, list(asked))
            self._dispatcher.drop_stolen([f for task_id, f in asked.items() if task_id not in mine])

    # -- mail -------------------------------------------------------------------------------------------------------

    async def _collect_mail(self) -> None:
        rows = await self._store.owned_mail(self.session, MAIL_MAX)
        self.mail_left = len(rows) == MAIL_MAX
        self._deliver(rows)
        if self._loop.has_room:
            await self._claim_runs(list(self._loop.workflows) if self.may_claim else [], with_mail=True)

    def _deliver(self, rows: list[MailRow]) -> None:
        for row in rows:
            run = self._loop.runs.get(row.run_id)
            if run is not None:
                self._loop.deliver_row(run, row)


def _kept_for_lines(slots: int, priority: int) -> int:
    """The local backlog takes every slot as it becomes free: how many are left to those who wait in lines. What is in the backlog has
    priority 0, so what has more goes first, and what has as much gets its share."""
    if priority > 0:
        return slots
    return max(1, slots // 4) if priority == 0 else slots // 10


def _ends(rows: list[MailRow]) -> Iterator[tuple[bytes, int]]:
    """Tasks whose end lies in the inbox: they have no row any more and are not lost. What cannot be read is dealt with at delivery."""
    for row in rows:
        try:
            mail = decode_mail(row.body)
        except Exception:
            continue
        if isinstance(mail, TaskEnded):
            yield row.run_id, mail.seq
