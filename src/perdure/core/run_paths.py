"""The path of a run: what its code asked for and how that was answered, without the values. Runs with the same path are checked together.

Theory. Replaying 100,000 histories takes long, and most of them show the same thing. A path abstracts from what rarely matters to a replay, so
that few runs of each path have to be replayed. From a history it keeps, in order:

- what the code asked for: tasks by name (of a flow: and by node), timers, children by workflow, promises, approvals and named events by
  name, side effects, states, patches, cancellations;
- how it was answered: success, or the code and type of the failure; which signal, update or promise came; that a timer fired;
- how the run ended, and of an active run which signals and updates its code waits for.

It abstracts from:

- values: inputs, results, keys, times. Numbers in names that programs make (of promises, signals, states, side effects) count as one;
- the order of answers between two commands: they are a set;
- how often something is repeated: 1, 2 and 3 differ, above that powers of two do. That holds for fan-outs, for equal answers, and for bodies of
  loops of up to LOOP_STEPS_MAX steps.

Where a branch depends on values, several runs of a path are needed: `values` is a class of the values (their types, signs, orders of
magnitude, lengths, truth), and `detail` a checksum of the values themselves. Samples differ in the first as far as possible, then in the second.

Laws: a path is a function of the history and of the waits alone, and a history without values has the path of the one with them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import log10
from typing import Any, Final, TypeVar, cast
from zlib import crc32

import msgspec

from perdure.core import events as ev
from perdure.core.errors import Failure
from perdure.core.limits import LOOP_STEPS_MAX, PATH_TEXT_CHARS_MAX
from perdure.core.payloads import MARK
from perdure.core.run_retry import effective

PENDING_NAMES_MAX: Final = 20
"""Names of tasks that a path lists as scheduled and not ended."""
_NODES_SHOWN: Final = 20
_VALUES_READ: Final = 4
"""Results of one fan-out whose class is taken."""
_VALUE_BYTES_MAX: Final = 4_096
_DEPTH_MAX: Final = 3
_MEMBERS_MAX: Final = 16
_WORD_CHARS_MAX: Final = 24
_WORDS: Final = 8
"""Short words, such as the values of an enumeration, fall into this many classes."""
_MADE = re.compile(r"[0-9a-f]{8,}(?:-[0-9a-f]+)*|\d+")
_INDEX = re.compile(r"\[\d+\]")
_FACTS: Final = frozenset(ev.FACTS)

S = TypeVar("S")


@lru_cache(maxsize=10_000)
def made_name(name: str) -> str:
    """A name that a program may have made of numbers or ids, with those left out."""
    return _MADE.sub("#", name)


class RunPath(msgspec.Struct, frozen=True):
    fingerprint: bytes
    steps: str
    """In words; clipped in the middle to PATH_TEXT_CHARS_MAX."""
    pending: tuple[str, ...]
    """Tasks that are scheduled and have not ended, by name."""
    values: int
    detail: int


def path_of(history: Sequence[ev.Recorded], waits: Iterable[str] = (), *, is_cut: bool = False) -> RunPath:
    """The path of a history. `waits`: signals and updates that the code waits for, as `signal:name`. `is_cut`: it is only the beginning."""
    fold = _PathFold()
    for record in effective(cast("list[ev.Recorded]", history)):
        fold.add(record.event)
    return fold.done(waits, is_cut=is_cut)


class _Loop:
    __slots__ = ("body", "times")

    def __init__(self, body: list[str]) -> None:
        self.body, self.times = body, 2

    @property
    def text(self) -> str:
        inner = " > ".join(self.body)
        return f"({inner}){_times(self.times)}" if len(self.body) > 1 else f"{inner}{_times(self.times)}"


class _Steps:
    """A list of steps in which repetitions are folded as it grows."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._loops: list[_Loop | None] = []

    def add(self, step: str) -> None:
        self.steps.append(step)
        self._loops.append(None)
        while self._fold():
            pass

    def _fold(self) -> bool:
        steps, loops = self.steps, self._loops
        n, last = len(steps), steps[-1]
        for k in range(1, min(LOOP_STEPS_MAX, n - 1) + 1):
            loop = loops[n - k - 1]
            if loop is not None and len(loop.body) == k and loop.body[-1] == last and steps[-k:] == loop.body:
                del steps[-k:], loops[-k:]
                loop.times += 1
                steps[-1] = loop.text
                return True
            if steps[n - 1 - k] == last and n >= 2 * k and steps[-2 * k : -k] == steps[-k:]:
                made = _Loop(steps[-k:])
                del steps[-2 * k :], loops[-2 * k :]
                steps.append(made.text)
                loops.append(made)
                return True
        return False


