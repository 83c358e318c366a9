"""What workers run in tests of limits under faults. Every execution is in a file of its own kind: key, begin, end, process, moment."""

from __future__ import annotations

import asyncio
import json
import os
import time

from perdure import Limit, Retry, task, workflow
from tests.fakes.waiting import busy

KEYS = 10
"""So few, and tasks so long, that each key is at its limit even on a machine that is busy with kills."""
LIMIT = 3
PATH = os.environ.get("PERDURE_TEST_INTERVALS", "")
_file = os.open(PATH, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if PATH else -1


def note(**what: object) -> None:
    """One write on a file opened for appending: whole lines, whatever happens to the process."""
    if _file >= 0:
        os.write(_file, json.dumps({**what, "pid": os.getpid(), "at": time.monotonic()}).encode() + b"\n")


# Two tasks share the slots of each key: they wait in lines of their own, so that only the lock of the key keeps two claims apart.
SHARED = Limit(LIMIT, by="key", key="limited")


@task(limit=SHARED, retry=Retry(3, delay="20ms"))
async def limited_held(key: int, number: int, seconds: float) -> int:
    return await _held(key, number, seconds)


@task(limit=SHARED, retry=Retry(3, delay="20ms"))
async def limited_held_too(key: int, number: int, seconds: float) -> int:
    return await _held(key, number, seconds)


async def _held(key: int, number: int, seconds: float) -> int:
    me = os.urandom(8).hex()
    note(key=key, me=me, phase="begin")
    try:
        await busy(seconds)
    finally:
        note(key=key, me=me, phase="end")
    return number


@workflow
async def limited_load(first: int, count: int) -> int:
    held = (limited_held, limited_held_too)
    steps = [held[n // KEYS % 2](n % KEYS, n, 0.2 + (n * 7919 % 40) / 66) for n in range(first, first + count)]
    return len(await asyncio.gather(*steps))
