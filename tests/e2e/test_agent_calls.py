"""The check of an agent's model calls notices a call that was made again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from harness.workloads.agent import Calls, check_calls

KILLED, SLOW = 1, 3
"""Processes. The engine of one lost its session once."""
FORGED = {
    "in flight when its process was killed": ("c0 0 1 1\nc0 0 2 2\nc0 1 2 3\n", ""),
    "of a turn that is over": ("c0 0 1 1\nc0 1 1 2\nc0 0 2 3\n", "went back"),
    "of an engine that lost its session": ("c0 0 3 1\nc0 0 3 2\nc0 1 2 3\n", ""),
    "of a process that lived": ("c0 0 2 1\nc0 0 1 2\nc0 1 2 3\n", "its process lived"),
    "twice in a process": ("c0 0 1 1\nc0 0 1 2\nc0 1 2 3\n", "twice"),
    "more often than sessions were lost": ("c0 0 3 1\nc0 0 3 2\nc0 0 3 3\n", "twice"),
    "after it was recorded": ("c0 0 1 1\nc0 1 1 2\nc0 1 2 3\n", "made again"),
}


@pytest.mark.parametrize(("lines", "complaint"), FORGED.values(), ids=FORGED)
def test_the_check_of_calls_notices_a_repeated_one(lines: str, complaint: str, tmp_path: Path) -> None:
    calls = Calls(tmp_path / "calls")
    calls.file.write_text(lines)
    at_kill = Counter({("c0", 1): 1}) if complaint == "made again" else Counter[tuple[str, int]]()

    def check() -> int:
        return check_calls(calls, [at_kill], lambda pid, *_: pid in (KILLED, SLOW), lambda pid: pid == SLOW)

    if not complaint:
        assert check() == 1
        return
    with pytest.raises(AssertionError, match=complaint):
        check()
