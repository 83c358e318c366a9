"""Every snippet of the documentation runs as a reader would run it, against a fresh database.

The python blocks of a page become one module, with each block on its line of the page, so that a traceback points into the page.
A page that defines tests is run by pytest. `$ perdure` commands run afterwards in the same directory and on the same database.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.docs.pages import Block, all_pages, blocks_of, matches, name_of
from tests.fakes.pytest_plugin import plugin_options

MARK = "\x1e"
PAGE_S_MAX = 240
PYTEST_INI = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"


def runnable(page: Path, *languages: str) -> list[Block]:
    return [b for b in blocks_of(page) if b.language in languages and b.remark not in ("no-run", "terminal")]


def module_of(blocks: list[Block]) -> str:
    """Blocks on their own lines; after each one a mark, so that outputs can be told apart."""
    lines: list[str] = []
    for number, block in enumerate(blocks):
        lines += [""] * (block.line - 1 - len(lines))
        lines += [*block.text.splitlines(), f"print({MARK + str(number)!r}, flush=True)"]
    return "\n".join(lines) + "\n"


def environment(dsn: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PERDURE_", "PYTEST_"))}
    return kept | {
        "PERDURE_DSN": dsn,
        "PERDURE_EXECUTOR_PROCESS_STATE_DIR": os.environ["PERDURE_EXECUTOR_PROCESS_STATE_DIR"],
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }


def outputs_of(stdout: str, count: int) -> list[str]:
    rest, out = stdout, []
    for number in range(count):
        before, found, rest = rest.partition(f"{MARK}{number}\n")
        assert found, f"block {number + 1} did not end:\n{stdout}"
        out.append(before)
    return out


def run_python(page: Path, blocks: list[Block], directory: Path, dsn: str) -> None:
    has_tests = any("def test_" in b.text for b in blocks)
    module = directory / f"{'test_' if has_tests else ''}{page.stem.replace('-', '_').lower()}_page.py"
    module.write_text(module_of(blocks))
    command = [sys.executable, str(module)]
    if has_tests:
        (directory / "pytest.ini").write_text(PYTEST_INI)
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *plugin_options(), module.name]
    done = subprocess.run(
        command, cwd=directory, env=environment(dsn), capture_output=True, text=True, timeout=PAGE_S_MAX, check=False
    )
    assert done.returncode == 0, f"{name_of(page)} failed:\n{done.stdout}\n{done.stderr}"
    for block, actual in zip(blocks, outputs_of(done.stdout, len(blocks)), strict=True):
        if block.output is not None:
            assert matches(block.output, actual), (
                f"{name_of(page)}, line {block.line}: output differs\n--- page\n{block.output}\n--- real\n{actual}"
            )


def run_console(page: Path, block: Block, directory: Path, dsn: str) -> None:
    """Lines after a command, up to the next one, are its output. Commands of other programs are not ours to run."""
    for part in ("\n" + block.text).split("\n$ ")[1:]:
        command, _, expected = part.partition("\n")
        words = shlex.split(command.replace("$PERDURE_DSN", shlex.quote(dsn)))  # as a shell would
        if words[0] != "perdure":
            continue
        done = subprocess.run(
            words, cwd=directory, env=environment(dsn), capture_output=True, text=True, timeout=PAGE_S_MAX, check=False
        )
        assert done.returncode == 0, (
            f"{name_of(page)}: `{command}` ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        if expected.strip():
            assert matches(expected, done.stdout), f"{name_of(page)}: `{command}` prints\n{done.stdout}"


async def run_sql(page: Path, blocks: list[Block], dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for block in blocks:
            try:
                await connection.execute(block.text)
            except asyncpg.PostgresError as error:
                raise AssertionError(f"{name_of(page)}, line {block.line}: {error}") from error
    finally:
        await connection.close()


REPEATED = ("tutorial.md",)
"""Pages whose readers append to one file and run it after each step: every step runs at least twice on one database."""


def grown(blocks: list[Block]) -> list[list[Block]]:
    """The file after each step."""
    return [blocks[: n + 1] for n, block in enumerate(blocks) if "asyncio.run(" in block.text]


PAGES = [p for p in all_pages() if runnable(p, "python", "console", "sql")]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_snippets_of_a_page_run(page: Path, dsn: str, tmp_path: Path) -> None:
    blocks = runnable(page, "python")
    for block in blocks:
        if block.remark == "file":
            (tmp_path / block.remark_text).write_text(block.text + "\n")
    code = [b for b in blocks if b.remark != "file"]
    if code:
        for part in [*grown(code), code] if page.name in REPEATED else [code]:
            run_python(page, part, tmp_path, dsn)
    if queries := runnable(page, "sql"):
        asyncio.run(run_sql(page, queries, dsn))
    for block in runnable(page, "console"):
        run_console(page, block, tmp_path, dsn)


def test_every_block_that_does_not_run_says_why() -> None:
    for page in all_pages():
        for block in blocks_of(page):
            if block.remark == "no-run":
                assert len(block.remark_text) > 10, f"{name_of(page)}, line {block.line}: give a reason"


def test_every_python_block_is_python() -> None:
    for page in all_pages():
        for block in blocks_of(page):
            if block.language == "python":
                compile(block.text, f"{name_of(page)}:{block.line}", "exec")
