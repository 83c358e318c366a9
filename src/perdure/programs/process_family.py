"""The descendants of a process."""

from __future__ import annotations

from typing import Any

import psutil

# psutil ships no types; what is used of it is typed by hand.
_system: Any = psutil


def kill_family(pid: int, *, itself: bool) -> None:
    """SIGKILL the descendants of a process, in any session or group, and the process. Each is stopped first, so that none starts another
    meanwhile."""
    found: list[Any] = []
    while fresh := [p for p in _family(pid, itself) if p not in found]:
        found += fresh
        for process in fresh:
            _tell(process, "suspend")
    for process in found:
        _tell(process, "kill")


def _family(pid: int, itself: bool) -> list[Any]:
    try:
        process = _system.Process(pid)
        return [*([process] if itself else []), *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _tell(process: Any, act: str) -> None:
    try:
        getattr(process, act)()
    except psutil.Error:
        pass  # gone since, or another user's
