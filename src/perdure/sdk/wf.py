"""What workflow code may ask for, beyond calling tasks and plain asyncio. Finds its run by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar, overload
from uuid import UUID

from perdure.core.durations import Duration, datetime_of, to_us, us_of
from perdure.core.errors import InvalidInput, PerdureError
from perdure.sdk.definitions import DEFAULT_QUEUE, Task
from perdure.sdk.options import Retry, TaskSettings
from perdure.sdk.payloads import Converter, Signature
from perdure.sdk.workflow.endings import ContinueAsNewRequest
from perdure.sdk.workflow.live_run import LiveRun, current
from perdure.sdk.workflow.step import Step
from perdure.sdk.workflow.undo import UndoScope

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


def _runtime(what: str) -> LiveRun:
    runtime = current.get(None)
    if runtime is None:
        raise PerdureError(f"wf.{what} works inside a workflow only")
    return runtime


def sleep(d: Duration | datetime) -> Step[None]:
    """Sleep durably: for a duration, or until a moment. A sleeping run costs one row and no memory."""
    runtime = _runtime("sleep()")
    until = us_of(d) if isinstance(d, datetime) else runtime.now_us + to_us(d)
    return runtime.requests.sleep_until(until)


@overload
def run(name: str, fn: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
@overload
def run(name: str, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
def run(name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Step[Any]:
    """Execute a side effect and record its result once. Until the record is durable it may be executed again."""
    signature = Signature.of(fn)
    return _runtime("run()").requests.run_operation(
        name, lambda: fn(*args, **kwargs), signature.encode_result, signature.decode_result
    )


@overload
def map(
    fn: Callable[[A], Step[R]],
    items: Iterable[A],
    /,
    *,
    concurrency: int | None = None,
    on_error: Literal["raise"] = "raise",
) -> Step[list[R]]: ...
@overload
def map(
    fn: Callable[[A], Step[R]], items: Iterable[A], /, *, concurrency: int | None = None, on_error: Literal["collect"]
) -> Step[list[R | Exception]]: ...
def map(fn: Any, items: Iterable[Any], /, *, concurrency: int | None = None, on_error: str = "raise") -> Any:
    """One task (or child run) per item, in one bulk command; results in the order of the items."""
    _runtime("map()")
    if not hasattr(fn, "signature"):
        raise InvalidInput(
            "wf.map() takes a @task or a @workflow; for anything else call it yourself and asyncio.gather the steps"
        )
    return fn.map(items, concurrency=concurrency, on_error=on_error)


def schedule(
    name: str,
    input: dict[str, Any] | None = None,
    *,
    queue: str = DEFAULT_QUEUE,
    retry: Retry | int | None = None,
    timeout: Duration | None = None,
    start_within: Duration | None = None,
    finish_within: Duration | None = None,
    undo: Task[..., Any] | str | None = None,
) -> Step[Any]:
    """A task by name, untyped: for tasks defined elsewhere. `input` maps parameter names to values."""
    converter: Converter[Any] = Converter.of(Any)
    options = TaskSettings(
        retry=retry, timeout=timeout, queue=queue, start_within=start_within, finish_within=finish_within, undo=undo
    ).effective()
    data = converter.encode(input or {})
    return _runtime("schedule()").requests.schedule_task(name, queue, data, options, converter.decode, undo)


def undo(task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
    """Put a call on the undo stack: it is made if the run fails or is cancelled from here on. For what no task of its own did."""
    _runtime("undo()").undo.push(task.name, task, task.signature.encode_call(args, kwargs))


def unwind() -> Step[None]:
    """Undo everything on the undo stack, newest first, and go on with an empty one. TaskFailed, once all were tried, if some failed."""
    return _runtime("unwind()").undo.unwind(sys.exception())


def undo_scope() -> UndoScope:
    """`async with wf.undo_scope():` undoes what was done inside when an exception leaves it, and nothing else."""
    return UndoScope(_runtime("undo_scope()").undo)


def commit_undo() -> None:
    """The point of no return: empty the undo stack without undoing anything."""
    _runtime("commit_undo()").undo.commit()


def now() -> datetime:
    """The run's time: the database time of the event the code is reacting to. The same on every replay."""
    return datetime_of(_runtime("now()").now_us)


def uuid() -> UUID:
    """A UUID drawn from the run's own seed."""
    return _runtime("uuid()").uuid()


def random() -> float:
    """A number in [0, 1) drawn from the run's own seed."""
    return _runtime("random()").randomness().random()


def patched(name: str) -> bool:
    """True where the new code path is to be taken: on runs that had not passed this point before the change."""
    return _runtime("patched()").journal.patched(name)


def run_id() -> str:
    """The id of this run."""
    from perdure.core import ids

    return ids.text(_runtime("run_id()").run_id)


def nominal_time() -> datetime | None:
    """The time that a schedule meant this run for, however late it started; None when no schedule started it."""
    started = _runtime("nominal_time()").started
    return datetime_of(started.nominal_us) if started is not None and started.nominal_us else None


def continue_as_new(*args: Any, **kwargs: Any) -> NoReturn:
    """End this run and go on in a fresh one of the same workflow with these arguments and an empty history."""
    runtime = _runtime("continue_as_new()")
    runtime.refuse_left_undos()
    raise ContinueAsNewRequest(runtime.encode_input(args, kwargs))
