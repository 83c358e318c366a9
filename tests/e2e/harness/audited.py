"""A workflow whose every effect and message is in a ledger. It is started and signalled by audited_load.py."""

from __future__ import annotations

from contextlib import suppress

from harness.flows import blocking_step, step
from perdure import Signal, workflow

NAME = "audited"
WORDS = 2
"""Signals that each run waits for."""
word = Signal("audited_word", str)


@workflow(name=NAME)
async def audited(number: int) -> list[str]:
    last = [await step([])]
    heard = []
    for _ in range(WORDS):
        heard.append(await word.next())
        last = [await blocking_step(last)]
    with suppress(TimeoutError):  # a timer
        heard.append(await word.next(timeout="20ms"))
    await step(last)
    return heard
