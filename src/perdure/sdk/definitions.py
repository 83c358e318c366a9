"""`@task` and `@workflow`: plain functions with a name, typed from the call to the await."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast, overload

import msgspec

from perdure.core import events as ev
from perdure.core.calls import RESERVED
from perdure.core.declared import Declared
from perdure.core.errors import InvalidInput
from perdure.core.limits import QUERIES_MAX
from perdure.core.names import checked_name
from perdure.core.retry import TaskOptions
from perdure.core.work import VERSION_PREFIX, is_flow
from perdure.flows.hooks import HOOKS, hook_name
from perdure.sdk import registry
from perdure.sdk.client.backend import Backend
from perdure.sdk.code_hash import code_hash, short
from perdure.sdk.flow_control import control_of
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
from perdure.sdk.queries import Query
from perdure.sdk.startable import Startable
from perdure.sdk.workflow import guards, undo
from perdure.sdk.workflow.fanout import TaskFanout
from perdure.sdk.workflow.live_run import LiveRun, current
from perdure.sdk.workflow.step import Step

if TYPE_CHECKING:
    from perdure.sdk.event_starts import On

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A = ParamSpec("A")
B = TypeVar("B")

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
        self.transactional = options.get("transactional", False)
        wrong = [
            other for other in ("process", "executor", "at_most_once") if self.transactional and options.get(other)
        ]
        if wrong:
            raise InvalidInput(
                f"@task(transactional=True, {wrong[0]}=...): {name} runs in a transaction of its worker; drop {wrong[0]}"
            )
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

        Takes the options of `@task` except `name`, `process`, `transactional` and those of executors. Raises InvalidInput for values that can never work.
        """
        given = checked(f"{self.name}.options()", CallOptions, options)
        return Task(self.fn, cast(TaskDefinitionOptions, {"name": self.name, **self._options, **given}))

    map = map_calls

    def _fan_out(self, runtime: LiveRun, items: Iterable[Any], concurrency: int | None, on_error: str) -> Step[Any]:
        return TaskFanout(runtime.requests, self, self.signature.encode_calls(items), concurrency, on_error).step


class Code:
    """The code of a workflow. Copies of a workflow share it, so that it is hashed once."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn

    @cached_property
    def hash(self) -> str:
        with guards.lifted():  # a workflow that starts a child may be the first to ask
            return code_hash(self._fn)


class Workflow(Startable[P, R]):
    """A durable function. `start` returns a handle, `run` the result; called inside a workflow it is a child run.

    `@workflow` makes one. `name` is how histories and other processes know it, `fn` is the plain function.
    """

    def __init__(self, fn: Callable[P, Coroutine[Any, Any, R]], options: WorkflowDefinitionOptions) -> None:
        name, version = options.get("name") or fn.__name__, options.get("version")
        if not inspect.iscoroutinefunction(fn):
            raise InvalidInput(f"@workflow needs an `async def` function; {name} is not one")
        super().__init__(name, _checked_version(version) if version else "", options.get("timeout"))
        self.fn = fn
        self.code = Code(fn)
        self.versioning = _checked_versioning(name, options.get("versioning"))
        """`pinned` or `auto_upgrade`; None: as the worker decides."""
        self.control = control_of(options, f"workflow {name}", "workflow", fn)
        """Flow control of its runs; None: none."""
        self.hooks = {
            status: _hook_workflow(self.name, key, handler)
            for key, status in HOOKS.items()
            if (handler := options.get(key)) is not None
        }
        """Status in which a run ends -> workflow of which a run starts then."""
        self.queries: dict[str, Query[Any, Any]] = {}
        """By name. Copies of a workflow share them."""
        self.subscriptions = _subscriptions(options.get("on"), fn)
        """Named events that start runs of it, as JSON; empty: none."""
        update_wrapper(self, fn)

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    @property
    def version(self) -> str:
        """Its label, or else the beginning of the hash of its code."""
        return self._label or short(self.code.hash)

    @cached_property
    def signature(self) -> Signature:
        return Signature.of(self.fn)

    @cached_property
    def _checked(self) -> bool:
        guards.check_code(self.fn)
        return True

    def query(self, fn: Callable[A, B]) -> Query[A, B]:
        """Make a plain function a query of this workflow, under its own name. It computes an answer from the states of a run.

            @crawl.query
            def percent(digits: int = 0) -> float:
                return round(100 * progress.get() / total.get(), digits)

            await percent.read(run_id, digits=1)  # outside

        `State.get()`, `wf.run_id()` and `wf.info()` work in it; nothing else of workflow code does. Raises InvalidInput for an async
        function and for a name that another query of the workflow has.
        """
        made = Query(self, fn)
        if made.name in self.queries:
            raise InvalidInput(
                f"the workflow {self.name!r} has a query {made.name!r} already; the name of the function is that of the query, so "
                "give this one another"
            )
        if len(self.queries) >= QUERIES_MAX:
            raise InvalidInput(f"the workflow {self.name!r} has QUERIES_MAX={QUERIES_MAX} queries already")
        self.queries[made.name] = made
        return made

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
        version: a label for this version of the code, such as `2026-11-17`; a hash of the code unless given. Other code under the
            same label is refused when its worker connects.
        versioning: `"pinned"`: a run stays with the version that it began with. `"auto_upgrade"`: it moves to the current version when
            its code is loaded again. Unless given, runs are pinned if their worker declares a build id.
        timeout: for one run.
        on_failure, on_success: a task or a workflow that runs after a run has failed or succeeded, once per end of the run. It gets one
            argument, a dict with run_id, workflow, version, key, status, created_at, finished_at, error and result.
        on: an `On`, or several: named events that start runs of it.
        limit, rate, priority, fair, weight: flow control of its runs; see `task`.

    Raises InvalidInput for a function that is not async, and for options that can never work.
    """
    decorator = _WorkflowDecorator(checked("@workflow", WorkflowDefinitionOptions, options))
    return decorator if fn is None else decorator(fn)


def _hook_workflow(workflow: str, key: str, handler: Any) -> str:
    """The name of the workflow that a hook starts. A task gets a workflow of its own, which calls it."""
    if isinstance(handler, str):
        return checked_name("workflow", handler)
    if isinstance(handler, Startable):
        return cast(Startable[..., Any], handler).name
    if not isinstance(handler, Task):
        raise InvalidInput(f"@workflow of {workflow}: {key} is a task or a workflow, not {handler!r}")
    called: Task[..., Any] = handler

    async def hook(ended: dict[str, Any]) -> Any:
        return await called(ended)

    made = Workflow(hook, {"name": hook_name(workflow, key)})
    registry.add(made)
    return made.name


def _subscriptions(on: On | Sequence[On] | None, fn: Callable[..., Any]) -> bytes:
    if not on:
        return b""
    from perdure.sdk.event_starts import subscriptions_of  # loads the expression language: only where it is needed

    return subscriptions_of(on, fn)


def _checked_version(version: str) -> str:
    if is_flow(version):
        raise InvalidInput(
            f"@workflow(version={version!r}): versions that begin with {VERSION_PREFIX!r} are those of declarative flows; choose another"
        )
    return version


def _checked_versioning(name: str, versioning: str | None) -> str | None:
    if versioning not in (None, "pinned", "auto_upgrade"):
        raise InvalidInput(f'@workflow of {name}: versioning is "pinned" or "auto_upgrade", not {versioning!r}')
    return versioning
