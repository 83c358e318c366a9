"""Keeps results of `perdure bench --json` and draws them.

    perdure bench --json | python docs/benchmarks.py append
    python docs/benchmarks.py draw

Rates of different machines cannot be compared; the ratio to bare PostgreSQL on the same machine can. So the ratio is drawn.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent / "benchmarks"
RESULTS: Final = HERE / "results.json"
DRAWING: Final = HERE / "ratio.svg"
WORKLOADS: Final = {"fanout": "#2563eb", "chain": "#d97706", "many": "#059669", "dag": "#7c3aed"}
WIDTH: Final = 720
HEIGHT: Final = 320
MARGIN: Final = 48


def append(report: dict[str, Any]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    found: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    found.append({"date": datetime.date.today().isoformat(), "commit": commit.strip(), **report})
    HERE.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def drawing(results: list[dict[str, Any]]) -> str:
    """Ratio to bare PostgreSQL, one line per workload, one point per result."""
    highest = max([r[w]["ratio_to_life3"] for r in results for w in WORKLOADS], default=1.0) * 1.1

    def x(at: int) -> float:
        return MARGIN + at * (WIDTH - 2 * MARGIN) / max(1, len(results) - 1)

    def y(ratio: float) -> float:
        return HEIGHT - MARGIN - ratio / highest * (HEIGHT - 2 * MARGIN)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{MARGIN}" y="20">tasks per second, as a ratio to bare PostgreSQL on the same machine</text>',
    ]
    for step in range(5):
        at = highest * step / 4
        out.append(f'<path d="M{MARGIN} {y(at):.1f}H{WIDTH - MARGIN}" stroke="#e5e7eb"/>')
        out.append(f'<text x="{MARGIN - 6}" y="{y(at) + 4:.1f}" text-anchor="end">{at:.2f}</text>')
    for at, one in enumerate(results):
        label = f"{one['date']} {one['commit']}"
        out.append(f'<text x="{x(at):.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{label}</text>')
    for place, (workload, colour) in enumerate(WORKLOADS.items()):
        points = [(x(at), y(one[workload]["ratio_to_life3"])) for at, one in enumerate(results)]
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
        out.append(f'<text x="{MARGIN + place * 90}" y="{HEIGHT - 8}" fill="{colour}">{workload}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main(words: list[str]) -> int:
    if words == ["append"]:
        append(json.load(sys.stdin))
    elif words == ["draw"]:
        DRAWING.write_text(drawing(json.loads(RESULTS.read_text())))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
