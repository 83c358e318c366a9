"""`@task` and `@workflow`: plain functions with a name, typed from the call to the await."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, cast, overload

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
from perdure.core.work import StartRequest
from perdure.sdk import registry
from perdure.sdk.client.backend import Backend, backend
from perdure.sdk.client.handles import Handle, outcome_of, value_of
from perdure.sdk.flow_control import Debounce, Dedup, Fair, Limit, RateLimit, Said, control_of
from perdure.sdk.options import Retry, TaskSettings
from perdure.sdk.payloads import Signature
from perdure.sdk.worker.tracing import current_traceparent
from perdure.sdk.workflow import guards, undo
from perdure.sdk.workflow.fanout import Fanout, child_fanout
from perdure.sdk.workflow.instance import Waiter, current
from perdure.sdk.workflow.step import Step

if TYPE_CHECKING:
    from perdure.sdk.messages import Signal

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")
S = TypeVar("S")

OnConflict = Literal["fail", "attach", "replace"]
DEFAULT_QUEUE = "default"
NOTHING_SAID = Said()


class Task(Generic[P, R]):
    """A unit of work. Called inside a workflow it is scheduled durably; called anywhere else it just runs."""

    def __init__(self, fn: Callable[P, Any], name: str, settings: TaskSettings) -> None:
        self.fn = fn
        self.name = checked_name("task", name)
        if name.startswith(RESERVED) and not str(getattr(fn, "__module__", "")).startswith(RESERVED):
            raise InvalidInput(
                f"@task(name={name!r}): names that begin with {RESERVED!r} are Perdure's own; choose another"
            )
        self._settings = settings
        self.queue = checked_name("queue", settings.queue or DEFAULT_QUEUE)
        self.is_async = inspect.iscoroutinefunction(fn)
        self.process = settings.process
        if self.process and self.is_async:
            raise InvalidInput(
                f"@task(process=True) needs a plain `def` function; {name} is `async def`, which runs on the event loop. "
                "Drop `async`, or drop process=True and call asyncio.to_thread() for what blocks"
            )
        if settings.undo is not None:
            undo.name_of(settings.undo)
            undo.check(fn, name, settings.undo)
        self.control = control_of(settings.said, fn, f"task {name}", "task")
        update_wrapper(self, fn)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    @cached_property
    def signature(self) -> Signature:
        return Signature.of(self.fn)

    @cached_property
    def effective(self) -> TaskOptions:
        return self._settings.effective(self.control)

    @cached_property
    def declared(self) -> Declared | None:
        """The options that were given, for flows that call it; None: none were."""
        said = self._settings.given(self.control)
        if not said and self._settings.queue is None:
            return None
        options = msgspec.structs.replace(self.effective, undo="")
        return Declared(queue=self._settings.queue or "", options=options, said=said)

    @property
    def undo(self) -> Any:
        """The task that takes it back, or its name; None: nothing does."""
        return self._settings.undo

    @property
    def says_retry(self) -> bool:
        """Whether how often it is tried was said, and not left to the default."""
        return self._settings.retry is not None or self._settings.at_most_once

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        runtime = current.get(None)
        if runtime is None:
            return _run_here(self.fn, self.is_async, args, kwargs)
        data = self.signature.encode_call(args, kwargs)
        return runtime.schedule_task(
            self.name, self.queue, data, self.effective, self.signature.decode_result, self._settings.undo
        )

    def options(
        self,
        *,
        retry: Retry | int | None = None,
        timeout: Duration | None = None,
        queue: str | None = None,
        heartbeat: Duration | None = None,
        start_within: Duration | None = None,
        finish_within: Duration | None = None,
        at_most_once: bool | None = None,
        undo: Task[..., Any] | str | None = None,
        limit: Limit | Sequence[Limit] | None = None,
        rate: RateLimit | Sequence[RateLimit] | None = None,
        priority: int | None = None,
        fair: Fair | str | None = None,
        weight: float | str | None = None,
    ) -> Task[P, R]:
        """The same task, executed differently this time."""
        given = {
            "retry": retry,
            "timeout": timeout,
            "queue": queue,
            "heartbeat": heartbeat,
            "start_within": start_within,
            "finish_within": finish_within,
            "at_most_once": at_most_once,
            "undo": undo,
            "limit": limit,
            "rate": rate,
            "priority": priority,
            "fair": fair,
            "weight": weight,
        }
        settings = replace(self._settings, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
        return Task(self.fn, self.name, settings)

    # Typed as what it is called like: `Task[[A], R]` would match only parameters without a name.
    @overload
    def map(
        self: Callable[[A], Step[S]],
        items: Iterable[A],
        *,
        concurrency: int | None = None,
        on_error: Literal["raise"] = "raise",
    ) -> Step[list[S]]: ...
    @overload
    def map(
        self: Callable[[A], Step[S]],
        items: Iterable[A],
        *,
        concurrency: int | None = None,
        on_error: Literal["collect"],
    ) -> Step[list[S | Exception]]: ...
    def map(self: Any, items: Iterable[Any], *, concurrency: int | None = None, on_error: str = "raise") -> Any:
        """One task per item, scheduled in bulk; results come in the order of the items."""
        runtime = current.get(None)
        if runtime is None:
            raise PerdureError(f"{self.name}.map() works inside a workflow; outside, call the function yourself")
        return Fanout(runtime, self, self.signature.encode_calls(items), concurrency, on_error).step


class Bound(Generic[R_co]):
    """A workflow with its arguments, to be started later."""

    def __init__(self, workflow: Startable[Any, Any], data: bytes) -> None:
        self.workflow, self.data = workflow, data


class CallShape(Protocol):
    """How the arguments and the result of a workflow travel: see signatures.py."""

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes: ...
    def encode_calls(self, items: Iterable[Any]) -> list[bytes]: ...
    def decode_result(self, data: bytes) -> Any: ...


class Startable(Generic[P, R]):
    """What can be started by name: a workflow of this program, or one that is only known by its name."""

    def __init__(
        self,
        name: str,
        version: str,
        *,
        key: str = "",
        timeout: Duration | None = None,
        on_conflict: OnConflict = "fail",
    ) -> None:
        self.name = checked_name("workflow", name)
        self.version = version
        self._key, self._timeout = key, timeout
        self._on_conflict: OnConflict = on_conflict
        self._later: Later | None = None
        self._dedup: deferred_starts.Dedup | None = None

    @cached_property
    def signature(self) -> CallShape:
        raise NotImplementedError

    @property
    def _written(self) -> str:
        """As it stands in the user's code."""
        return self.name

    @property
    def timeout(self) -> Duration | None:
        return self._timeout

    def refused_by_schedules(self) -> str:
        """Options that mean nothing where runs start again and again; empty when there are none."""
        if self._key:
            return f"an id can be given to one run only; drop options(id={self._key!r})"
        if self._later is not None or self._dedup is not None:
            return "a schedule says itself when runs start; drop debounce and dedup"
        return ""

    def prepare(self, target: Backend) -> None:
        """Before it is to be started there by somebody else."""
        self._prepare(target)

    def _prepare(self, target: Backend) -> None:
        """Before it is started there."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        runtime = current.get(None)
        if runtime is None:
            me = self._written
            raise PerdureError(
                f"{me}() was called outside a workflow: use `await {me}.run(...)` for its result or `await {me}.start(...)` for a handle"
            )
        return self._child(self.signature.encode_call(args, kwargs))

    def _child(self, data: bytes) -> Step[R]:
        if self._later is not None or self._dedup is not None:
            raise InvalidInput(
                f"{self._written}: a child run is neither put off nor deduplicated: its parent waits for it. Drop debounce and dedup"
            )
        timeout_us = to_us(self._timeout) if self._timeout is not None else 0
        decode = self.signature.decode_result
        return current.get().start_child(
            self.name, self.version, data, self._key, timeout_us, lambda step: Waiter(step, decode)
        )

    @overload
    def map(
        self: Callable[[A], Step[S]],
        items: Iterable[A],
        *,
        concurrency: int | None = None,
        on_error: Literal["raise"] = "raise",
    ) -> Step[list[S]]: ...
    @overload
    def map(
        self: Callable[[A], Step[S]],
        items: Iterable[A],
        *,
        concurrency: int | None = None,
        on_error: Literal["collect"],
    ) -> Step[list[S | Exception]]: ...
    def map(self: Any, items: Iterable[Any], *, concurrency: int | None = None, on_error: str = "raise") -> Any:
        """One child run per item; results come in the order of the items."""
        runtime = current.get(None)
        if runtime is None:
            raise PerdureError(f"{self._written}.map() works inside a workflow; outside, start the runs yourself")
        return child_fanout(runtime, self._child, self.signature.encode_calls(items), concurrency, on_error)

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start a run; returns when it is durable."""
        return await self.start_on(backend(), self.signature.encode_call(args, kwargs))

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Start a run and wait for its result."""
        return await self.run_on(backend(), self.signature.encode_call(args, kwargs))

    async def signal_with_start(self, signal: Signal[A], value: A, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Send a signal to the run under the id of `options(id=...)`, and start that run, with these arguments, if none is active there.
        Both are written together: the run cannot be there without the signal."""
        target = backend()
        request = self._request(target, self.signature.encode_call(args, kwargs))
        sent = await target.call(
            messages.SIGNAL_WITH_START, SignalWithStart(request, signal.name, signal.encode(value), signal.key)
        )
        return Handle(target, sent.run_id, self.signature.decode_result, self._key)

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return self.signature.encode_call(args, kwargs)

    def decode_result(self, data: bytes) -> Any:
        return self.signature.decode_result(data)

    async def start_on(self, target: Backend, data: bytes) -> Handle[R]:
        """`start` on a client, with encoded arguments."""
        started = await target.call(runs.START, self._request(target, data))
        return Handle(target, started.run_id, self.signature.decode_result, self._key)

    async def run_on(self, target: Backend, data: bytes) -> R:
        """`run` on a client, with encoded arguments."""
        ended = await target.call(runs.RUN, self._request(target, data))
        run_id = ids.text(ended.run_id)
        outcome = ended.outcome if ended.outcome is not None else await outcome_of(target, run_id)
        result: R = value_of(outcome, run_id, self.signature.decode_result)
        return result

    def _request(self, target: Backend, data: bytes) -> StartRequest:
        if current.get(None) is not None:
            me = self._written
            raise PerdureError(
                f"{me}.start() inside a workflow would not be recorded; call {me}(...) to start a child run"
            )
        self._prepare(target)
        return StartRequest(
            workflow=self.name,
            version=self.version,
            input=data,
            key=self._key,
            on_conflict=self._on_conflict,
            timeout_us=to_us(self._timeout) if self._timeout is not None else 0,
            trace=current_traceparent(),
            later=self._later,
            dedup=self._dedup,
        )

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        return Bound(self, self.signature.encode_call(args, kwargs))

    def batch(self, *, key: str, size: int, every: Duration = "10s") -> Batched[R]:
        """Gather items of many starts for one run: `await ingest.batch(key="eu", size=100, every="10s").add(event)`.

        The workflow takes one list. The run begins with `size` items, or `every` so long after the first one.
        """
        twin = copy(self)
        twin._later = deferred_starts.Batch(key, size, to_us(every))
        deferred_starts.check_later(twin._later, twin._dedup, twin._key)
        return Batched(twin)

    def options(
        self,
        *,
        id: str | None = None,
        timeout: Duration | None = None,
        on_conflict: OnConflict | None = None,
        debounce: Debounce | None = None,
        dedup: Dedup | None = None,
    ) -> Self:
        """The same workflow under an id of your own, with a deadline, with another way to treat a taken id, or with a start that is
        put off (`debounce`) or answered with a run that is there already (`dedup`)."""
        twin = copy(self)
        if debounce is not None:
            twin._later = debounce.recorded
        if dedup is not None:
            twin._dedup = dedup.recorded
        if id is not None:
            twin._key = checked_name("run", id)
        if timeout is not None:
            twin._timeout = timeout
        if on_conflict is not None:
            twin._on_conflict = on_conflict
        deferred_starts.check_later(twin._later, twin._dedup, twin._key)
        return twin


