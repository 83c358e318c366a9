"""What must be true of a database and of what its tasks did, whatever was killed, paused or cut off on the way.

Pure: it is fed rows and ledger lines and counts what does not hold. Nothing here trusts the engine: a run's state is folded anew from
its events, and executions are taken from a ledger that tasks wrote themselves, outside the database.

    history rows --> RunFold --.
    run, task, queue rows -----+--> settle --> Findings (one Tally per invariant)
    ledger lines --------------'

Law: a check that has nothing to look at says so (`examined` is 0) instead of passing in silence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, Literal

import msgspec

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import IllegalTransition
from perdure.core.lifecycle import RunStatus, TaskStatus, next_task_status
from perdure.core.reopen import effective
from perdure.core.retry import TaskOptions
from perdure.core.runstate import RunState

INVARIANTS: Final[dict[int, str]] = {
    1: "every acknowledged start exists exactly once",
    3: "event numbers per run are gapless from 1",
    4: "state rebuilt from events equals stored state",
    5: "terminal is absorbing: one terminal event, and it is the last; only a retry may follow a failure",
    6: "every transition is an edge of the declared table",
    7: "at most one recorded result per task",
    8: "every recorded success has a ledger effect of the same attempt",
    9: "no committed write carries a stale epoch",
    10: "executions <= max_attempts + lost workers; at-most-once tasks at most once",
    11: "no task starts before its dependencies are satisfied",
    12: "a fan-out of N has exactly N ends 0..N-1 and one join",
    14: "timers never early by the database clock, fired once",
    15: "one run per schedule and nominal time",
    17: "at rest the inbox is empty and no row is an orphan",
    21: "at rest every run that is not waiting for input has ended",
}
LEDGER_ONLY: Final = frozenset({8, 10, 11})
STARTS_ONLY: Final = frozenset({1})
REST_ONLY: Final = frozenset({17, 21})
EXAMPLES_MAX: Final = 5

# -- what is found -----------------------------------------------------------------------------------------------------


class Example(msgspec.Struct, frozen=True):
    run: str
    what: str


class Tally:
    """One invariant: how much was looked at, how often it did not hold, and the first few cases."""

    __slots__ = ("examined", "examples", "name", "number", "violations")

    def __init__(self, number: int) -> None:
        self.number, self.name = number, INVARIANTS[number]
        self.examined = self.violations = 0
        self.examples: list[Example] = []


class Findings:
    def __init__(self, numbers: Iterable[int]) -> None:
        self.tallies = {n: Tally(n) for n in sorted(numbers)}

    def examine(self, number: int, count: int = 1) -> None:
        if number in self.tallies:
            self.tallies[number].examined += count

    def violate(self, number: int, run: str, what: str) -> None:
        tally = self.tallies.get(number)
        if tally is None:
            return
        tally.violations += 1
        if len(tally.examples) < EXAMPLES_MAX:
            tally.examples.append(Example(run, what))

    def __contains__(self, number: int) -> bool:
        return number in self.tallies

    @property
    def clean(self) -> bool:
        return not any(t.violations for t in self.tallies.values())


# -- what is fed -------------------------------------------------------------------------------------------------------

Phase = Literal["begin", "effect", "end"]


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task wrote about its own execution. `mono_us` is the machine's monotonic clock, the same for all its processes."""

    run: str
    task: str
    name: str
    attempt: int
    epoch: int
    worker: str
    phase: Phase
    boot: str
    mono_us: int
    after: tuple[str, ...] = ()
    """Ids of the tasks whose results this one was given."""


class StoredRun(msgspec.Struct, frozen=True):
    """A row of run_queue (`active`) or of run."""

    active: bool
    status: int
    epoch: int
    events: int | None
    stuck: str | None = None
    due: bool = False
    """Active, nobody's, and its wake_at has come."""


class StoredTask(msgspec.Struct, frozen=True):
    """A row of task."""

    id: bytes
    seq: int
    name: str
    status: int
    attempts: int
    lost: int
    epoch: int


class TaskPath(msgspec.Struct):
    """What the history says about one task."""

    options: TaskOptions
    scheduled: int
    """Number of the event that scheduled it."""
    status: TaskStatus = TaskStatus.PENDING
    ended: int = 0


# -- one run -----------------------------------------------------------------------------------------------------------


