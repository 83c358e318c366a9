"""What workflow code may not do, and what to do instead: the tables behind guards.py and code_check.py.

A workflow is replayed from its history, so the same code must ask for the same things every time. Clocks, randomness
and the outside world answer differently each time; a task, or wf.run(), records their answer once.
"""

from __future__ import annotations

import datetime
import os
import random
import secrets
import sys
import time
import uuid
import zoneinfo
from types import ModuleType
from typing import Any, Final

FIX_CLOCK: Final = "use wf.now(), which gives the same answer at every replay"
FIX_SLEEP: Final = "use `await wf.sleep(...)`, a timer that survives restarts"
FIX_RANDOM: Final = "use wf.random() or wf.uuid(), which are seeded by the run"
FIX_IO: Final = "move it into a @task, or into wf.run() to record its result"
FIX_THREAD: Final = "use asyncio.gather() or wf.map() over tasks; the workers are the threads"

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
READS_CLOCK: Final[list[tuple[ModuleType, str]]] = [
    *[(time, name) for name in _CLOCKS],
    *[(time, f"{name}_ns") for name in _CLOCKS],
]
"""Called without arguments, and often: they get the cheapest guard."""

READS_CLOCK_WITHOUT: Final[dict[str, int]] = {"localtime": 1, "gmtime": 1, "ctime": 1, "asctime": 1, "strftime": 2}
"""Functions of `time` that read the clock only if they are given fewer arguments than this."""

DRAWS_RANDOM: Final[list[tuple[ModuleType, str]]] = [
    *[
        (random, n)
        for n in random.__all__
        if not isinstance(getattr(random, n), type) and n not in ("getstate", "setstate")
    ],
    (random, "_urandom"),  # SystemRandom's source, bound before `os.urandom` could be replaced
    *[(secrets, n) for n in secrets.__all__ if n not in ("SystemRandom", "compare_digest")],
    *[(uuid, f"uuid{n}") for n in (1, 4, 6, 7, 8) if hasattr(uuid, f"uuid{n}")],
    *[(os, n) for n in ("urandom", "getrandom") if hasattr(os, n)],
]

GUARDED: Final[list[tuple[ModuleType, str, str]]] = [
    *[(module, name, FIX_CLOCK) for module, name in READS_CLOCK if hasattr(module, name)],
    *[(time, name, FIX_CLOCK) for name in ("clock_gettime", "clock_gettime_ns") if hasattr(time, name)],
    (time, "sleep", FIX_SLEEP),
    *[(module, name, FIX_RANDOM) for module, name in DRAWS_RANDOM],
]

ORIGINALS: Final[dict[int, tuple[Any, str, str]]] = {
    id(getattr(module, name)): (getattr(module, name), f"{module.__name__}.{name}()", fix)
    for module, name, fix in GUARDED
}
"""The real functions by identity, for code that bound them early with `from time import time`."""

_DATE_METHODS = frozenset({"now", "utcnow", "today"})


def forbidden_call(called: Any) -> tuple[str, str] | None:
    """The name of a call that reads the clock or draws randomness and its fix, or None if the object is harmless."""
    known = ORIGINALS.get(id(called))
    if known is not None and known[0] is called:
        return known[1], known[2]
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if name in _DATE_METHODS and isinstance(owner, type) and issubclass(owner, datetime.date):
        return f"{owner.__name__}.{name}()", FIX_CLOCK
    return None


_IO: Final[dict[str, tuple[str, ...]]] = {
    "builtins": ("input",),
    "os": (
        "listdir",
        "scandir",
        "mkdir",
        "remove",
        "rename",
        "rmdir",
        "link",
        "symlink",
        "truncate",
        "chmod",
        "chown",
        "utime",
        "chdir",
        "putenv",
        "unsetenv",
        "kill",
        "system",
        "exec",
        "spawn",
        "posix_spawn",
        "fork",
        "forkpty",
        "startfile",
    ),
    "shutil": ("copyfile", "copytree", "move", "rmtree"),
    "tempfile": ("mkstemp", "mkdtemp"),
    "socket": (
        "connect",
        "bind",
        "sendto",
        "sendmsg",
        "getaddrinfo",
        "getnameinfo",
        "gethostbyname",
        "gethostbyaddr",
        "gethostname",
    ),
    "subprocess": ("Popen",),
    "pty": ("spawn",),
    "sqlite3": ("connect",),
    "urllib": ("Request",),
    "http.client": ("connect", "send"),
    "ftplib": ("connect",),
    "smtplib": ("connect",),
    "imaplib": ("open",),
    "poplib": ("connect",),
    "webbrowser": ("open",),
}

IO_EVENTS: Final[dict[str, str]] = {
    "open": FIX_IO,
    **{f"{module}.{name}": FIX_IO for module, names in _IO.items() for name in names},
    "time.sleep": FIX_SLEEP,  # raised by the C function, so it also finds a `sleep` that was bound early
    "_thread.start_new_thread": FIX_THREAD,
    "_thread.start_joinable_thread": FIX_THREAD,
}

EXEMPT: Final = frozenset(
    {
        "logging",  # stamps records with the time, and its handlers write
        *("linecache", "traceback", "tokenize", "warnings"),  # read source lines to show them
        *("_frozen_importlib", "_frozen_importlib_external", "zipimport"),  # an import reads files, once per process
        "zoneinfo",  # reads time zone data, which counts as a constant
        *("pdb", "bdb", "pydevd", "_pydevd_bundle", "debugpy", "coverage"),  # watch the code, are no part of it
    }
)
"""Top-level modules. A call below one of their frames is theirs."""

TRUSTED: Final[dict[str, frozenset[str]]] = {"asyncio": frozenset({FIX_CLOCK})}
"""Top-level modules -> the fixes of what they may do themselves: a loop reads its clock, and does no I/O for workflow code. See guards.trust."""

EXEMPT_DOTTED: Final = frozenset({"importlib", "importlib._bootstrap", "importlib._bootstrap_external"})
"""Not importlib.metadata nor importlib.resources, which read files on behalf of the caller."""

CONSTANT_FILES: Final = tuple(zoneinfo.TZPATH)
"""Time zone data, read from C without a Python frame to recognise it by."""

STDLIB: Final = sys.stdlib_module_names
"""The standard library does things on behalf of its caller, so its frames are looked through."""
