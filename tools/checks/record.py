"""The record of checks: which part ran on which tree, how it ended and how long it took.

One JSON line per result, in a file outside the checkout, so that a clean clone finds it, too. It is a
cache: without it, `just long` starts from its first part and the gate draws its slice by the commit.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PASSED, FAILED, FLAKY = "passed", "failed", "flaky"
LIGHT, KEEP, WHOLE = " light", " keep", " whole"
"""After the name of a test file: which of its tests ran. Nothing: its heavy ones."""
LINES_MAX: Final = 20_000
"""The record keeps its newer half when it grows beyond this."""


@dataclass(frozen=True)
class Entry:
    part: str
    """A recipe, a test file, with LIGHT, KEEP or WHOLE after it, or the ID of a slow or flaky test."""
    result: str
    seconds: float
    commit: str
    tree: str
    """Hash of the content that was checked. Uncommitted changes count, so it differs from the commit's."""
    at: int = 0
    seed: str = ""
    """PERDURE_HYPOTHESIS_SEED of a flaky test."""


def locate_record() -> Path:
    given = os.environ.get("PERDURE_CHECKS_RECORD")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else cache / "perdure-checks" / "record.jsonl"


def read_record() -> list[Entry]:
    """Oldest first. A line cut off by a crash is skipped."""
    entries = []
    try:
        lines = locate_record().read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            entries.append(Entry(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return entries


def append_entries(entries: Iterable[Entry]) -> None:
    lines = [json.dumps(asdict(entry)) for entry in entries]
    if not lines:
        return
    file = locate_record()
    file.parent.mkdir(parents=True, exist_ok=True)
    # One write in append mode, so that lines of processes running side by side don't mix.
    with file.open("ab", buffering=0) as record:
        record.write("".join(f"{line}\n" for line in lines).encode())
    kept = file.read_text(encoding="utf-8").splitlines()
    if len(kept) > LINES_MAX:
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text("".join(f"{line}\n" for line in kept[-LINES_MAX // 2 :]), encoding="utf-8")
        draft.replace(file)


@dataclass(frozen=True)
class Checkout:
    """What is being checked."""

    commit: str
    tree: str

    def entry(self, part: str, result: str, seconds: float, seed: str = "") -> Entry:
        took = round(seconds, 1)
        return Entry(part, result, took, self.commit, self.tree, int(time.time()), seed)


def read_checkout() -> Checkout:
    """Hash the working tree as `git add --all` would store it, without touching the real index."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = os.environ | {"GIT_INDEX_FILE": str(Path(scratch, "index"))}
        run_git("read-tree", "HEAD", environment=environment)
        run_git("add", "--all", environment=environment)
        tree = run_git("write-tree", environment=environment)
    return Checkout(run_git("rev-parse", "HEAD"), tree)


def run_git(*words: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()
