"""Writes docs/reference/expressions-and-cel.md from the data of this folder: `python -m tests.core.expressions.cel.report`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from tests.core.expressions.cel.cases import DIFFERENCES, FILES, LEFT_OUT, load

PAGE: Final = Path(__file__).parents[4] / "docs" / "reference" / "expressions-and-cel.md"
HEAD: Final = """# Expressions and CEL

[Expressions](expressions.md) have the spellings of the [Common Expression Language](https://cel.dev):
its operators, macros, methods, timestamps and durations. They are not CEL: their values are those of
JSON, a path that leads nowhere is null, and `/` of two integers may give a fraction (`7 / 2` is `3.5`,
in CEL `3`). This page lists the conformance tests of CEL whose outcome differs, all of them. A test
runs every case and compares the outcome with this list.

An expected error counts as passed if the expression is refused, when it is read or when it is
evaluated. The cases are of [google/cel-spec](https://github.com/google/cel-spec), commit
`{commit}`.

<!-- Written by tests/core/expressions/cel/report.py from the data beside it. -->

## Files

Left out are cases that need messages of protobuf.

| file | passed | different | left out |
|---|---|---|---|
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    out = [HEAD.format(commit=load(FILES[0])["commit"])]
    totals = [0, 0, 0]
    for name in FILES:
        found = load(name)
        different = len(DIFFERENCES["different"][name])
        counts = [len(found["cases"]) - different, different, len(found["left_out"])]
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        out.append(f"| {name} | {' | '.join(map(str, counts))} |\n")
    out.append(
        f"| all | {' | '.join(map(str, totals))} |\n\nThese files are left out as a whole:\n\n| file | why |\n|---|---|\n"
    )
    out += [f"| {name} | {why} |\n" for name, why in LEFT_OUT.items()]
    out.append("\n## Why cases differ\n\n| category | cases | what is different |\n|---|---|---|\n")
    counted = Counter(category for cases in DIFFERENCES["different"].values() for category in cases.values())
    out += [f"| {name} | {counted[name]} | {_cell(why)} |\n" for name, why in DIFFERENCES["categories"].items()]
    out.append("\n## Cases that differ\n")
    for name in FILES:
        by_category: dict[str, list[str]] = {}
        for case, category in DIFFERENCES["different"][name].items():
            by_category.setdefault(category, []).append(case)
        if by_category:
            out.append(f"\n### {name}\n\n| category | cases |\n|---|---|\n")
            out += [f"| {c} | {', '.join(f'`{case}`' for case in cases)} |\n" for c, cases in by_category.items()]
    return "".join(out)


if __name__ == "__main__":
    PAGE.write_text(page())
