"""The undo stack of a run of code. Its laws are in core/undo.py.

Everything here follows from the events and the code, in their order, so a replay builds the same stack and asks for the same undos.
Unwinding does not depend on code that waits for it: once begun it runs to its end, even if that code is cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
from difflib import get_close_matches
from inspect import Parameter, signature
from types import TracebackType
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.errors import Failure, InvalidInput, NotRegistered, RecordedError, TaskFailed
from perdure.core.limits import UNDO_ATTEMPTS_DEFAULT, UNDO_STACK_MAX
from perdure.core.retry import TaskOptions
from perdure.core.undo import COMMITTED, PREFIX, UndoSequence, offer, with_failures, without_undo
from perdure.sdk import registry
from perdure.sdk.workflow.requests import Requests
from perdure.sdk.workflow.step import Step, new_step

QUEUE_DEFAULT: Final = "default"
TOLD: Final = ("result", "error")
"""What an undo may take besides the arguments of the call that it undoes."""

_scope: contextvars.ContextVar[UndoScope | None] = contextvars.ContextVar("perdure_undo_scope", default=None)


class UndoEntry(msgspec.Struct, eq=False):
    """A task with an undo: scheduled, or, on the stack, successful."""

    seq: int
    """Of the task; -1 for what code pushed by itself."""
    name: str
    undo: Any
    """The task that undoes it, or its name."""
    call: bytes
    scope: UndoScope | None
    result: bytes = b""
    ready: bool = False
    """`call` is the undo's own."""

    def is_within(self, scope: UndoScope | None) -> bool:
        at = self.scope
        while at is not None and at is not scope:
            at = at.parent
        return at is scope


class UndoStack:
    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.run = requests.run
        self._awaited: dict[int, UndoEntry] = {}
        """Scheduled and not ended, as far as is known. The end of one that was cancelled may never be known."""
        self._entries: list[UndoEntry] = []
        self._active: list[_Unwind] = []
        self._final: _Unwind | None = None
        self._pushed = False
        self.failures: list[str] = []
        """Failures of undos that no error has reported so far."""

    def check_room(self, count: int) -> None:
        if len(self._awaited) + len(self._entries) + count > UNDO_STACK_MAX:
            raise InvalidInput(
                f"the run would have more than UNDO_STACK_MAX={UNDO_STACK_MAX} tasks to undo; call wf.commit_undo() where there is no "
                "way back, or move some into child workflows"
            )

    def expect(self, first: int, calls: list[bytes], name: str, undo: Any) -> None:
        """Tasks were scheduled that have an undo."""
        scope = _scope.get()
        for seq, call in enumerate(calls, first):
            self._awaited[seq] = UndoEntry(seq, name, undo, call, scope)

    def push(self, name: str, undo: Any, call: bytes) -> None:
        self.check_room(1)
        if not self._pushed:  # so that an engine knows of it when the deadline of the run has come
            self._pushed = True
            self.run.set_state(COMMITTED, b"0")
        self._entries.append(UndoEntry(-1, name, undo, call, _scope.get(), ready=True))

    def succeeded(self, seq: int, value: bytes) -> None:
        entry = self._awaited.pop(seq, None)
        if entry is None:
            return
        entry.result = value
        unwind = next((u for u in self._active if u.stops and entry.is_within(u.scope)), self._final)
        if unwind is not None:
            unwind.work.push(entry)
        else:
            self._entries.append(entry)

    def failed(self, seq: int) -> None:
        self._awaited.pop(seq, None)

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def commit(self) -> None:
        """What was done stays. Recorded, so that it is visible in the history."""
        if any(e.seq >= 0 for e in self._entries):
            self.run.set_state(COMMITTED, msgspec.json.encode(self.run.event_seq))
        self._entries.clear()

    def unwind(self, error: BaseException | None) -> Step[None]:
        """Everything that is on the stack now."""
        entries, self._entries = self._entries, []
        return self._begin(_Unwind(self, entries, self._told(error), None, stops=False, raises=True))

    def unwind_scope(self, scope: UndoScope, error: BaseException) -> Step[None]:
        """Undo what was done within a scope. What still runs there is cancelled first."""
        mine = [e for e in self._entries if e.is_within(scope)]
        self._entries = [e for e in self._entries if not e.is_within(scope)]
        unwind = _Unwind(self, mine, self._told(error), scope, stops=True, raises=False)
        running = [e.seq for e in self._awaited.values() if e.is_within(scope)]
        if running:
            self.run.journal.cancel_tasks(running)
            self._hold(unwind)
        return self._begin(unwind)

    def wind_up(self, error: Failure) -> None:
        """The code has ended, and what it left running was cancelled."""
        entries, self._entries = self._entries, []
        self._final = _Unwind(self, entries, error, None, stops=True, raises=False)
        if self._awaited:
            self._hold(self._final)
        self.advance()

    @property
    def is_needed(self) -> bool:
        """Whether a run that fails now has something to undo, or may have."""
        return bool(self._entries or self._awaited or self._active or self.failures)

    @property
    def is_done(self) -> bool:
        return not self._active and (self._final is None or self._final.work.done)

    def advance(self) -> None:
        for unwind in [u for u in self._active if u.work.done]:
            self._active.remove(unwind)
            unwind.tell()
        if self._final is not None and not self._active:
            self._final.work.go_on()
            if self._final.work.done:
                self.failures += self._final.work.failures
                self._final.work.failures = []

    def _begin(self, unwind: _Unwind) -> Step[None]:
        self._active.append(unwind)
        unwind.work.go_on()
        self.advance()
        return unwind.step

    def _hold(self, unwind: _Unwind) -> None:
        """Wait until every success before the cancellation has arrived."""
        unwind.work.barrier = True

        def lifted() -> None:
            unwind.work.barrier = False
            within = [s for s, e in self._awaited.items() if unwind is self._final or e.is_within(unwind.scope)]
            for seq in within:
                del self._awaited[seq]
            if unwind is not self._final:
                unwind.work.go_on()
            self.advance()

        self._requests.open_barrier(lifted)

    def call(self, entry: UndoEntry, unwind: _Unwind) -> int:
        name, queue, options = _resolved(entry.undo)
        data = entry.call if entry.ready else offer(entry.call, entry.result, unwind.error)
        seq = self.run.journal.schedule_tasks(name, queue, [data], options, [PREFIX + entry.name], entry.seq)
        self._requests.await_undo(seq, unwind)
        return seq

    def _told(self, error: BaseException | None) -> Failure | None:
        if error is None:
            return None
        if isinstance(error, asyncio.CancelledError):
            return Failure("run_cancelled", str(error) or "it was cancelled", "CancelledError")
        code = error.to_failure().code if isinstance(error, RecordedError) else "run_failed"
        return Failure(code, str(error), type(error).__name__)


