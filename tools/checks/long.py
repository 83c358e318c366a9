"""`just long`: everything, part by part. Start it again and it skips the parts that passed on this tree.

Usage: `just long [--again] [--list] [PART...]`. A part is a recipe or a test file; PART is the beginning
of its name. Each result goes to the record (tools/checks/record.py) when its part ends.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tools.checks.parts import ALONE, RECIPES
from tools.checks.recipes import run_recipe
from tools.checks.record import (
    FAILED,
    FLAKY,
    PASSED,
    ROOT,
    WHOLE,
    Checkout,
    append_entries,
    read_checkout,
    read_record,
)

FIRST: Final = ("lint", "types", "contracts", "compile", "ui-build")
"""These run each time: tests need what the last two make."""
SLOWEST_SHOWN: Final = 10


@dataclass(frozen=True)
class Result:
    part: str
    result: str
    seconds: float


def list_parts() -> list[str]:
    return [*RECIPES, *list_test_files()]


def list_test_files() -> list[str]:
    found = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py"))
    return [file for file in found if "node_modules" not in file and file not in ALONE.values()]


def run_recipes(names: Sequence[str], checkout: Checkout) -> list[Result]:
    results = []
    for name in names:
        outcome = run_recipe(name)
        append_entries([checkout.entry(name, outcome.result, outcome.seconds)])
        results.append(Result(name, outcome.result, outcome.seconds))
    return results


def run_files(files: Sequence[str], checkout: Checkout) -> list[Result]:
    """In one session of pytest, which records each file when it ends."""
    if not files:
        return []
    began = int(time.time())
    command = [sys.executable, "tests/rerun.py", "--side-by-side", "--record", *files]
    code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode
    results = [
        Result(entry.part.removesuffix(WHOLE), entry.result, entry.seconds)
        for entry in read_record()
        if entry.part.endswith(WHOLE) and entry.tree == checkout.tree and entry.at >= began
    ]
    if code and not any(result.result == FAILED for result in results):
        results.append(Result("tests", FAILED, time.time() - began))
    return results


def list_done(checkout: Checkout) -> set[str]:
    """Parts whose last result on this tree is good."""
    results = {entry.part: entry.result for entry in read_record() if entry.tree == checkout.tree}
    good = {part for part, result in results.items() if result in (PASSED, FLAKY)}
    return {part.removesuffix(WHOLE) for part in good if part in RECIPES or part.endswith(WHOLE)}


def describe_results(results: Sequence[Result], skipped: int, seconds: float) -> str:
    ranked = sorted(results, key=lambda result: -result.seconds)[:SLOWEST_SHOWN]
    failed = [result.part for result in results if result.result == FAILED]
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
            *(f"  {result.seconds:6.0f} s  {result.result}  {result.part}" for result in ranked),
            *closing,
        ]
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="just long", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="only parts with this beginning")
    parser.add_argument("--again", action="store_true", help="run parts that passed before, too")
    parser.add_argument("--list", action="store_true", help="list the parts")
    given = parser.parse_args(arguments)
    chosen = [part for part in list_parts() if not given.parts or part.startswith(tuple(given.parts))]
    if not chosen:
        parser.error(f"unknown part: {' '.join(given.parts)}. List the parts with `just long --list`.")
    if given.list:
        print(*chosen, sep="\n")
        return 0
    began = time.monotonic()
    if not all(run_recipe(name).is_passed for name in FIRST):
        return 1
    checkout = read_checkout()
    done = set() if given.again else list_done(checkout)
    todo = [part for part in chosen if part not in done]
    results = run_recipes([part for part in todo if part in RECIPES], checkout)
    results += run_files([part for part in todo if part not in RECIPES], checkout)
    print(describe_results(results, len(chosen) - len(todo), time.monotonic() - began), flush=True)
    return int(any(result.result == FAILED for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
