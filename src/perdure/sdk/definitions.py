"""`@task` and `@workflow`: plain functions with a name, typed from the call to the await."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Coroutine, Iterable
from copy import copy
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

import msgspec

from perdure.core import deferred_starts, ids
from perdure.core import events as ev
from perdure.core.api import messages, runs
from perdure.core.api.messages import SignalWithStart
from perdure.core.calls import RESERVED
from perdure.core.declared import Declared
from perdure.core.deferred_starts import Later
from perdure.core.durations import Duration, to_us
from perdure.core.errors import InvalidInput, PerdureError
from perdure.core.names import checked_name
from perdure.core.retry import TaskOptions
from perdure.core.work import VERSION_PREFIX, StartRequest, is_flow
from perdure.sdk import registry
from perdure.sdk.client.backend import Backend, backend
from perdure.sdk.client.handles import Handle, outcome_of, value_of
from perdure.sdk.flow_control import Debounce, Dedup, control_of
from perdure.sdk.mapping import map as map_calls
from perdure.sdk.options import (
    CallOptions,
    TaskDefinitionOptions,
    WorkflowDefinitionOptions,
    checked,
    executor_options,
    given_fields,
    has_retry_policy,
    recorded_options,
)
from perdure.sdk.payloads import Signature
from perdure.sdk.plain_calls import run_plain
from perdure.sdk.traceparent import current_traceparent
from perdure.sdk.workflow import guards, undo
from perdure.sdk.workflow.fanout import TaskFanout, child_fanout
from perdure.sdk.workflow.live_run import LiveRun, current
from perdure.sdk.workflow.step import Step, Waiter

if TYPE_CHECKING:
    from perdure.sdk.messages import Signal

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")

OnConflict = Literal["fail", "attach", "replace"]
DEFAULT_QUEUE = "default"


class Task(Generic[P, R]):
    """A unit of work. Called inside a workflow it is scheduled durably; called anywhere else it just runs.

    `@task` makes one. `name` is how histories and other processes know it, `fn` is the plain function.
    """

    def __init__(self, fn: Callable[P, Any], options: TaskDefinitionOptions) -> None:
        name = options.get("name") or fn.__name__
        self.fn = fn
        self.name = checked_name("task", name)
        if name.startswith(RESERVED) and not str(getattr(fn, "__module__", "")).startswith(RESERVED):
            raise InvalidInput(
                f"@task(name={name!r}): names that begin with {RESERVED!r} are Perdure's own; choose another"
            )
        self._options = options
        self.queue = checked_name("queue", options.get("queue") or DEFAULT_QUEUE)
        self.is_async = inspect.iscoroutinefunction(fn)
        self.process = options.get("process", False)
        if self.process and self.is_async:
            raise InvalidInput(
                f"@task(process=True) needs a plain `def` function; {name} is `async def`, which runs on the event loop. "
                "Drop `async`, or drop process=True and call asyncio.to_thread() for what blocks"
            )
        self.executor = options.get("executor") or ""
        self.executor_options = executor_options(options)
        """For its executor, such as num_gpus."""
        self.undo = options.get("undo")
        """The task, or its name, that undoes it; None: none does."""
        if self.undo is not None:
            undo.name_of(self.undo)
            undo.check(fn, name, self.undo)
        self.control = control_of(options, f"task {name}", "task", fn)
        update_wrapper(self, fn)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    @cached_property
    def signature(self) -> Signature:
        """How arguments and result are written as JSON."""
        return Signature.of(self.fn)

    @cached_property
    def effective(self) -> TaskOptions:
        """The options that are recorded with each call."""
        return recorded_options(self._options, self.control, self.executor)

    @cached_property
    def declared(self) -> Declared | None:
        """The options that were given, for flows that call the task; None: none were."""
        given = given_fields(self._options, self.control)
        queue = self._options.get("queue")
        if not given and queue is None:
            return None
        options = msgspec.structs.replace(self.effective, undo="")
        return Declared(queue=queue or "", options=options, said=given)

    @property
    def has_retry_policy(self) -> bool:
        """Whether the number of attempts was given, and is not the default."""
        return has_retry_policy(self._options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        """Schedule it inside a workflow; elsewhere run the plain function. Await the step for the result.

        Inside a workflow the await raises TaskFailed, TaskTimeout, TaskLost or TaskCancelled.
        """
        runtime = current.get(None)
        if runtime is None:
            return run_plain(self.fn, self.is_async, args, kwargs)
        data = self.signature.encode_call(args, kwargs)
        return runtime.requests.schedule_task(
            self.name, self.queue, data, self.effective, self.signature.decode_result, self.undo
        )

    def options(self, **options: Unpack[CallOptions]) -> Task[P, R]:
        """The same task with other options: `await fetch.options(retry=5, timeout="10s")(url)`.

        Takes the options of `@task` except `name` and `process`. Raises InvalidInput for values that can never work.
        """
        given = checked(f"{self.name}.options()", CallOptions, options)
        return Task(self.fn, cast(TaskDefinitionOptions, {"name": self.name, **self._options, **given}))

    map = map_calls

    def _fan_out(self, runtime: LiveRun, items: Iterable[Any], concurrency: int | None, on_error: str) -> Step[Any]:
        return TaskFanout(runtime.requests, self, self.signature.encode_calls(items), concurrency, on_error).step


class Bound(Generic[R_co]):
    """A workflow with its arguments, for a `Schedule`. `Workflow.bind()` makes one."""

    def __init__(self, workflow: Startable[Any, Any], data: bytes) -> None:
        self.workflow, self.data = workflow, data


class CallCodec(Protocol):
    """How the arguments and the result of a workflow are written as JSON: see signatures.py."""

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes: ...
    def encode_calls(self, items: Iterable[Any]) -> list[bytes]: ...
    def decode_result(self, data: bytes) -> Any: ...


class Startable(Generic[P, R]):
    """What can be started by name: a workflow of this program, or one that is only known by its name."""

    def __init__(self, name: str, version: str, timeout: Duration | None = None) -> None:
        self.name = checked_name("workflow", name)
        self.version = version
        self._key, self._timeout = "", timeout
        self._on_conflict: OnConflict = "fail"
        self._later: Later | None = None
        self._dedup: deferred_starts.DedupSpec | None = None

    @cached_property
    def signature(self) -> CallCodec:
        raise NotImplementedError

    @property
    def _source_text(self) -> str:
        """How the user's code refers to it; for errors."""
        return self.name

    @property
    def timeout(self) -> Duration | None:
        return self._timeout

    def schedule_problem(self) -> str:
        """Why a schedule cannot start it, because of its options; empty when it can."""
        if self._key:
            return f"a key belongs to one run; drop options(key={self._key!r})"
        if self._later is not None or self._dedup is not None:
            return "a schedule says itself when runs start; drop debounce and dedup"
        return ""

    def prepare(self, target: Backend) -> None:
        """Called before it is started through `target`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        """Start a child run, inside a workflow. Await the step for its result; the await raises ChildFailed.

        Raises PerdureError outside a workflow: use `run()` or `start()` there.
        """
        runtime = current.get(None)
        if runtime is None:
            me = self._source_text
            raise PerdureError(
                f"{me}() was called outside a workflow: use `await {me}.run(...)` for its result or `await {me}.start(...)` for a handle"
            )
        return self._child(self.signature.encode_call(args, kwargs))

    def _child(self, data: bytes) -> Step[R]:
        if self._later is not None or self._dedup is not None:
            raise InvalidInput(
                f"{self._source_text}: a child run is neither deferred nor deduplicated: its parent waits for it. Drop debounce and dedup"
            )
        decode = self.signature.decode_result
        return current.get().requests.start_child(
            self.name, self.version, data, self._key, self._timeout_us, lambda step: Waiter(step, decode)
        )

    @property
    def _timeout_us(self) -> int:
        return to_us(self._timeout) if self._timeout is not None else 0

    map = map_calls

    def _fan_out(self, runtime: LiveRun, items: Iterable[Any], concurrency: int | None, on_error: str) -> Step[Any]:
        return child_fanout(runtime.requests, self._child, self.signature.encode_calls(items), concurrency, on_error)

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start a run; returns its handle once the start is durable.

        Raises RunAlreadyExists if its key belongs to another run, LimitReached if a limit with the policy `skip` is reached,
        NotRegistered if the workflow is not known, and Unavailable if there was no answer in time.
        """
        return await self.start_on(backend(), self.signature.encode_call(args, kwargs))

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Start a run and wait for its result. Raises what `start()` and `Handle.result()` raise."""
        return await self.run_on(backend(), self.signature.encode_call(args, kwargs))

    async def signal_with_start(self, signal: Signal[A], value: A, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Send a signal to the run under the key of `options(key=...)`; if none is active, start it with these arguments.

            await cart.options(key="ada").signal_with_start(added, item, "ada")

        A start and its signal are written in one transaction. Returns a handle to the run. Raises InvalidInput without a key.
        """
        target = backend()
        request = self._request(target, self.signature.encode_call(args, kwargs))
        sent = await target.call(
            messages.SIGNAL_WITH_START, SignalWithStart(request, signal.name, signal.encode(value), signal.key)
        )
        return Handle(target, sent.run_id, self.signature.decode_result, self._key)

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments of a call as they are recorded. Raises PayloadMismatch."""
        return self.signature.encode_call(args, kwargs)

    def decode_result(self, data: bytes) -> Any:
        """The result of a run from its record."""
        return self.signature.decode_result(data)

    async def start_on(self, target: Backend, data: bytes) -> Handle[R]:
        """`start` on a client, with encoded arguments."""
        started = await target.call(runs.START, self._request(target, data))
        return Handle(target, started.run_id, self.signature.decode_result, self._key)

    async def run_on(self, target: Backend, data: bytes) -> R:
        """`run` on a client, with encoded arguments."""
        ended = await target.call(runs.RUN, self._request(target, data))
        outcome = ended.outcome if ended.outcome is not None else await outcome_of(target, ids.text(ended.run_id))
        result: R = await value_of(target, outcome, ended.run_id, self.signature.decode_result)
        return result

    def _request(self, target: Backend, data: bytes) -> StartRequest:
        if current.get(None) is not None:
            me = self._source_text
            raise PerdureError(
                f"{me}.start() inside a workflow would not be recorded; call {me}(...) to start a child run"
            )
        self.prepare(target)
        return StartRequest(
            workflow=self.name,
            version=self.version,
            input=data,
            key=self._key,
            on_conflict=self._on_conflict,
            timeout_us=self._timeout_us,
            trace=current_traceparent(),
            later=self._later,
            dedup=self._dedup,
        )

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        """The workflow with its arguments, for a `Schedule`. Raises PayloadMismatch for arguments that do not fit."""
        return Bound(self, self.signature.encode_call(args, kwargs))

    def batch(self, *, key: str, size: int, max_delay: Duration = "10s") -> Batched[R]:
        """Gather the items of many starts for one run; the workflow takes one list.

            await ingest.batch(key="eu", size=100, max_delay="10s").add(event)

        Args:
            key: which starts go together.
            size: the run begins with this many items,
            max_delay: or this long after the first one.
        """
        changed = copy(self)
        changed._later = deferred_starts.BatchSpec(key, size, to_us(max_delay))
        deferred_starts.check_later(changed._later, changed._dedup, changed._key)
        return Batched(changed)

    def options(
        self,
        *,
        key: str | None = None,
        timeout: Duration | None = None,
        on_conflict: OnConflict | None = None,
        debounce: Debounce | None = None,
        dedup: Dedup | None = None,
    ) -> Self:
        """The same workflow with other options for its starts: `await order.options(key="order-42").start(42)`.

        Args:
            key: a name of your own for the run, unique in the namespace, by which it is found again.
            timeout: how long the run may take.
            on_conflict: if the key belongs to another run: `"fail"` (the default) raises RunAlreadyExists, `"attach"` returns that
                run if workflow and input are the same, `"replace"` cancels it and starts anew.
            debounce: begin when no start has come for a while.
            dedup: return the run that an earlier start under the same dedup key has made.

        Raises InvalidInput for more than one of `key`, `debounce` and `dedup`.
        """
        changed = copy(self)
        if debounce is not None:
            changed._later = debounce.recorded
        if dedup is not None:
            changed._dedup = dedup.recorded
        if key is not None:
            changed._key = checked_name("key", key)
        if timeout is not None:
            changed._timeout = timeout
        if on_conflict is not None:
            changed._on_conflict = on_conflict
        deferred_starts.check_later(changed._later, changed._dedup, changed._key)
        return changed


class Batched(Generic[R_co]):
    """A workflow whose runs get the items of many starts. `Workflow.batch()` makes one."""

    def __init__(self, workflow: Startable[..., Any]) -> None:
        self._workflow = workflow

    async def add(self, *items: Any, **lists: list[Any]) -> Handle[R_co]:
        """Add items to the batch. Returns a handle to the run that will get them.

        The list of a flow is given by its name: `add(events=[event])`.
        """
        args = () if lists else (list(items),)
        return await self._workflow.start_on(backend(), self._workflow.signature.encode_call(args, lists))


class Workflow(Startable[P, R]):
    """A durable function. `start` returns a handle, `run` the result; called inside a workflow it is a child run.

    `@workflow` makes one. `name` is how histories and other processes know it, `fn` is the plain function.
    """

    def __init__(self, fn: Callable[P, Coroutine[Any, Any, R]], options: WorkflowDefinitionOptions) -> None:
        name, version = options.get("name") or fn.__name__, options.get("version")
        if not inspect.iscoroutinefunction(fn):
            raise InvalidInput(f"@workflow needs an `async def` function; {name} is not one")
        super().__init__(name, _checked_version(version) if version else _source_hash(fn), options.get("timeout"))
        self.fn = fn
        self.control = control_of(options, f"workflow {name}", "workflow", fn)
        """Flow control of its runs; None: none."""
        update_wrapper(self, fn)

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    @cached_property
    def signature(self) -> Signature:
        return Signature.of(self.fn)

    @cached_property
    def _checked(self) -> bool:
        guards.check_code(self.fn)
        return True

    def body(self, started: ev.RunStarted) -> Coroutine[Any, Any, R]:
        """The user's coroutine for a recorded start."""
        assert self._checked
        args, kwargs = self.signature.decode_call(started.input)
        return self.fn(*args, **kwargs)

    def prepare(self, target: Backend) -> None:
        # A client with a worker of its own executes the workflows that are started through it.
        target.adopt(self)


