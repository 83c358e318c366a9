"""The terminal sessions of docs/how-to/check-a-deploy.md, against a server and a worker."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.programs.check.findings import KINDS
from tests.cli.live import PROGRAM, Cli, clean_environment
from tests.cli.processes import server, started
from tests.docs.pages import DOCS, Block, blocks_of, matches
from tests.fakes.waiting import until_sync

PAGE = DOCS / "how-to" / "check-a-deploy.md"


@pytest.mark.usefixtures("processes")
def test_the_page_shows_what_the_command_prints(dsn: str, tmp_path: Path) -> None:
    blocks = [b for b in blocks_of(PAGE) if b.language in ("python", "console")]
    first, *rest = blocks
    (tmp_path / first.remark_text).write_text(first.text)
    with (
        server(dsn, tmp_path, "--auth", "open") as one,
        started("worker", "signup.py", "--server", one.grpc, cwd=tmp_path) as worker,
    ):
        worker.until("connected")
        run_all(rest, tmp_path, one.http)


def run_all(blocks: list[Block], directory: Path, url: str) -> None:
    cli = Cli(url, directory)
    for block in blocks:
        if block.language == "python":
            (directory / block.remark_text).write_text(block.text)
            continue
        command, _, expected = block.text.removeprefix("$ ").partition("\n")
        if "check" in command:
            until_sync(lambda: "signup" in cli.ok("list", "--waiting-on", "signal"))
        said = cli_in(directory, command, url)
        assert matches(expected, said), f"{command}\n--- page\n{expected}\n--- real\n{said}"


def cli_in(directory: Path, command: str, url: str) -> str:
    """On a terminal, in a process of its own: each version of a module is imported once."""
    ours, theirs = pty.openpty()
    environment = clean_environment() | {"PERDURE_URL": url, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *shlex.split(command)[1:]],
        cwd=directory,
        env=environment,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    os.close(theirs)
    out = bytearray()
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the program has closed its terminal
            break
        if not part:
            break
        out += part
    process.wait(60)
    os.close(ours)
    return out.decode().replace("\r\n", "\n")


def test_the_page_lists_every_kind_of_finding() -> None:
    text = PAGE.read_text()
    for kind, meaning in KINDS.items():
        assert f"| `{kind}` | {meaning} |" in text