class _PathFold:
    def __init__(self) -> None:
        self._steps = _Steps()
        self._answers: Counter[str] = Counter()
        """Since the last command."""
        self._tasks: dict[int, tuple[str, str]] = {}
        """Tasks that have not ended: their label in the path, and their name."""
        self._children: dict[int, str] = {}
        self._promises: dict[str, str] = {}
        self._updates: dict[str, str] = {}
        self._values = self._detail = 0

    def add(self, event: ev.Event) -> None:
        told = _TOLD.get(type(event))
        text = told(self, event) if told is not None else type(event).__name__
        if not text:
            return
        if type(event) in _FACTS and type(event) is not ev.OperationRecorded:
            self._answers[text] += 1
            return
        if self._answers:
            self._flush()
        self._steps.add(text)

    def _flush(self) -> None:
        answers = self._answers
        self._steps.add(" + ".join(sorted(f"{text}{_times(n)}" for text, n in answers.items())))
        answers.clear()

    def done(self, waits: Iterable[str], *, is_cut: bool) -> RunPath:
        if self._answers:
            self._flush()
        steps = self._steps.steps
        if is_cut:
            steps.append("…")
        listened = sorted({made_name(w) for w in waits})
        if listened:
            steps.append(f"waits for {', '.join(listened)}")
        pending = dict.fromkeys(name for _, name in self._tasks.values())
        text = " > ".join(steps)
        print_ = blake2b(text.encode(), digest_size=12).digest()
        return RunPath(print_, _clipped(text), tuple(sorted(pending)[:PENDING_NAMES_MAX]), self._values, self._detail)

    def _value(self, data: bytes) -> None:
        self._detail = crc32(data, self._detail)
        self._values = crc32(_class_of(data).encode(), self._values)

    def _started(self, e: ev.RunStarted) -> str:
        self._value(e.input)
        return "start"

    def _scheduled(self, e: ev.TasksScheduled) -> str:
        labels: list[str] = []
        if e.index >= 0 or not e.nodes:
            label = f"{e.name}@{_INDEX.sub('[]', e.nodes[0])}" if e.nodes else e.name
            labels = [label] * len(e.inputs)
        else:
            labels = [f"{e.name}@{_INDEX.sub('[]', node)}" for node in e.nodes]
        for seq, label in enumerate(labels, e.first):
            self._tasks[seq] = (label, e.name)
        counted = Counter(labels)
        shown = [f"{label}{_times(n)}" for label, n in counted.items()]
        return f"task {_listed(shown)}"

    def _succeeded(self, e: ev.TasksSucceeded) -> str:
        for data in e.results[:_VALUES_READ]:
            self._value(data)
        ended = Counter(self._ended(seq) for seq in e.seqs)
        for label, n in ended.items():
            self._answers[f"{label} ok"] += n
        return ""

    def _ended(self, seq: int) -> str:
        return self._tasks.pop(seq, ("a task", ""))[0]

    def _failed(self, e: ev.TaskFailed) -> str:
        return f"{self._ended(e.seq)} {_how(e.failure)}"

    def _cancelled(self, e: ev.TasksCancelled) -> str:
        counted = Counter(self._ended(seq) for seq in e.seqs)
        return f"cancel {_listed([f'{label}{_times(n)}' for label, n in counted.items()])}"

    def _skipped(self, e: ev.TasksSkipped) -> str:
        return f"skip {_listed(list(dict.fromkeys(_INDEX.sub('[]', node) for node in e.nodes)))}"

    def _child(self, e: ev.ChildStarted) -> str:
        self._children[e.seq] = e.workflow
        return f"child {e.workflow}"

    def _child_ended(self, e: ev.ChildSucceeded | ev.ChildFailed | ev.ChildCancelled) -> str:
        name = f"child {self._children.pop(e.seq, '')}"
        if isinstance(e, ev.ChildSucceeded):
            self._value(e.result)
            return f"{name} ok"
        return f"{name} {_how(e.failure)}" if isinstance(e, ev.ChildFailed) else f"{name} cancelled"

    def _child_stopped(self, e: ev.ChildCancelRequested) -> str:
        return f"cancel child {self._children.get(e.seq, '')}"

    def _signal(self, e: ev.SignalReceived) -> str:
        self._value(e.value)
        return f"signal {made_name(e.name)}"

    def _promise(self, e: ev.PromiseCreated) -> str:
        name = self._promises[e.name] = f"{ev.PROMISE_WORDS[e.kind]} {made_name(e.name)}"
        return name

    def _resolved(self, e: ev.PromiseResolved) -> str:
        self._value(e.value)
        return f"{self._promises.get(e.name) or f'promise {made_name(e.name)}'} ok"

    def _update(self, e: ev.UpdateReceived) -> str:
        self._value(e.value)
        self._updates[e.id] = e.name
        return f"update {e.name}"

    def _answered(self, e: ev.UpdateAnswered) -> str:
        how = "answered" if e.failure is None else f"refused {e.failure.type or e.failure.code}"
        return f"update {self._updates.pop(e.id, '')} {how}"

    def _operation(self, e: ev.OperationRecorded) -> str:
        if e.failure is None:
            self._value(e.value)
        return f"run {made_name(e.name)} {'ok' if e.failure is None else _how(e.failure)}"

    def _ended_run(self, e: ev.RunFailed) -> str:
        return f"run {_how(e.failure)}"


