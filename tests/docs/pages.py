"""Reads the pages of the documentation: their code blocks, what is expected of each, and their links.

A fenced block is what the reader would copy. The line above it may hold a remark in an HTML comment:

    <!-- no-run: why -->     neither executed nor compared
    <!-- file: hello.py -->  written to that file in the working directory, not executed
    <!-- terminal: 1 -->     typed into a terminal: tests/docs/walks.py

`text` directly after a `python` block is that block's output; `…` in it stands for anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^(\s*)```(.*)$")
_REMARK = re.compile(r"^\s*<!-- (no-run|file|terminal): (.+?) -->$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass
class Block:
    language: str
    text: str
    line: int
    """Of its first line of code."""
    remark: str = ""
    remark_text: str = ""
    output: str | None = None


def all_pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(p for p in DOCS.rglob("*.md") if "adr" not in p.parts)]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def blocks_of(page: Path) -> list[Block]:
    lines = page.read_text().splitlines()
    found: list[Block] = []
    last_end, at = -10, 0
    while at < len(lines):
        opening = _FENCE.match(lines[at])
        if opening is None:
            at += 1
            continue
        indent, language = len(opening[1]), opening[2].strip().split(" ")[0]
        remark = _REMARK.match(lines[at - 1]) if at else None
        end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
        text = "\n".join(line[indent:] for line in lines[at + 1 : end])
        if (
            language == "text"
            and found
            and found[-1].language == "python"
            and not any(x.strip() for x in lines[last_end + 1 : at])
        ):
            found[-1].output = text
        else:
            found.append(Block(language, text, at + 2, *(remark.groups() if remark else ())))
        last_end, at = end, end + 1
    return found


def links_of(page: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return _LINK.findall(prose)


@cache
def anchors_of(page: Path) -> set[str]:
    titles = _HEADING.findall(re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", t.strip().lower()).replace(" ", "-") for t in titles}


def matches(expected: str, actual: str) -> bool:
    """Line for line, with `…` for anything."""
    parts = [re.escape(part) for part in expected.strip().split("…")]
    tidy = "\n".join(line.rstrip() for line in actual.strip().splitlines())
    return re.fullmatch(".*?".join(parts), tidy, re.DOTALL) is not None
