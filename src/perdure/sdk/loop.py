"""A deterministic asyncio event loop: no sockets, no threads, no clock of its own.

Laws:

1. Callbacks run in the order they were scheduled, on nobody's time but the history's.
2. `time()` is the database time of the event being applied; a timer is a durable timer, recorded in the history.
3. Anything that would need the outside world raises `WorkflowRuleBroken` and names the way out.

One loop belongs to one run. `run_until_idle` is a plain function called by the worker; in between nothing runs.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from perdure.core.errors import WorkflowRuleBroken
from perdure.sdk import guards


class TimerOwner(Protocol):
    """What the loop needs from the run: durable timers."""

    now_us: int

    def open_timer(self, fire_at_us: int, fired: Callable[[], None]) -> int: ...
    def close_timer(self, seq: int) -> None: ...


class WorkflowTask(asyncio.Task[Any]):
    """Hashes in creation order, so that the sets inside asyncio (TaskGroup, wait) iterate alike on every replay."""

    _number = 0

    def __hash__(self) -> int:
        return self._number


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


# asyncio's abstract loop declares dozens of methods that need the outside world; those are forbidden one by one below.
_Base: Any = asyncio.AbstractEventLoop


class WorkflowLoop(_Base):  # type: ignore[misc] # pyright: ignore[reportUntypedBaseClass]
    def __init__(self, owner: TimerOwner) -> None:
        self.owner = owner
        self._ready: deque[tuple[Callable[..., Any], tuple[Any, ...], contextvars.Context | None]] = deque()
        self._tasks = 0
        self.closed = False
        self.unhandled: BaseException | None = None

    # -- driving ----------------------------------------------------------------------------------------------------

    def run_until_idle(self) -> None:
        """Run callbacks until none is left. The caller must not be inside an asyncio task of its own."""
        ready = self._ready
        outer = asyncio_events._get_running_loop()
        asyncio_events._set_running_loop(self)
        guards.enter()
        try:
            while ready:
                callback, args, context = ready.popleft()
                if context is None:
                    callback(*args)
                else:
                    context.run(callback, *args)
        finally:
            guards.leave()
            asyncio_events._set_running_loop(outer)

    # -- what asyncio asks of a loop --------------------------------------------------------------------------------

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Any:
        if not self.closed:
            self._ready.append((callback, args, context))
        return _NOT_CANCELLABLE

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
        task = WorkflowTask(coro, loop=self, name=name or "workflow", context=context)
        self._tasks += 1
        task._number = self._tasks
        return task

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


class _NotCancellable:
    """call_soon's handle; asyncio's own primitives never cancel it."""

    def cancel(self) -> None:
        pass

    def cancelled(self) -> bool:
        return False


_NOT_CANCELLABLE = _NotCancellable()


def _forbidden(name: str) -> Callable[..., NoReturn]:
    def refuse(self: WorkflowLoop, *args: Any, **kwargs: Any) -> NoReturn:
        raise WorkflowRuleBroken(
            f"workflow code called {name}() of its event loop: threads, processes and sockets are not durable and cannot "
            "be replayed. Move this into a @task, or wrap it in wf.run() to record its result"
        )

    return refuse


for _name in (
    "run_in_executor", "call_soon_threadsafe", "create_connection", "create_server", "create_unix_connection",
    "create_unix_server", "create_datagram_endpoint", "getaddrinfo", "getnameinfo", "sock_recv", "sock_recv_into",
    "sock_sendall", "sock_connect", "sock_accept", "sock_sendfile", "sendfile", "start_tls", "connect_read_pipe",
    "connect_write_pipe", "subprocess_exec", "subprocess_shell", "add_reader", "add_writer", "add_signal_handler",
    "run_forever", "run_until_complete",
):  # fmt: skip
    setattr(WorkflowLoop, _name, _forbidden(_name))
