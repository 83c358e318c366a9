"""Run pytest, and each failed test a second time alone. A test that then passes is flaky and doesn't fail the run.

Usage: `python tests/rerun.py [--side-by-side] [--record] PYTEST-ARGUMENTS...`. With `--record` each file's result and time go
to the record of checks. Flaky tests always do, with the seed that repeats their examples. The last line printed is pytest's
closing line, corrected by the second runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.checks.record import FAILED, FLAKY, PASSED, append_entries, read_checkout  # noqa: E402 - after the path

DEFAULTS: Final = {
    "PYTEST_TIMEOUT": "600",  # of pytest-timeout: a test that takes longer hangs, it fails, and the rest runs
    "PERDURE_SERVER_CHAOS_S": "20",
    "PERDURE_CRASH_RUNS": "600",
    "PERDURE_CRASH_S": "25",
    "PERDURE_BULK_RUNS": "500",
}
"""Long soaks have a short form here; a variable sets another."""
SIDE_BY_SIDE: Final = ("-q", "-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")
"""Most tests wait for processes and timers: four at a time, file by file."""

RERUNS_MAX: Final = 40
"""More failures than this are no accident of the machine: none of them is run again."""
RERUN_S_MAX: Final = 600
RERUNS_S_MAX: Final = 1200
"""For all of them. Those that are left then have failed."""
LEFT: Final = 6
"""pytest's exit code when processes outlived the tests: see starts.py. No second run makes up for that."""
KINDS: Final = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "error")
"""What pytest's closing line counts, in its order."""


SLOW_S: Final = 60
"""A test that takes longer is named when it ends."""
RECORDED_S: Final = 0.8
"""A test that takes longer is in the record by itself."""
FILES_SHOWN: Final = 40
CAUSE_CHARS_MAX: Final = 300


class Recorder:
    """Remembers each test's failures, and which tests there were of each kind.

    Names a failed or slow test at once, with its cause and the time since the beginning: a run may be cut off.
    """

    def __init__(self) -> None:
        self.failures: dict[str, list[str]] = {}
        self.ids: dict[str, list[str]] = {}
        self.seconds: dict[tuple[str, bool], float] = defaultdict(float)
        """(File, whether its heavy tests) -> time they took."""
        self.slow: dict[str, float] = {}
        """Test -> time of its body, if that is long."""
        self.began = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0], "heavy" in report.keywords] += report.duration
        if report.when == "call" and report.duration > RECORDED_S:
            self.slow[report.nodeid] = report.duration
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
        for (file, is_heavy), took in sorted(self.seconds.items(), key=lambda item: -item[1])[:FILES_SHOWN]:
            terminalreporter.write_line(f"{took:7.1f}s {file}{' (heavy)' if is_heavy else ''}")
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
    is_recording = "--record" in args
    first = SIDE_BY_SIDE if "--side-by-side" in args else ()
    args = [*first, *(argument for argument in args if argument not in ("--record", "--side-by-side"))]
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    recorder, began = Recorder(), time.monotonic()
    code = int(pytest.main(args, plugins=[recorder]))
    flaky = _rerun_failed(recorder) if code in (pytest.ExitCode.TESTS_FAILED, LEFT) else []
    _write_record(recorder, flaky, is_recording)
    if code not in (pytest.ExitCode.TESTS_FAILED, LEFT):
        return code
    if flaky:
        print(f"\n== flaky tests: {len(flaky)} failed and then passed alone", *flaky, sep="\n  ")
    print(recorder.closing_line(flaky, time.monotonic() - began), flush=True)
    return code if code == LEFT or len(flaky) < len(recorder.failures) else 0


def _rerun_failed(recorder: Recorder) -> list[str]:
    """The tests that passed alone."""
    if len(recorder.failures) > RERUNS_MAX:
        print(f"\n{len(recorder.failures)} tests failed, more than {RERUNS_MAX}: none is run again.")
        return []
    deadline = time.monotonic() + RERUNS_S_MAX
    return [test for test, outputs in recorder.failures.items() if _passes_alone(test, "\n".join(outputs), deadline)]


def _write_record(recorder: Recorder, flaky: list[str], is_recording: bool) -> None:
    if not flaky and not is_recording:
        return
    checkout, seed = read_checkout(), os.environ.get("PERDURE_HYPOTHESIS_SEED", "")
    entries = [checkout.entry(test, FLAKY, 0, seed) for test in flaky]
    failed = {test.partition("::")[0] for test in recorder.failures if test not in flaky}
    if is_recording:
        entries += [
            checkout.entry(file if is_heavy else f"{file} light", FAILED if file in failed else PASSED, took)
            for (file, is_heavy), took in recorder.seconds.items()
        ]
        entries += [checkout.entry(test, PASSED, took) for test, took in recorder.slow.items()]
    append_entries(entries)


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