class RunFold:
    """One run's history, row by row. Payloads are let go of as soon as they are folded.

    A run that was retried (`retries`) has to be folded `again` from its whole history, because a retry takes back what came before.
    """

    def __init__(self, run_id: bytes, findings: Findings) -> None:
        self.run_id, self.text, self._findings = run_id, ids.text(run_id), findings
        self.state = RunState()
        self.tasks: dict[int, TaskPath] = {}
        self.last = self.epoch = 0
        self.broken = False
        """An event did not fit; what follows from the fold is not judged any more."""
        self.retries: list[int] = []
        """For each retry the epoch of the run that had failed; what came after is of a later one."""
        self.scheduled: tuple[str, int] | None = None
        """The schedule that started it, and the nominal time it was started for."""
        self._terminal: tuple[int, ev.Event] | None = None
        self._fired: set[int] = set()
        self._fanouts: list[tuple[int, int]] = []

    def _violate(self, number: int, what: str) -> None:
        self._findings.violate(number, self.text, what)

    def row(self, seq: int, last: int, epoch: int, at_us: int, events: Sequence[ev.Event]) -> None:
        """One history row: the events seq..last."""
        f = self._findings
        f.examine(3)
        f.examine(9)
        if seq != self.last + 1:
            self._violate(3, f"event {self.last} is followed by event {seq}")
        if last - seq + 1 != len(events):
            self._violate(3, f"a row claims events {seq}..{last} and holds {len(events)}")
        if epoch < self.epoch:
            self._violate(9, f"event {seq} was written in epoch {epoch} after one of epoch {self.epoch}")
        self.last, self.epoch = last, max(self.epoch, epoch)
        for i, event in enumerate(events):
            self._event(seq + i, at_us, event)

    def unreadable(self, seq: int, last: int, why: str) -> None:
        """A history row that cannot be decoded."""
        self.broken = True
        self.last = last
        self._violate(4, f"events {seq}..{last} cannot be read: {why}")

    def _event(self, seq: int, at_us: int, event: ev.Event) -> None:
        f = self._findings
        f.examine(5)
        f.examine(6)
        end = self._terminal[1] if self._terminal else None
        if isinstance(event, ev.RunStarted) and event.schedule:
            self.scheduled = (event.schedule, event.nominal_us)
        if isinstance(event, ev.RunRetried):
            if not isinstance(end, ev.RunFailed):
                self._violate(5, f"event {seq} retries a run that has not failed")
            self._terminal = None
            self.retries.append(self.epoch)
            return
        if self._terminal:
            self._violate(
                5, f"event {seq} ({type(event).__name__}) comes after event {self._terminal[0]} ({type(end).__name__})"
            )
        if isinstance(event, ev.TERMINAL):
            self._terminal = (seq, event)
        if not self.retries:
            self._apply(seq, at_us, event)

    def again(self, history: list[ev.Recorded]) -> None:
        """Fold the whole history of a run that was retried, without what its retries took back."""
        self.state, self.tasks, self._fired, self._fanouts = RunState(), {}, set(), []
        try:
            left = effective(history)
        except IllegalTransition as e:
            self.broken = True
            self._violate(6, str(e))
            return
        for r in left:
            self._apply(r.seq, r.at_us, r.event)

    def since(self, epoch: int) -> int:
        """The last epoch that a retry had closed by then; -1 for none. Executions of that epoch and before count for themselves."""
        return max((e for e in self.retries if e < epoch), default=-1)

    def _apply(self, seq: int, at_us: int, event: ev.Event) -> None:
        self._timer(seq, at_us, event)
        self._task(seq, event)
        if self.broken:
            return
        try:
            self.state.apply(event)
        except IllegalTransition as e:
            self.broken = True
            self._violate(6, str(e))

    def _timer(self, seq: int, at_us: int, event: ev.Event) -> None:
        if not isinstance(event, ev.TimerFired):
            return
        self._findings.examine(14)
        if event.seq in self._fired:
            self._violate(14, f"timer {event.seq} fired again at event {seq}")
        self._fired.add(event.seq)
        fire_at_us = self.state.timers.get(event.seq)
        if fire_at_us is not None and at_us < fire_at_us:
            self._violate(14, f"timer {event.seq} fired {(fire_at_us - at_us) / 1e3:.3f} ms early")

    # -- tasks -----------------------------------------------------------------------------------------------------------

    def _task(self, seq: int, event: ev.Event) -> None:
        match event:
            case ev.TasksScheduled():
                self._scheduled(seq, event)
            case ev.TasksSucceeded():
                if len(event.seqs) != len(event.results):
                    self._violate(7, f"event {seq} has {len(event.seqs)} tasks and {len(event.results)} results")
                for one in event.seqs:
                    self._ended(seq, one, TaskStatus.SUCCESS, "succeed")
            case ev.TaskFailed():
                self._ended(seq, event.seq, TaskStatus.FAILED, "fail")
            case ev.TasksCancelled():
                for one in event.seqs:
                    self._ended(seq, one, TaskStatus.CANCELLED, "cancel")
            case ev.TasksSkipped():
                self._skipped(seq, event)
            case _:
                pass

    def _scheduled(self, seq: int, event: ev.TasksScheduled) -> None:
        if event.first != len(self.tasks):
            self._violate(12, f"event {seq} schedules task {event.first} where {len(self.tasks)} is next")
        if len(event.inputs) > 1:
            self._fanouts.append((event.first, len(event.inputs)))
        for one in range(event.first, event.first + len(event.inputs)):
            self.tasks[one] = TaskPath(event.options, seq)

    def _skipped(self, seq: int, event: ev.TasksSkipped) -> None:
        if event.first != len(self.tasks):
            self._violate(12, f"event {seq} skips task {event.first} where {len(self.tasks)} is next")
        for one in range(event.first, event.first + len(event.nodes)):
            path = self.tasks[one] = TaskPath(TaskOptions(), seq)
            path.status, path.ended = TaskStatus.SKIPPED, seq

    def _ended(self, seq: int, task: int, status: TaskStatus, act: str) -> None:
        self._findings.examine(7)
        path = self.tasks.get(task)
        if path is None:
            self._violate(6, f"event {seq} ends task {task}, which was never scheduled")
        elif path.ended:
            self._violate(7, f"task {task} ended at event {path.ended} and again at event {seq}")
        else:
            path.status, path.ended = status, seq

    # -- against what is stored --------------------------------------------------------------------------------------------

    def settle(
        self,
        stored: Sequence[StoredRun],
        tasks: Sequence[StoredTask],
        queued: Sequence[int],
        state_hashes: dict[str, bytes],
        at_rest_children: frozenset[bytes] = frozenset(),
    ) -> None:
        """Compare the folded run with its rows. `at_rest_children` are the ids of children that are still active."""
        f = self._findings
        f.examine(4)
        if len(stored) != 1:
            self._violate(4, f"the run has {len(stored)} rows in run_queue and run together")
        for one in stored:
            self._settle_run(one)
        if self.broken:
            return
        self._settle_tasks(tasks, queued)
        folded = {name: sha256(value).digest() for name, value in self.state.state.items()}
        if folded != state_hashes:
            names = sorted(n for n in folded.keys() | state_hashes if folded.get(n) != state_hashes.get(n))
            self._violate(4, f"stored state differs from the history in {', '.join(names)}")
        self._settle_fanouts()
        for one in stored:
            self._settle_rest(one, at_rest_children)

    def _settle_run(self, stored: StoredRun) -> None:
        if not self.last:
            self._violate(4, "the run has no history")
            return
        if self.epoch > stored.epoch:
            self._violate(9, f"history reaches epoch {self.epoch}, the run is in epoch {stored.epoch}")
        if self.broken:
            return
        if stored.active and self.state.is_terminal:
            self._violate(4, f"the history ends in {self.state.status.word}, the run is still active")
        if not stored.active and self.state.status != stored.status:
            self._violate(4, f"the history says {self.state.status.word}, the row {RunStatus(stored.status).word}")
        if stored.events is not None and stored.events != self.last:
            self._violate(4, f"the row counts {stored.events} events, the history {self.last}")

    def _settle_tasks(self, tasks: Sequence[StoredTask], queued: Sequence[int]) -> None:
        f = self._findings
        f.examine(4, len(tasks) + len(queued))
        rows = Counter(t.seq for t in tasks)
        for t in tasks:
            self._settle_task(t)
            if rows[t.seq] > 1:
                self._violate(7, f"task {t.seq} has {rows[t.seq]} rows")
        for seq, path in self.tasks.items():
            if path.ended and seq not in rows:
                self._violate(4, f"task {seq} is {path.status.word} in the history and has no row")
        for seq in queued:
            if seq not in self.state.tasks:
                self._violate(4, f"task {seq} waits in task_queue and is not outstanding in the history")

    def _settle_task(self, t: StoredTask) -> None:
        path = self.tasks.get(t.seq)
        if path is None or not path.ended:
            self._violate(4, f"task {t.seq} has a row and no end in the history")
            return
        if path.status != t.status:
            self._violate(
                4, f"task {t.seq} is {path.status.word} in the history and {TaskStatus(t.status).word} in its row"
            )
        if t.id != ids.derive(self.run_id, ids.TASK, t.seq):
            self._violate(4, f"the row of task {t.seq} has an id of another task")
        if t.epoch > self.epoch:
            self._violate(9, f"the row of task {t.seq} is of epoch {t.epoch}, its end of epoch {self.epoch} at most")
        try:
            _walk(TaskStatus(t.status), t.attempts)
        except IllegalTransition as e:
            self._violate(6, f"task {t.seq} after {t.attempts} attempts: {e}")

    def _settle_fanouts(self) -> None:
        for first, count in self._fanouts:
            self._findings.examine(12)
            ended = sum(1 for seq in range(first, first + count) if self.tasks[seq].ended)
            if self.state.is_terminal and ended != count:
                self._violate(12, f"the run ended when {ended} of {count} tasks from {first} had")

    def _settle_rest(self, stored: StoredRun, active_children: frozenset[bytes]) -> None:
        f = self._findings
        if 21 not in f:
            return
        f.examine(21)
        if not stored.active:
            return
        gone = [s for s, child in self.state.children.items() if child not in active_children]
        if stored.stuck is not None:
            self._violate(21, f"stuck: {stored.stuck[:200]}")
        elif self.state.tasks:
            self._violate(21, f"active with {len(self.state.tasks)} unfinished tasks")
        elif stored.due or stored.status == RunStatus.PENDING:
            self._violate(21, "active and due, and nobody has it")
        elif gone:
            self._violate(21, f"waits for child {gone[0]}, which is not active any more")


