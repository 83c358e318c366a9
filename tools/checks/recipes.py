"""Runs one recipe of the justfile and prints its output only if it fails."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass

from tools.checks.record import FAILED, PASSED, ROOT


@dataclass(frozen=True)
class Outcome:
    recipe: str
    is_passed: bool
    seconds: float

    @property
    def result(self) -> str:
        return PASSED if self.is_passed else FAILED


def run_recipe(recipe: str, *arguments: str) -> Outcome:
    began = time.monotonic()
    done = subprocess.run(
        ["just", recipe, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    outcome = Outcome(recipe, done.returncode == 0, time.monotonic() - began)
    output = "" if outcome.is_passed else f"\n{done.stdout}"
    print(f"== {recipe}: {outcome.result} in {outcome.seconds:.0f} s{output}", flush=True)
    return outcome
