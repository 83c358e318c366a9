"""`just mutate`: plants one bug at a time in a copy of the tree and runs the nearest tests. A bug that no test catches is printed.

Nothing in the checkout changes. Each of the parallel slots has a copy of the tree and a PostgreSQL of its own. Results are kept in
.mutation/results.json and used again as long as the mutant, the file it changes and its tests are the same.

Exit code: 0 all caught or explained and every layer at 90 % or more, 1 not so, 2 a mutant that does not apply or tests that do not run.
A sample fails when less than three quarters of it are caught.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from perdure.localpg.cluster import PrivateCluster  # noqa: E402 - after the path
from tests import supervisor  # noqa: E402
from tests.conftest import TEMPLATE  # noqa: E402
from tests.mutation.mutants import LAYERS, Mutant, all_mutants  # noqa: E402
from tests.shared_server import FAST  # noqa: E402

RESULTS: Final = ROOT / ".mutation" / "results.json"
COPIED: Final = (
    "src",
    "tests",
    "tools",
    "docs",
    "examples",
    "proto",
    "deploy",
    "pyproject.toml",
    "README.md",
    "justfile",
    "CHANGELOG.md",
)
RATE_MIN: Final = 90
SAMPLE_RATE_MIN: Final = 75
"""Of a sample. One survivor of twenty is printed, and no reason to stop a change that has nothing to do with it."""
MIGRATIONS: Final = "store/migrations/"
MAKE_TEMPLATE: Final = (
    "import asyncio, sys; from tests.conftest import make_template; asyncio.run(make_template(sys.argv[1]))"
)
"""In a process of its own: migrations are those of the tree."""
PASSED, FAILED, NOT_COLLECTED, NONE_SELECTED = 0, 1, 2, 5
"""Exit codes of pytest."""


@dataclass
class Result:
    id: str
    verdict: str
    """killed, survived, or broken: the tests did not run, or fail without the bug too."""
    by: str
    seconds: float


# -- one slot -----------------------------------------------------------------------------------------------------------


class Slot:
    """A copy of the tree with a PostgreSQL beside it."""

    def __init__(self, directory: Path, timeout_s: float, options: Sequence[str]) -> None:
        self._options = options
        self.tree, self.cluster = directory / "tree", PrivateCluster(directory / "pg", settings=FAST)
        self._timeout_s = timeout_s
        self.tree.mkdir(parents=True)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.tree / name, ignore=shutil.ignore_patterns("__pycache__", ".*cache"))
            elif (ROOT / name).exists():
                shutil.copy2(ROOT / name, self.tree / name)
        self.cluster.start()
        self._make_template()

    def close(self) -> None:
        self.cluster.stop("immediate")

    def try_out(self, m: Mutant) -> Result:
        began = time.monotonic()
        file = self.tree / "src/perdure" / m.file
        sound = file.read_text(encoding="utf-8")
        try:
            self._write(file, apply(m, sound))
            if m.file.startswith(MIGRATIONS):
                self._make_template()
            code, output = self.test(m.tests)
        finally:
            self._write(file, sound)
            if m.file.startswith(MIGRATIONS):
                self._make_template()
        verdicts = {PASSED: "survived", NONE_SELECTED: "survived", FAILED: "killed", NOT_COLLECTED: "killed"}
        verdict = verdicts.get(code, "broken")
        found = re.search(r"^(?:FAILED|ERROR) (\S.*)$", output, re.MULTILINE)
        by = found[1] if found else output[-2000:] if verdict == "broken" else ""
        return Result(m.id, verdict, by if verdict != "survived" else "", round(time.monotonic() - began, 1))

    def _make_template(self) -> None:
        """The migrated database that tests copy."""
        self.cluster.drop_database(TEMPLATE)
        dsn = self.cluster.create_database(TEMPLATE)
        subprocess.run([sys.executable, "-c", MAKE_TEMPLATE, dsn], cwd=self.tree, env=self._env(), check=True)

    def _env(self) -> dict[str, str]:
        return os.environ | {
            "PYTHONPATH": str(self.tree / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",  # a bug of the same size in the same second would not be compiled
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PERDURE_TEST_CLUSTER": str(self.cluster.directory),
            "PERDURE_HYPOTHESIS_SEED": "1",
        }

    def _write(self, file: Path, text: str) -> None:
        """Compiled code is found by size and by seconds, and a mutant may have both in common with its neighbour."""
        file.write_text(text, encoding="utf-8")
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()

    def test(self, tests: str) -> tuple[int, str]:
        """pytest's exit code and output. Too slow counts as failed: many bugs make something wait for ever."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            "--tb=line",
            "--durations=0",
            "--durations-min=60",
            "-p",
            "no:cacheprovider",
            "-p",
            "pytest_asyncio.plugin",
            *self._options,
            *(f"tests/{test}" for test in tests.split()),
        ]
        process = subprocess.Popen(
            command,
            cwd=self.tree,
            env=self._env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=self._timeout_s)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return FAILED, f"FAILED not over after {self._timeout_s:g} s"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # and whatever processes its tests left behind
            except ProcessLookupError:
                pass
            process.communicate()


