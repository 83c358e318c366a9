"""Exceptions that one thread raises in another, between two of its instructions. A call that blocks outside Python, such as a sleep, is not cut
short: the exception arrives afterwards."""

from __future__ import annotations

import ctypes
import threading
from typing import Final

_JUMPS: Final = 1_000
"""An exception arrives at the next jump backwards; this is a bound, should the interpreter not deliver it."""


class _Instead(BaseException):
    """Raised in place of one that is taken back."""


def raise_in(thread_id: int, kind: type[BaseException]) -> None:
    """Raise it in a thread at its next instruction. One that has not arrived there yet is replaced."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(kind))


def take_back() -> None:
    """In the thread itself: what was raised in it and has not arrived will not arrive.

    CPython notes for the whole interpreter that an exception is under way, and forgets it only when one arrives. To put nothing in place of the exception
    would leave that note for good: every thread then looks for exceptions all the time, and on Python 3.11 a function that is traced, as by a debugger or
    by coverage, does not get past its first line. So another exception is put in its place, and is caught here.
    """
    try:
        raise_in(threading.get_ident(), _Instead)
        for _ in range(_JUMPS):
            pass
    except _Instead:
        pass
