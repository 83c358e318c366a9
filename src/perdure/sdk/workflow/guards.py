"""Keeps workflow code deterministic while it runs.

Laws:
1. Only code that runs between enter() and leave() on the same thread is guarded. Everything else in the process
   behaves as if this module did not exist, but for some tens of nanoseconds per guarded call.
2. A refused call has no effect: the error is raised instead of the call, names the workflow's line and the fix.
3. Imports, logging, tracebacks and print() keep working inside a workflow.

There are three nets, since no single one catches everything. Python functions that read clocks or draw randomness are
replaced in their modules. I/O and threads are seen by an audit hook, which also sees calls from C code. Methods of C
types (datetime.now) and functions bound before install() are found by reading the workflow's code: see code_check.py.

There is no import sandbox: it would load every module twice and make classes differ from themselves. The nets catch
mistakes, not malice.
"""

from __future__ import annotations

import asyncio
import functools
import random
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from perdure.core.errors import WorkflowRuleBroken
from perdure.sdk.workflow import forbidden
from perdure.sdk.workflow.code_check import check_code

__all__ = ["check_code", "enter", "inside", "install", "leave", "lifted", "trust", "uninstall"]


class _GuardThread(threading.local):
    """Per thread, since engines on several threads may run workflows at once. The class attribute is the default."""

    inside = False


_here = _GuardThread()


def enter() -> None:
    """Workflow code runs on this thread from here on."""
    _here.inside = True


def leave() -> None:
    _here.inside = False


def inside() -> bool:
    return _here.inside


class lifted:  # noqa: N801 (reads as a statement: `with guards.lifted():`)
    """Lets Perdure's own code, or a recorded side effect, do what workflow code may not."""

    __slots__ = ("_was",)

    def __enter__(self) -> None:
        self._was = _here.inside
        _here.inside = False

    def __exit__(self, *_: object) -> None:
        _here.inside = self._was


def trust(module: str, *fixes: str) -> None:
    """Let a library do by itself what these fixes are for, such as FIX_CLOCK. Code that it calls stays guarded.

    `module` is its top-level module. For libraries whose times and random numbers are known not to reach what the code asks for.
    """
    forbidden.TRUSTED[module] = frozenset(fixes)


_replaced: list[tuple[Any, str, Any]] = []
_lock = threading.Lock()
_hooked = False


def install() -> None:
    """Put the guards in place, once per process; further calls do nothing."""
    global _hooked
    with _lock:
        if _replaced:
            return
        for module, name, fix in forbidden.GUARDED:
            _replace(module, name, _guarded(module, name, fix))
        for name, needed in forbidden.READS_CLOCK_WITHOUT.items():
            _replace(time, name, _guarded_if_short(name, needed))
        _replace(random.Random, "seed", _guarded_seed())
        _replace(threading.Thread, "start", _guarded_start())
        ordered = _ordered_as_completed()
        _replace(asyncio.tasks, "as_completed", ordered)
        _replace(asyncio, "as_completed", ordered)
        if not _hooked:
            sys.addaudithook(_audit)
            _hooked = True


def uninstall() -> None:
    """Put the original functions back. An audit hook cannot be removed; outside workflow code it does nothing."""
    with _lock:
        while _replaced:
            owner, name, original = _replaced.pop()
            setattr(owner, name, original)


def _replace(owner: Any, name: str, guarded: Any) -> None:
    _replaced.append((owner, name, getattr(owner, name)))
    setattr(owner, name, guarded)


def _guarded(module: ModuleType, name: str, fix: str) -> Any:
    original = getattr(module, name)
    call = f"{module.__name__}.{name}()"

    def guarded(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if _here.inside and _refuse(sys._getframe(1), call, fix):
            with lifted():
                return original(*args, **kwargs)
        return original(*args, **kwargs)

    def guarded_clock(original: Callable[[], Any], /) -> Any:
        if _here.inside:
            _refuse(sys._getframe(1), call, fix)
        return original()

    is_clock = (module, name) in forbidden.READS_CLOCK
    return _dress(guarded_clock if is_clock else guarded, original)


def _guarded_if_short(name: str, needed: int) -> Any:
    original = getattr(time, name)

    def guarded(original: Callable[..., Any], /, *args: Any) -> Any:
        if _here.inside and (len(args) < needed or args[needed - 1] is None):
            _refuse(sys._getframe(1), f"time.{name}() without a time", forbidden.FIX_CLOCK)
        return original(*args)

    return _dress(guarded, original)


def _guarded_seed() -> Any:
    """`random.Random(7)` is deterministic and welcome; `random.Random()` seeds itself from the system."""
    original = random.Random.seed

    @functools.wraps(original)
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and _here.inside:
            _refuse(sys._getframe(1), "random.Random() without a seed", forbidden.FIX_RANDOM)
        original(self, a, version)

    return seed


def _guarded_start() -> Any:
    """Python 3.11 raises no audit event for a new thread."""
    original = threading.Thread.start

    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        if _here.inside:
            _refuse(sys._getframe(1), "threading.Thread.start()", forbidden.FIX_THREAD)
        original(self)

    return start


def _ordered_as_completed() -> Any:
    """asyncio puts what it is given into a set, and coroutines in a set lie in the order of their addresses.

    As tasks they hash in the order they were given: see WorkflowTask.
    """
    original = asyncio.as_completed

    @functools.wraps(original)
    def as_completed(fs: Any, **options: Any) -> Any:
        if _here.inside:
            fs = [asyncio.ensure_future(f) for f in fs]
        return original(fs, **options)

    return as_completed


def _dress(guarded: Any, original: Any) -> Any:
    """Make the guard look and bind like the original.

    A class may hold `clock = time.time`. A C function stays unbound there and a Python function would become a method,
    so a C function is stood in for by a bound method, which is never bound twice.
    """
    guarded.__annotations__ = {}
    functools.update_wrapper(guarded, original)
    if isinstance(original, FunctionType):

        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            return guarded(original, *args, **kwargs)

        return function
    del guarded.__wrapped__  # its signature has one parameter more than the original's
    return MethodType(guarded, original)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _here.inside and event in forbidden.IO_EVENTS:
        if event != "open":
            _refuse(sys._getframe(1), event, forbidden.IO_EVENTS[event])
        elif not str(args[0]).startswith(forbidden.CONSTANT_FILES):
            _refuse(sys._getframe(1), f"open({args[0]!r})", forbidden.FIX_IO)


def _refuse(frame: FrameType | None, call: str, fix: str) -> bool:
    """Raise if workflow code is behind the call; return True if exempt code is.

    The search goes outward through the standard library to the code that asked for the call. It ends at Perdure's driver,
    below which nothing belongs to the workflow.
    """
    culprit: FrameType | None = None
    while frame is not None:
        module: str = frame.f_globals.get("__name__") or ""
        top = module.partition(".")[0]
        if top == "perdure" and module != __name__:
            if culprit is None:
                return True
            break
        if top in forbidden.EXEMPT or module in forbidden.EXEMPT_DOTTED:
            return True
        if culprit is None and fix in forbidden.TRUSTED.get(top, ()):
            return True
        if culprit is None and top not in forbidden.STDLIB and module != __name__:
            culprit = frame
        frame = frame.f_back
    if culprit is None:
        return True  # no frame but the standard library's: a finalizer or a callback of the interpreter
    code = culprit.f_code
    raise WorkflowRuleBroken(
        f"workflow code called {call} at {code.co_filename}:{culprit.f_lineno} in {code.co_qualname}. A replay would "
        f"get another answer and the run could not be resumed. Instead, {fix}."
    )