def _walk(status: TaskStatus, attempts: int) -> None:
    """The shortest path of the table to a final state: with an attempt through `dispatched`, without one straight from `pending`."""
    acts = {
        TaskStatus.SUCCESS: "succeed",
        TaskStatus.FAILED: "fail",
        TaskStatus.CANCELLED: "cancel",
        TaskStatus.SKIPPED: "skip",
    }
    at = next_task_status(TaskStatus.PENDING, "dispatch") if attempts else TaskStatus.PENDING
    next_task_status(at, acts[status])


# -- the ledger of one run -----------------------------------------------------------------------------------------------


def check_executions(
    fold: RunFold, stored: Sequence[StoredTask], lines: Sequence[LedgerLine], names: frozenset[str], findings: Findings
) -> None:
    """What tasks did (`lines`, by time) against what is recorded about them. `names` are the tasks that write the ledger at all."""
    by_task: defaultdict[str, list[LedgerLine]] = defaultdict(list)
    for line in lines:
        by_task[line.task].append(line)
    rows = {ids.text(t.id): t for t in stored}
    for task_id, row in rows.items():
        if row.status == TaskStatus.SUCCESS and row.name in names:
            findings.examine(8)
            if _recorded_effect(row, by_task.get(task_id, [])) is None:
                findings.violate(8, fold.text, f"task {row.seq} succeeded in attempt {row.attempts} without an effect")
    if fold.broken:
        return
    seqs = {ids.text(ids.derive(fold.run_id, ids.TASK, seq)): seq for seq in fold.tasks}
    for task_id, own in by_task.items():
        seq = seqs.get(task_id)
        if seq is not None:
            _check_attempts(fold, seq, rows.get(task_id), own, findings)
    newest = fold.retries[-1] if fold.retries else -1
    for line in lines:
        if line.phase == "begin" and line.after and line.epoch > newest:  # what a retry took back is nowhere recorded
            _check_order(fold, line, seqs, rows, by_task, findings)


