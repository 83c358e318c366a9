"""What workers run in tests of limits under faults. Every execution is in a file of its own kind: key, begin, end, process, moment."""

from __future__ import annotations

import asyncio
import json
import os
import time

from perdure import Limit, Retry, task, workflow

KEYS = 50
LIMIT = 3
PATH = os.environ.get("PERDURE_TEST_INTERVALS", "")
_file = os.open(PATH, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if PATH else -1


def note(**what: object) -> None:
    """One write on a file opened for appending: whole lines, whatever happens to the process."""
    if _file >= 0:
        os.write(_file, json.dumps({**what, "pid": os.getpid(), "at": time.monotonic()}).encode() + b"\n")


@task(limit=Limit(LIMIT, by="key"), retry=Retry(3, initial="20ms"))
async def limited_held(key: int, number: int, seconds: float) -> int:
    me = os.urandom(8).hex()
    note(key=key, me=me, phase="begin")
    try:
        await asyncio.sleep(seconds)
    finally:
        note(key=key, me=me, phase="end")
    return number


@workflow
async def limited_load(first: int, count: int) -> int:
    steps = [limited_held(n % KEYS, n, 0.01 + (n * 7919 % 40) / 1000) for n in range(first, first + count)]
    return len(await asyncio.gather(*steps))
