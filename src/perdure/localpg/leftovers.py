"""What private PostgreSQL servers left behind: servers that run without users, and data whose project is gone.

Both are rare: a watcher stops servers without users (cluster_watch.py), and data lies in its project's own directory except for root's, which
the server's user may not be able to reach (unprivileged.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil

from perdure.localpg import unprivileged
from perdure.localpg.cluster import PrivateCluster
from perdure.localpg.sharing import Sharing
from perdure.localpg.unprivileged import PROJECT, Account

_OURS = ("lock", "users", "server", "password")
"""Files that the directory of a private server has, and no other does."""
# psutil ships no types; what is used of it is typed by hand.
_system: Any = psutil


class Leftover(msgspec.Struct, frozen=True):
    directory: str
    kind: Literal["unused server", "data without project"]
    what: str


def find() -> list[Leftover]:
    """Those of this machine that we may see. A server that has users, here or in another process, is none."""
    orphaned = {str(d): Leftover(str(d), "data without project", w) for d, w in _orphaned()}
    unused = (
        Leftover(str(d), "unused server", f"PostgreSQL (pid {pid}) runs in {d} without users")
        for pid, d in _servers()
        if _is_unused(d)
    )
    return [*orphaned.values(), *(u for u in unused if u.directory not in orphaned)]


def remove(leftover: Leftover) -> bool:
    """Stop the server, and for data without a project remove the directory. Returns False, and does nothing, when it is in use again."""
    directory = Path(leftover.directory)
    sharing = _sharing(directory)
    with sharing.alone():
        if sharing.others():
            return False
        if sharing.has_server():
            PrivateCluster.stop_unused(directory)
        if leftover.kind == "data without project":
            # Under the lock: a process that waits for it then finds the directory gone, and makes its own anew.
            shutil.rmtree(directory)
    return True


def _orphaned() -> Iterator[tuple[Path, str]]:
    """Directories below ROOT_STATE whose project is gone, or has its data elsewhere by now."""
    for directory in sorted(unprivileged.ROOT_STATE.glob("pg-*")):
        note = directory / PROJECT
        if not note.is_file() or (_is_ours(directory) and not _is_unused(directory)):
            continue
        project = Path(note.read_text().strip())
        pointer = project / "moved-to"
        if not pointer.is_file() or pointer.read_text().strip() != str(directory):
            yield directory, f"{directory} holds data of {project}, which is gone"


def _servers() -> Iterator[tuple[int, Path]]:
    for process in _system.process_iter(["name", "cwd", "ppid"]):
        cwd: str = process.info["cwd"] or ""
        if process.info["name"] == "postgres" and cwd.endswith("/data") and _is_ours(Path(cwd).parent):
            pid_file = Path(cwd) / "postmaster.pid"
            if pid_file.is_file() and pid_file.read_text().split("\n", 1)[0] == str(process.pid):
                yield process.pid, Path(cwd).parent


def _is_ours(directory: Path) -> bool:
    return all((directory / name).is_file() for name in _OURS)


def _is_unused(directory: Path) -> bool:
    sharing = _sharing(directory)
    with sharing.alone():
        return not sharing.others()


def _sharing(directory: Path) -> Sharing:
    return Sharing(directory, Account(None, None))
