"""A journal that remembers where commands come from, and which of them the history does not have."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

import perdure
from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import Failure, NondeterminismError
from perdure.core.journal import Journal
from perdure.core.retry import TaskOptions
from perdure.programs.check.findings import SourceLine

_OURS: Final = str(Path(perdure.__file__).parent)
_STDLIB: Final = sysconfig.get_path("stdlib")
_SITE: Final = ("site-packages", "dist-packages")
_LOOP: Final = "_run_ready"
"""Below this frame is the program that replays."""
_VALUE_CHARS: Final = 120


class Asked(msgspec.Struct, frozen=True):
    """A command that the history does not have."""

    text: str
    at: int
    """Number of the event that the code was reacting to."""
    place: SourceLine | None
    nodes: tuple[str, ...] = ()


class ObservedJournal(Journal):
    def __init__(self, at: Callable[[], int], *, has_code: bool) -> None:
        super().__init__()
        self._at, self._has_code = at, has_code
        self.records: dict[str, ev.Recorded] = {}
        """Records of commands, by the words that errors name their place with."""
        self.asked: list[Asked] = []
        self.refused: Asked | None = None
        """The command that differs from its record."""
        self.closing: cm.Command | None = None
        """How the code ended, if it did."""

    def load(self, history: list[ev.Recorded]) -> None:
        super().load(history)
        states = attributes = 0
        for record in history:
            match record.event:
                case ev.TasksScheduled() | ev.TasksSkipped() as e:
                    self.records[f"task {e.first}"] = record
                case ev.TimerStarted() | ev.ChildStarted() | ev.PromiseCreated() | ev.OperationRecorded() as e:
                    self.records[f"{_KIND_WORDS[type(e)]} {e.seq}"] = record
                case ev.StateSet() | ev.StateCleared():
                    self.records[f"state write {states}"] = record
                    states += 1
                case ev.AttributesSet():
                    self.records[f"attribute write {attributes}"] = record
                    attributes += 1
                case ev.UpdateAnswered() as e:
                    self.records[f"the answer to update {e.id}"] = record
                case _:
                    pass

    @contextmanager
    def _observing(self, nodes: list[str] | None = None) -> Generator[None]:
        before = len(self._commands)
        try:
            yield
        except NondeterminismError as error:
            self.refused = self.refused or self._remembered(error.actual, nodes)
            raise
        if len(self._commands) > before:
            self.asked.append(self._remembered(command_text(self._commands[before]), nodes))

    def _remembered(self, text: str, nodes: list[str] | None) -> Asked:
        return Asked(text, self._at(), calling_line() if self._has_code else None, tuple(nodes or ()))

    def schedule_tasks(
        self,
        name: str,
        queue: str,
        inputs: list[bytes],
        options: TaskOptions,
        nodes: list[str] | None = None,
        index: int = -1,
    ) -> int:
        with self._observing(nodes):
            return super().schedule_tasks(name, queue, inputs, options, nodes, index)

    def skip_tasks(self, nodes: list[str], reason: str) -> int:
        with self._observing(nodes):
            return super().skip_tasks(nodes, reason)

    def start_timer(self, fire_at_us: int) -> int:
        with self._observing():
            return super().start_timer(fire_at_us)

    def start_child(self, *args: Any, **kwargs: Any) -> int:
        with self._observing():
            return super().start_child(*args, **kwargs)

    def create_promise(
        self, name: str, spec: bytes = b"", kind: ev.PromiseKind = ev.PromiseKind.PLAIN
    ) -> ev.PromiseCreated:
        with self._observing():
            return super().create_promise(name, spec, kind)

    def begin_operation(self, name: str) -> tuple[int, bool]:
        with self._observing():
            seq, recorded = super().begin_operation(name)
        if not recorded:
            self.asked.append(self._remembered(f"wf.run({name!r})", None))
        return seq, recorded

    def write_state(self, name: str, value: bytes | None) -> None:
        with self._observing():
            super().write_state(name, value)

    def set_attributes(self, change: bytes) -> None:
        with self._observing():
            super().set_attributes(change)

    def close(self, command: cm.Command) -> None:
        self.closing = command
        super().close(command)

    def answer_update(self, id: str, value: bytes, failure: Failure | None) -> None:
        with self._observing():
            super().answer_update(id, value, failure)


_KIND_WORDS: Final[dict[type, str]] = {
    ev.TimerStarted: ids.KIND_NAMES[ids.TIMER],
    ev.ChildStarted: ids.KIND_NAMES[ids.CHILD],
    ev.PromiseCreated: ids.KIND_NAMES[ids.PROMISE],
    ev.OperationRecorded: ids.KIND_NAMES[ids.OPERATION],
}


def command_text(command: cm.Command) -> str:
    match command:
        case cm.ScheduleTasks():
            many = f" x{len(command.inputs)}" if len(command.inputs) > 1 else ""
            return f"task {command.name!r}{many} input={_short(command.inputs[0])}"
        case cm.SkipTasks():
            return f"skip {', '.join(command.nodes)}"
        case cm.StartTimer():
            return "a timer"
        case cm.StartChild():
            return f"child workflow {command.workflow!r} input={_short(command.input)}"
        case cm.CreatePromise():
            return f"{ev.PROMISE_WORDS[command.kind]} {command.name!r}"
        case cm.SetState() | cm.ClearState():
            return f"state {command.name!r}"
        case cm.SetAttributes():
            return f"attributes {_short(command.change)}"
        case cm.CompleteRun():
            return f"the end of the run with the result {_short(command.result)}"
        case cm.FailRun():
            return f"the failure of the run: {command.failure.type or command.failure.code}: {command.failure.message}"
        case _:
            return type(command).__name__


def _short(data: bytes) -> str:
    text = data.decode(errors="replace")
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]}…"


def is_users(file: str) -> bool:
    """Whether a source file is neither Perdure's nor of the standard library or an installed package."""
    if file.startswith(("<", _OURS)) or any(site in file for site in _SITE):
        return False
    return not file.startswith(_STDLIB)


def calling_line() -> SourceLine | None:
    """The line of the user's code that is being executed."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != _LOOP:
        if is_users(frame.f_code.co_filename):
            return SourceLine(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def waiting_line(coroutine: Any) -> SourceLine | None:
    """The innermost line of the user's code at which a coroutine waits."""
    found: SourceLine | None = None
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None and is_users(frame.f_code.co_filename):
            found = SourceLine(frame.f_code.co_filename, frame.f_lineno)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return found


def raising_line(error: BaseException) -> SourceLine | None:
    """The innermost line of the user's code that an exception passed through."""
    found: SourceLine | None = None
    at = error.__traceback__
    while at is not None:
        if is_users(at.tb_frame.f_code.co_filename):
            found = SourceLine(at.tb_frame.f_code.co_filename, at.tb_lineno)
        at = at.tb_next
    return found
