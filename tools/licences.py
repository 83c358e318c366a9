"""`just licences`: under which licences the dependencies of perdure-core and perdure are, from what is installed here; with the versions of uv.lock.

Usage: `python tools/licences.py [FILE]`. Writes Markdown; fails when a package that is always installed has a licence that is not in ALLOWED.
tests/project/test_licences.py holds the same rule.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
OURS: Final = ("perdure-core", "perdure")
ALLOWED: Final = {
    "Apache-2.0",
    "MIT",
    "MIT-0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "0BSD",
    "ISC",
    "PSF-2.0",
    "Python-2.0",
    "MPL-2.0",
    "LGPL-3.0-only",
    "Unlicense",
    "Zlib",
}
"""Permissive ones, and those whose copyleft ends at their own files (MPL, LGPL): a program under Apache-2.0 may depend on them."""
WORDS: Final = (
    (r"\bapache(?: software)?(?: licen[cs]e)?\b.*2|^apache-2|^apache 2|apache software license", "Apache-2.0"),
    (r"mozilla public license 2|^mpl-?2", "MPL-2.0"),
    (r"\blgpl.*3|lesser general public license v3", "LGPL-3.0-only"),
    (r"2-clause|simplified bsd", "BSD-2-Clause"),
    (r"3-clause|new bsd|^bsd$|bsd license|^bsd-3|modified bsd|osi approved :: bsd", "BSD-3-Clause"),
    (r"^mit\b|mit license|:: mit", "MIT"),
    (r"\bisc\b", "ISC"),
    (r"python software foundation|^psf", "PSF-2.0"),
    (r"unlicense", "Unlicense"),
)
"""What packages wrote before there were SPDX expressions."""

ELSEWHERE: Final = {"colorama": "BSD-3-Clause", "httpx2-jsfetch": "BSD-3-Clause", "pywin32": "PSF-2.0"}
"""Packages that only other platforms install: read by hand."""


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    licences: tuple[str, ...]
    """SPDX names; empty: unknown. All of them apply, but for those of `OR`, of which one does."""
    said: str
    """As the package says it."""
    of: str
    """What installs it: `perdure-core`, `perdure`, or the extras that do."""

    @property
    def is_required(self) -> bool:
        return self.of in OURS

    @property
    def is_allowed(self) -> bool:
        return bool(self.licences) and set(self.licences) <= ALLOWED


def packages() -> list[Package]:
    """Every dependency, by what brings it first: perdure-core, perdure, an extra."""
    locked = {p["name"]: p for p in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    found: dict[str, str] = {}
    for ours in OURS:
        for name in _below(locked, locked[ours].get("dependencies", ())):
            found.setdefault(name, ours)
    extras: dict[str, list[str]] = {}
    for ours in OURS:
        for extra, needed in locked[ours].get("optional-dependencies", {}).items():
            for name in _below(locked, needed):
                if name not in found and extra not in extras.setdefault(name, []):
                    extras[name].append(extra)
    found |= {name: "extra " + ", ".join(sorted(of)) for name, of in extras.items() if of}
    return [_package(name, of, locked) for name, of in sorted(found.items()) if name not in OURS]


def _below(locked: dict[str, Any], needed: Any) -> Iterator[str]:
    """The packages of these dependencies, and theirs."""
    seen: set[str] = set()
    left = list(needed)
    while left:
        one = left.pop()
        asked = [one["name"], *(f"{one['name']}[{extra}]" for extra in one.get("extra", ()))]
        if seen.issuperset(asked):
            continue
        seen.update(asked)
        package = locked[one["name"]]
        left += package.get("dependencies", ())
        for extra in one.get("extra", ()):
            left += package.get("optional-dependencies", {}).get(extra, ())
    return (name for name in sorted(seen) if "[" not in name)


def _package(name: str, of: str, locked: dict[str, Any]) -> Package:
    version = locked[name].get("version", "")
    try:
        about: Any = metadata(name)
    except PackageNotFoundError:
        known = ELSEWHERE.get(name, "")
        return Package(name, version, (known,) if known else (), "not installed here", of)
    said = about.get("License-Expression") or ""
    if said:
        return Package(name, version, _of_expression(said), said, of)
    classifiers = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier", ()) if c.startswith("License :: ")]
    first = next((line.strip() for line in (about.get("License") or "").splitlines() if line.strip()), "")
    words = [w for w in (first, *classifiers) if w and w not in ("OSI Approved", "UNKNOWN")]
    named = next((n for n in (_named(w) for w in words) if n), "")
    return Package(name, version, (named,) if named else (), "; ".join(words)[:80], of)


def _of_expression(said: str) -> tuple[str, ...]:
    """Of alternatives the one that is allowed, where one is."""
    needed: list[str] = []
    for part in re.split(r"\s+AND\s+", said.replace("(", "").replace(")", "")):
        choices = re.split(r"\s+OR\s+", part)
        needed.append(next((c for c in choices if c in ALLOWED), choices[0]))
    return tuple(needed)


def _named(words: str) -> str:
    return next((spdx for pattern, spdx in WORDS if re.search(pattern, words.lower())), "")


def report(found: list[Package]) -> str:
    lines = ["# Licences of dependencies", "", "| package | version | licence | installed by |", "|---|---|---|---|"]
    for p in sorted(found, key=lambda p: (not p.is_required, p.of != OURS[0], p.name)):
        lines.append(f"| {p.name} | {p.version} | {' AND '.join(p.licences) or f'unknown: {p.said}'} | {p.of} |")
    return "\n".join(lines) + "\n"


def main(args: list[str]) -> int:
    found = packages()
    text = report(found)
    if args:
        Path(args[0]).parent.mkdir(parents=True, exist_ok=True)
        Path(args[0]).write_text(text)
    else:
        print(text)
    refused = [p for p in found if p.is_required and not p.is_allowed]
    for p in refused:
        print(
            f"{p.name} {p.version} is always installed, and its licence is not allowed: {p.said or 'it says none'}",
            file=sys.stderr,
        )
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