_TOLD: Final[dict[type, Callable[[_PathFold, Any], str]]] = {
    ev.RunStarted: _PathFold._started,
    ev.RunBegan: lambda _, e: "",
    ev.CancelRequested: lambda _, e: "deadline" if e.deadline else "cancel requested",
    ev.RunSucceeded: lambda _, e: "run ok",
    ev.RunFailed: _PathFold._ended_run,
    ev.RunCancelled: lambda _, e: "run cancelled",
    ev.RunContinued: lambda _, e: "continue as new",
    ev.RunRetried: lambda _, e: "retried",
    ev.TasksScheduled: _PathFold._scheduled,
    ev.TasksSucceeded: _PathFold._succeeded,
    ev.TaskFailed: _PathFold._failed,
    ev.TasksCancelled: _PathFold._cancelled,
    ev.TasksSkipped: _PathFold._skipped,
    ev.TimerStarted: lambda _, e: "timer",
    ev.TimerFired: lambda _, e: "timer fired",
    ev.TimerCancelled: lambda _, e: "cancel timer",
    ev.ChildStarted: _PathFold._child,
    ev.ChildSucceeded: _PathFold._child_ended,
    ev.ChildFailed: _PathFold._child_ended,
    ev.ChildCancelled: _PathFold._child_ended,
    ev.ChildCancelRequested: _PathFold._child_stopped,
    ev.SignalReceived: _PathFold._signal,
    ev.PromiseCreated: _PathFold._promise,
    ev.PromiseResolved: _PathFold._resolved,
    ev.UpdateReceived: _PathFold._update,
    ev.UpdateAnswered: _PathFold._answered,
    ev.OperationRecorded: _PathFold._operation,
    ev.StateSet: lambda _, e: f"set {made_name(e.name)}",
    ev.StateCleared: lambda _, e: f"clear {made_name(e.name)}",
    ev.PatchRecorded: lambda _, e: f"patch {e.name}",
    ev.AttributesSet: lambda _, e: "attributes",
}
"""What an event adds to a path; nothing where it is empty. A type that is not listed adds its name."""


def _how(failure: Failure) -> str:
    return f"failed {failure.type or failure.code}"


def _times(n: int) -> str:
    if n == 1:
        return ""
    return f" x{n}" if n <= 3 else f" x{1 << (n.bit_length() - 1)}.."


def _listed(names: list[str]) -> str:
    if len(names) <= _NODES_SHOWN:
        return ", ".join(names)
    rest = blake2b("\n".join(names).encode(), digest_size=4).hexdigest()
    return f"{', '.join(names[:_NODES_SHOWN])} and {len(names) - _NODES_SHOWN} more ({rest})"


def _clipped(text: str) -> str:
    if len(text) <= PATH_TEXT_CHARS_MAX:
        return text
    half = PATH_TEXT_CHARS_MAX // 2 - 2
    return f"{text[:half]} … {text[-half:]}"


def _class_of(data: bytes) -> str:
    if not data:
        return "-"
    if data.startswith(MARK):
        return "@"
    if len(data) > _VALUE_BYTES_MAX:
        return f"b{len(data).bit_length()}"
    try:
        return _shape(msgspec.json.decode(data), 0)
    except msgspec.DecodeError:
        return "?"


def _shape(value: Any, depth: int) -> str:
    match value:
        case None:
            return "n"
        case bool():
            return "t" if value else "f"
        case int() | float():
            return "0" if not value else f"{'+' if value > 0 else '-'}{int(log10(abs(value)))}"
        case str():
            if len(value) <= _WORD_CHARS_MAX and value.isalpha():
                return f"w{crc32(value.encode()) % _WORDS}"
            return "s" if value else "e"
        case list():
            inner = "".join(_shape(v, depth + 1) for v in value[:_VALUES_READ]) if depth < _DEPTH_MAX else ""
            return f"[{_times(len(value))}{inner}]" if value else "[]"
        case dict():
            members = cast("dict[str, Any]", value)
            keys = sorted(members)[:_MEMBERS_MAX]
            return "{" + ",".join(k + (_shape(members[k], depth + 1) if depth < _DEPTH_MAX else "") for k in keys) + "}"
        case _:
            return "?"


def spread(samples: Sequence[S], count: int, key: Callable[[S], tuple[int, int]]) -> list[S]:
    """Up to `count` of the samples, from as many classes as possible, and within a class with different values. `key`: class and checksum.

    Chosen by their keys alone, so that choosing from pages and then from what was chosen gives what choosing from all would.
    """
    classes: dict[int, dict[int, S]] = {}
    for sample in samples:
        values, detail = key(sample)
        classes.setdefault(_mixed(values), {}).setdefault(_mixed(detail), sample)
    lowest = [classes[c] for c in sorted(classes)[:count]]
    rounds = [[of[d] for d in sorted(of)[:count]] for of in lowest]
    return [of[n] for n in range(count) for of in rounds if n < len(of)][:count]


def _mixed(number: int) -> int:
    """Checksums of similar values are near each other; which of them are lowest must not depend on the values."""
    return crc32(number.to_bytes(8, "big"))
