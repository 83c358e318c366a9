"""How much a worker does at a time."""

from __future__ import annotations

import os
from typing import Final

import msgspec

SLOTS_DEFAULT = 100
THREADS_DEFAULT = min(32, (os.cpu_count() or 1) + 4)
PROCESSES_DEFAULT = os.cpu_count() or 1
RUNS_MAX_DEFAULT = 2_000


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    slots: int = SLOTS_DEFAULT
    """Attempts at a time, of all kinds."""
    threads: int = THREADS_DEFAULT
    """Threads for sync tasks; started when they are needed."""
    processes: int = PROCESSES_DEFAULT
    """Processes for tasks with `process=True`; started when they are needed."""
    runs_max: int = RUNS_MAX_DEFAULT
    """Live workflow runs. The one that was idle longest is forgotten, and replayed when something happens to it."""


DEFAULT_CAPACITY: Final = Capacity()
