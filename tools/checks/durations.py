"""`just durations`: write recorded times into tests/durations.json.

Run it after `just long` on a machine without other work. The times decide which tests are heavy
(tests/tiers.py), which file starts first, what a gate's slice holds and what fits into `just quick`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.tiers import SLOW_S
from tools.checks.parts import DURATIONS
from tools.checks.record import KEEP, LIGHT, PASSED, ROOT, WHOLE, read_record


def merge_durations(known: dict[str, Any], recorded: Mapping[str, float]) -> dict[str, Any]:
    """Recorded times replace known ones. Files and tests that no longer exist are left out.

    A slow test that became fast is in no later record, so its file's record removes it.
    """
    files: dict[str, list[float]] = dict(known["files"])
    slow: dict[str, float] = dict(known["slow"])
    for part, seconds in recorded.items():
        name = part.removesuffix(LIGHT)
        if "::" in part or not name.startswith("tests/") or part.endswith((KEEP, WHOLE)):
            continue
        times = files.setdefault(name, [0.0, 0.0])
        files[name] = [times[0], seconds] if name == part else [seconds, times[1]]
        if name == part:  # slow tests are heavy
            slow = {test: took for test, took in slow.items() if not test.startswith(f"{name}::")}
    slow |= {part: seconds for part, seconds in recorded.items() if "::" in part and seconds > SLOW_S}
    exists = {file for file in files if (ROOT / file).is_file()}
    return {
        "files": {file: files[file] for file in sorted(exists)},
        "slow": {test: slow[test] for test in sorted(slow) if test.partition("::")[0] in exists},
    }


def main() -> None:
    known = {"files": {}, "slow": {}}
    if DURATIONS.exists():
        known = json.loads(DURATIONS.read_text(encoding="utf-8"))
    # A failed file's time says nothing about the whole file.
    recorded = {entry.part: entry.seconds for entry in read_record() if entry.result == PASSED}
    table = merge_durations(known, recorded)
    DURATIONS.write_text(f"{json.dumps(table, indent=0)}\n", encoding="utf-8")
    print(f"{DURATIONS.relative_to(ROOT)}: {len(table['files'])} files, {len(table['slow'])} slow tests")


if __name__ == "__main__":
    main()
