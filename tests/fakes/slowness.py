"""Bounds of processor time follow the speed of the machine: shared machines differ by a factor of two, and from minute to minute."""

from __future__ import annotations

from time import thread_time
from typing import Final

WORK_S: Final = 0.017
"""Processor time of the work in `slowness` on the machine that the bounds were set on."""


def slowness() -> float:
    """How much slower this machine is at this moment than the one that the bounds were set on; at least 1."""
    times: list[float] = []
    for _ in range(3):
        began = thread_time()
        sum(i * i for i in range(200_000))
        times.append(thread_time() - began)
    return max(1.0, min(times) / WORK_S)
