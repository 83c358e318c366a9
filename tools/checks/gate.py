"""`just check`: the gate. Static checks and tests side by side; the first failed static check ends it.

The last line printed is pytest's closing line.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from tools.checks.changes import list_changes
from tools.checks.parts import (
    ALONE,
    TOUCHED_S_MAX,
    Durations,
    draw_slice,
    fill,
    list_touched,
    read_durations,
    split_parts,
)
from tools.checks.recipes import Outcome, run_recipe
from tools.checks.record import ROOT, Checkout, append_entries, read_checkout, read_record

FIRST: Final = ("lint", "types", "compile", "ui-build")
"""Run side by side before the tests: two answer within seconds, and the tests need the other two."""
BESIDE: Final = ("contracts", "wheel-core")
"""Run beside the tests, one after the other, and then the added recipes."""
STOP_S: Final = 20.0


@dataclass(frozen=True)
class Plan:
    touched: list[str]
    drawn: list[str]
    left_out: list[str]
    """Touched parts that don't fit into TOUCHED_S_MAX."""

    @property
    def added(self) -> list[str]:
        return self.touched + self.drawn


def make_plan(checkout: Checkout, durations: Durations) -> Plan:
    parts = durations.parts()
    wanted = list_touched(list_changes(), parts)
    touched = fill(wanted, parts, TOUCHED_S_MAX)
    others = {part: seconds for part, seconds in parts.items() if part not in touched}
    drawn = draw_slice(checkout.commit, read_record(), others)
    return Plan(touched, drawn, [part for part in wanted if part not in touched + drawn])


def describe_plan(plan: Plan) -> str:
    lines = [f"The gate also runs {len(plan.added)} parts of the long tier."]
    for title, parts in (("touched", plan.touched), ("drawn", plan.drawn)):
        lines += [f"  {title}: {part}" for part in parts]
    if plan.left_out:
        lines.append(f"Touched, but over {TOUCHED_S_MAX} s together, so left to `just long`: {' '.join(plan.left_out)}")
    return "\n".join(lines)


@dataclass
class Tests:
    """The one pytest session. Prints what pytest prints, and remembers the last line."""

    files: Sequence[str]
    closing_line: str = ""
    _process: subprocess.Popen[str] | None = field(default=None, repr=False)
    _is_stopped: bool = False

    def run(self) -> int:
        also = [f"--with-heavy={file}" for file in self.files]
        self._process = subprocess.Popen(
            [sys.executable, "tests/rerun.py", "--side-by-side", "--record", "--tier=gate", *also],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not self._is_stopped:
                print(line, end="", flush=True)
            self.closing_line = line.strip() or self.closing_line
        return self._process.wait()

    def stop(self) -> None:
        self._is_stopped = True
        if self._process is None:
            return
        # As Ctrl-C: pytest ends its workers and tears down fixtures.
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


def run_beside(recipes: Sequence[str], tests: Tests, outcomes: list[Outcome]) -> None:
    for recipe in recipes:
        outcomes.append(run_recipe(recipe))
        if not outcomes[-1].is_passed:
            tests.stop()
            return


def main() -> int:
    began = time.monotonic()
    checkout, durations = read_checkout(), read_durations()
    with ThreadPoolExecutor(len(FIRST)) as pool:
        outcomes = list(pool.map(run_recipe, FIRST))
    if not all(outcome.is_passed for outcome in outcomes):
        return 1
    plan = make_plan(checkout, durations)
    print(describe_plan(plan), flush=True)
    recipes, files = split_parts(plan.added)
    tests = Tests(files)
    beside_recipes = [*BESIDE, *(recipe for recipe in recipes if recipe not in ALONE)]
    beside = threading.Thread(target=run_beside, args=(beside_recipes, tests, outcomes))
    beside.start()
    try:
        code = tests.run()
    except KeyboardInterrupt:
        tests.stop()
        raise
    beside.join()
    if code == 0 and all(outcome.is_passed for outcome in outcomes):
        outcomes += [run_recipe(recipe) for recipe in recipes if recipe in ALONE]
    # rerun.py records each test file by itself.
    append_entries(
        checkout.entry(outcome.recipe, outcome.result, outcome.seconds)
        for outcome in outcomes
        if outcome.recipe in recipes
    )
    failed = [outcome.recipe for outcome in outcomes if not outcome.is_passed]
    took = time.monotonic() - began
    print(f"\n== check: {took / 60:.1f} min" + (f", failed: {', '.join(failed)}" if failed else ""))
    if failed:
        return 1
    print(tests.closing_line, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