def _recorded_effect(row: StoredTask, lines: Sequence[LedgerLine]) -> LedgerLine | None:
    """The effect of the execution that was recorded: of the same attempt, and of the recording epoch if there is one."""
    effects = [x for x in lines if x.phase == "effect" and x.attempt == row.attempts]
    return next((x for x in effects if x.epoch == row.epoch), effects[0] if effects else None)


def _first_effect(row: StoredTask, line: LedgerLine, lines: Sequence[LedgerLine]) -> LedgerLine | None:
    """The earliest execution whose result `line` may have been given.

    The owner that recorded the result may have had it from an execution that a former owner began: a worker that lost its server brings
    it along. So for what runs under that owner, or a later one, any execution of that attempt will do; for what ran before, only the recorded one.
    """
    if line.epoch < row.epoch:
        return _recorded_effect(row, lines)
    effects = [x for x in lines if x.phase == "effect" and x.attempt == row.attempts and x.epoch <= row.epoch]
    return min(effects, key=lambda x: x.mono_us, default=None) or _recorded_effect(row, lines)


def _check_attempts(
    fold: RunFold, seq: int, row: StoredTask | None, lines: Sequence[LedgerLine], findings: Findings
) -> None:
    """A lost worker is one that is recorded as lost, or one whose run was taken over before it could record anything: the same
    attempt then begins again under a later epoch."""
    begins = [x for x in lines if x.phase == "begin"]
    findings.examine(10, len(begins))
    options = fold.tasks[seq].options
    per_ownership = Counter((x.attempt, x.epoch) for x in begins)
    retries = len(fold.retries)
    for (attempt, epoch), count in per_ownership.items():
        if count > (1 if epoch else 1 + retries):  # 0: the run was another engine's
            findings.violate(10, fold.text, f"task {seq}: attempt {attempt} began {count} times in epoch {epoch}")
    if options.at_most_once and len(begins) > 1 + retries:
        findings.violate(10, fold.text, f"at-most-once task {seq} began {len(begins)} times")
    taken_over = len(begins) - len({x.attempt for x in begins})
    lost = row.lost if row is not None and not retries else options.lost_max
    if len(begins) > options.max_attempts + lost + taken_over:
        findings.violate(
            10,
            fold.text,
            f"task {seq} began {len(begins)} times with max_attempts={options.max_attempts}, {lost} lost workers, {taken_over} take-overs",
        )
    if row is not None and row.status in (TaskStatus.SUCCESS, TaskStatus.FAILED):
        _check_after_record(fold, row, options, begins, findings)


