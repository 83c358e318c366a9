"""CPU time of a process."""

from __future__ import annotations

import os


def process_cpu_us() -> int:
    """Of this process so far, with that of programs it has started and waited for. (Windows does not count these.)"""
    return int(sum(os.times()[:4]) * 1e6)
