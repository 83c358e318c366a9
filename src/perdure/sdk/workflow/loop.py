"""A deterministic asyncio event loop: no sockets, no threads, no clock of its own.

Laws:

1. Callbacks run in the order they were scheduled, at the time of the history and no other.
2. `time()` is the database time of the event being applied; a timer is a durable timer, recorded in the history.
3. Anything that would need the outside world raises `WorkflowRuleBroken` and names the way out.

One loop belongs to one run. `run_until_idle` is a plain function called by the worker; in between nothing runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from math import inf
from time import perf_counter  # bound here, before workflow guards wrap it
from typing import Any, NoReturn, Protocol

from perdure.core.errors import WorkflowRuleBroken
from perdure.sdk.workflow import guards


class TimerOwner(Protocol):
    """What the loop needs from the run: durable timers."""

    @property
    def now_us(self) -> int: ...
    def open_timer(self, fire_at_us: int, fired: Callable[[], None]) -> int: ...
    def close_timer(self, seq: int) -> None: ...


class WorkflowTask(asyncio.Task[Any]):
    """Hashes in creation order, so that the sets inside asyncio (TaskGroup, wait) iterate alike on every replay."""

    def __init__(self, number: int, coro: Any, *, loop: Any, name: str, context: contextvars.Context | None) -> None:
        self._number = number  # before anything else: asyncio hashes the task while it is being made
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


class Soon:
    """A callback that is about to run; what `call_soon` hands back."""

    __slots__ = ("args", "callback", "context")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> None:
        self.callback: Callable[..., Any] | None = callback
        self.args, self.context = args, context

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None


class DurableTimer:
    """What `call_at` hands back; asyncio.timeout and asyncio.sleep use these three methods."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_done", "_loop", "_seq", "_when")

    def __init__(
        self,
        loop: WorkflowLoop,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self._loop, self._when, self._callback, self._args = loop, when, callback, args
        self._context = context or contextvars.copy_context()
        self._cancelled = self._done = False
        self._seq = loop.owner.open_timer(round(when * 1e6), self._fire)

    def _fire(self) -> None:
        self._done = True
        if not self._cancelled:
            self._loop.call_soon(self._callback, *self._args, context=self._context)

    def cancel(self) -> None:
        if not self._cancelled and not self._done:
            self._cancelled = True
            self._loop.owner.close_timer(self._seq)

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


class InlineExecutor(Executor):
    """Runs what libraries would run in a thread where it is asked for, as plain workflow code: the guards apply to it.

    `run_in_executor` accepts no other executor. For libraries that take the executor of plain functions as an option.
    """


class driving:  # noqa: N801 (reads as a statement: `with driving(loop):`)
    """While workflow code runs: its loop is the running one, the guards are up, the process's own loop sees nothing.

    The collector rests meanwhile: finalizers of the application would run under the guards, and be refused what they do.
    A worker wraps a whole batch of activations into one (`driving(None)`); inside it only the running loop changes.
    """

    __slots__ = ("_collects", "_hooks", "_loop", "_nested", "_outer")

    def __init__(self, loop: WorkflowLoop | None) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._outer = asyncio_events._get_running_loop()
        asyncio_events._set_running_loop(self._loop)
        self._nested = guards.inside()
        if not self._nested:
            self._collects = gc.isenabled()
            self._hooks = sys.get_asyncgen_hooks()
            gc.disable()
            sys.set_asyncgen_hooks(None, _let_go)
            guards.enter()

    def __exit__(self, *_: object) -> None:
        if not self._nested:
            guards.leave()
            sys.set_asyncgen_hooks(*self._hooks)
            if self._collects:
                gc.enable()
        asyncio_events._set_running_loop(self._outer)


def _let_go(_: object) -> None:
    """An async generator dropped half way is not resumed: when that happens depends on the collector, not on the history.

    Code that needs its `finally` closes it itself, with contextlib.aclosing.
    """


CLOSES_MAX = 1_000


def _close(coro: Any) -> None:
    """A coroutine that awaits in `finally` stays suspended there and is closed again, as often as it has such places."""
    for _ in range(CLOSES_MAX):
        try:
            coro.close()
            return
        except BaseException:  # user code may raise anything when it is closed; nothing of it may escape
            if coro.cr_frame is None:
                return


# asyncio's abstract loop declares dozens of methods that need the outside world; those are forbidden one by one below.
_Base: Any = asyncio.AbstractEventLoop


class WorkflowLoop(_Base):  # type: ignore[misc] # pyright: ignore[reportUntypedBaseClass]
    def __init__(self, owner: TimerOwner, seed: bytes = b"") -> None:
        self.owner = owner
        self._ready: deque[Soon] = deque()
        self._tasks = int.from_bytes(seed[9:], "big")
        """Tasks hash by number. The base differs from run to run: asyncio keeps all tasks of the process in one set."""
        self._live: dict[asyncio.Task[Any], contextvars.Context] = {}
        """Tasks that have not ended. Held here: one that only a cycle refers to would end when the collector likes."""
        self.closed = False
        self.unhandled: BaseException | None = None

    def number_from(self, seed: bytes) -> None:
        """Of a fork, before its code begins: sets of tasks iterate as in the run that its history was copied from."""
        self._tasks = int.from_bytes(seed[9:], "big")

    def run_until_idle(self, until_s: float = inf) -> bool:
        """Run callbacks until none is left, or that moment (by perf_counter) has come; it is looked at after every few. True: none is left.

        The caller must not be inside an asyncio task of its own."""
        if not self._ready:
            return True
        if not guards.inside():
            with driving(self):
                return self._run_ready(until_s)
        outer = asyncio_events._get_running_loop()
        asyncio_events._set_running_loop(self)
        try:
            return self._run_ready(until_s)
        finally:
            asyncio_events._set_running_loop(outer)

    def _run_ready(self, until_s: float) -> bool:
        ready, n = self._ready, 0
        while ready:
            soon = ready.popleft()
            if soon.callback is None:
                continue
            if soon.context is None:
                soon.callback(*soon.args)
            else:
                soon.context.run(soon.callback, *soon.args)
            n += 1
            if not n & 15 and perf_counter() >= until_s:
                return not ready
        return True

    @property
    def live_tasks(self) -> list[asyncio.Task[Any]]:
        """Coroutines that have not ended, in the order in which they began."""
        return list(self._live)

    @property
    def has_code(self) -> bool:
        """Coroutines that have not ended."""
        return bool(self._live)

    def throw_away(self) -> None:
        """Close every live coroutine where it stands. What its `finally` asks for goes to a run that records nothing.

        In its own context, because without one a task called in `finally` would be a plain call, executed here and now.
        """
        self.closed = True
        self._ready.clear()
        live, self._live = self._live, {}
        if not live:
            return
        with driving(self):
            for task, context in live.items():
                if not task.done():
                    context.run(_close, task.get_coro())

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Any:
        soon = Soon(callback, args, context)
        if not self.closed:
            self._ready.append(soon)
        return soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return DurableTimer(self, when, callback, args, context)

    def time(self) -> float:
        return self.owner.now_us / 1e6

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None, **_: Any
    ) -> asyncio.Task[Any]:
        if self.closed:
            coro.close()
            raise RuntimeError("this run has left memory: its code can start nothing any more")
        context = context or contextvars.copy_context()
        self._tasks += 1
        task = WorkflowTask(self._tasks, coro, loop=self, name=name or "workflow", context=context)
        self._live[task] = context
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._live.pop(task, None)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException) and self.unhandled is None:
            self.unhandled = error

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_exception_handler(self) -> None:
        return None

    def get_task_factory(self) -> None:
        return None

    def _timer_handle_cancelled(self, handle: object) -> None:
        pass

    async def shutdown_asyncgens(self) -> None:
        pass

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        if not isinstance(executor, InlineExecutor):
            _refuse("run_in_executor")
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def _refuse(name: str) -> NoReturn:
    raise WorkflowRuleBroken(
        f"workflow code called {name}() of its event loop: threads, processes and sockets are not durable and cannot "
        "be replayed. Move this into a @task, or wrap it in wf.run() to record its result"
    )


def _forbidden(name: str) -> Callable[..., NoReturn]:
    def refuse(self: WorkflowLoop, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(name)

    return refuse


for _name in (
    "call_soon_threadsafe",
    "create_connection",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "create_datagram_endpoint",
    "getaddrinfo",
    "getnameinfo",
    "sock_recv",
    "sock_recv_into",
    "sock_sendall",
    "sock_connect",
    "sock_accept",
    "sock_sendfile",
    "sendfile",
    "start_tls",
    "connect_read_pipe",
    "connect_write_pipe",
    "subprocess_exec",
    "subprocess_shell",
    "add_reader",
    "add_writer",
    "add_signal_handler",
    "run_forever",
    "run_until_complete",
):
    setattr(WorkflowLoop, _name, _forbidden(_name))
