"""Run pytest, and each failed test a second time alone. A test that then passes is flaky and doesn't fail the run.

Usage: `python tests/rerun.py [--side-by-side] [--record] PYTEST-ARGUMENTS...`. With `--record` each file's result and time go
to the record of checks when its last test has ended, so that a run that is stopped keeps them. Flaky tests always do, with the
seed that repeats their examples. The last line printed is pytest's closing line, corrected by the second runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.checks.record import FAILED, FLAKY, KEEP, LIGHT, PASSED, WHOLE, append_entries, read_checkout  # noqa: E402 - after the path

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

    def __init__(self, is_recording: bool) -> None:
        self._checkout = read_checkout() if is_recording else None
        self.failures: dict[str, list[str]] = {}
        self.ids: dict[str, list[str]] = {}
        self.seconds: dict[tuple[str, bool], float] = defaultdict(float)
        """(File, whether its heavy tests) -> time they took."""
        self.slow: dict[str, float] = {}
        """Test -> time of its body, if that is long."""
        self.began = time.monotonic()
        self._left: Counter[str] = Counter()
        """File -> tests that have not ended."""
        self._is_whole = True
        self._with_heavy: set[str] = set()

    def pytest_configure(self, config: pytest.Config) -> None:
        self._is_whole = config.getoption("tier", "all") == "all"
        self._with_heavy = set(config.getoption("with_heavy", ()))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._left = self._left or Counter(file_of(item.nodeid) for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._left = self._left or Counter(map(file_of, ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = file_of(report.nodeid)
        self.seconds[file, "heavy" in report.keywords] += report.duration
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
        if report.when == "teardown":
            self._left[file] -= 1
            if not self._left[file] and not self._failed_in(file):
                self._write([file], PASSED)

    def _failed_in(self, file: str) -> list[str]:
        return [test for test in self.failures if file_of(test) == file]

    def write_rest(self, flaky: Iterable[str]) -> None:
        """Files with failures, once these have run again."""
        passed = set(flaky)
        files = {file_of(test) for test in self.failures}
        failed = {file for file in files if not passed.issuperset(self._failed_in(file))}
        self._write(failed, FAILED)
        self._write(files - failed, PASSED)

    def _write(self, files: Iterable[str], result: str) -> None:
        if self._checkout is None:
            return
        for file in files:
            times = {is_heavy: took for (name, is_heavy), took in self.seconds.items() if name == file}
            parts = {self._name_part(file, is_heavy): took for is_heavy, took in times.items()}
            parts |= {test: took for test, took in self.slow.items() if file_of(test) == file}
            if self._is_whole:
                parts[file + WHOLE] = sum(times.values())
            append_entries(self._checkout.entry(part, result, took) for part, took in parts.items())

    def _name_part(self, file: str, is_heavy: bool) -> str:
        if not is_heavy:
            return file + LIGHT
        return file if self._is_whole or file in self._with_heavy else file + KEEP

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
    recorder, began = Recorder(is_recording), time.monotonic()
    code = int(pytest.main(args, plugins=[recorder]))
    flaky = _rerun_failed(recorder) if code in (pytest.ExitCode.TESTS_FAILED, LEFT) else []
    _record_flaky(flaky)
    recorder.write_rest(flaky)
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


def _record_flaky(flaky: list[str]) -> None:
    if flaky:
        checkout, seed = read_checkout(), os.environ.get("PERDURE_HYPOTHESIS_SEED", "")
        append_entries(checkout.entry(test, FLAKY, 0, seed) for test in flaky)


def file_of(test: str) -> str:
    return test.partition("::")[0]


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
