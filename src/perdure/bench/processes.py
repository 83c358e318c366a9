"""CPU time and memory of the processes at work: this one, which is engine, worker and client, and the server's."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import psutil

SAMPLE_S: Final = 0.02
# psutil ships no types; what is used of it is typed by hand.
_system: Any = psutil


class CpuSeconds(msgspec.Struct, frozen=True):
    """CPU time used so far. `postgres` is None where the server's processes cannot be seen."""

    engine: float
    postgres: float | None

    def since(self, before: CpuSeconds) -> CpuSeconds:
        if self.postgres is None or before.postgres is None:
            return CpuSeconds(self.engine - before.engine, None)
        return CpuSeconds(self.engine - before.engine, self.postgres - before.postgres)


class Processes:
    """`backend_pid` is the pid of any connection's server process on this machine; its parent is the server."""

    def __init__(self, backend_pid: int | None) -> None:
        self._engine = _system.Process()
        self._postmaster = _postmaster(backend_pid)

    def cpu(self) -> CpuSeconds:
        times = self._engine.cpu_times()
        return CpuSeconds(times.user + times.system, self._postgres_s())

    def rss_mb(self) -> float:
        return float(self._engine.memory_info().rss) / 2**20

    def _postgres_s(self) -> float | None:
        """The server, its live children, and those that have ended: the system adds an ended child's time to its parent's."""
        if self._postmaster is None:
            return None
        while True:
            before = self._postmaster.cpu_times()
            live = sum(_own_s(child) for child in self._postmaster.children())
            after = self._postmaster.cpu_times()
            ended = after.children_user + after.children_system
            # A child that ended between the two readings would be counted twice, or not at all.
            if ended == before.children_user + before.children_system:
                return float(after.user + after.system + ended + live)


class PeakRss:
    """The most memory this process held inside the `with`, in MB, by looking every SAMPLE_S from a thread.

    The system's own high-water mark would be exact, but it cannot be reset and begins with that of the parent process.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="perdure-bench-rss", daemon=True)
        self.mb = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self.mb = max(self.mb, self._processes.rss_mb())

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.mb = max(self.mb, self._processes.rss_mb())


def cores() -> int:
    """Cores this process may use, which a container may have fewer of than the machine."""
    process = _system.Process()
    return len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else int(_system.cpu_count() or 1)


def filesystem_of(path: str) -> str:
    """The type of the file system a path is on: on tmpfs an fsync costs nothing and proves nothing."""
    mounts = [p for p in _system.disk_partitions(all=True) if path.startswith(p.mountpoint.rstrip("/") + "/")]
    return str(max(mounts, key=lambda p: len(p.mountpoint)).fstype) if mounts else "unknown"


def _postmaster(backend_pid: int | None) -> Any:
    """None where the pid is not that of a server process here, as when the port leads into a container."""
    try:
        backend = _system.Process(backend_pid) if backend_pid is not None else None
        return backend.parent() if backend is not None and backend.name().startswith("postgres") else None
    except psutil.Error:
        return None


def _own_s(process: Any) -> float:
    try:
        times = process.cpu_times()
        return float(times.user + times.system)
    except psutil.NoSuchProcess:
        return 0.0
