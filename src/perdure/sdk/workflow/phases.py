"""The phases of a live run, each with the data that only it has.

    Running --the code ends--------------------------> Closed
       |    --it fails, and something can be undone--> Unwinding --everything is undone--> Closed
       '    --it ends well, or continues in a new run--------------> HandingOver

Which events a phase takes is a table in instance.py; it ignores all others. In every phase the instance may be evicted, which closes it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.core import commands as cm
from perdure.core import events as ev


class Running:
    """The user's code runs, or waits for events."""

    __slots__ = ("cancel", "main", "timer_fired")
    closed = False

    def __init__(self) -> None:
        self.main: asyncio.Task[Any] | None = None
        """The workflow's own function; None before the run has started."""
        self.cancel: ev.CancelRequested | None = None
        self.timer_fired = 0
        """Number of the event by which a timer last fired."""


class HandingOver:
    """The code has ended well or has asked to continue in a new run. Messages that still arrive go with the command."""

    __slots__ = ("command",)
    closed = True

    def __init__(self, command: cm.ContinueAsNew | cm.CompleteRun) -> None:
        self.command = command


class Unwinding:
    """The code has failed or was cancelled and does not run any more; what it did is being undone."""

    __slots__ = ("end",)
    closed = False

    def __init__(self, end: cm.FailRun | cm.CancelRun) -> None:
        self.end = end


class Closed:
    """The end is decided, or the instance was evicted. Nothing may be recorded any more."""

    __slots__ = ()
    closed = True


CLOSED = Closed()

InstancePhase = Running | HandingOver | Unwinding | Closed
