"""`just durations`: write each test file's recorded time into tests/durations.json.

Run it after `just long` on a machine without other work. The times decide which file starts first,
what a gate's slice holds and what fits into `just quick`.
"""

from __future__ import annotations

import json

from tools.checks.parts import DURATIONS
from tools.checks.record import PASSED, ROOT, read_record


def main() -> None:
    # What ran only in part, or failed, says nothing about the whole file.
    latest = {entry.part: entry.seconds for entry in read_record() if entry.result == PASSED}
    known = json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.exists() else {}
    files = {part.removesuffix(" light") for part in latest if part.startswith("tests/")} | set(known)
    table = {
        file: [
            latest.get(f"{file} light", known.get(file, [0.0, 0.0])[0]),
            latest.get(file, known.get(file, [0.0, 0.0])[1]),
        ]
        for file in sorted(files)
        if (ROOT / file).is_file()
    }
    rows = ",\n".join(f"{json.dumps(file)}: {json.dumps(times)}" for file, times in table.items())
    DURATIONS.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
    print(f"{DURATIONS.relative_to(ROOT)}: {len(table)} files")


if __name__ == "__main__":
    main()