class Batched(Generic[R_co]):
    """A workflow whose runs get the items of many starts. See `Startable.batch`."""

    def __init__(self, workflow: Startable[..., Any]) -> None:
        self._workflow = workflow

    async def add(self, *items: Any, **lists: list[Any]) -> Handle[R_co]:
        """Add items to the batch; a handle to the run that will get them. A flow's list is given by its name: `add(events=[event])`."""
        args = () if lists else (list(items),)
        return await self._workflow.start_on(backend(), self._workflow.signature.encode_call(args, lists))


class Workflow(Startable[P, R]):
    """A durable function. `start` hands back a handle, `run` the result; called inside a workflow it is a child run."""

    def __init__(
        self,
        fn: Callable[P, Coroutine[Any, Any, R]],
        name: str,
        version: str | None,
        *,
        timeout: Duration | None = None,
        said: Said = NOTHING_SAID,
    ) -> None:
        if not inspect.iscoroutinefunction(fn):
            raise InvalidInput(f"@workflow needs an `async def` function; {name} is not one")
        super().__init__(name, _checked_version(version) if version else _source_hash(fn), timeout=timeout)
        self.fn = fn
        self.control = control_of(said, fn, f"workflow {name}", "workflow")
        """Of its runs; None: nothing was said."""
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

    def _prepare(self, target: Backend) -> None:
        """Where it is started it is served, if anything is served there."""
        target.adopt(self)


