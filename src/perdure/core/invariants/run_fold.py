"""One run: its history folded anew, and what is stored about it held against that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from perdure.core import chain, ids
from perdure.core import events as ev
from perdure.core.errors import IllegalTransition
from perdure.core.invariants.answers import Answers
from perdure.core.invariants.expected import attributes_of, end_of, short, walk
from perdure.core.invariants.findings import Findings
from perdure.core.invariants.rows import (
    RunColumns,
    StoredRun,
    StoredTask,
    TaskColumns,
    TaskPath,
)
from perdure.core.lifecycle import RunStatus, TaskStatus
from perdure.core.limits import CLOCKS_APART_S_MAX
from perdure.core.retry import TaskOptions
from perdure.core.run_retry import effective
from perdure.core.runstate import RunState
from perdure.core.work import run_kind


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
        self.closed = False
        """Its history is encrypted with a key that is not here: of it, the chain alone is judged."""
        self.retries: list[int] = []
        """For each retry the epoch of the run that had failed; what came after is of a later one."""
        self.scheduled: tuple[str, int] | None = None
        """The schedule that started it, and the nominal time it was started for."""
        self.started: ev.RunStarted | None = None
        """How it was started, without its input."""
        self.input_hash = b""
        self.started_us = self.last_us = 0
        self.forked = self.forked_us = 0
        """Number and time of the event that ends the copies of a fork; 0: it is none."""
        self.version, self.pinned = "", False
        """Of the code that executes it, and whether no other may."""
        self.ns: int | None = None
        self.signals: list[tuple[str, bytes]] = []
        """Name and value of the signals it has received, if `keep_signals` is set."""
        self.keep_signals = False
        self.next_run = b""
        """The run that continues this one."""
        self.last_epoch = 0
        self._head, self._head_us = chain.BEGINNING, 0
        self._heads: dict[int, bytes] = {}
        """Hashes of its rows, by the number of their last event."""
        self._terminal: tuple[int, ev.Event] | None = None
        self._fired: set[int] = set()
        self.answers = Answers()
        self._fanouts: list[tuple[int, int]] = []

    def _violate(self, number: int, what: str) -> None:
        self._findings.violate(number, self.text, what)

    def chained(self, ns: int, seq: int, last: int, epoch: int, at_us: int, body: bytes, stored: bytes) -> None:
        """One history row as it is stored: whether its hash follows from the row before, and whose it is."""
        made = chain.link(self._head, self._head_us, self.run_id, ns, seq, last, epoch, body)
        if made != stored:
            self._violate(
                3,
                f"the hash of events {seq}..{last} does not follow from what is stored: they or the row before were changed",
            )
        self._findings.examine(22)
        if self.ns is None:
            self.ns = ns
        elif ns != self.ns:
            self._violate(22, f"events {seq}..{last} belong to namespace {ns}, the run's first to {self.ns}")
        self._head, self._head_us = stored, at_us
        self._heads[last] = stored

    def row(self, seq: int, last: int, epoch: int, at_us: int, events: Sequence[ev.Event]) -> None:
        """One history row: the events seq..last."""
        f = self._findings
        self.last_us, self.last_epoch = at_us, epoch
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

    def _event(self, seq: int, at_us: int, event: ev.Event) -> None:
        f = self._findings
        f.examine(5)
        f.examine(6)
        end = self._terminal[1] if self._terminal else None
        if isinstance(event, ev.RunStarted):
            self._began(at_us, event)
        elif isinstance(event, ev.VersionChanged):
            self.version = event.version
        elif isinstance(event, ev.RunBegan):
            self.version, self.pinned = event.version or self.version, event.pinned or self.pinned
        elif isinstance(event, ev.SignalReceived):
            f.examine(16)
            if self.keep_signals:
                self.signals.append((event.name, event.value))
        elif isinstance(event, ev.PromiseCreated | ev.PromiseResolved):
            f.examine(27, self.answers.apply(seq, event))
        elif isinstance(event, ev.RunContinued):
            self.next_run = event.run_id
        elif isinstance(event, ev.RunForked):
            self._copies_end(seq, at_us, event)
        elif isinstance(event, ev.NodeOverridden):
            if not isinstance(end, ev.RunFailed):
                self._violate(5, f"event {seq} overrides a node of a run that has not failed")
            return
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

    def _began(self, at_us: int, event: ev.RunStarted) -> None:
        if event.schedule and not event.lineage and not event.rerun_of:
            self.scheduled = (event.schedule, event.nominal_us)
        if self.started is None:
            self.started_us, self.version, self.pinned = at_us, event.version, event.pinned
            self.input_hash = chain.input_hash(event.workflow, event.input) if event.key else b""
            self.started = msgspec.structs.replace(event, input=b"")

    def _copies_end(self, seq: int, at_us: int, event: ev.RunForked) -> None:
        lineage = self.started.lineage if self.started is not None else []
        if self.forked or not lineage or lineage[-1] != event.run_id:
            self._violate(6, f"event {seq} ends copies of run {ids.text(event.run_id)}, of which the run is no fork")
        self.forked, self.forked_us = seq, at_us

    def is_copied(self, task: int) -> bool:
        """Whether a task ended in the run that this one is a fork of."""
        path = self.tasks.get(task)
        return path is not None and 0 < path.ended < self.forked

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
        self._task(seq, at_us, event)
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

    def _task(self, seq: int, at_us: int, event: ev.Event) -> None:
        match event:
            case ev.TasksScheduled():
                self._scheduled(seq, event)
            case ev.TasksSucceeded():
                if len(event.seqs) != len(event.results):
                    self._violate(7, f"event {seq} has {len(event.seqs)} tasks and {len(event.results)} results")
                for one in event.seqs:
                    self._ended(seq, at_us, one, TaskStatus.SUCCESS)
            case ev.TaskFailed():
                self._ended(seq, at_us, event.seq, TaskStatus.FAILED)
                if (path := self.tasks.get(event.seq)) is not None:
                    path.error, path.attempts = event.failure.message, event.attempts
            case ev.TasksCancelled():
                for one in event.seqs:
                    self._ended(seq, at_us, one, TaskStatus.CANCELLED)
            case ev.TasksSkipped():
                self._skipped(seq, at_us, event)
            case _:
                pass

    def _scheduled(self, seq: int, event: ev.TasksScheduled) -> None:
        if event.first != len(self.tasks):
            self._violate(12, f"event {seq} schedules task {event.first} where {len(self.tasks)} is next")
        if len(event.inputs) > 1:
            self._fanouts.append((event.first, len(event.inputs)))
        for one in range(event.first, event.first + len(event.inputs)):
            path = self.tasks[one] = TaskPath(event.options, seq)
            path.name, path.queue, path.node = event.name, event.queue, ev.label(event, one) if event.nodes else None

    def _skipped(self, seq: int, at_us: int, event: ev.TasksSkipped) -> None:
        if event.first != len(self.tasks):
            self._violate(12, f"event {seq} skips task {event.first} where {len(self.tasks)} is next")
        for one in range(event.first, event.first + len(event.nodes)):
            path = self.tasks[one] = TaskPath(TaskOptions(), seq)
            path.status, path.ended, path.ended_us = TaskStatus.SKIPPED, seq, at_us
            path.name = path.node = event.nodes[one - event.first]
            path.error, path.attempts = event.reason or None, 0

    def _ended(self, seq: int, at_us: int, task: int, status: TaskStatus) -> None:
        self._findings.examine(7)
        path = self.tasks.get(task)
        if path is None:
            self._violate(6, f"event {seq} ends task {task}, which was never scheduled")
        elif path.ended:
            self._violate(7, f"task {task} ended at event {path.ended} and again at event {seq}")
        else:
            path.status, path.ended, path.ended_us = status, seq, at_us

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
        if not stored.active and self.last_epoch != stored.epoch:
            self._violate(9, f"the run ended in epoch {self.last_epoch}, its row says {stored.epoch}")
        if stored.columns is not None:
            self._settle_columns(stored, stored.columns)
        if self.broken:
            return
        if stored.active and self.state.is_terminal:
            self._violate(4, f"the history ends in {self.state.status.word}, the run is still active")
        if not stored.active and self.state.status != stored.status:
            self._violate(4, f"the history says {self.state.status.word}, the row {RunStatus(stored.status).word}")
        if not stored.active and stored.events is not None and stored.events != self.last:
            self._violate(4, f"the row counts {stored.events} events, the history {self.last}")

    def _settle_columns(self, stored: StoredRun, c: RunColumns) -> None:
        """Each column of the run's row against the event that it was taken from."""
        self._findings.examine(22)
        if self.ns is not None and c.ns != self.ns:
            self._violate(22, f"the run's row belongs to namespace {c.ns}, its history to {self.ns}")
        if c.head is not None and self._heads.get(stored.events or 0) != c.head:
            self._violate(
                3,
                f"the history does not have the row that ended with event {stored.events} when the run was last written",
            )
        if self.closed:
            return
        s = self.started
        if s is not None and s.lineage and not self.forked and not self.broken:
            self._violate(6, "the run is a fork, and no event ends the copies")
        if s is not None:
            told: dict[str, tuple[object, object]] = {
                "workflow": (s.workflow, c.workflow),
                "version": (self.version, c.version),
                "kind": (run_kind(self.version), c.kind),
                "pin": (self.pinned and stored.active, bool(c.pin)),
                "key": (s.key or None, c.key),
                "parent_id": (s.parent_id or None, c.parent_id),
                "parent_seq": (s.parent_seq if s.parent_id and s.parent_seq >= 0 else None, c.parent_seq),
                "created_at": (self.forked_us or self.started_us, c.created_us),
            }
            if not self.broken:
                told["attributes"] = (attributes_of(self.state.attributes.decode()), attributes_of(c.attributes))
            if not stored.active:
                code, text, successor = end_of(self._terminal[1] if self._terminal else None)
                told |= {
                    "finished_at": (self.last_us, c.finished_us),
                    "error_code": (code, c.error_code),
                    "error": (text, c.error),
                    "successor": (successor, c.successor),
                }
            for name, (history, row) in told.items():
                if history != row:
                    self._violate(4, f"column {name} of the run is {short(row)}, its history says {short(history)}")

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
        if t.columns is not None:
            self._settle_task_columns(t, path, t.columns)
        if path.status != t.status:
            self._violate(
                4, f"task {t.seq} is {path.status.word} in the history and {TaskStatus(t.status).word} in its row"
            )
        if t.id != ids.derive(self.run_id, ids.TASK, t.seq):
            self._violate(4, f"the row of task {t.seq} has an id of another task")
        if t.epoch > self.epoch:
            self._violate(9, f"the row of task {t.seq} is of epoch {t.epoch}, its end of epoch {self.epoch} at most")
        try:
            walk(TaskStatus(t.status), t.attempts)
        except IllegalTransition as e:
            self._violate(6, f"task {t.seq} after {t.attempts} attempts: {e}")

    def _settle_task_columns(self, t: StoredTask, path: TaskPath, c: TaskColumns) -> None:
        self._findings.examine(22)
        if self.ns is not None and c.ns != self.ns:
            self._violate(22, f"the row of task {t.seq} belongs to namespace {c.ns}, its run to {self.ns}")
        told = {
            "name": (path.name, t.name),
            "queue": (path.queue, c.queue),
            "node": (path.node, c.node),
            "error": (path.error, c.error),
        }
        if t.copied != self.is_copied(t.seq):
            told["copied"] = (self.is_copied(t.seq), t.copied)  # type: ignore[assignment]
        if path.attempts is not None:
            told["attempts"] = (path.attempts, t.attempts)  # type: ignore[assignment]
        for name, (history, row) in told.items():
            if history != row:
                self._violate(4, f"column {name} of task {t.seq} is {short(row)}, the history says {short(history)}")
        if not 0 <= t.lost <= t.attempts:
            self._violate(4, f"task {t.seq} lost {t.lost} workers in {t.attempts} attempts")
        apart_us = CLOCKS_APART_S_MAX * 1_000_000
        times = {"scheduled_at": c.scheduled_us, "started_at": c.started_us, "finished_at": c.finished_us}
        for name, us in times.items():
            if us is not None and not self.started_us - apart_us <= us <= path.ended_us + apart_us:
                self._violate(
                    4,
                    f"column {name} of task {t.seq} is outside of the time between the run's start and the task's end",
                )
        if path.status is TaskStatus.CANCELLED or self.state.is_terminal:
            self._findings.examine(18)
            stop_us = path.ended_us if path.status is TaskStatus.CANCELLED else self.last_us
            if c.started_us is not None and c.started_us > stop_us + apart_us:
                what = "its cancel" if path.status is TaskStatus.CANCELLED else "the end of its run"
                self._violate(18, f"task {t.seq} began {(c.started_us - stop_us) / 1e6:.0f} s after {what}")

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
            self._violate(21, "active and due, and no engine owns it")
        elif gone:
            self._violate(21, f"waits for child {gone[0]}, which is not active any more")


def unreadable(fold: RunFold, seq: int, last: int, why: str, findings: Findings) -> None:
    """A history row that cannot be decoded."""
    fold.broken = True
    fold.last = last
    findings.violate(4, fold.text, f"events {seq}..{last} cannot be read: {why}")


def unopened(fold: RunFold, seq: int, last: int, epoch: int, at_us: int, findings: Findings) -> None:
    """A history row whose key is missing."""
    fold.broken = fold.closed = True
    findings.examine(3)
    if seq != fold.last + 1:
        findings.violate(3, fold.text, f"event {fold.last} is followed by event {seq}")
    fold.last, fold.epoch, fold.last_epoch, fold.last_us = last, max(fold.epoch, epoch), epoch, at_us
