"""`Step[R]`: what a call returns at once. The work is scheduled when the step is created; awaiting it gives the result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from perdure.core import ids
from perdure.core.errors import PerdureError

R = TypeVar("R")

if TYPE_CHECKING:
    _Future = asyncio.Future
else:

    class _Future(asyncio.Future):
        def __class_getitem__(cls, item: Any) -> Any:
            return cls


class TaskCanceller(Protocol):
    """Where the task behind a step is cancelled."""

    def cancel_task(self, seq: int) -> None: ...


class StepOwner(Protocol):
    """The run that steps belong to."""

    run_id: bytes
    steps: int
    """Steps made so far."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...


class Step(_Future[R]):
    """A future that knows which record of the run it stands for.

    Being a real asyncio future, it works with gather, wait, wait_for, TaskGroup and shield as it is. Hashes count upward per
    run, so that sets of steps iterate in the same order on every replay.
    """

    _run_id: bytes = b""
    _kind: int = 0
    _seq: int = -1
    _number: int = 0
    _on_cancel: Callable[[], object] | None = None
    _defer_cancel: Callable[[Step[Any], Any], bool] | None = None
    _task_of: TaskCanceller | None = None

    @property
    def id(self) -> UUID:
        """The deterministic id of the task, timer, child or promise behind this step."""
        return UUID(bytes=ids.derive(self._run_id, self._kind, self._seq))

    def cancel(self, msg: Any = None) -> bool:
        """Ask for the work behind it to be cancelled, and stop waiting: at once, or for a child run once that has ended."""
        if self._defer_cancel is not None and not self.done() and self._defer_cancel(self, msg):
            return True
        if not super().cancel(msg):
            return False
        if self._task_of is not None:
            self._task_of.cancel_task(self._seq)
        elif self._on_cancel is not None:
            self._on_cancel()
        return True

    def finish_cancel(self, msg: Any) -> None:
        """The deferred cancellation takes effect."""
        super().cancel(msg)

    def __hash__(self) -> int:
        return self._number or id(self)


def new_step(
    run: StepOwner,
    kind: int,
    seq: int,
    task_of: TaskCanceller | None = None,
    on_cancel: Callable[[], object] | None = None,
    defer_cancel: Callable[[Step[Any], Any], bool] | None = None,
) -> Step[Any]:
    """A step of a run. `task_of` is for the step of a single task: it needs no closure of its own.

    `defer_cancel` is called with the step and the reason before a cancellation takes effect. True: it takes effect when the work behind
    has ended (`finish_cancel`).
    """
    step: Step[Any] = Step(loop=run.loop)
    run.steps += 1
    step._run_id, step._kind, step._seq, step._number = run.run_id, kind, seq, run.steps
    # Only what is given: thousands of steps live at a time, and a sixth attribute doubles the size of each.
    if task_of is not None:
        step._task_of = task_of
    elif on_cancel is not None:
        step._on_cancel = on_cancel
    elif defer_cancel is not None:
        step._defer_cancel = defer_cancel
    return step


def plain_step(loop: asyncio.AbstractEventLoop, on_cancel: Callable[[], object] | None = None) -> Step[Any]:
    """A step outside of a run."""
    step: Step[Any] = Step(loop=loop)
    step._on_cancel = on_cancel
    return step


class Waiter:
    """A step that an event will resolve, and how to decode its value."""

    __slots__ = ("decode", "step")

    def __init__(self, step: Step[Any], decode: Callable[[bytes], Any]) -> None:
        self.step, self.decode = step, decode

    @property
    def done(self) -> bool:
        return self.step.done()

    def succeed(self, seq: int, value: bytes) -> None:
        if not self.step.done():
            try:
                self.step.set_result(self.decode(value))
            except PerdureError as e:
                self.step.set_exception(e)

    def fail(self, seq: int, error: BaseException) -> None:
        if not self.step.done():
            self.step.set_exception(error)