def _check_after_record(
    fold: RunFold, row: StoredTask, options: TaskOptions, begins: Sequence[LedgerLine], findings: Findings
) -> None:
    if row.attempts - row.lost > options.max_attempts:
        findings.violate(10, fold.text, f"task {row.seq} recorded {row.attempts} attempts, {row.lost} of them lost")
    since = fold.since(row.epoch)
    for x in begins:
        if x.epoch <= since:
            continue
        if x.attempt > row.attempts:
            what = f"task {row.seq} ended in attempt {row.attempts} and yet attempt {x.attempt} began"
            findings.violate(10, fold.text, what)
        elif x.epoch > row.epoch:
            what = f"task {row.seq} was recorded in epoch {row.epoch} and executed again in epoch {x.epoch}"
            findings.violate(10, fold.text, what)


def _check_order(
    fold: RunFold,
    line: LedgerLine,
    seqs: dict[str, int],
    rows: dict[str, StoredTask],
    by_task: dict[str, list[LedgerLine]],
    findings: Findings,
) -> None:
    """Every execution, recorded or not, must have followed the recorded executions of what it was given."""
    me = seqs.get(line.task)
    for other in line.after:
        findings.examine(11)
        row = rows.get(other)
        path = fold.tasks.get(row.seq) if row is not None else None
        if row is None or path is None:
            # A take-over may schedule this task under another fact; what it was given must be recorded all the same.
            findings.violate(11, fold.text, f"{line.name} began after {other}, whose end is nowhere recorded")
            continue
        if me is not None and path.ended >= fold.tasks[me].scheduled:
            findings.violate(11, fold.text, f"task {me} was scheduled before task {row.seq}, which it needs, ended")
        effect = _first_effect(row, line, by_task.get(other, []))
        if effect is not None and effect.mono_us > line.mono_us:
            findings.violate(
                11,
                fold.text,
                f"{line.name} (attempt {line.attempt}) began before the recorded execution of task {row.seq}, which it needs",
            )