def apply(m: Mutant, text: str) -> str:
    if text.count(m.old) != 1:
        raise ValueError(
            f"{m.id}: its text occurs {text.count(m.old)} times in src/perdure/{m.file}, not once:\n{m.old}"
        )
    return text.replace(m.old, m.new)


# -- many -----------------------------------------------------------------------------------------------------------------


class Runner:
    def __init__(
        self, jobs: int, timeout_s: float, baseline: bool, remembered: dict[str, Result], options: Sequence[str] = ()
    ) -> None:
        self._jobs, self._timeout_s, self._baseline, self.remembered = jobs, timeout_s, baseline, remembered
        self._options = options
        self._lock = threading.Lock()
        self._digests: dict[str, str] = {}
        self._sound: dict[str, tuple[threading.Lock, list[Result]]] = {}

    def run(self, mutants: Sequence[Mutant]) -> list[Result]:
        self._digests = {m.id: digest(m) for m in mutants}  # of what is copied now, whatever is written meanwhile
        todo = [m for m in mutants if self._digests[m.id] not in self.remembered]
        directory = Path(tempfile.mkdtemp(prefix="perdure-mutate-")).resolve()
        directory.chmod(0o755)
        slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        made: list[Slot] = []
        try:
            for n in range(min(self._jobs, len(todo))):
                made.append(Slot(directory / f"slot{n}", self._timeout_s, self._options))
                slots.put(made[-1])
            pool = ThreadPoolExecutor(self._jobs)
            try:
                list(pool.map(lambda m: self._one(m, slots), todo))
            finally:  # interrupted: those that have begun end, no other begins
                pool.shutdown(cancel_futures=True)
        finally:
            for slot in made:
                slot.close()
            shutil.rmtree(directory, ignore_errors=True)
        return [self.remembered[self._digests[m.id]] for m in mutants]

    def _one(self, m: Mutant, slots: queue.SimpleQueue[Slot]) -> None:
        slot = slots.get()
        try:
            result = self._checked(m, slot)
        finally:
            slots.put(slot)
        with self._lock:
            print(
                f"{result.verdict:9} {result.seconds:6.1f} s  {m.layer}/{m.id}  {result.by.splitlines()[0] if result.by else ''}",
                flush=True,
            )
            self.remembered[self._digests[m.id]] = result
            if not self._options:
                save(self.remembered)

    def _checked(self, m: Mutant, slot: Slot) -> Result:
        """A test that fails without the bug as well has caught nothing."""
        result = slot.try_out(m)
        if result.verdict != "killed" or not self._baseline:
            return result
        with self._lock:
            lock, known = self._sound.setdefault(m.tests, (threading.Lock(), []))
        with lock:
            if not known:
                code, output = slot.test(m.tests)
                known.append(Result("", "sound" if code == PASSED else "broken", output[-2000:], 0))
        return result if known[0].verdict == "sound" else Result(m.id, "broken", known[0].by, result.seconds)