class _TaskDecorator:
    def __init__(self, options: TaskDefinitionOptions) -> None:
        self._options = options

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R]) -> Task[P, R]: ...
    def __call__(self, fn: Callable[..., Any]) -> Task[..., Any]:
        made: Task[..., Any] = Task(fn, self._options)
        registry.add(made)
        return made


@overload
def task(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
@overload
def task(fn: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(**options: Unpack[TaskDefinitionOptions]) -> _TaskDecorator: ...
def task(fn: Callable[..., Any] | None = None, /, **options: Unpack[TaskDefinitionOptions]) -> Any:
    """Make a function a task: `@task`, or with options `@task(retry=5, timeout="30s")`.

    Async functions run on the event loop, plain ones in threads, or with `process=True` in processes of their own.

    Args:
        name: how histories and other processes know it; the function's name unless given.
        retry: executions in all, or a `Retry`; 3 unless given.
        timeout: for one attempt.
        start_within: how long it may wait for an attempt to begin.
        finish_within: how long it may take in all, from its scheduling to its end.
        heartbeat: an attempt that sends no heartbeat for this long is ended and retried.
        queue: the queue that workers take it from; `default` unless given.
        at_most_once: never execute it twice.
        process: run a plain function in a process of its own.
        executor: what runs it outside of its worker, such as `ray`.
        num_cpus, num_gpus, resources: what an attempt takes of a Ray cluster.
        executor_options: other options of the executor, by name.
        undo: the task, or its name, that undoes what this one did if the run fails or is cancelled later.
        limit: a `Limit`, or several: how many at a time.
        rate: a `RateLimit`, or several: how many per time.
        priority: -100 to 100; higher begins first.
        fair: an argument whose values take turns, or a `Fair`.
        weight: of a value of `fair`.

    Raises InvalidInput for options that can never work.
    """
    decorator = _TaskDecorator(checked("@task", TaskDefinitionOptions, options))
    return decorator if fn is None else decorator(fn)


class _WorkflowDecorator:
    def __init__(self, options: WorkflowDefinitionOptions) -> None:
        self._options = options

    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> Workflow[P, R]:
        made = Workflow(fn, self._options)
        registry.add(made)
        return made


@overload
def workflow(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(**options: Unpack[WorkflowDefinitionOptions]) -> _WorkflowDecorator: ...
def workflow(fn: Callable[..., Any] | None = None, /, **options: Unpack[WorkflowDefinitionOptions]) -> Any:
    """Make an `async def` function a durable workflow: `@workflow`, or with options `@workflow(timeout="1h")`.

    Args:
        name: how histories and other processes know it; the function's name unless given.
        version: recorded with each run; a hash of the function's source unless given.
        timeout: for one run.
        limit, rate, priority, fair, weight: flow control of its runs; see `task`.

    Raises InvalidInput for a function that is not async, and for options that can never work.
    """
    decorator = _WorkflowDecorator(checked("@workflow", WorkflowDefinitionOptions, options))
    return decorator if fn is None else decorator(fn)


def _checked_version(version: str) -> str:
    if is_flow(version):
        raise InvalidInput(
            f"@workflow(version={version!r}): versions that begin with {VERSION_PREFIX!r} are those of declarative flows; choose another"
        )
    return version


def _source_hash(fn: Callable[..., Any]) -> str:
    """The version of a workflow that names none: a hash of the function's source."""
    try:
        source = inspect.getsource(fn)
    except (OSError, TypeError):
        source = repr(fn.__code__.co_code)
    return hashlib.sha256(source.encode()).hexdigest()[:12]
