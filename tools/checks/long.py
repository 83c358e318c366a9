"""`just long`: everything, part by part. Start it again and it skips the parts that passed on this tree.

Usage: `just long [--again] [--list] [PART...]`. A part is a recipe or a group of test files; PART is
the beginning of its name. Each result goes to the record (tools/checks/record.py) when its part ends.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from tools.checks.parts import RECIPES, WORKERS, Durations, read_durations
from tools.checks.recipes import run_recipe
from tools.checks.record import (
    FAILED,
    FLAKY,
    PASSED,
    ROOT,
    Checkout,
    append_entries,
    read_checkout,
    read_record,
)

STATIC: Final = ("lint", "types", "contracts", "ui-build")
GROUP_S_MAX: Final = 300.0
"""Wall time of a group of test files: what a stopped run loses at most."""
UNKNOWN_S: Final = 20.0
"""Assumed for a test file without a recorded time."""
SLOWEST_SHOWN: Final = 10


@dataclass(frozen=True)
class Part:
    name: str
    files: tuple[str, ...] = ()
    """None for a recipe."""


def list_parts(durations: Durations) -> list[Part]:
    recipes = [Part(name) for name in (*STATIC, *RECIPES)]
    return [*recipes, *group_test_files(durations)]


def group_test_files(durations: Durations) -> Iterator[Part]:
    """Files of one folder, in groups of at most five minutes."""
    files = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py"))
    files = [file for file in files if "node_modules" not in file]
    for folder, found in groupby(files, key=lambda file: file.split("/")[1]):
        groups: list[list[str]] = [[]]
        seconds = 0.0
        for file in found:
            known = durations.light.get(file, UNKNOWN_S) + durations.heavy.get(file, 0.0)
            if groups[-1] and seconds + known > GROUP_S_MAX * WORKERS:
                groups.append([])
                seconds = 0.0
            groups[-1].append(file)
            seconds += known
        for number, group in enumerate(groups, 1):
            name = f"tests/{folder}" + (f" {number}/{len(groups)}" if len(groups) > 1 else "")
            yield Part(name, tuple(group))


@dataclass(frozen=True)
class Result:
    part: Part
    result: str
    seconds: float


def run_part(part: Part, checkout: Checkout) -> Result:
    began = time.monotonic()
    if not part.files:
        outcome = run_recipe(part.name)
        append_entries([checkout.entry(part.name, outcome.result, outcome.seconds)])
        return Result(part, outcome.result, outcome.seconds)
    print(f"\n== {part.name}: {len(part.files)} files", flush=True)
    command = [sys.executable, "tests/rerun.py", "--side-by-side", "--record", *part.files]
    code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode
    result = Result(part, FAILED if code else PASSED, time.monotonic() - began)
    print(f"== {part.name}: {result.result} in {result.seconds:.0f} s", flush=True)
    append_entries([checkout.entry(part.name, result.result, result.seconds)])
    return result


def list_done(checkout: Checkout) -> set[str]:
    """Parts whose last result on this tree is good."""
    results = {entry.part: entry.result for entry in read_record() if entry.tree == checkout.tree}
    return {part for part, result in results.items() if result in (PASSED, FLAKY)}


def describe_results(results: Sequence[Result], skipped: int, seconds: float) -> str:
    ranked = sorted(results, key=lambda result: -result.seconds)[:SLOWEST_SHOWN]
    failed = [result.part.name for result in results if result.result == FAILED]
    closing = [f"{len(results)} passed, 0 failed"]
    if failed:
        closing = [
            f"Failed: {', '.join(failed)}. Run it again with `just long '{failed[0]}'`.",
            f"{len(results) - len(failed)} passed, {len(failed)} failed",
        ]
    return "\n".join(
        [
            f"\n== long: {len(results)} parts in {seconds / 60:.1f} min, {skipped} had passed before",
            f"The {len(ranked)} slowest:",
            *(f"  {result.seconds:6.0f} s  {result.result}  {result.part.name}" for result in ranked),
            *closing,
        ]
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="just long", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="only parts with this beginning")
    parser.add_argument("--again", action="store_true", help="run parts that passed before, too")
    parser.add_argument("--list", action="store_true", help="list the parts")
    given = parser.parse_args(arguments)
    chosen = [
        part for part in list_parts(read_durations()) if not given.parts or part.name.startswith(tuple(given.parts))
    ]
    if not chosen:
        parser.error(f"unknown part: {' '.join(given.parts)}. List the parts with `just long --list`.")
    if given.list:
        print(*(part.name for part in chosen), sep="\n")
        return 0
    checkout = read_checkout()
    done = set() if given.again else list_done(checkout)
    began = time.monotonic()
    results = [run_part(part, checkout) for part in chosen if part.name not in done]
    skipped = sum(part.name in done for part in chosen)
    print(describe_results(results, skipped, time.monotonic() - began), flush=True)
    return int(any(result.result == FAILED for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