class _Unwind:
    """One unwinding and the step that waits for it. It is the waiter of its own tasks."""

    __slots__ = ("_raises", "_stack", "error", "scope", "step", "stops", "work")

    def __init__(
        self,
        stack: UndoStack,
        entries: list[UndoEntry],
        error: Failure | None,
        scope: UndoScope | None,
        *,
        stops: bool,
        raises: bool,
    ) -> None:
        self._stack, self.error, self.scope, self.stops, self._raises = stack, error, scope, stops, raises
        self.work: UndoSequence[UndoEntry] = UndoSequence(entries, lambda e: stack.call(e, self), lambda e: e.name)
        self.step: Step[None] = new_step(stack.run, ids.TASK, -1)

    def succeed(self, seq: int, value: bytes) -> None:
        self.work.ended(None)
        self._stack.advance()

    def fail(self, seq: int, error: BaseException) -> None:
        self.work.ended(error.to_failure() if isinstance(error, RecordedError) else Failure("task_failed", str(error)))
        self._stack.advance()

    def tell(self) -> None:
        failures = self.work.failures
        if self.step.done() or not self._raises:
            self._stack.failures += failures
        if self.step.done():
            return
        if failures and self._raises:
            error = TaskFailed(Failure("task_failed", with_failures("", failures)))
            error.event = self._stack.run.event_seq
            self.step.set_exception(error)
        else:
            self.step.set_result(None)


class UndoScope:
    """`async with wf.undo_scope():` an exception that leaves it undoes what was done inside."""

    def __init__(self, stack: UndoStack) -> None:
        self._stack = stack
        self.parent: UndoScope | None = None
        self._token: contextvars.Token[UndoScope | None] | None = None

    async def __aenter__(self) -> None:
        self.parent = _scope.get()
        self._token = _scope.set(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None and not self._stack.run.closed:
            _scope.reset(self._token)
            if isinstance(error, Exception | asyncio.CancelledError):
                await self._stack.unwind_scope(self, error)


def name_of(undo: Any) -> str:
    """The name of a task that undoes, given as a task or as a name."""
    name = undo if isinstance(undo, str) else getattr(undo, "name", None)
    if not isinstance(name, str) or not name or (not isinstance(undo, str) and not hasattr(undo, "effective")):
        raise InvalidInput(f"undo={undo!r}: give a @task, or the name of one")
    return name


def check(fn: Any, name: str, undo: Any) -> None:
    """Whether an undo can be called with what there will be: the arguments, `result` and `error`."""
    if isinstance(undo, str) or not hasattr(undo, "fn"):
        return
    known = [*signature(fn).parameters, *TOLD]
    for p in signature(undo.fn).parameters.values():
        needed = p.default is Parameter.empty and p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        if needed and p.name not in known:
            near = get_close_matches(p.name, known, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InvalidInput(
                f"{undo.name} cannot undo {name}: it needs `{p.name}`, and an undo gets {', '.join(f'`{k}`' for k in known)}.{hint}"
            )


def _resolved(undo: Any) -> tuple[str, str, TaskOptions]:
    """Name, queue and options. A name that this process does not define is called with the defaults."""
    found = undo
    if isinstance(undo, str):
        try:
            found = registry.tasks.get(undo)
        except NotRegistered:
            return undo, QUEUE_DEFAULT, TaskOptions(max_attempts=UNDO_ATTEMPTS_DEFAULT)
    options: TaskOptions = without_undo(found.effective)
    if not found.has_retry_policy:
        options = msgspec.structs.replace(options, max_attempts=UNDO_ATTEMPTS_DEFAULT)
    return found.name, found.queue, options
