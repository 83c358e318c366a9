"""Edits of the base as files, and the report about each."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
from typing import Any

from tests.check.conftest import BASE, Runs
from tests.check.corpus import CODE, Edit
from tests.cli.live import Done

_numbers = itertools.count(1)


def edited(edit: Edit, directory: Path) -> Path:
    text = (BASE / edit.file).read_text()
    for old, new in edit.changes:
        assert text.count(old) == 1, f"{edit.name}: {old!r} is {text.count(old)} times in {edit.file}"
        text = text.replace(old, new)
    # Modules of one process need names of their own.
    name = f"orders_{next(_numbers)}.py" if edit.file == CODE else edit.file
    path = directory / name
    path.write_text(text)
    importlib.invalidate_caches()
    return path


def checked(runs: Runs, path: Path, *words: str) -> tuple[Done, dict[str, Any]]:
    done = runs.cli("check", str(path), "--json", *words)
    assert done.out, done.err
    return done, json.loads(done.out)
