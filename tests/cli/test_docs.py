"""Pages that show commands against a server show what these print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from perdure.cli.commands import COMMANDS, canonical, load
from tests.cli.live import Cli
from tests.docs.pages import DOCS, Block, all_pages, blocks_of, matches, name_of
from tests.fakes.failures import Failures

QUOTED = re.compile(r"(?:^\$ (?:\w+=\S+ )*|`)perdure ([a-z][\w-]*)(?: ([a-z][\w-]*))?", re.MULTILINE)
PAGE = DOCS / "how-to" / "use-the-command-line.md"
SHOWN = (PAGE, DOCS / "how-to" / "retain-and-export.md")


def shown_by(page: Path) -> list[Block]:
    return [b for b in blocks_of(page) if "tests/cli/test_docs.py" in b.remark_text]


def commands_of(block: Block) -> list[tuple[str, str]]:
    parts = ("\n" + block.text).split("\n$ ")[1:]
    return [(command, expected) for command, _, expected in (p.partition("\n") for p in parts)]


def test_the_pages_with_such_blocks_are_known() -> None:
    assert {page for page in all_pages() if shown_by(page)} == set(SHOWN)
    assert len(shown_by(PAGE)) >= 3


@pytest.mark.parametrize("page", SHOWN, ids=lambda p: p.name)
def test_what_a_page_shows_is_what_is_printed(page: Path, cli: Cli) -> None:
    """In order: later commands are about the run that the first one starts."""
    for block in shown_by(page):
        for command, expected in commands_of(block):
            words = shlex.split(command)
            assert words[0] == "perdure"
            done = cli(*words[1:], tty=True, NO_COLOR="1", COLUMNS="120")
            assert done.code == 0, f"{command}: {done.err}"
            actual = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.out)
            if "--watch" in words:  # the pictures on the way are drawn over; the last one stays
                actual = actual[actual.rindex("✓ hello") :]
            assert not expected.strip() or matches(expected, actual), f"line {block.line}: `{command}` prints\n{actual}"


@pytest.mark.keep
def test_commands_on_all_pages_exist() -> None:
    with Failures() as failures:
        for page in all_pages():
            for first, second in QUOTED.findall(page.read_text()):
                words = canonical([word for word in (first, second) if word])
                if page == PAGE and words[0] == "status":
                    continue  # shows the error of an unknown command
                with failures.of(f"{name_of(page)}: perdure {first} {second}".rstrip()):
                    check_command(words)


def check_command(words: list[str]) -> None:
    assert words[0] in COMMANDS, f"{words[0]} is no command"
    verbs = getattr(load(COMMANDS[words[0]].module)[words[0]], "commands", None)
    assert verbs is None or len(words) < 2 or words[1] in verbs, f"{words[0]} has no {words[1]}"
