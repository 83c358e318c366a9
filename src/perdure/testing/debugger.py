"""Workflow code under pdb, on the recorded history of a run.

    event -> the code runs until it waits again -> event -> ...

The debugger stops in code of the workflow; Perdure and the standard library are run without stopping. `ev` goes on to the next event
that the code reacts to. To go back, the code is thrown away and the history is replayed up to the event before: it is deterministic, so
it stands where it stood. A command leaves the code by an exception that asyncio lets through (SystemExit).

Nothing has an effect: tasks, timers and children are taken from the history, side effects of `wf.run` are not executed.
"""

from __future__ import annotations

import pdb
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import IO, Any

import perdure
from perdure.core import events as ev
from perdure.core.durations import datetime_of
from perdure.sdk.definitions import Workflow
from perdure.sdk.workflow import guards
from perdure.testing.stepper import Stepper

_PERDURE = Path(perdure.__file__).parent
_LIBRARIES = tuple(Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib", "platlib"))
VALUE_CHARS_MAX = 200
"""Characters of an event that are printed."""


class OwnCode:
    """Tells the code around a workflow from that of Perdure and of libraries. A workflow that is installed as a library itself has its
    package for its own."""

    def __init__(self, workflow: Workflow[..., Any]) -> None:
        self._package = Path(workflow.fn.__code__.co_filename).parent
        self._known: dict[str, bool] = {}

    def __call__(self, code: CodeType) -> bool:
        file = code.co_filename
        known = self._known.get(file)
        if known is None:
            known = self._known[file] = self._is_own(Path(file))
        return known

    def _is_own(self, file: Path) -> bool:
        if file.is_relative_to(_PERDURE) or str(file).startswith("<"):
            return False
        return file.is_relative_to(self._package) or not any(file.is_relative_to(place) for place in _LIBRARIES)


class _Jump(SystemExit):
    """Leave the code, and replay up to an event."""

    def __init__(self, to: int) -> None:
        super().__init__()
        self.to = to


class _Leave(SystemExit):
    """Leave the debugger."""


class EventDebugger(pdb.Pdb):
    """pdb with commands for events: `ev`, `ev N`, `back`, `event`, `events`."""

    def __init__(
        self,
        workflow: Workflow[..., Any],
        run_id: bytes,
        history: list[ev.Recorded],
        stdin: IO[str] | None = None,
        stdout: IO[str] | None = None,
    ) -> None:
        super().__init__(stdin=stdin, stdout=stdout, nosigint=True)
        self.prompt = "(perdure) "
        self._is_own = OwnCode(workflow)
        self._stepper = Stepper(workflow, run_id, history, self._is_own)
        self._goal = 1
        """Stop at the first line that the code executes after this event."""
        self._is_due = False
        """An event was given, and the debugger has not stopped since."""
        self._left: SystemExit | None = None
        self._is_over = False

    def debug(self) -> None:
        """Until the user leaves."""
        to = 1
        while True:
            try:
                self._replay(to)
                return
            except _Jump as jump:
                to = jump.to
            except _Leave:
                return
            finally:
                sys.settrace(None)
                self._stepper.close()

    def _replay(self, to: int) -> None:
        stepper = self._stepper
        stepper.restart()
        self.reset()
        self._goal, self._is_over = to, False
        self.set_continue_quietly()
        while stepper.at < len(stepper.records) and stepper.mismatch is None:
            self._next_event()
            sys.settrace(self.trace_dispatch)
            try:
                stepper.step()
            finally:
                sys.settrace(None)
        self._is_over = True
        self._say_end()
        while True:
            self._prompt_at_end()

    def _next_event(self) -> None:
        record = self._stepper.records[self._stepper.at]
        if record.seq >= self._goal and isinstance(record.event, ev.FACTS):
            self.message(self._line(record))
            if self._goal:
                self._is_due = True
                self.set_step()

    def set_continue_quietly(self) -> None:
        """Go on without a stop, and keep tracing for breakpoints and for the next event."""
        never = sys._getframe()  # a frame that has ended is not stopped in
        self._set_stopinfo(never, None, -1)  # type: ignore[attr-defined]

    def _say_end(self) -> None:
        stepper = self._stepper
        if stepper.mismatch is not None:
            self.message(f"the code does not match the history: {stepper.mismatch}")
            return
        last = stepper.records[-1]
        self.message(f"end of the history, after event {last.seq} ({type(last.event).__name__})")
        if isinstance(last.event, ev.TERMINAL):
            return
        for place in stepper.suspended():
            self.message(f"the code waits at {place.file}:{place.line} in {place.function}: {place.source}")
        self.message(f"it waits for {', '.join(stepper.waits_for()) or 'nothing it asked for'}")

    def _prompt_at_end(self) -> None:
        frames = self._stepper.frames()
        frame = frames[-1] if frames else _nowhere()
        with guards.lifted():
            self.setup(frame, None)
            self.cmdloop()
            self.forget()
        self._leave_if_asked()
        self._say_end()

    # What pdb does when it stops.

    def stop_here(self, frame: FrameType) -> bool:
        return self._is_own(frame.f_code) and super().stop_here(frame)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """A call is no stop of its own: the first line of the function is."""

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """Neither is a return: a coroutine that waits returns to its loop."""

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        """An error by which an event resumes the code: there may be no line after it."""
        kind, error, _ = exc_info
        if self._is_due and not issubclass(kind, (StopIteration, GeneratorExit, SystemExit)):
            self.message(f"raised here: {kind.__name__}: {error}")
            self.interaction(frame, None)

    def interaction(self, frame: FrameType | None, traceback: TracebackType | None) -> None:
        self._goal, self._is_due = 0, False
        with guards.lifted():
            super().interaction(frame, traceback)
        self._leave_if_asked()

    def _leave_if_asked(self) -> None:
        if self._left is not None:
            left, self._left = self._left, None
            raise left

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """Only frames of the workflow."""
        stack, at = super().get_stack(f, t)
        own = [entry for entry in stack[: at + 1] if self._is_own(entry[0].f_code)] or stack[at : at + 1]
        return own, len(own) - 1

    # Commands.

    def do_ev(self, arg: str) -> bool | None:
        """ev [N]
        Go on to the next event that the code reacts to, or to event N. A number before this event goes back to it.
        """
        if arg and not arg.strip().isdigit():
            self.error("an event is a number; `events` lists them")
            return None
        if arg and int(arg) <= self._number:
            self._left = _Jump(max(int(arg), 1))
            return True
        if self._is_over:
            return True
        self._goal = int(arg) if arg else self._number + 1
        self.set_continue_quietly()
        return True

    def do_back(self, arg: str) -> bool | None:
        """back
        Go back to the event before this one, by replaying the history up to it.
        """
        given = self._stepper.records[: self._stepper.at - (0 if self._is_over else 1)]
        before = [r.seq for r in given if isinstance(r.event, ev.FACTS)]
        if not before:
            self.error("this is the first event")
            return None
        self._left = _Jump(before[-1])
        return True

    def do_event(self, arg: str) -> None:
        """event
        Show the event that the code reacts to, in full.
        """
        record = self._stepper.last
        if record is not None:
            self.message(self._line(record, full=True))

    def do_events(self, arg: str) -> None:
        """events
        List the events of the history; > marks the present one.
        """
        for r in self._stepper.records:
            mark = ">" if r.seq == self._number else " "
            self.message(f"{mark} {r.seq:>4}  {type(r.event).__name__}")

    def do_continue(self, arg: str) -> bool | None:
        """c(ont(inue))
        Go on to the next breakpoint, or to the end of the history.
        """
        self._goal = 0
        self.set_continue_quietly()
        return True

    do_c = do_cont = do_continue

    def do_quit(self, arg: str) -> bool | None:
        """q(uit)
        Leave the debugger. The run is not affected.
        """
        self._left = _Leave()
        return True

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool | None:  # noqa: N802 (pdb's name)
        """EOF
        Leave the debugger.
        """
        self.message("")
        return self.do_quit(arg)

    @property
    def _number(self) -> int:
        last = self._stepper.last
        return last.seq if last is not None else 0

    def _line(self, record: ev.Recorded, *, full: bool = False) -> str:
        shown = _shown(record.event)
        if not full and len(shown) > VALUE_CHARS_MAX:
            shown = f"{shown[:VALUE_CHARS_MAX]}…"
        at = f"  at {datetime_of(record.at_us).isoformat(timespec='milliseconds')}" if full else ""
        return f"event {record.seq}  {type(record.event).__name__}{at}  {shown}".rstrip()


def _shown(event: ev.Event) -> str:
    """The fields that say something."""
    found = ((name, getattr(event, name)) for name in event.__struct_fields__)
    return "  ".join(
        f"{name}={_text(value)}" for name, value in found if value not in (b"", "", [], None, 0, -1, False)
    )


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        return "[" + ", ".join(_text(v) for v in value) + "]"
    return str(value) if not hasattr(value, "message") else f"{value.type}: {value.message}"


def _nowhere() -> FrameType:
    """A frame to be in when the code has ended."""
    return sys._getframe()
