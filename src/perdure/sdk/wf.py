"""What workflow code may ask for, beyond calling tasks and plain asyncio. Each function works inside a workflow only, and raises
PerdureError elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, NoReturn, ParamSpec, TypeVar, Unpack, overload
from uuid import UUID

from perdure.core.durations import Duration, datetime_of, to_us, us_of
from perdure.core.errors import PerdureError
from perdure.core.jobs import SERVICE_TASK, executor_of
from perdure.core.names import checked_name
from perdure.sdk.definitions import DEFAULT_QUEUE, Task
from perdure.sdk.flow_control import control_of
from perdure.sdk.mapping import map as map
from perdure.sdk.options import CallOptions, ServiceCallOptions, checked, recorded_options
from perdure.sdk.payloads import Converter, Signature
from perdure.sdk.workflow.current_run import CurrentRun
from perdure.sdk.workflow.endings import ContinueAsNewRequest
from perdure.sdk.workflow.live_run import LiveRun, current
from perdure.sdk.workflow.step import Step
from perdure.sdk.workflow.undo import UndoScope

P = ParamSpec("P")
R = TypeVar("R")


def _runtime(what: str) -> LiveRun:
    runtime = current.get(None)
    if runtime is None:
        raise PerdureError(f"wf.{what} works inside a workflow only")
    return runtime


def sleep(d: Duration | datetime) -> Step[None]:
    """Sleep durably: for a duration (`"30d"`, a timedelta), or until a moment (a datetime with a time zone).

    A sleeping run costs one row and no memory.
    """
    runtime = _runtime("sleep()")
    until = us_of(d) if isinstance(d, datetime) else runtime.now_us + to_us(d)
    return runtime.requests.sleep_until(until)


@overload
def run(name: str, fn: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
@overload
def run(name: str, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
def run(name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Step[Any]:
    """Execute a side effect here and record its result; a replay takes the record.

        token = await wf.run("token", secrets.token_hex, 16)

    Args:
        name: the name of the record in the history.
        fn: a plain or async function. Its errors are recorded too.
        args, kwargs: its arguments.

    Until the record is durable, `fn` may be executed again.
    """
    signature = Signature.of(fn)
    return _runtime("run()").requests.run_operation(
        name, lambda: fn(*args, **kwargs), signature.encode_result, signature.decode_result
    )


def call(name: str, input: dict[str, Any] | None = None, **options: Unpack[CallOptions]) -> Step[Any]:
    """Call a task by its name, untyped: for tasks that are defined in other programs.

        page = await wf.call("perdure.http", {"url": url}, timeout="30s")

    Args:
        name: the name of the task.
        input: its arguments by the names of its parameters.
        options: those of `task.options()`.

    Returns a step, which raises like that of any task.
    """
    return _call(name, input or {}, "wf.call()", options)


def _call(name: str, input: dict[str, Any], what: str, options: CallOptions) -> Step[Any]:
    given = checked(what, CallOptions, options)
    control = control_of(given, f"task {name}", "task")
    converter: Converter[Any] = Converter.of(Any)
    return _runtime(what.removeprefix("wf.")).requests.schedule_task(
        checked_name("task", name),
        checked_name("queue", given.get("queue") or DEFAULT_QUEUE),
        converter.encode(input),
        recorded_options(given, control, executor_of(name)),
        converter.decode,
        given.get("undo"),
    )


def service(
    name: str = "",
    input: Any = None,
    *,
    params: dict[str, Any] | None = None,
    call: ServiceCallOptions | None = None,
    **options: Unpack[CallOptions],
) -> Step[Any]:
    """Call an HTTP service that registers itself, or a URL; the result is what it answers.

        total = await wf.service("sum", [1, 2, 3])
        page = await wf.service(input=url, call={"url": "https://render.example/exec", "timeout": "20s"})

    Args:
        name: the name of the service; empty where `call` has a `url`.
        input, params: what the service gets.
        call: how it is called, see `ServiceCallOptions`.
        options: those of `task.options()`.

    Returns a step, which raises like that of any task: TaskFailed of type ServiceFailed when the service answers with an error.
    """
    spec = {"service": name or None, "input": input, "params": params, **(call or {})}
    return _call(SERVICE_TASK, {k: v for k, v in spec.items() if v is not None}, "wf.service()", options)


def undo(task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
    """Put a call on the undo stack, for an effect that no task with an `undo` has: the call is made if the run fails or is cancelled later.

    Args:
        task: the task that undoes the effect.
        args, kwargs: its arguments.
    """
    _runtime("undo()").undo.push(task.name, task, task.signature.encode_call(args, kwargs))


def unwind() -> Step[None]:
    """Undo everything on the undo stack now, newest first, and go on with an empty one.

    The await raises TaskFailed if some undos failed, once all were tried.
    """
    return _runtime("unwind()").undo.unwind(sys.exception())


def undo_scope() -> UndoScope:
    """A block with an undo stack of its own: an exception that leaves `async with wf.undo_scope():` undoes what was done inside it."""
    return UndoScope(_runtime("undo_scope()").undo)


def commit_undo() -> None:
    """Empty the undo stack without undoing anything: what was done so far stays."""
    _runtime("commit_undo()").undo.commit()


def now() -> datetime:
    """The time of the run: the database time of the event that the code reacts to. The same on every replay."""
    return datetime_of(_runtime("now()").now_us)


def uuid() -> UUID:
    """A random UUID, drawn from the seed of the run. The same on every replay."""
    return _runtime("uuid()").uuid()


def random() -> float:
    """A random number in [0, 1), drawn from the seed of the run. The same on every replay."""
    return _runtime("random()").randomness().random()


def patched(name: str) -> bool:
    """Whether to take the new code path: True on runs that had not passed this point before the change.

        if wf.patched("two-step-payment"):
            await reserve(order)

    `name` identifies the change; the answer is recorded.
    """
    return _runtime("patched()").journal.patched(name)


def run_id() -> str:
    """The id of this run."""
    from perdure.core import ids

    return ids.text(_runtime("run_id()").run_id)


def info() -> CurrentRun:
    """This run: its `id`, `workflow`, `key`, `status` and `arguments`. Works in queries as well."""
    return _runtime("info()").info()


def nominal_time() -> datetime | None:
    """The time that a schedule started this run for, which may be earlier than its start; None when no schedule started it."""
    started = _runtime("nominal_time()").started
    return datetime_of(started.nominal_us) if started is not None and started.nominal_us else None


def set_attribute(name: str, value: str | bool | int | float | datetime | None) -> None:
    """Set a search attribute of this run, by which lists and queries find it; None deletes it.

        wf.set_attribute("stage", "packing")

    It is stored with the next commit of the run, kept when the run ends, and passed on to the run that it continues as. A datetime is
    stored as text in UTC. Raises InvalidInput for other values and beyond the limits (32 attributes of 1,000 characters).
    """
    _runtime("set_attribute()").set_attribute(name, value)


def attribute(name: str) -> str | bool | int | float | None:
    """A search attribute of this run, given at its start or set since; None when it has none of this name."""
    return _runtime("attribute()").attribute(name)


def continue_as_new(*args: Any, **kwargs: Any) -> NoReturn:
    """End this run and continue as a new run of the same workflow, with these arguments and an empty history.

    Handles, signals and promises follow to the new run. Raises InvalidInput if the undo stack is not empty.
    """
    runtime = _runtime("continue_as_new()")
    runtime.refuse_left_undos()
    raise ContinueAsNewRequest(runtime.encode_input(args, kwargs))
