"""`just quick [PATH...]`: lint, and the tests nearest to what changed, within a minute.

Without a path, the files changed since HEAD count, or those of HEAD's commit if the tree is clean.
Tests are near if their name shares the module's name, if they import it or if they test its layer.
Recorded times decide how many of them fit. Heavy tests never run here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from tools.checks.changes import list_uncommitted
from tools.checks.parts import read_durations
from tools.checks.recipes import run_recipe
from tools.checks.record import ROOT

TESTS_S_MAX: Final = 40.0
"""Recorded seconds of the chosen tests. Two processes share them."""
UNKNOWN_S: Final = 5.0
SIDE_BY_SIDE_S: Final = 8.0
"""From here on a second process is worth its start."""
NAMED, MIRRORED, IMPORTS, IN_FOLDER, IN_LAYER = 0, 1, 2, 3, 4
"""How near a test file is."""
ABOUT_TEXT: Final = ("docs", "tools", "examples", "proto", "README.md", "CHANGELOG.md")
TEXT_TESTS: Final = ("tests/docs/", "tests/project/")


def module_of(source: Path) -> str:
    """`src/perdure/core/retry.py` -> `perdure.core.retry`"""
    parts = source.with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def rank_tests(changed: Iterable[str], tests: dict[str, str]) -> dict[str, int]:
    """Test file -> how near it is to a changed file. `tests` holds their texts."""
    nearest: dict[str, int] = {}
    for file, rank in chain.from_iterable(find_near(Path(path), tests) for path in changed):
        nearest[file] = min(rank, nearest.get(file, rank))
    return nearest


def find_near(path: Path, tests: dict[str, str]) -> Iterator[tuple[str, int]]:
    if str(path) in tests:
        yield str(path), NAMED
    elif path.parts[:2] == ("src", "perdure") and path.suffix in (".py", ".sql"):
        yield from find_near_source(path, tests)
    elif path.parts[0] == "tests" and path.suffix == ".py":
        imported = re.compile(rf"\b{re.escape('.'.join(path.with_suffix('').parts))}\b")
        yield from ((file, IMPORTS) for file, text in tests.items() if imported.search(text))
    elif path.parts[0] in ABOUT_TEXT:
        yield from ((file, IN_FOLDER) for file in tests if file.startswith(TEXT_TESTS))


def find_near_source(path: Path, tests: dict[str, str]) -> Iterator[tuple[str, int]]:
    module, layer = module_of(path), path.parts[2]
    parent, _, name = module.rpartition(".")
    imported = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(parent)} import [^\n]*\b{name}\b")
    for file, text in tests.items():
        is_mirror = f"/{layer}/" in file
        if Path(file).stem == f"test_{name}":
            yield file, NAMED if is_mirror else MIRRORED
        elif imported.search(text):
            yield file, MIRRORED if is_mirror else IMPORTS
        elif is_mirror:
            yield file, IN_FOLDER if name.rstrip("s") in Path(file).stem else IN_LAYER


def choose_tests(near: dict[str, int], seconds: dict[str, float]) -> list[str]:
    """The nearest first, cheap before slow, while they fit. At least one."""
    chosen: list[str] = []
    left = TESTS_S_MAX
    for file in sorted(near, key=lambda file: (near[file], seconds.get(file, UNKNOWN_S))):
        took = seconds.get(file, UNKNOWN_S)
        if took <= left or not chosen:
            chosen.append(file)
            left -= took
    return chosen


def read_tests() -> dict[str, str]:
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if "node_modules" not in file.parts]
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}


def main(paths: list[str]) -> int:
    changed = [str(Path(path).resolve().relative_to(ROOT)) for path in paths] or list_uncommitted()
    if not run_recipe("lint").is_passed:
        return 1
    if any(path.startswith("ui/") for path in changed) and not run_recipe("ui-test").is_passed:
        return 1
    light = read_durations().light
    near = rank_tests(changed, read_tests())
    chosen = choose_tests(near, light)
    if not chosen:
        if any(path.startswith("ui/") for path in changed):
            return 0
        print(f"No test is near {', '.join(changed[:5])}. Run `just check` before you commit.")
        return 0
    left_out = f", {len(near) - len(chosen)} more don't fit into a minute" if len(near) > len(chosen) else ""
    print(f"{len(chosen)} test files near {len(changed)} changed files{left_out}", flush=True)
    expected = sum(light.get(file, UNKNOWN_S) for file in chosen)
    workers = ["-n", "2", "--dist", "loadfile"] if expected > SIDE_BY_SIDE_S else ["-n", "0"]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not heavy", "--durations=0", "--durations-min=5"]
    code = subprocess.run([*command, *workers, *chosen], cwd=ROOT, check=False).returncode
    return 0 if code == 5 else code  # 5: every chosen test is heavy


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
