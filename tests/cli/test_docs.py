"""The page about the command line shows what the command line prints."""

from __future__ import annotations

import re
import shlex

import pytest

from perdure.cli.commands import COMMANDS
from tests.cli.live import Cli
from tests.docs.pages import DOCS, ROOT, Block, all_pages, blocks_of, matches

PAGE = DOCS / "how-to" / "use-the-command-line.md"
BLOCKS = [b for b in blocks_of(PAGE) if "tests/cli/test_docs.py" in b.remark_text]


def commands_of(block: Block) -> list[tuple[str, str]]:
    parts = ("\n" + block.text).split("\n$ ")[1:]
    return [(command, expected) for command, _, expected in (p.partition("\n") for p in parts)]


def test_what_the_page_shows_is_what_is_printed(cli: Cli) -> None:
    """In order: later commands are about the run that the first one starts."""
    assert len(BLOCKS) >= 3
    for block in BLOCKS:
        for command, expected in commands_of(block):
            words = shlex.split(command)
            assert words[0] == "perdure"
            done = cli(*words[1:], tty=True, NO_COLOR="1", COLUMNS="120")
            assert done.code == 0, f"{command}: {done.err}"
            actual = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.out)
            if "--watch" in words:  # the pictures on the way are drawn over; the last one stays
                actual = actual[actual.rindex("✓ hello") :]
            assert matches(expected, actual), f"line {block.line}: `{command}` prints\n{actual}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *all_pages()], ids=lambda p: p.name)
def test_commands_on_the_pages_exist(page: object) -> None:
    for block in blocks_of(page):  # type: ignore[arg-type]
        for name in re.findall(r"^\$ (?:\w+=\S+ )*perdure ([a-z]\w*)", block.text, re.MULTILINE):
            assert name in COMMANDS, f"{page}, line {block.line}: perdure {name}"
