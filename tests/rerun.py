"""Run pytest; run each failed test once more by itself. One that passes then is flaky: both outputs are printed, and it does not fail CI.

Usage: `python tests/rerun.py PYTEST-ARGUMENTS...`. The last line printed is pytest's closing line with what the second runs changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from typing import Final

import pytest

RERUNS_MAX: Final = 40
"""More failures than this are no accident of the machine: none of them is run again."""
RERUN_S_MAX: Final = 600
RERUNS_S_MAX: Final = 1200
"""For all of them. Those that are left then have failed."""
TEST_S_MAX: Final = 600
"""A test that takes longer hangs: it fails, and the rest runs."""
LEFT: Final = 6
"""pytest's exit code when processes outlived the tests: see starts.py. No second run makes up for that."""
KINDS: Final = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "error")
"""What pytest's closing line counts, in its order."""


SLOW_S: Final = 60
"""A test that takes longer is named when it ends."""
FILES_SHOWN: Final = 40
CAUSE_CHARS_MAX: Final = 300


class Recorder:
    """Remembers each test's failures, and which tests there were of each kind.

    Names a failed or slow test at once, with its cause and the time since the beginning: a run may be cut off.
    """

    def __init__(self) -> None:
        self.failures: dict[str, list[str]] = {}
        self.ids: dict[str, list[str]] = {}
        self.files: dict[str, float] = defaultdict(float)
        self.began = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.files[report.nodeid.partition("::")[0]] += report.duration
        if report.failed or report.duration > SLOW_S:
            at = f"{report.duration:.0f} s, ended {(time.monotonic() - self.began) / 60:.1f} min after the beginning"
            print(f"\n{'failed' if report.failed else 'slow'}: {report.nodeid} ({at})", flush=True)
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            print(f"  {getattr(crash, 'message', '')[:CAUSE_CHARS_MAX]}", flush=True)
            sections = [f"-- {title}\n{text}" for title, text in report.sections]
            self.failures.setdefault(report.nodeid, []).append("\n".join([report.longreprtext, *sections]))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"{FILES_SHOWN} slowest files")
        for file, took in sorted(self.files.items(), key=lambda item: -item[1])[:FILES_SHOWN]:
            terminalreporter.write_line(f"{took:7.1f}s {file}")
        for kind in KINDS:
            found = terminalreporter.stats.get(kind, [])
            self.ids[kind] = [
                getattr(report, "nodeid", "") for report in found if getattr(report, "count_towards_summary", True)
            ]

    def closing_line(self, flaky: list[str], took_s: float) -> str:
        """As pytest's, but a flaky test counts as flaky and not as failed, erroneous or passed."""
        kept = {kind: [test for test in tests if test not in flaky] for kind, tests in self.ids.items()}
        shown = [f"{len(tests)} {kind}" for kind, tests in kept.items() if tests]
        if flaky:
            shown.append(f"{len(flaky)} flaky")
        minutes = f" ({time.strftime('%H:%M:%S', time.gmtime(took_s)).lstrip('0:') or '0'})" if took_s >= 60 else ""
        return f"{', '.join(shown) or 'no tests ran'} in {took_s:.2f}s{minutes}"


def main(args: list[str]) -> int:
    os.environ.setdefault("PYTEST_TIMEOUT", str(TEST_S_MAX))  # of pytest-timeout
    recorder, began = Recorder(), time.monotonic()
    code = int(pytest.main(args, plugins=[recorder]))
    if code not in (pytest.ExitCode.TESTS_FAILED, LEFT):
        return code
    flaky: list[str] = []
    if len(recorder.failures) > RERUNS_MAX:
        print(f"\n{len(recorder.failures)} tests failed, more than {RERUNS_MAX}: none is run again.")
    else:
        deadline = time.monotonic() + RERUNS_S_MAX
        flaky = [
            test for test, outputs in recorder.failures.items() if _passes_alone(test, "\n".join(outputs), deadline)
        ]
    if flaky:
        print(f"\n== flaky tests: {len(flaky)} failed and then passed alone", *flaky, sep="\n  ")
    print(recorder.closing_line(flaky, time.monotonic() - began), flush=True)
    return code if code == LEFT or len(flaky) < len(recorder.failures) else 0


def _passes_alone(test: str, first: str, deadline: float) -> bool:
    within_s = min(RERUN_S_MAX, deadline - time.monotonic())
    if within_s <= 0:
        print(f"\n== FAILED {test}, not run again: {RERUNS_S_MAX} s are over\n{first}", flush=True)
        return False
    command = [sys.executable, "-m", "pytest", "-q", "--durations=0", "--durations-min=5", test]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False)
        passed, second = run.returncode == 0, run.stdout + run.stderr
    except subprocess.TimeoutExpired as e:
        passed, second = False, f"not over after {within_s:.0f} s\n{e.stdout!r}"
    print(f"\n== {'FLAKY' if passed else 'FAILED TWICE'} {test}")
    print(f"-- the first time, among the others\n{first}\n-- the second time, alone\n{second}", flush=True)
    return passed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