class _TaskDecorator:
    def __init__(self, name: str | None, settings: TaskSettings) -> None:
        self._name, self._settings = name, settings

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R]) -> Task[P, R]: ...
    def __call__(self, fn: Callable[..., Any]) -> Task[..., Any]:
        made: Task[..., Any] = Task(fn, self._name or fn.__name__, self._settings)
        registry.add(made)
        return made


@overload
def task(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
@overload
def task(fn: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: Duration | None = None,
    queue: str | None = None,
    heartbeat: Duration | None = None,
    start_within: Duration | None = None,
    finish_within: Duration | None = None,
    at_most_once: bool = False,
    process: bool = False,
    undo: Task[..., Any] | str | None = None,
    limit: Limit | Sequence[Limit] | None = None,
    rate: RateLimit | Sequence[RateLimit] | None = None,
    priority: int | None = None,
    fair: Fair | str | None = None,
    weight: float | str | None = None,
) -> _TaskDecorator: ...
def task(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: Duration | None = None,
    queue: str | None = None,
    heartbeat: Duration | None = None,
    start_within: Duration | None = None,
    finish_within: Duration | None = None,
    at_most_once: bool = False,
    process: bool = False,
    undo: Task[..., Any] | str | None = None,
    limit: Limit | Sequence[Limit] | None = None,
    rate: RateLimit | Sequence[RateLimit] | None = None,
    priority: int | None = None,
    fair: Fair | str | None = None,
    weight: float | str | None = None,
) -> Any:
    """Make a function a task. Async ones run on the loop, sync ones in threads, or with `process=True` in processes of
    their own: for work that keeps a CPU busy, crashes, or must end when it is cancelled. `timeout` bounds one attempt,
    `start_within` the wait for one, `finish_within` all of it from scheduling to the end. `undo` names the task that takes back what
    this one did, if the run fails or is cancelled later."""
    decorator = _TaskDecorator(
        name,
        TaskSettings(
            retry,
            timeout,
            queue,
            heartbeat,
            at_most_once,
            process,
            start_within,
            finish_within,
            undo=undo,
            limit=limit,
            rate=rate,
            priority=priority,
            fair=fair,
            weight=weight,
        ),
    )
    return decorator if fn is None else decorator(fn)


class _WorkflowDecorator:
    def __init__(self, name: str | None, version: str | None, timeout: Duration | None, said: Said) -> None:
        self._name, self._version, self._timeout, self._said = name, version, timeout, said

    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> Workflow[P, R]:
        made = Workflow(fn, self._name or fn.__name__, self._version, timeout=self._timeout, said=self._said)
        registry.add(made)
        return made


@overload
def workflow(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: str | None = None,
    timeout: Duration | None = None,
    limit: Limit | Sequence[Limit] | None = None,
    rate: RateLimit | Sequence[RateLimit] | None = None,
    priority: int | None = None,
    fair: Fair | str | None = None,
    weight: float | str | None = None,
) -> _WorkflowDecorator: ...
def workflow(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: str | None = None,
    timeout: Duration | None = None,
    limit: Limit | Sequence[Limit] | None = None,
    rate: RateLimit | Sequence[RateLimit] | None = None,
    priority: int | None = None,
    fair: Fair | str | None = None,
    weight: float | str | None = None,
) -> Any:
    """Make an `async def` function a durable workflow. `limit`, `rate`, `priority`, `fair` and `weight` are about its runs."""
    decorator = _WorkflowDecorator(name, version, timeout, Said(limit, rate, priority, fair, weight))
    return decorator if fn is None else decorator(fn)


def _run_here(fn: Callable[..., Any], is_async: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step[Any]:
    """Outside a workflow a task is the plain function, behind the same awaitable."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise PerdureError(
            f"{fn.__name__}(...) was called with no event loop running; call {fn.__name__}.fn(...) for the plain function"
        ) from None
    step: Step[Any] = Step(loop=loop)
    if not is_async:
        _settle(step, lambda: fn(*args, **kwargs))
        return step
    inner = loop.create_task(fn(*args, **kwargs))
    step._on_cancel = lambda: cast("None", inner.cancel())
    inner.add_done_callback(
        lambda t: None if step.done() else (step.cancel() if t.cancelled() else _settle(step, t.result))
    )
    return step


def _settle(step: Step[Any], produce: Callable[[], Any]) -> None:
    try:
        step.set_result(produce())
    except Exception as e:
        step.set_exception(e)


def _checked_version(version: str) -> str:
    from perdure.flows.model import VERSION_PREFIX, is_flow  # only who names a version pays for it

    if is_flow(version):
        raise InvalidInput(
            f"@workflow(version={version!r}): versions that begin with {VERSION_PREFIX!r} are those of declarative flows; choose another"
        )
    return version


def _source_hash(fn: Callable[..., Any]) -> str:
    """A version nobody has to bump: the hash of the function's source."""
    try:
        source = inspect.getsource(fn)
    except (OSError, TypeError):
        source = repr(fn.__code__.co_code)
    return hashlib.sha256(source.encode()).hexdigest()[:12]
