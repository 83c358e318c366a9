"""Which files a landing changes."""

from __future__ import annotations

import os
import subprocess
from typing import Final

from tools.checks.record import run_git

LANDING_HOURS: Final = 4
"""Commits this close to HEAD belong to one landing when nothing else tells where it began."""
COMMITS_MAX: Final = 200


def list_changes() -> list[str]:
    """Files that differ from the landing's base, committed or not, with deleted and untracked ones."""
    changed = run_git("diff", "--name-only", find_base())
    untracked = run_git("ls-files", "--others", "--exclude-standard")
    return sorted({*changed.splitlines(), *untracked.splitlines()})


def list_uncommitted() -> list[str]:
    """Files changed since HEAD; the files of HEAD's commit if there are none."""
    changed = run_git("diff", "--name-only", "HEAD").splitlines()
    changed += run_git("ls-files", "--others", "--exclude-standard").splitlines()
    return changed or run_git("show", "--format=", "--name-only", "HEAD").splitlines()


def find_base() -> str:
    """The commit a landing starts from.

    PERDURE_CHECKS_BASE if it names a commit. Else the upstream branch, if HEAD is ahead of it. Else, as
    in a clean clone of what landed, the last commit made four hours before HEAD.
    """
    head = run_git("rev-parse", "HEAD")
    for candidate in (os.environ.get("PERDURE_CHECKS_BASE"), "@{upstream}"):
        if candidate and (base := find_ancestor(candidate)) not in (None, head):
            return base
    commits = run_git("log", "--first-parent", f"-{COMMITS_MAX}", "--format=%H %ct").splitlines()
    times = [(commit, int(at)) for commit, at in map(str.split, commits)]
    began = times[0][1] - LANDING_HOURS * 3600
    return next((commit for commit, at in times if at < began), times[-1][0])


def find_ancestor(name: str) -> str | None:
    """None for an unknown name, as the base of a new branch is on GitHub."""
    try:
        return run_git("merge-base", "HEAD", name)
    except subprocess.CalledProcessError:
        return None