def digest(m: Mutant) -> str:
    parts = [m.id, m.old, m.new, m.tests, (ROOT / "src/perdure" / m.file).read_text(encoding="utf-8")]
    for test in sorted({test.split("::")[0] for test in m.tests.split()}):
        path = ROOT / "tests" / test
        parts += [p.read_text(encoding="utf-8") for p in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def load() -> dict[str, Result]:
    return {key: Result(**r) for key, r in json.loads(RESULTS.read_text()).items()} if RESULTS.exists() else {}


def save(results: dict[str, Result]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    draft = RESULTS.with_suffix(".new")
    draft.write_text(json.dumps({key: asdict(r) for key, r in results.items()}, indent=1))
    draft.replace(RESULTS)


# -- which, and what came out --------------------------------------------------------------------------------------------


def chosen(args: argparse.Namespace) -> list[Mutant]:
    mutants = [m for m in all_mutants() if args.layer in (None, m.layer)]
    if args.only:
        mutants = [m for m in mutants if any(part in f"{m.layer}/{m.id}" for part in args.only)]
    if args.changed is not None:
        listed = subprocess.run(
            ["git", "diff", "--name-only", args.changed, "--", "src"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        mutants = [m for m in mutants if f"src/perdure/{m.file}" in listed]
    if args.sample:
        mutants = random.Random(args.seed).sample(mutants, min(args.sample, len(mutants)))
    return mutants


def report(mutants: Sequence[Mutant], results: Sequence[Result], *, is_sample: bool) -> int:
    print(f"\n{'layer':8} {'mutants':>7} {'killed':>7} {'survived':>8} {'rate':>6}")
    code = 0
    for layer in [*LAYERS, "all"]:
        of = [r.verdict for m, r in zip(mutants, results, strict=True) if layer in (m.layer, "all")]
        if of:
            rate = 100 * of.count("killed") / len(of)
            print(f"{layer:8} {len(of):7} {of.count('killed'):7} {of.count('survived'):8} {rate:5.1f}%")
            if rate < RATE_MIN and len(of) >= 10 and layer != "all":
                code = 1
    for m, r in zip(mutants, results, strict=True):
        if r.verdict == "survived":
            print(
                f"\nsurvived: {m.layer}/{m.id}  src/perdure/{m.file}\n  {m.survives or 'UNEXPLAINED: add a test that catches it'}"
            )
            code = code or int(not m.survives)
        elif r.verdict == "broken":
            print(f"\nbroken: {m.layer}/{m.id}: its tests do not run, or fail without the bug\n{r.by}")
    if is_sample:
        killed = sum(r.verdict == "killed" for r in results)
        return int(100 * killed < SAMPLE_RATE_MIN * len(results))
    return 2 if any(r.verdict == "broken" for r in results) else code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", choices=LAYERS)
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="mutants whose layer/id contains it; may be given again"
    )
    parser.add_argument(
        "--changed", nargs="?", const="HEAD", metavar="REF", help="mutants of files that differ from REF"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="N of them by chance")
    parser.add_argument("--seed", type=int, default=None, help="for --sample; drawn and printed when it is not given")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=100.0, metavar="SECONDS", help="for the tests of one mutant")
    parser.add_argument("--fresh", action="store_true", help="do not use earlier results")
    parser.add_argument("--no-baseline", action="store_true", help="trust that the tests pass without a bug")
    parser.add_argument("--gate", action="store_true", help="only with the tests of `just check`; keeps no results")
    parser.add_argument("--list", action="store_true", help="only list them")
    args = parser.parse_args()
    if args.seed is None:
        args.seed = random.SystemRandom().getrandbits(32)
    mutants = chosen(args)
    if args.list:
        print(*(f"{m.layer}/{m.id}" for m in mutants), sep="\n")
        return 0
    stale = []
    for m in mutants:
        try:
            apply(m, (ROOT / "src/perdure" / m.file).read_text(encoding="utf-8"))
        except (ValueError, OSError) as e:
            stale.append(str(e))
    if stale:
        print(*stale, sep="\n")
        return 2
    if args.sample:
        print(f"{len(mutants)} mutants by chance: --sample {args.sample} --seed {args.seed}")
    supervisor.start()  # its servers and the tests in its slots end with it
    remembered = {} if args.fresh or args.gate else load()
    options = ["--tier=gate"] if args.gate else []
    runner = Runner(args.jobs, args.timeout, not args.no_baseline, remembered, options)
    return report(mutants, runner.run(mutants), is_sample=bool(args.sample))


if __name__ == "__main__":
    sys.exit(main())
