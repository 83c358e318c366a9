"""The journal matches what workflow code asks for to what the history says it asked for before.

Laws:

1. Commands are matched per kind and sequence number, never by position, so code may await in any order. Answers to updates are matched
   by the update's id.
2. A command that the history already holds is skipped when identical and refused when different: `NondeterminismError`
   names the place, what the history expects and what the code did. The first mismatch is kept in `mismatch`, because user
   code may swallow the exception.
3. A command that the history holds and the code never asks for is a mismatch too, found when the whole history has been
   applied. A command without a record is new territory: its record was lost in a crash, or the code has never been here.
4. In a fork (core/run_fork.py), the run's own id in what the code asks for stands for the ids of the runs that its history was copied from.
5. The journal does no I/O and knows no event loop: it is fed events and asked for commands.

    load(history) -> [apply one event -> let the code run -> it asks: schedule_tasks / start_timer / ...]* -> take_commands()
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids, payloads
from perdure.core.errors import Failure, InvalidInput, NondeterminismError, PayloadMismatch
from perdure.core.lazy_sets import EMPTY, LazySet, added
from perdure.core.limits import FANOUT_TASKS_MAX, SCHEDULE_CHUNK_BYTES, SCHEDULE_CHUNK_TASKS
from perdure.core.retry import TaskOptions
from perdure.core.undo import is_undo

_STATE = 100  # state writes and patches are matched like everything else, under kinds of their own
_PATCH = 101
_ATTRIBUTES = 102
_FACTS = frozenset(ev.FACTS)
NO_HANDLER = "NoHandler"
"""Type of the failure that refuses an update which no code of the program can handle."""


class Journal:
    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._expected: dict[tuple[int, int], ev.Event] = {}
        self._answers: dict[str, ev.UpdateAnswered] = {}
        self._cancelled: LazySet[tuple[int, int]] = EMPTY
        self._awaited: LazySet[int] = EMPTY
        """Children that were cancelled and whose end was waited for."""
        self._patches: LazySet[str] = EMPTY
        self._patch_answers: dict[str, bool] = {}
        self._commands: list[cm.Command] = []
        self._own_id = b""
        self._copied_ids: tuple[bytes, ...] = ()
        """Of a fork, as texts: its id, and those of the runs before it."""
        self.facts_ahead = 0
        """Facts of the loaded history that have not been applied yet; above zero the code runs where it ran before."""
        self.mismatch: NondeterminismError | None = None
        self.unreadable: PayloadMismatch | None = None
        """The first message that the code cannot read. It cannot go on either."""

    def load(self, history: list[ev.Recorded]) -> None:
        """Index the command events of a recorded history before the code is run against it."""
        states = attributes = 0
        for record in history:
            e = record.event
            if type(e) in _FACTS:
                self.facts_ahead += 1
                if type(e) is not ev.OperationRecorded:
                    continue
            match e:
                case ev.TasksScheduled() | ev.TasksSkipped():
                    self._expected[ids.TASK, e.first] = e
                case ev.TimerStarted():
                    self._expected[ids.TIMER, e.seq] = e
                case ev.ChildStarted():
                    self._expected[ids.CHILD, e.seq] = e
                case ev.PromiseCreated():
                    self._expected[ids.PROMISE, e.seq] = e
                case ev.OperationRecorded():
                    self._expected[ids.OPERATION, e.seq] = e
                case ev.StateSet() | ev.StateCleared():
                    self._expected[_STATE, states] = e
                    states += 1
                case ev.AttributesSet():
                    self._expected[_ATTRIBUTES, attributes] = e
                    attributes += 1
                case ev.TasksCancelled():
                    for seq in e.seqs:
                        self._cancelled = added(self._cancelled, (ids.TASK, seq))
                case ev.TimerCancelled():
                    self._cancelled = added(self._cancelled, (ids.TIMER, e.seq))
                case ev.ChildCancelRequested():
                    self._cancelled = added(self._cancelled, (ids.CHILD, e.seq))
                    if e.awaited:
                        self._awaited = added(self._awaited, e.seq)
                case ev.PatchRecorded():
                    self._patches = added(self._patches, e.name)
                case ev.UpdateAnswered():
                    self._answers[e.id] = e
                case _:
                    pass

    def forked(self, run_id: bytes, lineage: list[bytes]) -> None:
        """The run is a fork (law 4)."""
        self._own_id, self._copied_ids = ids.text(run_id).encode(), tuple(ids.text(i).encode() for i in lineage)

    @property
    def is_replaying(self) -> bool:
        return self.facts_ahead > 0 or bool(self._expected) or bool(self._answers)

    def take_commands(self) -> list[cm.Command]:
        commands, self._commands = self._commands, []
        return commands

    def schedule_tasks(
        self,
        name: str,
        queue: str,
        inputs: list[bytes],
        options: TaskOptions,
        nodes: list[str] | None = None,
        index: int = -1,
    ) -> int:
        """Ask for len(inputs) tasks; returns the first sequence number. Chunk bounds depend on the inputs alone."""
        if len(inputs) > FANOUT_TASKS_MAX:
            raise InvalidInput(
                f"a fan-out of {len(inputs)} tasks is over the limit FANOUT_TASKS_MAX={FANOUT_TASKS_MAX}; split it over child workflows"
            )
        start = self._next.get(ids.TASK, 0)
        self._next[ids.TASK] = start + len(inputs)
        first = start
        for chunk in _chunks(inputs):
            expected = self._expected.pop((ids.TASK, first), None)
            if expected is None:
                at = index + first - start if index >= 0 else -1
                self._commands.append(
                    cm.ScheduleTasks(first, name, queue, chunk, options, _of_chunk(nodes, at, first - start, chunk), at)
                )
            elif not isinstance(expected, ev.TasksScheduled):
                self._refuse(
                    f"task {first}", f"{type(expected).__name__} {_describe(expected)}", _tasks_text(name, chunk)
                )
            elif (
                expected.name != name
                or not _same_nodes(expected, nodes, first - start)
                # The error text passed to an undo may differ: texts of exceptions contain addresses.
                or (expected.inputs != chunk and not is_undo(nodes) and not self._agree(expected.inputs, chunk))
            ):
                self._refuse(f"task {first}", _describe(expected), _tasks_text(name, chunk))
            first += len(chunk)
        return start

    @property
    def next_task(self) -> str:
        """The name that the history has for the task that is scheduled next; empty where it has none."""
        expected = self._expected.get((ids.TASK, self._next.get(ids.TASK, 0)))
        return expected.name if isinstance(expected, ev.TasksScheduled) else ""

    def skip_tasks(self, nodes: list[str], reason: str) -> int:
        """Nodes that will not run; each takes a sequence number."""
        first = self._next.get(ids.TASK, 0)
        self._next[ids.TASK] = first + len(nodes)
        expected = self._expected.pop((ids.TASK, first), None)
        if expected is None:
            self._commands.append(cm.SkipTasks(first, nodes, reason))
        elif not isinstance(expected, ev.TasksSkipped) or expected.nodes != nodes:
            self._refuse(f"task {first}", f"{type(expected).__name__} {_describe(expected)}", f"TasksSkipped {nodes}")
        return first

    def start_timer(self, fire_at_us: int) -> int:
        seq = self._take(ids.TIMER)
        expected = self._expected.pop((ids.TIMER, seq), None)
        if expected is None:
            self._commands.append(cm.StartTimer(seq, fire_at_us))
        return seq

    def start_child(self, wanted: cm.StartChild) -> int:
        """`wanted` has no number yet: it gets the one that is answered."""
        seq = self._take(ids.CHILD)
        expected = self._expected.pop((ids.CHILD, seq), None)
        if expected is None:
            self._commands.append(msgspec.structs.replace(wanted, seq=seq))
            return seq
        assert isinstance(expected, ev.ChildStarted)
        if (
            expected.workflow != wanted.workflow
            or not self._same(expected.key.encode(), wanted.key.encode())
            or not self._same(expected.input, wanted.input)
        ):
            self._refuse(
                f"child {seq}",
                f"child workflow {expected.workflow!r} key={expected.key!r} input={_short(expected.input)}",
                f"child workflow {wanted.workflow!r} key={wanted.key!r} input={_short(wanted.input)}",
            )
        return seq

    def create_promise(
        self, name: str, spec: bytes = b"", kind: ev.PromiseKind = ev.PromiseKind.PLAIN
    ) -> ev.PromiseCreated:
        """`spec` is that of an approval or of the wait for a named event. A recorded one stands: its texts may change in the code."""
        seq = self._take(ids.PROMISE)
        expected = self._expected.pop((ids.PROMISE, seq), None)
        if expected is None:
            self._commands.append(cm.CreatePromise(seq, name, spec, kind))
            return ev.PromiseCreated(seq, name, spec, kind)
        assert isinstance(expected, ev.PromiseCreated)
        if not self._same(expected.name.encode(), name.encode()):
            self._refuse(f"promise {seq}", f"promise {expected.name!r}", f"promise {name!r}")
        return expected

    def begin_operation(self, name: str) -> tuple[int, bool]:
        """Sequence number, and whether its outcome is already recorded (then it must not be executed again)."""
        seq = self._take(ids.OPERATION)
        expected = self._expected.pop((ids.OPERATION, seq), None)
        if expected is None:
            return seq, False
        assert isinstance(expected, ev.OperationRecorded)
        if expected.name != name:
            self._refuse(f"operation {seq}", f"wf.run({expected.name!r})", f"wf.run({name!r})")
        return seq, True

    def write_state(self, name: str, value: bytes | None) -> None:
        seq = self._take(_STATE)
        expected = self._expected.pop((_STATE, seq), None)
        command: cm.Command = cm.ClearState(name) if value is None else cm.SetState(name, value)
        if expected is None:
            self._commands.append(command)
            return
        assert isinstance(expected, ev.StateSet | ev.StateCleared)
        before = expected.value if isinstance(expected, ev.StateSet) else None
        if expected.name != name or not self._same(before, value):
            self._refuse(f"state write {seq}", f"{expected.name!r} = {_short(before)}", f"{name!r} = {_short(value)}")

    def set_attributes(self, change: bytes) -> None:
        seq = self._take(_ATTRIBUTES)
        expected = self._expected.pop((_ATTRIBUTES, seq), None)
        if expected is None:
            self._commands.append(cm.SetAttributes(change))
            return
        assert isinstance(expected, ev.AttributesSet)
        if expected.change != change:
            self._refuse(f"attribute write {seq}", _short(expected.change), _short(change))

    def is_unhandled(self, id: str, *, known: bool) -> bool:
        """Whether this update is refused because the program cannot handle it. What is recorded counts, and not which updates it defines
        (`known`) by now: a replay takes the same path."""
        recorded = self._answers.get(id)
        if recorded is None:
            return not known
        return recorded.failure is not None and recorded.failure.type == NO_HANDLER

    def answer_update(self, id: str, value: bytes, failure: Failure | None) -> None:
        """A repeated answer must be of the same kind; its text may have changed: the caller has the first one."""
        expected = self._answers.pop(id, None)
        if expected is None:
            self._commands.append(cm.AnswerUpdate(id, value, failure))
        elif (expected.failure is None) != (failure is None):
            self._refuse(
                f"the answer to update {id}",
                _answer_text(expected.value, expected.failure),
                _answer_text(value, failure),
            )

    def cancel_tasks(self, seqs: list[int]) -> None:
        fresh = [s for s in seqs if (ids.TASK, s) not in self._cancelled]
        if fresh:
            self._commands.append(cm.CancelTasks(fresh))

    def cancel_timer(self, seq: int) -> None:
        if (ids.TIMER, seq) not in self._cancelled:
            self._commands.append(cm.CancelTimer(seq))

    def cancel_child(self, seq: int, *, awaited: bool = False) -> bool:
        """Whether its end is to be waited for: as the history says, where it says anything, so that old ones go on as they went."""
        if (ids.CHILD, seq) in self._cancelled:
            return seq in self._awaited
        self._cancelled = added(self._cancelled, (ids.CHILD, seq))
        if awaited:
            self._awaited = added(self._awaited, seq)
        self._commands.append(cm.CancelChild(seq, awaited))
        return awaited

    def patched(self, name: str) -> bool:
        """True on a run that started, or got here for the first time, with the patch in its code."""
        answer = self._patch_answers.get(name)
        if answer is None:
            answer = name in self._patches or not self.is_replaying
            self._patch_answers[name] = answer
            if answer and name not in self._patches:
                self._commands.append(cm.RecordPatch(name))
        return answer

    def close(self, command: cm.Command) -> None:
        """The code has ended. What the history expected beyond this point will never come."""
        self._commands.append(command)
        self.check_all_matched(lambda: f"the code ended with {type(command).__name__}")

    def check_all_matched(self, actual: Callable[[], str]) -> None:
        """Call when every loaded event has been applied and the code can go no further."""
        if self._expected and self.mismatch is None:
            (kind, seq), event = next(iter(self._expected.items()))
            self.mismatch = NondeterminismError(
                f"{_KINDS[kind]} {seq}", f"{type(event).__name__} {_describe(event)}", actual()
            )
        elif self._answers and self.mismatch is None:
            answer = next(iter(self._answers.values()))
            self.mismatch = NondeterminismError(
                f"the answer to update {answer.id}", _answer_text(answer.value, answer.failure), actual()
            )

    def _same(self, recorded: bytes | None, asked: bytes | None) -> bool:
        if recorded == asked:
            return True
        return recorded is not None and asked is not None and self._agree([recorded], [asked])

    def _agree(self, recorded: list[bytes], asked: list[bytes]) -> bool:
        if payloads.agree(recorded, asked):
            return True
        return bool(self._copied_ids) and list(map(self._renamed, recorded)) == list(map(self._renamed, asked))

    def _renamed(self, data: bytes) -> bytes:
        for copied in self._copied_ids:
            data = data.replace(copied, self._own_id)
        return data

    def _take(self, kind: int) -> int:
        seq = self._next.get(kind, 0)
        self._next[kind] = seq + 1
        return seq

    def _refuse(self, where: str, expected: str, actual: str) -> None:
        error = NondeterminismError(where, expected, actual)
        if self.mismatch is None:
            self.mismatch = error
        raise error


_KINDS = {**ids.KIND_NAMES, _STATE: "state write", _PATCH: "patch", _ATTRIBUTES: "attribute write"}


def _chunks(inputs: list[bytes]) -> list[list[bytes]]:
    if len(inputs) == 1:
        return [inputs]
    out: list[list[bytes]] = []
    start = size = 0
    for i, data in enumerate(inputs):
        if i > start and (i - start >= SCHEDULE_CHUNK_TASKS or size + len(data) > SCHEDULE_CHUNK_BYTES):
            out.append(inputs[start:i])
            start, size = i, 0
        size += len(data)
    if start < len(inputs):
        out.append(inputs[start:])
    return out


def _of_chunk(nodes: list[str] | None, index: int, start: int, chunk: list[bytes]) -> list[str]:
    if not nodes or index >= 0 or len(nodes) == len(chunk):
        return nodes or []
    return nodes[start : start + len(chunk)]


def _same_nodes(expected: ev.TasksScheduled, nodes: list[str] | None, start: int) -> bool:
    return expected.nodes == _of_chunk(nodes, expected.index, start, expected.inputs)


def _times(inputs: list[bytes]) -> str:
    return f" x{len(inputs)}" if len(inputs) > 1 else ""


def _tasks_text(name: str, inputs: list[bytes]) -> str:
    return f"task {name!r}{_times(inputs)} input={_short(inputs[0])}"


def _describe(event: ev.Event) -> str:
    match event:
        case ev.TasksScheduled():
            return _tasks_text(event.name, event.inputs)
        case ev.TasksSkipped():
            return str(event.nodes)
        case ev.ChildStarted():
            return f"workflow {event.workflow!r}"
        case ev.PromiseCreated() | ev.OperationRecorded() | ev.StateSet() | ev.StateCleared():
            return repr(event.name)
        case ev.AttributesSet():
            return _short(event.change)
        case _:
            return ""


def _answer_text(value: bytes, failure: Failure | None) -> str:
    return f"the answer {_short(value)}" if failure is None else f"the refusal {failure.code}: {failure.message}"


def _short(data: bytes | None) -> str:
    if data is None:
        return "nothing"
    text = data.decode(errors="replace")
    return text if len(text) <= 120 else f"{text[:100]}… ({len(data)} bytes)"
